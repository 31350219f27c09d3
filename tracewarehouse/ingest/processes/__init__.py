"""Shares work among processes, and turns off what only costs them time."""
