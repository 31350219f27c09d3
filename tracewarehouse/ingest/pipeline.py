"""Turns one capture into one run of a warehouse: read, normalise, evaluate, publish."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tracewarehouse.ingest.capture.batches import Batch, read_batches
from tracewarehouse.ingest.capture.hardware import known_kind
from tracewarehouse.ingest.capture.run_options import DEFAULT_OPTIONS, RunOptions
from tracewarehouse.ingest.capture.sources import Capture
from tracewarehouse.ingest.columns.records import Trace
from tracewarehouse.ingest.devices.hosts import (
    Host,
    clock_notes,
    complete_devices,
    open_hosts,
    share_chips,
)
from tracewarehouse.ingest.devices.joined_hosts import find_whole_captures
from tracewarehouse.ingest.devices.run_survey import RunSurvey, survey_run
from tracewarehouse.ingest.errors import CaptureError, MalformedError, TooManyError, WarehouseError
from tracewarehouse.ingest.lake.durable_files import Settling
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import RunVersion, derived_run_id, run_digest
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION
from tracewarehouse.ingest.processes.cycle_search import without_cycle_search
from tracewarehouse.ingest.processes.pool import Processes, usable_cores
from tracewarehouse.ingest.readers.files import CaptureFile, capture_digest, distinct
from tracewarehouse.ingest.readers.formats import open_trace
from tracewarehouse.ingest.tables.parts import DIVIDED, helpers, start_counting
from tracewarehouse.ingest.tables.run_row import RunFacts, run_facts
from tracewarehouse.ingest.tables.run_tables import Written, write_tables
from tracewarehouse.ingest.tables.staging import RunFolder, Staging, TableFiles
from tracewarehouse.ingest.version import VERSION

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.card import WorkloadCard
    from tracewarehouse.ingest.capture.manifest import Manifest


class MetricEvaluator(Protocol):
    """Evaluates the metrics of one run from the files of its tables."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of all metric definitions."""
        ...

    def prepare(self) -> None:
        """Do what a call does before it needs a run; what fails here fails there again."""
        ...

    def __call__(self, files: Mapping[str, Sequence[Path]], run_id: str) -> Mapping[str, list[Any]]:
        """Evaluate a run from its files by table name, and return the columns of main.metric_values without run_id."""
        ...


@dataclass(frozen=True)
class IngestResult:
    """The result of ingesting one capture."""

    run_id: str
    name: str
    status: Literal["ingested", "unchanged"]
    entry: RunVersion
    event_count: int
    notes: list[str] = field(default_factory=list)


def ingest_one(
    path: str | os.PathLike[str],
    warehouse: Path,
    options: RunOptions = DEFAULT_OPTIONS,
    *,
    evaluate: MetricEvaluator | None = None,
    jobs: int | None = None,
) -> IngestResult:
    """Ingest the one capture at a path or URI; see `ingest_capture`.

    Raises:
        CaptureError: there is no capture, or more than one.
    """
    from tracewarehouse.ingest.capture.remote import local_copy

    captures = find_whole_captures(local_copy(path))
    if len(captures) > 1:
        names = ", ".join(c.name for c in captures)
        raise CaptureError(f"{path}: holds {len(captures)} captures ({names}); ingest them one by one")
    return ingest_capture(captures[0], warehouse, options, evaluate=evaluate, jobs=jobs)


def ingest_capture(
    capture: Capture,
    warehouse: Path,
    options: RunOptions = DEFAULT_OPTIONS,
    *,
    evaluate: MetricEvaluator | None = None,
    jobs: int | None = None,
) -> IngestResult:
    """Write a capture's tables and publish them as a run.

    The same bytes are the same run, whatever their files are called. If the warehouse already has the run, and the
    manifest, the card and the arguments add nothing new, nothing is written. Publishing is atomic, so a call can be
    repeated, and can run in parallel with others.

    Args:
        warehouse: the warehouse's folder; created if it does not exist.
        options: what the user says about the run.
        evaluate: evaluates the run's metrics before it is published.
        jobs: number of processes that may share a large capture, this one included; None for one per core.
            The tables are the same, byte for byte, for any number.

    Raises:
        CaptureError: a file is missing, empty, damaged, or not a capture; no such program ran; or the mesh does not
            fit the devices.
        HelperError: one of several processes was ended from outside.
        WarehouseError: the warehouse cannot be written.
    """
    _check_names(capture, options.name)
    files = [CaptureFile(path, max_gzip_ratio=capture.max_gzip_ratio) for path in capture.files]
    manifest, card = _descriptions(capture)
    batches = read_batches(capture.batch_files)
    cores = usable_cores() if jobs is None else jobs
    with helpers(files, cores) as processes, ThreadPoolExecutor(1) as meanwhile:
        if evaluate and cores > 1 and sum(f.size for f in files) >= DIVIDED:
            meanwhile.submit(evaluate.prepare)  # while the capture is read, by helpers or without Python's lock
        source = _open(files, processes)
        identity = _identify(source, capture, manifest, options)
        lake = Lake(warehouse)
        known = _known(lake, identity)
        if known:
            events = known.rows.get("events", 0)
            return IngestResult(identity.run_id, known.name, "unchanged", known, events, source.notes)
        try:
            # helpers end before the folder that they write to is removed
            with lake.stage(identity.run_id, identity.version) as folder, processes, Settling() as settling:
                staging = Staging(RunFolder(folder, identity.run_id), settling, processes)
                hosts = open_hosts(source.traces(), [f.path for f in source.files])
                with without_cycle_search():
                    counting = start_counting(staging, [h.trace for h in hosts])
                    survey = _survey(hosts, batches, card, manifest, identity.name, options)
                    written = write_tables(staging, survey, counting)
                    facts = run_facts(identity.name, capture, card, source.digest, source.notes, survey, written)
                made = written.files | facts.write(staging)
                meanwhile.shutdown()
                run = _evaluated(identity, source, made, facts, written, staging, evaluate)
                placed = lake.publish(folder, run, settling)
        except TooManyError as error:
            raise MalformedError(f"{identity.name}: {error}") from None
        except OSError as error:
            raise WarehouseError(f"{warehouse}: writing run {identity.name} failed: {error}") from error
    notes = [*(f.detail for f in facts.flags), *clock_notes(hosts)]
    return IngestResult(identity.run_id, identity.name, "ingested", placed, written.event_count, notes)


def _survey(
    hosts: Sequence[Host],
    batches: Sequence[Batch],
    card: WorkloadCard | None,
    manifest: Manifest | None,
    name: str,
    options: RunOptions,
) -> RunSurvey:
    survey = survey_run(hosts, options.mesh, manifest, options.step_program, batches)
    if options.mesh and survey.placement.mismatch:
        raise CaptureError(f"{name}: {survey.placement.mismatch}; give a mesh of its devices, or none")
    if card:
        chip = card.workload.hardware.xpu_spec
        complete_devices(survey.devices, chip.type.lower(), chip.model)
    if options.device:
        complete_devices(survey.devices, *known_kind(options.device), source="option")
    share_chips(survey.devices)
    stated = survey.prediction.chip_price_usd_per_h if survey.prediction else None
    price = stated if options.chip_price is None else options.chip_price
    for device in survey.devices if price is not None else ():
        device.chip_price_usd_per_h, device.chip_price_source = price, "option"
    return replace(survey, costs=options.costs)


@dataclass(frozen=True)
class _Source:
    """The files of a capture, without duplicates, and the digest of all of them together."""

    files: list[CaptureFile]
    digest: str
    notes: list[str]
    """A sentence for each file that was left out."""
    opened: Mapping[int, Trace]
    """The files that are already open, by identity of the file."""

    def traces(self) -> list[Trace]:
        return [self.opened.get(id(f)) or open_trace(f) for f in self.files]


def _open(files: list[CaptureFile], processes: Processes) -> _Source:
    """Digest the files; those of a large capture are opened here while helpers read their bytes."""
    digesting = processes.start(capture_digest, files)
    # without a helper, a known capture is not opened
    opened = {id(f): open_trace(f, processes) for f in files} if processes.count else {}
    for f, digest in zip(files, digesting.results(), strict=True):
        f.digest = digest
    kept, notes = distinct(files)
    return _Source(kept, run_digest(f.digest for f in kept), notes, opened)


@dataclass(frozen=True)
class _Identity:
    """The id, version and name of a run; the id follows from its bytes, the version from all that shapes its tables."""

    run_id: str
    version: str
    name: str
    is_described: bool
    """Whether a manifest, a card, batches or options add facts to the bytes."""


def _identify(source: _Source, capture: Capture, manifest: Manifest | None, options: RunOptions) -> _Identity:
    said = {
        "manifest": _digest(capture.manifest),
        "card": _digest(capture.card),
        "mesh": options.mesh.model_dump() if options.mesh else None,
        "batches": [(f.rank, _digest(f.path)) for f in capture.batch_files],
        "name": options.name,
        "step_program": options.step_program,
        "costs": options.costs.digest if options.costs else None,
        "device": options.device,
        "chip_price": options.chip_price,
    }
    key = json.dumps([source.digest, said, SCHEMA_VERSION, VERSION], sort_keys=True)
    return _Identity(
        derived_run_id(source.digest),
        hashlib.sha256(key.encode()).hexdigest()[:16],
        options.name or (manifest.name if manifest else capture.name),
        any(said.values()),
    )


def _evaluated(
    identity: _Identity,
    source: _Source,
    files: TableFiles,
    facts: RunFacts,
    written: Written,
    staging: Staging,
    evaluate: MetricEvaluator | None,
) -> RunVersion:
    made = dict(files)
    if evaluate:
        values = evaluate({t: [path for path, _ in parts] for t, parts in made.items()}, identity.run_id)
        with staging.folder.writer("metric_values") as writer:
            writer.write(len(values["metric"]), values)
        if writer.rows:
            made["metric_values"] = [(writer.path, writer.rows)]
    rows = {t: sum(count for _, count in parts) for t, parts in made.items()}
    return RunVersion(
        identity.run_id,
        identity.version,
        identity.name,
        SCHEMA_VERSION,
        VERSION,
        source.digest,
        {t: [path.name for path, _ in parts] for t, parts in sorted(made.items())},
        rows | {"events": written.event_count},
        evaluate.fingerprint if evaluate else None,
        sorted({f.name for f in facts.flags}),
    )


def _check_names(capture: Capture, name: str | None) -> None:
    """Refuse names of captures, files and runs that no table can hold."""
    for text in (name or capture.name, *(f.name for f in capture.files)):
        try:
            text.encode()
        except UnicodeEncodeError:
            where = f"{capture.files[0].parent}: " if capture.files else ""
            raise CaptureError(f"{where}the name {text!r} is not UTF-8; rename it, then ingest it again") from None


def _descriptions(capture: Capture) -> tuple[Manifest | None, WorkloadCard | None]:
    manifest = card = None
    if capture.manifest:
        from tracewarehouse.ingest.capture.manifest import load_manifest

        manifest = load_manifest(capture.manifest)
    if capture.card:
        from tracewarehouse.ingest.capture.card import load_card

        card = load_card(capture.card)
    return manifest, card


def _known(lake: Lake, identity: _Identity) -> RunVersion | None:
    """Return the stored run if nothing new is known about it; None if it is damaged or older and must be rewritten."""
    try:
        known = lake.run(identity.run_id)
    except WarehouseError:
        return None
    if known is None or not lake.is_whole(known):
        return None
    is_same = known.version == identity.version
    return known if is_same or (known.ingest_version == VERSION and not identity.is_described) else None


def _digest(path: Path | None) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path else None
