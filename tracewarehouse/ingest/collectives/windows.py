"""Finds the executions of collectives on one device: their windows, and the exposed part of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.batches import integers
from tracewarehouse.ingest.columns.keys import distinct, occurrence, packed
from tracewarehouse.ingest.columns.nesting import Coverage, Flags
from tracewarehouse.ingest.columns.profiler_names import SEQUENCE
from tracewarehouse.ingest.columns.records import Columns, Int32, Int64, StatColumn
from tracewarehouse.ingest.columns.spill import Spill
from tracewarehouse.ingest.hlo.instruction_row import OpFacts
from tracewarehouse.ingest.hlo.opcodes import MAX_UPDATES

WINDOW_SOURCES = ("op", "start/done pair", "async line", "start only", "program", "fused op")
_OP, _PAIR, _SPAN, START_ONLY, _PROGRAM, _FUSED = range(6)
_ROLES: dict[str | None, int] = {None: 0, "start": 1, "update": 2, "done": 3}


@dataclass
class CollectiveOps(Columns):
    """Op-line events of one device that are collectives or halves of them; columns of shape (n,).

    `phase` is a code into columns.records.PHASES; phase, step, execution, iteration and sequence are -1 if unknown.
    `sequence` is the number that the ranks of a process group give the execution.
    """

    event_id: Int64
    instruction_id: Int32
    start_ps: Int64
    end_ps: Int64
    execution: Int32
    phase: Int32
    step: Int32
    iteration: Int32
    sequence: Int32


def sequences(stats: Sequence[StatColumn], count: int) -> Int32:
    """Return the number in its process group that each of `count` events states, -1 for none."""
    values, is_known = integers(next((s for s in stats if s.name == SEQUENCE), None), count)
    return np.where(is_known & (values >> 31 == 0), values, -1).astype(np.int32)


@dataclass
class AsyncSpans(Columns):
    """Events of a device's Async XLA Ops line, each the whole span of an asynchronous op; columns of shape (n,)."""

    instruction_id: Int32
    start_ps: Int64
    end_ps: Int64


def windows(
    facts: Sequence[OpFacts],
    programs: Mapping[int, int | None],
    ops: CollectiveOps,
    spans: AsyncSpans | None,
    compute: Coverage | None = None,
    busy: Coverage | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Return one row per execution on a device, sorted by start: a synchronous op, or a start joined with its done.

    Args:
        facts: the facts of all instructions so far.
        programs: for instructions that do not name their program, the program in which they were seen.
        ops: the device's op events.
        spans: its Async XLA Ops events, for starts whose done is not in the capture.
        compute: when the device computes, if it can compute while it runs a collective's op.
        busy: when the device runs any op, if it can be idle inside a window; by default it never is.
    """
    n = len(ops.event_id)
    used, inverse = distinct(ops.instruction_id)
    roles = np.array([_ROLES[facts[i].role] for i in used.tolist()], np.int8)[inverse]
    is_start, is_op = roles == _ROLES["start"], roles == _ROLES[None]
    end, source = ops.end_ps.copy(), np.where(is_start, START_ONLY, _OP).astype(np.int8)
    done_event_id, exposed_done = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    alone, added = ops, np.zeros(n, np.int64)
    if (is_fused := np.array([facts[i].is_fused for i in used.tolist()], bool)[inverse]).any():
        source[is_fused] = _FUSED  # the device computes in all of the op, so nothing of it is exposed
        alone = CollectiveOps(*(column[~is_fused] for column in vars(ops).values()))
    added[~is_fused] = _added(alone, compute)
    exposed_added = added.copy()
    if is_start.any():
        pair = np.array(_pair_numbers(facts, programs, used.tolist()), np.int64)[inverse]
        starts, dones = _partners(pair, ops, np.flatnonzero(is_start), np.flatnonzero(roles == _ROLES["done"]))
        end[starts], source[starts], done_event_id[starts] = ops.end_ps[dones], _PAIR, ops.event_id[dones]
        exposed_added[starts] += added[dones]
        exposed_done[starts] = added[dones]
    if spans is not None:
        _take_spans(np.flatnonzero(source == START_ONLY), ops, spans, end, source)
    start, kept = ops.start_ps.copy(), is_op | is_start
    second_event_id, second_done_event_id = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    columns = start, end, source, done_event_id, exposed_added, exposed_done, second_event_id, second_done_event_id
    _join_halves(facts, programs, ops, inverse.astype(np.int64), used.tolist(), columns, kept)
    at = np.flatnonzero(kept)
    order = at[np.lexsort((ops.event_id[at], start[at]))]
    start, end = start[order], end[order]
    exposed = _exposed(alone, compute, start, end)
    previous = _previous(end)
    owned: dict[str, npt.NDArray[Any]] = {
        "instruction_id": ops.instruction_id[order],
        "end_ps": end,
        "phase": ops.phase[order].astype(np.int8),
        "step": ops.step[order],
    }
    return {
        "event_id": ops.event_id[order],
        "done_event_id": done_event_id[order],
        "second_event_id": second_event_id[order],
        "second_done_event_id": second_done_event_id[order],
        "is_async": is_start[order],
        "start_ps": start,
        "exposed_ps": exposed,
        "exposed_added_ps": exposed_added[order],
        "exposed_done_ps": exposed_done[order],
        "hidden_ps": (busy.within(start, end) if busy else end - start) - exposed,
        "window_source": source[order],
        "execution": ops.execution[order],
        "iteration": ops.iteration[order],
        "sequence": ops.sequence[order],
        **owned,
        **{f"previous_{name}": np.where(previous < 0, -1, column[previous]) for name, column in owned.items()},
    }


def _previous(end: Int64) -> Int64:
    """Return for each window the row of the earlier one that ends last (the latest of several), or -1; shape (n,)."""
    row = np.arange(len(end))
    last = np.maximum.accumulate(np.where(end == np.maximum.accumulate(end), row, 0))
    return np.where(row > 0, np.roll(last, 1), -1)


def _exposed(ops: CollectiveOps, compute: Coverage | None, start: Int64, end: Int64) -> Int64:
    """Return the time of each window in which the device runs a collective's op and does not compute, shape (n,)."""
    busy = Coverage(ops.start_ps, ops.end_ps)
    if compute is None:
        return busy.within(start, end)
    return busy.joined(compute).within(start, end) - compute.within(start, end)


def _added(ops: CollectiveOps, compute: Coverage | None) -> Int64:
    """Return the time of each event that neither an earlier event nor compute covers, shape (n,)."""
    order = np.lexsort((ops.event_id, ops.start_ps))
    start, end = ops.start_ps[order], ops.end_ps[order]
    reach = np.maximum.accumulate(end)
    covered_until = np.append(start[:1], reach[:-1])
    added = np.empty_like(start)
    begin = np.minimum(np.maximum(start, covered_until), end)
    added[order] = end - begin - (compute.within(begin, end) if compute else 0)
    return added


def _pair_numbers(facts: Sequence[OpFacts], programs: Mapping[int, int | None], used: Sequence[int]) -> list[int]:
    """Return a number per instruction, which a start shares with the done that ends it, also through updates.

    If a loop carries the collective, a done in or after the loop ends several starts, one before the loop and one in
    it. Its operand is an element of the loop's tuple, so it is paired with those starts of its program that pass on the
    same element and that no other done names.
    """
    program = {i: programs.get(i, facts[i].program_id) for i in used}
    by_name = {(program[i], facts[i].name): i for i in used}
    numbers = []
    for i in used:
        seen = 0
        number = i
        while seen < MAX_UPDATES:
            before = by_name.get((program[number], facts[number].start_name or ""))
            if before is None or before == number:
                break
            number = before
            seen += 1
        numbers.append(number)
    at = {i: k for k, i in enumerate(used)}
    named = {number for i, number in zip(used, numbers, strict=True) if i != number}
    through_loop: dict[tuple[int | None, str], int] = {}
    for i in used:
        if facts[i].role == "start" and facts[i].carried and i not in named:
            numbers[at[i]] = through_loop.setdefault((program[i], facts[i].carried or ""), i)
    for i in used:
        name, carried = facts[i].start_name or "", facts[i].carried or ""
        is_start = "-start" in name or name.startswith(("send", "recv"))  # the start did not run in the capture
        if facts[i].role == "done" and numbers[at[i]] == i and not is_start:
            numbers[at[i]] = through_loop.get((program[i], carried), i)
    return numbers


def _partners(pair: Int64, ops: CollectiveOps, starts: Int64, dones: Int64) -> tuple[Int64, Int64]:
    """Return the starts that a done ends, and those dones.

    In one execution of a program the k-th done of a pair ends the k-th start. Dones before the first start end starts
    from before the profile, which cut the execution.
    """
    both = np.concatenate([starts, dones])
    key = packed([pair[both], ops.execution[both]])
    keys, of_key = np.unique(key, return_inverse=True)
    first = np.full(len(keys), np.iinfo(np.int64).max)
    np.minimum.at(first, of_key[: len(starts)], ops.start_ps[starts])
    has_start = ops.start_ps[dones] >= first[of_key[len(starts) :]]
    starts, dones = _matched(ops, (key[: len(starts)], starts), (key[len(starts) :][has_start], dones[has_start]))
    is_after = ops.start_ps[dones] >= ops.start_ps[starts]
    return starts[is_after], dones[is_after]


def _matched(ops: CollectiveOps, first: tuple[Int64, Int64], second: tuple[Int64, Int64]) -> tuple[Int64, Int64]:
    """Return the rows of which one is the k-th of its key and the other the k-th of the same; each is keys and rows."""
    count = [occurrence(key, ops.start_ps[at]) for key, at in (first, second)]
    key = packed([np.concatenate([first[0], second[0]]), np.concatenate(count)])
    cut = len(first[0])
    _, of_first, of_second = np.intersect1d(key[:cut], key[cut:], True, return_indices=True)
    return first[1][of_first], second[1][of_second]


def _take_spans(at: Int64, ops: CollectiveOps, spans: AsyncSpans, end: Int64, source: npt.NDArray[np.int8]) -> None:
    """Take the window of each start without a done from the async line's event of that instruction and time."""
    if not len(at):
        return
    order = np.lexsort((spans.start_ps, spans.instruction_id))
    start_of, end_of = spans.start_ps[order], spans.end_ps[order]
    at = at[np.argsort(ops.instruction_id[at], kind="stable")]
    used, first = np.unique(ops.instruction_id[at], return_index=True)
    low, high = (spans.instruction_id[order].searchsorted(used, side) for side in ("left", "right"))
    for starts, a, z in zip(np.split(at, first[1:]), low.tolist(), high.tolist(), strict=True):
        if a == z:
            continue
        last = a + start_of[a:z].searchsorted(ops.end_ps[starts], side="right") - 1
        is_inside = (last >= a) & (ops.end_ps[starts] <= end_of[last])
        end[starts[is_inside]] = end_of[last[is_inside]]
        source[starts[is_inside]] = _SPAN


def _join_halves(
    facts: Sequence[OpFacts],
    programs: Mapping[int, int | None],
    ops: CollectiveOps,
    of_op: Int64,
    used: Sequence[int],
    columns: tuple[npt.NDArray[Any], ...],
    kept: Flags,
) -> None:
    """Let one start stand for the two of a collective that share a rendezvous; the other is kept no longer.

    In one execution of a program the k-th start of one half belongs to the k-th of the other. The window of both lasts
    from the earlier start to the later end. `columns` are start, end, source, done_event_id, exposed_added,
    exposed_done, second_event_id and second_done_event_id.
    """
    names = [(programs.get(i, facts[i].program_id), facts[i].rendezvous) for i in used]
    numbers = {name: k for k, name in enumerate(dict.fromkeys(names)) if name[1] is not None}
    if not numbers:
        return
    number = np.array([numbers.get(name, -1) for name in names], np.int64)[of_op]
    is_second = np.array([facts[i].is_second_half for i in used], bool)[of_op]
    halves = [np.flatnonzero(kept & (number >= 0) & (is_second == second)) for second in (False, True)]
    key = packed([np.concatenate([column[half] for half in halves]) for column in (number, ops.execution)])
    cut = len(halves[0])
    first, second = _matched(ops, (key[:cut], halves[0]), (key[cut:], halves[1]))
    start, end, source, done_event_id, exposed_added, exposed_done, second_event_id, second_done_event_id = columns
    is_longer = end[second] > end[first]
    second_event_id[first] = ops.event_id[second]
    second_done_event_id[first] = np.where(is_longer, done_event_id[first], done_event_id[second])
    for column in (source, done_event_id):
        column[first] = np.where(is_longer, column[second], column[first])
    start[first] = np.minimum(start[first], start[second])
    end[first] = np.maximum(end[first], end[second])
    exposed_added[first] += exposed_added[second]
    has_both = (exposed_done[first] >= 0) & (exposed_done[second] >= 0)
    exposed_done[first] = np.where(
        has_both, exposed_done[first] + exposed_done[second], np.maximum(exposed_done[first], exposed_done[second])
    )
    kept[second] = False


class CollectiveExecutions:
    """The executions of collectives on some devices, stored on disk; as a context manager, it removes them at its end.

    Groups and instance of an execution are known only after all planes have been read; a few integers suffice to find
    them then.

    Attributes:
        rows: the rows of `collective_windows.windows` by device, once it is finished.
    """

    def __init__(self, path: Path) -> None:
        self.hosts: dict[int, str] = {}
        self.rows = Spill(path)
        self._ops: dict[int, list[CollectiveOps]] = {}
        self._spans: dict[int, list[AsyncSpans]] = {}
        self._compute: dict[int, Coverage] = {}
        self._busy: dict[int, list[Coverage]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.rows.__exit__(*error)

    def add_ops(self, device_id: int, host: str, ops: CollectiveOps) -> None:
        """Add events of a device's op line; they may come in several chunks, or from several threads."""
        self.hosts[device_id] = host
        self._ops.setdefault(device_id, []).append(ops)

    def add_spans(self, device_id: int, spans: AsyncSpans) -> None:
        """Add events of a device's Async XLA Ops line."""
        self._spans.setdefault(device_id, []).append(spans)

    def add_compute(self, device_id: int, start: Int64, end: Int64) -> None:
        """Add the times in which a device that executes several ops at once computes; these hide its collectives."""
        self._compute[device_id] = Coverage(start, end)

    def add_busy(self, device_id: int, start: Int64, end: Int64) -> None:
        """Add leaf ops of a device that may be idle inside a window; they may come in several chunks."""
        self._busy.setdefault(device_id, []).append(Coverage(start, end))

    def finish_device(self, device_id: int, facts: Sequence[OpFacts], programs: Mapping[int, int | None]) -> None:
        """Pair starts and dones of a device whose events have all been added."""
        spans = self._spans.pop(device_id, None)
        if device_id in self._ops:
            ops = CollectiveOps.joined(self._ops.pop(device_id))
            compute, busy = self._compute.pop(device_id, None), Coverage.of(self._busy.pop(device_id, ()))
            joined = AsyncSpans.joined(spans) if spans else None
            self.rows.put(device_id, windows(facts, programs, ops, joined, compute, busy))
