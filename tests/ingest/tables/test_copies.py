"""main.copies pairs starts with dones, and tells what each copy adds to the exposed copy time of its device."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracewarehouse.ingest.collectives.windows import CollectiveOps
from tracewarehouse.ingest.collectives.windows import windows as collective_windows
from tracewarehouse.ingest.hlo.instruction_row import OpFacts
from tracewarehouse.ingest.hlo.opcodes import OP_CLASSES
from tracewarehouse.ingest.tables.leaf_ops import CopyOps, copy_windows, lines_leaf_times

FACTS = [
    OpFacts("copy.1", 7, True, "copy", None, None, None),
    OpFacts("copy-start.2", 7, True, "copy", "start", None, None),
    OpFacts("copy-done.2", 7, True, "copy", "done", "copy-start.2", None),
    OpFacts("copy-done.2.clone", 7, True, "copy", "done", "copy-start.2", None),
    OpFacts("copy-start.2", 8, True, "copy", "start", None, None),
    OpFacts("copy-update.2", 7, True, "copy", "update", "copy-start.2", None),
    OpFacts("fusion.3", 7, True, "compute", None, None, None),
    OpFacts("all-reduce.4", 7, True, "communication", None, None, None),
]
COPY, START, DONE, OTHER_DONE, OTHER_START, UPDATE, COMPUTE, COMMUNICATION = range(8)

Event = tuple[int, int, int]
"""Instruction, start and duration."""


def _windows(events: list[Event]) -> list[dict[str, Any]]:
    """The rows of copies among the ops of one device, numbered in order of start."""
    instruction, start, duration = (np.array(c, np.int64) for c in zip(*events, strict=True))
    classes = np.array([OP_CLASSES.index(FACTS[i].op_class) for i, *_ in events], np.int8)
    [times] = lines_leaf_times([(start, start + duration, classes)])
    at = np.flatnonzero(classes == OP_CLASSES.index("copy"))
    ops = CopyOps(
        at,
        instruction[at].astype(np.int32),
        start[at],
        (start + duration)[at],
        times.work_before.values[at],
        times.work_during.values[at],
        np.full(len(at), 1, np.int32),
        at.astype(np.int32),
        at * 100,
    )
    columns = copy_windows(FACTS, {}, ops) if len(at) else {"event_id": np.zeros(0)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]


def test_a_done_ends_the_last_start_before_it() -> None:
    # us         0     10    20    30    40    50    60
    # start      [s0)  [s1)
    # fusion               [--------)
    # done                            [d1)  [d2)
    # s0 has another start behind it, d2 another done before it: neither has a partner
    found = _windows([(START, 0, 5), (START, 10, 5), (COMPUTE, 20, 15), (DONE, 40, 5), (DONE, 50, 5)])
    assert found == [
        {
            "event_id": 1,
            "done_event_id": 3,
            "instruction_id": START,
            "is_async": True,
            "start_ps": 10,
            "end_ps": 45,
            "exposed_added_ps": 20,
            "phase": 1,
            "step": 1,
            "bytes": 100,
        }
    ]


def test_a_copy_adds_what_no_copy_before_it_has() -> None:
    # start [--s--)                    window [0, 40)
    # copy         [----c----)         window [10, 30), within it
    # all-reduce        [--)           hides both
    # done                      [d)
    found = _windows([(START, 0, 5), (COPY, 10, 20), (COMMUNICATION, 15, 5), (DONE, 35, 5), (COPY, 40, 3)])
    assert [(w["event_id"], w["done_event_id"], w["is_async"], w["exposed_added_ps"]) for w in found] == [
        (0, 3, True, 35),
        (1, -1, False, 0),
        (4, -1, False, 3),
    ]


def test_other_programs_and_updates_do_not_pair() -> None:
    assert _windows([(OTHER_START, 0, 5), (UPDATE, 5, 1), (DONE, 10, 5)]) == []
    assert [w["end_ps"] for w in _windows([(START, 0, 5), (UPDATE, 5, 1), (OTHER_DONE, 10, 5)])] == [15]


@given(
    events=st.lists(
        st.tuples(st.integers(0, len(FACTS) - 1), st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=14
    )
)
def test_all_copies_add_up_to_the_time_in_which_only_copies_are_under_way(events: list[Event]) -> None:
    events.sort(key=lambda e: e[1])
    found = _windows(events)
    expected, open_start = [], {}
    for i, (instruction, start, duration) in enumerate(events):
        pair = {START: 7, DONE: 7, OTHER_DONE: 7, OTHER_START: 8}.get(instruction)
        if instruction == COPY:
            expected.append((i, start, start + duration))
        elif instruction in (START, OTHER_START):
            open_start[pair] = i, start
        elif pair in open_start:
            expected.append((*open_start.pop(pair), start + duration))
    assert [(w["event_id"], w["start_ps"], w["end_ps"]) for w in found] == sorted(expected, key=lambda e: (e[1], e[0]))
    work = {t for i, s, n in events if FACTS[i].op_class != "copy" for t in range(s, s + n)}
    copying = {t for w in found for t in range(w["start_ps"], w["end_ps"])}
    assert sum(w["exposed_added_ps"] for w in found) == len(copying - work)


@given(events=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12)), min_size=1, max_size=12))
def test_the_previous_collective_is_the_one_that_ends_last_of_those_before(events: list[tuple[int, int]]) -> None:
    events.sort(key=lambda e: e[0])
    facts = [OpFacts(f"all-reduce.{i}", 7, True, "communication", None, None, None) for i in range(len(events))]
    number = np.arange(len(events))
    start, duration = (np.array(c, np.int64) for c in zip(*events, strict=True))
    codes = number.astype(np.int32)
    ops = CollectiveOps(number, codes, start, start + duration, codes, np.zeros_like(codes), codes, codes, codes)
    found = collective_windows(facts, {}, ops, None)
    assert found["previous_instruction_id"][0] == -1
    for i in range(1, len(events)):
        last = max(range(i), key=lambda k: (start[k] + duration[k], k))
        assert found["previous_instruction_id"][i] == found["previous_step"][i] == last
        assert found["previous_end_ps"][i] == start[last] + duration[last]
