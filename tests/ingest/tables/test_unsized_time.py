"""A run in which much of the compute time has no cost says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xplane_builder import Space, Unsigned

from tracewarehouse.ingest.capture.costs import load_costs
from tracewarehouse.ingest.capture.run_options import RunOptions
from tracewarehouse.ingest.pipeline import ingest_one

Query = Callable[..., list[tuple[Any, ...]]]
KERNEL = '%attention.1 = f32[8] custom-call(f32[8] %a), custom_call_target="tpu_custom_call"'
SIZED = "%fusion.2 = f32[8] fusion(f32[8] %a), kind=kLoop, calls=%f"
REDUCE = "%all-reduce.3 = f32[8] all-reduce(f32[8] %a), replica_groups={{0}}"


def flags(tmp_path: Path, tables_in: Callable[[Path], Query], kernel_ps: int, **costs: int) -> list[tuple[Any, ...]]:
    """The flags of a capture of 1 us in which the kernel takes so long; an all-reduce beside it takes longer."""
    space = Space()
    tpu = space.tpu(0)
    tpu.modules.event("jit_step(1)", 0, 6_000_000)
    program = {"program_id": Unsigned(1)}
    kernel = tpu.instruction(KERNEL, hlo_category="custom-call", flops=0, model_flops=0, bytes_accessed=0, **program)
    sized = tpu.instruction(SIZED, hlo_category="fusion", flops=8, model_flops=8, bytes_accessed=64, **program)
    tpu.ops.event(kernel, 0, kernel_ps).event(sized, kernel_ps, 1_000_000 - kernel_ps)
    tpu.ops.event(tpu.instruction(REDUCE, hlo_category="all-reduce", **program), 1_000_000, 5_000_000)
    given = tmp_path / "costs.json"
    given.write_text(json.dumps({"attention": costs}))
    ingest_one(
        space.write(tmp_path / "x.xplane.pb"), tmp_path / "w", RunOptions(costs=load_costs(given) if costs else None)
    )
    return tables_in(tmp_path / "w")("SELECT detail FROM quality_flags WHERE flag = 'unsized_time'")


def test_a_kernel_of_unknown_cost_is_named(tmp_path: Path, tables_in: Callable[[Path], Query]) -> None:
    sentence = "the bytes of 30% and the flops of 30% of the compute time are unknown (attention 30%); "
    assert flags(tmp_path, tables_in, 300_000) == [(sentence + "give them with `--costs FILE` at ingest",)]


def test_given_bytes_leave_the_flops(tmp_path: Path, tables_in: Callable[[Path], Query]) -> None:
    [(sentence,)] = flags(tmp_path, tables_in, 300_000, bytes=64)
    assert sentence.startswith("the flops of 30% of the compute time are unknown (attention 30%)")


@pytest.mark.parametrize(("kernel_ps", "costs"), [(100_000, {}), (300_000, {"bytes": 64, "flops": 8})])
def test_little_time_and_given_costs_are_not_flagged(
    tmp_path: Path, tables_in: Callable[[Path], Query], kernel_ps: int, costs: dict[str, int]
) -> None:
    assert flags(tmp_path, tables_in, kernel_ps, **costs) == []


def test_a_capture_that_states_no_cost_is_not_flagged(tmp_path: Path, tables_in: Callable[[Path], Query]) -> None:
    """As of virtual CPU devices: metrics.missing says that the profiler states none."""
    assert flags(tmp_path, tables_in, 1_000_000) == []


@pytest.mark.parametrize("stated", [{}, {"flops": 0, "bytes_accessed": 0}], ids=["nothing", "zeros"])
def test_a_kernel_that_states_nothing_is_as_unknown_as_one_that_states_zeros(
    tmp_path: Path, tables_in: Callable[[Path], Query], stated: dict[str, int]
) -> None:
    """The other op states flops and neither model_flops nor bytes, which are then not known of any op."""
    space = Space()
    tpu = space.tpu(0)
    tpu.modules.event("jit_step(1)", 0, 1_000_000)
    kernel = tpu.instruction(KERNEL, hlo_category="custom-call", program_id=Unsigned(1), **stated)
    sized = tpu.instruction(SIZED, hlo_category="fusion", flops=8, program_id=Unsigned(1))
    tpu.ops.event(kernel, 0, 600_000).event(sized, 600_000, 400_000)
    ingest_one(space.write(tmp_path / "x.xplane.pb"), tmp_path / "w")
    [(sentence,)] = tables_in(tmp_path / "w")("SELECT detail FROM quality_flags WHERE flag = 'unsized_time'")
    assert sentence.startswith("the flops of 60% of the compute time are unknown (attention 60%)")
