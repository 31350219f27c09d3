"""Splits a model, its weights and activations, over the devices of a mesh."""
