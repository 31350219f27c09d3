"""Programs that libtpu 0.0.42.1 compiled for slices that need not exist, against published and recorded times.

Two lie here, cut to what a prediction reads; the others and the captures lie beside the repository.
"""

from __future__ import annotations

import gzip
import itertools
import re
from functools import partial
from pathlib import Path

import pytest

from tests.predict.programs import program
from tracewarehouse.comparison.calibration import RecordedKernels
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.formats import open_trace
from tracewarehouse.predict.calibrations import Calibration
from tracewarehouse.predict.machine import Machine
from tracewarehouse.predict.timeline import predict_program, program_end
from tracewarehouse.predict.whole_model import whole_model
from tracewarehouse.warehouse import open_warehouse

HERE = Path(__file__).parent / "kept"
MS = 1e9
DECODE_70B, QWEN_4B = "llama70b-tp8-v6e2x4-b128-l8-decode", "qwen3-4b-tp4-v6e2x2-b8x1024-l8-prefill"


def kept(name: str, shared_traces: Path | None = None) -> HloModule:
    """A kept program: one of here, or of the folder beside the repository."""
    path = HERE / f"{name}.hlo.pb.gz"
    if not path.exists():
        assert shared_traces is not None
        path = shared_traces.parent / "prototypes" / "predict" / path.name
        if not path.exists():
            pytest.skip(f"{path} is not there")
    return HloModule(name, gzip.decompress(path.read_bytes()), [])


def raw(topology: str) -> Machine:
    """The machine without the chip's product factor."""
    generation = topology.split(":")[0]
    return Machine.named(topology, [Calibration("machine", generation, "product", "factor", 1, 1, 1, 0, "raw")])


def test_a_decode_step_waits_for_its_weights() -> None:
    ops = predict_program(kept(DECODE_70B), raw("v6e:2x4"), context_tokens=1500)
    assert program_end(whole_model(kept(DECODE_70B), ops, 80 - 8).ops) / MS == pytest.approx(22.95, rel=0.02)
    waits = sum(op.duration_ps for op in ops if op.basis == "wait")
    assert 0.04 < waits / program_end(ops) < 0.08
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


@pytest.mark.parametrize(
    ("name", "topology", "added"),
    [
        (DECODE_70B, "v6e:2x4", 72),
        (QWEN_4B, "v6e:2x2", 28),
        ("llama8b-tp8-v6e2x4-b8x1024-l8-decode", "v6e:2x4", 24),
        ("deepseek-v2-lite-ep8-v6e2x4-b8x1024-l6-prefill", "v6e:2x4", 0),
        ("qwen2.5-32b-dp4tp2-tpu7x2x2x1-b4x1024-l8-prefill", "tpu7x:2x2x1", 0),
    ],
)
def test_what_faster_links_save_is_what_timing_the_program_anew_says(
    name: str, topology: str, added: int, shared_traces: Path
) -> None:
    module = kept(name, shared_traces)
    now, twice, most = (
        whole_model(module, predict_program(module, Machine.named(topology, ici_factor=factor)), added).ops
        for factor in (1, 2, 1e12)
    )
    told = sum(op.link_ps or 0 for op in now)
    assert program_end(now) - program_end(most) == pytest.approx(told, rel=1e-3)
    # where copies are waited for, links twice as fast may save more than half of that, but not less
    saved, is_waiting = program_end(now) - program_end(twice), any(op.basis == "wait" for op in now)
    assert told / 2 * (1 - 1e-4) <= saved <= told / 2 * (1.02 if is_waiting else 1.0001)


def test_a_measured_kernel_takes_the_place_of_the_formula() -> None:
    module = kept(QWEN_4B)
    ops = predict_program(module, Machine.named("v6e:2x2"), kernels={"splash_mha_fwd_no_residuals": 5_000_000})
    kernels = [op for op in ops if op.basis == "kernel_measured"]
    assert [op.duration_ps for op in kernels] == [5_000_000] * 8
    assert not [op for op in ops if op.basis == "kernel_model"]


def test_a_servers_attention_kernel_takes_its_recorded_median(shared_traces: Path, tmp_path: Path) -> None:
    """That of vLLM on two halves of a TPU7x, in a program that states it as its capture does: 64 layers, 2 devices."""
    with open_warehouse(tmp_path / "w", create=True) as opened:
        [run] = opened.ingest(shared_traces / "tpu-2chip-vllm-tp2-prefill.xplane.pb", device="TPU7x")
        text = opened.query(
            "SELECT hlo_text, signature FROM main.instructions WHERE name = 'RPA-bq_32-bkvp_64-p_64-.1'"
        )
        [(line, signature)] = text.rows()
        find = RecordedKernels(opened).find
        operands = re.findall(r"(\w+\[[^\]]*\](?:\{[^}]*\})?) (%[\w.-]+)", line.partition("custom-call(")[2])
        shapes = {name: shape for shape, name in operands}
        lines = [f"{name} = {shape} parameter({n})" for n, (name, shape) in enumerate(shapes.items())]
        found = predict_program(
            program(2, main="\n".join([*lines, line])),
            Machine.named("tpu7x:2x2x1"),
            recorded=partial(find, "TPU7x"),
        )[-1]
        assert (found.basis, found.duration_ps / 1e6) == ("kernel_measured", pytest.approx(261.08, abs=0.01))
        kernel = find("TPU7x", signature)
        assert kernel
        assert (kernel.n, kernel.run_id) == (128, run.run_id)
        assert find("TPU v6e", signature) is None


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
