"""Describes the models that can be recorded, and reads the files of published ones."""
