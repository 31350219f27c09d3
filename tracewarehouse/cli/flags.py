"""Says on standard error which of the runs behind an answer are flagged."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from tracewarehouse.ingest.errors import printable
from tracewarehouse.quality import FlaggedRun, note


def say_flags(runs: Sequence[FlaggedRun]) -> None:
    """Print one line that names the runs; nothing without any."""
    sentence = note(runs)
    if sentence:
        typer.echo(f"note: {printable(sentence)}", err=True)
