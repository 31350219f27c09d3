"""Verifies that the files of the lake are undamaged and agree with each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.durable_files import file_digest
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import RunVersion, derived_run_id, run_digest
from tracewarehouse.ingest.lake.schema import TABLES


@dataclass(frozen=True)
class Problem:
    """A fault in a warehouse, and what to do about it."""

    run_id: str | None
    """None if it concerns no run, or an unknown one."""
    run: str | None
    """Name of the run for people."""
    file: str | None
    """The file, relative to the warehouse."""
    sentence: str
    action: str
    is_error: bool = True
    """False if it only takes space."""

    def __str__(self) -> str:
        where = [f"run {self.run_id}" if self.run_id else "", self.file or ""]
        return f"{': '.join([*filter(None, where), self.sentence])}; {self.action}"


def fsck(warehouse: Path) -> list[Problem]:
    """Check every run of a warehouse: manifest, digests, checksums, schemas, row counts, event numbers.

    Every byte of every file is read. An empty list means that all is well.
    """
    manifests = warehouse / "manifests"
    if not manifests.is_dir():
        raise WarehouseError(f"{warehouse}: no warehouse here; looked for its folder manifests")
    lake = Lake(warehouse)
    problems: list[Problem] = []
    for path in lake.manifests():
        try:
            run = lake.run(path.stem)
        except WarehouseError as error:
            file = str(path.relative_to(warehouse))
            problems.append(Problem(path.stem, None, file, str(error).partition("; ")[0], INGEST_AGAIN))
        else:
            problems += _problems_of_run(lake, run) if run else []
    return problems


INGEST_AGAIN = "`tw ingest` its capture again"
_REPORT = "the files are as they were written: report this as a fault of tracewarehouse"


def _problems_of_run(lake: Lake, run: RunVersion) -> Iterator[Problem]:
    is_whole = True
    for name, files in run.files.items():
        rows = 0
        for file in files:
            try:
                if file_digest(lake.warehouse / file) != run.digests.get(file):
                    is_whole = False
                    yield Problem(run.run_id, run.name, file, "its bytes are not those that were written", INGEST_AGAIN)
                    continue
            except OSError as error:
                is_whole = False
                what = "there is no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
                yield Problem(run.run_id, run.name, file, what, INGEST_AGAIN)
                continue
            count, sentence = _read_through(lake.warehouse / file, name, run.run_id)
            rows += count
            if sentence:
                is_whole = False
                yield Problem(run.run_id, run.name, file, sentence, _REPORT)
        if is_whole and rows != run.rows.get(name):
            is_whole = False
            sentence = f"has {rows} rows, its manifest says {run.rows.get(name)}"
            yield Problem(run.run_id, run.name, ", ".join(files), sentence, _REPORT)
    if not is_whole:
        return
    missing = [n for n, count in run.rows.items() if count and n in TABLES and not run.files.get(n)]
    if missing:
        sentence = f"its manifest counts rows of {', '.join(missing)} but names no file"
        yield Problem(run.run_id, run.name, f"manifests/{run.run_id}.json", sentence, _REPORT)
    else:
        yield from (Problem(run.run_id, run.name, None, s, _REPORT) for s in _contradictions(lake, run))


def _read_through(path: Path, table: str, run_id: str) -> tuple[int, str | None]:
    try:
        with pq.ParquetFile(path.absolute(), read_dictionary=["run_id"], page_checksum_verification=True) as file:
            if table not in TABLES:
                return file.metadata.num_rows, "is of no table of this version"
            wanted = TABLES[table].arrow
            if pa.schema([_plain(f) for f in file.schema_arrow]) != pa.schema([_plain(f) for f in wanted]):
                return file.metadata.num_rows, "its columns are not those of this version of the table"
            stamp = (file.schema_arrow.metadata or {}).get(b"schema_version")
            if stamp != wanted.metadata[b"schema_version"]:
                return file.metadata.num_rows, f"it has schema version {stamp!r}"
            for batch in file.iter_batches(1 << 16, use_threads=False):
                if runs := set(batch.column("run_id").unique().to_pylist()) - {run_id}:
                    return file.metadata.num_rows, f"it has rows of the run {runs.pop()}"
            return file.metadata.num_rows, None
    except (OSError, pa.ArrowException) as error:
        return 0, f"it cannot be read ({' '.join(str(error).split())[:200]})"


def _plain(column: pa.Field) -> pa.Field:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return pa.field(column.name, kind, column.nullable)


def _contradictions(lake: Lake, run: RunVersion) -> Iterator[str]:
    digests = [row["digest"] for row in table_rows(lake, run, "hosts", ["digest"])]
    if run_digest(digests) != run.source_digest or derived_run_id(run.source_digest) != run.run_id:
        yield "its id does not follow from the digests of its hosts"
    lines = table_rows(lake, run, "lines", ["first_event_id", "event_count"])
    count = sum(row["event_count"] for row in lines)
    if count != run.rows.get("events"):
        yield f"its lines have {count} events, its manifest says {run.rows.get('events')}"
        return
    times_seen = np.zeros(count, np.uint8)
    for table in ("ops", "host_events"):
        for batch in column_batches(lake, run, table, ["event_id"]):
            ids = batch["event_id"].to_numpy()
            if ids.min() < 0 or ids.max() >= count:
                yield f"{table} has an event id outside 0 to {count - 1}"
                return
            np.add.at(times_seen, ids, np.uint8(1))
    if not (times_seen == 1).all():
        yield f"{int((times_seen != 1).sum())} of its {count} events are not in ops and host_events exactly once"
    instructions = run.rows.get("instructions", 0)
    for table in ("ops", "collectives", "copies"):
        batches = column_batches(lake, run, table, ["instruction_id"])
        if any(b["instruction_id"].to_numpy().max(initial=-1) >= instructions for b in batches):
            yield f"{table} names an instruction that is not in instructions"


def table_rows(lake: Lake, run: RunVersion, table: str, columns: list[str]) -> list[dict[str, Any]]:
    """Return the rows of a small table of a run."""
    return [row for p in lake.paths(run, table) for row in pq.ParquetFile(p).read(columns=columns).to_pylist()]


def column_batches(
    lake: Lake, run: RunVersion, table: str, columns: list[str], coded: Sequence[str] = ()
) -> Iterator[dict[str, pa.Array]]:
    """Yield columns of a table of a run, one batch of rows at a time; `coded` ones come dictionary-encoded."""
    for path in lake.paths(run, table):
        with pq.ParquetFile(path, read_dictionary=coded) as file:
            for batch in file.iter_batches(1 << 17, columns=columns, use_threads=False):
                yield {c: batch.column(c) for c in columns}
