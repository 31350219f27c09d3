"""A capture of two hosts is one run: devices of both in one mesh, on one clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tracewarehouse.ingest.pipeline import ingest_one

CAPTURE = Path(__file__).parents[3] / "data" / "captures" / "llama-pp2tp2-b4-i16-o5-hosts2"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warehouse")
    assert ingest_one(CAPTURE, folder).notes == []
    return folder


def rows(tables: Path, name: str) -> list[dict[str, Any]]:
    (file,) = tables.rglob(f"{name}.parquet")
    found: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    return found


def test_devices_of_both_hosts_have_their_place_in_the_mesh(tables: Path) -> None:
    found = [(d["device_id"], d["host"], d["pp_index"], d["tp_index"]) for d in rows(tables, "devices")]
    assert found == [(0, "host0", 0, 0), (1, "host0", 0, 1), (2, "host1", 1, 0), (3, "host1", 1, 1)]
    (run,) = rows(tables, "runs")
    assert (run["host_count"], run["mesh"], run["missing_hosts"]) == (2, "pp=2,tp=2", None)


def test_every_op_has_phase_and_step_and_a_layer_of_its_stage(tables: Path) -> None:
    layers = {i["instruction_id"]: i["layer"] for i in rows(tables, "instructions")}
    ops = [o for o in rows(tables, "ops") if o["device_id"] is not None]
    assert all(o["phase"] and o["step"] is not None for o in ops)
    found = {(o["device_id"] // 2, layers[o["instruction_id"]]) for o in ops}
    assert found == {(0, 0), (0, None), (1, 1), (1, None)}


def test_collectives_stay_within_a_host(tables: Path) -> None:
    found = rows(tables, "collectives")
    # Two all-reduces in the layer of each stage, on 4 devices in 5 steps.
    assert sum(c["kind"] == "all-reduce" for c in found) == 2 * 4 * 5
    assert {(c["axis"], c["group_size"], c["is_partial"]) for c in found} == {("tp", 2, False)}


def test_a_stage_begins_after_the_one_before_has_sent(tables: Path) -> None:
    """On the common clock: the first op of stage 1 in a step starts after the last op of stage 0 has ended."""
    ops = [o for o in rows(tables, "ops") if o["device_id"] is not None]
    for step in range(5):
        ends = [o["start_ps"] + o["duration_ps"] for o in ops if o["step"] == step and o["device_id"] < 2]
        starts = [o["start_ps"] for o in ops if o["step"] == step and o["device_id"] >= 2]
        assert max(ends) <= min(starts)
