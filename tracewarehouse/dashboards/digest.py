"""Writes the digest of a report in Markdown, for the summary of a continuous integration run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracewarehouse.dashboards.report import Report, Section

_MOST = 50
_CHANGES = ("worse", "better", "not in run", "not in baseline", "different")
"""The verdicts of a comparison that the digest lists, in order."""


def markdown(report: Report) -> str:
    """Write the report as words, numbers and tables, without charts."""
    lines = [f"# {_text(report.title)}"]
    for section in report.sections:
        lines += [""] if len(report.sections) == 1 else ["", f"## {_text(section.title)}", ""]
        lines += _of_section(section)
    return "\n".join(lines) + "\n"


def _of_section(section: Section) -> Iterator[str]:
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
            yield from _table(("metric", *section.values[0].columns), changed[:_MOST])
        if len(changed) > _MOST:
            yield ""
            yield f"{len(changed) - _MOST} more values changed."
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
