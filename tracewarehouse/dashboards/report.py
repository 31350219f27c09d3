"""Makes reports about runs, a comparison or a study, which become a page, a digest or a set of files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tracewarehouse.comparison.compare import SPLITS, comparing, largest_changes, referenced_run_ids
from tracewarehouse.dashboards import words
from tracewarehouse.dashboards.figure import Figure, NothingToDraw
from tracewarehouse.dashboards.registry import CHARTS, FIRST, RUN_CHARTS, STUDY_CHARTS, Chart
from tracewarehouse.dashboards.theme import PART_COLORS
from tracewarehouse.dashboards.words import quantity
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.queries.read_only import literal
from tracewarehouse.queries.result import CLOCKS
from tracewarehouse.queries.run_summary import StepShare, labelled, step_shares, title

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse


_VIRTUAL = "Recorded on virtual CPU devices: what ran and what moved is real, the times are not a TPU's."
_NO_STEP = "No step of a device is known, so nothing tells what a step consists of."
_MOST_SHARES = 6
"""The words of a study say as much of communication; its chart has the rest."""


@dataclass(frozen=True)
class Values:
    """The values of one metric: its name, its meaning, and the values as texts in columns."""

    metric: str
    description: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True)
class StepBar:
    """The mean step of a phase as one bar.

    Attributes:
        heading: phase, time and number of steps.
        parts: for each part that takes any time, its name, its share, where it begins as a share of the step, its time
            as a text, and its colour.
    """

    heading: str
    parts: list[tuple[str, float, float, str, str]]


@dataclass
class Section:
    """A part of a report, such as the part about one run.

    Attributes:
        key: a name that is unique in the report; part of links.
        title: heading.
        facts: what ran, as labels and texts.
        bars: the mean step of each phase.
        words: the main findings, a sentence each.
        evidence: for some of these sentences, the name of the chart that shows it.
        answers: what everyone asks of a run, as labels and texts.
        unknown: what cannot be known, and why.
        notes: what a reader must know before trusting a number.
        tiles: label, value with its unit, and a line that says more.
        figures: the charts.
        absent: names of the charts that have nothing to draw, with the reasons.
        values: metric values.
    """

    key: str
    title: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    bars: list[StepBar] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    evidence: dict[str, str] = field(default_factory=dict)
    answers: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tiles: list[tuple[str, str, str]] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    absent: list[tuple[str, str]] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)

    @property
    def shown(self) -> dict[str, str]:
        """The titles of the charts by their names."""
        return {f.name: f.title for f in self.figures}

    @property
    def first(self) -> list[Figure]:
        """The charts that belong to what the section says first."""
        return [f for f in self.figures if f.name in FIRST]

    @property
    def plain(self) -> list[Figure]:
        """The charts below the numbers."""
        return [f for f in self.figures if f.name not in FIRST and not f.is_folded]

    @property
    def expert(self) -> list[Figure]:
        """The charts that are folded."""
        return [f for f in self.figures if f.is_folded]

    @property
    def unknown_metrics(self) -> int:
        """How many metrics cannot be known."""
        return sum(len(metrics.split(", ")) for metrics, _ in self.unknown)


@dataclass(frozen=True)
class Report:
    """A title and sections."""

    title: str
    sections: list[Section]

    def figures(self) -> list[tuple[str, Figure]]:
        """Every chart with a name that is unique in the report."""
        many = len(self.sections) > 1
        return [(f"{s.key}-{f.name}" if many else f.name, f) for s in self.sections for f in s.figures]

    def content(self) -> dict[str, Any]:
        """The whole report, as values for JSON."""
        return {
            "title": self.title,
            "sections": [
                {
                    "key": s.key,
                    "title": s.title,
                    "facts": dict(s.facts),
                    "words": s.words,
                    "answers": dict(s.answers),
                    "unknown": [{"metrics": m, "reason": r} for m, r in s.unknown],
                    "notes": s.notes,
                    "numbers": [{"label": label, "value": value, "detail": more} for label, value, more in s.tiles],
                    "charts": [f.content() for f in s.figures],
                    "absent": dict(s.absent),
                    "values": {v.metric: [dict(zip(v.columns, row, strict=True)) for row in v.rows] for v in s.values},
                }
                for s in self.sections
            ],
        }


def run_report(warehouse: Warehouse, references: Sequence[str], charts: Sequence[str] = ()) -> Report:
    """Make the report about runs, with a section for each.

    Args:
        references: the runs, by id or name.
        charts: draw only the charts of these names; if empty, all of a run.
    """
    names = _chosen(charts, RUN_CHARTS)
    sections = []
    for run_id in dict.fromkeys(warehouse.run(r).run_id for r in references):
        section = run_in_short(warehouse, run_id)
        for name in names:
            _add(section, name, warehouse, run_id)
        section.values = _stored_values(warehouse, run_id)
        sections.append(section)
    return Report(sections[0].title if len(sections) == 1 else f"{len(sections)} runs", sections)


def comparison_report(warehouse: Warehouse, run: str, against: str, *, is_unlike_allowed: bool = False) -> Report:
    """Make the report about what changed from one run to another.

    Args:
        run: the run, or several separated by commas.
        against: the run or runs that it is compared with.
        is_unlike_allowed: compare them even if their workloads differ.
    """
    ours, theirs = referenced_run_ids(warehouse, run), referenced_run_ids(warehouse, against)
    with comparing(warehouse, run, against, is_unlike_allowed=is_unlike_allowed) as comparison:
        compared, causes = comparison.values().dicts(), comparison.steps("part").dicts()
        unknown = comparison.unknown
    changed = Section("comparison", "What changed")
    for split in SPLITS:
        _add(changed, "differences", warehouse, ours, theirs, split)
    _add(changed, "mean-layers", warehouse, [*ours, *theirs])
    changed.words = words.changes(causes)
    changed.words.append(words.verdicts([row["verdict"] for row in compared]))
    if unknown:
        named = ", ".join(map(words.plain, unknown))
        changed.words.append(f"Not known for every run, so the workloads may differ: {named}.")
    changed.tiles = [
        (words.measured(row["metric"], row["dimensions"]), of["run"], f"{of['change']} from {of['baseline']}")
        for row in largest_changes(compared)
        for of in [dict(zip(_COMPARED, _compared_cells(row), strict=True))]
    ]
    changed.values = _compared_values(warehouse, compared)
    sections = [changed]
    for run_id in dict.fromkeys((*ours, *theirs)):
        summary = warehouse.summary(run_id)
        own = Section(run_id, title(summary.facts), labelled(summary.facts), _step_bars(summary.steps))
        changed.bars += [replace(bar, heading=f"{own.title}. {bar.heading}") for bar in own.bars]
        own.words = [sentence for sentence, _ in words.findings(summary)]
        own.notes = [str(f) for f in summary.flags]
        sections.append(own)
    return Report(f"{run} against {against}, the baseline", sections)


def study_report(
    warehouse: Warehouse,
    query: str | Sequence[str],
    charts: Sequence[str] = (),
    refused: Sequence[tuple[str, str]] = (),
) -> Report:
    """Make the report about many runs together: which configuration is best for whom, and why.

    Args:
        query: a SELECT with a column run_id, such as `SELECT run_id FROM main.runs WHERE model = 'llama'`, or the runs
            by id or name.
        charts: draw only the charts of these names; if empty, all over runs.
        refused: configurations of the study that have no run, each with the reason why.
    """
    names = _chosen(charts, STUDY_CHARTS)
    if isinstance(query, str):
        run_ids = _queried(warehouse, query)
    else:
        run_ids = list(dict.fromkeys(warehouse.run(r).run_id for r in query))
    ids = literal(run_ids)
    points = warehouse.query(
        f"""SELECT name, workload, label, batch_size, device_kind, chips, ttft_ms, tpot_ms, tokens_per_s_per_user,
                   tokens_per_s_per_chip, usd_per_million_tokens, origin, is_fitting, memory_bytes, capacity_bytes,
                   backend
            FROM macros.study_points({ids}) ORDER BY workload, place"""
    ).dicts()
    best = warehouse.query(f"SELECT * FROM macros.study_choices({ids}) ORDER BY workload, position").dicts()
    section = Section("study", f"Study of {len(run_ids)} runs")
    if len(workloads := {str(p["workload"]) for p in points}) == 1:
        section.facts.append(("Workload", workloads.pop()))
    if len(machines := {(p["chips"], p["device_kind"]) for p in points if p["chips"] and p["device_kind"]}) == 1:
        section.facts.append(("Chips", "{} x {}".format(*machines.pop())))
    if predicted := sum(p["origin"] == "predicted" for p in points):
        part = f"{predicted} of {len(points)} runs: p" if predicted < len(points) else "P"
        section.words = [f"{part}{words.NOT_PREDICTED[1:]}."]
    section.words += words.choices(best)
    for name in names:
        _add(section, name, warehouse, run_ids)
    for figure in section.figures:
        if figure.name == "study-parts":
            section.words += words.communication_shares(figure.rows)[:_MOST_SHARES] + words.early_weights(figure.rows)
    section.words += words.unfitting(points)
    if any(p["backend"] == "cpu" for p in points):
        section.notes.append(_VIRTUAL)
    columns = tuple(c for c in points[0] if c not in ("memory_bytes", "capacity_bytes", "backend"))
    rows = [tuple(_shown(p[c], c) for c in columns) for p in points]
    section.values = [Values("runs", "The runs of the study with their main numbers.", columns, rows)]
    if refused:
        section.words.append(f"{len(refused)} more configurations cannot be; the last table says why.")
        told = Values("refused", "Configurations without a run, and why.", ("configuration", "reason"), list(refused))
        section.values.append(told)
    return Report(section.title, [section])


def _queried(warehouse: Warehouse, query: str) -> list[str]:
    asked = warehouse.query(query)
    if "run_id" not in asked.columns:
        raise WarehouseError(f"a study needs a query with a column run_id; this one has {', '.join(asked.columns)}")
    known = {r.run_id for r in warehouse.lake.runs()}
    run_ids = [r for r in dict.fromkeys(str(row["run_id"]) for row in asked.dicts()) if r in known]
    if not run_ids:
        raise WarehouseError("the query of the study gives no run; `tw runs` lists all runs")
    return run_ids


def run_in_short(warehouse: Warehouse, run_id: str) -> Section:
    """The section of a report about a run, without charts and values.

    Args:
        run_id: the run, by its id.
    """
    summary = warehouse.summary(run_id)
    section = Section(run_id, title(summary.facts), labelled(summary.facts) + _peaks(warehouse, summary.facts))
    section.answers = words.answers(summary)
    section.bars = _step_bars(summary.steps)
    section.evidence = dict(words.findings(summary))
    section.words = list(section.evidence)
    if not section.words:
        section.words = ["Compiled, not run: it has no times." if summary.facts["origin"] == "compiled" else _NO_STEP]
    section.unknown = words.unknown(summary)
    if summary.facts["backend"] == "cpu":
        section.notes.append(_VIRTUAL)
    section.notes += [str(f) for f in summary.flags]
    clocks = warehouse.query(f"SELECT note FROM ({CLOCKS}) WHERE run_id = {literal(run_id)}")
    section.notes += [note for (note,) in clocks.rows()]
    section.tiles = [
        (n.label, quantity(n.value, n.unit), n.detail or "") for n in summary.numbers if n.value is not None
    ]
    return section


def step_in_short(warehouse: Warehouse, run_id: str) -> Section:
    """Where a step of a run goes, in its bars and one sentence: a run among others."""
    steps = step_shares(warehouse.query, run_id)
    return Section(run_id, run_id, bars=_step_bars(steps), words=[words.takes(steps) if steps else _NO_STEP])


def _step_bars(steps: Sequence[StepShare]) -> list[StepBar]:
    bars = []
    for phase, of_phase in groupby(steps, key=lambda s: s.phase):
        shares = sorted(of_phase, key=lambda s: s.position)
        whole = sum(s.mean_ms for s in shares)
        parts, begin = [], 0.0
        for share in shares:
            parts.append(
                (share.part, share.share or 0.0, begin, quantity(share.mean_ms, "ms"), PART_COLORS[share.part])
            )
            begin += share.share or 0.0
        steps_said = "one step" if shares[0].steps == 1 else f"{shares[0].steps} steps"
        step = f"A {phase} step" if phase else "A step"
        heading = f"{step}: {quantity(whole, 'ms', 4)}, mean over devices, of {steps_said}{words.median_apart(shares)}"
        bars.append(StepBar(heading, parts))
    return bars


def _chosen(names: Sequence[str], charts: Mapping[str, Chart]) -> list[str]:
    if unknown := sorted(set(names) - charts.keys()):
        raise WarehouseError(f"no chart {', '.join(unknown)} here; there are {', '.join(charts)}")
    return [name for name in charts if name in (names or charts)]


def _add(section: Section, name: str, *subject: Any) -> None:
    try:
        section.figures.append(CHARTS[name](*subject))
    except NothingToDraw as absence:
        section.absent.append((f"{name}-{subject[-1]}" if name == "differences" else name, str(absence)))


def _peaks(warehouse: Warehouse, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = warehouse.query(
        f"""SELECT max(peak_flops_per_s), max(peak_hbm_gbps), max(peak_ici_gbps), any_value(peak_source)
            FROM main.devices WHERE run_id = {literal(facts["run_id"])}"""
    ).rows()
    flops, hbm, ici, source = rows[0]
    rates = ((flops, "FLOP/s", "matrix units"), (hbm, "GB/s", "memory"), (ici, "GB/s", "links"))
    known = [f"{what} {quantity(rate, unit)}" for rate, unit, what in rates if rate]
    source = {"both": "capture and hardware table"}.get(source, source)
    if known:
        return [("Peaks", f"{', '.join(known)} ({source})")]
    has_none = facts["backend"] == "cpu"
    return [
        ("Peaks", "none, the devices are virtual" if has_none else "not known; name the chip with --device at ingest")
    ]


def _stored_values(warehouse: Warehouse, run_id: str) -> list[Values]:
    rows = warehouse.query(
        f"""SELECT v.metric, v.version, v.dimensions, v.value, v.unit, c.description
            FROM main.metric_values AS v LEFT JOIN metrics.catalog AS c USING (metric, version)
            WHERE v.run_id = {literal(run_id)} ORDER BY v.metric, v.version, v.dimensions"""
    ).rows()
    return _grouped(
        ("version", "of", "value"),
        (
            (metric, about or "", (str(version), _dimensions(dimensions), quantity(value, unit)))
            for metric, version, dimensions, value, unit, about in rows
        ),
    )


def _compared_values(warehouse: Warehouse, compared: list[dict[str, Any]]) -> list[Values]:
    about = dict(
        warehouse.query("SELECT metric, max_by(description, version) FROM metrics.catalog GROUP BY metric").rows()
    )

    return _grouped(_COMPARED, ((r["metric"], about.get(r["metric"], ""), _compared_cells(r)) for r in compared))


_COMPARED = ("of", "baseline", "run", "change", "verdict")


def _compared_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    change = "" if row["relative"] is None else f"{100 * row['relative']:+.1f} %"
    sides = (quantity(row[side], row["unit"]) for side in ("baseline", "value"))
    return (_dimensions(row["dimensions"]), *sides, change, row["verdict"])


def _grouped(columns: tuple[str, ...], rows: Iterable[tuple[str, str, tuple[str, ...]]]) -> list[Values]:
    """The values by metric, from each one's metric, the description of the metric, and its cells."""
    grouped: dict[str, Values] = {}
    for metric, about, cells in rows:
        grouped.setdefault(metric, Values(metric, about, columns, [])).rows.append(cells)
    return list(grouped.values())


def _dimensions(text: str) -> str:
    return ", ".join(f"{k} {v}" for k, v in json.loads(text).items() if v is not None)


def _shown(value: Any, column: str) -> str:
    if isinstance(value, float):
        return quantity(value, "ms" if column.endswith("_ms") else "")
    return "" if value is None else str(value)
