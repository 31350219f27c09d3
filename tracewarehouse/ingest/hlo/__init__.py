"""Finds the facts of each HLO instruction once, from HLO text or an embedded HLO proto."""
