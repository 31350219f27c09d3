"""Prints what commands answer: rows in the chosen format, notes, lines that outlast their reader, and progress."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from tracewarehouse.ingest.errors import printable
from tracewarehouse.queries.output import SUFFIXES, Format, suffix_format, write
from tracewarehouse.queries.result import FlaggedRun, note

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.remote import Advance
    from tracewarehouse.queries.result import QueryResult

_Form = TypeVar("_Form", bound=str)
_KEY = "tracewarehouse.format"  # of context.meta


def note_format(context: typer.Context, format_: Format) -> None:
    """Remember that `--json` or `--csv` was given."""
    if context.meta.setdefault(_KEY, format_) != format_:
        raise typer.BadParameter("--json and --csv exclude each other")


def chosen_format(context: typer.Context, output_format: Format | None, output: Path | None) -> Format:
    """The format that --format, --json or --csv names, else that of the file's ending, else a table."""
    short: Format | None = context.meta.get(_KEY)
    if short and output_format and short != output_format:
        raise typer.BadParameter(f"--{short} and --format {output_format} exclude each other")
    named = agreed_format(output_format or short, output, SUFFIXES)
    return named or (suffix_format(output) if output else "table")


def agreed_format(named: _Form | None, output: Path | None, endings: Mapping[str, _Form]) -> _Form | None:
    """The format that an option names, else that of the file's ending; None if neither tells one."""
    told = endings.get(output.suffix.lower()) if output else None
    if named and told and named != told:
        raise typer.BadParameter(f"-o {output} and the format {named} exclude each other; give the file another ending")
    return named or told


def put(context: typer.Context, result: QueryResult, output_format: Format | None, output: Path | None) -> None:
    """Write the rows as the options of the command say."""
    write(result, chosen_format(context, output_format, output), output)


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


def lasting_echo(line: object, err: bool = False) -> None:
    """Print a line; once nobody reads the output any more, discard this and all further lines.

    The reader is gone, for example, after `| head -1`, or when the terminal is closed.
    """
    try:
        typer.echo(line, err=err)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        stream = sys.stderr if err else sys.stdout
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123 (also where there is no such path)
            os.dup2(nowhere.fileno(), stream.fileno())


@contextmanager
def copying() -> Iterator[Advance | None]:
    """Show a bar per remote file that is copied, from the first file on."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty()) as bars:

        def advance(name: str, done: int, size: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(printable(name), total=size)
            bars.update(tasks[name], completed=done)

        yield advance


@contextmanager
def counting(total: int) -> Iterator[Callable[[bool], AbstractContextManager[None]]]:
    """Show a bar: how many of all captures have ended, how many of these failed, and how long the others will take.

    Yields a function that counts one more, given whether it failed; inside its context there is room to print.
    """
    if not sys.stderr.isatty():
        yield lambda is_failed: nullcontext()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("captures"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", style="red"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task, failed = bar.add_task("", total=total), 0

        @contextmanager
        def count(is_failed: bool) -> Iterator[None]:
            nonlocal failed
            failed += is_failed
            bar.stop()
            yield
            bar.update(task, advance=1, description=f"{failed} failed" if failed else "")
            bar.start()

        yield count


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """Show a line that says what is being done. No thread redraws it: beside one, an ingest would fork no helpers."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console, beside = Console(stderr=True), sys.stdout.isatty()  # results in a file are not for the terminal
    with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=beside) as line:
        yield lambda text: line.update(Text(printable(text)), refresh=True)
