"""Shows progress on a terminal, and nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from tracewarehouse.ingest.errors import printable

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.remote import Advance


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
