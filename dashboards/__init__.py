"""Draws the warehouse: one function per chart, and the report page."""
