"""Compares published values of CCL-Bench with ours: what its definition gives, what is right, and why they differ."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from tracewarehouse.exports.ccl_bench.values import COMPATIBLE, row_values
from tracewarehouse.ingest.errors import TracewarehouseError, WarehouseError

if TYPE_CHECKING:
    from tracewarehouse.ingest.lake.manifest import RunVersion
    from tracewarehouse.warehouse import Warehouse

_REASON = re.compile(r"use (\w+) instead\.\s*(.*)")
_KINDS = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "alltoall": "all-to-all",
}
_COLUMNS = {"collective_transfer": ("bus_gbps", "GB/s")}
"""By metric, the column and unit to compare instead of a value that answers another question."""
_REDUCED: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "op_time_share": ("largest", max),
    "communication_time": ("sum", sum),
    "traffic_volume": ("sum", sum),
}
"""How to reduce rows to one value where CCL-Bench adds devices up or takes the largest; elsewhere, take the mean."""


class _Right(NamedTuple):
    value: float | None = None
    taken: str | None = None
    rows: int = 0
    unit: str | None = None


@dataclass(frozen=True)
class PublishedValue:
    """One published value beside ours.

    Attributes:
        run: name of the run and of the published row.
        metric: CCL-Bench's name of the metric.
        published: the published value; None if the row has none.
        reproduced: the value that the same definition gives for the run.
        metric_of_ours: our metric that asks the same question.
        right: the value of that metric over its rows of the kind of collective, only those of decode if it has phases.
        taken: how the rows became one value: mean, sum or largest.
        rows: the number of these rows.
        unit: unit of `right`.
        relation: whether the published value follows from this run.
        why: what CCL-Bench's definition does differently.
    """

    run: str
    metric: str
    published: float | None
    reproduced: float | None
    metric_of_ours: str
    right: float | None
    taken: str | None
    rows: int
    unit: str | None
    relation: str
    why: str


def published_values(warehouse: Warehouse, runs: Sequence[RunVersion], file: Path) -> list[PublishedValue]:
    """Compare published rows with the runs of the same names.

    Args:
        warehouse: the warehouse.
        runs: the runs.
        file: website/benchmark_data.json of CCL-Bench.

    Raises:
        TracewarehouseError: the file is not one of CCL-Bench's published data.
        WarehouseError: no run has the name of a published row.
    """
    rows = _rows(file)
    values = [value for run in runs if run.name in rows for value in _of_run(warehouse, run, rows[run.name])]
    if not values:
        names = ", ".join(run.name for run in list(runs)[:10]) or "none"
        raise WarehouseError(
            f"{file}: no published row has the name of a run; looked for {names}; `tw import ccl-bench DIR` names runs "
            "after their folders"
        )
    return values


def _rows(file: Path) -> dict[str, dict[str, Any]]:
    """The metrics of published rows by the name of the row."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {str(row["trace"]).rstrip("/").rpartition("/")[2]: dict(row["metrics"]) for row in content["rows"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TracewarehouseError(
            f"{file}: not CCL-Bench's published data: looked for the JSON of website/benchmark_data.json ({error})"
        ) from None


def _of_run(warehouse: Warehouse, run: RunVersion, published: dict[str, Any]) -> list[PublishedValue]:
    reproduced = row_values(warehouse, run.run_id)
    compared = []
    for name, value in published.items():
        family, kind = _family(name)
        if family is None:
            continue
        about = warehouse.definitions.metric(f"ccl_{family}", 1).header.description
        match = _REASON.search(" ".join(about.split()))
        ours, why = (match[1], match[2]) if match else ("", about)
        right = _right(warehouse, run.run_id, ours, kind)
        number = value if isinstance(value, int | float) else None
        relation = _relation(number, reproduced.get(name))
        values = (number, reproduced.get(name), ours, *right)
        compared.append(PublishedValue(run.name, name, *values, relation, why))
    return compared


def _family(name: str) -> tuple[str | None, str | None]:
    """Our name for a metric of CCL-Bench, None if it is not computed for TPUs; and the kind of collective."""
    if name in COMPATIBLE:
        return name, None
    match = re.fullmatch(r"(bandwidth_utilization|collective_vol)_(\w+?)(?:_group_6|_gb)", name)
    return (match[1], _KINDS.get(match[2])) if match else (None, None)


def _right(warehouse: Warehouse, run_id: str, metric: str, kind: str | None) -> _Right:
    if not metric:
        return _Right()
    rows = warehouse.metric(metric, run_id).dicts()
    header = warehouse.definitions.metric(metric).header
    column, unit = _COLUMNS.get(metric, (header.value, header.unit))
    rows = [row for row in rows if row[column] is not None and (kind is None or row.get("kind") == kind)]
    if any(row.get("phase") == "decode" for row in rows):
        rows = [row for row in rows if row.get("phase") == "decode"]
    if not rows:
        return _Right()
    how, reduced = _REDUCED.get(metric, ("mean", fmean))
    return _Right(float(reduced([float(row[column]) for row in rows])), how, len(rows), unit)


def _relation(published: float | None, reproduced: float | None) -> str:
    if published is None or reproduced is None:
        return "no value on both sides"
    if float(f"{published:.6g}") == float(f"{reproduced:.6g}"):
        return "follows from this run"
    return "of another trace, card, or version of its tools"
