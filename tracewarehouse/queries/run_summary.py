"""Sums a run up: its facts and main numbers, what dominates its steps, its flags, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from tracewarehouse.ingest.devices.flags import FLAGS
from tracewarehouse.queries.read_only import literal
from tracewarehouse.queries.result import QueryResult

Query = Callable[[str], QueryResult]

LIKELY = 0.5
"""An inferred mesh that is less probable is not told as one."""

_SAVINGS = """
SELECT phase, metric, change, saved, is_upper_bound FROM macros.step_savings([{run}]) ORDER BY phase, saved DESC, change
"""

_EVENNESS = """
SELECT phase, devices, compute_imbalance, busiest_device, layers, odd_layer, odd_difference
FROM macros.evenness([{run}])
WHERE phase IS DISTINCT FROM 'outside' ORDER BY phase
"""


@dataclass(frozen=True)
class Number:
    """One main number of a run; see the macro run_tiles.

    Attributes:
        metric: the metric that it comes from.
        part: the clock or the phase that it belongs to; empty if there is only one.
        value: the number; None without data.
        unit: its unit; empty for a count.
        detail: a line that says more.
    """

    metric: str
    name: str
    part: str
    value: float | None
    unit: str
    detail: str | None

    @property
    def label(self) -> str:
        """Name and part."""
        return f"{self.name}, {self.part_in_words}" if self.part else self.name

    @property
    def part_in_words(self) -> str:
        """The part as people read it."""
        return "outside steps" if self.part == "outside" else self.part


@dataclass(frozen=True)
class StepShare:
    """The share of one part in the time of a phase's steps; see the macro step_shares.

    `position` is the order of drawing, `median_ms` the whole median step, `copied_gbps` what awaited copies move.
    """

    phase: str
    part: str
    position: int
    share: float | None
    mean_ms: float
    steps: int
    median_ms: float | None = None
    copied_gbps: float | None = None


@dataclass(frozen=True)
class Saving:
    """What would make a phase's steps shorter, and by which share, or at most which; see the macro step_savings."""

    phase: str
    metric: str
    change: str
    saved: float
    is_upper_bound: bool


@dataclass(frozen=True)
class Evenness:
    """Whether devices and layers take equally long in a phase; see the macro evenness."""

    phase: str | None
    devices: int
    compute_imbalance: float | None
    busiest_device: int | None
    layers: int | None
    odd_layer: int | None
    odd_difference: float | None


@dataclass(frozen=True)
class RunFlag:
    """One quality flag of a run: its name, the host that it concerns or None, its meaning, and the details."""

    flag: str
    host: str | None
    meaning: str
    detail: str

    def __str__(self) -> str:
        where = f"{self.host}: " if self.host else ""
        return f"{self.meaning} Here: {where}{self.detail}" if self.meaning else f"{where}{self.detail}"


@dataclass(frozen=True)
class Missing:
    """A metric of which a run has no row, with the reason; see `metrics.missing`."""

    metric: str
    version: int
    unmet: str | None
    reason: str


@dataclass(frozen=True)
class RunSummary:
    """A run in short.

    Attributes:
        facts: what ran, on what, and how its steps were found: the columns of the macro run_facts.
        numbers: the main numbers, in order.
        steps: the parts of a step's time, the phase with the longest total first and its largest part first.
        savings: what would make its steps shorter, by phase, the most helpful first.
        evenness: whether devices and layers take equally long, by phase.
        flags: the reasons to read the numbers with care.
        missing: the metrics without a row.
    """

    facts: dict[str, Any]
    numbers: list[Number]
    steps: list[StepShare]
    savings: list[Saving]
    evenness: list[Evenness]
    flags: list[RunFlag]
    missing: list[Missing]

    def to_dict(self) -> dict[str, Any]:
        """The summary as values that JSON can hold."""
        return asdict(self)

    @property
    def reasons(self) -> dict[str, list[str]]:
        """The missing metrics by reason, the reason of most metrics first."""
        ordered = sorted(self.missing, key=lambda m: m.reason)
        grouped = {reason: [m.metric for m in missing] for reason, missing in groupby(ordered, key=lambda m: m.reason)}
        return dict(sorted(grouped.items(), key=lambda g: (-len(g[1]), g[0])))


def summarise(query: Query, run_id: str) -> RunSummary:
    """Read the summary of one run; `query` runs SQL on a warehouse that has the run."""
    run = literal(run_id)
    [facts] = query(f"SELECT * FROM macros.run_facts([{run}])").dicts()
    flags = query(f'SELECT flag, host, detail FROM main.quality_flags WHERE run_id = {run} ORDER BY "index"')
    missing = query(
        f"SELECT metric, version, unmet, reason FROM metrics.missing WHERE run_id = {run} ORDER BY metric, version"
    )
    return RunSummary(
        facts,
        main_numbers(query, run_id),
        step_shares(query, run_id),
        [Saving(*row) for row in query(_SAVINGS.format(run=run)).rows()],
        [Evenness(*row) for row in query(_EVENNESS.format(run=run)).rows()],
        [RunFlag(flag, host, FLAGS.get(flag, ""), detail) for flag, host, detail in flags.rows()],
        [Missing(*row) for row in missing.rows()],
    )


def main_numbers(query: Query, run_id: str) -> list[Number]:
    """The run's main numbers; one without data has no value."""
    rows = query(
        "SELECT metric, name, part, value, unit, detail "
        f"FROM macros.run_tiles([{literal(run_id)}]) ORDER BY position, part DESC"
    )
    return [Number(**row) for row in rows.dicts()]


def step_shares(query: Query, run_id: str) -> list[StepShare]:
    """The parts of the time of the run's steps, the phase with the longest total first and its largest part first."""
    rows = query(
        "SELECT phase, part, position, share, mean_ms, steps, median_ms, copied_gbps "
        f"FROM macros.step_shares([{literal(run_id)}]) "
        "ORDER BY SUM(mean_ms * steps) OVER (PARTITION BY phase) DESC, phase, share DESC, part"
    )
    return [StepShare(**row) for row in rows.dicts()]


def title(facts: Mapping[str, Any]) -> str:
    """The name of a run as a heading; that of a predicted one says so."""
    return f"{facts['name']} (predicted)" if facts["origin"] == "predicted" else str(facts["name"])


def labelled(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The known facts of a run, as labels and texts for people."""
    labels = {
        "Model": _joined(facts["model"], _counted(facts["layers"], "layer"), facts["dtype"]),
        "Requests": _joined(
            _counted(facts["batch_size"], "sequence"),
            f"{facts['input_length']} tokens in" if facts["input_length"] else None,
            f"{facts['output_length']} out" if facts["output_length"] else None,
        ),
        "Devices": _devices(facts),
        "Mesh": _mesh(facts),
        "Steps": _steps(facts),
        "Layers": _layers(facts["layer_coverage"]),
        "Captured": _captured(facts),
        "Framework": facts["framework"],
        "Run": facts["run_id"],
    }
    return [(label, text) for label, text in labels.items() if text]


def _captured(facts: Mapping[str, Any]) -> str | None:
    if facts["origin"] == "compiled":
        return "no, a compiled program alone, which has no times"
    if facts["origin"] == "predicted":
        return f"no, predicted from compiled programs: nothing ran; {facts['events']:,} events"
    return _joined(_date(facts["captured_ns"]), f"{facts['events']:,} events")


def _devices(facts: Mapping[str, Any]) -> str:
    kind = facts["device_kind"] or {"tpu": "TPU", "gpu": "GPU", "cpu": "CPU"}.get(facts["backend"], "device")
    chips = None
    if facts["backend"] == "tpu":
        captured = facts["captured_chips"]
        chips = _counted(facts["chips"], "chip")
        if chips and captured < facts["chips"]:
            chips = f"{captured} of {chips} captured"
    return _joined(
        f"{facts['devices']} x {kind}" if facts["devices"] else "none", chips, _counted(facts["hosts"], "host")
    )


def _steps(facts: Mapping[str, Any]) -> str:
    if not facts["steps"]:
        return "none known"
    timed = "" if facts["timed_steps"] == facts["steps"] else f", {facts['timed_steps']} with a known time"
    programs = {"program": "program that begins each", "told program": "program that --step names"}
    return f"{facts['steps']}{timed}, found by the {programs.get(facts['steps_source'], facts['steps_source'])}"


def _mesh(facts: Mapping[str, Any]) -> str | None:
    mesh: str | None = facts["mesh"]
    if facts["mesh_source"] != "inferred":
        return mesh
    sure = f"{100 * facts['mesh_confidence']:.0f} %"
    if facts["mesh_confidence"] < LIKELY:
        guess = (mesh or "").replace("?=", "an unnamed axis=")
        return f"not known (the best guess, {guess}, is {sure} sure; give it with --mesh at ingest)"
    return f"{mesh} (inferred, {sure} sure; give it with --mesh at ingest)"


def _layers(coverage: float | None) -> str | None:
    if coverage is None or coverage >= 1:
        return None if coverage is None else "known for all op time"
    return f"known for at least {math.floor(100 * coverage)} % of each phase's op time"


def _date(captured_ns: int | None) -> str | None:
    if captured_ns is None:
        return None
    try:
        return f"{datetime.fromtimestamp(captured_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):  # a year that no calendar has
        return None


def _counted(count: int | None, noun: str) -> str | None:
    return None if count is None else f"{count} {noun}{'' if count == 1 else 's'}"


def _joined(*texts: str | None) -> str:
    return ", ".join(t for t in texts if t)
