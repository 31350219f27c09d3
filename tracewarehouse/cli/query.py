"""`tw query` and `tw shell`: run SQL over the warehouse, or over one capture."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracewarehouse.cli.ingest import RatioOption
from tracewarehouse.cli.options import Engine, EngineOption, FormatOption, MasterOption, OutputOption
from tracewarehouse.cli.output import chosen_format, copying, say_flags
from tracewarehouse.ingest.errors import QueryError, WarehouseError
from tracewarehouse.queries.output import BINARY, Format, write

if TYPE_CHECKING:
    from tracewarehouse.queries.result import QueryResult
    from tracewarehouse.warehouse import Warehouse


def query(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CAPTURE] SQL", help="The SQL, after a capture to ask instead of the warehouse; - reads stdin."
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the SQL from a file.")] = None,
    output_format: FormatOption = None,
    output: OutputOption = None,
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="Value of $NAME in the SQL.")
    ] = None,
    unrestricted: Annotated[
        bool, typer.Option("--unrestricted", help="Allow any SQL: writes, several statements, other files.")
    ] = False,
    max_gzip_ratio: RatioOption = None,
    engine: EngineOption = Engine.DUCKDB,
    master: MasterOption = None,
) -> None:
    """Run one SQL query and print its rows.

    Tables are in schema main, metrics in schema metrics; `SHOW ALL TABLES` lists them. A query may only read, and
    only this warehouse. With --engine spark the same SQL runs on Spark; a query that would return other rows there is
    refused.
    """
    capture, sql = _capture_and_sql(arguments or [], file)
    parameters = dict(_parameter(p) for p in parameter or [])
    chosen = chosen_format(context, output_format, output)
    if chosen in BINARY and output is None and sys.stdout.isatty():
        raise typer.BadParameter(f"{chosen} is not for a terminal; add -o FILE, or send the output into a pipe")

    if capture is not None and engine is Engine.SPARK:
        raise typer.BadParameter("--engine spark asks a warehouse; ingest the capture first")
    if capture is None:
        with context.obj.open() if engine is Engine.DUCKDB else context.obj.open_spark(master) as warehouse:
            result = _asked(warehouse, chosen)(sql, read_only=not unrestricted, **parameters)
            is_empty = warehouse.lake.is_empty()
        if is_empty:
            typer.echo(f"note: the warehouse {context.obj} is empty; add runs with `tw ingest CAPTURE`", err=True)
    else:
        from tracewarehouse.database.temporary import TemporaryFolder
        from tracewarehouse.warehouse import open_warehouse

        with (
            TemporaryFolder() as folder,
            open_warehouse(folder.path / "warehouse", create=True, sql=context.obj.sql) as warehouse,
        ):
            # the stored values are the only table that costs extra, so they are computed only if the SQL reads them
            _ingest(warehouse, capture, max_gzip_ratio, with_values=warehouse.reads_values(sql))
            result = _asked(warehouse, chosen)(sql, read_only=not unrestricted, **parameters)
    write(result, chosen, output)
    say_flags(result.flagged_runs)


def _asked(warehouse: Warehouse, output_format: Format) -> Callable[..., QueryResult]:
    from tracewarehouse.queries import memory_limit, stuck_query

    memory_limit.bounds_process = stuck_query.may_end_process
    return warehouse.query if output_format in BINARY else warehouse.rows


def _ingest(warehouse: Warehouse, capture: str, max_gzip_ratio: float | None, *, with_values: bool) -> None:
    from tracewarehouse.ingest.capture.remote import local_copy
    from tracewarehouse.ingest.devices.joined_hosts import find_whole_captures

    with copying() as advance:
        path = local_copy(capture, advance)
    for each in find_whole_captures(path, max_gzip_ratio=max_gzip_ratio):
        warehouse.ingest_capture(each, evaluate=with_values)


def _capture_and_sql(arguments: list[str], file: Path | None) -> tuple[str | None, str]:
    wanted = 0 if file else 1
    if not wanted <= len(arguments) <= wanted + 1:
        raise typer.BadParameter("expected SQL as one argument, or -f FILE, or - for standard input")
    capture = arguments[0] if len(arguments) > wanted else None
    if file is None:
        text = sys.stdin.read() if arguments[-1] == "-" else arguments[-1]
        if capture is None and " " not in text.strip() and os.path.exists(text):  # noqa: PTH110  no error for a long text
            raise typer.BadParameter(f"{text} is a file; give the SQL after it, or use -f to read SQL from it")
        return capture, text
    try:
        return capture, sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise QueryError(f"{file}: cannot be read as SQL: {error}") from None


def _parameter(text: str) -> tuple[str, int | float | str | bool | None]:
    """The name and value of NAME=VALUE; the value is the number, true, false or null that it looks like, else text."""
    name, equals, value = text.partition("=")
    name = name.strip().removeprefix("$")
    if not equals or not name.isidentifier():
        raise typer.BadParameter(f"expected NAME=VALUE, found {text!r}")
    constants = {"true": True, "false": False, "null": None}
    if value.lower() in constants:
        return name, constants[value.lower()]
    for type_ in (int, float):
        try:
            return name, type_(value)
        except ValueError:
            continue
    return name, value


def shell(context: typer.Context) -> None:
    """Open the DuckDB command line on the warehouse: SQL with history and completion.

    Builds warehouse.duckdb if it is missing or older than the runs. `.quit` or Ctrl-D ends it.
    """
    program = _duckdb()
    with context.obj.open() as warehouse:
        if not warehouse.lake.runs():
            raise WarehouseError(f"the warehouse {context.obj} is empty; add runs with `tw ingest CAPTURE`")
        database = warehouse.database()
    if sys.stdin.isatty():
        typer.echo("tables: main, metrics: metrics, building blocks: models; SHOW ALL TABLES lists them", err=True)
    sys.stdout.flush()
    os.execv(program, [program, "-readonly", str(database)])  # noqa: S606  the user's own program


def _duckdb() -> str:
    beside = Path(sys.executable).parent / "duckdb"
    command = str(beside) if os.access(beside, os.X_OK) else shutil.which("duckdb")
    if command is None:
        raise WarehouseError(
            "no duckdb command found beside python or on PATH; run `pip install 'tracewarehouse[cli]'` (in a checkout "
            "`pip install '.[cli]'`)"
        )
    return command
