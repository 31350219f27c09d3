"""Keeps columns on disk instead of in memory until the values that they lack are known."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt


class Spill:
    """Columns by key, in a file; a context manager that removes the file if it made it.

    Other processes can read it, because the places of the columns can be pickled.

    Args:
        path: path of the file, which is made with the first columns.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._size = 0
        self._places: dict[int, dict[str, tuple[int, np.dtype[Any]]]] = {}
        self._rows: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._path.unlink(missing_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}

    def close(self) -> None:
        """Close the file; reading opens it again."""
        if self._file:
            self._file.close()
            self._file = None

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._file = self._path.open("r+b" if self._size else "w+b")
        return self._file

    def __iter__(self) -> Iterator[int]:
        """Return the keys, ascending."""
        return iter(sorted(self._rows))

    def rows(self, key: int) -> int:
        """Return the number of rows under a key."""
        return self._rows[key]

    def put(self, key: int, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Store columns of one length under a new key."""
        places = self._places[key] = {}
        self._opened().seek(self._size)
        for name, values in columns.items():
            places[name] = self._size, values.dtype
            self._rows[key] = len(values)
            self._opened().write(np.ascontiguousarray(values).data)
            self._size += values.nbytes
        self._opened().flush()

    def get(self, key: int, name: str, low: int = 0, high: int | None = None) -> npt.NDArray[Any]:
        """Return the rows low to high of a column."""
        start, dtype = self._places[key][name]
        count = (self._rows[key] if high is None else high) - low
        column = np.empty(count, dtype)
        view = memoryview(column.view(np.uint8))  # type: ignore[arg-type] # an array is a buffer
        done = 0
        while done < len(view):
            read = os.preadv(self._opened().fileno(), [view[done:]], start + low * dtype.itemsize + done)
            if not read:
                raise OSError("a temporary file of this process is shorter than what was written to it")
            done += read
        return column
