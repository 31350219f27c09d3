"""Writes runs in the formats of other tools, one module for each format."""
