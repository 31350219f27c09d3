"""Corrects the hosts' clocks by the collectives that their devices share: no rank leaves one before all have arrived.

The hosts' wall clocks differ by the error of their time service. All ranks of one execution of a collective end almost
together, within a spread that is small compared with that error. The median difference of these ends over many
executions is therefore the difference of two clocks. Executions are matched by counting, never by time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.collectives.groups import CollectiveGroups
from tracewarehouse.ingest.collectives.instances import Instances
from tracewarehouse.ingest.collectives.participants import NOT_KNOWN
from tracewarehouse.ingest.collectives.windows import START_ONLY, CollectiveOps, sequences, windows
from tracewarehouse.ingest.columns.keys import packed
from tracewarehouse.ingest.columns.records import EventBatch, Int32, Int64
from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.host_survey import HostSurvey
from tracewarehouse.ingest.devices.hosts import Host
from tracewarehouse.ingest.devices.quality import uneven_programs
from tracewarehouse.ingest.devices.timeline import Timeline
from tracewarehouse.ingest.hlo.collectives import SYNCHRONISING
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow
from tracewarehouse.ingest.hlo.instructions import Instructions

FEWEST = 3
"""Number of executions that two hosts must share before their clocks are compared."""
_LEAVING_PS = 20_000_000
"""Ranks of GPUs may leave a collective so far apart (20 us); ends that lie closer tell nothing about clocks."""
_FARTHEST_PS = 60_000_000_000_000
"""Clocks of the machines of a job do not lie a minute apart; files of two recordings do."""
_UNLIKE = 4
"""A pairing is ruled out if its spread is this many times that of the pairing by counting."""


@dataclass
class SharedEnds:
    """Executions of collectives that hosts share, on the run's current clock; arrays of shape (executions, hosts)."""

    last_start: Int64
    """When the last rank on the host arrived; meaningless if the host has no rank, as the ends are."""
    end: Int64
    """When the last rank on the host left."""
    first_end: Int64
    is_here: npt.NDArray[np.bool_]
    """Whether the host has a rank."""
    repeats: Int64
    """Shape (executions,); equal for executions of one instruction by the same devices, which are in order."""

    def moved(self, host: int, by: int) -> None:
        """Move a host's clock."""
        for times in (self.last_start, self.end, self.first_end):
            times[:, host] += by


_FIRST_EVENTS = 1 << 17
"""Op events of each device, from the first on, whose collectives are compared."""


def align(
    surveys: Sequence[HostSurvey], instructions: Instructions, groups: Callable[[], CollectiveGroups]
) -> list[Flag]:
    """Correct the clocks of a run's hosts and all their times read so far; return flags for what remains uncertain.

    These are hosts of TPUs, and the files of a job's ranks.

    `groups` creates the groups of the instructions that have been numbered so far.
    """
    flags: list[Flag] = []
    if sum(bool(s.planes) for s in surveys) > 1:
        devices = list(_first_collectives(surveys, instructions))
        timelines = [
            (p.device.device_id, p.timeline) for s in surveys for p in s.planes.values() if not p.is_sparse_core
        ]
        uneven = uneven_programs(timelines)
        known = groups()
        ends = shared_ends(devices, instructions, known, lambda r: r.program_id not in uneven, len(surveys))
        if ends is not None:
            before = [s.host.clock_offset_ps for s in surveys]
            are_ranks = any(s.ranks for s in surveys)
            flags += correct([s.host for s in surveys], ends, are_ranks=are_ranks)
            for survey, offset in zip(surveys, before, strict=True):
                for timeline in {id(p.timeline): p.timeline for p in survey.planes.values()}.values():
                    timeline.move(survey.host.clock_offset_ps - offset)
        if uneven:
            skipped = shared_ends(devices, instructions, known, lambda r: r.program_id in uneven, len(surveys))
            flags += _unchecked([s.host for s in surveys], skipped)
    if len(surveys) > 1:
        flags += _recorded_apart([s.host for s in surveys if s.ranks], {f.host for f in flags})
        sentence = "the capture has neither the start of this host's profile nor enough collectives shared with others"
        flags += [Flag("clock_unaligned", sentence, s.host.name) for s in surveys if s.host.clock_source == "none"]
    return flags


def _recorded_apart(ranks: Sequence[Host], doubted: Collection[str | None]) -> Iterator[Flag]:
    """Yield a flag for each rank that was recorded over a minute after another recording's end, if none doubts it."""
    windows = sorted((window, host.name) for host in ranks if (window := host.window_ps))
    end_of = list(accumulate((end for (_, end), _ in windows), max))
    later = [i for i in range(1, len(windows)) if windows[i][0][0] - end_of[i - 1] > _FARTHEST_PS]
    for (start, _), name in windows[later[0] :] if later else ():
        if name not in doubted:
            gap = f"its recording begins {(start - end_of[later[0] - 1]) / 1e12:,.0f} s after the end of others"
            yield Flag("clock_uncertain", f"{gap}: if these are of two jobs, ingest each apart", name)


def _unchecked(hosts: Sequence[Host], skipped: SharedEnds | None) -> Iterator[Flag]:
    """Return flags for hosts whose shared collectives were all skipped: devices ran their programs unequally often."""
    if skipped is None:
        return
    share = [h for h in range(len(hosts)) if skipped.is_here[:, h].any()]
    has_reference = any(h.clock_instances is not None for h in hosts)  # the reference itself has none
    for h in share if has_reference else share[1:]:
        host = hosts[h]
        if host.clock_instances is None and not (has_reference and host.clock_source == "first_host"):
            yield Flag(
                "clock_unchecked",
                f"it shares {int(skipped.is_here[:, h].sum())} collectives with other hosts, all in programs that "
                "devices ran different numbers of times: they were not compared",
                host.name,
            )


def _first_collectives(
    surveys: Sequence[HostSurvey], instructions: Instructions
) -> Iterator[tuple[int, int, CollectiveOps]]:
    """Yield host, device and collectives of each TPU, among its first op events, and of each GPU of a rank, all."""
    for number, survey in enumerate(surveys):
        of_ranks = [(plane, gpu, instructions.add_kernels(plane), None) for plane, gpu in survey.ranks]
        of_tpus = [(p, tpu, instructions.add_metadata(p, survey.modules), _FIRST_EVENTS) for p, tpu in survey.tpus]
        for plane, core, row_instruction, most in (*of_tpus, *of_ranks):
            is_collective = np.array([f.is_collective for f in instructions.facts], bool)
            parts = [
                part
                for batches in survey.op_lines(plane)
                for part in _collectives(batches, core.timeline, row_instruction, is_collective, most)
            ]
            if parts:
                yield number, core.device.device_id, CollectiveOps.joined(parts)


def _collectives(
    batches: Iterable[EventBatch],
    timeline: Timeline,
    row_instruction: Int32,
    is_collective: npt.NDArray[np.bool_],
    most: int | None,
) -> Iterator[CollectiveOps]:
    count = 0
    for batch in batches:
        instruction = row_instruction[batch.metadata]
        at = np.flatnonzero(is_collective[instruction])
        start = batch.start_ps[at]
        none = np.full(len(at), -1, np.int32)
        execution, end = timeline.executions_at(start), start + batch.duration_ps[at]
        sequence = sequences(batch.stats, len(batch))[at]
        yield CollectiveOps(count + at, instruction[at], start, end, execution, none, none, none, sequence)
        count += len(batch)
        if most is not None and count >= most:
            return


def shared_ends(
    devices: Sequence[tuple[int, int, CollectiveOps]],
    instructions: Instructions,
    groups: CollectiveGroups,
    is_comparable: Callable[[InstructionRow], bool],
    hosts: int,
) -> SharedEnds | None:
    """Match the executions of collectives over all devices; returns None if no two hosts share one.

    Args:
        devices: host, device id and op events of each device.
        instructions: all instructions of the run.
        is_comparable: whether executions of an instruction can be matched by counting.
        hosts: number of hosts.
    """
    instances = Instances(instructions.rows)
    said = [r.collective is not None and r.collective.communicator is not None for r in instructions.rows]
    has_communicator, synchronises = np.array(said, bool), np.array([_synchronises(r) for r in instructions.rows], bool)
    # all that a communicator executes counts its executions, whatever of it is compared
    chosen = has_communicator | np.array([is_comparable(r) for r in instructions.rows], bool) & synchronises
    parts: list[tuple[int, Int32, Int32, Int64, Int64]] = []
    for host, device, ops in devices:
        executed = windows(instructions.facts, {}, ops, None)
        at = np.flatnonzero(chosen[executed["instruction_id"]] & (executed["window_source"] != START_ONLY))
        if not len(at):
            continue
        instruction = executed["instruction_id"][at]
        component = groups.components(instruction, device)
        component[has_communicator[instruction] & (component == NOT_KNOWN)] = 0  # its ends will tell who takes part
        instances.add(device, instruction, component, executed["execution"][at], executed["sequence"][at])
        parts.append((host, instruction, component, executed["start_ps"][at], executed["end_ps"][at]))
    if len({p[0] for p in parts}) < 2:
        return None
    start, end = (np.concatenate([p[i] for p in parts]) for i in (3, 4))
    host_index = np.concatenate([np.full(len(p[1]), p[0], np.int32) for p in parts])
    instruction, component = (np.concatenate([p[i] for p in parts]) for i in (1, 2))
    one_clock = {device: 0 for _, device, _ in devices}
    count = len({device for _, device, _ in devices})
    number, _ = instances.joined(
        lambda: start, lambda i, _: count if has_communicator[i] else None, lambda: end, one_clock
    )
    shape = int(number.max()) + 1, hosts
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    last_start, last_end, first_end = np.full(shape, low), np.full(shape, low), np.full(shape, high)
    is_here, repeats, is_compared = np.zeros(shape, bool), np.zeros(shape[0], np.int64), np.ones(shape[0], bool)
    np.maximum.at(last_start, (number, host_index), start)
    np.maximum.at(last_end, (number, host_index), end)
    np.minimum.at(first_end, (number, host_index), end)
    is_here[number, host_index] = True
    repeats[number] = packed([instances.channels[instruction], component])
    np.logical_and.at(is_compared, number, synchronises[instruction])
    kept = np.flatnonzero((is_here.sum(axis=1) > 1) & is_compared)
    if not len(kept):
        return None
    return SharedEnds(last_start[kept], last_end[kept], first_end[kept], is_here[kept], repeats[kept])


def _synchronises(row: InstructionRow) -> bool:
    return row.collective is not None and row.collective.kind in SYNCHRONISING and row.collective.role != "done"


def correct(hosts: Sequence[Host], ends: SharedEnds, *, are_ranks: bool = False) -> Iterator[Flag]:
    """Correct the clocks of hosts that share collectives, starting at the first host; yields what remains uncertain.

    Each host is compared with the earlier host with which it shares most executions. Its clock is moved only if this
    brings the ends closer together, by more than they scatter, and contradicts cause and effect no more often.

    Files of a job's ranks (`are_ranks`, GPUs) are moved only by more than ranks leave a collective apart, and one that
    is over a minute away is doubted all the same. Those that share none with the first, as stages of a pipeline, are
    compared among themselves.
    """
    is_here = ends.is_here.astype(np.float64)
    shared = is_here.T @ is_here
    first = min(range(len(hosts)), key=lambda h: (hosts[h].clock_source == "none", hosts[h].clock_offset_ps, h))
    if are_ranks:
        hosts[first].clock_reference = first
    # of each host, the most executions that it shares with a placed one, and that one
    most, nearest = shared[first].copy(), np.full(len(hosts), first)
    is_left = np.arange(len(hosts)) != first
    while len(left := np.flatnonzero(is_left)):
        if most[left].max() >= FEWEST:
            candidates = left[most[left] == most[left].max()]
            b = int(candidates[nearest[candidates].argmin()])
            a = int(nearest[b])
            hosts[b].clock_reference = hosts[a].clock_reference
            yield from _compare(hosts, ends, a, b, are_ranks=are_ranks)
        else:
            among = np.triu(shared[np.ix_(left, left)], 1).max(axis=1)
            if not are_ranks or among.max() < FEWEST:
                break
            b = int(left[among.argmax()])
            hosts[b].clock_reference = b
        is_left[b] = False
        is_nearer = (shared[b] > most) | ((shared[b] == most) & (b < nearest))
        most[is_nearer], nearest[is_nearer] = shared[b][is_nearer], b
    if hosts[first].clock_source == "none" and any(h.clock_source == "collective_ends" for h in hosts):
        hosts[first].clock_source = "first_host"


def _compare(hosts: Sequence[Host], ends: SharedEnds, a: int, b: int, *, are_ranks: bool) -> Iterator[Flag]:
    host = hosts[b]
    at = np.flatnonzero(ends.is_here[:, a] & ends.is_here[:, b])
    apart = ends.end[at, a] - ends.end[at, b]
    by = _median(apart)
    before, after = _median(np.abs(apart)), _median(np.abs(apart - by))
    host.clock_instances, host.clock_residual_ps = len(at), before
    is_known = host.clock_source != "none"
    against, against_moved = _contradictions(ends, at, a, b, 0), _contradictions(ends, at, a, b, by)
    is_apart = are_ranks and is_known and hosts[a].clock_source != "none" and abs(by) > _FARTHEST_PS
    is_better = after < before and abs(by) > max(after, _LEAVING_PS * are_ranks) and against_moved <= against
    is_moved = is_better and not _is_ambiguous(ends, at, a, b, by, after)
    if is_moved:
        ends.moved(b, by)
        host.clock_offset_ps += by
        host.clock_correction_ps = by
        host.clock_residual_ps = after
        host.clock_source = "collective_ends"
    if is_apart or (not is_moved and (not is_known or 2 * against > len(at) or (is_better and against))):
        why = f"{against} of them against cause and effect, but do not tell the clocks' difference safely"
        if is_apart:
            why = "more than clocks of one job do: if these are two recordings, ingest each apart"
        ends_apart = f"the ends of {len(at)} collectives shared with {hosts[a].name} lie {by / 1e6:+.3f} us apart"
        yield Flag("clock_uncertain", f"{ends_apart}, {why}", host.name)


def _contradictions(ends: SharedEnds, at: Int64, a: int, b: int, by: int) -> int:
    """Number of executions in which some rank leaves before another has arrived, with host b's clock moved."""
    early = ends.first_end[at, a] < ends.last_start[at, b] + by
    return int((early | (ends.first_end[at, b] + by < ends.last_start[at, a])).sum())


def _is_ambiguous(ends: SharedEnds, at: Int64, a: int, b: int, by: int, spread: int) -> bool:
    """Return whether the profiles may have begun at different executions, so that counting pairs the wrong ones.

    Then the clocks seem to differ by the time between executions. Pairing each execution with the nearest in time shows
    it: if the clocks were right, that pairing would fit about as well or better.
    """
    order = at[np.lexsort((ends.end[at, a], ends.repeats[at]))]
    is_same = np.diff(ends.repeats[order]) == 0
    steps = np.diff(ends.end[order, a])[is_same]
    if not len(steps):
        return False
    step = _median(steps)
    by_count = round(by / step) if step > 0 else 0
    if not by_count:
        return False
    edges = np.flatnonzero(~is_same) + 1
    nearest = []
    for same in np.split(order, edges):
        one, other = ends.end[same, a], ends.end[same, b]
        k = abs(by_count)
        if k < len(same):
            nearest.append(one[:-k] - other[k:] if by_count > 0 else one[k:] - other[:-k])
    if not nearest or sum(map(len, nearest)) < FEWEST:
        return False
    apart = np.concatenate(nearest)
    return _median(np.abs(apart - _median(apart))) < _UNLIKE * max(spread, 1)


def _median(values: Int64) -> int:
    return int(np.sort(values)[(len(values) - 1) // 2])
