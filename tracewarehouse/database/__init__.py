"""The views and caches with which DuckDB reads a lake."""
