"""A model split over the devices of a mesh: what splits its weights and activations, and the loop that generates."""
