"""Draws a query's rows, and chooses the columns and the mark that the user does not choose."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import altair as alt

from tracewarehouse.dashboards.figure import plain
from tracewarehouse.dashboards.theme import HEAT, WIDTH, axis, bar_height, series_color
from tracewarehouse.queries.result import QueryResult
from tracewarehouse.queries.text_table import cell

MARKS: tuple[str, ...] = ("bar", "line", "point", "area", "rect")

MOST_ROWS = 5000
"""The most rows that a chart draws."""

_FEW_COLORS, _MOST_COLORS = 8, 20
_NO_MEASURES = ("_id", "version", "index", "_start_ps", "_end_ps", "start_ps", "until_ps")
_UNITS = {"_ms": "ms", "_us": "us", "_ps": "ps", "_bytes": "bytes", "bytes": "bytes", "_gbps": "GB/s"}


@dataclass(frozen=True)
class QuickChart:
    """A chart, and the columns that it could draw instead.

    Attributes:
        x: the column of the horizontal axis.
        y: the column of the vertical axis.
        color: the column of the colours; empty for none.
        mark: one of `MARKS`.
        specification: the chart in Vega-Lite; None if there is nothing to draw.
        said: why there is nothing to draw, or what is left out.
    """

    x: str = ""
    y: str = ""
    color: str = ""
    mark: str = "bar"
    columns: list[str] = field(default_factory=list)
    specification: dict[str, Any] | None = None
    said: str = ""


def quick_chart(result: QueryResult, chosen: Mapping[str, str]) -> QuickChart:
    """Draw rows by the chosen columns x, y and color and the chosen mark; the types of columns decide what is missing.

    Args:
        chosen: any of x, y, color (a column, or - for none) and mark.
    """
    kinds = {n: _kind(str(t)) for n, t in zip(result.columns, result.arrow().schema.types, strict=True)}
    default = _default(result.part(0, MOST_ROWS), kinds)
    picked = {k: chosen[k] for k in ("x", "y", "color") if chosen.get(k) in kinds or chosen.get(k) == "-"}
    x, y, color = ("" if (v := picked.get(k, getattr(default, k))) == "-" else v for k in ("x", "y", "color"))
    mark = chosen.get("mark", "")
    if mark not in MARKS:
        mark = default.mark if not picked.keys() & {"x", "y"} else _mark(kinds.get(x, ""), kinds.get(y, ""))
    columns = list(result.columns)
    if not len(result) or not (x and y):
        said = "There is no row to draw." if not len(result) else "A chart needs a column of numbers and another one."
        return QuickChart(x, y, color, mark, columns, None, said)
    drawn = result.part(0, MOST_ROWS)
    places = {f"c{i}": columns.index(c) for i, c in enumerate((x, y, color)) if c}
    rows = [{key: _value(row[i], kinds[columns[i]]) for key, i in places.items()} for row in drawn.rows()]
    specification = _draw(rows, (x, y, color), mark, kinds).to_dict() | {"datasets": {"rows": rows}}
    said = f"The chart draws the first {MOST_ROWS:,} rows." if len(result) > MOST_ROWS or result.is_cut else ""
    return QuickChart(x, y, color, mark, columns, specification, said)


def _value(value: Any, kind: str) -> Any:
    """A value as Vega-Lite takes it; a missing name is drawn as NULL."""
    if kind == "N":
        return cell(value)
    return float(value) if isinstance(value, Decimal) else plain(value)


def _kind(arrow: str) -> str:
    if arrow.startswith(("int", "uint", "float", "double", "halffloat", "decimal")):
        return "Q"
    return "T" if arrow.startswith(("timestamp", "date")) else "N"


def _default(result: QueryResult, kinds: Mapping[str, str]) -> QuickChart:
    """The last column of numbers against what tells the rows apart: times, names, or else the first numbers."""
    distinct = {c: len({str(v) for v in column}) for c, column in zip(result.columns, _columns(result), strict=True)}
    numbers = [c for c, k in kinds.items() if k == "Q"]
    measures = [c for c in numbers if not c.endswith(_NO_MEASURES)] or numbers
    times = [c for c, k in kinds.items() if k == "T"]
    names = sorted((c for c, k in kinds.items() if k == "N" and distinct[c] > 1), key=lambda c: c == "run_id")
    few = [c for c in names if distinct[c] <= _FEW_COLORS]
    if not measures:
        return QuickChart()
    if times:
        return QuickChart(times[0], measures[-1], few[0] if few else "", "line")
    color = next((c for c in few if c != names[0]), "")
    if names and distinct[names[0]] * distinct.get(color, 1) >= len(result) / 2:
        return QuickChart(measures[-1], names[0], color, "bar")
    if len(numbers) > 1:
        x = next(c for c in (*measures, *numbers) if c != measures[-1])
        return QuickChart(x, measures[-1], few[0] if few else "", "point")
    return QuickChart(measures[-1], names[0], color, "bar") if names else QuickChart()


def _columns(result: QueryResult) -> list[tuple[Any, ...]]:
    rows = result.rows()
    return list(zip(*rows, strict=True)) if rows else [()] * len(result.columns)


def _mark(x: str, y: str) -> str:
    if x == y == "Q":
        return "point"
    return "line" if "T" in (x, y) else "rect" if x == y == "N" else "bar"


def _draw(rows: list[dict[str, Any]], named: tuple[str, str, str], mark: str, kinds: Mapping[str, str]) -> alt.Chart:
    x, y, color = named
    chart = alt.Chart(alt.NamedData(name="rows"))
    options: dict[str, Any] = {"tooltip": True} | ({"filled": True, "size": 60} if mark == "point" else {})
    encoded: dict[str, Any] = {
        "x": alt.X(f"c0:{kinds[x]}", title=x, **_place(rows, "c0", x, kinds[x], mark)),
        "y": alt.Y(f"c1:{kinds[y]}", title=y, **_place(rows, "c1", y, kinds[y], mark)),
    }
    values = list(dict.fromkeys(str(r["c2"]) for r in rows)) if color else []
    if color and (kinds[color] != "N" or len(values) > _MOST_COLORS):
        scale = alt.Scale(scheme=HEAT) if kinds[color] == "Q" else alt.Undefined
        legend = None if kinds[color] == "N" else alt.Undefined
        encoded["color"] = alt.Color(f"c2:{kinds[color]}", title=color, scale=scale, legend=legend)
    elif color:
        encoded["color"] = series_color("c2", values, color)
    height = bar_height(len({str(r["c1"]) for r in rows})) if kinds[y] == "N" else 320
    drawn: alt.Chart = getattr(chart, f"mark_{mark}")(**options).encode(**encoded)
    return drawn.properties(width=WIDTH, height=height)


def _place(rows: list[dict[str, Any]], key: str, column: str, kind: str, mark: str) -> dict[str, Any]:
    if kind == "N":
        return {"sort": list(dict.fromkeys(r[key] for r in rows if r[key] is not None))}
    if kind == "T":
        return {}
    said = re.search(r"\(([^()]+)\)$", column)
    unit = said[1] if said else next((u for end, u in _UNITS.items() if column.endswith(end)), "")
    return {"axis": axis(unit), "scale": alt.Scale(zero=mark in ("bar", "area"))}
