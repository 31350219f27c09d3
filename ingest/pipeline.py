"""Turns one capture into one run of a warehouse: read, normalise, evaluate, publish."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import pyarrow as pa

from tracewarehouse.ingest.capture.sources import Capture, find_captures
from tracewarehouse.ingest.devices.hosts import clock_notes, open_hosts
from tracewarehouse.ingest.devices.quality import Flag
from tracewarehouse.ingest.errors import CaptureError, WarehouseError
from tracewarehouse.ingest.lake.lake import Lake, RunVersion, Settling
from tracewarehouse.ingest.lake.parquet import TableWriter
from tracewarehouse.ingest.lake.run_id import digest_of, run_id_of
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION, TABLES
from tracewarehouse.ingest.processes.cycle_search import without_cycle_search
from tracewarehouse.ingest.processes.pool import usable_cores
from tracewarehouse.ingest.readers.files import CaptureFile, digest_of_file, distinct
from tracewarehouse.ingest.readers.formats import open_trace
from tracewarehouse.ingest.tables.parts import helpers
from tracewarehouse.ingest.tables.run import quality_flags, run_row
from tracewarehouse.ingest.tables.run_tables import RunTables
from tracewarehouse.ingest.version import VERSION

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.manifest import Manifest, Mesh


class MetricEvaluator(Protocol):
    """Evaluates the metrics of one run from the files of its tables."""

    fingerprint: str
    """Fingerprint of all metric definitions."""

    def __call__(self, files: Mapping[str, Sequence[Path]], run_id: str) -> pa.Table:
        """Rows of main.metric_values without run_id, from files by table name."""
        ...


@dataclass(frozen=True)
class IngestResult:
    """What became of a capture."""

    run_id: str
    name: str
    status: Literal["ingested", "unchanged"]
    entry: RunVersion
    event_count: int
    notes: list[str] = field(default_factory=list)


def ingest_one(
    path: str | os.PathLike[str],
    warehouse: Path,
    *,
    mesh: Mesh | None = None,
    name: str | None = None,
    evaluate: MetricEvaluator | None = None,
    jobs: int | None = None,
) -> IngestResult:
    """Ingest the one capture that a path or URI stands for; see `ingest_capture`.

    Raises:
        CaptureError: there is no capture, or more than one.
    """
    from tracewarehouse.ingest.capture.remote import local_copy

    captures = find_captures(local_copy(path))
    if len(captures) > 1:
        found = ", ".join(c.name for c in captures)
        raise CaptureError(f"{path}: holds {len(captures)} captures ({found}); ingest them one by one")
    return ingest_capture(captures[0], warehouse, mesh=mesh, name=name, evaluate=evaluate, jobs=jobs)


def ingest_capture(
    capture: Capture,
    warehouse: Path,
    *,
    mesh: Mesh | None = None,
    name: str | None = None,
    evaluate: MetricEvaluator | None = None,
    jobs: int | None = None,
) -> IngestResult:
    """Write a capture's tables and publish them as a run.

    The same bytes are the same run whatever their file is called; when the warehouse has them already, and
    nothing new is said about them, nothing is written. Publishing is atomic, so a call can be repeated or run
    beside others freely.

    Args:
        capture: the files of one run.
        warehouse: the warehouse's folder; made if it is not there.
        mesh: the device mesh, where no manifest tells it, or instead of the manifest's.
        name: name for people, instead of the manifest's or the file's.
        evaluate: evaluates the run's metrics before it is published.
        jobs: processes that may read a large capture at once, this one included; None for one per core. The tables
            are the same, byte for byte.

    Raises:
        CaptureError: a file is missing, empty, damaged, or not a capture.
        HelperError: one of several processes was ended from outside.
        WarehouseError: the warehouse cannot be written.
    """
    manifest = _manifest(capture)
    files = [CaptureFile(path, max_gzip_ratio=capture.max_gzip_ratio) for path in capture.files]
    most = usable_cores() if jobs is None else jobs
    with helpers(files, most) as processes:
        digesting = processes.start(digest_of_file, files)
        # a helper reads all bytes meanwhile; without one, a capture that is known is not opened
        opened = {id(f): open_trace(f, most) for f in files} if processes.count else {}
        for f, digest in zip(files, digesting.results(), strict=True):
            f.digest = digest
        files, notes = distinct(files)
        source_digest = digest_of(f.digest for f in files)
        run_id = run_id_of(source_digest)
        said = {
            "manifest": _digest(capture.manifest),
            "card": _digest(capture.card),
            "mesh": mesh.model_dump() if mesh else None,
            "name": name,
        }
        key = json.dumps([source_digest, said, SCHEMA_VERSION, VERSION], sort_keys=True)
        run_version = hashlib.sha256(key.encode()).hexdigest()[:16]
        lake = Lake(warehouse)
        known = _known(lake, run_id)
        if known and (known.version == run_version or (known.ingest_version == VERSION and not any(said.values()))):
            return IngestResult(run_id, known.name, "unchanged", known, known.rows.get("events", 0), notes)
        title = name or (manifest.name if manifest else capture.name)
        try:
            traces = [opened.get(id(f)) or open_trace(f, most) for f in files]
            # helpers end before the folder that they write to is removed
            with lake.stage(run_id, run_version) as staging, processes, Settling() as settling:
                hosts = open_hosts(traces, [f.path.name for f in files])
                known_mesh = mesh or (manifest.mesh if manifest else None)
                tables = RunTables(staging, hosts, known_mesh, manifest, processes, settling)
                with without_cycle_search(), tables:
                    tables.write()
                    flags = [*(Flag("duplicate_file", n) for n in notes), *quality_flags(hosts, tables, mesh, manifest)]
                    row = run_row(title, hosts, tables, mesh, manifest, capture, source_digest, flags)
                    tables.writers["runs"].write_rows([row | {"ingest_version": VERSION}])
                    tables.writers["quality_flags"].write_rows({"index": i} | f.row() for i, f in enumerate(flags))
                made = tables.files()
                if evaluate:
                    values = evaluate({t: [path for path, _ in found] for t, found in made.items()}, run_id)
                    with TableWriter(staging, TABLES["metric_values"]) as writer:
                        writer.write(len(values), {n: values.column(n).combine_chunks() for n in values.column_names})
                    if writer.rows:
                        made["metric_values"] = [(writer.path, writer.rows)]
                rows = {t: sum(count for _, count in found) for t, found in made.items()}
                entry = RunVersion(
                    run_id,
                    run_version,
                    title,
                    SCHEMA_VERSION,
                    VERSION,
                    source_digest,
                    {t: [path.name for path, _ in found] for t, found in sorted(made.items())},
                    rows | {"events": tables.event_count},
                    evaluate.fingerprint if evaluate else None,
                    sorted({f.name for f in flags}),
                )
                placed = lake.publish(staging, entry, settling)
        except OSError as error:
            raise WarehouseError(f"{warehouse}: writing run {title} failed: {error}") from error
    return IngestResult(
        run_id,
        title,
        "ingested",
        placed,
        tables.event_count,
        [*(f.detail for f in flags), *clock_notes(hosts)],
    )


def _manifest(capture: Capture) -> Manifest | None:
    if capture.manifest is None:
        return None
    from tracewarehouse.ingest.capture.manifest import load_manifest

    return load_manifest(capture.manifest)


def _known(lake: Lake, run_id: str) -> RunVersion | None:
    """The run as it is, where it can be used: a damaged or older one is written again."""
    try:
        known = lake.run(run_id)
    except WarehouseError:
        return None
    return known if known and lake.is_whole(known) else None


def _digest(path: Path | None) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path else None
