"""Proves that the lake is undamaged, and that a run holds everything in its capture."""
