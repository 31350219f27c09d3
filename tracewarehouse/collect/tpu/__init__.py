"""Creates Cloud TPU slices within a quota, records an experiment on all hosts of one, and deletes them."""
