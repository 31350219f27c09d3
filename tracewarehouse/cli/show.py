"""`tw show`: sum a run up."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from tracewarehouse.ingest.errors import printable

if TYPE_CHECKING:
    from tracewarehouse.queries.run_summary import Number, RunSummary, StepShare

_LABEL = 12
_NAME = 24
_NUMBER = 22


def show(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Run id, beginning of an id, or name.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Show a run in short: what ran, ten main numbers, what dominates a step, its flags, and what is missing.

    A number without data says why. `tw metrics values RUN` prints all values, `tw report RUN` draws the run.
    """
    with context.obj.open() as warehouse:
        summary = warehouse.summary(run)
    if json:
        from tracewarehouse.queries.output import dump

        typer.echo(dump(summary.to_dict()))
        return
    width = min(shutil.get_terminal_size().columns, 100)
    for line in _lines(summary, width):
        typer.echo(line)


def _lines(summary: RunSummary, width: int) -> Iterator[str]:
    from tracewarehouse.queries.run_summary import labelled

    yield from _wrapped(summary.facts["name"], width)
    yield ""
    for label, text in labelled(summary.facts):
        yield from _wrapped(f"{label:<{_LABEL}}{text}", width, _LABEL)
    yield ""
    reasons = {m.metric: m.reason for m in summary.missing}
    for name, numbers in groupby(summary.numbers, key=lambda n: n.name):
        yield from _number_lines(name, list(numbers), reasons, width)
    if summary.steps:
        yield "\nWhere the time of a step goes, mean over devices:"
        for sentence in sentences(summary.steps):
            yield from _wrapped(f"  {sentence}.", width, 4)
    if summary.flags:
        yield "\nRead with care:"
        for flag in summary.flags:
            yield from _wrapped(f"  {flag.flag}: {flag}", width, 4)
    if summary.missing:
        yield "\nMissing:"
        for reason, metrics in summary.reasons.items():
            yield from _wrapped(f"  {', '.join(metrics)}: {reason}", width, 4)


def _number_lines(name: str, numbers: list[Number], reasons: dict[str, str], width: int) -> Iterator[str]:
    """Lines with the values of one number side by side, or with the reason why there is none."""
    from tracewarehouse.dashboards.units import quantity

    cells = [f"{n.part_in_words} {quantity(n.value, n.unit)}".strip() for n in numbers if n.value is not None]
    if not cells:
        reason = reasons.get(numbers[0].metric, "no value.")
        yield from _wrapped(f"{name:<{_NAME}}none: {reason.partition(';')[0].rstrip('.')}", width, _NAME)
        return
    yield from _wrapped(f"{name:<{_NAME}}{''.join(f'{c:<{_NUMBER}}  ' for c in cells)}", width, _NAME)


def sentences(steps: Sequence[StepShare]) -> list[str]:
    """Sentences that say what dominates a step, one per phase."""
    return [_dominates(phase, list(parts)) for phase, parts in groupby(steps, key=lambda s: s.phase)]


def _dominates(phase: str, parts: Sequence[StepShare]) -> str:
    from tracewarehouse.dashboards.units import quantity

    whole = quantity(sum(p.mean_ms for p in parts), "ms")
    first, *others = [
        f"{p.part} {100 * (p.share or 0):.0f} %" for p in parts if p is parts[0] or (p.share or 0) >= 0.005
    ]
    rest = f"; {', '.join(others)}" if others else ""
    count = "1 step" if parts[0].steps == 1 else f"{parts[0].steps} steps"
    return f"{phase or 'step'}, {whole} each, {count}: mostly {first}{rest}"


def _wrapped(text: str, width: int, indent: int = 0) -> Iterator[str]:
    """A text as lines for a terminal; if it fits on one line, it keeps its alignment."""
    line = printable(text).rstrip()
    if len(line) <= width:
        yield line
        return
    yield from textwrap.wrap(line, width, subsequent_indent=" " * indent, break_on_hyphens=False)
