"""Records submeshes.xplane.pb.gz: one function on three meshes of 8 virtual CPU devices, none in their order.

python tests/ingest/captures/record_submeshes.py, with JAX 0.10.2 and nothing else of this repository.
"""

from __future__ import annotations

import gzip
import os
import tempfile
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")  # no paths of the machine

MESHES = ([[1, 0]], [[3, 2], [5, 4]], [[0, 2, 4, 6], [1, 3, 5, 7]])
"""Devices along dp and tp of each mesh."""
STEPS = 3


def program(places: list[list[int]]) -> tuple[jax.stages.Wrapped, jax.Array]:
    mesh = Mesh(np.array(jax.devices())[np.array(places)], ("dp", "tp"))

    def step(x: jax.Array) -> jax.Array:
        return jax.lax.pmean(jax.lax.psum(jnp.tanh(x @ x), "tp"), "dp")

    split = PartitionSpec(("dp", "tp"))
    on_mesh = jax.shard_map(step, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    return jax.jit(on_mesh), jax.device_put(jnp.ones((64 * mesh.size, 64)), NamedSharding(mesh, split))


programs = [program(places) for places in MESHES]
for run, x in programs:
    run(x).block_until_ready()
with tempfile.TemporaryDirectory() as folder:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options):
        for number in range(STEPS):
            with jax.profiler.StepTraceAnnotation("decode", step_num=number):
                for run, x in programs:
                    run(x).block_until_ready()
    [xplane] = Path(folder).rglob("*.xplane.pb")
    out = Path(__file__).with_name("submeshes.xplane.pb.gz")
    out.write_bytes(gzip.compress(xplane.read_bytes(), mtime=0))
    print(out, out.stat().st_size)
