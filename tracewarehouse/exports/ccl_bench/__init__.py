"""Rows of CCL-Bench: a folder per run, and what a checkout of its repository gets.

CCL-Bench is at https://github.com/cornell-sysphotonics/ccl-bench; the names of files, fields and metrics are its own.
"""
