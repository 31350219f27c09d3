"""Collectives: their executions, their groups and mesh axes, and the instances that their ranks share."""
