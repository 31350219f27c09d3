"""Instances of collectives against the definition, one row at a time."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xplane_builder import Space, Unsigned

from tracewarehouse.ingest.collectives.instances import Instances
from tracewarehouse.ingest.columns.spill import Spill
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow
from tracewarehouse.ingest.tables import derived

PROGRAMS = (7, 7, 9)  # of instructions 0, 1 and 2
row = st.tuples(st.integers(0, 2), st.integers(-1, 1), st.integers(-1, 3), st.integers(0, 50))
Row = tuple[int, int, int, int]  # instruction, component, execution, start


@given(st.lists(st.lists(row, max_size=12), min_size=1, max_size=4))
def test_ranks_share_what_the_definition_says(devices: list[list[Row]]) -> None:
    """The k-th execution of an instruction in the n-th launch of its program, on every device of a component."""
    devices = [sorted(rows, key=lambda r: r[3]) for rows in devices]
    instances = Instances([InstructionRow(f"i{k}", p) for k, p in enumerate(PROGRAMS)])
    for device, rows in enumerate(devices):
        columns = np.array(rows, np.int32).reshape(-1, 4).T
        instances.add(device, *columns[:3])
    starts = np.array([r[3] for rows in devices for r in rows], np.int64)
    numbers, is_partial = instances.joined(lambda: starts, lambda instruction, component: 2 if component else None)

    members: dict[tuple[int, ...], list[int]] = {}
    position = 0
    for device, rows in enumerate(devices):
        launches = {p: sorted({e for i, _, e, _ in rows if PROGRAMS[i] == p}) for p in PROGRAMS}
        seen: dict[tuple[int, int], int] = {}
        for instruction, component, execution, _ in rows:
            launch = launches[PROGRAMS[instruction]].index(execution)
            count = seen[instruction, launch] = seen.get((instruction, launch), -1) + 1
            alone = device if component < 0 else -1
            members.setdefault((instruction, component, alone, launch, count), []).append(position)
            position += 1
    in_order = sorted(members, key=lambda k: (min(starts[p] for p in members[k]), k))
    expected = {p: (n, key) for n, key in enumerate(in_order) for p in members[key]}
    assert numbers.tolist() == [expected[p][0] for p in range(position)]
    whole = [expected[p][1][1] == 1 and len(members[expected[p][1]]) == 2 for p in range(position)]
    assert (~is_partial).tolist() == whole


def test_no_rows() -> None:
    numbers, is_partial = Instances([]).joined(lambda: np.zeros(0, np.int64), lambda *_: None)
    assert len(numbers) == len(is_partial) == 0


def test_spill_gives_back_what_was_put_aside(tmp_path: Path) -> None:
    with Spill(tmp_path / "spill") as spill:
        for key in (5, 2):
            spill.put(key, {"a": np.arange(10) * key, "b": np.arange(10, dtype=np.int8)[::-1], "c": np.ones(10, bool)})
        assert list(spill) == [2, 5]
        assert spill.rows(5) == 10
        assert spill.get(5, "a").tolist() == [k * 5 for k in range(10)]
        assert spill.get(2, "b", 3, 6).tolist() == [6, 5, 4]
        assert spill.get(2, "c", 9).tolist() == [True]
        with pytest.raises(KeyError):
            spill.get(3, "a")
        elsewhere = pickle.loads(pickle.dumps(spill))
        assert elsewhere.get(5, "a", 8).tolist() == [40, 45]
        elsewhere.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lacking", [{1: (0,)}, {0: (0,), 2: (0, 1)}, {1: (5,)}, {1: (0, 5), 2: (0,), 3: (5,)}])
def test_launches_that_a_device_lacks_move_no_other(ingest: Any, lacking: dict[int, tuple[int, ...]]) -> None:
    """Four devices launch a program six times, a few ps apart; the profile begins and ends at another time on each."""
    space = Space()
    text = "%all-reduce.1 = f32[16]{0} all-reduce(f32[16]{0} %x), channel_id=1, replica_groups={{0,1,2,3}}"
    for device in range(4):
        tpu = space.tpu(device)
        reduce = tpu.instruction(text, hlo_category="all-reduce", program_id=Unsigned(1))
        for launch in range(6):
            if launch not in lacking.get(device, ()):
                tpu.modules.event("jit_step(1)", 1000 * launch + device, 600)
                for k in range(2):
                    tpu.ops.event(reduce, 1000 * launch + 200 * k + device, 100)
    _, query = ingest(space)
    joined = (
        "SELECT MAX(start_ps) - MIN(start_ps) AS apart, COUNT(*), MIN(is_partial) FROM collectives GROUP BY instance"
    )
    found = query(joined)
    assert max(apart for apart, *_ in found) < 4
    assert len(found) == 12
    assert all(partial == (ranks < 4) for _, ranks, partial in found)


LOST: list[dict[int, tuple[int, ...]]] = [
    {1: (0,)},  # the profile began later on one device
    {2: (5,)},
    {0: (0, 1), 3: (2,)},  # events lost on the way
    {0: (0,), 1: (5,)},  # as many on both, of different executions
    {1: (0, 2, 4)},
]


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("has_launches", [True, False])
@pytest.mark.parametrize("is_async", [False, True])
def test_occurrences_that_a_device_lacks_move_no_other(
    ingest: Any, lost: dict[int, tuple[int, ...]], has_launches: bool, is_async: bool
) -> None:
    """An all-reduce runs six times in a launch, or without launches; ranks arrive apart and leave together."""
    space = Space()
    groups = "channel_id=1, replica_groups={{0,1,2,3}}"
    texts = (
        [
            f"%all-reduce-start.1 = f32[16]{{0}} all-reduce-start(f32[16]{{0}} %x), {groups}",
            "%all-reduce-done.1 = f32[16]{0} all-reduce-done(f32[16]{0} %all-reduce-start.1)",
        ]
        if is_async
        else [f"%all-reduce.1 = f32[16]{{0}} all-reduce(f32[16]{{0}} %x), {groups}"]
    )
    for device in range(4):
        tpu = space.tpu(device)
        ops = [tpu.instruction(t, hlo_category="all-reduce", program_id=Unsigned(1)) for t in texts]
        dot = tpu.instruction("%fusion.1 = f32[8]{0} fusion(%a), kind=kLoop", hlo_category="loop fusion")
        if has_launches:
            tpu.modules.event("jit_step(1)", 0, 9000)
        tpu.ops.event(dot, 0, 5)
        for k in range(6):
            if k in lost.get(device, ()):
                continue
            start, end = 1000 * k + 500 - 90 * device, 1000 * k + 700 + device
            if is_async:
                tpu.ops.event(ops[0], start, 10)
                tpu.ops.event(ops[1], end - 10, 10)
            else:
                tpu.ops.event(ops[0], start, end - start)
    _, query = ingest(space)
    found = query(
        "SELECT MAX(end_ps) - MIN(end_ps), COUNT(*), MIN(is_partial), MAX(is_partial) "
        "FROM collectives GROUP BY instance"
    )
    assert max(apart for apart, *_ in found) < 4
    assert len(found) == 6
    assert all(low == high == (ranks < 4) for _, ranks, low, high in found)


def test_ends_that_show_nothing_leave_the_count() -> None:
    """Ranks that leave at any time, as on clocks apart, and devices whose clocks cannot be compared."""
    ends = {0: [100, 200, 300, 400], 1: [150, 250, 350]}
    for clocks, expected in (({0: 0, 1: 0}, 3), ({0: 0, 1: 1}, 3)):
        instances = Instances([InstructionRow("i0", 7)])
        for device, of in ends.items():
            zero = np.zeros(len(of), np.int32)
            instances.add(device, zero, zero, zero)
        times = np.array([t for of in ends.values() for t in of], np.int64)
        numbers, _ = instances.joined(lambda at=times: at, lambda *_: 2, lambda at=times: at, clocks)  # type: ignore[misc]
        assert sum(n in numbers[4:].tolist() for n in numbers[:4].tolist()) == expected
        assert numbers[:3].tolist() == numbers[4:].tolist()


def test_the_links_of_a_group_are_found_once(ingest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each of its devices, of which a pod has thousands."""
    asked: list[int] = []
    link_between = derived.link_between
    monkeypatch.setattr(derived, "link_between", lambda of, hosts: asked.append(len(of)) or link_between(of, hosts))
    space = Space()
    for number in range(6):
        tpu = space.tpu(number)
        tpu.modules.event("step(1)", 0, 1000)
        for channel, groups in enumerate(("{0,1,2,3,4,5}", "{0,1,2},{3,4,5}")):
            hlo = f"%r.{channel} = f32[4]{{0}} all-reduce(f32[4]{{0}} %x), channel_id={channel + 1}, "
            hlo += f"replica_groups={{{groups}}}, use_global_device_ids=true, to_apply=%add"
            tpu.ops.event(tpu.instruction(hlo, program_id=Unsigned(1)), 10 + 100 * channel, 50)
    _, query = ingest(space)
    assert query("SELECT DISTINCT link FROM collectives") == [("ici",)]
    assert sorted(asked) == [3, 3, 6]
