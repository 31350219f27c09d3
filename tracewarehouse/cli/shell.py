"""`tw shell`: open DuckDB's own command line, with history and completion."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import typer

from tracewarehouse.ingest.errors import WarehouseError


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
    """The duckdb program beside this Python, or on the PATH.

    Raises:
        WarehouseError: there is none.
    """
    beside = Path(sys.executable).parent / "duckdb"
    command = str(beside) if os.access(beside, os.X_OK) else shutil.which("duckdb")
    if command is None:
        raise WarehouseError(
            "no duckdb command found beside python or on PATH; run `pip install 'tracewarehouse[cli]'` (in a checkout "
            "`pip install '.[cli]'`)"
        )
    return command
