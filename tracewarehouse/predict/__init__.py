"""Predicts how long a TPU takes for a program that the compiler has made for it, without the TPU."""
