"""What a run must show: promised collectives, and the same results as plain torch."""
