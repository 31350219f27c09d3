"""Prints notes about an answer on standard error, above all which of the runs behind it are flagged."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

import typer

from tracewarehouse.ingest.errors import printable
from tracewarehouse.queries.quality import FlaggedRun, note


def say_flags(runs: Sequence[FlaggedRun]) -> None:
    """Print a note that names the runs; print nothing if there are none."""
    sentence = note(runs)
    if sentence:
        say_note(sentence)


def say_note(sentence: str) -> None:
    """Print a note; on a terminal, lines break between words."""
    text = f"note: {printable(sentence)}"
    if sys.stderr.isatty():
        text = textwrap.fill(text, shutil.get_terminal_size().columns, break_on_hyphens=False)
    typer.echo(text, err=True)
