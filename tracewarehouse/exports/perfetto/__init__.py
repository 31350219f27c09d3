"""Writes runs as native Perfetto traces.

`wire` encodes fields of many messages at once, `lanes` divides slices into tracks on which they nest, `packets` writes
tracks, slices and counters, and `run_tracks` says which events of a run go to which track.
"""
