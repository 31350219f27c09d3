"""Runs an inference harness and saves its profiler captures."""
