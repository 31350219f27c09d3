"""Draws a figure for a paper: as wide as a column, with letters of the paper's size, without title.

A point of the drawing is a point of print, so a font size of 7 is 7 points on paper.
"""

from __future__ import annotations

import re
from math import inf
from operator import itemgetter
from typing import Any, Final

from tracewarehouse.dashboards.theme import WIDTH, config

COLUMN_MM: Final = 85.0
"""Width of a single column in millimetres."""

DOTS_PER_INCH: Final = 300

_POINTS_PER_MM = 72 / 25.4
_LETTERS = 7
_SMALLER = 0.6
"""Factor of the sizes that do not fill the place, from the page to the paper."""
_NARROWEST = 40


def drawing(specification: dict[str, Any], ending: str, width_mm: float = COLUMN_MM) -> bytes:
    """The bytes of a file that draws a Vega-Lite specification, exactly as wide as asked for.

    Args:
        specification: the chart, without title.
        ending: .png (300 dots per inch), .pdf or .svg.
        width_mm: width in millimetres.
    """
    import vl_convert

    wanted = width_mm * _POINTS_PER_MM
    svg = _padded(_fitted(specification, wanted), wanted)
    if ending == ".svg":
        return _sized(svg, width_mm, "mm").encode()
    if ending == ".pdf":
        return vl_convert.svg_to_pdf(_sized(svg, wanted))
    dots = round(width_mm / 25.4 * DOTS_PER_INCH) + 0.1  # vl-convert cuts a fraction off
    return vl_convert.svg_to_png(_sized(svg, dots / DOTS_PER_INCH * 72), ppi=DOTS_PER_INCH)


def _fitted(specification: dict[str, Any], wanted: float) -> str:
    """The SVG of a chart whose width in points is as near to what is wanted as it can be.

    Labels take their place beside the plot, and only a drawing tells how much. So the chart is drawn, and drawn again
    with a plot that is narrower by what the labels take. Legends and panels get fewer columns until they fit.
    """
    import vl_convert

    drawn: list[tuple[float, str]] = []
    for columns in (6, 4, 3, 2, 1):
        plot, before = wanted, inf
        for _ in range(4):
            svg = vl_convert.vegalite_to_svg(_narrowed(specification, wanted, plot, columns))
            excess = _size(svg)[0] - wanted
            drawn.append((abs(excess), svg))
            if abs(excess) < 1 or excess > before - 1:  # not the plot is too wide, but the legend
                break
            plot, before = max(_NARROWEST, plot - excess), excess
        if excess < 1:
            break
    return min(drawn, key=itemgetter(0))[1]


def _narrowed(specification: dict[str, Any], width: float, plot: float, columns: int) -> dict[str, Any]:
    """The specification with a plot of a width in points, fewer ticks and smaller letters.

    A label takes at most half the width.
    """
    letters = {"labelFontSize": _LETTERS, "titleFontSize": _LETTERS, "labelLimit": width / 2, "titleLimit": width}
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
        return plot if value == WIDTH else min(value * _SMALLER, plot)
    if key in ("height", "step"):
        return value * _SMALLER
    if key == "tickCount":
        return min(value, 4)
    return min(value, columns) if key == "columns" else value


def _size(svg: str) -> tuple[float, float]:
    found = re.search(r'<svg[^>]*? width="([0-9.]+)" height="([0-9.]+)"', svg)
    assert found is not None  # noqa: S101
    return float(found[1]), float(found[2])


def _padded(svg: str, wanted: float) -> str:
    """The drawing in the middle of a white field that is as wide as wanted, so that its letters keep their size."""
    width, height = _size(svg)
    if width >= wanted:
        return svg
    margin = (wanted - width) / 2
    svg = re.sub(r'<rect width="[0-9.]+"', f'<rect x="{-margin:.7g}" width="{wanted:.7g}"', svg, count=1)
    svg = re.sub(r' width="[0-9.]+" height=', f' width="{wanted:.7g}" height=', svg, count=1)
    return re.sub(r'viewBox="[^"]*"', f'viewBox="{-margin:.7g} 0 {wanted:.7g} {height:g}"', svg, count=1)


def _sized(svg: str, width: float, unit: str = "") -> str:
    before, height = _size(svg)
    size = f' width="{width:.7g}{unit}" height="{height / before * width:.7g}{unit}"'
    return re.sub(r' width="[0-9.]+" height="[0-9.]+"', size, svg, count=1)
