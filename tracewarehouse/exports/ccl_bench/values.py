"""Computes the values of a row: CCL-Bench's metrics as it defines them, and three of ours under other names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.definitions.reading import Definitions
    from tracewarehouse.warehouse import Warehouse

_COLLECTIVES = {
    "all-reduce": "allreduce",
    "all-gather": "allgather",
    "reduce-scatter": "reducescatter",
    "all-to-all": "alltoall",
    "total": "total",
}
COMPATIBLE = (
    "avg_step_time", "ttft", "tpot", "mfu", "dominant_kernel_concentration", "average_memory_bandwidth",
    "memory_transfer_overhead", "communication_fraction", "total_communication_time", "compute_comm_overlap",
    "bandwidth_utilization", "collective_vol",
)  # fmt: skip
"""Names of CCL-Bench's metrics, each a `ccl_` metric of ours."""
_IS_BETTER = {"higher_is_better": True, "lower_is_better": False}
_PHASE = """phase IS NOT DISTINCT FROM (
      SELECT min(phase) FROM models.run_steps WHERE run_id = {run} AND phase IN ('prefill', 'decode')
    )"""
"""Selects decode if the run has it, else prefill, else steps without a phase: the first name in order."""
_OURS = {
    "exposed_communication_share": """
    SELECT avg(fraction) * 100 FROM metrics.communication_fraction WHERE run_id = {run} AND {phase}""",
    "collective_bus_bandwidth": """
    SELECT sum(bus_gbps * transfer_ms) / nullif(sum(transfer_ms), 0) FROM metrics.collective_transfer
    WHERE run_id = {run} AND {phase}""",
    "collective_sync_wait": """
    SELECT avg(wait_ms) / nullif((SELECT count(*) FROM models.run_steps WHERE run_id = {run} AND {phase}), 0)
    FROM metrics.sync_wait WHERE run_id = {run} AND {phase}""",
}
METRIC_INFO: dict[str, dict[str, Any]] = {
    "exposed_communication_share": {
        "label": "Exposed Communication (%)",
        "description": "Share of a decode step in which a device communicates and computes nothing, mean over the "
        "devices; of the prefill if nothing is decoded. Each device counts for itself, and no op counts twice.",
        "higher_is_better": False,
        "unit": "%",
        "category": "communication",
        "trace_types": ["xplane"],
        "thresholds": {"high": 40, "mid": 15},
        "required_update": False,
    },
    "collective_bus_bandwidth": {
        "label": "Collective Bus Bandwidth (GB/s)",
        "description": "Message bytes of collectives times 2 (n-1)/n for all-reduce and (n-1)/n else, n the size of "
        "the replica group, over the time from the last rank's start to the end.",
        "higher_is_better": True,
        "unit": "GB/s",
        "category": "communication",
        "trace_types": ["xplane"],
        "thresholds": {"high": 100, "mid": 20},
        "required_update": False,
    },
    "collective_sync_wait": {
        "label": "Collective Sync Wait (ms)",
        "description": "Time per decode step that a device waits in collectives for later ranks, mean over devices.",
        "higher_is_better": False,
        "unit": "ms",
        "category": "communication",
        "trace_types": ["xplane"],
        "thresholds": {"high": 5, "mid": 0.5},
        "required_update": False,
    },
}
"""The entries of our metrics in CCL-Bench's configuration. Their kind of trace keeps them out of others' rows."""


def row_values(warehouse: Warehouse, run_id: str) -> dict[str, float]:
    """The values of a run by CCL-Bench's names, with six significant digits; a metric without a value has no entry.

    Raises:
        WarehouseError: the run cannot be read.
    """
    by_name: dict[str, float] = {}
    rows = warehouse.values(run_id, metrics=[f"ccl_{name}" for name in COMPATIBLE]).dicts()
    for row in rows:
        kind = next((k for k in _COLLECTIVES if f'"{k}"' in row["dimensions"]), "")
        by_name[_name(row["metric"].removeprefix("ccl_"), kind)] = row["value"]
    for name, sql in _OURS.items():
        run = literal(run_id)
        value = warehouse.query(sql.format(run=run, phase=_PHASE.format(run=run))).scalar()
        if value is not None:
            by_name[name] = value
    return {name: float(f"{value:.6g}") for name, value in by_name.items()}


def compatible_info(definitions: Definitions) -> dict[str, dict[str, Any]]:
    """Our definitions of CCL-Bench's metrics, by its names and in the form of its configuration."""
    info = {}
    for metric in COMPATIBLE:
        header = definitions.metric(f"ccl_{metric}", 1).header
        for kind in _COLLECTIVES:
            name = _name(metric, kind)
            info[name] = {
                "label": name,
                "description": " ".join(header.description.split()),
                "higher_is_better": _IS_BETTER.get(header.polarity),
                "unit": header.unit,
                "trace_types": ["json_tpu"],
            }
    return info


def _name(metric: str, kind: str) -> str:
    """CCL-Bench's name for a metric and a kind of collective."""
    if metric == "bandwidth_utilization":
        return f"{metric}_{_COLLECTIVES[kind]}_group_6"
    return f"{metric}_{_COLLECTIVES[kind]}_gb" if metric == "collective_vol" else metric
