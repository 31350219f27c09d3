"""Turns profiler captures into the warehouse's typed Parquet tables."""
