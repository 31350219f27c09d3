"""Records jax-dp2tp2.xplane.pb.gz: two layers over 4 virtual CPU devices, a prefill and three decode steps.

python tests/ingest/captures/record_jax.py, with JAX 0.10.2 and nothing else of this repository.
"""

from __future__ import annotations

import gzip
import os
import tempfile
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")  # no paths of the machine

LAYERS, HIDDEN, WIDE, BATCH, INPUT, STEPS = 2, 64, 256, 4, 16, 3

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("dp", "tp"))


def placed(shape: tuple[int, ...], *axes: str | None) -> jax.Array:
    return jax.device_put(jnp.full(shape, 0.01), NamedSharding(mesh, PartitionSpec(*axes)))


@jax.jit
def forward(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    for i in range(LAYERS):
        with jax.named_scope(f"layers.{i}"), jax.named_scope("mlp"):
            x = jnp.tanh(x @ up) @ down
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec("dp")))


up, down = placed((HIDDEN, WIDE), None, "tp"), placed((WIDE, HIDDEN), "tp", None)
calls = [("prefill", placed((BATCH, INPUT, HIDDEN), "dp"))] + [("decode", placed((BATCH, 1, HIDDEN), "dp"))] * STEPS
for _, x in calls[:2]:
    forward(x, up, down).block_until_ready()
with tempfile.TemporaryDirectory() as folder:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options):
        for step, (phase, x) in enumerate(calls):
            with jax.profiler.StepTraceAnnotation(phase, step_num=step):
                forward(x, up, down).block_until_ready()
    [xplane] = Path(folder).rglob("*.xplane.pb")
    out = Path(__file__).with_name("jax-dp2tp2.xplane.pb.gz")
    out.write_bytes(gzip.compress(xplane.read_bytes(), mtime=0))
    print(out, out.stat().st_size)
