"""The one-pass interval models agree with sets of moments, on intervals that nest, touch, tie and overlap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import pytest
from given_tables import fill, warehouse_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracewarehouse.definitions.reading import load_definitions

DEFINITIONS = load_definitions()
_SETTINGS = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
_INSTRUCTIONS = [
    {"instruction_id": 0, "opcode": "fusion"},
    {"instruction_id": 1, "opcode": "all-reduce", "collective": "all-reduce"},
    {"instruction_id": 2, "opcode": "copy-done", "async_role": "done"},
]

# several runs in one example, since making the tables takes longest: (run, device, instruction, start, duration)
_OPS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 1), st.integers(0, 2), st.integers(0, 40), st.integers(0, 12)),
    min_size=1,
    max_size=60,
)
_WINDOWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 1),
        st.sampled_from([None, 1, 2]),
        st.sampled_from(["all-reduce", "all-gather"]),
        st.integers(0, 40),
        st.integers(0, 12),
    ),
    max_size=40,
)


def _moments(start: int, end: int) -> set[int]:
    return set(range(start, end))


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with warehouse_of({}, DEFINITIONS) as database:
        yield database


def _step_at(steps: Sequence[tuple[int, int]], at: int) -> int | None:
    """The last step that has begun, until the next begins or the last one ends."""
    begun = [i for i, (start, _) in enumerate(steps) if start <= at]
    if not begun or (begun[-1] == len(steps) - 1 and at >= steps[-1][1]):
        return None
    return begun[-1]


@_SETTINGS
@given(ops=_OPS, gaps=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 10)), max_size=4))
def test_busy_and_compute_time_are_lengths_of_unions(
    connection: duckdb.DuckDBPyConnection,
    ops: list[tuple[str, int, int, int, int]],
    gaps: list[tuple[int, int]],
) -> None:
    steps: list[tuple[int, int]] = []
    for gap, length in gaps:
        start = (steps[-1][1] if steps else 0) + gap
        steps.append((start, start + length))
    phases = [
        {"run_id": r, "kind": "step", "name": "decode", "index": i, "device_id": d, "start_ps": s, "end_ps": e}
        for r, d in {(r, d) for r, d, *_ in ops}
        for i, (s, e) in enumerate(steps)
    ]
    inside = [_step_at(steps, start) for *_, start, _ in ops]  # as ingest says it
    tables = {
        "phases": phases,
        "instructions": [i | {"run_id": r} for r in "abcd" for i in _INSTRUCTIONS],
        "ops": [
            {"run_id": r, "event_id": n, "device_id": d, "instruction_id": i, "start_ps": s, "duration_ps": length}
            | {"step": step, "phase": None if step is None else "decode"}
            for n, ((r, d, i, s, length), step) in enumerate(zip(ops, inside, strict=True))
        ],
    }
    busy: dict[Any, int] = defaultdict(int)
    compute: dict[Any, int] = defaultdict(int)
    seen: dict[Any, set[int]] = defaultdict(set)
    for r, d, i, s, length in sorted(ops, key=lambda o: o[3]):
        # each moment counts for the step of the first op that covers it; ops of a tie share their step
        key = (r, d, _step_at(steps, s))
        busy[key] += len(_moments(s, s + length) - seen[r, d, "busy"])
        seen[r, d, "busy"] |= _moments(s, s + length)
        if i == 0:
            compute[key] += len(_moments(s, s + length) - seen[r, d, "compute"])
            seen[r, d, "compute"] |= _moments(s, s + length)
    fill(connection, tables)
    found = connection.execute("SELECT run_id, device_id, step, busy_ps, compute_ps FROM models.device_busy").fetchall()
    assert {(r, d, s): (b, c) for r, d, s, b, c in found} == {k: (b, compute[k]) for k, b in busy.items()}
    totals: dict[Any, int] = defaultdict(int)
    for r, d, _, b, _ in found:
        totals[r, d] += b
    assert totals == {(r, d): len(m) for (r, d, what), m in seen.items() if what == "busy"}


@_SETTINGS
@given(windows=_WINDOWS)
def test_communication_time_is_the_length_of_the_union_of_windows(
    connection: duckdb.DuckDBPyConnection, windows: list[Any]
) -> None:
    tables = {
        "collectives": [
            {"run_id": r, "event_id": n, "device_id": d, "step": step, "kind": k, "start_ps": s, "end_ps": s + length}
            for n, (r, d, step, k, s, length) in enumerate(windows)
        ]
    }
    union: dict[Any, set[int]] = defaultdict(set)
    for r, d, step, _, s, length in windows:
        union[r, d, step] |= _moments(s, s + length)
    found: dict[Any, int] = defaultdict(int)
    fill(connection, tables)
    rows = connection.execute("SELECT run_id, device_id, step, new_ps FROM models.communication_windows").fetchall()
    for r, d, step, new in rows:
        found[r, d, step] += new
    assert found == {k: len(m) for k, m in union.items()}


@_SETTINGS
@given(windows=_WINDOWS)
def test_exposed_time_of_a_device_is_the_length_of_the_union_of_its_communication_ops(
    connection: duckdb.DuckDBPyConnection, windows: list[Any]
) -> None:
    """All windows here are asynchronous: a start half and, behind it, a done half."""
    ops, collectives = [], []
    union: dict[Any, set[int]] = defaultdict(set)
    for n, (r, d, step, k, s, length) in enumerate(windows):
        halves = [(2 * n, s, length // 3), (2 * n + 1, s + length // 2, length - length // 2)]
        for event, start, duration in halves:
            ops.append({"run_id": r, "event_id": event, "device_id": d, "start_ps": start, "duration_ps": duration})
            union[r, d] |= _moments(start, start + duration)
        collectives.append(
            {"run_id": r, "event_id": 2 * n, "done_event_id": 2 * n + 1, "device_id": d, "step": step, "kind": k}
            | {"is_async": True, "window_source": "start/done pair", "start_ps": s, "end_ps": s + length}
        )
    instructions = [{"run_id": r, "instruction_id": 0, "collective": "all-gather"} for r in {r for r, *_ in windows}]
    fill(connection, {"instructions": instructions, "ops": ops, "collectives": collectives})
    found: dict[Any, int] = defaultdict(int)
    rows = connection.execute("SELECT run_id, device_id, exposed_added_ps FROM main.collectives").fetchall()
    for r, d, exposed in rows:
        found[r, d] += exposed
    assert found == {k: len(m) for k, m in union.items()}


_PICO_PER_MS = 1_000_000_000
_COPIES = [*_INSTRUCTIONS[:2], {"instruction_id": 2, "opcode": "copy"}]


@_SETTINGS
@given(ops=_OPS, gaps=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 10)), max_size=4))
def test_gaps_and_exposed_copies_are_what_other_intervals_leave(
    connection: duckdb.DuckDBPyConnection,
    ops: list[tuple[str, int, int, int, int]],
    gaps: list[tuple[int, int]],
) -> None:
    """A device's gaps in a step, the moments of a step without an op anywhere, and copies that nothing hides.

    In moments of a little more than a microsecond, so that no gap is too short to count.
    """
    moment = 1_000_001

    def moments_of(ps: int) -> int:
        assert ps % moment == 0
        return ps // moment

    steps: list[tuple[int, int]] = []
    for gap, length in gaps:
        start = (steps[-1][1] if steps else 0) + gap
        steps.append((start, start + length))
    devices = {(r, d) for r, d, *_ in ops}
    inside = [_step_at(steps, start) for *_, start, _ in ops]  # as ingest says it
    tables = {
        "phases": [
            {"run_id": r, "kind": "step", "name": "decode", "index": i, "device_id": d}
            | {"start_ps": s * moment, "end_ps": e * moment}
            for r, d in devices
            for i, (s, e) in enumerate(steps)
        ],
        "instructions": [i | {"run_id": r} for r in "abcd" for i in _COPIES],
        "ops": [
            {"run_id": r, "event_id": n, "device_id": d, "instruction_id": i}
            | {"start_ps": s * moment, "duration_ps": length * moment}
            | {"step": step, "phase": None if step is None else "decode"}
            for n, ((r, d, i, s, length), step) in enumerate(zip(ops, inside, strict=True))
        ],
    }
    fill(connection, tables)

    of_step: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for (r, d, _, s, length), step in zip(ops, inside, strict=True):
        if step is not None:
            of_step[r, d, step].append((s, s + length))
    idle = {}
    for key, intervals in of_step.items():
        covered = set().union(*(_moments(s, s + length) for r, d, _, s, length in ops if (r, d) == key[:2]))
        if moments := _moments(min(s for s, _ in intervals), max(e for _, e in intervals)) - covered:
            idle[key] = moments
    found: dict[Any, list[int]] = defaultdict(list)
    rows = connection.execute("SELECT run_id, device_id, step, start_ps, end_ps FROM models.device_gaps").fetchall()
    for r, d, step, s, e in rows:
        found[r, d, step] += range(moments_of(s), moments_of(e))
    assert {k: sorted(v) for k, v in found.items()} == {k: sorted(v) for k, v in idle.items()}

    covered_by: dict[Any, set[int]] = defaultdict(set)
    for r, d, i, s, length in ops:
        for key in ((r,), (r, d, i)):
            covered_by[key] |= _moments(s, s + length)
    counted: dict[str, int] = {r: 0 for r, _, i, *_ in ops if i == 2}
    first: dict[Any, set[int]] = defaultdict(set)
    for r, d, i, s, length in sorted(ops, key=lambda o: o[3]):
        if i == 2:
            moments = _moments(s, s + length) - first[r, d]
            first[r, d] |= moments
            at = _step_at(steps, s)
            # a last step, which no other one follows, is left out with its copies
            belongs = not steps or (at is not None and (at < len(steps) - 1 or len(steps) == 1))
            counted[r] += len(moments - covered_by[r, d, 0] - covered_by[r, d, 1]) if belongs else 0
    rows = connection.execute("SELECT run_id, exposed_ms FROM metrics.copy_overhead_v1").fetchall()
    assert {r: moments_of(round(ms * _PICO_PER_MS)) for r, ms in rows} == {
        r: n for r, n in counted.items() if steps or _span(ops, r)
    }


@_SETTINGS
@given(ops=_OPS, length=st.integers(1, 50))
def test_the_host_is_waited_for_where_all_devices_pause(
    connection: duckdb.DuckDBPyConnection, ops: list[tuple[str, int, int, int, int]], length: int
) -> None:
    """In half microseconds: more than two of them without an op of a device are a pause of it."""
    unit = 500_000
    tables = {
        "phases": [
            {"run_id": r, "kind": "step", "name": "decode", "index": 0, "device_id": 0, "start_ps": 0}
            | {"end_ps": length * unit}
            for r in {r for r, *_ in ops}
        ],
        "instructions": [i | {"run_id": r} for r in "abcd" for i in _INSTRUCTIONS],
        "ops": [
            {"run_id": r, "event_id": n, "device_id": d, "instruction_id": i}
            | {"start_ps": s * unit, "duration_ps": duration * unit}
            for n, (r, d, i, s, duration) in enumerate(ops)
        ],
    }
    fill(connection, tables)
    running: dict[str, set[int]] = defaultdict(set)
    for run, device in {(r, d) for r, d, *_ in ops}:
        of_device = sorted((s, s + n) for r, d, _, s, n in ops if (r, d) == (run, device))
        until = 0
        for s, e in [*of_device, (length, length)]:
            if 0 < s - until <= 2:
                running[run] |= _moments(until, s)
            running[run] |= _moments(s, e)
            until = max(until, e)
    rows = connection.execute("SELECT run_id, gap_ms FROM metrics.host_gap_v1").fetchall()
    found = {r: round(ms * _PICO_PER_MS / unit) for r, ms in rows}
    assert found == {r: len(_moments(0, length) - covered) for r, covered in running.items()}


def _span(ops: list[tuple[str, int, int, int, int]], run: str) -> int:
    """Time of a run without steps: from the first op of each device to the end of its last."""
    total = 0
    for device in {d for r, d, *_ in ops if r == run}:
        of_device = [(s, s + length) for r, d, _, s, length in ops if (r, d) == (run, device)]
        total += max(e for _, e in of_device) - min(s for s, _ in of_device)
    return total


@_SETTINGS
@given(windows=_WINDOWS)
def test_traffic_intervals_run_from_the_collective_that_ends_last(
    connection: duckdb.DuckDBPyConnection, windows: list[Any]
) -> None:
    tables = {
        "collectives": [
            {"run_id": r, "event_id": n, "device_id": d, "phase": str(phase) if phase else None, "axis": k}
            | {"start_ps": s, "end_ps": s + length}
            for n, (r, d, phase, k, s, length) in enumerate(windows)
        ]
    }
    expected = set()
    order = sorted(range(len(windows)), key=lambda n: (windows[n][4], n))
    for place, n in enumerate(order):
        r, d, phase, k, s, _ = windows[n]
        before = [
            (windows[m][4] + windows[m][5], at, m) for at, m in enumerate(order[:place]) if windows[m][:2] == (r, d)
        ]
        if before:
            end, _, m = max(before)
            if windows[m][2] == phase:
                expected.add((r, n, windows[m][3], k, max(s - end, 0), s < end))
    fill(connection, tables)
    found = connection.execute(
        "SELECT run_id, event_id, axis_from, axis_to, interval_ps, is_overlapping FROM models.traffic_intervals"
    ).fetchall()
    assert set(found) == expected
    assert len(found) == len(expected)
