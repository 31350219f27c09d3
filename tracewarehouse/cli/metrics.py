"""`tw metrics`: the catalogue and the stored values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracewarehouse.output import Format, format_of, write

app = typer.Typer(help="The metrics: what they mean and what they are.", no_args_is_help=True, rich_markup_mode=None)

_FormatOption = Annotated[Format | None, typer.Option("--format", help="Default: table, or what the name of -o says.")]
_OutputOption = Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")]
_MetricOption = Annotated[
    list[str] | None, typer.Option("--metric", "-m", metavar="NAME", help="Only this metric; may be repeated.")
]


@app.command("list")
def list_metrics(context: typer.Context, output_format: _FormatOption = None, output: _OutputOption = None) -> None:
    """List every metric and version."""
    from tracewarehouse.warehouse import Warehouse

    with Warehouse(context.obj) as warehouse:
        result = warehouse.query(
            "SELECT metric, version, status, unit, split_part(split_part(description, '. ', 1), ': ', 1) "
            "AS meaning FROM metrics.catalog ORDER BY metric, version"
        )
    write(result, output_format or (format_of(output) if output else "table"), output)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The metric.", show_default=False)],
    version: Annotated[int | None, typer.Option(help="Version; the newest stable one without.")] = None,
) -> None:
    """Show what a metric means: sentence, unit, columns, versions and its SQL."""
    from tracewarehouse.definitions import load_definitions
    from tracewarehouse.warehouse import find_metric

    definitions = load_definitions()
    metric = find_metric(definitions, name, version)
    about = metric.header
    versions = [str(m.version) for m in definitions.metrics if m.name == metric.name]
    facts = {
        "view": f"metrics.{metric.view.name}",
        "status": about.status,
        "unit": about.unit,
        "polarity": about.polarity,
        "grain": ", ".join(about.grain),
        "value": about.value,
        "versions": ", ".join(versions),
        "reads": ", ".join(v.qualified for v in definitions.upstream(metric.view)) or None,
        "CCL-Bench": about.ccl_bench,
        "changed": " ".join(about.changed.split()),
        "deprecated": " ".join(about.deprecated.split()) if about.deprecated else None,
    }
    typer.echo(_wrapped(about.description))
    typer.echo()
    for label, fact in facts.items():
        if fact is not None:
            typer.echo(_wrapped(f"{label + ':':<12}{fact}", " " * 12))
    typer.echo("\ncolumns:")
    label_width = max(map(len, about.columns)) + 2
    for column, sentence in about.columns.items():
        typer.echo(_wrapped(f"  {column:<{label_width}}{' '.join(sentence.split())}", " " * (label_width + 2)))
    typer.echo(f"\n{metric.view.sql}")


def _wrapped(text: str, indent: str = "") -> str:
    import shutil
    import textwrap

    width = min(shutil.get_terminal_size().columns, 100)
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


@app.command()
def values(
    context: typer.Context,
    run: Annotated[
        list[str] | None, typer.Argument(help="Run ids, beginnings of them, or names; all runs without.")
    ] = None,
    metric: _MetricOption = None,
    version: Annotated[int | None, typer.Option(help="Only this version of the metrics.")] = None,
    output_format: _FormatOption = None,
    output: _OutputOption = None,
) -> None:
    """Print the stored values of the metrics; a metric that does not apply to a run has no row."""
    from tracewarehouse.warehouse import open_warehouse

    with open_warehouse(context.obj) as warehouse:
        result = warehouse.values(run or None, metrics=metric or None, version=version)
        stale = warehouse.stale_runs()
    if stale:
        names = ", ".join(r.name for r in stale[:5]) + (", ..." if len(stale) > 5 else "")
        typer.echo(
            f"note: {len(stale)} runs have values of other definitions ({names}); run `tw metrics refresh`", err=True
        )
    write(result, output_format or (format_of(output) if output else "table"), output)


@app.command()
def refresh(context: typer.Context) -> None:
    """Evaluate the metrics of runs whose stored values come from other definitions."""
    from tracewarehouse.warehouse import open_warehouse

    with open_warehouse(context.obj) as warehouse:
        for run in warehouse.refresh_metrics():
            typer.echo(f"{run.run_id}\t{run.name}\trefreshed\t{run.rows.get('metric_values', 0)} values")
