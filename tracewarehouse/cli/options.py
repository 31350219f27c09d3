"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracewarehouse.output import Format

FormatOption = Annotated[
    Format | None, typer.Option("--format", help="Default: table, or the format that the ending of -o names.")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead of the terminal.")
]
MetricsOption = Annotated[
    list[str] | None,
    typer.Option("--metric", "-m", metavar="NAME", help="Only this metric. You can repeat the option."),
]
RunsArgument = Annotated[
    list[str] | None, typer.Argument(help="Run ids, beginnings of ids, or names; default: all runs.")
]
