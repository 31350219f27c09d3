"""Names the phases of inference."""

PHASES = ("prefill", "decode")
"""A column holds a phase as its index in this tuple, -1 if unknown."""
