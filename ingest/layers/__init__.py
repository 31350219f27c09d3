"""Layers and parts of a model's programs that no name tells, from what repeats in them."""
