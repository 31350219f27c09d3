"""Writes large TPU captures that are shaped like real ones, from a seed.

    python tests/benchmarks/tpu_captures.py OUT.xplane.pb --megabytes 100

Each device has the lines Steps, XLA Modules, XLA Ops and Async XLA Ops; event metadata holds HLO text of 200 to 2,000
characters with the stats that XLA writes; op events have device_offset_ps and device_duration_ps, some more. The host
has 40 threads. Proportions follow captures of TPU v6e: about 42 bytes an event, a tenth of the bytes on the host.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from xplane_builder import LineBuilder, PlaneBuilder, Space, StatValue, TpuPlane, Unsigned, content, integer

Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
CHUNK = 100_000
MOST_ELEMENTS = 1 << 26
"""Of one array: the largest of a real program on a device are weights and activations of some hundred MB."""
HOST_SHARE, ASYNC_SHARE = 0.1, 0.1
START_PS = 81_311_052_656
CYCLE_PS = 78  # device times are whole cycles


@dataclass
class Piece:
    """Some bytes of every event: a row of `data` per event, of which the first `sizes` count."""

    data: UInt8
    sizes: Int64


def constant(raw: bytes, count: int) -> Piece:
    """The same bytes in every event."""
    return Piece(np.broadcast_to(np.frombuffer(raw, np.uint8), (count, len(raw))), np.full(count, len(raw)))


def varints(values: npt.NDArray[np.uint64] | Int64) -> Piece:
    """A varint per event."""
    v = values.astype(np.uint64)
    data = np.empty((len(v), 10), np.uint8)
    sizes = np.ones(len(v), np.int64)
    for k in range(10):
        data[:, k] = v & np.uint64(127)
        v = v >> np.uint64(7)
        data[:, k] |= (v > 0).astype(np.uint8) << 7
        sizes += v > 0
    width = int(sizes.max(initial=1))
    return Piece(data[:, :width], sizes)


def texts(choices: Sequence[bytes], which: Int64) -> Piece:
    """One of a few texts per event, after its length (below 128 bytes)."""
    rows = np.zeros((len(choices), 1 + max(map(len, choices))), np.uint8)
    for row, text in zip(rows, choices, strict=True):
        row[: 1 + len(text)] = np.frombuffer(bytes([len(text)]) + text, np.uint8)
    sizes = np.array([1 + len(t) for t in choices])
    return Piece(rows[which], sizes[which])


def joined(*pieces: Piece) -> tuple[list[Piece], Int64]:
    """Pieces after one another, and the size of all of them per event."""
    return list(pieces), np.sum([p.sizes for p in pieces], axis=0)


def nested(tag: int, pieces: list[Piece], sizes: Int64, where: npt.NDArray[np.bool_] | None = None) -> list[Piece]:
    """The pieces as a length-delimited field, only of the events `where`."""
    out = [constant(bytes([tag]), len(sizes)), varints(sizes), *pieces]
    return out if where is None else [Piece(p.data, p.sizes * where) for p in out]


def stat(stat_id: int, tag: int, value: Piece, where: npt.NDArray[np.bool_] | None = None) -> list[Piece]:
    """A stat per event."""
    return nested(0x22, *joined(constant(bytes([8, stat_id, tag]), len(value.sizes)), value), where)


def events(metadata: Int64, offset: Int64, duration: Int64, *stats: list[Piece]) -> bytes:
    """The events of a line, encoded."""
    n = len(metadata)
    fields = [constant(b"\x08", n), varints(metadata), constant(b"\x10", n), varints(offset), constant(b"\x18", n)]
    parts = nested(0x22, *joined(*fields, varints(duration), *(p for s in stats for p in s)))
    is_used = np.concatenate([np.arange(p.data.shape[1]) < p.sizes[:, None] for p in parts], axis=1)
    return np.concatenate([p.data for p in parts], axis=1)[is_used].tobytes()


@dataclass(frozen=True)
class Op:
    """An HLO instruction of the program that the captures run."""

    text: str
    name: str
    stats: dict[str, StatValue]
    mean_ps: int

    @property
    def is_all_reduce(self) -> bool:
        return self.name.startswith("all-reduce")


KINDS = [
    ("fusion", "loop fusion", 38),
    ("fusion", "output fusion", 20),
    ("convolution", "convolution fusion", 12),
    ("copy", "data formatting", 8),
    ("all-reduce", "all-reduce", 4),
    ("all-gather-start", "all-gather-start", 3),
    ("all-gather-done", "all-gather-done", 3),
    ("reduce-scatter", "reduce-scatter", 2),
    ("copy-start", "copy-start", 3),
    ("copy-done", "copy-done", 3),
    ("custom-call", "custom-call", 2),
    ("dynamic-update-slice", "dynamic-update-slice", 2),
]
GROUPS = ("[1,8]<=[8]", "[4,2]<=[2,4]T(1,0)", "{{0,1,2,3},{4,5,6,7}}")
LAYERS = ("attentions", "linears", "normalizations", "moe")


def make_op(r: Random, number: int, program_id: int) -> Op:
    """A random instruction."""
    opcode, category, _ = r.choices(KINDS, [k[2] for k in KINDS])[0]
    name, shape = f"{opcode}.{number}", _shape(r)
    operands: list[str] = []
    length = min(2000, max(200, r.lognormvariate(6.2, 0.6))) - 200
    while sum(map(len, operands)) < length:
        operands.append(f"{_shape(r)} %{r.choice(('fusion', 'copy-done', 'bitcast', 'param'))}.{r.randrange(20_000)}")
    text = f"%{name} = {shape} {opcode}({', '.join(operands)})"
    if opcode in ("all-reduce", "reduce-scatter", "all-gather-start"):
        text += f", channel_id={number}, replica_groups={r.choice(GROUPS)}, use_global_device_ids=true"
    if opcode == "all-reduce":
        text += f", to_apply=%region_{r.randrange(40)}.{r.randrange(900)}"
    if opcode == "fusion":
        kind = "kLoop" if category == "loop fusion" else "kOutput"
        text += f", kind={kind}, calls=%fused_computation.{number}"
    layer, source = r.randrange(48), r.choice(LAYERS)
    moved = min(1 << 34, int(r.lognormvariate(15, 3)))
    flops = 0 if opcode.startswith("copy") else int(r.lognormvariate(18, 4))
    frames = (f"/src/model/{r.choice(LAYERS)}.py:{r.randrange(1200)}:{r.randrange(80)}" for _ in range(5))
    access = content(1, integer(1, 1) + integer(2, 1) + integer(3, moved))
    stats: dict[str, StatValue] = {
        "hlo_category": category,
        "program_id": Unsigned(program_id),
        "symbol_id": Unsigned(number),
        "flops": flops,
        "model_flops": flops,
        "bytes_accessed": moved,
        "memory_access_breakdown": access,
        "source": f"/src/model/{source}.py:{r.randrange(1200)}",
        "source_stack": "\n".join(frames),
        "raw_bytes_accessed": moved,
        "shape_with_layout": shape,
        "tf_op": f"jit(step)/jit(main)/Transformer/layers_{layer}/{source}/{r.choice(('dot_general', 'add', 'psum'))}:",
    }
    return Op(text, name, stats, int(r.lognormvariate(15.5, 1.4)))


def _shape(r: Random) -> str:
    rank, sizes = r.choice((1, 2, 2, 3, 4)), [MOST_ELEMENTS, 2]
    while math.prod(sizes) > MOST_ELEMENTS:
        sizes = [r.choice((1, 8, 64, 128, 512, 1024, 4096, 14_336)) for _ in range(rank)]
    layout = ",".join(map(str, reversed(range(rank))))
    kind, tile = r.choice((("bf16", "T(8,128)(2,1)"), ("f32", "T(8,128)"), ("s32", "T(8,128)")))
    return f"{kind}[{','.join(map(str, sizes))}]{{{layout}:{tile}{r.choice(('', '', 'S(1)'))}}}"


def write_capture(path: Path, megabytes: float, *, devices: int = 8, ops: int | None = None, seed: int = 1) -> int:
    """Write a capture of about this size; the same arguments give the same bytes.

    Returns:
        The number of its events.
    """
    r = Random(seed)
    programs = [r.getrandbits(63) for _ in range(3)]
    count = ops or (100 if megabytes < 5 else 600 if megabytes < 50 else 3000)
    program = [make_op(r, i, programs[i * len(programs) // count]) for i in range(count)]
    total = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for device in range(devices):
            budget = int(megabytes * 1e6 * (1 - HOST_SHARE) / devices)
            plane, found = _device(device, program, programs, budget, seed)
            file.write(content(1, plane.encode()))
            total += found
        host, found = _host(int(megabytes * 1e6 * HOST_SHARE), seed)
        file.write(content(1, host.encode()))
        rest = Space(hostnames=["t1v-n-0123abcd-w-0"])
        proto = content(1, content(1, "jit_step") + content(99, r.randbytes(int(min(4e6, megabytes * 2000)))))
        rest.hlo_protos({f"jit_step_{i}": (p, proto) for i, p in enumerate(programs)})
        rest.profiled(1_741_722_099_081_044_120, 1_741_722_109_081_044_120)
        file.write(rest.to_bytes())
    return total + found


def _device(index: int, program: list[Op], programs: list[int], budget: int, seed: int) -> tuple[PlaneBuilder, int]:
    plane = TpuPlane(index)
    r = Random(seed * 1000 + index)
    ids = np.array([plane.instruction(o.text, o.name, **o.stats) for o in program])
    steps, modules, ops, async_ops = plane.steps, plane.modules, plane.ops, plane.async_ops
    module_ids = [plane.metadata(f"jit_step_{i}({p})") for i, p in enumerate(programs)]
    budget -= sum(map(len, plane.event_metadata))
    rng = np.random.default_rng([seed, index])
    mean = np.array([o.mean_ps for o in program])
    is_all_reduce = np.array([o.is_all_reduce for o in program])

    count = written = 0
    time_ps = START_PS + index * 1000
    ends = [time_ps]
    while written < budget * (1 - ASYNC_SHARE):
        whole = max(1, min(CHUNK, int((budget * (1 - ASYNC_SHARE) - written) / 42)) // len(program))
        which = np.tile(np.arange(len(program)), whole)
        duration = (mean[which] * rng.uniform(0.9, 1.1, len(which))).astype(np.int64) + CYCLE_PS
        gap = rng.integers(0, 2000, len(which))
        gap[:: len(program)] += 50_000_000
        stop = time_ps + np.cumsum(duration + gap)
        raw = _op_events(plane, ids[which], stop - duration, duration, is_all_reduce[which], count, which)
        ops.events.append(raw)
        written += len(raw)
        count += len(which)
        ends += stop[len(program) - 1 :: len(program)].tolist()
        time_ps = ends[-1]

    for number, (low, high) in enumerate(pairwise(ends)):
        steps.event(str(number), low, high - low, group_id=number, device_offset_ps=Unsigned(low))
        for i, m in enumerate(module_ids):
            third = (high - low) // 3
            start = low + i * third
            run = Unsigned(number * 3 + i + 1)
            modules.event(
                m, start, third - 1000, device_offset_ps=Unsigned(start), run_id=run, replica_id=0, _c=r.getrandbits(63)
            )
    found = _async_events(plane, async_ops, program, ids, int(budget * ASYNC_SHARE / 72), rng)
    return plane, count + found + (len(ends) - 1) * (1 + len(module_ids))


def _op_events(
    plane: PlaneBuilder,
    metadata: Int64,
    offset: Int64,
    duration: Int64,
    is_all_reduce: npt.NDArray[np.bool_],
    first: int,
    which: Int64,
) -> bytes:
    n = len(metadata)
    some = (np.arange(first, first + n) % 25) == 0
    double = constant(np.float64(1.0).tobytes(), n)
    return events(
        metadata,
        offset,
        duration,
        stat(plane.stat_id("device_offset_ps"), 0x18, varints(offset - offset % CYCLE_PS)),
        stat(plane.stat_id("device_duration_ps"), 0x18, varints(duration - duration % CYCLE_PS)),
        stat(plane.stat_id("Time Scale Multiplier"), 0x11, double, some),
        stat(plane.stat_id("flops"), 0x20, varints(which * 7919 * 65_536), some),
        stat(plane.stat_id("bytes_accessed"), 0x20, varints(np.zeros(n, np.int64)), some),
        stat(
            plane.stat_id("all_reduce_unique_id"),
            0x18,
            varints(131_073 + 65_536 * np.arange(first, first + n)),
            is_all_reduce,
        ),
    )


def _async_events(
    plane: PlaneBuilder, line: LineBuilder, program: list[Op], ids: Int64, count: int, rng: np.random.Generator
) -> int:
    starts = np.array([i for i, o in enumerate(program) if "-start." in o.name] or [0])
    names = [program[i].name.encode() for i in starts]
    time_ps = START_PS
    for low in range(0, count, CHUNK):
        n = min(CHUNK, count - low)
        which = np.arange(low, low + n) % len(starts)
        offset = time_ps + np.cumsum(rng.integers(10**5, 10**7, n))
        time_ps = int(offset[-1])
        number = np.arange(low, low + n)
        line.events.append(
            events(
                ids[starts[which]],
                offset,
                rng.integers(10**6, 10**9, n),
                stat(plane.stat_id("hlo_op"), 0x2A, texts(names, which)),
                stat(plane.stat_id("_a"), 0x20, varints(np.ones(n, np.int64))),
                stat(plane.stat_id("flow"), 0x18, varints(616_168_039 + number)),
                stat(plane.stat_id("id"), 0x18, varints(number & 1023)),
            )
        )
    return count


def _host(budget: int, seed: int) -> tuple[PlaneBuilder, int]:
    plane = PlaneBuilder("/host:CPU")
    names = ("TfrtTpuExecutable::Execute", "PjitFunction(step)", "ThreadpoolListener::Record", "ReadbackBuffer")
    ids = np.array([plane.metadata(f"{names[i % 4]}#{i}") for i in range(400)])
    consumer, producer = (plane.stat_id("_ct"), plane.stat_id("_c")), (plane.stat_id("_pt"), plane.stat_id("_p"))
    threads = 40
    n = max(1, int(budget / threads / 22))
    for thread in range(threads):
        rng = np.random.default_rng([seed, 99, thread])
        duration = 10_000 * np.exp(rng.uniform(0, 9, n)).astype(np.int64)
        offset = np.cumsum((duration * rng.uniform(0, 1.5, n)).astype(np.int64)) // 10_000 * 10_000
        draw = rng.random(n)
        context = varints(rng.integers(0, 1 << 62, n))
        kind = varints(np.full(n, 12))
        stats = [
            stat(stat_id, 0x20, value, where)
            for pair, where in ((consumer, draw < 0.12), (producer, (draw >= 0.12) & (draw < 0.25)))
            for stat_id, value in zip(pair, (kind, context), strict=True)
        ]
        name = f"tf_worker/{3_117_000 + thread}"
        line = plane.line(name, 212_990, line_id=3_117_000 + thread, display_name=name)
        line.events.append(events(ids[(400 * rng.random(n) ** 2).astype(np.int64)], offset, duration, *stats))
    return plane, threads * n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--ops", type=int, help="instructions of the program")
    parser.add_argument("--seed", type=int, default=1)
    o = parser.parse_args()
    count = write_capture(o.out, o.megabytes, devices=o.devices, ops=o.ops, seed=o.seed)
    size = o.out.stat().st_size
    print(f"{o.out}: {size:,} bytes, {count:,} events, {size / count:.1f} bytes an event")


if __name__ == "__main__":
    main()
