"""Reads the traces of PyTorch's profiler (Kineto)."""
