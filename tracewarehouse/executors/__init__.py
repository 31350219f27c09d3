"""Shares the ingest of many captures among processes: the seam to an executor, and that of this machine's processes."""
