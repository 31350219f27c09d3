"""Shares the ingest of many captures among processes: the interface of an executor, and one for this machine."""
