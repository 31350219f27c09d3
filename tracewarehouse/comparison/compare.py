"""Compares the stored metric values of runs with those of other runs, and shows what made steps longer or shorter.

The macros compare_values and compare_steps in sql/compare compute the numbers; this module finds the runs to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tracewarehouse.definitions.definition import UNSTORED
from tracewarehouse.ingest.errors import MetricError, WarehouseError
from tracewarehouse.queries.read_only import literal
from tracewarehouse.queries.result import QueryResult

if TYPE_CHECKING:
    from tracewarehouse.comparison.baseline import Baseline
    from tracewarehouse.warehouse import Warehouse

Query = Callable[[str], QueryResult]

WORKLOAD = ("model", "model_family", "dtype", "batch_size", "input_length", "output_length", "num_layers")
"""Columns of main.runs. The numbers of two runs are comparable only if these are equal."""

Split = Literal["part", "layer", "category", "collective", "operation"]
SPLITS: tuple[Split, ...] = get_args(Split)
"""The ways to divide the time of a step."""

_LEAST_CHANGE = 0.001
"""Smaller changes, as shares of the baseline, read +0.0 %."""

VERDICTS = (
    "worse", "better", "unknown", "different", "not in run", "not in baseline", "not judged", "noise", "same"
)  # fmt: skip
"""What macros.compare_values says of a value, the most telling first."""


@dataclass(frozen=True)
class Sides:
    """The runs of a comparison, by run id.

    Attributes:
        runs: the runs to compare.
        baselines: the runs to compare them with.
        run_repeats: the runs and all other runs of the same configuration; they show how much equal runs vary.
        baseline_repeats: the same for the baselines.
    """

    runs: tuple[str, ...]
    baselines: tuple[str, ...]
    run_repeats: tuple[str, ...]
    baseline_repeats: tuple[str, ...]


class Comparison:
    """A comparison of some runs with other runs.

    Attributes:
        sides: the runs on both sides.
        unknown: columns of `WORKLOAD` that are known for some of the runs only; all columns, if none is known for any.
        replaced: metrics of which a baseline file holds only older versions, as `name version`.
    """

    def __init__(self, query: Query, sides: Sides, unknown: Sequence[str], replaced: Sequence[str] = ()) -> None:
        self.sides = sides
        self.unknown = tuple(unknown)
        self.replaced = tuple(replaced)
        self._query = query

    def predicted_sides(self) -> list[str]:
        """Return which of baseline and run is predicted, not measured, be it a run of the warehouse or of a file."""
        found = self._query("SELECT run_id FROM main.runs WHERE origin = 'predicted'")
        predicted = {run_id for (run_id,) in found.rows()}
        sides = (("baseline", self.sides.baseline_repeats), ("run", self.sides.run_repeats))
        return [name for name, runs in sides if predicted.intersection(runs)]

    def values(self, metrics: Sequence[str] = (), by: str | None = None) -> QueryResult:
        """Return rows of macros.compare_values, sorted by metric and dimensions.

        Args:
            metrics: compare only these metrics; if empty, all stored metrics.
            by: compare only metrics that have this dimension, such as phase, axis or layer, and sort by it.
        """
        catalog = self.require(metrics)
        if across := sorted(set(metrics) & {r["metric"] for r in catalog if r["scope"] == "warehouse"}):
            raise MetricError(
                f"{', '.join(across)} compares runs itself, so no run has a value of it to compare; "
                f"`tw metrics values -m {across[0]}` shows it"
            )
        living = {r["metric"] for r in catalog if r["status"] not in UNSTORED}
        if dead := sorted(set(metrics) - living):
            raise MetricError(
                f"{', '.join(dead)} is deprecated or another tool's, so no run has a value of it to compare; "
                f"`tw metrics values -m {dead[0]}` still shows it, and `tw metrics show {dead[0]}` says what to use"
            )
        grains = [r["grain"].split(", ") for r in catalog if r["scope"] == "run"]
        dimensions = sorted({d for grain in grains for d in grain} - {"run_id", "step"})
        if by is not None and by not in dimensions:
            raise MetricError(f"no metric has the dimension {by!r}; there are {', '.join(dimensions)}")
        conditions = [f"c.metric IN ({', '.join(map(literal, metrics or sorted(living)))})"]
        order = "c.metric, c.dimensions"
        if by is not None:
            conditions.append(f"json_exists(c.dimensions, '$.{by}')")
            order = f"try_cast(c.dimensions ->> '$.{by}' AS DOUBLE), c.dimensions ->> '$.{by}', {order}"
        s = self.sides
        sides = ", ".join(map(literal, (s.runs, s.baselines, s.run_repeats, s.baseline_repeats)))
        return self._query(
            f"SELECT * FROM macros.compare_values({sides}) AS c WHERE {' AND '.join(conditions)} ORDER BY {order}"
        )

    def require(self, metrics: Iterable[str]) -> list[dict[str, Any]]:
        """Raise a MetricError if a metric does not exist; return the rows of metrics.catalog."""
        catalog = self._query("SELECT metric, grain, scope, status FROM metrics.catalog").dicts()
        if unknown := sorted(set(metrics) - {r["metric"] for r in catalog}):
            names = sorted({r["metric"] for r in catalog})
            close = [c for u in unknown for c in get_close_matches(u, names, n=1)]
            hint = f"did you mean {' or '.join(close)}?" if close else "`tw metrics list` shows all"
            raise MetricError(f"no metric {', '.join(unknown)}; {hint}")
        return catalog

    def steps(self, split: Split | None = None) -> QueryResult:
        """Return rows of macros.compare_steps, of one of `SPLITS` or all; the largest difference comes first."""
        where = f"WHERE c.split = {literal(split)}" if split else ""
        return self._query(
            f"SELECT * FROM macros.compare_steps({literal(self.sides.runs)}, {literal(self.sides.baselines)}) AS c "
            f"{where} ORDER BY c.phase, c.split, abs(c.difference_us) DESC, c.name"
        )


@contextmanager
def comparing(
    warehouse: Warehouse, runs: str | Sequence[str], against: str | Sequence[str], *, is_unlike_allowed: bool = False
) -> Iterator[Comparison]:
    """Open a comparison of runs with other runs.

    Args:
        runs: one run, in any form that `Warehouse.run` accepts, or several, as a list or as one comma-separated text.
        against: the same, or a baseline file (see `tracewarehouse.comparison.baseline`).
        is_unlike_allowed: compare the runs even if their workloads differ.

    Raises:
        WarehouseError: a run or the file does not exist.
        MetricError: the workloads differ, or one side has predicted runs and others.
    """
    from tracewarehouse.comparison.baseline import open_with, read_baseline

    run_ids = referenced_run_ids(warehouse, runs)
    path = _file(warehouse, against)
    baseline = read_baseline(path) if path else None
    baseline_ids = tuple(baseline.run_ids) if baseline else referenced_run_ids(warehouse, against)
    with open_with(warehouse, baseline) if baseline else nullcontext(warehouse.query) as query:
        unknown = _check_alike(query, run_ids, baseline_ids, is_unlike_allowed=is_unlike_allowed)
        replaced = _replaced(warehouse, baseline) if baseline else []
        sides = _with_repeats(query, run_ids, baseline_ids)
        if not baseline:
            query = partial(warehouse.query_runs, {*sides.run_repeats, *sides.baseline_repeats})
        yield Comparison(query, sides, unknown, replaced)


def referenced_run_ids(warehouse: Warehouse, references: str | Sequence[str]) -> tuple[str, ...]:
    """Return the run ids of one run, of a list of runs, or of a comma-separated text; each id once."""
    if isinstance(references, str):
        try:
            return (warehouse.run(references).run_id,)
        except WarehouseError:
            if "," not in references:
                raise
            references = [r.strip() for r in references.split(",")]
    known = {run.run_id for run in warehouse.lake.runs()}  # listed once, as a study names hundreds
    return tuple(dict.fromkeys(r if r in known else warehouse.run(r).run_id for r in references))


@dataclass(frozen=True)
class Limits:
    """Limits on how much worse than the baseline a value may be.

    Attributes:
        median: how much worse the median over steps and repeats may be, as a share of the baseline.
        tail: the same for the 90th percentile on the worse side.
        is_noise_excused: ignore a loss whose verdict is noise.
        is_absence_excused: pass even if one side lacks a value.
        differences: by metric, and in its unit, how much worse median and tail may be, whatever share of the baseline
            that is. If the baseline is 0, every loss is an infinite share, so only this limit can allow it.
    """

    median: float = 0.05
    tail: float = 0.1
    is_noise_excused: bool = False
    is_absence_excused: bool = False
    differences: Mapping[str, float] = field(default_factory=dict)

    def allow(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of macros.compare_values is within the limits; a row with NaN never is."""
        allowed = self.differences.get(row["metric"])
        worse = 1 if row["polarity"] == "lower_is_better" else -1
        return all(
            row[loss] <= share or (allowed is not None and worse * (row[value] - row[baseline]) <= allowed)
            for loss, share, value, baseline in (
                ("loss", self.median, "value", "baseline"),
                ("tail_loss", self.tail, "tail", "baseline_tail"),
            )
        )


@dataclass(frozen=True)
class Check:
    """The result of a check, with rows of macros.compare_values.

    Attributes:
        checked: values with a polarity that both sides have.
        worse: the checked values that are worse by more than the limits allow.
        absent: values with a polarity that only one side has.
        excused: checked values that are worse than the limits allow, but only by noise.
    """

    checked: list[dict[str, Any]] = field(default_factory=list)
    worse: list[dict[str, Any]] = field(default_factory=list)
    absent: list[dict[str, Any]] = field(default_factory=list)
    excused: list[dict[str, Any]] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)

    @property
    def from_zero(self) -> list[dict[str, Any]]:
        """The worse values whose baseline is 0, so that the loss cannot be given as a share."""
        return [r for r in self.worse if inf in (r["loss"], r["tail_loss"])]

    @property
    def is_passed(self) -> bool:
        """Whether something was checked, nothing is worse than allowed and, unless excused, nothing is absent."""
        return bool(self.checked) and not self.worse and (self.limits.is_absence_excused or not self.absent)


def largest_changes(rows: Sequence[Mapping[str, Any]], most: int = 10) -> list[Mapping[str, Any]]:
    """Return the rows of macros.compare_values with the largest changes beyond the noise, one row per metric.

    A share changes by its difference, so that 0.3 % instead of 0.1 % is little; all else changes by a part of the
    baseline. Changes that are known to be better or worse come first, then those whose noise is unknown. Layers are
    left out, because they repeat what the metrics of a phase say.
    """
    changed = [
        (_change(row), row)
        for row in rows
        if row["verdict"] in ("worse", "better", "unknown")
        and row["relative"] is not None
        and '"layer":' not in row["dimensions"]
    ]
    changed = [(change, row) for change, row in changed if change >= _LEAST_CHANGE]
    changed.sort(key=lambda c: (c[1]["verdict"] == "unknown", -c[0], c[1]["metric"], c[1]["dimensions"]))
    first = {row["metric"]: row for _, row in reversed(changed)}
    return [row for _, row in changed if row is first[row["metric"]]][:most]


def _change(row: Mapping[str, Any]) -> float:
    scale = {"ratio": 1.0, "%": 0.01}.get(row["unit"])
    if scale is None or max(row["value"], row["baseline"]) * scale > 1:  # a ratio, but of no whole
        return abs(float(row["relative"]))
    return abs(float(row["value"] - row["baseline"])) * scale


def check(comparison: Comparison, metrics: Sequence[str] = (), limits: Limits | None = None) -> Check:
    """Check whether runs are worse than their baseline, by some metrics or all."""
    outcome = Check(limits=limits or Limits())
    rows = comparison.values(metrics).dicts()
    comparison.require(outcome.limits.differences)
    named = {*metrics, *outcome.limits.differences}
    if aimless := sorted({r["metric"] for r in rows if r["polarity"] == "none"} & named):
        raise MetricError(f"{', '.join(aimless)} has no polarity: neither more nor less of it is worse; leave it out")
    for row in rows:
        if row["polarity"] == "none" or row["verdict"] == "not judged":
            continue
        if row["loss"] is None:
            outcome.absent.append(row)
            continue
        outcome.checked.append(row)
        if not outcome.limits.allow(row):
            is_excused = outcome.limits.is_noise_excused and row["verdict"] == "noise"
            (outcome.excused if is_excused else outcome.worse).append(row)
    missing = set(metrics) - {r["metric"] for r in rows}
    outcome.absent.extend({"metric": m, "dimensions": "{}", "verdict": "on neither side"} for m in sorted(missing))
    return outcome


def _file(warehouse: Warehouse, against: str | Sequence[str]) -> Path | None:
    """The baseline file that `against` names; None if it names a run."""
    if not isinstance(against, str) or not Path(against).is_file():
        return None
    is_run = any(against in (r.run_id, r.name) for r in warehouse.lake.runs())
    return None if is_run else Path(against)


def _check_alike(query: Query, runs: Sequence[str], baselines: Sequence[str], *, is_unlike_allowed: bool) -> list[str]:
    """The fields of the workload that are known for some runs only; all fields, if none is known for any run."""
    unlike: list[str] = []
    unknown: list[str] = []
    both = literal((*runs, *baselines))
    sql = f"SELECT run_id, origin, {', '.join(WORKLOAD)} FROM main.runs WHERE list_contains({both}, run_id)"
    rows = query(sql).dicts()
    for name, side in (("run", runs), ("baseline", baselines)):
        origins = {row["origin"] for row in rows if row["run_id"] in side}
        if "predicted" in origins and len(origins) > 1:
            raise MetricError(
                f"the {name} has {' and '.join(sorted(origins))} runs, and nothing is averaged over both; "
                "name runs of one origin on each side"
            )
    for column in WORKLOAD:
        ours, theirs = ({row[column] for row in rows if row["run_id"] in side} for side in (runs, baselines))
        known = (ours | theirs) - {None}
        if known and None in ours | theirs:
            unknown.append(column)
        if len(known) > 1:
            unlike.append(f"{column} {_shown(theirs)} and {_shown(ours)}")
    if unlike and not is_unlike_allowed:
        raise MetricError(
            f"the runs differ in workload ({'; '.join(unlike)}), so their numbers cannot be compared; --force "
            "compares them anyway"
        )
    is_any_known = any(row[column] is not None for row in rows for column in WORKLOAD)
    return unknown if is_any_known else list(WORKLOAD)


def _replaced(warehouse: Warehouse, baseline: Baseline) -> list[str]:
    """Metrics that the baseline holds, but not in the version that is compared."""
    held: dict[str, set[int]] = {}
    for row in baseline.values:
        held.setdefault(row["metric"], set()).add(row["version"])
    compared = {name: metric.version for name, metric in warehouse.definitions.aliases.items()}
    return [f"{m} {max(v)}" for m, v in sorted(held.items()) if m in compared and compared[m] not in v]


def _with_repeats(query: Query, runs: tuple[str, ...], baselines: tuple[str, ...]) -> Sides:
    """The sides with the other runs of their configurations; a run that fits both sides counts as a baseline repeat."""
    configurations = dict(query("SELECT run_id, configuration FROM macros.configurations()").rows())
    named = {*runs, *baselines}

    def repeats(side: Sequence[str]) -> list[str]:
        wanted = {configurations[r] for r in side if r in configurations}
        return sorted(r for r, c in configurations.items() if c in wanted and r not in named)

    baseline_repeats = repeats(baselines)
    run_repeats = [r for r in repeats(runs) if r not in baseline_repeats]
    return Sides(runs, baselines, (*runs, *run_repeats), (*baselines, *baseline_repeats))


def _shown(values: set[object]) -> str:
    return " or ".join(sorted("unknown" if v is None else str(v) for v in values))
