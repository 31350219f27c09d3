"""Compares the stored metric values of two runs, and checks a run against a baseline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingest.errors import MetricError

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

WORKLOAD = ("model", "model_family", "dtype", "batch_size", "input_length", "output_length", "num_layers")
"""Columns of main.runs in which two runs must agree for their numbers to be comparable."""

_VALUES = """
WITH latest AS (
  SELECT metric, max(version) AS version FROM metrics.catalog WHERE status = 'stable' GROUP BY metric
), of_run AS (
  SELECT v.run_id, v.metric, v.version, v.dimensions, v.value, v.unit
  FROM metrics.all_values AS v INNER JOIN latest AS l ON v.metric = l.metric AND v.version = l.version
  WHERE v.run_id IN ($run, $baseline)
)
SELECT a.metric, a.version, a.dimensions, b.value AS baseline, a.value AS value, a.unit, c.polarity,
       a.value - b.value AS difference,
       CASE WHEN b.value <> 0 THEN (a.value - b.value) / abs(b.value) END AS relative
FROM of_run AS a
INNER JOIN of_run AS b
  ON a.metric = b.metric AND a.version = b.version AND a.dimensions = b.dimensions AND b.run_id = $baseline
INNER JOIN metrics.catalog AS c ON a.metric = c.metric AND a.version = c.version
WHERE a.run_id = $run
ORDER BY a.metric, a.dimensions
"""


@dataclass(frozen=True)
class Difference:
    """One metric value in two runs.

    Attributes:
        metric: the metric; its newest stable version is compared.
        version: that version.
        dimensions: the other columns of the grain, such as phase and axis.
        baseline: value in the run compared with.
        value: value in the run.
        unit: unit of both.
        polarity: higher_is_better, lower_is_better or none.
        relative: (value - baseline) / |baseline|; None for a baseline of 0.
    """

    metric: str
    version: int
    dimensions: dict[str, Any]
    baseline: float
    value: float
    unit: str
    polarity: str
    relative: float | None

    @property
    def verdict(self) -> str:
        """better, worse, same, or different where the metric has no polarity."""
        if self.value == self.baseline:
            return "same"
        if self.polarity == "none":
            return "different"
        return "better" if (self.value > self.baseline) == (self.polarity == "higher_is_better") else "worse"

    def is_regression(self, limit: float) -> bool:
        """Whether the value is worse than the baseline's by more than `limit`, a share of the baseline."""
        if self.verdict != "worse":
            return False
        return self.relative is None or abs(self.relative) > limit


def compare(
    warehouse: Warehouse,
    run: str,
    baseline: str,
    *,
    metrics: Sequence[str] = (),
    is_unlike_allowed: bool = False,
) -> list[Difference]:
    """The metric values that both runs have, in order of metric and dimensions.

    Args:
        warehouse: the warehouse of both.
        run: the run, as `Warehouse.run` takes it.
        baseline: the run to compare with.
        metrics: these metrics only.
        is_unlike_allowed: also compare runs of other workloads.

    Raises:
        MetricError: the workloads differ, or a metric is not known.
        WarehouseError: there is no such run.
    """
    run_id, baseline_id = warehouse.run(run).run_id, warehouse.run(baseline).run_id
    if not is_unlike_allowed:
        _refuse_unlike(warehouse, run_id, baseline_id)
    rows = warehouse.query(_VALUES, run=run_id, baseline=baseline_id).dicts()
    known = {r[0] for r in warehouse.query("SELECT metric FROM metrics.catalog").rows()}
    unknown = sorted(set(metrics) - known)
    if unknown:
        raise MetricError(f"no metric {', '.join(unknown)}; `tw metrics list` shows all")
    return [
        Difference(
            r["metric"],
            r["version"],
            {k: v for k, v in json.loads(r["dimensions"]).items() if v is not None},
            r["baseline"],
            r["value"],
            r["unit"],
            r["polarity"],
            r["relative"],
        )
        for r in rows
        if (not metrics or r["metric"] in metrics) and r["value"] is not None and r["baseline"] is not None
    ]


def _refuse_unlike(warehouse: Warehouse, run_id: str, baseline_id: str) -> None:
    sql = f"SELECT run_id, {', '.join(WORKLOAD)} FROM main.runs WHERE run_id IN ($run, $baseline)"  # noqa: S608
    found = {r["run_id"]: r for r in warehouse.query(sql, run=run_id, baseline=baseline_id).dicts()}
    a, b = found[run_id], found[baseline_id]
    unlike = [f"{c} {b[c]} and {a[c]}" for c in WORKLOAD if None not in (a[c], b[c]) and a[c] != b[c]]
    if unlike:
        raise MetricError(
            f"the runs differ in workload ({'; '.join(unlike)}), so their numbers do not compare; --unlike compares "
            "them all the same"
        )
