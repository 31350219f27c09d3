"""Defines the figure that every chart function returns, and draws it for pages and papers."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import dataclass
from inspect import cleandoc
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import altair as alt

from tracewarehouse.comparison.compare import referenced_run_ids
from tracewarehouse.dashboards.registry import CHARTS, Chart
from tracewarehouse.dashboards.theme import WIDTH, bar_height, by_phase, config, named_color, tooltips
from tracewarehouse.ingest.errors import WarehouseError, system_refusals
from tracewarehouse.ingest.lake.durable_files import placed_whole
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

_ROWS = "rows"

ENDINGS = (".html", ".png", ".svg", ".pdf", ".json")
"""The endings of the files that a figure can be saved as."""
COLUMN_MM: Final = 85.0
"""Width of a single column in millimetres."""

DOTS_PER_INCH: Final = 300

_POINTS_PER_MM = 72 / 25.4
_LETTERS = 7
_LETTER_WIDTH = 0.55
"""Mean width of a letter, as a share of its size."""
_SMALLER = 0.6
"""Factor of the sizes that do not fill the place, from the page to the paper."""
_NARROWEST = 40
_MOST_NAMED = 4


class NothingToDraw(WarehouseError):  # noqa: N818  the absence of data is an answer, not a fault
    """The warehouse lacks what a chart draws; the text says what is missing."""


@dataclass(frozen=True)
class Drawn:
    """The rows that a chart draws, their query with all parameters filled in, and a sentence on predicted runs."""

    entry: Chart
    sql: str
    rows: list[dict[str, Any]]
    predicted: str

    @property
    def data(self) -> alt.NamedData:
        """The named data of an Altair chart that draws the rows; the figure adds the rows themselves later."""
        return alt.NamedData(name=_ROWS)

    def values(self, column: str) -> list[Any]:
        """The distinct values of a column, in the order of the rows."""
        return list(dict.fromkeys(r[column] for r in self.rows))

    def part_bars(
        self, bar: str, colors: dict[str, str], x: alt.X, tooltip: alt.Tooltip, *, has_ranges: bool = False
    ) -> Any:
        """Horizontal stacked bars of the parts of each value of a column, a panel per phase, in the order of the rows.

        Args:
            bar: the column that names a bar; the rows have phase, part and position too.
            colors: colours of the parts.
            x: the length of a part.
            tooltip: the tooltip of that length.
            has_ranges: rows have low_ms and high_ms, the range of the whole bar, or NULL.
        """
        bars = self.values(bar)
        chart: Any = (
            alt.Chart(self.data if not has_ranges else alt.Undefined)
            .mark_bar()
            .encode(
                x=x,
                y=alt.Y(f"{bar}:N", sort=bars, title=None),
                color=named_color("part", colors),
                order=alt.Order("position:Q"),
                tooltip=tooltips("phase:N", f"{bar}:N", "part:N", tooltip),
            )
        )
        if has_ranges:
            low = x.copy()
            low["shorthand"] = "low_ms:Q"
            ranged = alt.Chart().transform_filter("isValid(datum.low_ms)").mark_rule(strokeWidth=1.5)
            ranged = ranged.encode(x=low, x2="high_ms:Q", y=alt.Y(f"{bar}:N", sort=bars))
            chart = alt.layer(chart, ranged, data=self.data)
        return by_phase(chart, self.values("phase"), height=bar_height(len(bars)))

    def figure(self, chart: Any, subtitle: str, description: str, marks: str = "", **differing: Any) -> Figure:
        """The figure of an Altair chart; a name, a title or metrics that differ from the registry's can be given.

        Where runs are predicted, the subtitle says so, with `marks`, a sentence on how the chart marks them.
        """
        entry = self.entry
        caption = f"{self.predicted} {marks}".rstrip() if self.predicted else ""
        subtitle = f"{subtitle} {caption}".rstrip()
        same: dict[str, Any] = {n: getattr(entry, n) for n in ("name", "title", "metrics", "is_folded")}
        same |= {"subtitle": subtitle, "description": description, "caption": caption} | differing
        return Figure(drawn=self, chart=chart, **same)


def ask(warehouse: Warehouse, name: str, sql: str, *, needs: str = "", **parameters: Any) -> Drawn:
    """Run the query of a chart.

    Parameters, written as `$name`, are replaced by literals. DuckDB then opens only the files of the runs that they
    name, and the SQL can be run again as it stands. `run` may be an id or a name; `runs` and `against` may be several.

    Raises:
        NothingToDraw: the query has no row; the text is `needs`, or else that of the registry.
        WarehouseError: a run does not exist.
        QueryError: a view cannot be read.
    """
    if "run" in parameters:
        parameters["run"] = warehouse.run(parameters["run"]).run_id
    for several in parameters.keys() & {"runs", "against"}:
        parameters[several] = referenced_run_ids(warehouse, parameters[several])
    text = cleandoc(re.sub(r"\$(\w+)", lambda found: literal(parameters[found[1]]), sql))
    answer = warehouse.query(text)
    rows = [{k: plain(v) for k, v in row.items()} for row in answer.dicts()]
    if not rows:
        raise NothingToDraw(needs or CHARTS[name].needs)
    asked = {parameters.get("run"), *parameters.get("runs", ()), *parameters.get("against", ())} - {None}
    told = [run.name for run in answer.flagged_runs if "predicted" in run.flags and run.run_id in asked]
    names = ", ".join(told) if len(told) <= _MOST_NAMED else f"{len(told)} of {len(asked)} runs"
    which = f": {names}" if len(told) < len(asked) else ""
    return Drawn(CHARTS[name], text, rows, f"Predicted, not measured{which}." if told else "")


@dataclass(frozen=True)
class Figure:
    """A chart, and what a reader needs with it.

    Attributes:
        name: name of the chart, such as exposed-communication; part of file names and links.
        title: heading of the chart.
        subtitle: what is drawn, in a sentence or two.
        description: the main numbers in words, for readers who cannot see the chart.
        drawn: the rows that the chart draws, and their SQL.
        metrics: the metrics that the numbers come from.
        chart: the Altair chart, without title and configuration.
        is_folded: whether pages show it only when they are asked.
        caption: the part of the subtitle that says what is predicted, which pictures without title have too; '' if
            nothing is.
    """

    name: str
    title: str
    subtitle: str
    description: str
    drawn: Drawn
    metrics: tuple[str, ...]
    chart: Any
    is_folded: bool
    caption: str = ""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows that the chart draws."""
        return self.drawn.rows

    @property
    def sql(self) -> str:
        """The query that returns the rows; it can be run as it stands."""
        return self.drawn.sql

    def altair(self) -> Any:
        """The Altair chart with rows, title and configuration, which you can change or combine with others."""
        chart = self.chart.properties(title=alt.TitleParams(**self._heading), description=self.description)
        chart.config = alt.Config(**config() | {"background": "#ffffff"})
        chart.datasets = {_ROWS: self.rows}
        return chart

    def specification(self) -> dict[str, Any]:
        """The Vega-Lite specification for the page, which shows the title and sets the colours itself."""
        # the rows are added afterwards, as validating thousands of them takes seconds
        specification: dict[str, Any] = self.chart.properties(description=self.description).to_dict()
        return specification | {"datasets": {_ROWS: self.rows}}

    def save(self, output: str | Path, *, width_mm: float | None = None) -> Path:
        """Save the chart as .html (opens without a network), .png, .svg, .pdf, or .json (its rows and words).

        The file appears whole or not at all.

        Args:
            width_mm: draw a picture for a paper, as wide as this in millimetres: without title, but with a line on
                predicted runs, with letters of 7 points and, in a PNG, 300 dots per inch. By default the picture is as
                wide as on a page.
        """
        output = Path(output)
        refuse_other_endings(output)
        content = self._content_of(output.suffix.lower(), width_mm)
        with system_refusals(f"{output}: the chart cannot be written", WarehouseError), placed_whole(output) as part:
            part.write_bytes(content)
        return output

    def content(self) -> dict[str, Any]:
        """Everything but the drawing, as values for JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "subtitle": self.subtitle,
            "description": self.description,
            "metrics": list(self.metrics),
            "sql": self.sql,
            "rows": self.rows,
        }

    @property
    def _heading(self) -> dict[str, Any]:
        return {
            "text": self.title, "subtitle": textwrap.wrap(self.subtitle, 130), "anchor": "start", "offset": 10,
            "fontSize": 15, "subtitleFontSize": 12, "subtitleColor": "#5f6b76",
        }  # fmt: skip

    def _content_of(self, ending: str, width_mm: float | None) -> bytes:
        if ending == ".json":
            return (json.dumps(self.content(), indent=1, default=str) + "\n").encode()
        import vl_convert

        if width_mm is not None and ending != ".html":
            return drawing(self.specification(), ending, width_mm, self.caption)
        specification = self.specification() | {
            "title": self._heading,
            "config": config() | {"background": "#ffffff"},
        }
        if ending == ".png":
            return vl_convert.vegalite_to_png(specification, scale=2)
        if ending == ".pdf":
            return vl_convert.vegalite_to_pdf(specification)
        if ending == ".svg":
            return vl_convert.vegalite_to_svg(specification).encode()
        return vl_convert.vegalite_to_html(specification, bundle=True).encode()

    def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> dict[str, str]:
        from tracewarehouse.dashboards.vega import notebook_cell

        drawn = self.specification() | {"title": self._heading, "config": config() | {"background": "#ffffff"}}
        return {"text/html": notebook_cell(drawn, self.title), "text/plain": f"{self.title}. {self.description}"}


def refuse_other_endings(output: Path) -> None:
    """Raise a WarehouseError for a file that no figure can be saved as."""
    if output.suffix.lower() not in ENDINGS:
        raise WarehouseError(f"{output}: a chart can be saved as {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")


def plain(value: Any) -> Any:
    """A value that JSON can hold; infinity and NaN become None."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def drawing(specification: dict[str, Any], ending: str, width_mm: float = COLUMN_MM, caption: str = "") -> bytes:
    """The bytes of a file that draws a Vega-Lite specification, exactly as wide as asked for.

    Args:
        specification: the chart, without title.
        ending: .png (300 dots per inch), .pdf or .svg.
        width_mm: width in millimetres.
        caption: a line above it.
    """
    import vl_convert

    wanted = width_mm * _POINTS_PER_MM
    if caption:
        lines = textwrap.wrap(caption, int(wanted / (_LETTERS * _LETTER_WIDTH)))
        heading = {"text": lines, "anchor": "start", "offset": 4, "fontSize": _LETTERS, "fontWeight": "normal"}
        specification = specification | {"title": heading}
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
