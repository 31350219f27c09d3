"""Writes rows of CCL-Bench: a folder per run, and files for a checkout of its repository.

CCL-Bench is at https://github.com/cornell-sysphotonics/ccl-bench; the names of files, fields and metrics are its own.
"""
