"""Runs the collector's models in JAX, written out for one device of the mesh (`jax.shard_map`)."""
