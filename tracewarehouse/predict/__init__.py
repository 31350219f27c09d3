"""Predicts the times of compiled programs on TPU slices that need not exist."""
