"""Keeps the views of all definitions in a database file in the user's cache folder, so that DuckDB binds them once.

DuckDB binds a view when it is created, and with it every view beneath: for all of sql/ this takes a second. Views that
are copied from a database are not bound again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import duckdb

from tracewarehouse.ingest.capture.locations import cache_folder
from tracewarehouse.ingest.lake.durable_files import placed_whole
from tracewarehouse.queries.read_only import literal

_MOST_FILES = 8
"""The most files to keep, of 1 MB each: one for each set of definitions that is in use."""


def folder() -> Path:
    """The folder of the files, as an absolute path without links.

    Raises:
        RuntimeError: the user has no home folder.
    """
    return (cache_folder() / "views").resolve()


def copy_views(connection: duckdb.DuckDBPyConnection, statements: Sequence[str], replaced: Sequence[str]) -> None:
    """Copy everything that statements create in an empty database into the current database.

    Other cursors see either the old views or the new ones.

    Args:
        connection: the database, outside a transaction.
        statements: the statements, which must create the same objects each time.
        replaced: schemas to drop first, with everything in them. The database must hold nothing else that the
            statements create.

    Raises:
        OSError: the file cannot be written.
        RuntimeError: the user has no home folder.
        duckdb.Error: DuckDB refuses a statement, or cannot read the file; then the file is removed.
    """
    made_by = "\n".join((duckdb.__version__, *statements))
    file = folder() / f"{hashlib.sha256(made_by.encode()).hexdigest()[:16]}.duckdb"
    if file.exists():
        with suppress(OSError):  # it may belong to another user
            os.utime(file)
    else:
        _make(file, statements)
    [(target,)] = connection.execute("SELECT current_database()").fetchall()
    try:
        connection.execute(f"ATTACH {literal(str(file))} AS kept_views (READ_ONLY)")
    except duckdb.Error:
        file.unlink(missing_ok=True)
        raise
    try:
        connection.begin()
        try:
            for schema in replaced:
                connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
            connection.execute(f'COPY FROM DATABASE kept_views TO "{target}" (SCHEMA)')
        except BaseException:
            connection.rollback()
            raise
        connection.commit()
    finally:
        connection.execute("DETACH kept_views")


def _make(file: Path, statements: Sequence[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with placed_whole(file) as part, duckdb.connect(str(part)) as connection:
        connection.execute(";\n".join(("BEGIN", *statements, "COMMIT")))
    by_last_use = sorted(file.parent.glob("*.duckdb"), key=lambda f: f.stat().st_mtime, reverse=True)
    for old in by_last_use[_MOST_FILES:]:
        old.unlink(missing_ok=True)
