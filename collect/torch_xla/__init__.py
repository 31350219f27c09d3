"""The torch_xla backend: its devices, steps that are traced once, and pipelines over hosts."""
