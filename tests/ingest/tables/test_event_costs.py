"""Costs that a profiler states on events, and memories that it splits bytes by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from xplane_builder import Space, TpuPlane, Unsigned, content, integer

from tracewarehouse.exports.chrome import export_chrome
from tracewarehouse.warehouse import Warehouse

REAL = Path(__file__).parents[4] / "shared/traces/tpu-v6e-matmul-percost.xplane.pb"
PALLAS = (
    '%matmul.1 = f32[256,512]{1,0} custom-call(f32[256,128]{1,0} %x, f32[128,512]{1,0} %w), custom_call_target="tpu"'
)
FUSION = "%fusion.2 = f32[8]{0} fusion(f32[8]{0} %a), kind=kLoop, calls=%f"
Stats = dict[str, Any]


def capture(*events: Stats, text: str = PALLAS, **stated: Any) -> Space:
    """A kernel of 1 us that runs for each of some events, which state these stats; `stated` is of the instruction."""
    space = Space()
    tpu = space.tpu(0)
    tpu.modules.event("jit_step(1)", 0, len(events) * 1_000_000)
    kernel = tpu.instruction(text, hlo_category="custom-call", program_id=Unsigned(1), **stated)
    for number, stats in enumerate(events):
        tpu.ops.event(kernel, number * 1_000_000, 1_000_000, **stats)
    return space


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([{"flops": 64, "model_flops": 60, "bytes_accessed": 0}] * 2, [(64, 60, 0)] * 2),
        ([{"flops": Unsigned(64)}, {"flops": "64"}, {}], [(64, None, None)] * 2 + [(None, None, None)]),
        ([{"flops": 64}, {"flops": 67}], [(64, None, None), (67, None, None)]),
        ([{"flops": 1 << 62}, {"bytes_accessed": Unsigned(1 << 63)}], [(1 << 62, None, None), (None, None, None)]),
        ([{"flops": "many"}, {"flops": -1}, {"flops": 1.5}], [(None, None, None)] * 3),
    ],
)
def test_an_op_has_the_costs_of_its_event(ingest: Any, events: list[Stats], expected: list[Any]) -> None:
    """Integers from 0 on; what cannot be one stays a stat of the event."""
    _, query = ingest(capture(*events))
    assert query("SELECT flops, model_flops, bytes_accessed FROM ops WHERE is_leaf ORDER BY event_id") == expected
    assert query("SELECT COUNT(*) FROM event_stats WHERE name = 'flops'") == [(sum("flops" in e for e in events),)]


def test_only_ops_have_costs(ingest: Any) -> None:
    """A stat of that name on another line is another thing."""
    space = capture({})
    plane = space.planes[0]
    assert isinstance(plane, TpuPlane)
    plane.async_ops.event(plane.metadata(PALLAS), 0, 5, flops=9)
    _, query = ingest(space)
    assert query("SELECT COUNT(*) FROM ops WHERE flops IS NOT NULL") == [(0,)]


def two_programs() -> Space:
    """One text in two programs without ids: a product of 64 rows and one of 4, each twice, of 3 us and 1 us."""
    space = Space()
    tpu = space.tpu(0)
    kernel = tpu.instruction(PALLAS, hlo_category="custom-call")
    for number, (name, size, us) in enumerate([("jit_a", 3_000_000, 3), ("jit_b", 1_000_000, 1)] * 2):
        start = number * 5_000_000
        tpu.modules.event(name, start, us * 1_000_000)
        tpu.ops.event(kernel, start, us * 1_000_000, flops=size, model_flops=size, bytes_accessed=size)
    return space


def test_one_text_in_two_programs_has_the_costs_of_each(tmp_path: Path) -> None:
    """A mean of 2e6 would make the product of 1e6 twice as efficient as it is; 1e6 operations in 1 us are 1 TFLOP/s."""
    warehouse = Warehouse(tmp_path / "w")
    warehouse.ingest(two_programs().write(tmp_path / "x.xplane.pb"))
    rows = warehouse.query("SELECT flops, tflops_per_s FROM metrics.gemm_efficiency ORDER BY flops").rows()
    assert rows == [(1_000_000, pytest.approx(1.0)), (3_000_000, pytest.approx(1.0))]
    assert warehouse.query("SELECT hbm_gbps FROM metrics.hbm_bandwidth").scalar() == pytest.approx(1000.0)


@pytest.mark.parametrize("is_chrome", [False, True])
def test_one_text_with_several_costs_has_each(tmp_path: Path, is_chrome: bool) -> None:
    """A Chrome trace states all costs on events; in an xplane file two devices may run two programs."""
    warehouse = Warehouse(tmp_path / "w")
    if is_chrome:
        warehouse.ingest(two_programs().write(tmp_path / "x.xplane.pb"))
        export_chrome(warehouse, "x", tmp_path / "y.trace.json")
        warehouse = Warehouse(tmp_path / "chrome")
        warehouse.ingest(tmp_path / "y.trace.json", device="v6e")
    else:
        space = Space()
        for number, size in enumerate((3_000_000, 1_000_000)):
            tpu = space.tpu(number)
            tpu.modules.event(f"jit_{number}", number * 5_000_000, size)
            stats = {"flops": size, "model_flops": size, "bytes_accessed": size}
            kernel = tpu.instruction(PALLAS, hlo_category="custom-call", **stats)
            tpu.ops.event(kernel, number * 5_000_000, size)
        warehouse.ingest(space.write(tmp_path / "x.xplane.pb"))
    rows = warehouse.query("SELECT flops, tflops_per_s FROM metrics.gemm_efficiency ORDER BY flops").rows()
    assert rows == [(1_000_000, pytest.approx(1.0)), (3_000_000, pytest.approx(1.0))]


def test_time_of_ops_that_state_nothing_is_unsized(ingest: Any) -> None:
    """Of five executions two state flops, one states 0, which says nothing of a kernel, and two state nothing."""
    _, query = ingest(capture({"flops": 9, "bytes_accessed": 9}, {"flops": 9}, {"flops": 0}, {}, {}))
    [(detail,)] = query("SELECT detail FROM quality_flags WHERE flag = 'unsized_time'")
    assert detail.startswith("the bytes of 80% and the flops of 60% of the compute time are unknown (matmul 80%)")


def test_metrics_use_what_events_state(tmp_path: Path) -> None:
    """10^6 operations in 1 us are 10^12 FLOP/s, of 918 x 10^12; the product is found by its operands."""
    warehouse = Warehouse(tmp_path / "w")
    event = {"flops": 1_000_000, "model_flops": 1_000_000, "bytes_accessed": 0}
    warehouse.ingest(capture(event, event).write(tmp_path / "x.xplane.pb"))

    def rows(sql: str) -> list[tuple[Any, ...]]:
        return warehouse.query(sql).rows()

    assert rows("SELECT name, flops_per_s, bytes_accessed FROM metrics.roofline") == [("matmul.1", 1e12, None)]
    assert rows("SELECT mfu_percent FROM metrics.ccl_mfu") == [(round(1e14 / 918e12, 4),)]
    found = rows("SELECT shape, operand_dtype, executions, efficiency FROM metrics.gemm_efficiency")
    assert found == [("f32[256,512]", "f32", 2, pytest.approx(1 / 918))]
    missing = dict(rows("SELECT metric, reason FROM metrics.missing"))
    assert "roofline" not in missing
    assert missing["hbm_bandwidth"].startswith("the memory traffic of no op is known")


def test_a_kernel_whose_costs_are_given_is_a_product(tmp_path: Path) -> None:
    given = tmp_path / "costs.json"
    given.write_text(json.dumps({"matmul": {"flops": 33_554_432}}))  # 2 x 256 x 512 x 128
    warehouse = Warehouse(tmp_path / "w")
    warehouse.ingest(capture({}, {}).write(tmp_path / "x.xplane.pb"), costs=given)
    rows = warehouse.query("SELECT shape, operand_dtype, flops, tflops_per_s FROM metrics.gemm_efficiency").rows()
    assert rows == [("f32[256,512]", "f32", 33_554_432, pytest.approx(33.554432))]


def accesses(*of: tuple[int, int, int]) -> bytes:
    """A MemoryAccessBreakdown: reads (1) or writes (2), memory space and bytes of each access."""
    return b"".join(content(1, integer(1, kind) + integer(2, space) + integer(3, size)) for kind, space, size in of)


@pytest.mark.parametrize(
    ("breakdown", "expected"),
    [
        (accesses((1, 1, 100), (2, 1, 50), (1, 3, 7)), (150, 7)),
        (accesses((1, 3, 7)), (0, 7)),
        (accesses((2, 0, 5), (1, 1, 4)), (4, 5)),
        (b"", (0, 0)),
        (b"\x0a\xff", (None, None)),
        (accesses((1, 1, 1 << 63)), (None, None)),
        ("100", (None, None)),
    ],
)
def test_bytes_by_memory(ingest: Any, breakdown: bytes | str, expected: tuple[int | None, int | None]) -> None:
    """Space 1 is HBM; an empty breakdown says that the op accesses no memory of the device."""
    _, query = ingest(capture({}, text=FUSION, bytes_accessed=200, memory_access_breakdown=breakdown))
    sql = "SELECT hbm_bytes_accessed, on_chip_bytes_accessed FROM instructions WHERE opcode = 'fusion'"
    assert query(sql) == [expected]


@pytest.mark.skipif(not REAL.exists(), reason="needs ../shared/traces")
def test_a_real_kernel_with_costs_on_its_events(tmp_path: Path) -> None:
    """CCL-Bench's own code gives 1.5485 on our export; the profiler has 294 samples of the matrix unit."""
    warehouse = Warehouse(tmp_path / "w")
    warehouse.ingest(REAL)
    assert warehouse.query("SELECT mfu_percent FROM metrics.ccl_mfu").scalar() == 1.5485
    assert warehouse.query("SELECT flops FROM metrics.roofline").rows() == [(1_076_887_552,)]
    assert warehouse.query("SELECT flops, executions FROM metrics.gemm_efficiency").rows() == [(1_076_887_552, 3)]
    units = warehouse.query("SELECT utilization, readings FROM metrics.unit_utilization WHERE hardware_unit = 'MXU'")
    assert units.rows() == [(pytest.approx(0.39237, abs=1e-5), 294)]
