"""The models that can be recorded, and the files of published ones."""
