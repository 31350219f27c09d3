"""The checks of a run: it has the promised collectives, and the same results as the unsplit model."""
