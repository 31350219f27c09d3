"""A capture's file: uncompressed if need be, digested, and opened as a memory map."""

from __future__ import annotations

import gzip
import hashlib
import io
import mmap
import os
import tempfile
import zlib
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

from ingest.errors import CaptureError

CHUNK = 1 << 20
MAX_GZIP_RATIO = 200
"""Highest ratio of uncompressed to compressed bytes that is taken for a capture; real ones stay far below."""
_RATIO_FREE = 64 << 20  # below this size the ratio does not matter


class CaptureFile:
    """One file of a capture, plain or gzipped; told apart by content, not by name."""

    def __init__(self, path: Path, *, max_gzip_ratio: float = MAX_GZIP_RATIO) -> None:
        self.path = path
        self._max_ratio = max_gzip_ratio

    @cached_property
    def is_gzip(self) -> bool:
        """Whether the file starts with gzip's magic number."""
        return self._head(2) == b"\x1f\x8b"

    @cached_property
    def _file(self) -> BinaryIO:
        """The uncompressed bytes; those of a gzip file in a temporary file that has no name."""
        try:
            if not self.is_gzip:
                return self.path.open("rb")
            plain = tempfile.TemporaryFile()  # noqa: SIM115, the trace that reads it keeps it open
            limit = max(self.path.stat().st_size * self._max_ratio, _RATIO_FREE)
            with gzip.open(self.path, "rb") as packed:
                size = 0
                while chunk := packed.read(CHUNK):
                    size += len(chunk)
                    if size > limit:
                        raise CaptureError(
                            f"{self.path}: uncompresses to over {self._max_ratio:g} times its size; not taken for a "
                            "capture. Uncompress it by hand if it is one"
                        )
                    plain.write(chunk)
            plain.flush()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise CaptureError(f"{self.path}: damaged gzip file: {error}") from None
        except OSError as error:
            raise CaptureError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        return cast(BinaryIO, plain)

    @cached_property
    def size(self) -> int:
        """Uncompressed bytes.

        Raises:
            CaptureError: the file is missing, unreadable or empty.
        """
        size = os.fstat(self._file.fileno()).st_size
        if not size:
            raise CaptureError(f"{self.path}: the file is empty")
        return size

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the uncompressed bytes, in hex."""
        self._file.seek(0)
        return hashlib.file_digest(cast(io.BufferedReader, self._file), "sha256").hexdigest()

    def head(self, count: int) -> bytes:
        """The first uncompressed bytes."""
        return os.pread(self._file.fileno(), count, 0)

    def open(self) -> mmap.mmap:
        """The uncompressed bytes as a read-only memory map."""
        length = self.size
        return mmap.mmap(self._file.fileno(), length, access=mmap.ACCESS_READ)

    def _head(self, count: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                return file.read(count)
        except IsADirectoryError:
            raise CaptureError(f"{self.path}: is a folder, expected a capture file") from None
        except FileNotFoundError:
            raise CaptureError(f"{self.path}: no such file") from None
        except OSError as error:
            raise CaptureError(f"{self.path}: cannot be read: {error.strerror or error}") from None
