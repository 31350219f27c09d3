"""Draws the warehouse: a function per chart, and reports.

A function that draws one run takes a warehouse and the run's id or name; one that draws several runs takes several.
Each returns a `Figure`: the chart with its rows, its SQL and a description. If the warehouse lacks the data, it raises
`NothingToDraw`, which says why.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracewarehouse.dashboards.communication import (
        bandwidth_by_size,
        collective_time,
        exposed_communication,
        in_flight,
        overlap,
        traffic_intervals,
        traffic_matrix,
        traffic_volume,
    )
    from tracewarehouse.dashboards.figure import Figure, NothingToDraw
    from tracewarehouse.dashboards.memory import memory_in_use
    from tracewarehouse.dashboards.ops import layer_heat_map, op_icicle, op_time_share, top_ops
    from tracewarehouse.dashboards.peaks import roofline
    from tracewarehouse.dashboards.report import Report, comparison_report, run_report, study_report
    from tracewarehouse.dashboards.runs import (
        metric_against_metric,
        pareto,
        scaling,
        step_waterfall,
        sweep_heat_map,
        value_over_time,
        what_if_curves,
    )
    from tracewarehouse.dashboards.steps import (
        decode_by_context,
        idle_parts,
        step_parts,
        step_times,
        tpot_distribution,
        what_if,
    )
    from tracewarehouse.dashboards.timeline import device_timeline
    from tracewarehouse.dashboards.writing import write_pictures, write_text

__all__ = [
    "Figure",
    "NothingToDraw",
    "Report",
    "bandwidth_by_size",
    "collective_time",
    "comparison_report",
    "decode_by_context",
    "device_timeline",
    "exposed_communication",
    "idle_parts",
    "in_flight",
    "layer_heat_map",
    "memory_in_use",
    "metric_against_metric",
    "op_icicle",
    "op_time_share",
    "overlap",
    "pareto",
    "roofline",
    "run_report",
    "scaling",
    "step_parts",
    "step_times",
    "step_waterfall",
    "study_report",
    "sweep_heat_map",
    "top_ops",
    "tpot_distribution",
    "traffic_intervals",
    "traffic_matrix",
    "traffic_volume",
    "value_over_time",
    "what_if",
    "what_if_curves",
    "write_pictures",
    "write_text",
]

_HOMES = {
    "Figure": "figure",
    "NothingToDraw": "figure",
    "Report": "report",
    "bandwidth_by_size": "communication",
    "collective_time": "communication",
    "comparison_report": "report",
    "decode_by_context": "steps",
    "device_timeline": "timeline",
    "exposed_communication": "communication",
    "idle_parts": "steps",
    "in_flight": "communication",
    "layer_heat_map": "ops",
    "memory_in_use": "memory",
    "metric_against_metric": "runs",
    "op_icicle": "ops",
    "op_time_share": "ops",
    "overlap": "communication",
    "pareto": "runs",
    "roofline": "peaks",
    "run_report": "report",
    "scaling": "runs",
    "step_parts": "steps",
    "step_times": "steps",
    "step_waterfall": "runs",
    "study_report": "report",
    "sweep_heat_map": "runs",
    "top_ops": "ops",
    "tpot_distribution": "steps",
    "traffic_intervals": "communication",
    "traffic_matrix": "communication",
    "traffic_volume": "communication",
    "value_over_time": "runs",
    "what_if": "steps",
    "what_if_curves": "runs",
    "write_pictures": "writing",
    "write_text": "writing",
}


def __getattr__(name: str) -> Any:
    """Import a chart's module, and Altair with it, when the chart is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
