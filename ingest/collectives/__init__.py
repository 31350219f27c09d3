"""Collectives: executions, the groups and mesh axes they run over, and the instances that ranks share."""
