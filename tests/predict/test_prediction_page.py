"""docs/prediction.md says what its script finds, and the numbers of the study of prediction come out as stated."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.predict.costs import op_costs
from tracewarehouse.predict.machine import Machine
from tracewarehouse.predict.timeline import predict_program
from tracewarehouse.predict.whole_model import whole_model

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import prediction  # noqa: E402

needs_programs = pytest.mark.skipif(
    not prediction.PROGRAMS.is_dir(), reason="the compiled programs are not beside the repository"
)


def test_the_page_has_the_collectives_that_the_script_finds() -> None:
    """These need no compiled program."""
    found = prediction.page(Path("nowhere")).partition("## Steps")[0].partition("## Collectives")[2]
    assert found
    assert found in prediction.PAGE.read_text(encoding="utf-8")


@needs_programs
def test_the_page_is_what_the_script_writes() -> None:
    assert prediction.page(prediction.PROGRAMS) == prediction.PAGE.read_text(encoding="utf-8")


@needs_programs
def test_device_steps_are_within_a_tenth_and_that_of_qwen_within_a_sixth() -> None:
    """Those of a like program: a server's own kernels and the host are in the other rows."""
    rows = [r for r in prediction.measured("measured_steps") if r["clock"] == "device" and not r["engine"]]
    found = [(row, prediction.step(row, prediction.PROGRAMS)) for row in rows]
    ratios = [(row["model"], step.mid / float(row["measured_ms"])) for row, step in found if step]
    assert len(ratios) >= 4
    assert all((5 / 6 if model == "Qwen3-4B" else 0.9) < ratio < 1.1 for model, ratio in ratios), ratios


def test_steps_of_the_programs_in_the_repository_are_in_their_range() -> None:
    """A server's kernels and host add little to the prefills of Llama-3.1-8B on one and four chips of v6e."""
    found = [(row, prediction.step(row, Path("nowhere"))) for row in prediction.measured("measured_steps")]
    known = [(row, step, prediction.served(step, row)) for row, step in found if step]
    assert len(known) == 6
    for row, step, served in known:
        ms = float(row["measured_ms"])
        assert served.low <= ms <= served.high
        if row["model"] == "Llama-3.1-8B":
            assert step.mid == pytest.approx(ms, rel=0.15)


@needs_programs
def test_nine_in_ten_measured_steps_lie_in_their_range() -> None:
    rows = [(row, prediction.step(row, prediction.PROGRAMS)) for row in prediction.measured("measured_steps")]
    known = [(row, prediction.served(found, row)) for row, found in rows if found]
    assert len(known) >= 9
    inside = [found.low <= float(row["measured_ms"]) <= found.high for row, found in known]
    assert sum(inside) >= 0.9 * len(inside)


@needs_programs
def test_the_recorded_step_of_tpu7x_with_its_own_kernel_is_within_five_percent() -> None:
    row = next(r for r in prediction.measured("measured_steps") if r["kernels_us"])
    found = prediction.step(row, prediction.PROGRAMS)
    assert found
    assert found.mid == pytest.approx(float(row["measured_ms"]), rel=0.05)


@needs_programs
def test_the_products_of_that_step_are_within_five_percent() -> None:
    """The convolution fusions of the recorded step take 42.31 and 42.25 ms on its two devices."""
    raw = (prediction.PROGRAMS / "qwen2.5-32b-dp4tp2-tpu7x2x2x1-b4x1024-l8-prefill.hlo.pb.gz").read_bytes()
    module = HloModule("prefill", gzip.decompress(raw), [])
    ops = whole_model(module, predict_program(module, Machine.named("tpu7x:2x2x1")), 64 - 8).ops
    costs = op_costs(module, {op.instruction for op in ops})
    products = [op.duration_ps for op in ops if costs[op.instruction].category == "convolution fusion"]
    assert len(products) == 7 * 64 + 1  # the recorded program has query, key and value, and gate and up, as one
    assert sum(products) / 1e9 == pytest.approx(42.28, rel=0.05)


def test_a_program_that_is_not_kept_is_a_dash() -> None:
    steps = prediction.page(Path("nowhere")).partition("## Steps")[2]
    rows = [line for line in steps.splitlines() if line.startswith("| ") and not line.startswith("| model")]
    assert len(rows) == len(prediction.measured("measured_steps"))
    kept = [
        prediction.KEPT.joinpath(f"{row['program']}.hlo.pb.gz").exists()
        for row in prediction.measured("measured_steps")
    ]
    assert sum(kept) == 6
    assert [line.count("| - |") for line in rows] == [0 if is_kept else 3 for is_kept in kept]
