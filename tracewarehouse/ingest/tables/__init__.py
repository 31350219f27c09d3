"""Writes the tables of one run."""
