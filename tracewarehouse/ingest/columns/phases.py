"""Names the phases of inference."""

OUTSIDE = "outside"
"""The phase of what runs before a device's first step or after its last."""
PHASES = ("prefill", "decode", OUTSIDE)
"""The phases; a column holds a phase as its index in this tuple, -1 if unknown."""
