"""Chooses how a run attends: by einsums, which every device has, or on TPU by kernels written in Pallas."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Literal

from tracewarehouse.collect.models.architectures import model_architecture
from tracewarehouse.collect.run_spec import RunSpec

LANES = 128
"""Elements of a TPU's vector registers; the kernels divide heads and prompts by them."""
QUERY_BLOCK = 512
"""Queries of a block of flash attention; a prompt must be a multiple of it, or shorter and a multiple of LANES."""
BATCH_BLOCK = 2
"""Sequences of a block under torch_xla; a device must have one sequence or a multiple of this."""
PAGE = 128
"""Positions of a page of the cache that the kernel of decode steps reads."""
BLOCK_PAGES = 8
"""Most pages that it reads at once."""

Form = Literal["einsum", "flash", "paged", "absorbed"]


def prefill_form(spec: RunSpec) -> Form:
    """Return how the prefill of a run attends.

    The kernel is a flash attention (Dao et al. 2022). Ulysses and ring have attention of their own.
    """
    if not _has_kernels(spec) or spec.sequence_parallelism in ("ulysses", "ring"):
        return "einsum"
    length, batch = spec.input_length, spec.batch // (spec.axis("dp") * spec.axis("ep") * spec.microbatch_count)
    fits = length % LANES == 0 and (length <= QUERY_BLOCK or length % QUERY_BLOCK == 0)
    is_batch_free = spec.backend == "jax" or batch == 1 or batch % BATCH_BLOCK == 0
    return "flash" if fits and is_batch_free else "einsum"


def decode_form(spec: RunSpec) -> Form:
    """Return how the decode steps of a run attend.

    The kernel is paged attention (Kwon et al. 2023), which reads only the pages that hold positions. It takes keys and
    values per head, of one width that is a multiple of LANES; latent attention has neither. Under jax that absorbs the
    weight which would expand its latents.
    """
    architecture = model_architecture(spec.model)
    if architecture.has_latent_cache and spec.backend == "jax":
        return "absorbed"
    if not _has_kernels(spec) or architecture.has_latent_cache or architecture.head_dim % LANES:
        return "einsum"
    return "paged"


def attention_forms(spec: RunSpec) -> dict[str, str]:
    """Return how a run attends in both phases, for its manifest."""
    return {"prefill_attention": prefill_form(spec), "decode_attention": decode_form(spec)}


def cache_length(spec: RunSpec) -> int:
    """Return the positions per sequence for which the cache has room: whole pages if a kernel reads pages."""
    length = spec.input_length + spec.output_length
    return -(-length // PAGE) * PAGE if decode_form(spec) == "paged" else length


def block_pages(pages: int) -> int:
    """Return how many pages of a sequence the kernel reads at once; its blocks must be equal."""
    return math.gcd(pages, BLOCK_PAGES)


def _has_kernels(spec: RunSpec) -> bool:
    """Return whether the run is on TPU with jax, which has the kernels, and its program can contain one.

    torch_xla cannot map a kernel over the stages of a pipeline; JAX's program is for one device anyway. Under torch_tpu
    no kernel was tried.
    """
    is_mapped = spec.axis("pp") > 1 and spec.backend != "jax"
    return spec.device == "tpu" and spec.backend != "torch_tpu" and not is_mapped and find_spec("jax") is not None
