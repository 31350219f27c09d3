"""Columns of events, and what is done with them in numpy, whatever file they came from."""
