"""`tw compare`, `tw check` and `tw baseline`: compare runs with others, and check them against baselines."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracewarehouse.cli.options import FormatOption, MetricsOption, OutputOption, complete_runs
from tracewarehouse.cli.output import chosen_format, say_flags, say_note
from tracewarehouse.ingest.errors import TracewarehouseError, printable, system_refusals
from tracewarehouse.queries.output import Format, write
from tracewarehouse.queries.result import flagged

if TYPE_CHECKING:
    from tracewarehouse.comparison.compare import Check, Comparison, Limits
    from tracewarehouse.queries.result import QueryResult

Force = Annotated[bool, typer.Option("--force", help="Compare runs although their workloads differ.")]
Run = Annotated[
    str,
    typer.Argument(
        help="Run id, beginning of an id, or name. Separate several by commas.",
        show_default=False,
        autocompletion=complete_runs,
    ),
]

_WIDTH = 80
_NO_STEPS = "no phase has steps on both sides, or one is a baseline file, which holds values only"


def _percent(text: str | float) -> float:
    """The share that '5%' or '5' states."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*%?\s*", str(text))
    if match is None:
        raise typer.BadParameter(f"expected a percentage such as 5%, found {text!r}")
    return float(match[1]) / 100


def _difference(text: str) -> tuple[str, float]:
    """The metric, and the number in its unit, that 'NAME=NUMBER' states."""
    match = re.fullmatch(r"\s*(\w+)\s*=\s*([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*", text)
    if match is None or not isfinite(float(match[2])):
        raise typer.BadParameter(f"expected a metric and a number in its unit, such as host_gap=0.01, found {text!r}")
    return match[1], float(match[2])


def compare(
    context: typer.Context,
    run: Run,
    baseline: Annotated[
        str | None, typer.Argument(help="Runs or a baseline file to compare with.", show_default=False)
    ] = None,
    metric: MetricsOption = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="DIMENSION",
            help="Keep metrics with this dimension, such as phase, axis, layer; with --why also collective.",
        ),
    ] = None,
    why: Annotated[
        bool, typer.Option("--why", help="Print only what makes a step longer or shorter, in full.")
    ] = False,
    published: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Compare with CCL-Bench instead: with the rows of the same names in its benchmark_data.json.",
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print every value of every metric.")] = False,
    force: Force = False,
    at_least: Annotated[float, typer.Option(min=0, help="Leave out differences below so many percent.")] = 0.0,
    output_format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Say why a step of a run is longer or shorter than that of another, and which values changed most.

    Takes groups of runs too, and a baseline file. --all prints every value of every metric, and so do -m, --by and the
    formats for other programs. --why splits the step by part, layer, category, collective and operation.
    """
    from tracewarehouse.comparison.compare import SPLITS

    if (baseline is None) == (published is None):
        raise typer.BadParameter("name what to compare with: a BASELINE, or --published FILE")
    if published is not None:
        _compare_published(context, run, published, output_format, output)
        return
    assert baseline is not None  # noqa: S101  checked above
    if why and metric:
        raise typer.BadParameter("--why is about the time of a step; leave out -m")
    splits: dict[str, Any] = {s: s for s in SPLITS}
    if why and by is not None and by not in splits:
        raise typer.BadParameter(f"--why splits a step by {', '.join(SPLITS)}, not by {by}")
    chosen = chosen_format(context, output_format, output)
    with _compared(context, run, baseline, force, is_screen=chosen == "table" and output is None) as comparison:
        if why:
            steps = comparison.steps(splits[by] if by else None)
            if not len(steps):
                say_note(_NO_STEPS)
            write(steps if chosen != "table" else _steps_table(steps.dicts()), chosen, output)
            return
        values = comparison.values(metric or (), by)
        rows = [r for r in values.dicts() if r["relative"] is None or abs(r["relative"]) * 100 >= at_least]
        if not rows:
            typer.echo("note: there is no value to compare", err=True)
        if chosen != "table":
            write(_result(rows, values), chosen, output)
        elif every or metric or by is not None or output is not None:
            write(_table(rows, by), chosen, output)
        else:
            _print_screen(comparison.steps("part").dicts(), rows)


def _compare_published(
    context: typer.Context, run: str, file: Path, output_format: Format | None, output: Path | None
) -> None:
    import pyarrow as pa

    from tracewarehouse.exports.ccl_bench.values import PublishedValue, published_values
    from tracewarehouse.queries.result import QueryResult

    chosen = chosen_format(context, output_format, output)
    with context.obj.open() as warehouse:
        published = published_values(warehouse, [warehouse.run(r) for r in run.split(",")], file)
    names = [f.name for f in fields(PublishedValue)]
    if chosen == "table":  # the reasons do not fit beside the numbers
        names.remove("why")
    write(QueryResult(pa.table({n: [getattr(v, n) for v in published] for n in names})), chosen, output)
    if chosen == "table":
        for metric, reason in dict.fromkeys((v.metric, v.why) for v in published):
            typer.echo(f"{metric}: {reason}", err=output is not None)


def check(
    context: typer.Context,
    run: Run,
    against: Annotated[str, typer.Option(help="The baseline: runs, or a file that `tw baseline` wrote.")],
    max_regression: Annotated[
        Any, typer.Option(parser=_percent, metavar="PERCENT", help="Allowed loss of the median.")
    ] = "5%",
    max_tail_regression: Annotated[
        Any, typer.Option(parser=_percent, metavar="PERCENT", help="Allowed loss of the 90th percentile.")
    ] = "10%",
    max_difference: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=NUMBER",
            help="Allowed loss of a metric, in its own unit. You can repeat the option.",
        ),
    ] = None,
    beyond_noise: Annotated[
        bool, typer.Option("--beyond-noise", help="Do not count a loss that may be noise.")
    ] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Do not fail when one side lacks a value.")
    ] = False,
    metric: MetricsOption = None,
    force: Force = False,
    output_format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Check runs against a baseline, and print what is missing or too much worse.

    Exit codes: 0 when nothing is worse, 1 when something is, 2 when the runs cannot be compared.
    """
    from tracewarehouse.comparison.compare import Limits
    from tracewarehouse.comparison.compare import check as check_runs

    limits = Limits(
        max_regression, max_tail_regression, beyond_noise, allow_missing, dict(map(_difference, max_difference or ()))
    )
    chosen = chosen_format(context, output_format, output)
    try:
        with _compared(context, run, against, force, is_screen=chosen == "table" and output is None) as comparison:
            result = check_runs(comparison, metric or (), limits)
    except TracewarehouseError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    failures = [*result.worse, *result.absent]
    if chosen != "table":
        write(_result(failures), chosen, output)
    elif failures or output:
        write(_table(failures, None), chosen, output)
    _note_check(result, limits)
    if not result.is_passed:
        raise typer.Exit(1)


def baseline(
    context: typer.Context,
    run: Run,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, such as baseline.ndjson.")],
) -> None:
    """Write the metric values of runs to a file, as a baseline for `tw check --against` and `tw compare`."""
    from tracewarehouse.comparison.baseline import baseline_lines
    from tracewarehouse.comparison.compare import referenced_run_ids
    from tracewarehouse.ingest.lake.durable_files import placed_whole

    if output.suffix not in ("", ".ndjson", ".jsonl"):
        raise typer.BadParameter(f"-o {output}: a baseline is NDJSON; end its name in .ndjson")
    with context.obj.open() as warehouse:
        lines = list(baseline_lines(warehouse, referenced_run_ids(warehouse, run)))
    with system_refusals(f"{output}: cannot be written", TracewarehouseError), placed_whole(output) as part:
        part.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@contextmanager
def _compared(context: typer.Context, run: str, against: str, force: bool, *, is_screen: bool) -> Iterator[Comparison]:
    """Open the comparison, and note what a reader must know of its runs and their values."""
    from tracewarehouse.comparison.compare import comparing

    with context.obj.open() as warehouse, comparing(warehouse, run, against, is_unlike_allowed=force) as comparison:
        _note_sides(comparison)
        behind = {*comparison.sides.run_repeats, *comparison.sides.baseline_repeats}
        if stale := [r.name for r in warehouse.stale_runs() if r.run_id in behind]:
            typer.echo(f"note: {', '.join(stale)}: values of other definitions; run `tw metrics refresh`", err=True)
        say_flags(flagged(r for r in warehouse.lake.runs() if r.run_id in behind))
        if sides := comparison.predicted_sides():
            said = f"redicted, not measured: the {' and the '.join(sides)}"
            if is_screen:
                typer.echo(f"P{said}.")
            else:
                say_note(f"p{said}")
        yield comparison


def _note_sides(comparison: Comparison) -> None:
    sides = comparison.sides
    for name, named, repeats in (
        ("run", sides.runs, sides.run_repeats),
        ("baseline", sides.baselines, sides.baseline_repeats),
    ):
        if more := len(repeats) - len(named):
            typer.echo(f"note: noise of the {name} from {more} more runs of its configuration", err=True)
    if both := set(sides.runs) & set(sides.baselines):
        typer.echo(f"note: on both sides: {', '.join(sorted(both))}", err=True)
    if comparison.unknown:
        typer.echo(f"note: not known for all runs, so not compared: {', '.join(comparison.unknown)}", err=True)
    if comparison.replaced:
        names = ", ".join(comparison.replaced)
        typer.echo(
            f"note: the baseline file has older versions, which are not compared: {names}; write it again", err=True
        )


def _note_check(outcome: Check, limits: Limits) -> None:
    allowed = f"{100 * limits.median:g} % (90th percentile {100 * limits.tail:g} %)"
    if not outcome.checked:
        typer.echo("there is nothing to check: no value with a polarity on both sides", err=True)
    else:
        typer.echo(f"{len(outcome.worse)} of {len(outcome.checked)} values are worse by more than {allowed}", err=True)
    if outcome.from_zero:
        names = ", ".join(sorted({r["metric"] for r in outcome.from_zero}))
        typer.echo(
            f"{len(outcome.from_zero)} of these had 0 in the baseline, for which no percentage allows a loss: {names}; "
            "--max-difference METRIC=NUMBER allows one in the metric's unit",
            err=True,
        )
    if outcome.excused:
        names = ", ".join(sorted({r["metric"] for r in outcome.excused}))
        typer.echo(f"{len(outcome.excused)} more are worse by as much, but within the noise: {names}", err=True)
    if outcome.absent:
        names = ", ".join(sorted({r["metric"] for r in outcome.absent}))
        remark = "" if limits.is_absence_excused or not outcome.checked else "; --allow-missing lets that pass"
        sides = "one side or both" if any(r["verdict"] == "on neither side" for r in outcome.absent) else "one side"
        values = "1 value is" if len(outcome.absent) == 1 else f"{len(outcome.absent)} values are"
        typer.echo(f"{values} missing on {sides}: {names}{remark}", err=True)


def _print_screen(causes: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    from tracewarehouse.comparison.compare import VERDICTS, largest_changes
    from tracewarehouse.dashboards.words import changes, quantity, signed

    known = [c for c in causes if c["difference_us"] is not None]
    if not known:
        say_note(_NO_STEPS)
    for sentence in changes(causes) if known else ():
        typer.echo(_filled(sentence))
    for phase, of_phase in groupby(known, key=lambda c: c["phase"]):
        own = list(of_phase)
        most = max(abs(c["difference_us"]) for c in own)
        typer.echo(f"\n{f'a {phase} step' if phase else 'a step':<28}{'baseline':>12}{'run':>12}{'change':>12}")
        for cause in own:
            change = cause["difference_us"]
            bar = "" if not most else ("▓" if change > 0 else "░") * round(14 * abs(change) / most)
            typer.echo(
                f"{printable(cause['name'])[:27]:<28}{quantity(cause['baseline_us'], 'us', 4):>12}"
                f"{quantity(cause['value_us'], 'us', 4):>12}{signed(change, 'us', 4):>12}  {bar}".rstrip()
            )
    top = largest_changes(rows)
    if top:
        typer.echo(f"\n{'changed most':<46}{'baseline':>12}{'run':>12}{'':>9}")
    for row in top:
        words = _words(row, None)
        sizes = [quantity(row[side], row["unit"] or "") for side in ("baseline", "value")]
        label = f"{row['metric']}  {printable(words['of'])}"
        numbers = f" {sizes[0]:>11} {sizes[1]:>11} {words['change']:>9}"
        room = _WIDTH - len(numbers)
        label = label if len(label) <= room else f"{label[: room - 1]}…"
        typer.echo(f"{label:<{room}}{numbers}")
    verdicts = Counter(row["verdict"] for row in rows)
    counts = ", ".join(f"{verdicts[v]} {v}" for v in VERDICTS if verdicts[v])
    typer.echo()
    typer.echo(_filled(f"{len(rows)} values: {counts}. --all prints them, --why all that steps consist of."))
    if any(row["verdict"] == "unknown" for row in top):
        typer.echo("note: too few runs or steps show how much equal runs differ, so changes may be noise", err=True)


def _filled(sentence: str) -> str:
    """The sentence in lines, none of which begins with a unit."""
    bound = re.sub(r"(?<=\d) (?=[^\W\d]?s\b|%)", "\u00a0", printable(sentence))
    return textwrap.fill(bound, _WIDTH, break_on_hyphens=False).replace("\u00a0", " ")


def _table(rows: list[dict[str, Any]], by: str | None) -> QueryResult:
    """The rows for people, with dimensions as words and differences in percent."""
    return _result([_words(row, by) for row in rows])


def _words(row: Mapping[str, Any], by: str | None) -> dict[str, Any]:
    of = {k: v for k, v in json.loads(row["dimensions"]).items() if v is not None}
    first = {by: str(of.pop(by, ""))} if by is not None else {}
    has_tail = max(row.get("samples") or 0, row.get("baseline_samples") or 0) > 1
    noise = ""
    if row.get("noise") is not None:
        size = _percentage(row["noise"] / abs(row["baseline"])) if row["baseline"] else f"{row['noise']:.3g}"
        noise = f"{size} ({row['noise_source']})"
    return {
        **first,
        "metric": row["metric"],
        "of": ", ".join(f"{k} {v}" for k, v in of.items()),
        "baseline": row.get("baseline"),
        "value": row.get("value"),
        "unit": row.get("unit") or "",
        "change": _percentage(row.get("relative"), "+"),
        "p90 loss": _percentage(row.get("tail_loss"), "+") if has_tail else "",
        "noise": noise,
        "verdict": row["verdict"],
    }


def _percentage(share: float | None, sign: str = "") -> str:
    return "" if share is None else f"{round(100 * share, 1) + 0.0:{sign}.1f} %"  # + 0.0: no -0.0


def _steps_table(rows: list[dict[str, Any]]) -> QueryResult:
    names = ("phase", "split", "name", "baseline_us", "value_us", "difference_us")
    return _result([{**{n: r[n] for n in names}, "share": _percentage(r["share"])} for r in rows])


def _result(rows: list[dict[str, Any]], like: QueryResult | None = None) -> QueryResult:
    import pyarrow as pa

    from tracewarehouse.queries.result import QueryResult

    return QueryResult(pa.Table.from_pylist(rows, like.arrow().schema if like is not None else None))
