"""`tw report`: write pages, digests and pictures about runs, a comparison, or a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tracewarehouse.cli.options import RunsArgument
from tracewarehouse.ingest.errors import WarehouseError

if TYPE_CHECKING:
    from tracewarehouse.dashboards.report import Report
    from tracewarehouse.warehouse import Warehouse


def report(
    context: typer.Context,
    run: RunsArgument = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option("--compare", metavar="RUN BASELINE", help="Report what changed from the second run to the first."),
    ] = None,
    study: Annotated[
        str | None, typer.Option("--study", metavar="SQL", help="Report on the runs whose run_id this SELECT gives.")
    ] = None,
    chart: Annotated[
        list[str] | None,
        typer.Option("--chart", metavar="NAME", help="Draw only this chart; give it several times for several."),
    ] = None,
    form: Annotated[
        Literal["html", "md", "json", "png", "svg"],
        typer.Option("--format", "-f", help="html: a page; md: a digest; json: all rows; png, svg: charts."),
    ] = "html",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File to write, - to print md or json; for png and svg a folder. [default: report.FORMAT]",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Compare runs of different workloads.")] = False,
) -> None:
    """Write a self-contained HTML page about runs: findings in words, charts, metric values."""
    if compare is not None and chart:
        raise WarehouseError("--compare draws all of its charts; leave --chart out")
    if (run is not None) + (compare is not None) + (study is not None) > 1:
        raise WarehouseError("runs, --compare and --study are three kinds of report; name one of them")
    from tracewarehouse.dashboards.writing import report_text, write_pictures, write_text

    with context.obj.open() as warehouse:
        made = _report(warehouse, run, compare, study, chart or [], is_unlike_allowed=force)
    if form == "png" or form == "svg":
        for path in write_pictures(made, output or Path("report"), form):
            typer.echo(path)
    elif str(output) == "-":
        typer.echo(report_text(made, form), nl=False)
    else:
        typer.echo(write_text(made, output or Path(f"report.{form}"), form))


def _report(
    warehouse: Warehouse,
    run: list[str] | None,
    compare: tuple[str, str] | None,
    study: str | None,
    charts: list[str],
    *,
    is_unlike_allowed: bool,
) -> Report:
    from tracewarehouse.dashboards.report import comparison_report, run_report, study_report

    if compare is not None:
        return comparison_report(warehouse, *compare, is_unlike_allowed=is_unlike_allowed)
    if study is not None:
        return study_report(warehouse, study, charts)
    runs = list(dict.fromkeys(r.run_id for r in (warehouse.find(run) if run else warehouse.lake.runs())))
    if not runs:
        raise WarehouseError(f"the warehouse {warehouse.path} is empty; add runs with `tw ingest CAPTURE`")
    return run_report(warehouse, runs, charts)
