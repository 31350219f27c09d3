"""Draws a figure for a paper: as wide as a column, with letters of the paper's size, without title.

A point of the drawing is a point of print, so a font size of 7 is 7 points on paper.
"""

from __future__ import annotations

import re
from typing import Any, Final

from tracewarehouse.dashboards.theme import WIDTH, config

COLUMN_MM: Final = 85.0
"""Width of a single column in millimetres."""

DOTS_PER_INCH: Final = 300

_POINTS_PER_MM = 72 / 25.4
_LETTERS = 7
_FLATTER = 0.6
_NARROWEST = 40


def drawing(specification: dict[str, Any], ending: str, width_mm: float = COLUMN_MM) -> bytes:
    """The bytes of a file that draws a Vega-Lite specification, exactly as wide as asked for.

    Args:
        specification: the chart, without title.
        ending: .png (300 dots per inch), .pdf or .svg.
        width_mm: width in millimetres.
    """
    import vl_convert

    svg = _fitted(specification, width_mm * _POINTS_PER_MM)
    if ending == ".svg":
        return _sized(svg, width_mm, "mm").encode()
    if ending == ".pdf":
        return vl_convert.svg_to_pdf(_sized(svg, width_mm * _POINTS_PER_MM))
    dots = round(width_mm / 25.4 * DOTS_PER_INCH) + 0.1  # vl-convert cuts a fraction off
    return vl_convert.svg_to_png(_sized(svg, dots / DOTS_PER_INCH * 72), ppi=DOTS_PER_INCH)


def _fitted(specification: dict[str, Any], wanted: float) -> str:
    """The SVG of a chart that is at most as many points wide as wanted, if it can be.

    Labels take their place beside the plot, and only a drawing tells how much. So the chart is drawn, and drawn again
    with a plot that is narrower by what the labels take. Legends and panels get fewer columns until they fit.
    """
    import vl_convert

    for columns in (6, 4, 3, 2, 1):
        plot = wanted
        for _ in range(4):
            svg: str = vl_convert.vegalite_to_svg(_narrowed(specification, plot, columns))
            excess = _size(svg)[0] - wanted
            if abs(excess) < 1 or (plot == _NARROWEST and excess > 0):
                break
            plot = max(_NARROWEST, plot - excess)
        if excess < 1:
            break
    return svg


def _narrowed(specification: dict[str, Any], plot: float, columns: int) -> dict[str, Any]:
    """The specification with a plot of a width in points, fewer ticks and smaller letters."""
    letters = {"labelFontSize": _LETTERS, "titleFontSize": _LETTERS, "labelLimit": 90, "titleLimit": 200}
    general = config() | {"background": "#ffffff", "padding": 1}
    smaller = {
        "axis": letters | {"labelSeparation": 2, "tickSize": 3, "titlePadding": 3},
        "legend": letters | {"columns": columns, "symbolSize": 30, "offset": 4, "rowPadding": 1,
                             "columnPadding": 6},
        "header": letters | {"labelPadding": 2},
        "text": {"fontSize": _LETTERS},
    }  # fmt: skip
    general |= {name: general.get(name, {}) | own for name, own in smaller.items()}
    return {**_replaced(specification, plot, columns), "config": general}


def _replaced(part: Any, plot: float, columns: int) -> Any:
    if isinstance(part, list):
        return [_replaced(p, plot, columns) for p in part]
    if not isinstance(part, dict):
        return part
    return {key: _changed(key, value, plot, columns) for key, value in part.items()}


def _changed(key: str, value: Any, plot: float, columns: int) -> Any:
    if key == "datasets":  # rows may have a column named width
        return value
    if not isinstance(value, int | float) or isinstance(value, bool):
        return _replaced(value, plot, columns)
    if key == "width":
        return plot if value == WIDTH else min(value, plot)
    if key in ("height", "step"):
        return value * _FLATTER
    if key == "tickCount":
        return min(value, 4)
    return min(value, columns) if key == "columns" else value


def _size(svg: str) -> tuple[float, float]:
    found = re.search(r'<svg[^>]*? width="([0-9.]+)" height="([0-9.]+)"', svg)
    assert found is not None  # noqa: S101
    return float(found[1]), float(found[2])


def _sized(svg: str, width: float, unit: str = "") -> str:
    """The drawing scaled to a width; its viewBox stays."""
    before, height = _size(svg)
    size = f' width="{width:.7g}{unit}" height="{height / before * width:.7g}{unit}"'
    return re.sub(r' width="[0-9.]+" height="[0-9.]+"', size, svg, count=1)
