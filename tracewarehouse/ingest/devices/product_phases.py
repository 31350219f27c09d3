"""Tells prefill from decode by the shapes of a step's matrix products.

A prefill step runs the layers on all tokens of its prompts, but the output head on one token of each prompt. A decode
step runs both on one token of each sequence, however far both are padded.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracewarehouse.ingest.columns.batches import codes, integers
from tracewarehouse.ingest.columns.keys import packed
from tracewarehouse.ingest.columns.nesting import Flags
from tracewarehouse.ingest.columns.profiler_names import STREAM_PREFIX
from tracewarehouse.ingest.columns.records import EventBatch, Int64, Plane
from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.host_survey import HostSurvey
from tracewarehouse.ingest.devices.sampled_programs import FIRST_EVENTS, Program, sampled_until
from tracewarehouse.ingest.devices.timeline import Run, Step, Timeline
from tracewarehouse.ingest.hlo.instruction import Instruction, is_product
from tracewarehouse.ingest.hlo.instructions import Instructions
from tracewarehouse.ingest.hlo.text import parse_instruction

_FEWEST = 8
"""Fewest products with the same number of rows that an execution of a program with layers runs."""
_RATIO = 4
"""Ratio of rows in the layers to rows in the head from which on a step prefills: padding less than doubles either."""
_HEAD = re.compile(r"lm_head|logits|unembed")
_BACKWARD = re.compile(r"transpose\(jvp|backward")


@dataclass(frozen=True)
class _Product:
    """A matrix product of a program, over the executions that were read."""

    rows: int
    columns: int
    names: str
    events: int
    time_ps: int
    start_ps: int
    """When it first ran."""


@dataclass(frozen=True)
class _Rows:
    """Rows of the products of a program: those of its layers and of its output head; None if it lacks them."""

    layers: int | None
    head: int | None


def tell_by_shapes(
    surveys: Sequence[HostSurvey], instructions: Instructions, possible: Collection[str | None] = ()
) -> list[Flag]:
    """Give steps without a phase the one that shapes tell, and return a flag that says which programs it is.

    Args:
        surveys: the hosts, whose steps are numbered; steps of the profiler's own line are left as they are.
        instructions: gets those of the TPU that is read.
        possible: phases of the server's batches, if it describes any; shapes tell no other, and no prefill if some are
            mixed, which look the same.
    """
    devices = [t for s in surveys for _, t in s.device_timelines]
    if not any(_is_open(step) for t in devices for step in t.steps):
        return []
    rows = _rows_of_programs(surveys, instructions)
    if not rows:
        return []
    ran = [list(_programs_of_steps(t)) for t in devices]
    steps_with_rows = [of for steps in ran for runs in steps if (of := _of_step(runs, rows))]
    prefilled = (of.layers for of in steps_with_rows if of.layers and phase_by_rows(of.layers, of.head, None))
    most = max(prefilled, default=None)
    known = {p for p in possible if not (p == "prefill" and "mixed" in possible)}
    told: set[tuple[str, str]] = set()
    for timeline, steps in zip(devices, ran, strict=True):
        named = []
        for step, runs in zip(timeline.steps, steps, strict=True):
            of = _of_step(runs, rows) if _is_open(step) else None
            phase = phase_by_rows(of.layers, of.head, most) if of and of.layers else None
            if phase and (phase in known or not possible):
                told.add((_main(runs, rows).module, phase))
                named.append(replace(step, phase=phase, name=phase))
            else:
                named.append(step)
        timeline.set_steps(named)
    sentence = ", ".join(f"{module} is {phase}" for module, phase in sorted(told))
    return [Flag("inferred_steps", f"by the shapes of its products {sentence}")] if told else []


def phase_by_rows(layers: int, head: int | None, prefill: int | None) -> str | None:
    """Prefill or decode, from the padded rows of a step's products; None if they do not show the phase.

    A batch that both prefills and decodes looks like prefill. As many rows in the head as in the layers do not prove
    decode: the program may compute the logits of all tokens of a short prompt. Beside a prefill of many more rows they
    do.

    Args:
        layers: rows of the products of the layers.
        head: rows of the output head in the same step.
        prefill: most rows in the layers of a step that prefills.
    """
    if head and layers >= _RATIO * head:
        return "prefill"
    return "decode" if prefill and _RATIO * layers <= prefill else None


def _is_open(step: Step) -> bool:
    return not step.phase and not step.source.startswith("step line")


def _programs_of_steps(timeline: Timeline) -> Iterator[list[Run]]:
    starts = [s.start_ps for s in timeline.steps]
    members: list[list[Run]] = [[] for _ in starts]
    for run in timeline.runs:
        at = bisect_right(starts, run.start_ps) - 1
        if at >= 0:
            members[at].append(run)
    yield from members


def _main(runs: Sequence[Run], rows: Mapping[Program, _Rows]) -> Run:
    layered = [r for r in runs if (of := rows.get((r.module, r.program_id))) and of.layers]
    return max(layered, key=lambda r: r.end_ps - r.start_ps)


def _of_step(runs: Sequence[Run], rows: Mapping[Program, _Rows]) -> _Rows | None:
    """Rows of a step: of the layers in its longest program with layers, and of the head there or in its others."""
    known = [of for r in runs if (of := rows.get((r.module, r.program_id)))]
    if not any(of.layers for of in known):
        return None
    main = _main(runs, rows)
    own = rows[main.module, main.program_id]
    return _Rows(own.layers, own.head or max((of.head for of in known if of.head), default=None))


def _rows_of_programs(surveys: Sequence[HostSurvey], instructions: Instructions) -> dict[Program, _Rows]:
    for survey in surveys:
        cores = defaultdict[int, list[Plane]](list)
        for plane, core in survey.tpus:
            cores[core.device.device_id].append(plane)
        for number, (device, timeline) in enumerate(survey.device_timelines):
            if not timeline.runs:
                continue
            tally = _Tally(timeline)
            if device.backend == "tpu":
                _read_tpu(tally, survey, cores[device.device_id], instructions)
            else:
                _read_named(tally, survey, number)
            rows = {p: _rows(p[0], *tally.products(p)) for p in tally.programs}
            if any(of.layers for of in rows.values()):
                return rows
    return {}


class _Tally:
    """Counts and times the ops of a device by program, until each program has run a few times.

    Args:
        timeline: the device's executions.
    """

    def __init__(self, timeline: Timeline) -> None:
        numbers: dict[Program, int] = {}
        of_run = [numbers.setdefault((r.module, r.program_id), len(numbers)) for r in timeline.runs]
        self.programs = list(numbers)
        self._timeline = timeline
        self._program = np.array([*of_run, -1])
        self.until = sampled_until(timeline.runs)
        """Time up to which events are read."""
        self._events = 0
        self._executions: dict[Program, set[int]] = {}
        self._ops: dict[tuple[Program, int], tuple[int, int, int]] = {}
        self.found: dict[int, tuple[Instruction, str]] = {}
        """The instructions that may be products, and what else names them, by the number that `add` is given."""

    def add(self, op: Int64, start: Int64, duration: Int64) -> bool:
        """Add events of a line by the number of their instruction, times in ps; return whether the line is read.

        A device with many events is read up to one time on all of its lines, so that each execution has all its ops.
        """
        execution = self._timeline.executions_at(start)
        program = self._program[execution]
        _, first, inverse, count = np.unique(
            packed([program, op]), return_index=True, return_inverse=True, return_counts=True
        )
        total = np.bincount(inverse, duration)
        earliest = np.full(len(first), np.iinfo(np.int64).max)
        np.minimum.at(earliest, inverse, start)
        columns = (program[first], op[first], count, total, earliest)
        for number, i, n, ps, at in zip(*(c.tolist() for c in columns), strict=True):
            if number >= 0 and i in self.found:
                key = self.programs[number], i
                events, time_ps, start_ps = self._ops.get(key, (0, 0, at))
                self._ops[key] = events + n, time_ps + int(ps), min(start_ps, at)
        for i in np.unique(execution[execution >= 0]).tolist():
            self._executions.setdefault(self.programs[self._program[i]], set()).add(i)
        self._events += len(start)
        if len(start) and self._events >= FIRST_EVENTS:
            self.until = min(self.until, int(start[-1]))
        return bool(len(start) and start[-1] >= self.until)

    def products(self, program: Program) -> tuple[list[_Product], int]:
        """The products of a program, by their first start, and the number of its executions that were read."""
        products = []
        for (of, i), (events, time_ps, start_ps) in self._ops.items():
            sizes = _rows_and_columns(self.found[i][0]) if of == program else None
            if sizes:
                products.append(_Product(*sizes, self.found[i][1], events, time_ps, start_ps))
        return sorted(products, key=lambda x: x.start_ps), len(self._executions.get(program, ()))


def _read_tpu(tally: _Tally, survey: HostSurvey, planes: Sequence[Plane], instructions: Instructions) -> None:
    for plane in planes:
        row_instruction = instructions.add_metadata(plane, survey.modules)
        for i in np.unique(row_instruction).tolist():
            row = instructions.rows[i]
            if row.hlo and (not row.collective or row.is_fused) and is_product(row.hlo, row.category, row.op_name):
                tally.found[i] = row.hlo, f"{row.op_name} {row.name}"
        for batches in survey.op_lines(plane):
            for batch in batches:
                if tally.add(row_instruction[batch.metadata].astype(np.int64), batch.start_ps, batch.duration_ps):
                    break  # another line of the device may have begun as early


def _read_named(tally: _Tally, survey: HostSurvey, number: int) -> None:
    """Read a GPU or virtual CPU device, whose events name their instruction; an Hlo Proto or HLO text describes it."""
    known: dict[tuple[str, str, int | None], int] = {}
    for plane, line in _named_lines(survey, number):
        for events, is_own in line:
            stats = {s.name: s for s in events.stats}
            op, ops = codes(stats.get("hlo_op"), len(events))
            module, modules = codes(stats.get("hlo_module"), len(events))
            program, has_program = integers(stats.get("program_id"), len(events))
            at = np.flatnonzero(is_own & (op >= 0) & (module >= 0) & (events.start_ps <= tally.until))
            columns = (c[at].tolist() for c in (op, module, program, has_program))
            keys = [(ops[o], modules[m], p % (1 << 64) if has else None) for o, m, p, has in zip(*columns, strict=True)]
            for (name, of_module, program_id), row in dict(zip(keys, at.tolist(), strict=True)).items():
                if (name, of_module, program_id) in known:
                    continue
                known[name, of_module, program_id] = i = len(known)
                compiled = survey.modules.find(program_id, of_module)
                code = int(events.metadata[row])
                said = plane.event_metadata[code].name if code >= 0 else ""
                hlo = compiled.instruction(name) if compiled else parse_instruction(said)
                if hlo and is_product(hlo, None, hlo.op_name):
                    tally.found[i] = hlo, f"{hlo.op_name} {name}"
            of_line = np.array([known[k] for k in keys], np.int64)
            tally.add(of_line, events.start_ps[at], events.duration_ps[at])
            if len(events) and events.start_ps[-1] >= tally.until:
                break


def _named_lines(survey: HostSurvey, number: int) -> Iterator[tuple[Plane, Iterator[tuple[EventBatch, Flags]]]]:
    """Yield the plane and the events of each line of the host's device of that position, and which are its own."""
    if survey.cpu and survey.cpu_position is not None:
        plane = survey.host.trace.planes[survey.cpu_position]
        yield from ((plane, iter([(x.events, x.is_op & (x.ordinal == number))])) for x in survey.cpu.lines)
        return
    timeline = survey.device_timelines[number][1]
    for position in [i for i, p in survey.planes.items() if p.timeline is timeline and not p.is_sparse_core]:
        plane = survey.host.trace.planes[position]
        for line in plane.lines:
            if line.name.startswith(STREAM_PREFIX):
                batches = survey.host.trace.batches(plane, line)
                yield plane, ((b.moved(survey.host.clock_offset_ps), np.ones(len(b), bool)) for b in batches)


def _rows_and_columns(hlo: Instruction) -> tuple[int, int] | None:
    leaf = hlo.shape.leaves[0] if hlo.shape.leaves else hlo.shape
    sizes = [d for d in leaf.dimensions if d is not None]
    return (math.prod(sizes[:-1]), sizes[-1]) if len(sizes) > 1 else None


def _rows(module: str, products: Sequence[_Product], executions: int) -> _Rows:
    """The usual rows of a program's layers and those of its head, if it has either; of one that trains, neither.

    The layers have the fewest rows of which there are enough products: experts multiply each token several times, and
    attention multiplies it for each of its heads. A head without a name is the last product, with copies of it, if it
    runs once and no earlier one has its shape.
    """
    if any(_BACKWARD.search(p.names) for p in products):
        return _Rows(None, None)
    heads = [p for p in products if _HEAD.search(f"{p.names} {module}")]
    others = [p for p in products if p not in heads]
    if not heads and others:
        size = others[-1].rows, others[-1].columns
        alike = [p for p in others if (p.rows, p.columns) == size]
        is_once = all(p.events <= executions for p in alike)
        heads = alike if is_once and alike == others[-len(alike) :] else []
    events: Counter[int] = Counter()
    for p in others:
        events[p.rows] += 0 if p in heads else p.events
    layers = min((rows for rows, n in events.items() if n >= _FEWEST * executions), default=None)
    if layers is None:
        is_named = any(_HEAD.search(f"{p.names} {module}") for p in heads)
        return _Rows(None, _most_time(heads) if is_named else None)
    return _Rows(layers, _most_time(heads))


def _most_time(products: Sequence[_Product]) -> int | None:
    time: Counter[int] = Counter()
    for p in products:
        time[p.rows] += p.time_ps
    return time.most_common(1)[0][0] if time else None
