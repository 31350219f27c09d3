"""Reads xplane.pb."""
