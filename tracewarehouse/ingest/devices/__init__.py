"""Surveys the devices of a run: hosts, clocks, executions, steps and phases, and how complete the capture is."""
