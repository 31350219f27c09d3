"""Cloud TPU slices: create them within a quota, record an experiment on all hosts of one, delete them."""
