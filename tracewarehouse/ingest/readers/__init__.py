"""Readers convert the bytes of a capture to the columnar records of `ingest.columns.records`."""
