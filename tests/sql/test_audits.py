"""Each audit finds what it is for, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from given_tables import evaluated, fill, warehouse_of

from tracewarehouse.definitions.derived import all_audits, beyond_range
from tracewarehouse.definitions.reading import load_definitions
from tracewarehouse.evaluation.audits import run_audit, run_audits

DEFINITIONS = load_definitions()
AUDITS = list(dict.fromkeys(a.name for a in all_audits(DEFINITIONS)))
_TPU = [{"device_id": 0, "backend": "tpu"}]
_STEP = {"kind": "step", "name": "decode", "device_id": 0}
_PAIR = {"instance": 0, "kind": "all-reduce", "group_size": 2, "end_ps": 9}

VIOLATIONS: dict[str, tuple[dict[str, Any], int]] = {
    "negative_durations": ({"ops": [{"start_ps": 5, "duration_ps": -1, "self_ps": -1}]}, 1),
    "self_time_beyond_duration": ({"ops": [{"duration_ps": 5, "self_ps": 6}, {"duration_ps": 5, "self_ps": -1}]}, 2),
    "op_line_overlap": (
        {
            "devices": _TPU,
            "ops": [
                {"event_id": 0, "start_ps": 0, "duration_ps": 10, "self_ps": 6},
                {"event_id": 1, "start_ps": 2, "duration_ps": 4, "parent_event_id": 0, "depth": 1},
                {"event_id": 2, "start_ps": 9, "duration_ps": 4, "is_overlapping": True},
            ],
        },
        1,
    ),
    "overlapping_phases": (
        {
            "phases": [
                _STEP | {"index": 1, "start_ps": 0, "end_ps": 5},
                _STEP | {"index": 2, "start_ps": 4, "end_ps": 9},
                _STEP | {"index": 1, "device_id": 1, "start_ps": 4, "end_ps": 9},
                _STEP | {"kind": "annotation", "index": 1, "start_ps": 0, "end_ps": 9},
                _STEP | {"kind": "annotation", "index": 2, "start_ps": 0, "end_ps": 9},
            ]
        },
        1,
    ),
    "phase_ends_before_start": ({"phases": [_STEP | {"index": 1, "start_ps": 5, "end_ps": 4}]}, 1),
    "step_numbered_twice": (
        {
            "phases": [
                _STEP | {"index": 1, "start_ps": 0, "end_ps": 4},
                _STEP | {"index": 1, "start_ps": 4, "end_ps": 9},
                _STEP | {"index": 1, "device_id": None, "start_ps": 0, "end_ps": 9},
            ]
        },
        1,
    ),
    "collective_ends_before_start": (
        {"collectives": [_PAIR | {"is_partial": True, "start_ps": 10, "end_ps": 9, "exposed_ps": -1}]},
        1,
    ),
    "exposed_beyond_window": ({"collectives": [_PAIR | {"is_partial": True, "start_ps": 5, "exposed_ps": 5}]}, 1),
    # in a step of 10 a device that did 4e15 operations, at a peak of 1e15 in a second
    "value_beyond_range": (
        {
            "runs": [
                {
                    "batch_size": 1,
                    "input_length": 1,
                    "num_layers": 1,
                    "hidden_size": 1,
                    "num_params_active": 2_000_000_000_000_000,
                    "num_params_embedding": 0,
                    "device_count": 1,
                }
            ],
            "devices": [{"device_id": 0, "backend": "tpu", "peak_flops_per_s": 1e15}],
            "phases": [_STEP | {"index": 1, "start_ps": 0, "end_ps": 10}],
            "ops": [{"device_id": 0, "phase": "decode", "step": 1, "start_ps": 0, "duration_ps": 10}],
        },
        1,
    ),
    "collective_without_group_size": (
        {
            "instructions": [
                {"instruction_id": 0, "collective": "all-reduce", "replica_groups": "[[0,1]]"},
                {"instruction_id": 1, "collective": "all-reduce"},
            ],
            "collectives": [
                {"instance": i, "instruction_id": i, "is_partial": True, "kind": "all-reduce"} for i in (0, 1)
            ],
        },
        1,
    ),
    "device_in_no_group": (
        {
            "collective_groups": [
                {"instruction_id": 0, "group_index": 0, "rank": r, "logical_id": r, "device_id": r} for r in (0, 1)
            ],
            "collectives": [
                _PAIR | {"device_id": 0, "group_index": 0},
                _PAIR | {"device_id": 1, "group_index": 0},
                _PAIR | {"device_id": 2, "instance": 1, "is_partial": True},
            ],
        },
        1,
    ),
    "ranks_missing": (
        {
            "collectives": [
                _PAIR | {"device_id": 0},
                _PAIR | {"device_id": 1, "instance": 1, "is_partial": True},
                _PAIR | {"device_id": 0, "instance": 2},
                _PAIR | {"device_id": 0, "instance": 2},
                _PAIR | {"device_id": 0, "instance": 3},
                _PAIR | {"device_id": 1, "instance": 3},
            ]
        },
        2,
    ),
    # device 1 arrives at 20, when device 0 has left; nothing else is apart: permutes and asynchronous collectives are
    # not compared, nor is host h1, whose clock nothing aligns, and the clock of h2 is right within 5
    "ranks_apart": (
        {
            "hosts": [
                {"host": "h0", "clock_source": "first_host"},
                {"host": "h1", "clock_source": "profile_start"},
                {"host": "h2", "clock_source": "collective_ends", "clock_instances": 3, "clock_residual_ps": 5},
            ],
            "collectives": [
                _PAIR
                | {"host": host, "device_id": device, "instance": instance, "start_ps": start, "end_ps": start + 9}
                | {"instruction_id": instance}
                | more
                for host, device, instance, start, more in (
                    ("h0", 0, 0, 0, {}),
                    ("h0", 1, 0, 9, {}),
                    ("h0", 0, 1, 10, {}),
                    ("h0", 1, 1, 20, {}),
                    ("h0", 0, 2, 30, {"kind": "collective-permute"}),
                    ("h0", 1, 2, 40, {"kind": "collective-permute"}),
                    ("h0", 0, 3, 50, {"is_async": True}),
                    ("h0", 1, 3, 60, {"is_async": True}),
                    ("h0", 0, 4, 70, {}),
                    ("h1", 2, 4, 90, {}),
                    ("h0", 0, 5, 110, {}),
                    ("h2", 3, 5, 124, {}),
                )
            ],
        },
        1,
    ),
    # device 0 sends 10 to each of the others, which do not send what their bytes say; both columns of 10 lack 10, and
    # that of device 0, who should receive 20, is empty
    "traffic_differs_from_wire_bytes": (
        {
            "traffic": [
                {"instruction_id": 0, "source_device_id": 0, "target_device_id": t, "bytes": 10} for t in (1, 2)
            ],
            "collectives": [
                _PAIR | {"group_size": 3, "kind": "all-to-all", "device_id": d, "wire_bytes": 20} for d in (0, 1, 2)
            ],
        },
        5,
    ),
}


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with warehouse_of({}, DEFINITIONS) as database:
        yield database


@pytest.fixture(scope="module")
def found(connection: duckdb.DuckDBPyConnection) -> dict[str, dict[str, list[tuple[Any, ...]]]]:
    """What the audits find of each violation, which is a run of its own: rows by audit."""
    tables: dict[str, list[dict[str, Any]]] = {"instructions": []}
    for name, (given, _) in VIOLATIONS.items():
        given = {"instructions": [{"opcode": "fusion"}] * ("ops" in given)} | given
        for table, rows in given.items():
            tables.setdefault(table, []).extend({"run_id": name, "instruction_id": 0} | row for row in rows)
    for table in tables.keys() - {"instructions", "ops", "collectives", "collective_groups", "traffic"}:
        for row in tables[table]:
            del row["instruction_id"]
    fill(connection, tables)
    rows_by_audit: dict[str, dict[str, list[tuple[Any, ...]]]] = {name: {} for name in VIOLATIONS}
    for finding in run_audits(connection, definitions=DEFINITIONS, limit=100):
        assert finding.columns[0] == "run_id"
        assert finding.result().rows() == list(finding.rows)
        for row in finding.rows:
            rows_by_audit[row[0]].setdefault(finding.audit, []).append(row)
    return rows_by_audit


@pytest.mark.parametrize("audit", AUDITS)
def test_an_audit_finds_what_it_is_for(found: dict[str, dict[str, list[tuple[Any, ...]]]], audit: str) -> None:
    assert [*found[audit]] == [audit] if audit not in _WITH_OTHERS else audit in found[audit]
    assert len(found[audit][audit]) == VIOLATIONS[audit][1]


def test_the_values_of_an_evaluation_are_checked_against_the_ranges_of_their_metrics(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    fill(connection, VIOLATIONS["value_beyond_range"][0])
    [finding] = evaluated(connection, "r", DEFINITIONS).findings
    assert finding == next(f for f in run_audits(connection, "r", DEFINITIONS) if f.audit == finding.audit)
    assert run_audits(connection, "another", DEFINITIONS) == []
    row = dict(zip(finding.columns, finding.rows[0], strict=True))
    # 4e15 operations in 10 ps are 4e26 in a second, of 1e15
    assert (row["metric"], row["version"], row["column"]) == ("mfu", 1, "mfu")
    assert (row["dimensions"], row["value"]) == ('{"phase": "decode"}', pytest.approx(4e11))


def test_values_of_several_metrics_beyond_their_ranges_are_one_finding() -> None:
    with warehouse_of({}, DEFINITIONS) as connection:
        for name in ("mfu", "communication_fraction"):
            metric = DEFINITIONS.metric(name)
            columns = dict.fromkeys(metric.header.columns, "NULL") | dict.fromkeys(metric.header.grain, "'r'")
            columns |= dict.fromkeys(metric.header.ranges, "2.0")
            listed = ", ".join(f'{value} AS "{c}"' for c, value in columns.items())
            connection.execute(f"CREATE OR REPLACE VIEW {metric.view.qualified} AS SELECT {listed}")
        [finding] = run_audits(connection, "r", DEFINITIONS)
        assert [(r[1], r[4]) for r in finding.rows] == [
            ("communication_fraction", "fraction"),
            ("communication_fraction", "max_fraction"),
            ("mfu", "mfu"),
        ]
        [first] = run_audits(connection, "r", DEFINITIONS, limit=1)
        assert first.rows == finding.rows[:1]


def test_a_range_holds_its_ends_but_no_nan() -> None:
    metric = DEFINITIONS.metric("communication_fraction")
    assert metric.header.ranges == {"fraction": (0, 1), "max_fraction": (0, 1)}
    assert list(beyond_range(metric, (0.0, 1.0 + 1e-10))) == []
    assert list(beyond_range(metric, (None, -0.1))) == [("max_fraction", -0.1)]
    assert [c for c, _ in beyond_range(metric, (float("nan"), 1.1))] == ["fraction", "max_fraction"]


_WITH_OTHERS = {"negative_durations", "exposed_beyond_window", "collective_ends_before_start", "step_numbered_twice"}
"""What they find is wrong in other ways too."""


def test_numbers_that_do_not_fit_64_bits_are_a_finding() -> None:
    audit = DEFINITIONS.audits[0]
    found = run_audit(duckdb.connect(), audit, "SELECT 9223372036854775807 + i FROM range(1, 2) AS t(i)")
    assert found is not None
    assert found.audit == audit.name
    assert "do not fit 64 bits" in found.description
    [(error,)] = found.rows
    assert str(error).startswith("Out of Range Error: Overflow in addition of INT64")
