"""Reads sql/: metrics, models, audits and macros, their versions, and their pages."""
