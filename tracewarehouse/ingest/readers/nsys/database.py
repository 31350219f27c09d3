"""Reads the tables of an SQLite database as columns of integers and rows of texts, and trusts nothing in it.

Only what is a table with rows of its own is read: the query of a view, or a generated column, could run for ever. For
the same reason what all queries of a database may do grows with its size: pages of a forged file may point to each
other, so that few bytes hold any number of rows. Texts are read by steps of SQLite, integers by rows; these go to Arrow
as batches, without a Python object for each value.
"""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from adbc_driver_manager import AdbcConnection, AdbcStatement
from adbc_driver_manager import Error as AdbcError
from adbc_driver_sqlite import StatementOptions, connect

from tracewarehouse.ingest.columns.records import Int64
from tracewarehouse.ingest.errors import CaptureError, MalformedError, shown
from tracewarehouse.ingest.readers.files import CHUNK, CaptureFile

ROWS = 1 << 16
"""Rows that are read at once."""
NONE = -(1 << 63)
"""The integer that stands for NULL, and for a column that the table lacks."""
_READERS = 2
"""Threads that may read integers at once."""
_STEPS = 1_000_000
_STEPS_PER_BYTE = 20
_FREE_STEPS = 10 * _STEPS
_SHORTEST_ROW = 8
"""Fewest bytes of a row of several columns, with its place in its page."""
_COLUMN = re.compile(r"\b[a-z]\w*")
_OPERATOR = re.compile(r"<<|\+| IS ")
_LONGEST = 16 << 20
"""Most bytes of one value or row."""
_FAILED = (sqlite3.Error, AdbcError, pa.ArrowException, OSError, UnicodeDecodeError)
"""What reading a damaged database raises; the last of a column's name."""


class Database:
    """An export of Nsight Systems, opened to read; a context manager that closes it.

    Raises:
        CaptureError: it cannot be read, or there is no room to uncompress it.
        MalformedError: it is no database, or damaged.
    """

    def __init__(self, file: CaptureFile) -> None:
        self.path = file.path
        _check_size(file)
        self._steps_left = _FREE_STEPS + _STEPS_PER_BYTE * file.size
        self._rows_left = file.size // _SHORTEST_ROW
        with ExitStack() as opened, ExitStack() as names, self._reading():
            uri = f"file:{quote(os.fspath(names.enter_context(_named(file)).absolute()))}?mode=ro&immutable=1"
            self._connection = opened.enter_context(closing(sqlite3.connect(uri, uri=True)))
            self._connection.text_factory = _text
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
            for setting in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON"):
                self._connection.execute(f"PRAGMA {setting}")
            self._connection.set_progress_handler(self._count_steps, _STEPS)
            named = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
            self._columns = {
                name: {row[1] for row in self._connection.execute(f"PRAGMA table_info({_quoted(name)})")}
                for (name,) in named.fetchall()
                if isinstance(name, str)
            }
            self._idle: list[AdbcConnection] = []
            for _ in range(_READERS):
                self._idle.append(opened.enter_context(AdbcConnection(opened.enter_context(connect(uri)))))
                for setting in ("trusted_schema = OFF", "cell_size_check = ON"):
                    list(self._batches(f"PRAGMA {setting}"))
                list(self._batches("SELECT COUNT(*) FROM sqlite_master"))  # opens the file while it has a name
            self._open = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _count_steps(self) -> int:
        self._steps_left -= _STEPS
        return self._steps_left < 0

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except _FAILED as error:
            found = "more rows than a file of its size can have" if "interrupted" in str(error) else error
            raise MalformedError(
                f"{self.path}: damaged: looked for the tables of an SQLite database, found {found}; export it again"
            ) from None

    def has(self, table: str, *columns: str) -> bool:
        """Return whether there is a table of this name that has all these columns."""
        return table in self._columns and self._columns[table].issuperset(columns)

    def columns(self, table: str, columns: Sequence[str]) -> Int64:
        """Return columns of a table, or what follows from several, as an array of shape (columns, rows).

        NULL is NONE, and so is a column that the table lacks, which costs nothing. Two threads may read at once.

        Raises:
            MalformedError: a value is no integer, or the database is damaged.
        """
        known = [self._columns[table].issuperset(_COLUMN.findall(c)) for c in columns]
        taken = ", ".join(_integer(c) for c, has in zip(columns, known, strict=True) if has)
        parts: list[pa.RecordBatch] = []
        with self._reading():
            for batch in self._batches(f"SELECT {taken} FROM {_quoted(table)}"):  # noqa: S608  names of this package
                self._rows_left -= batch.num_rows
                if self._rows_left < 0:
                    raise sqlite3.OperationalError("interrupted")
                if batch.num_rows and (others := [kind for kind in batch.schema.types if kind != pa.int64()]):
                    raise self._wrong(f"a {others[0]}")
                parts += [batch] * bool(batch.num_rows)
        found = np.empty((len(columns), sum(part.num_rows for part in parts)), np.int64)
        found[~np.array(known)] = NONE
        for column, place in enumerate(np.flatnonzero(known).tolist() if parts else ()):
            np.concatenate([_values(part[column]) for part in parts], out=found[place])
        return found

    def _batches(self, query: str) -> Iterator[pa.RecordBatch]:
        connection = self._idle.pop()
        try:
            with AdbcStatement(connection) as statement:
                statement.set_options(**{StatementOptions.BATCH_ROWS.value: str(ROWS)})
                statement.set_sql_query(query)
                stream, _ = statement.execute_query()
                with pa.RecordBatchReader.from_stream(stream) as batches:
                    yield from batches
        finally:
            self._idle.append(connection)

    def checked(self, values: Sequence[object]) -> list[int]:
        """Return values as integers, NULL as NONE."""
        found = [NONE if value is None else value for value in values]
        for value in found:
            if not isinstance(value, int):
                raise self._wrong(shown(str(value)))
        return found  # type: ignore[return-value]

    def _wrong(self, found: str) -> MalformedError:
        return MalformedError(
            f"{self.path}: damaged: looked for an integer in a table of Nsight Systems, found {found}"
        )

    def texts(self, query: str) -> Iterator[tuple[object, ...]]:
        """Yield the rows of a query of any values."""
        with self._reading():
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(ROWS):
                yield from rows

    def at(self, places: Int64, query: str) -> Iterator[tuple[int, tuple[object, ...]]]:
        """Yield the rows of a query of any values, each with its place."""
        with self._reading():
            try:
                yield from zip(places.tolist(), self.texts(query), strict=True)
            except ValueError:
                raise sqlite3.DatabaseError("rows that differ from query to query") from None

    def pairs(self, table: str) -> dict[str, str]:
        """Return the names and values of a table of such pairs; empty without it."""
        if not self.has(table, "name", "value"):
            return {}
        found = self.texts(f"SELECT name, value FROM {_quoted(table)}")  # noqa: S608  a name of this package
        return {str(name): str(value) for name, value in found if name is not None and value is not None}


def _check_size(file: CaptureFile) -> None:
    """Refuse a file that ends before its last page, which SQLite takes for one of zeros."""
    page, count = int.from_bytes(file.head[16:18], "big"), int.from_bytes(file.head[28:32], "big")
    wanted = (page if page > 1 else 1 << 16) * count  # 1 stands for 65,536
    is_sqlite = file.head.startswith(b"SQLite format 3\0")
    looked_for = f"the {wanted:,} bytes that its header states" if is_sqlite else "an SQLite database"
    if not is_sqlite or file.size < max(wanted, 100):
        found = f"{file.size:,}" if is_sqlite else shown(str(bytes(file.head[:16])))
        raise MalformedError(f"{file.path}: damaged: looked for {looked_for}, found {found}; copy or export it again")


@contextmanager
def _named(file: CaptureFile) -> Iterator[Path]:
    """Give a path to the database of a file; SQLite opens by name only, so a gzipped one needs a temporary file."""
    if not file.is_gzip:
        yield file.path
        return
    try:
        with tempfile.NamedTemporaryFile(suffix=".sqlite") as plain:
            for low in range(0, file.size, CHUNK):
                plain.write(file.read(low, min(low + CHUNK, file.size)))
            plain.flush()
            yield Path(plain.name)  # which stays open without its name
    except OSError as error:
        raise CaptureError(
            f"{file.path}: cannot be uncompressed in {tempfile.gettempdir()}: {error.strerror or error}; make room "
            "there, or name another folder in TMPDIR"
        ) from None


def _values(column: pa.Array) -> Int64:
    """Return the integers of a column without NULL; its own `to_numpy` would import pandas."""
    return np.frombuffer(column.buffers()[1], np.int64, len(column), column.offset * 8)


def _integer(column: str) -> str:
    """Return what SQLite gives for a column: NULL as NONE, and in place of a long text its type."""
    if _OPERATOR.search(column):
        return f"COALESCE({column}, {NONE})"
    return f"CASE typeof({column}) WHEN 'integer' THEN {column} WHEN 'null' THEN {NONE} ELSE typeof({column}) END"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace").replace("\0", "")
