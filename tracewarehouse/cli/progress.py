"""Progress on a terminal; nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tracewarehouse.ingest.errors import printable

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.remote import Advance


@contextmanager
def copying() -> Iterator[Advance | None]:
    """A bar per remote file that is copied; appears with the first file."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def advance(name: str, done: int, size: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(printable(name), total=size)
            bars.update(tasks[name], completed=done)

        yield advance


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """A line that says what is being done; no thread moves it, beside which an ingest would fork no helpers."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as line:
        yield lambda text: line.update(Text(printable(text)), refresh=True)
