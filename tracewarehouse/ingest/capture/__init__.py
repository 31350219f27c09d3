"""Reads the pieces of a capture: its files, its manifest and its workload card."""
