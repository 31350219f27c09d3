"""Programs that libtpu 0.0.42.1 compiled for slices that need not exist, against published and recorded times.

Two lie here, cut to what a prediction reads; the others and the captures lie beside the repository.
"""

from __future__ import annotations

import gzip
import itertools
import re
import statistics
from pathlib import Path

import pytest

from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.formats import open_trace
from tracewarehouse.predict.calibrations import Calibration
from tracewarehouse.predict.machine import Machine
from tracewarehouse.predict.timeline import TimedOp, predict_program, program_end

HERE = Path(__file__).parent / "kept"
MS = 1e9
DECODE_70B, QWEN_4B = "llama70b-tp8-v6e2x4-b128-l4-decode", "qwen3-4b-tp4-v6e2x2-b8x1024-l4-prefill"


def kept(name: str, shared_traces: Path | None = None) -> HloModule:
    """A kept program: one of here, or of the folder beside the repository."""
    path = HERE / f"{name}.hlo.pb.gz"
    if not path.exists():
        assert shared_traces is not None
        path = shared_traces.parent / "prototypes" / "predict" / path.name
        if not path.exists():
            pytest.skip(f"{path} is not there")
    return HloModule(name, gzip.decompress(path.read_bytes()), [])


def layer(module: HloModule, op: TimedOp) -> int | None:
    """The layer of an op; None for a transfer, which may begin layers before the one that needs it."""
    stated = module.instruction(op.instruction)
    if stated is None or stated.opcode.endswith(("-start", "-done")):
        return None
    found = re.search(r"layer(\d+)/", stated.op_name or "")
    return int(found[1]) if found else None


def whole(module: HloModule, ops: list[TimedOp], layers: int) -> float:
    """The time in ms with the steady layer repeated: the median, without the first two and the last."""
    starts: dict[int, int] = {}
    for op in ops:
        number = layer(module, op)
        if number is not None and op.queue == "core":
            starts.setdefault(number, op.start_ps)
    gaps = [starts[n + 1] - starts[n] for n in range(len(starts) - 1)]
    steady = statistics.median_high(gaps[2:-1] or gaps[1:])
    return (program_end(ops) + (layers - len(starts)) * steady) / MS


def raw(topology: str) -> Machine:
    """The machine without the chip's product factor."""
    generation = topology.split(":")[0]
    return Machine.named(topology, [Calibration("machine", generation, "product", "factor", 1, 1, 1, 0, "raw")])


def test_a_decode_step_waits_for_its_weights() -> None:
    ops = predict_program(kept(DECODE_70B), raw("v6e:2x4"), context_tokens=1500)
    assert whole(kept(DECODE_70B), ops, 80) == pytest.approx(21.5, rel=0.02)
    waits = sum(op.duration_ps for op in ops if op.basis == "wait")
    assert 0.08 < waits / program_end(ops) < 0.14
    moved = [op for op in ops if op.queue == "dma"]
    assert all(one.start_ps + one.duration_ps <= two.start_ps + 1 for one, two in itertools.pairwise(moved))


@pytest.mark.parametrize(("name", "topology"), [(DECODE_70B, "v6e:2x4"), (QWEN_4B, "v6e:2x2")])
def test_the_core_has_no_gap_and_its_ops_no_overlap(name: str, topology: str) -> None:
    core = [op for op in predict_program(kept(name), Machine.named(topology)) if op.queue == "core"]
    assert core[0].start_ps == 0
    assert all(a.start_ps + a.duration_ps == b.start_ps for a, b in itertools.pairwise(core))
    assert all(0 <= op.low_ps <= op.duration_ps <= op.high_ps for op in core)


def test_the_same_program_gives_the_same_ops() -> None:
    first, second = (predict_program(kept(DECODE_70B), Machine.named("v6e:2x4")) for _ in range(2))
    assert first == second


def test_what_ifs_make_their_part_faster() -> None:
    module = kept(QWEN_4B)
    plain, links, hbm = (
        predict_program(module, Machine.named("v6e:2x2", ici_factor=ici, hbm_factor=memory))
        for ici, memory in ((1, 1), (2, 1), (1, 2))
    )
    reduced = [sum(op.duration_ps for op in ops if op.basis == "links") for ops in (plain, links)]
    assert reduced[0] * 0.45 < reduced[1] < reduced[0] * 0.75
    assert program_end(plain) - program_end(links) == pytest.approx(reduced[0] - reduced[1], rel=1e-3)
    assert program_end(hbm) < program_end(plain)


def test_a_measured_kernel_takes_the_place_of_the_formula() -> None:
    module = kept(QWEN_4B)
    ops = predict_program(module, Machine.named("v6e:2x2"), kernels={"flash_attention": 5_000_000})
    kernels = [op for op in ops if op.basis == "kernel_measured"]
    assert [op.duration_ps for op in kernels] == [5_000_000] * 4
    assert not [op for op in ops if op.basis == "kernel_model"]


def test_copies_to_and_from_the_host_on_v6e(shared_traces: Path) -> None:
    """Three arrays of 5.4 GB come from the host, grow by one, and go back: 784 ms were recorded."""
    trace = open_trace(CaptureFile(shared_traces / "tpu-v6e-4chip-host-offload.xplane.pb"))
    [plane] = [plane for plane in trace.planes if plane.name == "/host:metadata"]
    [program] = [
        stat.value
        for event in plane.event_metadata
        for stat in event.stats
        if event.name.startswith("jit_f(") and isinstance(stat.value, bytes) and len(stat.value) > 1000
    ]
    ops = predict_program(HloModule("jit_f", program, []), Machine.named("v6e:2x4"))
    assert program_end(ops) / MS == pytest.approx(784, rel=0.05)
    added = [op.duration_ps / MS for op in ops if op.instruction.startswith("broadcast_add")]
    assert added == pytest.approx([7.92, 8.15, 7.97], rel=0.03)
    assert {op.basis for op in ops if op.queue == "dma"} == {"host_link"}
