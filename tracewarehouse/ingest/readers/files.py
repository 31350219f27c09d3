"""Opens a file of a capture: uncompresses it if necessary, digests it, and reads it in pieces.

If another process truncates a mapped file, its reader dies with a bus error; reading in pieces gives an error instead.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import stat
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast, overload

import numpy as np

from tracewarehouse.ingest.columns.records import UInt8
from tracewarehouse.ingest.errors import CaptureError, system_refusals

CHUNK = 1 << 20
MAX_GZIP_RATIO = 200
"""Highest ratio of uncompressed to compressed bytes that is taken for a capture; real ones stay far below."""
HEAD = 1 << 17
"""Bytes by which the format of a file is told."""
IN_MEMORY = 8 << 20
"""Files up to this size are read once and kept."""


class CaptureFile:
    """One file of a capture, plain or gzipped, as its content tells, not its name."""

    def __init__(self, path: Path, *, max_gzip_ratio: float = MAX_GZIP_RATIO) -> None:
        self.path = path
        self._max_ratio = max_gzip_ratio

    def __getstate__(self) -> dict[str, object]:
        """Return the state for a process that inherited the descriptor: it reads the same file, whatever its name."""
        kept = {n: v for n, v in self.__dict__.items() if n not in ("_opened", "_content")}
        return kept | {"_plain": self._plain, "_stamp": self._stamp, "size": self.size}

    @property
    def descriptor(self) -> int:
        """Number of the open file that holds the uncompressed bytes."""
        return self._plain

    @cached_property
    def is_gzip(self) -> bool:
        """Whether the file starts with gzip's magic number."""
        with system_refusals(f"{self.path}: cannot be read", CaptureError):
            return os.pread(self._opened, 2, 0) == b"\x1f\x8b"

    @cached_property
    def size(self) -> int:
        """Uncompressed bytes."""
        size = self._stamp[0]
        if not size:
            raise CaptureError(f"{self.path}: the file is empty")
        return size

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the uncompressed bytes, in hex."""
        digest = hashlib.sha256()
        piece = memoryview(bytearray(min(CHUNK, self.size)))
        for low in range(0, self.size, CHUNK):
            part = piece[: self.size - low]
            self.read_into(part, low)
            digest.update(part)
        return digest.hexdigest()

    @property
    def head(self) -> bytes:
        """The first uncompressed bytes, which tell the format."""
        return os.pread(self._plain, HEAD, 0)

    def read(self, low: int, high: int) -> bytes:
        """The uncompressed bytes [low:high]."""
        if "_content" in self.__dict__:
            return self._content[low:high]
        out = bytearray(high - low)
        self.read_into(memoryview(out), low)
        return bytes(out)

    def array(self, low: int, high: int, padding: int = 0) -> UInt8:
        """The uncompressed bytes [low:high], shape (high - low + padding,), the last `padding` of them zero."""
        out = np.empty(high - low + padding, np.uint8)
        out[high - low :] = 0
        if "_content" in self.__dict__:
            out[: high - low] = np.frombuffer(self._content, np.uint8, high - low, low)
        else:
            self.read_into(out.data[: high - low], low)
        return out

    def read_into(self, view: memoryview, low: int) -> None:
        """Fill a buffer with the uncompressed bytes from `low` on."""
        done = 0
        with system_refusals(f"{self.path}: cannot be read", CaptureError):
            while done < len(view) and (count := os.preadv(self._plain, [view[done:]], low + done)):
                done += count
            is_same = self._stamp_now() == self._stamp
        if done < len(view) or not is_same:
            raise CaptureError(f"{self.path}: changed while it was read; try again once the profiler has written it")

    def contents(self) -> bytes | FileBytes:
        """The uncompressed bytes, to index and slice; only those of a small file are all in memory."""
        return self._content if self.size <= IN_MEMORY else FileBytes(self)

    @cached_property
    def _content(self) -> bytes:
        return self.read(0, self.size)

    @cached_property
    def _opened(self) -> int:
        try:
            # opening a pipe without a writer would block
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise CaptureError(f"{self.path}: no such file") from None
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            if getattr(error, "errno", None) == errno.ENXIO:
                raise CaptureError(f"{self.path}: is a socket, expected a capture file") from None
            raise CaptureError(f"{self.path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
        weakref.finalize(self, os.close, descriptor)
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise CaptureError(f"{self.path}: is a folder, expected a capture file")
        if not stat.S_ISREG(mode):
            raise CaptureError(f"{self.path}: is a pipe or device, expected a capture file; copy it to a file first")
        return descriptor

    @cached_property
    def _plain(self) -> int:
        """Descriptor of the uncompressed bytes; those of a gzip file are in a temporary file that has no name."""
        if not self.is_gzip:
            return self._opened
        descriptor = uncompressed(self.path, self._opened, self._max_ratio)
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    @cached_property
    def _stamp(self) -> tuple[int, int]:
        return self._stamp_now()

    def _stamp_now(self) -> tuple[int, int]:
        """Size and time of the last change; they show whether another process still writes the file."""
        status = os.fstat(self._plain)
        return status.st_size, status.st_mtime_ns


def capture_digest(_: None, file: CaptureFile) -> str:
    """The digest of a file, as a task for a helper process."""
    return file.digest


class FileBytes:
    """The bytes of a file, read on demand; made for a walk from front to back."""

    def __init__(self, file: CaptureFile) -> None:
        self._file = file
        self._size = file.size
        self._low = self._high = 0
        self._piece = b""

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> bytes: ...
    def __getitem__(self, key: int | slice) -> int | bytes:
        """A byte, or the bytes of a slice with a start and a stop that lie in the file."""
        if isinstance(key, int):
            if not self._low <= key < self._high:
                self._fill(key)
            return self._piece[key - self._low]
        low, high = key.start, key.stop
        if high - low > CHUNK:
            return self._file.read(low, high)
        if low < self._low or high > self._high:
            self._fill(low)
        return self._piece[low - self._low : high - self._low]

    def _fill(self, low: int) -> None:
        self._low, self._high = low, min(low + CHUNK, self._size)
        self._piece = self._file.read(low, self._high)


@contextmanager
def in_temporary_file() -> Iterator[None]:
    """Let what a reader puts into a temporary file fail with one sentence."""
    try:
        yield
    except OSError as error:
        raise CaptureError(
            f"the events read so far need a temporary file, and {tempfile.gettempdir()} cannot take it: "
            f"{error.strerror or error}; make room there, or name another folder in TMPDIR"
        ) from None


def temporary_file(owner: object) -> BinaryIO:
    """Make a file without a name, which is closed with its owner, also where there is no room for what it holds."""
    file = tempfile.TemporaryFile()  # noqa: SIM115
    weakref.finalize(owner, _close, file)
    return file


def _close(file: BinaryIO) -> None:
    with suppress(OSError):
        file.close()


@contextmanager
def peeked(path: Path) -> Iterator[BinaryIO]:
    """Open the uncompressed bytes of a file to look into them, without reading it whole."""
    with path.open("rb") as file:
        is_gzip = file.peek(2)[:2] == b"\x1f\x8b"
        with gzip.open(file) if is_gzip else nullcontext(file) as content:
            yield cast(BinaryIO, content)


def distinct(files: Iterable[CaptureFile]) -> tuple[list[CaptureFile], list[str]]:
    """Return the files without duplicates, and a sentence for each duplicate.

    A duplicate has the same bytes as another file, such as a gzipped copy beside its original.
    """
    kept: dict[str, CaptureFile] = {}
    notes = []
    for f in files:
        first = kept.setdefault(f.digest, f)
        if first is not f:
            notes.append(f"{f.path.name} holds the same bytes as {first.path.name} and was left out")
    return list(kept.values()), notes


_RATIO_FREE = 64 << 20  # below this size the ratio does not matter


def uncompressed(path: Path, descriptor: int, max_ratio: float) -> int:
    """Uncompress a gzip file into a temporary file without a name, and return its descriptor; the caller closes it."""
    limit = max(os.fstat(descriptor).st_size * max_ratio, _RATIO_FREE)
    size = 0
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        with (
            tempfile.TemporaryFile() as plain,
            open(descriptor, "rb", closefd=False) as raw,
            gzip.GzipFile(fileobj=raw) as packed,
        ):
            while chunk := packed.read(CHUNK):
                size += len(chunk)
                if size > limit:
                    raise CaptureError(
                        f"{path}: uncompresses to over {max_ratio:g} times its size; not taken for a capture. "
                        "If it is one, allow it with --max-gzip-ratio N (Python: max_gzip_ratio=N)"
                    )
                plain.write(chunk)
            plain.flush()
            return os.dup(plain.fileno())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CaptureError(f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise CaptureError(f"{path}: cannot be uncompressed: {error.strerror or error}") from None
