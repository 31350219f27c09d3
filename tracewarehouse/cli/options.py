"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracewarehouse.cli import completion
from tracewarehouse.output import Format

FormatOption = Annotated[
    Format | None, typer.Option("--format", help="Default: table, or the format that the ending of -o names.")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead of the terminal.")
]


def _separate(names: list[str] | None) -> list[str] | None:
    return [n for text in names for n in text.split(",") if n] if names else names


MetricsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        "-m",
        metavar="NAME,...",
        help="Only these metrics. You can repeat the option.",
        callback=_separate,
        autocompletion=completion.metrics,
    ),
]
RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="Run ids, beginnings of ids, names, or patterns of names such as 'llama-*'; default: all runs.",
        autocompletion=completion.runs,
    ),
]
