"""Queries, compares and exports the warehouse of traces."""
