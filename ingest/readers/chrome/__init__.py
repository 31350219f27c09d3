"""Reads Chrome traces."""
