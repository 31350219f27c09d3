"""Proves that the lake is whole, and that a run has all of its capture."""
