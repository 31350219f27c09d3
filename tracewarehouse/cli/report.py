"""`tw report` and `tw chart`: write pages, digests and pictures about runs, a comparison, or a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from tracewarehouse.cli.options import RunsArgument, a_folder, complete_charts
from tracewarehouse.cli.output import agreed_format
from tracewarehouse.ingest.errors import WarehouseError

Form = Literal["html", "md", "json", "png", "svg"]
_FORMS: tuple[Form, ...] = get_args(Form)

if TYPE_CHECKING:
    from tracewarehouse.dashboards.registry import Chart
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
        Form | None,
        typer.Option(
            "--format",
            "-f",
            help="html: a page; md: a digest; json: all rows; png, svg: charts. Default: html, or as -o ends.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File to write; - prints md or json. For png and svg: a folder, or the file of the only chart. "
            "[default: report.FORMAT]",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Compare runs of different workloads.")] = False,
) -> None:
    """Write a self-contained HTML page about a run, or several as a study: findings in words, charts, metric values."""
    if compare is not None and chart:
        raise WarehouseError("--compare draws all of its charts; leave --chart out")
    if (run is not None) + (compare is not None) + (study is not None) > 1:
        raise WarehouseError("runs, --compare and --study are three kinds of report; name one of them")
    from tracewarehouse.dashboards.writing import report_text, write_pictures, write_text

    form = agreed_format(form, output, {f".{f}": f for f in _FORMS})
    if form not in ("png", "svg") and output and output.suffix.lower() not in ("", *(f".{f}" for f in _FORMS)):
        raise typer.BadParameter(f"-o {output}: a report can be {', '.join(_FORMS)}; for PDF, print the page")
    form = form or "html"
    with context.obj.open() as warehouse:
        made = _report(warehouse, run, compare, study, chart or [], is_unlike_allowed=force)
    if (form == "png" or form == "svg") and output is not None and output.suffix == f".{form}":
        figures = made.figures()
        if len(figures) != 1:
            raise WarehouseError(
                f"{output} holds one chart, and there are {len(figures)}; name a folder, or one --chart"
            )
        typer.echo(figures[0][1].save(output))
    elif form == "png" or form == "svg":
        for path in write_pictures(made, a_folder(output) or Path("report"), form):
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
    from tracewarehouse.dashboards.registry import RUN_CHARTS
    from tracewarehouse.dashboards.report import comparison_report, run_report, study_report

    if compare is not None:
        return comparison_report(warehouse, *compare, is_unlike_allowed=is_unlike_allowed)
    if study is not None:
        return study_report(warehouse, study, charts)
    runs = list(dict.fromkeys(r.run_id for r in (warehouse.find(run) if run else warehouse.lake.runs())))
    if not runs:
        raise WarehouseError(f"the warehouse {warehouse.path} is empty; add runs with `tw ingest CAPTURE`")
    if len(runs) > 1 and not set(charts) & RUN_CHARTS.keys():
        return study_report(warehouse, runs, charts)
    return run_report(warehouse, runs, charts)


def chart(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(help="The chart, such as traffic.", show_default=False, autocompletion=complete_charts),
    ],
    run: RunsArgument = None,
    against: Annotated[
        str | None, typer.Option(metavar="RUN,...", help="The runs that a chart of a comparison compares with.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="SPLIT", help="Split a comparison by part, layer, category, collective, ...")
    ] = None,
    width: Annotated[
        float, typer.Option(min=20, max=1000, help="Width in millimetres; a single column of a paper by default.")
    ] = 85.0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A .svg, .pdf, .png, .html or .json file. [default: NAME.svg]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Compare runs of different workloads.")] = False,
) -> None:
    """Draw one chart for a paper: as wide as a column, without title, a PNG with 300 dots per inch."""
    from tracewarehouse.dashboards.figure import refuse_other_endings

    entry = _chart(name)
    if output is not None:
        refuse_other_endings(output)
    is_comparison = entry.subject == "comparison"
    if is_comparison != (against is not None):
        raise typer.BadParameter(
            f"{name} is a chart of a comparison; name the runs to compare with by --against"
            if is_comparison
            else f"{name} compares no runs; leave --against out, or draw {_named('comparison')}"
        )
    if by is not None and not is_comparison:
        raise typer.BadParameter(f"--by splits a comparison, and {name} is a chart of {_SUBJECTS[entry.subject]}")
    with context.obj.open() as warehouse:
        figure = entry(warehouse, *_subject(warehouse, entry, run, against, by, is_unlike_allowed=force))
    typer.echo(figure.save(output or Path(f"{figure.name}.svg"), width_mm=width))


_SUBJECTS = {"run": "one run", "runs": "many runs", "comparison": "a comparison"}


def _named(subject: str) -> str:
    from tracewarehouse.dashboards.registry import CHARTS

    return ", ".join(c.name for c in CHARTS.values() if c.subject == subject)


def _chart(name: str) -> Chart:
    from difflib import get_close_matches

    from tracewarehouse.dashboards.registry import CHARTS

    if name not in CHARTS:
        close = get_close_matches(name, CHARTS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(CHARTS)}"
        raise WarehouseError(f"there is no chart {name!r}; {hint}")
    return CHARTS[name]


def _subject(
    warehouse: Warehouse,
    entry: Chart,
    run: list[str] | None,
    against: str | None,
    by: str | None,
    *,
    is_unlike_allowed: bool,
) -> tuple[object, ...]:
    """What the function of a chart takes beside the warehouse."""
    from tracewarehouse.comparison.compare import SPLITS, comparing, referenced_run_ids

    if entry.subject == "run":
        runs = [r.run_id for r in (warehouse.find(run) if run else [warehouse.run("")])]
        if len(runs) != 1:
            raise WarehouseError(f"{entry.name} is a chart of one run, and {len(runs)} are named; name one")
        return (runs[0],)
    runs = [r.run_id for r in (warehouse.find(run) if run else warehouse.lake.runs())]
    if entry.subject == "runs":
        return (runs,)
    if not run:
        raise WarehouseError(f"name the runs that {entry.name} compares with {against}")
    if by is not None and by not in SPLITS:
        raise WarehouseError(f"a comparison is split by {', '.join(SPLITS)}, not by {by}")
    assert against is not None  # noqa: S101  checked by the caller
    theirs = referenced_run_ids(warehouse, against)
    with comparing(warehouse, runs, theirs, is_unlike_allowed=is_unlike_allowed):
        pass  # it refuses runs of different workloads
    return (runs, theirs, by or SPLITS[0])
