"""Makes the rows about a whole run: what ran, from manifest and card, and how complete the capture is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from tracewarehouse.ingest.capture.promises import broken_promises, for_program
from tracewarehouse.ingest.capture.sources import Capture, stem
from tracewarehouse.ingest.devices.flags import Flag, summarised
from tracewarehouse.ingest.devices.hosts import near_each_other
from tracewarehouse.ingest.devices.quality import dropped, event_cap, messages
from tracewarehouse.ingest.devices.run_survey import MissingDevices, RunSurvey
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION
from tracewarehouse.ingest.readers.formats import format_named
from tracewarehouse.ingest.tables.run_tables import Written
from tracewarehouse.ingest.tables.staging import RunWriters, Staging, TableFiles
from tracewarehouse.ingest.version import VERSION

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.card import ParallelizationPlan, WorkloadCard
    from tracewarehouse.ingest.capture.manifest import Manifest


@dataclass(frozen=True)
class RunFacts:
    """The row of main.runs, and the quality flags of the run, of which many alike are summed up."""

    row: Mapping[str, Any]
    flags: tuple[Flag, ...]

    def write(self, staging: Staging) -> TableFiles:
        """Write main.runs and main.quality_flags; return their files."""
        with RunWriters(staging, ("runs", "quality_flags")) as writers:
            writers.write_rows("runs", [self.row])
            writers.write_rows("quality_flags", ({"index": i} | f.row() for i, f in enumerate(self.flags)))
        return writers.files()


def run_facts(
    name: str,
    capture: Capture,
    card: WorkloadCard | None,
    source_digest: str,
    notes: Sequence[str],
    survey: RunSurvey,
    written: Written,
) -> RunFacts:
    """Collect what manifest, card, survey and tables state about a run; `notes` are about files that were left out."""
    empty = (Flag("empty_file", f"{p.name} is empty; its .trace.json was read instead") for p in capture.empty_files)
    flags = (*(Flag("duplicate_file", n) for n in notes), *empty, *quality_flags(survey, written, card))
    return RunFacts(_run_row(name, capture, card, source_digest, survey, written, flags), flags)


def quality_flags(survey: RunSurvey, written: Written, card: WorkloadCard | None = None) -> list[Flag]:
    """All flags of a run, except those about files that were left out."""
    flags = [*survey.flags, *written.flags]
    for s, event_count in zip(survey.hosts, written.host_events, strict=True):
        host, trace = s.host, s.host.trace
        flags += messages(trace.errors, trace.warnings, host.name)
        flags += dropped(trace.planes, host.name)
        flags += [Flag(name, sentence, host.name) for name, sentence in trace.findings]
        if format_named(trace.format).is_export:
            flags += event_cap(host.file_name, event_count, host.name)
    manifest, devices = survey.manifest, survey.devices
    missing_hosts = _missing_hosts(survey)
    if missing_hosts:
        flags.append(Flag("missing_hosts", f"the manifest names {missing_hosts}, whose files are not here"))
    missing = _missing_devices(survey, written)
    if missing.count:
        flags.append(Flag("missing_devices", missing.sentence))
    if manifest and manifest.promised_collectives and survey.placement.mesh == manifest.mesh:
        if survey.is_program:
            manifest = for_program(manifest, {k.phase for k in written.collective_counts})
        broken = broken_promises(manifest, written.collective_counts, {d.device_id: d.pp_index for d in devices})
        flags += [Flag("promise_broken", sentence) for sentence in broken]
    if card and "published" in (card.model_extra or {}):  # written by `tw import ccl-bench`
        flags.append(Flag("no_trace", "the card and the published values of a row of CCL-Bench, without its trace"))
    elif not devices:
        flags.append(Flag("no_device_events", "the capture has no device events: only the host was profiled"))
    return summarised(flags)


def _run_row(
    name: str,
    capture: Capture,
    card: WorkloadCard | None,
    source_digest: str,
    survey: RunSurvey,
    written: Written,
    flags: Sequence[Flag],
) -> dict[str, Any]:
    hosts, manifest, mesh = [s.host for s in survey.hosts], survey.manifest, survey.placement.mesh
    starts, stops = near_each_other(h.start_ns for h in hosts), near_each_other(h.stop_ns for h in hosts)
    row: dict[str, Any] = {
        "name": name,
        "origin": survey.origin,
        "backend": survey.backend,
        "format": hosts[0].trace.format,
        "host_count": len(hosts),
        "device_count": len(survey.devices),
        "profile_start_ns": min(starts, default=None),
        "profile_stop_ns": max(stops, default=None),
        "event_count": written.event_count,
        "is_truncated": any(f.name in ("events_dropped", "event_cap") for f in flags),
        "missing_hosts": _missing_hosts(survey),
        "missing_devices": _missing_devices(survey, written).count or None,
        "source_digest": source_digest,
        "source_bytes": sum(h.trace.size for h in hosts),
        "schema_version": SCHEMA_VERSION,
        "ingest_version": VERSION,
        "manifest": capture.manifest.read_text(encoding="utf-8") if capture.manifest else None,
        "costs": survey.costs.text if survey.costs else None,
    }
    if card:
        row |= card_facts(card)
    if manifest:
        row |= manifest_facts(manifest)
    if mesh:
        row |= {"mesh": str(mesh), **mesh.axes}
    return row


_OF_MANIFEST = ("dtype", "batch_size", "input_length", "output_length", "sequence_parallelism", "microbatches")
_OF_MODEL = ("num_layers", "hidden_size", "num_heads", "head_dim", "vocab_size")
"""Facts that are called the same in main.runs."""


def manifest_facts(manifest: Manifest) -> dict[str, Any]:
    """The facts that a manifest states about the run, by column."""
    from tracewarehouse.ingest.capture.manifest import ModelFacts

    model = manifest.model or ModelFacts(name="")
    versions = manifest.versions.get(manifest.backend or "")
    facts = {
        **{name: getattr(manifest, name) for name in _OF_MANIFEST},
        **{name: getattr(model, name) for name in (*_OF_MODEL, "num_params", "num_params_embedding")},
        "model": model.name or None,
        "model_family": model.family,
        # a dense model uses all of its parameters
        "num_params_active": model.num_params_active or (None if model.num_experts else model.num_params),
        "has_tied_embeddings": model.tie_word_embeddings,
        "capacity_factor": None if manifest.capacity_factor is None else f"{float(manifest.capacity_factor):g}",
        "framework": f"{manifest.backend} {versions}" if versions else manifest.backend,
    }
    return {k: v for k, v in facts.items() if v is not None}


def card_facts(card: WorkloadCard) -> dict[str, Any]:
    """The facts that a workload card states about the run, by column; a manifest is exact and takes precedence."""
    model, data = card.workload.model, card.workload.data
    plan, framework = card.model_executor.model_plan_parallelization, card.model_executor.framework
    arch = model.model_arch
    facts = {
        "model_family": model.model_family,
        "dtype": model.precision,
        "batch_size": data.batch_size if isinstance(data.batch_size, int) else None,
        "input_length": data.input_len,
        "output_length": data.output_len,
        **{name: getattr(arch, name) for name in _OF_MODEL},
        "num_params": _whole(arch.num_params),
        # a dense model uses all of its parameters
        "num_params_active": _whole(arch.num_params_active or (arch.num_params if model.moe is False else "")),
        "num_params_embedding": _whole(arch.num_params_embedding),
        "has_tied_embeddings": arch.tie_word_embeddings,
        "pp": plan.pp,
        "dp": plan.dp_replicate,
        "ep": plan.ep,
        "tp": plan.tp,
        "microbatches": _microbatches(data.batch_size, plan),
        "framework": framework.name,
    }
    known = {k: v for k, v in facts.items() if v not in ("", None)}
    return known | {"card": json.dumps(card.model_dump(mode="json", by_alias=True))}


def _microbatches(batch_size: object, plan: ParallelizationPlan) -> int | None:
    """Number of microbatches, from their size; 1 without a pipeline, None if the card does not state enough."""
    if plan.pp == 1:
        return 1
    degrees = [d if isinstance(d, int) else 1 for d in (plan.dp_replicate, plan.dp_shard, plan.ep)]
    size = plan.pp_mb
    if not isinstance(batch_size, int) or not isinstance(size, int) or size < 1 or min(degrees) < 1:
        return None
    return batch_size // math.prod(degrees) // size or None


def _whole(value: float | str) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def _missing_hosts(survey: RunSurvey) -> str | None:
    if not survey.manifest:
        return None
    here = {name for s in survey.hosts for name in (stem(PurePath(s.host.file_name)), s.host.name)}
    return ",".join(h for h in survey.manifest.hosts if h not in here) or None


def _missing_devices(survey: RunSurvey, written: Written) -> MissingDevices:
    """The missing devices according to the mesh or to the replica groups, whichever are more."""
    return max(survey.placement.missing_of_mesh, written.missing, key=lambda m: m.count)
