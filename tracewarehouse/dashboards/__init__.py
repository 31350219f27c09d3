"""Draws the warehouse: a function per chart, and reports.

A function that draws one run takes a warehouse and the run's id or name; one that draws several runs takes several.
Each returns a `Figure`: the chart with its rows, its SQL and a description. If the warehouse lacks the data, it raises
`NothingToDraw`, which says why. `CHARTS` lists the charts.
"""

from importlib import import_module
from typing import Any

from tracewarehouse.dashboards.registry import CHARTS

_PLACES = {chart.function.partition(".")[2]: chart.function.partition(".")[0] for chart in CHARTS.values()} | {
    "Figure": "figure",
    "NothingToDraw": "figure",
    "Report": "report",
    "comparison_report": "report",
    "run_report": "report",
    "study_report": "report",
    "write_pictures": "writing",
    "write_text": "writing",
}
"""The module of each public name."""

__all__ = ["CHARTS", *_PLACES]


def __getattr__(name: str) -> Any:
    """Import a chart's module, and Altair with it, when the chart is first asked for."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
