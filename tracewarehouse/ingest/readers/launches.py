"""Tells what both GPU readers must: which launches belong to a step, and what the names of marks and kernels say.

A GPU works behind its host, by up to several steps. So a kernel belongs to the step whose mark was open when the host
launched it, whatever the time at which it ran, and a step's time on the device is that of its kernels.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tracewarehouse.ingest.columns.keys import Integers
from tracewarehouse.ingest.columns.nesting import Flags, outermost
from tracewarehouse.ingest.columns.profiler_names import KERNEL_CLASSES, STEP_MARKS
from tracewarehouse.ingest.columns.records import EventBatch, Int64, StatColumn, StatKind

_MARKS = [re.compile(pattern) for pattern in STEP_MARKS]
_CLASSES = [(re.compile(pattern), kind) for kind, pattern in KERNEL_CLASSES]
_SERVED = {"EXTEND": "prefill", "PREFILL": "prefill", "DECODE": "decode", "TARGET_VERIFY": "decode", "MIXED": "mixed"}
"""The phases of SGLang's batches; an IDLE one has none."""
_EAGER = "eager"
"""Name of what is launched outside of all marks."""
_LARGEST_PIECE, _FEWEST_PIECES = 64, 3
"""Most kernels of a graph that is a piece of a layer, and least replays of one in a step that is run in pieces."""
_WORD = re.compile(r"[A-Za-z_]*[A-Za-z]")


@dataclass(frozen=True)
class StepMark:
    """What the name of a mark says of its step; None is what it does not say.

    Attributes:
        number: the step's own number.
        phase: prefill, decode or mixed.
        requests: requests in the batch.
        prefill_tokens: scheduled tokens of prompts.
        decode_tokens: scheduled tokens of requests that generate.
    """

    number: int | None = None
    phase: str | None = None
    requests: int | None = None
    prefill_tokens: int | None = None
    decode_tokens: int | None = None

    @property
    def has_batch(self) -> bool:
        """Whether the mark tells the batch of its step."""
        return self.requests is not None

    @property
    def scheduled_tokens(self) -> int | None:
        """All tokens of the batch."""
        if self.prefill_tokens is None or self.decode_tokens is None:
            return None
        return self.prefill_tokens + self.decode_tokens


@lru_cache(maxsize=1 << 12)
def step_mark(name: str) -> StepMark | None:
    """Return what the name of a mark says of a step; None for a name that marks no step.

    Known are the marks of PyTorch's profiler (ProfilerStep#3), vLLM (execute_context_1(512)_generation_4(4), and its
    detailed form), SGLang (step[DECODE bs=32]), Megatron (training_step_3), and names that are a phase (decode).
    """
    found = next((match for pattern in _MARKS if (match := pattern.fullmatch(name))), None)
    if found is None:
        return None
    said = {key: value for key, value in found.groupdict().items() if value is not None}
    number = int(said["number"]) if "number" in said else None
    if "contexts" in said:
        requests = int(said["contexts"]), int(said["generations"])
        tokens = int(said.get("context_tokens", 0)), int(said.get("generation_tokens", 0))
        phase = {(True, False): "prefill", (False, True): "decode", (True, True): "mixed"}.get(
            (requests[0] > 0, requests[1] > 0)
        )
        return StepMark(number, phase, sum(requests), *tokens)
    if "batch" in said:
        phase = _SERVED.get(said["mode"])
        size = int(said["batch"])
        total = int(said["tokens"]) if "tokens" in said else None
        decoded = size if phase == "decode" else 0 if phase == "prefill" else None
        prompt = total if phase == "prefill" else 0 if phase == "decode" else None
        return StepMark(number, phase, size, prompt, decoded)
    return StepMark(number, said["phase"].lower() if "phase" in said else None)


@lru_cache(maxsize=1 << 14)
def kernel_class(name: str) -> str | None:
    """Return what a kernel computes, by its name: moe, attention, gemm, norm or copy; None for another."""
    return next((kind for pattern, kind in _CLASSES if pattern.search(name)), None)


def outermost_marks(start: Int64, end: Int64, names: Sequence[str]) -> Int64:
    """Return the places of the marks that are the steps, by start.

    Where marks nest, the outermost that tells a phase is the step, or the outermost if none does. A server's step in
    a profiler's step is such a case.

    Args:
        start: starts of the marks of a process, shape (n,).
        end: their ends, shape (n,).
        names: their n names.
    """
    marks = [step_mark(name) for name in names]
    at = [i for i, mark in enumerate(marks) if mark]
    intervals = [(int(start[i]), int(end[i])) for i in at]
    has_phase = [mark.phase is not None for mark in marks if mark]
    return np.array([at[k] for k in outermost(intervals, has_phase)], np.int64)


def step_numbers(names: Sequence[str]) -> list[int]:
    """Return the numbers of steps in order: those of the marks if all differ, else counted; prefill is 0.

    Without a prefill before it, the first decode step is 1.
    """
    marks = [step_mark(name) or StepMark() for name in names]
    own = [mark.number for mark in marks]
    if marks and None not in own and len(set(own)) == len(own):
        return [number for number in own if number is not None]
    first = 1 if marks and marks[0].phase == "decode" else 0
    return list(range(first, first + len(marks)))


@dataclass(frozen=True)
class LaunchedSteps:
    """The steps of launches, each of shape (n,): the place of a mark, or -1.

    Attributes:
        inside: the mark that is open when the launch begins.
        owner: the same, and for launches between two marks the one before.
    """

    inside: Int64
    owner: Int64


def steps_of_launches(start: Int64, end: Int64, at: Int64, kernel: Int64) -> LaunchedSteps:
    """Find the step of each launch.

    What is launched between two marks belongs to the step before. After the last mark this holds for kernels that also
    ran between earlier marks, up to the first other kernel: what follows may be no step's, such as a check.

    Args:
        start: starts of the marks, ascending, shape (m,).
        end: their ends, shape (m,).
        at: times of the launches, shape (n,).
        kernel: a number for the name of the kernel of each, shape (n,).
    """
    owner = start.searchsorted(at, side="right") - 1
    inside = np.where((owner >= 0) & (at < np.append(end, 0)[owner]), owner, -1)
    last = len(start) - 1
    is_between = (inside < 0) & (owner >= 0) & (owner < last)
    after = np.flatnonzero((inside < 0) & (owner == last)) if last >= 0 else np.zeros(0, np.int64)
    after = after[np.argsort(at[after], kind="stable")]
    is_known = np.isin(kernel[after], np.unique(kernel[is_between]))
    first_other = int(np.argmin(is_known)) if len(after) and not is_known.all() else len(after)
    owner[after[first_other:]] = -1
    return LaunchedSteps(inside, owner)


def windows(group: Int64, start: Int64, end: Int64, count: int) -> tuple[Int64, Int64, Flags]:
    """Return the first start and the last end of the members of each group, and which groups have any.

    Args:
        group: the group of each event, -1 for none, shape (n,).
        start: starts, shape (n,).
        end: ends, shape (n,).
        count: number of groups.
    """
    at = np.flatnonzero(group >= 0)
    first = np.full(count, np.iinfo(np.int64).max, np.int64)
    last = np.full(count, np.iinfo(np.int64).min, np.int64)
    np.minimum.at(first, group[at], start[at])
    np.maximum.at(last, group[at], end[at])
    return first, last, first <= last


@dataclass(frozen=True)
class Marks:
    """The marks that are steps, by start.

    Attributes:
        start: starts in ps, shape (m,).
        end: ends in ps, shape (m,).
        names: the m names.
        numbers: numbers of the steps, shape (m,).
    """

    start: Int64
    end: Int64
    names: Sequence[str]
    numbers: Int64

    @classmethod
    def of(cls, start: Int64, end: Int64, names: Sequence[str]) -> tuple[Marks, Int64]:
        """Return the marks that are steps among those of a process, and their places, shape (m,)."""
        kept = outermost_marks(start, end, names)
        named = [names[i] for i in kept.tolist()]
        return cls(start[kept], end[kept], named, np.array(step_numbers(named), np.int64)), kept

    def module(self, mark: int) -> str:
        """Return the name of the program that a mark's step runs: its phase, or the words of its name."""
        if mark < 0:
            return _EAGER
        said, word = step_mark(self.names[mark]), _WORD.match(self.names[mark])
        return (said.phase if said else None) or (word[0] if word else self.names[mark])

    def step_numbers(self, owner: Int64) -> Int64:
        """Return the number of the step of each mark, -1 for none, shape of `owner`."""
        return np.where(owner >= 0, np.append(self.numbers, -1)[owner], -1)


class MadeLine(NamedTuple):
    """A line of a device that the reader makes.

    Attributes:
        events: its events, whose metadata are places in `names`.
    """

    events: EventBatch
    names: list[str]


def integer_stat(name: str, rows: Int64, values: Integers) -> StatColumn:
    """Return a stat of whole numbers for some rows of a batch, ascending."""
    kinds = np.full(len(rows), int(StatKind.INT64), np.uint8)
    return StatColumn(name, rows, kinds, values.astype(np.int64).view(np.uint64))


def step_line(marks: Marks, inside: Int64, start: Int64, end: Int64) -> MadeLine:
    """Return the steps of a device: the time of what was launched under each mark, under the mark's name.

    Stats are the step's number and the time of its mark on the host.

    Args:
        inside: the mark under which each event of the device was launched, -1 for none, shape (n,).
        start: starts of the events in ps, shape (n,).
        end: their ends, shape (n,).
    """
    first, last, has = windows(inside, start, end, len(marks.start))
    kept = np.flatnonzero(has)
    kept = kept[np.argsort(first[kept], kind="stable")]
    every = np.arange(len(kept))
    stats = [
        integer_stat("step_num", every, marks.numbers[kept]),
        integer_stat("mark_start_ps", every, marks.start[kept]),
        integer_stat("mark_duration_ps", every, (marks.end - marks.start)[kept]),
    ]
    return _made([marks.names[i] for i in kept.tolist()], first[kept], (last - first)[kept], stats)


class Executions(NamedTuple):
    """What a host launched on a device.

    Attributes:
        line: the executions by start, with the number of the launch that begins each as `run_id`.
        of_event: number of the execution of each event, -1 where its launch is not known, shape (n,).
        launch: the launch that begins each execution, in the order of the line.
    """

    line: MadeLine
    of_event: Int64
    launch: Int64


def executions(
    marks: Marks,
    owner: Int64,
    launch: Int64,
    launched_at: Int64,
    is_graph: Flags,
    kernel: Integers,
    start: Int64,
    end: Int64,
) -> Executions:
    """Find the executions on a device: each replay of a graph, and what a step launches between two of them.

    Replays of the same kernels in the same order are executions of one program. A step that replays one small graph
    several times runs a model in pieces, one or more a layer, as vLLM does: then the whole step is one execution.

    Args:
        owner: the mark to whose step each event of the device belongs, -1 for none, shape (n,).
        launch: number of the call that launched it, -1 if it is not known, shape (n,).
        launched_at: start of that call in ps, shape (n,).
        is_graph: whether the call replays a graph, shape (n,).
        kernel: a number for its name, shape (n,).
        start: its start in ps, shape (n,).
        end: its end, shape (n,).
    """
    at = np.flatnonzero(launch >= 0)
    at = at[np.lexsort((start[at], launch[at], launched_at[at]))]
    key = np.where(is_graph[at], launch[at], -2 - owner[at])
    graphs: dict[bytes, str] = {}
    replays: Counter[tuple[int, str]] = Counter()
    graph_of: dict[int, str] = {}
    for own in np.split(at, _begins(key)[1:]):
        if len(own) and is_graph[own[0]]:
            content = kernel[own[np.argsort(start[own], kind="stable")]].tobytes()
            name = graph_of[int(own[0])] = graphs.setdefault(content, f"graph {len(graphs)}")
            if len(own) <= _LARGEST_PIECE and owner[own[0]] >= 0:
                replays[int(owner[own[0]]), name] += 1
    in_pieces = sorted({mark for (mark, _), count in replays.items() if count >= _FEWEST_PIECES})
    key = np.where(np.isin(owner[at], in_pieces), -2 - owner[at], key)
    begins = _begins(key)
    group = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(at))))
    first, last, _ = windows(group, start[at], end[at], len(begins))
    order = np.argsort(first, kind="stable")
    number = np.empty(len(begins), np.int64)
    number[order] = np.arange(len(begins))
    of_event = np.full(len(launch), -1, np.int64)
    of_event[at] = number[group]
    names = [
        graph_of[i] if is_replay and of not in in_pieces else marks.module(of)
        for i, is_replay, of in zip(
            at[begins].tolist(), is_graph[at[begins]].tolist(), owner[at[begins]].tolist(), strict=True
        )
    ]
    calls = launch[at[begins]][order]
    stats = [integer_stat("run_id", np.arange(len(order)), calls)]
    line = _made([names[i] for i in order.tolist()], first[order], (last - first)[order], stats)
    return Executions(line, of_event, calls)


def _begins(key: Int64) -> Int64:
    return np.flatnonzero(np.diff(key, prepend=-(1 << 62)))


def _made(names: Sequence[str], start: Int64, duration: Int64, stats: Sequence[StatColumn]) -> MadeLine:
    places = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return MadeLine(EventBatch(np.array([places[n] for n in names], np.int32), start, duration, stats), list(places))
