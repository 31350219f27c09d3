"""Names the phases of inference."""

OUTSIDE = "outside"
"""Stands where the phase would, for what runs before a device's first step or after its last."""
PHASES = ("prefill", "decode", OUTSIDE)
"""A column holds a phase as its index in this tuple, -1 if unknown."""
