"""Lists the axes that a device mesh may have."""

AXES = ("pp", "dp", "ep", "sp", "tp")
"""Mesh axes, outermost first, in the order in which device ids are laid out by default."""
