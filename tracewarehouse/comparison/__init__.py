"""Compares the metric values of runs."""
