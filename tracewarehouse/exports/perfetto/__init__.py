"""Writes runs as native Perfetto traces.

`wire` encodes fields of many messages at once, and `packets` writes tracks, slices and counters with them.
`selected_run` asks for the rows; `devices`, and `export` for hosts and counters, say which of them go to which track,
with which arguments.

Tracks and arguments have the names of XProf's own Perfetto export (of Megascale traces), so that PerfettoSQL that is
written for it works here: `1. Global Counters`, and below `2. TPUs` each device with `1. Steps`, `2. XLA Modules`,
`3. XLA Ops` and `4. XLA TraceMe`. What PyTorch launches on a GPU is on `2. Launches` instead. Beyond those there are
`5. Name Scope` (layers and parts of the model) and `6. Collectives` (one track per kind and mesh axis) on every device,
its other lines, and `3. Hosts`.
"""
