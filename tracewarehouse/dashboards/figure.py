"""Defines the figure that every chart function returns: a chart with its rows, its SQL, and a description in words.

A chart function takes a warehouse and what to draw, such as a run's id or name, and returns a `Figure`. If the
warehouse lacks the data, it raises `NothingToDraw`, whose text says why.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracewarehouse.dashboards.theme import config
from tracewarehouse.dashboards.units import quantity
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

_ROWS = "rows"

ENDINGS = (".html", ".png", ".svg", ".json")
"""The endings of the files that a figure can be saved as."""


class NothingToDraw(WarehouseError):  # noqa: N818  the absence of data is an answer, not a fault
    """The warehouse lacks what a chart draws; the text says what is missing."""


@dataclass(frozen=True)
class Drawn:
    """The rows that a query returned, and its SQL with all parameters filled in."""

    sql: str
    rows: list[dict[str, Any]]

    def __bool__(self) -> bool:
        return bool(self.rows)

    @cached_property
    def data(self) -> Any:
        """The named data of an Altair chart that draws the rows; the figure adds the rows themselves later."""
        import altair as alt

        return alt.NamedData(name=_ROWS)

    def values(self, column: str) -> list[Any]:
        """The distinct values of a column, in the order of the rows."""
        return list(dict.fromkeys(r[column] for r in self.rows))


def read(warehouse: Warehouse, sql: str, **parameters: Any) -> Drawn:
    """Run the query of a chart.

    Parameters, written as `$name`, are replaced by literals. DuckDB then opens only the files of the runs that they
    name, and the SQL can be run again as it stands.

    Raises:
        QueryError: a view cannot be read.
    """
    text = _dedented(re.sub(r"\$(\w+)", lambda name: literal(parameters[name[1]]), sql))
    return Drawn(text, [{k: plain(v) for k, v in row.items()} for row in warehouse.query(text).dicts()])


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
    """

    name: str
    title: str
    subtitle: str
    description: str
    drawn: Drawn
    metrics: tuple[str, ...]
    chart: Any

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
        import altair as alt

        heading = alt.TitleParams(
            self.title, subtitle=textwrap.wrap(self.subtitle, 130), anchor="start", fontSize=15, subtitleFontSize=12,
            offset=10, subtitleColor="#5f6b76",
        )  # fmt: skip
        chart = self.chart.properties(title=heading, description=self.description)
        chart.config = alt.Config(**config() | {"background": "#ffffff"})
        chart.datasets = {_ROWS: self.rows}
        return chart

    def specification(self) -> dict[str, Any]:
        """The Vega-Lite specification for the page, which shows the title and sets the colours itself."""
        # the rows are added afterwards, as validating thousands of them takes seconds
        specification: dict[str, Any] = self.chart.properties(description=self.description).to_dict()
        return specification | {"datasets": {_ROWS: self.rows}}

    def save(self, output: Path) -> Path:
        """Save the chart as .html (opens without a network), .png, .svg, or .json (its rows and words).

        Raises:
            WarehouseError: the file has another ending, or cannot be written.
        """
        if output.suffix not in ENDINGS:
            raise WarehouseError(f"{output}: a chart can be saved as {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
        try:
            if output.suffix == ".json":
                import json

                output.write_text(json.dumps(self.content(), indent=1, default=str) + "\n", encoding="utf-8")
            else:
                self._draw(output)
        except OSError as error:
            raise WarehouseError(f"{output}: the chart cannot be written: {error.strerror or error}") from None
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

    def _draw(self, output: Path) -> None:
        import vl_convert

        heading = {"text": self.title, "subtitle": textwrap.wrap(self.subtitle, 130), "anchor": "start", "offset": 10}
        sizes = {"fontSize": 15, "subtitleFontSize": 12, "subtitleColor": "#5f6b76"}
        specification = self.specification() | {
            "title": heading | sizes,
            "config": config() | {"background": "#ffffff"},
        }
        if output.suffix == ".png":
            output.write_bytes(vl_convert.vegalite_to_png(specification, scale=2))
            return
        if output.suffix == ".svg":
            text = vl_convert.vegalite_to_svg(specification)
        else:
            text = vl_convert.vegalite_to_html(specification, bundle=True)
        output.write_text(text, encoding="utf-8")

    def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> Any:
        return self.altair()._repr_mimebundle_(*args, **kwargs)


def largest(rows: Sequence[Mapping[str, Any]], value: str, unit: str, *labels: str, most: int = 3) -> str:
    """Name the largest rows in words, for the description of a figure.

    Args:
        rows: the rows.
        value: the column of the value.
        unit: its unit.
        *labels: columns that name a row.
        most: how many rows to name.
    """
    known = [r for r in rows if r[value] is not None]
    ordered = sorted(known, key=lambda r: -r[value])
    named = [
        f"{' '.join(str(r[c]) for c in labels if r[c] not in (None, ''))} ({quantity(r[value], unit)})"
        for r in ordered[:most]
    ]
    rest = f"; {len(ordered) - most} more" if len(ordered) > most else ""
    return f"{'Largest first: ' if len(ordered) > 1 else ''}{', '.join(named)}{rest}."


def plain(value: Any) -> Any:
    """A value that JSON can hold; infinity and NaN become None."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _dedented(sql: str) -> str:
    lines = sql.strip("\n").splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()), default=0)
    return "\n".join([lines[0].strip(), *(line[margin:].rstrip() for line in lines[1:])]).strip()
