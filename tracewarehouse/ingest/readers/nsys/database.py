"""Reads the tables of an SQLite database as columns of integers and lists of texts, and trusts nothing in it.

Only what is a table with rows of its own is read: the query of a view, or a generated column, could run for ever. For
the same reason all queries of a database share a number of steps that grows with its size: pages of a forged file may
point to each other, so that few bytes hold any number of rows.
"""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Self
from urllib.parse import quote

import numpy as np

from tracewarehouse.ingest.columns.records import Int64
from tracewarehouse.ingest.errors import CaptureError, MalformedError, shown
from tracewarehouse.ingest.readers.files import CHUNK, CaptureFile

ROWS = 1 << 16
"""Rows that are read at once."""
NONE = -(1 << 63)
"""The integer that stands for NULL, and for a column that the table lacks."""
_STEPS = 1_000_000
_STEPS_PER_BYTE = 20
_FREE_STEPS = 10 * _STEPS
_COLUMN = re.compile(r"\b[a-z]\w*")
_LONGEST = 16 << 20
"""Most bytes of one value or row."""


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
        with self._reading():
            self._connection = _connected(file)
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _count_steps(self) -> int:
        self._steps_left -= _STEPS
        return self._steps_left < 0

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter of a column's name
            found = "more rows than a file of its size can have" if "interrupted" in str(error) else error
            raise MalformedError(
                f"{self.path}: damaged: looked for the tables of an SQLite database, found {found}; export it again"
            ) from None

    def has(self, table: str, *columns: str) -> bool:
        """Return whether there is a table of this name that has all these columns."""
        return table in self._columns and self._columns[table].issuperset(columns)

    def select(self, table: str, columns: Sequence[str]) -> str:
        """Return the query of columns of a table, or of what follows from several; NULL is NONE, and so is a lack."""
        taken = [f"COALESCE({c}, {NONE})" if self._knows(table, c) else str(NONE) for c in columns]
        return f"SELECT {', '.join(taken)} FROM {_quoted(table)}"  # noqa: S608  names of this package

    def _knows(self, table: str, column: str) -> bool:
        return self._columns[table].issuperset(_COLUMN.findall(column))

    def columns(self, table: str, columns: Sequence[str]) -> Iterator[Int64]:
        """Yield rows of a table as arrays of shape (columns, k), as `select` has them; a lack costs nothing.

        Raises:
            MalformedError: a value is no integer, or the database is damaged.
        """
        known = [self._knows(table, c) for c in columns]
        taken = [c for c, has in zip(columns, known, strict=True) if has]
        for part in self.integers(self.select(table, taken), len(taken)):
            whole = np.full((len(columns), part.shape[1]), NONE, np.int64)
            whole[known] = part
            yield whole

    def integers(self, query: str, width: int) -> Iterator[Int64]:
        """Yield the rows of a query of `width` integers, as arrays of shape (width, k).

        Raises:
            MalformedError: a value is no integer, or the database is damaged.
        """
        for rows in self.blocks(query):
            yield self.whole_numbers(rows).reshape(-1, width).T

    def whole_numbers(self, values: Sequence[Sequence[object]]) -> Int64:
        """Return values of several rows or columns one after the other.

        Raises:
            MalformedError: one is no integer.
        """
        try:
            return np.fromiter(chain.from_iterable(values), np.int64, sum(map(len, values)))
        except (TypeError, ValueError, OverflowError):
            raise self._wrong(next(v for some in values for v in some if not isinstance(v, int))) from None

    def checked(self, values: Sequence[object]) -> list[int]:
        """Return values as integers, NULL as NONE.

        Raises:
            MalformedError: one is no integer.
        """
        found = [NONE if value is None else value for value in values]
        for value in found:
            if not isinstance(value, int):
                raise self._wrong(value)
        return found  # type: ignore[return-value]

    def _wrong(self, value: object) -> MalformedError:
        return MalformedError(
            f"{self.path}: damaged: looked for an integer in a table of Nsight Systems, found {shown(str(value))}"
        )

    def texts(self, query: str) -> Iterator[tuple[object, ...]]:
        """Yield the rows of a query of any values.

        Raises:
            MalformedError: the database is damaged.
        """
        for rows in self.blocks(query):
            yield from rows

    def blocks(self, query: str) -> Iterator[list[tuple[object, ...]]]:
        """Yield the rows of a query in blocks.

        Raises:
            MalformedError: the database is damaged.
        """
        with self._reading():
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(ROWS):
                yield rows

    def pairs(self, table: str) -> dict[str, str]:
        """Return the names and values of a table of such pairs; empty without it."""
        if not self.has(table, "name", "value"):
            return {}
        found = self.texts(f"SELECT name, value FROM {_quoted(table)}")  # noqa: S608  a name of this package
        return {str(name): str(value) for name, value in found if name is not None and value is not None}


def _check_size(file: CaptureFile) -> None:
    """Refuse a file that ends before its last page, which SQLite takes for one of zeros.

    Raises:
        MalformedError: it does.
    """
    page, count = int.from_bytes(file.head[16:18], "big"), int.from_bytes(file.head[28:32], "big")
    wanted = (page if page > 1 else 1 << 16) * count  # 1 stands for 65,536
    if file.size < max(wanted, 100):
        raise MalformedError(
            f"{file.path}: damaged: looked for the {wanted:,} bytes that its header states, found {file.size:,}; "
            "copy or export it again"
        )


def _connected(file: CaptureFile) -> sqlite3.Connection:
    """Open the database of a file; SQLite opens by name only, so a gzipped one needs a temporary file with one."""
    if not file.is_gzip:
        return _opened(file.path)
    try:
        with tempfile.NamedTemporaryFile(suffix=".sqlite") as plain:
            for low in range(0, file.size, CHUNK):
                plain.write(file.read(low, min(low + CHUNK, file.size)))
            plain.flush()
            return _opened(Path(plain.name))  # which stays open without its name
    except OSError as error:
        raise CaptureError(
            f"{file.path}: cannot be uncompressed in {tempfile.gettempdir()}: {error.strerror or error}; make room "
            "there, or name another folder in TMPDIR"
        ) from None


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{quote(os.fspath(path.absolute()))}?mode=ro&immutable=1", uri=True)
    connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    return connection


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace").replace("\0", "")
