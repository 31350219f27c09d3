"""The phases of inference."""

PHASES = ("prefill", "decode")
"""Columns hold a phase as its index in this tuple, -1 if it is unknown."""
