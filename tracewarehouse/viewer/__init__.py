"""Serves viewers of traces from this machine, to this machine alone."""
