"""The command line: `tracewarehouse`, or `tw` for short.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage,
130 interrupted, 143 terminated.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Annotated, Any

import typer
from typer.main import get_command

from tracewarehouse.cli.options import WarehouseOptions
from tracewarehouse.cli.verbs import Verbs, set_memory_limit
from tracewarehouse.ingest.errors import (
    DUCKDB_INTERRUPTED,
    SkippedEntryWarning,
    TracewarehouseError,
    UnreadRunWarning,
    printable,
)
from tracewarehouse.ingest.processes.cycle_search import search_seldom
from tracewarehouse.queries import stuck_query
from tracewarehouse.queries.output import close_quietly

app = typer.Typer(
    name="tracewarehouse",
    cls=Verbs,
    help="A SQL warehouse of LLM inference traces: record, ingest, query and draw profiler captures.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from tracewarehouse.ingest.version import VERSION

        typer.echo(f"tracewarehouse {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    warehouse: Annotated[
        str,
        typer.Option(
            "--warehouse",
            "-w",
            envvar="TRACEWAREHOUSE",
            help="Folder of the warehouse. Commands that only read take a URI too.",
        ),
    ] = "warehouse",
    sql: Annotated[
        Path | None,
        typer.Option(
            "--sql", envvar="TRACEWAREHOUSE_SQL", help="Folder with metrics of your own, in addition to the package's."
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            envvar="TRACEWAREHOUSE_MEMORY_LIMIT",
            help="Memory that a query may use, such as 8GB or 50%. Default: 50% of the machine's.",
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand != "collect":  # `tw collect` runs models, which need more than one thread
        from tracewarehouse.ingest.processes.pool import ONE_THREAD

        for name, value in ONE_THREAD.items():
            os.environ.setdefault(name, value)
    set_memory_limit(memory_limit)
    context.obj = WarehouseOptions(warehouse, sql)
    if context.invoked_subcommand is None:
        from tracewarehouse.cli.overview import overview

        overview(context.obj)


def main() -> None:
    """Entry point of `tracewarehouse` and `tw`; signals that the process ignores, as under nohup, do not end it."""
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signals = [n for n in ending if signal.getsignal(n) != signal.SIG_IGN]
    atexit.register(lambda: [signal.signal(n, signal.SIG_IGN) for n in signals])  # the rest takes no handler of Python
    for number in signals:
        signal.signal(number, _end)
    sys.unraisablehook = _send_again
    search_seldom()
    stuck_query.may_end_process = True
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the caller has closed it; no other file may take its place
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
    sys.exit(run(sys.argv[1:]))


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. After a plain KeyboardInterrupt in exec() of a text, as of a dataclass, CPython ends by the signal."""


_code = 130
"""Exit code of the last signal, as DuckDB's error does not say which it was."""


def _end(number: int, _: object) -> None:
    """Exit so that unfinished work is undone."""
    global _code
    _code = 128 + number
    raise Interrupted if number == signal.SIGINT else SystemExit(_code)


def _send_again(lost: sys.UnraisableHookArgs) -> None:
    """Send a signal once more that came in a finalizer or another callback which cannot raise."""
    error = lost.exc_value
    code = error.code if isinstance(error, SystemExit) else 130 if isinstance(error, Interrupted) else None
    if isinstance(code, int) and code > 128:
        Timer(0.01, os.kill, (os.getpid(), code - 128)).start()  # later, or it would come in here
    else:
        sys.__unraisablehook__(lost)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; no error that a user can cause ends in a traceback."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except OSError as error:
        if error.errno is None or error.filename is not None:  # it is not of standard output
            raise
        close_quietly()
        if isinstance(error, BrokenPipeError):  # the reader has seen enough, as after `| head`
            return 0
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return code


def _run(arguments: list[str]) -> int:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UnreadRunWarning)
            warnings.simplefilter("once", SkippedEntryWarning)  # `tw watch` looks again and again
            _print_ours(warnings.showwarning)
            get_command(app)(arguments, prog_name="tw")
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # the reader has seen enough, as after `| head`
            close_quietly()
            return 0
        code = end.code
        if code == 130:
            print("interrupted", file=sys.stderr)
        return code if isinstance(code, int) else int(code is not None)
    except (KeyboardInterrupt, RuntimeError) as error:
        if isinstance(error, RuntimeError) and str(error) != DUCKDB_INTERRUPTED:
            raise
        if _code == 130:
            print("interrupted", file=sys.stderr)
        return _code
    except TracewarehouseError as error:
        print("error: " + "\n".join(map(printable, str(error).split("\n"))), file=sys.stderr)
        return 1
    return 0


def _print_ours(show: Callable[..., None]) -> None:
    """Print warnings that are meant for users as one line on standard error, without a place in our source."""
    logging.getLogger("sqlglot").disabled = True  # it tells of SQL that it cannot parse, which we refuse ourselves

    def shown(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, UnreadRunWarning | SkippedEntryWarning):
            print(f"warning: {printable(str(message))}", file=sys.stderr)
        else:
            show(message, category, *where, **more)

    warnings.showwarning = shown
