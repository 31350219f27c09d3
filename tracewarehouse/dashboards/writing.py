"""Writes a report: a page, a digest in Markdown, JSON, or a folder with a picture of each chart.

The page is one file that needs no network and is readable without colours, pointer or motion.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tracewarehouse.dashboards.report import Report, Section
from tracewarehouse.dashboards.theme import WIDTH, config
from tracewarehouse.dashboards.vega import script_json, vega_script
from tracewarehouse.ingest.errors import WarehouseError, system_refusals

if TYPE_CHECKING:
    from markupsafe import Markup

_MOST_CHANGES = 50
_CHANGES = ("worse", "better", "unknown", "not in run", "not in baseline", "different")
"""The verdicts of a comparison that the digest lists, in order."""


MOST_BYTES, MOST_NODES = 2_000_000, 20_000
"""What a page draws at once, in bytes of charts and in their marks; later charts wait until they are opened."""


def folded(charts: Mapping[str, Any], most_bytes: int, most_nodes: int) -> list[str]:
    """The names of the charts that a page does not draw until they are opened, as those before them fill it.

    Args:
        charts: specifications by the names of the charts, in the order of the page.
        most_bytes: bytes of the charts that are drawn at once.
        most_nodes: marks that they draw, a row in each layer being one.
    """
    sizes = accumulate(len(script_json(chart)) for chart in charts.values())
    marks = accumulate(map(_marks, charts.values()))
    return [n for n, size, count in zip(charts, sizes, marks, strict=True) if size > most_bytes or count > most_nodes]


def _marks(chart: Mapping[str, Any]) -> int:
    layers = chart.get("spec", chart).get("layer", ())
    return sum(len(rows) for rows in chart.get("datasets", {}).values()) * max(1, len(layers))


def report_text(report: Report, form: Literal["html", "md", "json"]) -> str:
    """Return the report as one text."""
    if form == "html":
        return _page(report)
    if form == "md":
        return _digest(report)
    return json.dumps(report.content(), indent=1, default=str) + "\n"


def write_text(report: Report, output: Path, form: Literal["html", "md", "json"] = "html") -> Path:
    """Write the report to one file and return the path; the file appears whole or not at all."""
    text = report_text(report, form)
    part = output.with_name(f".{output.name}.{uuid.uuid4().hex[:8]}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(output)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise WarehouseError(f"{output}: the report cannot be written: {error.strerror or error}") from None
    return output


def write_pictures(report: Report, folder: Path, form: Literal["png", "svg"]) -> list[Path]:
    """Write a picture of each chart into a folder and return their paths."""
    with system_refusals(f"{folder}: the charts cannot be written", WarehouseError):
        folder.mkdir(parents=True, exist_ok=True)
    return [figure.save(folder / f"{name}.{form}") for name, figure in report.figures()]


def _page(report: Report) -> str:
    import jinja2

    charts = {name: figure.specification() for name, figure in report.figures()}
    content = {
        "width": WIDTH,
        "config": config(),
        "charts": charts,
        "values": {
            s.key: [{"metric": v.metric, "columns": v.columns, "rows": v.rows} for v in s.values]
            for s in report.sections
        },
    }
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tracewarehouse.dashboards"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["prose"] = prose
    return environment.get_template("report.html.j2").render(
        report=report,
        figures=report.figures(),
        content=script_json(content),
        folded=folded(charts, MOST_BYTES, MOST_NODES),
        script=vega_script().replace("</script", "<\\/script"),
    )


_UNITS = r"(?:%|[mµnp]?s|[kMGTP]?(?:B|FLOP)(?:/s)?|tokens/s|USD)"
_NUMBER_AND_UNIT = re.compile(rf"(?<=\d) (?={_UNITS}(?!\w))")
_NEGATIVE = re.compile(r"(?<![\w.)-])-(?=\d)")
_HYPHENATED = re.compile(r"(?<![\w-])[A-Za-z]+(?:-[A-Za-z]+){1,3}(?![\w-])")
_CODE = re.compile("`([^`]+)`")


def prose(text: str) -> Markup:
    """HTML of a text: text between backticks is code; a number with its sign and unit, or all-to-all, stays whole."""
    from markupsafe import Markup, escape

    parts = _CODE.split(str(escape(text)))  # plain text and code by turns
    for at, part in enumerate(parts):
        if at % 2:
            parts[at] = f"<code>{part}</code>"
        else:
            parts[at] = _HYPHENATED.sub(
                r'<span class="whole">\g<0></span>', _NUMBER_AND_UNIT.sub("\u00a0", _NEGATIVE.sub("\u2212", part))
            )
    return Markup("".join(parts))  # noqa: S704  escaped before


def _digest(report: Report) -> str:
    lines = [f"# {_text(report.title)}"]
    for section in report.sections:
        lines += [""] if len(report.sections) == 1 else ["", f"## {_text(section.title)}", ""]
        lines += _digest_lines(section)
    return "\n".join(lines) + "\n"


def _digest_lines(section: Section) -> Iterator[str]:
    yield "; ".join(f"{_text(label)}: {_text(text)}" for label, text in section.facts)
    for sentence in section.words:
        yield ""
        yield _text(sentence)
    if section.tiles:
        yield ""
        yield from _table(("number", "value", ""), section.tiles)
    if section.key == "comparison":
        changed = [(v.metric, *row) for v in section.values for row in v.rows if row[-1] in _CHANGES]
        changed.sort(key=lambda row: _CHANGES.index(row[-1]))
        if changed:
            yield ""
            yield from _table(("metric", *section.values[0].columns), changed[:_MOST_CHANGES])
        if len(changed) > _MOST_CHANGES:
            yield ""
            yield f"{len(changed) - _MOST_CHANGES} more values changed."
    elif section.key == "study":
        for values in section.values:
            yield ""
            yield from _table(values.columns, values.rows)
    if section.notes:
        yield ""
        yield "Read with care:"
        yield ""
        yield from (f"- {_text(note)}" for note in section.notes)
    if section.unknown:
        yield ""
        yield "What cannot be known:"
        yield ""
        yield from (f"- {_text(metrics)}: {_text(reason)}" for metrics, reason in section.unknown)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(map(_text, columns))} |"
    yield f"|{' --- |' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(_text(cell) for cell in row)} |"


def _text(text: str) -> str:
    """Escape a text so that Markdown shows it literally; names come from captures."""
    for mark in "\\`*_[]<>|":
        text = text.replace(mark, f"&#{ord(mark)};")
    return " ".join(text.split())
