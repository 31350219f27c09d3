"""Writes the rows that a command found, in the format and to the place that its options name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tracewarehouse.queries.output import Format, format_of, write

if TYPE_CHECKING:
    from tracewarehouse.queries.result import QueryResult

_KEY = "tracewarehouse.format"  # of context.meta


def note_format(context: typer.Context, format_: Format) -> None:
    """Remember that `--json` or `--csv` was given.

    Raises:
        typer.BadParameter: the other one was given too.
    """
    if context.meta.setdefault(_KEY, format_) != format_:
        raise typer.BadParameter("--json and --csv exclude each other")


def chosen_format(context: typer.Context, output_format: Format | None, output: Path | None) -> Format:
    """The format that --format, --json or --csv names, else that of the file's ending, else a table.

    Raises:
        typer.BadParameter: --format and its short form name different formats.
    """
    short: Format | None = context.meta.get(_KEY)
    if short and output_format and short != output_format:
        raise typer.BadParameter(f"--{short} and --format {output_format} exclude each other")
    return output_format or short or (format_of(output) if output else "table")


def put(context: typer.Context, result: QueryResult, output_format: Format | None, output: Path | None) -> None:
    """Write the rows as the options of the command say."""
    write(result, chosen_format(context, output_format, output), output)
