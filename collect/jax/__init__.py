"""The models of the collector in JAX, written out for one device of the mesh (`jax.shard_map`)."""
