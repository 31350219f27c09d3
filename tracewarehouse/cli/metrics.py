"""`tw metrics`: the catalogue and the stored values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracewarehouse.cli.options import (
    FormatOption,
    MetricsOption,
    OutputOption,
    RunsArgument,
    a_folder,
    complete_metrics,
)
from tracewarehouse.cli.output import chosen_format, say_flags, say_note
from tracewarehouse.ingest.errors import WarehouseError, system_refusals
from tracewarehouse.queries.output import write, write_table

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracewarehouse.definitions.definition import Metric
    from tracewarehouse.definitions.reading import Definitions
    from tracewarehouse.queries.result import QueryResult

app = typer.Typer(help="What the metrics mean, and their stored values.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_metrics(context: typer.Context, output_format: FormatOption = None, output: OutputOption = None) -> None:
    """List every metric and version."""
    from tracewarehouse.warehouse import Warehouse

    with Warehouse(context.obj.warehouse, context.obj.sql) as warehouse:
        result = warehouse.rows(
            "SELECT metric, version, status, unit, split_part(split_part(description, '. ', 1), ': ', 1) "
            "AS meaning FROM metrics.catalog ORDER BY metric, version"
        )
    chosen = chosen_format(context, output_format, output)
    if chosen != "table":
        write(result, chosen, output)
        return
    rows = result.dicts()
    write_table(_list_for_people([r for r in rows if r["status"] != "compatibility"]), output)
    if others := [r["metric"] for r in rows if r["status"] == "compatibility"]:
        say_note(f"{len(others)} more compute what another tool does: {', '.join(others)}")


def _list_for_people(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Columns: the metric (with its version unless 1, its status unless stable), its unit, and its meaning."""
    return {"metric": [_named(r) for r in rows], **{n: [r[n] for r in rows] for n in ("unit", "meaning")}}


def _named(row: dict[str, Any]) -> str:
    """The name of a metric, with its version unless 1 and its status unless stable."""
    status = row["status"] or "no definition"
    named = row["metric"] if row["version"] == 1 else f"{row['metric']} v{row['version']}"
    return named if status == "stable" else f"{named} ({status})"


@app.command()
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The metric.", show_default=False, autocompletion=complete_metrics)],
    version: Annotated[int | None, typer.Option(help="Version; default: the newest stable one.")] = None,
) -> None:
    """Show what a metric means: description, unit, columns, versions and SQL."""
    definitions = context.obj.definitions()
    metric = _metric(definitions, name, version)
    if metric is None:
        return
    about = metric.header
    versions = [str(m.version) for m in definitions.metrics if m.name == metric.name]
    facts = {
        "view": f"metrics.{metric.view.name}",
        "status": about.status,
        "unit": about.unit,
        "polarity": about.polarity,
        "scope": about.scope,
        "grain": ", ".join(about.grain),
        "value": about.value,
        "versions": ", ".join(versions),
        "needs": ", ".join(n.precondition for n in definitions.needs(metric)) or None,
        "reads": ", ".join(v.qualified for v in definitions.upstream(metric.view)) or None,
        "CCL-Bench": about.ccl_bench,
        "changed": " ".join(about.changed.split()),
        "deprecated": " ".join(about.deprecated.split()) if about.deprecated else None,
    }
    for text in filter(None, (about.description, about.notes)):
        typer.echo(f"{_wrapped(text)}\n")
    for label, fact in facts.items():
        if fact is not None:
            typer.echo(_wrapped(f"{label + ':':<12}{fact}", " " * 12))
    typer.echo("\ncolumns:")
    label_width = max(map(len, about.columns)) + 2
    for column, sentence in about.columns.items():
        typer.echo(_wrapped(f"  {column:<{label_width}}{' '.join(sentence.split())}", " " * (label_width + 2)))
    typer.echo(f"\n{metric.view.sql}")


def _metric(definitions: Definitions, name: str, version: int | None) -> Metric | None:
    """The metric of a name, ours or CCL-Bench's; print a published value that is no metric, and return None."""
    from tracewarehouse.exports.ccl_bench.values import METRIC_INFO, definition_of

    if name in definitions.aliases or (view := definition_of(definitions, name)) is None:
        return definitions.metric(name, version)
    if (info := METRIC_INFO.get(name)) is None:
        say_note(f"{name} is the name under which CCL-Bench publishes this metric")
        return next(m for m in definitions.metrics if m.view is view)
    typer.echo(f"{_wrapped(str(info['description']))}\n")
    typer.echo(f"published in CCL-Bench as {name}, in {info['unit']}; a column of {view.qualified}\n\n{view.sql}")
    return None


def _wrapped(text: str, indent: str = "") -> str:
    import shutil
    import textwrap

    width = min(shutil.get_terminal_size().columns, 100)
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


@app.command()
def values(
    context: typer.Context,
    run: RunsArgument = None,
    metric: MetricsOption = None,
    version: Annotated[int | None, typer.Option(help="Only this version of the metrics.")] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also metrics with a row per step, layer, pair of devices or instruction.")
    ] = False,
    output_format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Print metric values: those of a run as a whole, or all of the metrics that -m names.

    A metric that does not apply to a run has no row; `tw show RUN` says why.
    """
    chosen = chosen_format(context, output_format, output)
    with context.obj.open() as warehouse:
        runs = [r.run_id for r in warehouse.find(run)] if run else None
        names = metric or ([m.name for m in _answering(warehouse.definitions)] if show_all else None)
        result = warehouse.values(runs, metrics=names, version=version)
        detailed = [] if names else [m.name for m in warehouse.definitions.metrics if m.header.is_per_part]
        stale = warehouse.stale_runs(runs)
    result, left_out = _without(result, detailed)
    if stale:
        named = ", ".join(r.name for r in stale[:5]) + (", ..." if len(stale) > 5 else "")
        say_note(f"{len(stale)} runs have values of older definitions ({named}); run `tw metrics refresh`")
    if chosen == "table":
        write_table(_for_people(result), output)
    else:
        write(result, chosen, output)
    if left_out:
        say_note(
            f"left out {', '.join(left_out)}, which have a row per step, layer or pair of devices; -m NAME or --all "
            "prints them"
        )
    say_flags(result.flagged_runs)


def _answering(definitions: Definitions) -> list[Metric]:
    """The metrics that are neither deprecated nor another tool's."""
    return [m for m in definitions.aliases.values() if m.header.status not in ("deprecated", "compatibility")]


def _without(result: QueryResult, metrics: Collection[str]) -> tuple[QueryResult, list[str]]:
    """The rows of all metrics but these, and the names of those left out that have rows."""
    if not (left_out := result.distinct("metric").intersection(metrics)):
        return result, []
    place = result.columns.index("metric")
    return result.kept([row[place] not in left_out for row in result.rows()]), sorted(left_out)


def _for_people(result: QueryResult) -> dict[str, list[Any]]:
    """The columns that tell rows apart, with the dimensions as text, so that rows fit a terminal of 80 columns."""
    import json

    rows = result.dicts()
    ids = {r["name"]: {q["run_id"] for q in rows if q["name"] == r["name"]} for r in rows}
    columns: dict[str, list[Any]] = {"run": [r["name"] if len(ids[r["name"]]) == 1 else r["run_id"] for r in rows]}
    columns["metric"] = [_named(r) for r in rows]
    columns["of"] = [" ".join(f"{k}={v}" for k, v in json.loads(r["dimensions"]).items()) for r in rows]
    columns["value"] = [r["value"] for r in rows]
    columns["unit"] = [r["unit"] for r in rows]
    if len(ids) == 1:  # a user who asks for one run knows its name
        del columns["run"]
    return columns


@app.command()
def docs(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Only this metric; default: all metrics and an index.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Write metrics.md and metrics/NAME.md there.", callback=a_folder
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 if a page in DIR is out of date.")
    ] = False,
) -> None:
    """Write a Markdown page about each metric: columns, versions, SQL, lineage and real rows.

    Without -o, print the index, or the page of one metric. With --sql, your own metrics have pages too. Their
    rows come from the runs of the warehouse.
    """
    from tracewarehouse.definitions.pages import index_page, metric_page, metric_pages
    from tracewarehouse.warehouse import Warehouse

    if check and output is None:
        raise typer.BadParameter("--check compares with the pages in a folder; name it with -o DIR")
    by = "`tw metrics docs`"
    with Warehouse(context.obj.warehouse, context.obj.sql) as warehouse:
        definitions = warehouse.definitions
        if name is not None:
            definitions.metric(name)
        if output is None:
            page = metric_page(definitions, warehouse.query, name, by) if name else index_page(definitions, by)
            typer.echo(page, nl=False)
            return
        if name is not None:
            texts = {output / "metrics" / f"{name}.md": metric_page(definitions, warehouse.query, name, by)}
        else:
            pages = metric_pages(definitions, warehouse.query, by)
            texts = {output / "metrics.md": index_page(definitions, by)}
            texts |= {output / "metrics" / f"{metric}.md": text for metric, text in pages.items()}
    stale = [p for p, text in texts.items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    if check:
        for path in stale:
            typer.echo(f"{path} is not current; run `tw metrics docs -o {output}`", err=True)
        raise typer.Exit(1 if stale else 0)
    with system_refusals(f"{output}: the pages cannot be written", WarehouseError):
        (output / "metrics").mkdir(parents=True, exist_ok=True)
        for path in stale:
            path.write_text(texts[path], encoding="utf-8")
    typer.echo(f"{output}: {len(texts)} pages, {len(stale)} of them new or changed")


@app.command()
def refresh(context: typer.Context) -> None:
    """Evaluate the metrics again for the runs whose stored values come from older definitions."""
    with context.obj.open() as warehouse:
        for run in warehouse.refresh_metrics():
            typer.echo(f"{run.run_id}\t{run.name}\trefreshed\t{run.rows.get('metric_values', 0)} values")
        _note_portability(warehouse.definitions)


@app.command()
def lock(
    context: typer.Context,
    accept_models: Annotated[
        bool, typer.Option("--accept-models", help="Accept changed models. First make sure that all cases pass.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 if something has changed.")
    ] = False,
) -> None:
    """Record the fingerprint of every released version, so that a changed meaning is noticed.

    A version is released once its status is stable. This locks the package's metrics or, with --sql, your own.
    """
    from tracewarehouse.definitions.lock import LOCK, changes, definitions_folder, read_lock, write_lock

    definitions = context.obj.definitions()
    folder = definitions_folder(context.obj.sql)
    path = folder / LOCK.name
    _note_portability(definitions)
    if check:
        if changed := changes(definitions, read_lock(path)):
            typer.echo("\n".join(changed), err=True)
            raise typer.Exit(1)
        return
    written = write_lock(definitions, path, accept_models=accept_models)
    typer.echo(f"{path}: {len(written.metrics)} metric versions, {len(written.models)} models")


@app.command()
def new(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The new metric.", show_default=False)],
    topic: Annotated[
        str | None, typer.Option(help="Folder for its SQL, such as steps; the package's metrics need one.")
    ] = None,
    needs: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What a run must have, as in preconditions.yaml; one that is new is added."),
    ] = None,
) -> None:
    """Start a metric: write its SQL, a case and what it needs, and print the files.

    They go into the folder of --sql, or into the package's in a checkout. The draft works; change what it computes.
    """
    from tracewarehouse.definitions.lock import new_metric

    written = new_metric(name, context.obj.sql, topic, needs or ())
    for path in written:
        typer.echo(path)
    own = "" if context.obj.sql is None else f" --sql {context.obj.sql}"
    say_note(
        f"change the SQL, the case and each TODO; once its status is stable, `tw{own} metrics lock` locks what it means"
    )
    if context.obj.sql is not None:
        say_note(f"in a checkout, TRACEWAREHOUSE_SQL={context.obj.sql} pytest tests/sql/test_cases.py runs its cases")
    elif any(path.name == "preconditions.yaml" for path in written):
        say_note("a new precondition needs a case in tests/sql/test_missing.py")


@app.command("new-version")
def start_version(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The metric.", show_default=False, autocompletion=complete_metrics)],
) -> None:
    """Start a new version of a metric as a copy of the newest one, and print its file."""
    from tracewarehouse.definitions.lock import definitions_folder, new_version

    definitions = context.obj.definitions()
    definitions.metric(name)
    typer.echo(new_version(definitions, name, definitions_folder(context.obj.sql)))
    typer.echo(
        "note: change it, say in `changed` what is new, then set its status to stable: `tw metrics lock`", err=True
    )


def _note_portability(definitions: Definitions) -> None:
    from tracewarehouse.definitions.portable import portability_notes

    for note in portability_notes(definitions):
        typer.echo(f"note: {note}", err=True)
