"""The reader of xplane.pb."""
