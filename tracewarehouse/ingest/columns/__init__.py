"""Defines columns of events, and operations on them in numpy, independent of the capture's format."""
