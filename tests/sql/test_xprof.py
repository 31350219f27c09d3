"""XProf's own tools on the same capture, as an oracle for what both say of it.

Where the two differ, it is by their clocks: XProf sums the device clock's stat of an event, the metrics the event's own
duration, which is the clock of its start.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tracewarehouse.database.lens import create_lens, run_sources
from tracewarehouse.definitions.reading import load_definitions
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.pipeline import ingest_one

V6E = "tpu-v6e-4chip-host-offload.xplane.pb"
GIB = 2**30
_TOOLS = """
import json, sys
from xprof.convert import raw_to_tool_data
answers = {}
for tool in ("hlo_stats", "roofline_model", "overview_page"):
    data, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], tool, {})
    answers[tool] = json.loads(data)
json.dump(answers, open(sys.argv[2], "w"))
"""

Row = dict[str, Any]


@pytest.fixture(scope="module")
def xprof(shared_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What XProf's tools say, by tool: a list of tables, each rows as mappings and a mapping of properties.

    XProf writes caches beside the capture and may end the process, so it reads a copy in a process of its own.
    """
    if importlib.util.find_spec("xprof") is None:
        pytest.skip("XProf is not installed; pip install 'tracewarehouse[xprof]'")
    folder = tmp_path_factory.mktemp("xprof")
    capture = folder / "plugins" / "profile" / "run" / "vm.xplane.pb"
    capture.parent.mkdir(parents=True)
    shutil.copyfile(shared_traces / V6E, capture)
    answer = folder / "answer.json"
    command = [sys.executable, "-c", _TOOLS, str(capture), str(answer)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert answer.is_file(), done.stderr[-2000:]
    return {
        tool: [_table(t) for t in (tables if isinstance(tables, list) else [tables])]
        for tool, tables in json.loads(answer.read_text()).items()
    }


def _table(table: Any) -> Any:
    names = [c["id"] for c in table.get("cols", ())]
    rows = [dict(zip(names, [c and c["v"] for c in r["c"]], strict=True)) for r in table.get("rows", ())]
    return rows, table.get("p") or {}


@pytest.fixture(scope="module")
def connection(shared_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    folder = tmp_path_factory.mktemp("warehouse")
    ingest_one(shared_traces / V6E, folder)
    with duckdb.connect() as database:
        create_lens(database, run_sources(folder, Lake(folder).runs()), load_definitions())
        yield database


@pytest.fixture(scope="module")
def ours(connection: duckdb.DuckDBPyConnection) -> dict[tuple[int, str], Row]:
    """Per program and op: executions, device-clock time in us, operations and bytes of all executions."""
    found = connection.execute("""
        SELECT i.program_id, i.name, i.category, count(*) AS executions, sum(o.device_duration_ps) / 1e6 AS device_us,
               any_value(i.model_flops) * count(*) AS flops, any_value(i.bytes_accessed) * count(*) AS bytes
        FROM models.leaf_ops AS l JOIN main.ops AS o USING (run_id, event_id)
        JOIN main.instructions AS i ON i.run_id = o.run_id AND i.instruction_id = o.instruction_id GROUP BY ALL""")
    names = [d[0] for d in found.description]
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    return {(r["program_id"], r["name"]): r for r in rows}


def test_every_op_has_the_executions_time_operations_and_bytes_that_xprof_finds(
    xprof: dict[str, list[Any]], ours: dict[tuple[int, str], Row]
) -> None:
    [(rows, _)] = xprof["hlo_stats"]
    theirs = {(int(r["program_id"]), r["hlo_op_name"]): r for r in rows}
    assert theirs.keys() == ours.keys()
    for op, r in theirs.items():
        assert ours[op]["category"] == r["category"]
        assert ours[op]["executions"] == r["occurrences"]
        assert ours[op]["device_us"] == pytest.approx(r["total_self_time"], rel=1e-12), op
        seconds = r["total_time"] / 1e6
        assert ours[op]["flops"] == pytest.approx(r["model_flop_rate"] * 1e9 * seconds, rel=1e-9), op
        assert ours[op]["bytes"] == pytest.approx(r["measured_memory_bw"] * GIB * seconds, rel=1e-9), op


def test_time_shares_by_category_differ_by_the_clocks_alone(
    xprof: dict[str, list[Any]], connection: duckdb.DuckDBPyConnection
) -> None:
    [(rows, _)] = xprof["hlo_stats"]
    theirs: dict[str, float] = {}
    for r in rows:
        theirs[r["category"]] = theirs.get(r["category"], 0) + r["total_self_time"]
    total = sum(theirs.values())
    of_phases = "SELECT category, sum(self_ms) / sum(sum(self_ms)) OVER () FROM metrics.op_time_share GROUP BY category"
    shares = dict(connection.execute(of_phases).fetchall())
    assert shares.keys() == theirs.keys()
    assert shares == pytest.approx({c: us / total for c, us in theirs.items()}, abs=0.001)


def test_the_top_kernels_are_those_of_xprof(xprof: dict[str, list[Any]], connection: duckdb.DuckDBPyConnection) -> None:
    """XProf's op_profile groups by category, so its instructions are summed here by name and category."""
    [(rows, _)] = xprof["hlo_stats"]
    theirs: dict[tuple[str, str], list[float]] = {}
    for r in rows:
        kernel = re.sub(r"([.][0-9]+)*$", "", r["hlo_op_name"])
        total = theirs.setdefault((kernel, r["category"]), [0, 0])
        total[0] += r["occurrences"]
        total[1] += r["total_self_time"] / 1e3
    found = connection.execute(
        "SELECT kernel, category, sum(ops), sum(self_ms) FROM metrics.top_kernels GROUP BY ALL ORDER BY 4 DESC"
    ).fetchall()
    assert {(k, c): ops for k, c, ops, _ in found} == {key: ops for key, (ops, _) in theirs.items()}
    assert [(k, c) for k, c, *_ in found[:3]] == sorted(theirs, key=lambda key: -theirs[key][1])[:3]
    whole = sum(ms for _, ms in theirs.values())
    for kernel, category, _, ms in found:
        assert ms == pytest.approx(theirs[kernel, category][1], abs=0.001 * whole)  # the clocks


def test_the_roofline_is_the_same_but_for_the_links(
    xprof: dict[str, list[Any]], connection: duckdb.DuckDBPyConnection
) -> None:
    """XProf knows no bound by the links; what this collective sends is not known, so that we give it none."""
    (rows, properties), *_ = xprof["roofline_model"]
    [(peak_flops, peak_gbps)] = connection.execute(
        "SELECT DISTINCT peak_flops_per_s, peak_hbm_gbps FROM main.devices"
    ).fetchall()
    assert peak_flops / 1e9 == float(properties["peak_flop_rate"])
    assert peak_gbps == pytest.approx(float(properties["peak_hbm_bw"]) * GIB / 1e9, rel=1e-4)
    theirs = {r["operation"]: r for r in rows if r["step"] == "Total" and r["category"] != "Program"}
    found = connection.execute("SELECT name, intensity, bound, attained FROM metrics.roofline").fetchall()
    assert len(found) == 5
    for name, intensity, bound, attained in found:
        assert intensity == pytest.approx(theirs[name]["operational_intensity"])
        if name == "all-reduce":
            assert (bound, attained) == (None, None)
            continue
        assert (bound, theirs[name]["bound_by"]) == ("memory", "HBM")
        # the clocks again: up to 7.6 % for one fusion
        assert attained == pytest.approx(theirs[name]["roofline_efficiency"], rel=0.08)


def test_the_devices_are_idle_as_long(xprof: dict[str, list[Any]], connection: duckdb.DuckDBPyConnection) -> None:
    """XProf counts from a device's first op to its last; device_idle counts the steps alone."""
    [theirs] = [p["device_idle_time_percent"] for _, p in xprof["overview_page"] if "device_idle_time_percent" in p]
    [(idle, idle_in_steps)] = connection.execute("""
        WITH spans AS (
            SELECT max(start_ps + duration_ps) - min(start_ps) AS span_ps, sum(duration_ps - overlap_ps) AS busy_ps
            FROM main.ops WHERE is_leaf AND device_id IS NOT NULL GROUP BY device_id
        )
        SELECT 100 * (1 - sum(busy_ps) / sum(span_ps)), (SELECT max(idle_ratio) FROM metrics.device_idle) FROM spans
    """).fetchall()
    assert idle == pytest.approx(float(theirs.rstrip("%")), abs=0.1)
    assert idle_in_steps < 1e-5
