"""Readers: the bytes of a capture become the columnar records of `ingest.columns.records`."""
