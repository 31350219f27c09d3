"""Evaluates metrics and audits of runs."""
