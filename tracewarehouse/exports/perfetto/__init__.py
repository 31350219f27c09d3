"""Writes runs as native Perfetto traces.

Tracks and arguments have the names of XProf's own Perfetto export (of Megascale traces), so that PerfettoSQL that is
written for it works here; docs/exports.md lists the tracks.
"""
