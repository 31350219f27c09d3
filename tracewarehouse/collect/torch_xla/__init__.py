"""Records with torch_xla: its devices, steps that are traced once, and pipelines over hosts."""
