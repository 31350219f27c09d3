"""The reader of Chrome traces."""
