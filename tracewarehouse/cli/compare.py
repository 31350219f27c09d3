"""`tw compare` and `tw check`: one run beside another, and against a baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tracewarehouse.compare import Difference

Metrics = Annotated[list[str] | None, typer.Option("--metric", "-m", help="These metrics only.")]
Unlike = Annotated[bool, typer.Option("--unlike", help="Also compare runs of other workloads.")]


def compare(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Run id, the beginning of one, or name.")],
    baseline: Annotated[str, typer.Argument(help="The run to compare with.")],
    metric: Metrics = None,
    unlike: Unlike = False,
    at_least: Annotated[float, typer.Option(min=0, help="Leave out what differs by less, in percent.")] = 0.0,
) -> None:
    """Compare a run with another, metric by metric: values, difference, and whether it is better or worse."""
    from tracewarehouse.compare import compare as compare_runs

    with context.obj.open() as warehouse:
        found = compare_runs(warehouse, run, baseline, metrics=metric or (), is_unlike_allowed=unlike)
    _print([d for d in found if d.relative is None or abs(d.relative) * 100 >= at_least])
    if not found:
        typer.echo("the runs have no metric value in common", err=True)


def check(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Run id, the beginning of one, or name.")],
    against: Annotated[str, typer.Option(help="The baseline run.")],
    max_regression: Annotated[float, typer.Option(min=0, help="Allowed loss, in percent of the baseline.")] = 5.0,
    metric: Metrics = None,
    unlike: Unlike = False,
) -> None:
    """Check a run against a baseline: prints what is worse by more than is allowed; exit code 1 when something is."""
    from tracewarehouse.compare import compare as compare_runs

    with context.obj.open() as warehouse:
        found = compare_runs(warehouse, run, against, metrics=metric or (), is_unlike_allowed=unlike)
    worse = [d for d in found if d.is_regression(max_regression / 100)]
    if worse:
        _print(worse)
        typer.echo(f"{len(worse)} of {len(found)} values are worse by more than {max_regression:g} %", err=True)
        raise typer.Exit(1)
    typer.echo(f"none of {len(found)} values is worse by more than {max_regression:g} %", err=True)


def _print(differences: list[Difference]) -> None:
    from tracewarehouse.text_table import draw

    rows = [
        (
            d.metric,
            ", ".join(f"{k} {v}" for k, v in d.dimensions.items()),
            d.baseline,
            d.value,
            d.unit,
            None if d.relative is None else f"{100 * d.relative:+.1f} %",
            d.verdict,
        )
        for d in differences
    ]
    for line in draw(("metric", "of", "baseline", "value", "unit", "change", "verdict"), rows):
        typer.echo(line)
