"""Finds the executions of collectives, their groups and mesh axes, and the instances that their ranks share."""
