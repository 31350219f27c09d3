"""`tw runs` and `tw show`: list the runs, and sum one up."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracewarehouse.cli.options import FormatOption, OutputOption
from tracewarehouse.cli.output import chosen_format
from tracewarehouse.ingest.errors import WarehouseError, printable
from tracewarehouse.queries.output import write, write_table
from tracewarehouse.queries.result import CLOCKS

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracewarehouse.ingest.lake.manifest import UnreadRun
    from tracewarehouse.queries.result import QueryResult
    from tracewarehouse.queries.run_summary import Number, RunSummary, StepShare

_SUMMARY = """
WITH flags AS (
    SELECT run_id, string_agg(DISTINCT flag, ', ' ORDER BY flag) AS quality FROM main.quality_flags GROUP BY run_id
), clocks AS (
    SELECT run_id, string_agg(host || ' ' || printf('%+.3f us', clock_correction_ps / 1e6), ', ' ORDER BY host_index)
        AS clocks
    FROM main.hosts WHERE clock_correction_ps IS NOT NULL GROUP BY run_id
), inferred AS (
    SELECT run_id, string_agg(coalesce(axis, '?') || '=' || size, ',' ORDER BY "position") AS mesh
    FROM main.mesh_axes WHERE source = 'inferred' GROUP BY run_id
)
SELECT
    r.run_id,
    r.name,
    r.origin,
    r.backend,
    r.host_count AS hosts,
    r.device_count AS devices,
    r.mesh,
    i.mesh AS inferred_mesh,
    r.event_count AS events,
    coalesce(f.quality, 'ok') AS quality,
    c.clocks
FROM main.runs AS r
LEFT JOIN flags AS f ON f.run_id = r.run_id
LEFT JOIN clocks AS c ON c.run_id = r.run_id
LEFT JOIN inferred AS i ON i.run_id = r.run_id
ORDER BY r.name, r.run_id
"""
_NOTES = """
SELECT r.run_id, r.name, 'flag ' || f.flag || ': ' || coalesce(f.host || ': ', '') || f.detail AS note
FROM main.quality_flags AS f JOIN main.runs AS r ON r.run_id = f.run_id
ORDER BY r.name, r.run_id, f."index"
"""


def runs(
    context: typer.Context,
    notes: Annotated[bool, typer.Option("--notes", help="Also print the notes about each capture.")] = False,
    output_format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """List the runs with their quality flags and the corrections of their hosts' clocks.

    A run is `incomplete` if some of its files are missing. Runs that cannot answer come last: `outdated` ones (ingest
    the capture again) and `unreadable` ones (`tw fsck` says more). For every fact, flag and clock, query the tables
    main.runs, main.quality_flags and main.hosts.
    """
    from tracewarehouse.ingest.lake.manifest import unread_sentence

    with context.obj.open() as warehouse:
        unread = warehouse.unread_runs()
        lost: list[UnreadRun] = []
        try:
            listed = warehouse.lake.runs()
            if lost := warehouse.lake.lacking(listed):
                typer.echo(f"warning: {printable(unread_sentence(lost))}", err=True)
            if not listed:
                typer.echo(f"the warehouse {context.obj} is empty; add runs with `tw ingest CAPTURE`", err=True)
        except WarehouseError as error:  # none can be read
            if not unread:
                raise
            typer.echo(f"warning: {printable(str(error))}", err=True)
            result, notes = _listed(unread), False
        else:
            result = _listed(unread, _marked(warehouse.rows(_SUMMARY), {r.run_id for r in lost}))
        remarks = warehouse.rows(_NOTES).rows() + warehouse.rows(CLOCKS).rows() if notes else []
    chosen = chosen_format(context, output_format, output)
    if chosen == "table":
        write_table(_for_people(result), output)
    else:
        write(result, chosen, output)
    for _, name, text in sorted(remarks, key=lambda r: (r[1], r[0])):
        typer.echo(printable(f"{name}: {' '.join(text.split())}"), err=True)


def _for_people(result: QueryResult) -> dict[str, list[Any]]:
    """The columns that tell runs apart, few enough for a terminal of 80 columns."""
    rows = result.dicts()
    columns = {name: [r.get(name) for r in rows] for name in ("run_id", "name", "devices", "mesh", "quality", "clocks")}
    columns["mesh"] = [
        f"{r['inferred_mesh']} (inferred)" if r.get("inferred_mesh") and not r.get("mesh") else r.get("mesh")
        for r in rows
    ]
    columns["devices"] = [
        f"{r['devices']} {r['backend']}" + (f" on {r['hosts']} hosts" if r["hosts"] != 1 else "")
        if r.get("devices") is not None
        else None
        for r in rows
    ]
    return columns


def _marked(result: QueryResult, lost: Collection[str]) -> QueryResult:
    """The runs, with those that have lost files marked as incomplete."""
    if not lost:
        return result
    import pyarrow as pa

    from tracewarehouse.queries.result import QueryResult

    rows = result.arrow()
    ids, quality = (rows.column(name).to_pylist() for name in ("run_id", "quality"))
    marked = ["incomplete" if run_id in lost else q for run_id, q in zip(ids, quality, strict=True)]
    return QueryResult(rows.set_column(rows.column_names.index("quality"), "quality", pa.array(marked, pa.string())))


def _listed(unread: list[UnreadRun], readable: QueryResult | None = None) -> QueryResult:
    if not unread and readable is not None:
        return readable
    import pyarrow as pa

    from tracewarehouse.queries.result import QueryResult

    columns = {
        "run_id": [r.run_id for r in unread],
        "name": [r.name for r in unread],
        "quality": ["outdated" if r.is_outdated else "unreadable" for r in unread],
    }
    rows = pa.table(columns, schema=pa.schema(dict.fromkeys(columns, pa.string())))
    if readable is not None:
        rows = pa.concat_tables([readable.arrow(), rows], promote_options="default")
    return QueryResult(rows)


_PART_MARKS = {
    "matrix": "█",
    "attention": "▓",
    "other compute": "▒",
    "waiting for copies": "≈",
    "exposed communication": "X",
    "idle": "·",
}
"""The characters of the parts of a step."""

_UNSAID = ("Balance of devices", "Odd layer")
"""The answers that neither numbers, bars and sentences nor flags give."""

_LABEL = 12
_NAME = 24
_NUMBER = 22


def show(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Run id, or the beginning of an id or a name.", show_default=False)] = "",
    missing: Annotated[
        bool, typer.Option("--missing", help="Also list what cannot be known of the run, and how to get it.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Show a run on one screen: what ran, its main numbers, where a step goes, and what would shorten it.

    A warehouse of one run needs no name. `tw metrics values RUN` prints all values, `tw report RUN` draws the run.
    """
    with context.obj.open() as warehouse:
        summary = warehouse.summary(run)
    if json:
        from tracewarehouse.queries.output import dump

        typer.echo(dump(summary.to_dict()))
        return
    width = min(shutil.get_terminal_size().columns, 100)
    for line in _lines(summary, width, with_missing=missing):
        typer.echo(line)


def _lines(summary: RunSummary, width: int, *, with_missing: bool) -> Iterator[str]:
    from tracewarehouse.dashboards import words
    from tracewarehouse.queries.run_summary import labelled, title

    yield from _wrapped(title(summary.facts), width)
    for label, text in labelled(summary.facts):
        yield from _wrapped(f"{label:<{_LABEL}}{text}", width, _LABEL)
    yield ""
    for name, numbers in groupby(summary.numbers, key=lambda n: n.name):
        yield from _number_lines(name, list(numbers), width)
    for phase, shares in groupby(summary.steps, key=lambda s: s.phase):
        yield ""
        yield from _step_bar(phase, list(shares), width)
    for sentence, _ in words.findings(summary):
        yield from _wrapped(sentence, width)
    for label, text in words.answers(summary):
        if label in _UNSAID:
            yield from _wrapped(f"{label:<{_NAME}}{text}", width, _NAME)
    if summary.flags:
        yield "\nRead with care:"
        for flag in summary.flags:
            where = f"{flag.host}: " if flag.host else ""
            yield from _wrapped(f"  {flag.flag}: {where}{flag.detail}", width, 4)
    if summary.missing and not with_missing:
        yield f"\n{len(summary.missing)} metrics need something that this capture lacks; --missing says what."
    elif summary.missing:
        yield "\nMissing:"
        for reason, metrics in summary.reasons.items():
            yield from _wrapped(f"  {', '.join(metrics)}: {reason}", width, 4)


def _number_lines(name: str, numbers: list[Number], width: int) -> Iterator[str]:
    from tracewarehouse.dashboards.words import quantity

    cells = [f"{n.part_in_words} {quantity(n.value, n.unit)}".strip() for n in numbers if n.value is not None]
    if cells:
        yield from _wrapped(f"{name:<{_NAME}}{''.join(f'{c:<{_NUMBER}}  ' for c in cells)}", width, _NAME)


def _step_bar(phase: str, shares: Sequence[StepShare], width: int) -> Iterator[str]:
    from tracewarehouse.dashboards.words import median_apart, quantity

    ordered = sorted(shares, key=lambda s: s.position)
    whole = quantity(sum(s.mean_ms for s in shares), "ms", 4)
    count = "1 step" if shares[0].steps == 1 else f"{shares[0].steps} steps"
    said = f"A {phase} step takes {whole} (mean over devices, of {count}{median_apart(shares)}):".replace("  ", " ")
    yield from _wrapped(said, width)
    yield "".join(_PART_MARKS[s.part] * round((s.share or 0) * width) for s in ordered)[:width]
    legend = [f"{_PART_MARKS[s.part]} {s.part} {quantity(s.share, 'ratio')}".replace(" ", "\u00a0") for s in ordered]
    yield from (line.replace("\u00a0", " ") for line in textwrap.wrap("   ".join(legend), width))


def _wrapped(text: str, width: int, indent: int = 0) -> Iterator[str]:
    """A text as lines for a terminal; if it fits on one line, it keeps its alignment."""
    line = printable(text).rstrip()
    if len(line) <= width:
        yield line
        return
    yield from textwrap.wrap(line, width, subsequent_indent=" " * indent, break_on_hyphens=False)
