"""Infers layers and parts of a model from the repetition in its programs, if no names state them."""
