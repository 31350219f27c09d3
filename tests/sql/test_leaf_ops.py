"""models.leaf_ops adds up to the time in which devices were busy; main.ops, which holds everything, does not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracewarehouse.warehouse import Warehouse, open_warehouse

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ["llama-tp4-b4-i16-o17", "llama-pp2tp2-b4-i16-o5"]
REAL = ["tpu-v6e-4chip-host-offload", "tpu-2chip-vllm-tp2-prefill", "cpu/cpu_deepseekv2_ep4"]


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    with open_warehouse(tmp_path_factory.mktemp("leaf") / "w", create=True) as opened:
        for name in CAPTURES:
            opened.ingest(ROOT / "data" / "captures" / name)
        yield opened


def union(intervals: list[tuple[int, int]]) -> int:
    """Length of the union of half-open intervals."""
    total, reached = 0, -1
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def busy_of(warehouse: Warehouse, run: str) -> tuple[dict[int, int], dict[int, int]]:
    """By device: the sum of busy_ps, and the union of the events of models.leaf_ops."""
    run_id = warehouse.run(run).run_id
    sql = "SELECT device_id, CAST(sum(busy_ps) AS BIGINT) FROM models.leaf_ops WHERE run_id = $run GROUP BY device_id"
    asked = "SELECT device_id, start_ps, end_ps, duration_ps FROM models.leaf_ops WHERE run_id = $run"
    events = warehouse.query(asked, run=run_id)
    by_device = defaultdict(list)
    for device, start, end, duration in events.rows():
        assert end - start == duration
        by_device[device].append((start, end))
    return dict(warehouse.query(sql, run=run_id).rows()), {d: union(found) for d, found in by_device.items()}


@pytest.mark.parametrize("name", CAPTURES)
def test_one_sum_is_the_time_in_which_devices_were_busy(warehouse: Warehouse, name: str) -> None:
    summed, unions = busy_of(warehouse, name)
    assert summed == unions
    assert len(summed) == 4


@pytest.mark.parametrize("name", REAL)
def test_also_where_events_cover_the_same_time_twice(shared_traces: Path, warehouse: Warehouse, name: str) -> None:
    """Through modules, asynchronous copies and ops that overlap, the sum over main.ops is larger."""
    warehouse.ingest(shared_traces / f"{name}.xplane.pb")
    summed, unions = busy_of(warehouse, name.rpartition("/")[2])
    assert summed == unions != {}
    run_id = warehouse.run(name.rpartition("/")[2]).run_id
    everything = warehouse.query("SELECT sum(self_ps) FROM ops WHERE run_id = $run", run=run_id).scalar()
    assert everything > sum(unions.values())


def test_a_query_that_forgets_the_schema_is_told_it(warehouse: Warehouse) -> None:
    with pytest.raises(Exception, match=r"Did you mean \"models\.leaf_ops\""):
        warehouse.query("SELECT name, sum(busy_ps) FROM leaf_ops GROUP BY name")
