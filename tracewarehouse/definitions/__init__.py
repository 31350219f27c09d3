"""Reads sql/: metrics, models, audits and macros; handles their versions, and writes their pages."""
