"""Keeps the content of all manifests of a warehouse in one file: listing ten thousand runs reads one file, not as many.

    <warehouse>/cache/manifests.index

The manifests are the truth. An entry counts only as long as the manifest is still the file that was read: the same
inode, size and times. The file begins with a digest of the rest. An entry that does not fit is ignored, and the
manifest is read instead; a later reader rewrites the index. It can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from tracewarehouse.ingest.errors import WarehouseError

FILE = "manifests.index"
FEWEST = 64
"""Fewest manifests to read for which the index is written anew; fewer are read in milliseconds."""
DIGESTED = ("devices", "hosts", "mesh_axes", "metric_values", "quality_flags", "runs")
"""The tables whose files' digests can be read without decoding the lists of files."""
_FORMAT = b"tracewarehouse manifests 3\n"
_SETTLED_NS = 2_000_000_000
"""A manifest that changed more recently is not indexed: within one tick of the clock it could change again unseen."""
_DIGEST_BYTES = 32
_NAME = re.compile(r"[0-9a-z_][0-9a-z_.-]*")

Stamp = tuple[int, int, int, int]
"""Inode, size, and times of the last changes of content and of inode, in ns."""
_Files = dict[str, list[tuple[str, bytes]]]
_V = TypeVar("_V")


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The index's record of one run.

    Attributes:
        stamp: the manifest file that was read.
        schema_version: from the manifest, as the other facts; see `RunVersion`.
        digests: SHA-256 of the files of the tables in `DIGESTED`.
        packed: see `packed_digest`.
        lists: folder, number of rows by table, and names and digests of files by table; encoded, see `decoded`.
    """

    stamp: Stamp
    name: str
    version: str
    schema_version: int
    ingest_version: str
    source_digest: str
    metrics_fingerprint: str | None
    flags: list[str]
    digests: dict[str, list[bytes]]
    packed: bytes
    lists: msgspec.Raw


class IndexedLists:
    """The index's lists of files of a run; decoded when one is first read, because few questions read any."""

    __slots__ = ("_decoded", "_digests", "_run_id", "entry")

    def __init__(self, run_id: str, entry: Entry) -> None:
        self._run_id, self.entry = run_id, entry
        self._decoded: tuple[dict[str, list[str]], dict[str, int]] | None = None
        self._digests: dict[str, str] | None = None

    @property
    def decoded(self) -> tuple[dict[str, list[str]], dict[str, int]]:
        """See the function `decoded`."""
        if self._decoded is None:
            self._decoded = decoded(self._run_id, self.entry.lists)
        return self._decoded

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 by path, in hex."""
        if self._digests is None:
            of_table = _lists.decode(self.entry.lists)[2]
            paths = self.decoded[0]
            self._digests = {
                path: digest.hex()
                for table, named in of_table.items()
                for path, (_, digest) in zip(paths[table], named, strict=True)
            }
        return self._digests


class _Indexed(Mapping[str, _V]):
    """One of the lists of a run, decoded on demand."""

    __slots__ = ("_lists",)

    def __init__(self, lists: IndexedLists) -> None:
        self._lists = lists

    @property
    @abstractmethod
    def _list(self) -> dict[str, _V]: ...

    def __getitem__(self, key: str) -> _V:
        return self._list[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._list)

    def __len__(self) -> int:
        return len(self._list)

    def __repr__(self) -> str:
        return repr(self._list)


class IndexedFiles(_Indexed[list[str]]):
    """Paths of files by table."""

    __slots__ = ()

    @property
    def _list(self) -> dict[str, list[str]]:
        return self._lists.decoded[0]


class IndexedRows(_Indexed[int]):
    """Numbers of rows by table."""

    __slots__ = ()

    @property
    def _list(self) -> dict[str, int]:
        return self._lists.decoded[1]


class IndexedDigests(_Indexed[str]):
    """SHA-256 by path, in hex."""

    __slots__ = ()

    @property
    def _list(self) -> dict[str, str]:
        return self._lists.digests

    @property
    def packed(self) -> bytes:
        """See `packed_digest`."""
        return self._lists.entry.packed

    def of_table(self, table: str) -> bytes:
        """Return the digests of the files of a table in `DIGESTED`, one after the other, without decoding the lists."""
        return b"".join(self._lists.entry.digests.get(table, ()))


_entries = msgspec.msgpack.Decoder(dict[str, Entry])
_lists = msgspec.msgpack.Decoder(tuple[str, dict[str, int], _Files])
_encoder = msgspec.msgpack.Encoder()


def packed_digest(files: Mapping[str, Iterable[str]], digests: Mapping[str, str]) -> bytes:
    """Return a digest of the digests of a run's files, without the tables in `DIGESTED`."""
    of_tables = sorted((t, [digests.get(f, "") for f in named]) for t, named in files.items() if t not in DIGESTED)
    return hashlib.sha256(repr(of_tables).encode()).digest()


def stamp_of(stat: os.stat_result) -> Stamp:
    """Return the stamp of a manifest file."""
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def read(folder: Path) -> dict[str, Entry]:
    """Return the entries by run id; empty if there is no index, or it is damaged or has another version."""
    try:
        content = (folder / FILE).read_bytes()
        head = len(_FORMAT) + _DIGEST_BYTES
        body = memoryview(content)[head:]
        if content[:head] != _FORMAT + hashlib.sha256(body).digest():
            return {}
        return _entries.decode(body)
    except (OSError, msgspec.MsgspecError):
        return {}


def write(folder: Path, entries: Mapping[str, Entry]) -> None:
    """Replace the index; leave it as it is if the folder cannot be written."""
    limit = time.time_ns() - _SETTLED_NS
    body = _encoder.encode({run_id: e for run_id, e in entries.items() if max(e.stamp[2:]) < limit})
    part = folder / f".part-{os.urandom(4).hex()}"
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
        try:
            part.write_bytes(_FORMAT + hashlib.sha256(body).digest() + body)
            part.replace(folder / FILE)
        finally:
            part.unlink(missing_ok=True)


def encoded(
    run_id: str, files: Mapping[str, Iterable[str]], rows: Mapping[str, int], digests: Mapping[str, str]
) -> tuple[dict[str, list[bytes]], msgspec.Raw] | None:
    """Return the digests of the tables in `DIGESTED`, and the encoded lists; None if the files lie in several folders.

    Args:
        run_id: the run.
        files: paths of files by table, relative to the warehouse.
        rows: numbers of rows by table.
        digests: SHA-256 by path, in hex.
    """
    folders = {f.rpartition("/")[0] for named in files.values() for f in named}
    if len(folders) != 1 or {f for named in files.values() for f in named} != digests.keys():
        return None
    folder = folders.pop()
    if not folder.startswith(f"lake/{run_id}/") or any(len(d) != 2 * _DIGEST_BYTES for d in digests.values()):
        return None
    of_table = {t: [(f.rpartition("/")[2], bytes.fromhex(digests[f])) for f in named] for t, named in files.items()}
    lists = folder.rpartition("/")[2], dict(rows), of_table
    return {t: [d for _, d in of_table[t]] for t in DIGESTED if t in of_table}, msgspec.Raw(_encoder.encode(lists))


def decoded(run_id: str, lists: msgspec.Raw) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Return the paths of a run's files by table, all inside the run's folder, and numbers of rows by table.

    Raises:
        WarehouseError: a name is no name of a file.
    """
    version, rows, of_table = _lists.decode(lists)
    folder = f"lake/{run_id}/{version}"
    files = {table: [f"{folder}/{name}" for name, _ in named] for table, named in of_table.items()}
    if not all(map(_NAME.fullmatch, (version, *(name for named in of_table.values() for name, _ in named)))):
        raise WarehouseError(f"cache/{FILE} names files of run {run_id} outside its folder; delete it")
    return files, rows
