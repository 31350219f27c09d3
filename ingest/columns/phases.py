"""The phases of inference."""

PHASES = ("prefill", "decode")
"""Columns hold a phase as its place in here, -1 where it is unknown."""
