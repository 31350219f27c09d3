"""The head of a run's report: what ran, and its main numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse


@dataclass(frozen=True)
class Fact:
    """One fact of a run, such as its mesh."""

    label: str
    value: str


@dataclass(frozen=True)
class Tile:
    """One main number with its unit, and a line that says more."""

    label: str
    value: float
    unit: str
    detail: str = ""


def facts_of(run: dict[str, Any]) -> list[Fact]:
    """What a row of main.runs tells of the workload; unknown facts are left out."""
    lengths = f"{run['input_length']} in, {run['output_length']} out" if run["input_length"] else None
    found = {
        "Model": run["model"] or run["model_family"],
        "Layers": run["num_layers"],
        "Precision": run["dtype"],
        "Batch": run["batch_size"],
        "Tokens": lengths,
        "Mesh": run["mesh"],
        "Sequence parallelism": run["sequence_parallelism"],
        "Devices": f"{run['device_count']} ({run['backend']}), hosts {run['host_count']}",
        "Framework": run["framework"],
        "Events": f"{run['event_count']:,}",
        "Run": run["run_id"],
    }
    return [Fact(label, str(value)) for label, value in found.items() if value not in (None, "")]


_TILES = """
WITH latency AS (
  SELECT 0 AS place, 'TTFT, ' || clock AS label, ttft_ms AS value, 'ms' AS unit,
         prefill_steps || ' prefill step' || CASE WHEN prefill_steps > 1 THEN 's' ELSE '' END AS detail
  FROM metrics.ttft WHERE run_id = $run_id
  UNION ALL
  SELECT 1, 'TPOT, ' || clock, tpot_ms, 'ms', 'p50 ' || round(p50_ms, 3) || ', p90 ' || round(p90_ms, 3)
  FROM metrics.tpot WHERE run_id = $run_id
), counted AS (
  SELECT 2 AS place, 'Collectives per step' AS label, sum(executions_per_step) AS value, '' AS unit, phase,
         string_agg(kind || ' ' || axis || ' ' || round(executions_per_step, 2), ', ' ORDER BY kind, axis) AS what
  FROM metrics.collective_count WHERE run_id = $run_id GROUP BY phase
), bytes AS (
  SELECT phase, sum(message_bytes_per_step) AS per_step
  FROM metrics.traffic_volume WHERE run_id = $run_id GROUP BY phase
), moved AS (
  SELECT 3 AS place, 'Traffic per step' AS label,
         CASE WHEN per_step >= 1e7 THEN per_step / 1e6 ELSE per_step / 1e3 END AS value,
         CASE WHEN per_step >= 1e7 THEN 'MB' ELSE 'kB' END AS unit, phase, 'message bytes of a device' AS what
  FROM bytes
), running AS (
  SELECT phase, count(*) AS devices FROM metrics.device_idle WHERE run_id = $run_id GROUP BY phase
), exposed AS (
  SELECT 4 AS place, 'Exposed communication' AS label, sum(e.exposed_ms) / any_value(r.devices) AS value,
         'ms' AS unit, e.phase, 'per step, mean over devices' AS what
  FROM metrics.exposed_communication AS e JOIN running AS r ON e.phase IS NOT DISTINCT FROM r.phase
  WHERE e.run_id = $run_id GROUP BY e.phase
), idle AS (
  SELECT 5 AS place, 'Device idle' AS label, 100 * sum(idle_ratio) / count(*) AS value, '%' AS unit, phase,
         'mean over devices' AS what
  FROM metrics.device_idle WHERE run_id = $run_id GROUP BY phase
), phased AS (
  SELECT * FROM counted UNION ALL SELECT * FROM moved UNION ALL SELECT * FROM exposed UNION ALL SELECT * FROM idle
)
SELECT label, value, unit, detail FROM (
  SELECT place, '' AS phase, label, value, unit, detail FROM latency
  UNION ALL
  SELECT place, coalesce(phase, ''), label || coalesce(', ' || phase, ''), value, unit, what FROM phased)
ORDER BY place, phase DESC, label
"""


def tiles_of(warehouse: Warehouse, run_id: str) -> list[Tile]:
    """The run's main numbers; one without data has no tile."""
    return [Tile(**row) for row in warehouse.query(_TILES, run_id=run_id).dicts() if row["value"] is not None]
