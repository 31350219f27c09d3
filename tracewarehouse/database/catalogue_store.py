"""Says what the schema `store` of warehouse.duckdb holds, and reads the runs that it knows.

A run's manifest is a row of `store.manifests`. Its lists of files, digests and counts are one value there, which only
tracewarehouse reads: few questions need any, so they are decoded when they are first read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeVar, cast

import duckdb
import msgspec

from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.lake import DATABASE, KnownRuns, State
from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION, TABLES, Column, Table

KEPT = ("devices", "hosts", "mesh_axes", "metric_values", "quality_flags", "runs")
"""The tables whose rows the catalogue holds: a few rows per run each, read by questions over many runs."""

_NAME = re.compile(r"[0-9a-z][0-9a-z_-]*/[a-z_][0-9a-z_-]*\.parquet")
_V = TypeVar("_V")
_decoder = msgspec.msgpack.Decoder(tuple[dict[str, list[str]], dict[str, int], bytes])


def _table(name: str, doc: str, columns: Mapping[str, tuple[str, str]]) -> Table:
    return Table(name, doc, tuple(Column(n, kind, sentence) for n, (kind, sentence) in columns.items()))


_RUN = {"run_id": ("VARCHAR", "The run.")}
MADE = _table(
    "made",
    "One row: what the catalogue was made for.",
    {
        "format": ("INTEGER", "Version of the schema store."),
        "schema_version": ("INTEGER", "Version of the runs' tables."),
        "root": ("VARCHAR", "The warehouse's folder; the views name files in it."),
        "definitions": ("VARCHAR", "Digest of the definitions of tracewarehouse that the views are from."),
        "own_definitions": (
            "VARCHAR",
            "Digest of a user's own definitions that the views are from; empty if there are none.",
        ),
    },
)
_MANIFESTS = _table(
    "manifests",
    "One row per run: the content of its manifest, and the file that held it.",
    _RUN
    | {
        "inode": ("UBIGINT", "Inode of the manifest."),
        "size": ("BIGINT", "Size of the manifest in bytes."),
        "modified_ns": ("BIGINT", "When the content of the manifest changed last, Unix time."),
        "changed_ns": ("BIGINT", "When the inode of the manifest changed last, Unix time."),
        "version": ("VARCHAR", "Version of the run."),
        "name": ("VARCHAR", "Name of the run."),
        "ingest_version": ("VARCHAR", "Version of tracewarehouse that ingested it."),
        "source_digest": ("VARCHAR", "Digest of its capture."),
        "metrics_fingerprint": ("VARCHAR", "Fingerprint of the definitions of its metric values."),
        "flags": ("VARCHAR[]", "Its quality flags."),
        "lists": ("BLOB", "Its files, their digests, and rows by table, encoded for tracewarehouse."),
    },
)
_FILES = _table(
    "files",
    "One row per Parquet file of a run.",
    _RUN
    | {
        "table_name": ("VARCHAR", "The table."),
        "file": ("VARCHAR", "The file, relative to the folder lake of the warehouse."),
    },
)
STORE = (MADE, _MANIFESTS, _FILES, *(TABLES[t] for t in KEPT))
"""The tables of the schema."""


def known_stamps(connection: duckdb.DuckDBPyConnection) -> State:
    """The manifests that an open catalogue knows, as they were when they were read."""
    rows = connection.execute("SELECT run_id, inode, size, modified_ns, changed_ns FROM store.manifests").fetchall()
    return {run_id: tuple(stamp) for run_id, *stamp in rows}


def known_runs(connection: duckdb.DuckDBPyConnection, database: str) -> KnownRuns:
    """The runs that a catalogue knows, which is attached under this name."""
    rows = connection.execute(f"SELECT {_MANIFESTS.names_sql} FROM {database}.store.manifests").fetchall()  # noqa: S608
    known: KnownRuns = {}
    for run_id, inode, size, modified, changed, version, name, ingest, source, metrics, flags, encoded in rows:
        lists = _Lists(run_id, encoded)
        files: _Listed[list[str]] = _Listed(lists, 0)
        counts: _Listed[int] = _Listed(lists, 1)
        digests: _Listed[str] = _Listed(lists, 2)
        run = RunVersion(run_id, version, name, SCHEMA_VERSION, ingest, source, files, counts, metrics, flags, digests)
        known[run_id] = (inode, size, modified, changed), run
    return known


def encoded_lists(run: RunVersion) -> bytes:
    """The files of a run by table, relative to the run's folder; its rows by table; and the digests of its files."""
    names = {t: [f.removeprefix(f"lake/{run.run_id}/") for f in files] for t, files in run.files.items()}
    digests = bytes.fromhex("".join(run.digests[f] for files in run.files.values() for f in files))
    return msgspec.msgpack.encode((names, dict(run.rows), digests))


class _Lists:
    """The decoded lists of a run; few questions read any, and decoding those of 10,000 runs takes a while."""

    __slots__ = ("_decoded", "_encoded", "_run_id")

    def __init__(self, run_id: str, encoded: bytes) -> None:
        self._run_id, self._encoded = run_id, encoded
        self._decoded: tuple[dict[str, list[str]], dict[str, int], dict[str, str]] | None = None

    def decoded(self) -> tuple[dict[str, list[str]], dict[str, int], dict[str, str]]:
        """Files by table, rows by table, and digests by file."""
        if self._decoded is None:
            names, rows, digests = _decoder.decode(self._encoded)
            if not all(_NAME.fullmatch(name) for named in names.values() for name in named):
                raise WarehouseError(f"{DATABASE} names files of run {self._run_id} outside its folder; delete it")
            files = {t: [f"lake/{self._run_id}/{n}" for n in named] for t, named in names.items()}
            text = digests.hex()
            by_file = {
                f: text[64 * i : 64 * i + 64] for i, f in enumerate(f for named in files.values() for f in named)
            }
            self._decoded = files, rows, by_file
        return self._decoded


class _Listed(Mapping[str, _V]):
    __slots__ = ("_lists", "_number")

    def __init__(self, lists: _Lists, number: int) -> None:
        self._lists, self._number = lists, number

    def _list(self) -> dict[str, _V]:
        return cast("dict[str, _V]", self._lists.decoded()[self._number])

    def __getitem__(self, key: str) -> _V:
        return self._list()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._list())

    def __len__(self) -> int:
        return len(self._list())

    def __repr__(self) -> str:
        return repr(self._list())

    def __reduce__(self) -> tuple[type, tuple[dict[str, _V]]]:
        return dict, (self._list(),)
