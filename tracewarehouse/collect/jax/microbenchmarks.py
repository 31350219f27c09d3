"""The small programs of a calibration: each shows one rate of the devices, of their links or of the host.

A program is named `micro.<kind>.<class>.<what>`, which the metric `microbenchmarks` reads. Devices are numbered along
the dimensions of a slice. So the axes of a mesh are these dimensions if there are as many: on a slice of 2x4 chips
dp=4,tp=2 has the first dimension as tp. Every device has arguments of its own; a program exchanges only what it is for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from tracewarehouse.collect.harness.backend import Recording
from tracewarehouse.collect.harness.generation import profiled
from tracewarehouse.collect.jax.attention import attention, flash, paged
from tracewarehouse.collect.jax.mesh import JaxMesh
from tracewarehouse.collect.jax.stack import JaxStack
from tracewarehouse.collect.parallel.attention_forms import PAGE
from tracewarehouse.collect.run_spec import MESH_AXES, RunSpec
from tracewarehouse.collect.tpu.quota import host_chip
from tracewarehouse.ingest.capture_names import host_name

EXECUTIONS = 20
"""Executions of each program in the capture, after one outside of it."""
CHAIN = 8
"""Fusions of a chain; those between the first and the last have operands and result in the same memory."""
WIDTH = 1024
"""Elements of a row of a message: a multiple of the lanes of a vector register."""
HEADS, KV_HEADS, HEAD_WIDTH, SEQUENCES = 32, 8, 128, 8
"""Heads and sequences of the attention kernels: those of Llama-3.1-8B on one chip."""
RAGGED_PAGES = 4
"""Pages that the ragged kernel reads at once; more do not fit into the VMEM that a v5e gives a kernel."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the programs."""

    messages: tuple[int, ...]
    """Bytes of collectives: of an all-gather's full result, else of one device's operand."""
    products: tuple[tuple[int, int, int], ...]
    """Rows, inner length and columns."""
    on_chip: tuple[tuple[int, int], ...]
    """Shapes, in float32, that VMEM holds; on v4 the compiler puts them into CMEM."""
    off_chip: tuple[tuple[int, int], ...]
    """Shapes, in float32, that VMEM cannot hold."""
    copies: tuple[int, ...]
    """Bytes."""
    contexts: tuple[int, ...]
    """Tokens that each sequence has in the cache."""
    arguments: tuple[int, ...]
    """Arguments of the programs that show the host's time; the weights of a model are hundreds."""


ON_CHIPS = Sizes(
    messages=tuple(4096 * 4**n for n in range(9)),
    products=(
        *((n, n, n) for n in (512, 1024, 2048, 4096, 8192)),
        *((m, 4096, n) for m in (8, 128, 8192) for n in (1792, 14336)),
    ),
    on_chip=((8, 1024), (32, 1024), (256, 1024), (1024, 1024)),
    off_chip=((8192, 8192), (16384, 8192)),
    copies=tuple(2**n for n in (22, 24, 26, 28)),
    contexts=(512, 1024, 4096, 16384),
    arguments=(1, 300),
)
ON_VIRTUAL_DEVICES = Sizes(
    messages=(4096, 16384, 65536),
    products=((64, 64, 64), (8, 128, 256)),
    on_chip=((8, 1024), (32, 1024)),
    off_chip=((256, 1024),),
    copies=(2**20,),
    contexts=(16, 32, 64, 128),
    arguments=(1, 30),
)


@dataclass(frozen=True)
class Microbenchmark:
    """A program of one device."""

    kind: str
    """collective, product, fusion, copy, attention or host."""
    of_class: str
    what: str
    given: Callable[[], tuple[Any, ...]]
    """Makes its arguments on a device."""
    body: Callable[..., Any]

    @property
    def name(self) -> str:
        """Name of the program."""
        return f"micro.{self.kind}.{self.of_class}.{self.what}"

    def arguments(self, mesh: JaxMesh) -> Any:
        """Return the program that makes the arguments on all devices."""

        def arguments() -> tuple[Any, ...]:
            return self.given()

        return jax.jit(jax.shard_map(arguments, mesh=mesh.mesh, in_specs=(), out_specs=_OWN, check_vma=False))

    def lowered(self, mesh: JaxMesh) -> Any:
        """Return the program, before it is compiled."""

        def program(*arguments: Any) -> Any:
            return self.body(*arguments)

        program.__name__ = self.name
        mapped = jax.shard_map(program, mesh=mesh.mesh, in_specs=_OWN, out_specs=_OWN, check_vma=False)
        shapes = jax.eval_shape(self.arguments(mesh))
        split = jax.sharding.NamedSharding(mesh.mesh, _OWN)
        own = [jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=split) for shape in shapes]
        return jax.jit(mapped, keep_unused=True).lower(*own)


_OWN = jax.sharding.PartitionSpec(MESH_AXES)
"""Every device has its own part, along the first dimension."""


def microbenchmarks(spec: RunSpec) -> list[Microbenchmark]:
    """Return the programs of a run, collectives of each axis and of all axes first."""
    is_tpu = spec.device == "tpu"
    sizes, dtype = ON_CHIPS if is_tpu else ON_VIRTUAL_DEVICES, getattr(jnp, spec.dtype)
    axes = [axis for axis in MESH_AXES if spec.axis(axis) > 1]
    along = [(axis,) for axis in axes] + ([tuple(axes)] if len(axes) > 1 else [])
    programs = [
        _collective(kind, over, math.prod(spec.axis(axis) for axis in over), size, dtype)
        for over in along
        for kind in _EXCHANGES
        for size in sizes.messages
    ]
    programs += [_product(shape, dtype) for shape in sizes.products]
    programs += [_chain("vmem", shape) for shape in sizes.on_chip] + [_chain("hbm", shape) for shape in sizes.off_chip]
    programs += [_copy(size, dtype) for size in sizes.copies]
    programs += [p for tokens in sizes.contexts for p in _attentions(tokens, dtype, is_tpu)]
    return programs + [_arguments(count) for count in sizes.arguments]


def record_microbenchmarks(spec: RunSpec, capture: Path) -> Recording:
    """Run all programs, and leave the profile in the capture directory."""
    stack = JaxStack(spec)
    programs = microbenchmarks(spec)
    ready = [(program, program.arguments(stack.mesh), program.lowered(stack.mesh).compile()) for program in programs]
    for number, program in enumerate(ready):
        _execute(stack, *program, range(number, number + 1))

    def execute_all() -> None:
        for number, program in enumerate(ready):
            _execute(stack, *program, range(number * EXECUTIONS, (number + 1) * EXECUTIONS))

    _, files = profiled(stack, execute_all, capture)
    return Recording(
        model=None,
        phases=[],
        hosts=[host_name(file) for file in files],
        checks={"programs": len(programs), "executions": EXECUTIONS},
        chip=host_chip() if spec.device == "tpu" else None,
        devices_per_host=stack.devices_per_host,
    )


def _execute(stack: JaxStack, program: Microbenchmark, arguments: Any, compiled: Any, steps: range) -> None:
    """Execute a program once in each of these steps, with the same arguments, which leave the devices afterwards.

    Executions follow one another without the host, except where it is the host that takes time, and on virtual devices,
    whose threads can run one program at a time.
    """
    given = arguments()
    is_awaited = program.kind == "host" or stack.is_virtual
    for step in steps:
        with stack.mark(program.name, step):
            result = compiled(*given)
            if is_awaited:
                stack.wait(result)
    stack.wait(result)


_EXCHANGES: dict[str, Callable[[Any, Any, int], Any]] = {
    "all-reduce": lambda x, axes, _: jax.lax.psum(x, axes),
    "all-gather": lambda x, axes, _: jax.lax.all_gather(x, axes, tiled=True),
    "reduce-scatter": lambda x, axes, _: jax.lax.psum_scatter(x, axes, scatter_dimension=0, tiled=True),
    "all-to-all": lambda x, axes, _: jax.lax.all_to_all(x, axes, 0, 0, tiled=True),
    "collective-permute": lambda x, axes, n: jax.lax.ppermute(x, axes, [(i, (i + 1) % n) for i in range(n)]),
}


def _values(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return numbers at random: equal ones take less power, and a chip that its power limits multiplies them faster.

    A product of 8,192 x 8,192 matrices took 921 TFLOP/s with ones on an H200, and 821 at random.
    """
    return jax.random.normal(jax.random.key(0), shape, dtype)


def _collective(kind: str, axes: tuple[str, ...], devices: int, size: int, dtype: Any) -> Microbenchmark:
    piece = size // jnp.dtype(dtype).itemsize // devices
    width = min(WIDTH, piece)
    shape = (piece // width * (1 if kind == "all-gather" else devices), width)
    return Microbenchmark(
        "collective",
        f"{kind}-{'-'.join(axes)}",
        str(size),
        lambda: (_values(shape, dtype),),
        lambda x: _EXCHANGES[kind](x, axes, devices),
    )


def _product(shape: tuple[int, int, int], dtype: Any) -> Microbenchmark:
    rows, inner, columns = shape
    return Microbenchmark(
        "product",
        jnp.dtype(dtype).name,
        f"{rows}x{inner}x{columns}",
        lambda: (_values((rows, inner), dtype), _values((inner, columns), dtype)),
        lambda a, b: a @ b,
    )


def _chain(memory: str, shape: tuple[int, int]) -> Microbenchmark:
    def body(x: Any) -> Any:
        for _ in range(CHAIN):
            x = jax.lax.optimization_barrier(x * 0.5 + 1.0)  # without barriers they become one fusion
        return x

    return Microbenchmark("fusion", memory, "x".join(map(str, shape)), lambda: (_values(shape, jnp.float32),), body)


def _copy(size: int, dtype: Any) -> Microbenchmark:
    shape = (size // jnp.dtype(dtype).itemsize // WIDTH, WIDTH)
    return Microbenchmark("copy", "hbm", str(size), lambda: (_values(shape, dtype),), jnp.copy)


def _arguments(count: int) -> Microbenchmark:
    return Microbenchmark(
        "host",
        "arguments",
        str(count),
        lambda: tuple(jnp.ones((8, 128), jnp.float32) for _ in range(count)),
        lambda *x: x[0] + 1.0,
    )


def _attentions(tokens: int, dtype: Any, has_kernels: bool) -> Iterator[Microbenchmark]:
    """Yield attention over `tokens`: of prompts by flash and ragged kernels, of decode steps by paged and ragged ones.

    Without the kernels, an einsum of decode steps.
    """
    scale = HEAD_WIDTH**-0.5

    def heads(count: int, length: int, sequences: int = SEQUENCES) -> Any:
        return _values((sequences, count, length, HEAD_WIDTH), dtype)

    def cached() -> tuple[Any, ...]:
        return heads(HEADS, 1), heads(KV_HEADS, tokens), heads(KV_HEADS, tokens)

    def named(
        form: str,
        given: Callable[[], tuple[Any, ...]],
        body: Callable[..., Any],
        sequences: int = SEQUENCES,
        count: int = HEADS,
    ) -> Microbenchmark:
        shape = f"{sequences}x{count}x{tokens}x{HEAD_WIDTH}"
        return Microbenchmark("attention", form, shape, given, body)

    if not has_kernels:
        yield named("einsum", cached, lambda q, k, v: attention(q, k, v, jnp.ones((1, tokens), bool), scale))
        return
    yield named(
        "flash",
        lambda: (heads(HEADS, tokens, 1), heads(KV_HEADS, tokens, 1), heads(KV_HEADS, tokens, 1)),
        lambda q, k, v: flash(q, k, v, scale),
        sequences=1,
    )
    yield named("paged", cached, lambda q, k, v: paged(q, k, v, tokens - 1, scale), count=KV_HEADS)
    for form, queries, sequences, count in (
        ("ragged-prompt", tokens, 1, HEADS),
        ("ragged-token", 1, SEQUENCES, KV_HEADS),
    ):
        yield named(form, _ragged_arguments(tokens, queries, sequences, dtype), _ragged(scale), sequences, count)


def _ragged_arguments(tokens: int, queries: int, sequences: int, dtype: Any) -> Callable[[], tuple[Any, ...]]:
    """Return what makes queries, pages of keys and values in turn, lengths, pages of each sequence, and borders."""
    pages = tokens // PAGE

    def given() -> tuple[Any, ...]:
        return (
            _values((queries * sequences, HEADS, HEAD_WIDTH), dtype),
            _values((sequences * pages, PAGE, 2 * KV_HEADS, HEAD_WIDTH), dtype),
            jnp.full(sequences, tokens, jnp.int32),
            jnp.arange(sequences * pages, dtype=jnp.int32).reshape(sequences, pages),
            jnp.arange(sequences + 1, dtype=jnp.int32) * queries,
            jnp.full(1, sequences, jnp.int32),
        )

    return given


def _ragged(scale: float) -> Callable[..., Any]:
    """Return the kernel for sequences of different lengths, which vLLM runs on TPU in versions of its own."""

    def body(*arguments: Any) -> Any:
        from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

        return ragged_paged_attention(
            *arguments, sm_scale=scale, num_kv_pages_per_block=RAGGED_PAGES, num_queries_per_block=32
        )

    return body
