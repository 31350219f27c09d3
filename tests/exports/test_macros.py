"""The macros that exports ask, on rows whose answers follow by hand."""

from __future__ import annotations

from typing import Any

from given_tables import warehouse_of

US = 10**6


def test_ranks_of_an_execution_are_in_flight_as_one_and_their_bytes_each() -> None:
    """Two ranks of one execution that end apart, and a collective whose execution is not known, in microseconds.

    execution 0   rank 0  0-------4
                  rank 1    1---------6
    unknown                   2-3
    """
    known = {"kind": "all-reduce", "instruction_id": 0, "instance": 0, "wire_bytes": 10, "phase": "decode", "step": 1}
    ranks = [
        known | {"device_id": 0, "event_id": 0, "start_us": 0, "end_us": 4},
        known | {"device_id": 1, "event_id": 1, "start_us": 1, "end_us": 6},
        known | {"device_id": 0, "event_id": 2, "start_us": 2, "end_us": 3, "instance": None},
    ]
    with warehouse_of({"collectives": ranks}) as database:

        def changes(selection: str) -> list[tuple[float, int, int]]:
            rows = database.execute(f"SELECT * FROM macros.collectives_in_flight('r', {selection}) ORDER BY at_ps")
            return [(at_ps / US, count, size) for at_ps, count, size in rows.fetchall()]

        assert changes("NULL, NULL, NULL, NULL, NULL") == [
            (0, 1, 10), (1, 1, 20), (2, 2, 30), (3, 1, 20), (4, 1, 10), (6, 0, 0)
        ]  # fmt: skip
        assert changes(f"{US}, {2 * US}, NULL, NULL, NULL") == [(1, 1, 10), (6, 0, 0)]
        assert changes("NULL, NULL, 'decode', 1, 1")[0] == (0, 1, 10)
        for nothing in ("NULL, NULL, 'prefill', NULL, NULL", "NULL, NULL, NULL, 2, NULL", "NULL, NULL, NULL, NULL, 0"):
            assert changes(nothing) == []


def test_each_moment_of_a_timeline_is_of_the_op_that_covers_it_first() -> None:
    """A window from 1 to 11 us in two slices; the all-reduce begins within the copy.

    dot 0-------4   copy 4---6   all-reduce 5-------9
    """
    instructions: list[dict[str, Any]] = [
        {"instruction_id": n, "name": name, "opcode": name} for n, name in enumerate(("dot", "copy", "all-reduce"))
    ]
    instructions[2]["collective"] = "all-reduce"
    ops = [
        {"event_id": n, "instruction_id": n, "start_us": start, "duration_us": duration, "device_id": 0}
        for n, (start, duration) in enumerate(((0, 4), (4, 2), (5, 4)))
    ]
    with warehouse_of({"ops": ops, "instructions": instructions, "devices": [{"device_id": 0}]}) as database:
        window = f"'r', 0, {US}, {11 * US}"
        slices = database.execute(f"SELECT * FROM macros.timeline_slices({window}, {5 * US}) ORDER BY start_ms")
        assert slices.fetchall() == [
            (0.001, 0.006, 3, 0, 2, 0, "dot"),
            (0.006, 0.011, 0, 3, 0, 2, "all-reduce"),
        ]
        found = database.execute(f"SELECT op, time_us, share_of_window FROM macros.timeline_ops({window}) ORDER BY op")
        assert found.fetchall() == [("all-reduce", 3, 0.3), ("copy", 2, 0.2), ("dot", 3, 0.3)]
