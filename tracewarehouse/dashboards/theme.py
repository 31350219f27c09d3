"""Defines the colours, sizes and axes of all charts.

Every colour has a contrast of at least 3:1 to both the light and the dark background of the page, so one specification
serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Any, Final

import altair as alt

PRIMARY, ALARM, QUIET = "#4a7fb0", "#d1495b", "#8a949e"
PART_COLORS = {
    "matrix": PRIMARY,
    "attention": "#7d5fb2",
    "other compute": "#0f8b9d",
    "waiting for copies": "#b57a12",
    "exposed communication": ALARM,
    "idle": QUIET,
}
"""Colour of each part of a step; models.step_parts gives their order."""
CLASS_COLORS = PART_COLORS | {"copy": PART_COLORS["waiting for copies"], "communication": ALARM}
"""Colour of each class of ops: that of the part of a step which its time belongs to."""
KIND_COLORS = {
    "all-reduce": ALARM,
    "all-gather": "#b57a12",
    "reduce-scatter": "#9a63a8",
    "all-to-all": "#0f8b9d",
    "collective-permute": "#4d9440",
}
"""Colour of each kind of collective."""

PHASE_COLORS = {
    "prefill": "#b57a12",
    "mixed": "#7d6a9c",
    "decode": "#4a7fb0",
    "no phase": "#7a93a8",
    "outside": "#9a9a9a",
}
SERIES = ("#4a7fb0", "#d1495b", "#4d9440", "#b57a12", "#9a63a8", "#0f8b9d", "#a96f54", "#8a949e")
"""Colours of series without a meaning of their own, in order."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
"""Shapes of meshes, in order."""

ON_BARS: Final = "on_bars"
"""Name of the views whose texts stand on bars, so that the page's style sheet leaves them white."""
HEAT: Final = "viridis"
WIDTH = 860
"""Width of a chart that fills its place; the page replaces it by the available width."""

_INK = "#3c4650"
_FONT = "Inter, 'Helvetica Neue', Arial, sans-serif"

# by unit, the factor for its values, and the unit that follows a prefix such as k or µ
_SCALES = {
    "ms": ("1e-3", "s"),
    "us": ("1e-6", "s"),
    "ps": ("1e-12", "s"),
    "bytes": ("1", "B"),
    "GB/s": ("1e9", "B/s"),
    "FLOP/s": ("1", "FLOP/s"),
}


def axis(unit: str, **options: Any) -> alt.Axis:
    """An axis with readable labels: 338 MB, not 338,000,000 bytes.

    Args:
        unit: unit of the values: ms, us, ps, bytes, GB/s, FLOP/s, ratio, or another, which is shown as it is.
        **options: further options of the axis.
    """
    options = {"tickCount": 10} | options
    if unit == "ratio":
        return alt.Axis(format="~%", **options)
    if unit in _SCALES:
        return alt.Axis(labelExpr=in_units("datum.value", unit), **options)
    return alt.Axis(format="~s", **options)


def in_units(value: str, unit: str, digits: int = 3) -> str:
    """The Vega expression of a value with its unit, such as 338 MB; `value` is an expression too."""
    factor, base = _SCALES[unit]
    return f"replace(format({value} * {factor}, '.{digits}~s'), /([^0-9.]?)$/, ' $1') + '{base}'"


def powers(values: Sequence[float]) -> list[float]:
    """The powers of ten around the values: labels and grid lines of a logarithmic axis."""
    known = [v for v in values if v > 0]
    low, high = floor(log10(min(known))), ceil(log10(max(known)))
    return [10.0**exponent for exponent in range(low, high + 1)]


def class_color(present: Sequence[str]) -> alt.Color:
    """Colour by class of op; the legend has the classes that are present."""
    return named_color("class", {c: CLASS_COLORS[c] for c in CLASS_COLORS if c in present})


def kind_color(present: Sequence[str]) -> alt.Color:
    """Colour by kind of collective; the legend has the kinds that are present."""
    return named_color("kind", {kind: KIND_COLORS.get(kind, "#a96f54") for kind in sorted(present)})


def named_color(field: str, colors: dict[str, str], title: str = "") -> alt.Color:
    """Colour by the values of a field, each with its own colour, in the order of `colors`."""
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    return alt.Color(f"{field}:N", scale=scale, title=title or None, sort=list(colors), legend=alt.Legend(orient="top"))


def series_color(field: str, present: Sequence[str], title: str = "", among: Sequence[str] = ()) -> alt.Color:
    """Colour by a field whose values have no fixed colours; the ninth value gets the first colour again.

    Args:
        present: its values in the chart.
        title: title of the legend.
        among: all values of the page, so that each has one colour in all charts; by default, those of the chart.
    """
    colors = {name: SERIES[i % len(SERIES)] for i, name in enumerate(among or present)}
    return named_color(field, {name: colors[name] for name in colors if name in present}, title)


def mesh_shape(present: Sequence[str], among: Sequence[str]) -> alt.Shape:
    """Shape by mesh; `among` has all meshes of the page, so that each has one shape in all charts."""
    shapes = {mesh: SHAPES[i % len(SHAPES)] for i, mesh in enumerate(among) if mesh in present}
    return alt.Shape("mesh:N", title=None, legend=alt.Legend(orient="top"),
                     scale=alt.Scale(domain=list(shapes), range=list(shapes.values())))  # fmt: skip


def phase_color(phases: Sequence[str]) -> alt.Color:
    """Colour by phase."""
    return named_color("phase", {p: PHASE_COLORS.get(p, QUIET) for p in phases})


def by_phase(chart: Any, phases: Sequence[str], height: int | alt.Step) -> Any:
    """Split the chart into a panel per phase, one below the other; prefill and decode have their own scales."""
    return (
        chart.properties(width=WIDTH, height=height)
        .facet(facet=alt.Facet("phase:N", sort=list(phases), title=None), columns=1)
        .resolve_scale(x="independent")
    )


def phase_bars(
    data: Any, phases: Sequence[str], x: alt.X, y: alt.Y, height: int, tooltip: list[alt.Tooltip]
) -> alt.Chart:
    """Horizontal bars, those of the phases below each other in each place of the vertical axis."""
    chart: alt.Chart = (
        alt.Chart(data)
        .mark_bar()
        .encode(x=x, y=y, yOffset=alt.YOffset("phase:N", sort=list(phases)), color=phase_color(phases), tooltip=tooltip)
        .properties(width=WIDTH, height=height)
    )
    return chart


def number(column: str, title: str, form: str = ",.4~g") -> alt.Tooltip:
    """A number in a tooltip, with its unit in the title."""
    return alt.Tooltip(f"{column}:Q", format=form, title=title)


def percent(column: str, form: str = ".2%", title: str = "") -> alt.Tooltip:
    """A share in a tooltip, in percent."""
    return alt.Tooltip(f"{column}:Q", format=form, title=title or alt.Undefined)


def tooltips(*columns: str | alt.Tooltip) -> list[alt.Tooltip]:
    """Tooltips of columns such as `phase:N`; for plain strings, Altair would compare the schemas of all classes."""
    return [alt.Tooltip(c) if isinstance(c, str) else c for c in columns]


def bar_height(rows: int) -> int:
    """Height in pixels of a chart with this many horizontal bars, at most 480."""
    return max(40, min(24 * rows, 480))


def config() -> dict[str, Any]:
    """Vega-Lite's configuration for a light background; on the page, the style sheet colours texts and lines."""
    quiet = {"gridColor": "#eef0f2", "domainColor": "#c4cad0", "tickColor": "#c4cad0"}
    ink = {"labelColor": _INK, "titleColor": _INK, "titleFontWeight": "normal"}
    return {
        "font": _FONT,
        "background": None,
        "view": {"stroke": None},
        "axis": quiet | ink | {"labelLimit": 260, "labelSeparation": 6, "labelFontSize": 12, "titleFontSize": 12},
        "axisQuantitative": {"labelOverlap": "greedy"},  # else two labels may lie on each other
        # Vega leaves out all entries after the 30th unless symbolLimit is 0
        "legend": ink
        | {"labelLimit": 260, "columns": 8, "symbolLimit": 0, "symbolBaseFillColor": QUIET, "labelFontSize": 12},
        "text": {"fontSize": 12},
        "header": ink | {"labelFontSize": 13, "labelAnchor": "start"},
    }
