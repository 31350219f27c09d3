"""Compares the stored metric values of runs with those of others, and says what makes their steps longer or shorter.

The numbers come from the macros compare_values and compare_steps of sql/macros; this finds the runs they are about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tracewarehouse.definitions.reading import UNSTORED
from tracewarehouse.ingest.errors import MetricError, WarehouseError
from tracewarehouse.query import literal
from tracewarehouse.result import QueryResult

if TYPE_CHECKING:
    from tracewarehouse.baseline import Baseline
    from tracewarehouse.warehouse import Warehouse

Query = Callable[[str], QueryResult]

WORKLOAD = ("model", "model_family", "dtype", "batch_size", "input_length", "output_length", "num_layers")
"""Columns of main.runs in which runs must agree for their numbers to be comparable."""

Split = Literal["layer", "category", "collective"]
SPLITS: tuple[Split, ...] = get_args(Split)
"""The ways in which the time of a step is taken apart."""


@dataclass(frozen=True)
class Sides:
    """The runs of a comparison, by run id.

    Attributes:
        runs: the runs to compare.
        baselines: the runs to compare them with.
        run_repeats: the runs, and others of their configuration, which show how much they vary by themselves.
        baseline_repeats: the same of the baselines.
    """

    runs: tuple[str, ...]
    baselines: tuple[str, ...]
    run_repeats: tuple[str, ...]
    baseline_repeats: tuple[str, ...]


class Comparison:
    """Some runs beside others.

    Attributes:
        sides: which runs these are.
        unknown: columns of `WORKLOAD` that are known of some of the runs only; all, where nothing is known of any.
        replaced: metrics that a baseline file holds in older versions alone, as `name version`.
    """

    def __init__(self, query: Query, sides: Sides, unknown: Sequence[str], replaced: Sequence[str] = ()) -> None:
        self.sides = sides
        self.unknown = tuple(unknown)
        self.replaced = tuple(replaced)
        self._query = query

    def values(self, metrics: Sequence[str] = (), by: str | None = None) -> QueryResult:
        """Rows of macros.compare_values, in order of metric and dimensions.

        Args:
            metrics: these metrics only; without any, all that are stored.
            by: metrics that have this dimension only, such as phase, axis or layer, and in its order.

        Raises:
            MetricError: there is no such metric, no run has a value of it, or none has that dimension.
        """
        catalog = self.require(metrics)
        if across := sorted(set(metrics) & {r["metric"] for r in catalog if r["scope"] == "warehouse"}):
            raise MetricError(
                f"{', '.join(across)} compares runs itself, so that no run has a value of it to compare; "
                f"`tw metrics values -m {across[0]}` shows it"
            )
        living = {r["metric"] for r in catalog if r["status"] not in UNSTORED}
        if dead := sorted(set(metrics) - living):
            raise MetricError(
                f"{', '.join(dead)} is deprecated or another tool's, so that no run has a value of it to compare; "
                f"`tw metrics values -m {dead[0]}` still shows it, `tw metrics show {dead[0]}` says what to use"
            )
        of_runs = [r["grain"] for r in catalog if r["scope"] == "run"]
        dimensions = sorted({d for grain in of_runs for d in grain.split(", ")} - {"run_id", "step"})
        if by is not None and by not in dimensions:
            raise MetricError(f"no metric has the dimension {by!r}; there are {', '.join(dimensions)}")
        conditions = [f"c.metric IN ({', '.join(map(literal, metrics or sorted(living)))})"]
        order = "c.metric, c.dimensions"
        if by is not None:
            conditions.append(f"json_exists(c.dimensions, '$.{by}')")
            order = f"try_cast(c.dimensions ->> '$.{by}' AS DOUBLE), c.dimensions ->> '$.{by}', {order}"
        s = self.sides
        sides = ", ".join(map(_list, (s.runs, s.baselines, s.run_repeats, s.baseline_repeats)))
        return self._query(
            f"SELECT * FROM macros.compare_values({sides}) AS c "  # noqa: S608  literals and checked names
            f"WHERE {' AND '.join(conditions)} ORDER BY {order}"
        )

    def require(self, metrics: Iterable[str]) -> list[dict[str, Any]]:
        """Rows of metrics.catalog, in which the metrics must be.

        Raises:
            MetricError: there is no such metric.
        """
        catalog = self._query("SELECT metric, grain, scope, status FROM metrics.catalog").dicts()
        if unknown := sorted(set(metrics) - {r["metric"] for r in catalog}):
            raise MetricError(f"no metric {', '.join(unknown)}; `tw metrics list` shows all")
        return catalog

    def steps(self, split: Split | None = None) -> QueryResult:
        """Rows of macros.compare_steps, the largest difference of a phase and split first.

        Args:
            split: only this one of `SPLITS`.
        """
        where = f"WHERE c.split = {literal(split)}" if split else ""
        return self._query(
            f"SELECT * FROM macros.compare_steps({_list(self.sides.runs)}, {_list(self.sides.baselines)}) AS c "  # noqa: S608
            f"{where} ORDER BY c.phase, c.split, abs(c.difference_us) DESC, c.name"
        )


@contextmanager
def comparing(
    warehouse: Warehouse, runs: str | Sequence[str], against: str | Sequence[str], *, is_unlike_allowed: bool = False
) -> Iterator[Comparison]:
    """A comparison of runs with others.

    Args:
        warehouse: the warehouse of the runs.
        runs: a run, as `Warehouse.run` takes it, or several; also in one text, separated by commas.
        against: the same, or a file of `tracewarehouse.baseline`.
        is_unlike_allowed: also compare runs of other workloads.

    Raises:
        WarehouseError: there is no such run or file.
        MetricError: the workloads differ.
    """
    from tracewarehouse.baseline import open_with, read_baseline

    run_ids = run_ids_of(warehouse, runs)
    path = _file(warehouse, against)
    baseline = read_baseline(path) if path else None
    baseline_ids = tuple(baseline.run_ids) if baseline else run_ids_of(warehouse, against)
    with open_with(warehouse, baseline) if baseline else nullcontext(warehouse.query) as query:
        unknown = _check_alike(query, run_ids, baseline_ids, is_unlike_allowed=is_unlike_allowed)
        replaced = _replaced(warehouse, baseline) if baseline else []
        yield Comparison(query, _with_repeats(query, run_ids, baseline_ids), unknown, replaced)


def run_ids_of(warehouse: Warehouse, references: str | Sequence[str]) -> tuple[str, ...]:
    """Run ids of a run, of several, or of several in one text, separated by commas; each once.

    Raises:
        WarehouseError: there is no such run, or several fit.
    """
    if isinstance(references, str):
        try:
            return (warehouse.run(references).run_id,)
        except WarehouseError:
            if "," not in references:
                raise
            references = [r.strip() for r in references.split(",")]
    return tuple(dict.fromkeys(warehouse.run(r).run_id for r in references))


@dataclass(frozen=True)
class Limits:
    """How much worse than the baseline a value may be.

    Attributes:
        median: share of the baseline, of the median over steps and repeats.
        tail: the same of the 90th percentile towards the worse side.
        is_noise_excused: a loss that is said to be noise is none.
        is_absence_excused: a value that one side does not have is no failure.
        differences: by metric, in its unit, what either may be worse by whatever share that is; of a baseline of 0 it
            is infinitely large.
    """

    median: float = 0.05
    tail: float = 0.1
    is_noise_excused: bool = False
    is_absence_excused: bool = False
    differences: Mapping[str, float] = field(default_factory=dict)

    def allow(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of macros.compare_values is within the limits; one with what is not a number is not."""
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
    """What a check found, as rows of macros.compare_values.

    Attributes:
        checked: values with a polarity that both sides have.
        worse: those of them that are worse by more than is allowed.
        absent: values with a polarity that one side does not have.
        excused: losses beyond the limits that are noise.
        limits: what was allowed.
    """

    checked: list[dict[str, Any]] = field(default_factory=list)
    worse: list[dict[str, Any]] = field(default_factory=list)
    absent: list[dict[str, Any]] = field(default_factory=list)
    excused: list[dict[str, Any]] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)

    @property
    def from_zero(self) -> list[dict[str, Any]]:
        """Those worse than a baseline of 0, of which there is no share."""
        return [r for r in self.worse if inf in (r["loss"], r["tail_loss"])]

    @property
    def is_passed(self) -> bool:
        """Nothing is worse than allowed, nothing is absent, and there was something to check."""
        return bool(self.checked) and not self.worse and (self.limits.is_absence_excused or not self.absent)


def check(comparison: Comparison, metrics: Sequence[str] = (), limits: Limits | None = None) -> Check:
    """Whether runs are worse than their baseline.

    Args:
        comparison: the runs and the baseline.
        metrics: these metrics only.
        limits: how much worse they may be.

    Raises:
        MetricError: there is no such metric, or one has no polarity, so that it cannot be worse.
    """
    found = Check(limits=limits or Limits())
    rows = comparison.values(metrics).dicts()
    comparison.require(found.limits.differences)
    named = {*metrics, *found.limits.differences}
    if aimless := sorted({r["metric"] for r in rows if r["polarity"] == "none"} & named):
        raise MetricError(f"{', '.join(aimless)} has no polarity: neither more nor less of it is worse; leave it out")
    for row in rows:
        if row["polarity"] == "none":
            continue
        if row["loss"] is None:
            found.absent.append(row)
            continue
        found.checked.append(row)
        if not found.limits.allow(row):
            is_excused = found.limits.is_noise_excused and row["verdict"] == "noise"
            (found.excused if is_excused else found.worse).append(row)
    missing = set(metrics) - {r["metric"] for r in rows}
    found.absent.extend({"metric": m, "dimensions": "{}", "verdict": "on neither side"} for m in sorted(missing))
    return found


def _file(warehouse: Warehouse, against: str | Sequence[str]) -> Path | None:
    """The baseline file that a text names; None where it is a run."""
    if not isinstance(against, str) or not Path(against).is_file():
        return None
    is_run = any(against in (r.run_id, r.name) for r in warehouse.lake.runs())
    return None if is_run else Path(against)


def _check_alike(query: Query, runs: Sequence[str], baselines: Sequence[str], *, is_unlike_allowed: bool) -> list[str]:
    """The fields of the workload that are known of some runs only; all of them, where nothing is known of any.

    Raises:
        MetricError: the workloads differ, and that is not allowed.
    """
    unlike: list[str] = []
    unknown: list[str] = []
    known_of_all: list[str] = []
    for column in WORKLOAD:
        sql = f"SELECT DISTINCT {column} FROM main.runs WHERE list_contains({{}}, run_id)"  # noqa: S608
        ours = {v for (v,) in query(sql.format(_list(runs))).rows()}
        theirs = {v for (v,) in query(sql.format(_list(baselines))).rows()}
        known = (ours | theirs) - {None}
        if known:
            (unknown if None in ours | theirs else known_of_all).append(column)
        if len(known) > 1:
            unlike.append(f"{column} {_shown(theirs)} and {_shown(ours)}")
    if unlike and not is_unlike_allowed:
        raise MetricError(
            f"the runs differ in workload ({'; '.join(unlike)}), so their numbers do not compare; --force compares "
            "them all the same"
        )
    return unknown if unknown or known_of_all else list(WORKLOAD)


def _replaced(warehouse: Warehouse, baseline: Baseline) -> list[str]:
    """Metrics that a baseline holds, but not in the version that is compared."""
    held: dict[str, set[int]] = {}
    for row in baseline.values:
        held.setdefault(row["metric"], set()).add(row["version"])
    compared = {name: metric.version for name, metric in warehouse.definitions.aliases().items()}
    return [f"{m} {max(v)}" for m, v in sorted(held.items()) if m in compared and compared[m] not in v]


def _with_repeats(query: Query, runs: tuple[str, ...], baselines: tuple[str, ...]) -> Sides:
    """The sides with the other runs of their configurations; those of both are repeats of the baselines."""
    found = dict(query("SELECT run_id, configuration FROM macros.configurations()").rows())
    named = {*runs, *baselines}

    def others(side: Sequence[str]) -> list[str]:
        wanted = {found[r] for r in side if r in found}
        return sorted(r for r, c in found.items() if c in wanted and r not in named)

    of_baselines = others(baselines)
    of_runs = [r for r in others(runs) if r not in of_baselines]
    return Sides(runs, baselines, (*runs, *of_runs), (*baselines, *of_baselines))


def _list(run_ids: Sequence[str]) -> str:
    # literals: only these let DuckDB leave out the files of other runs
    return f"[{', '.join(map(literal, run_ids))}]"


def _shown(values: set[object]) -> str:
    return " or ".join(sorted("unknown" if v is None else str(v) for v in values))
