"""The row of main.runs: what ran, from manifest and card, and how complete the capture is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from tracewarehouse.ingest.capture.promises import broken_promises
from tracewarehouse.ingest.capture.sources import Capture, stem
from tracewarehouse.ingest.devices.hosts import Host
from tracewarehouse.ingest.devices.quality import EVENT_CAPS, Flag, dropped, messages, summarised
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION
from tracewarehouse.ingest.tables.run_tables import RunTables

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.card import WorkloadCard
    from tracewarehouse.ingest.capture.manifest import Manifest, Mesh


def quality_flags(hosts: Sequence[Host], tables: RunTables, mesh: Mesh | None, manifest: Manifest | None) -> list[Flag]:
    """All flags of a run whose tables have been written."""
    found = list(tables.flags)
    for h in hosts:
        found += messages(h.trace.errors, h.trace.warnings, h.name)
        found += dropped(h.trace.planes, h.name)
        if h.trace.format == "chrome" and h.event_count in EVENT_CAPS:
            found.append(Flag("event_cap", f"{h.file_name} has {h.event_count:,} events", h.name))
    missing = _missing_hosts(hosts, manifest)
    if missing:
        found.append(Flag("missing_hosts", f"the manifest names {missing}, whose files are not here"))
    if tables.missing_devices:
        found.append(Flag("missing_devices", tables.missing_sentence))
    if manifest and manifest.promised_collectives and mesh in (None, manifest.mesh):
        broken = broken_promises(manifest, tables.collective_counts, {d.device_id: d.pp_index for d in tables.devices})
        found += [Flag("promise_broken", sentence) for sentence in broken]
    if not tables.devices:
        found.append(Flag("no_device_events", "the capture has no device events: only the host was profiled"))
    return summarised(found)


def run_row(
    name: str,
    hosts: Sequence[Host],
    tables: RunTables,
    mesh: Mesh | None,
    manifest: Manifest | None,
    capture: Capture,
    source_digest: str,
    flags: Sequence[Flag],
) -> dict[str, Any]:
    """The row as a mapping of column to value, but for the version of the tool.

    Raises:
        CaptureError: the card is not valid.
    """
    starts = [h.start_ns for h in hosts if h.start_ns is not None]
    stops = [h.stop_ns for h in hosts if h.stop_ns is not None]
    shape = mesh or (manifest.mesh if manifest else None)
    row: dict[str, Any] = {
        "name": name,
        "backend": tables.backend,
        "format": hosts[0].trace.format,
        "host_count": len(hosts),
        "device_count": len(tables.devices),
        "profile_start_ns": min(starts, default=None),
        "profile_stop_ns": max(stops, default=None),
        "event_count": tables.event_count,
        "is_truncated": any(f.name in ("events_dropped", "event_cap") for f in flags),
        "missing_hosts": _missing_hosts(hosts, manifest),
        "missing_devices": tables.missing_devices or None,
        "source_digest": source_digest,
        "source_bytes": sum(h.trace.size for h in hosts),
        "schema_version": SCHEMA_VERSION,
        "manifest": capture.manifest.read_text(encoding="utf-8") if capture.manifest else None,
    }
    if capture.card:
        from tracewarehouse.ingest.capture.card import load_card

        row |= card_facts(load_card(capture.card))
    if manifest:
        row |= manifest_facts(manifest)
    if shape:
        row |= {"mesh": str(shape), **shape.axes}
    return row


def manifest_facts(manifest: Manifest) -> dict[str, Any]:
    """What a manifest says of the run, by column."""
    from tracewarehouse.ingest.capture.manifest import ModelFacts

    model = manifest.model or ModelFacts(name="")
    versions = manifest.versions.get(manifest.backend or "")
    facts = {
        "model": model.name or None,
        "model_family": model.family,
        "dtype": manifest.dtype,
        "batch_size": manifest.batch_size,
        "input_length": manifest.input_length,
        "output_length": manifest.output_length,
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_heads": model.num_heads,
        "head_dim": model.head_dim,
        "num_params": model.num_params,
        "num_params_active": model.num_params_active,
        "num_params_embedding": model.num_params_embedding,
        "sequence_parallelism": manifest.sequence_parallelism,
        "microbatches": manifest.microbatches,
        "framework": f"{manifest.backend} {versions}" if versions else manifest.backend,
    }
    return {k: v for k, v in facts.items() if v is not None}


def card_facts(card: WorkloadCard) -> dict[str, Any]:
    """What a workload card says of the run, by column; a manifest, which knows it exactly, goes before."""
    model, data = card.workload.model, card.workload.data
    plan, framework = card.model_executor.model_plan_parallelization, card.model_executor.framework
    arch = model.model_arch
    facts = {
        "model_family": model.model_family,
        "dtype": model.precision,
        "batch_size": data.batch_size,
        "input_length": data.input_len,
        "output_length": data.output_len,
        "num_layers": arch.num_layers,
        "num_heads": arch.num_heads,
        "head_dim": arch.head_dim,
        "num_params": _whole(arch.num_params),
        "num_params_active": _whole(arch.num_params_active),
        "num_params_embedding": _whole(arch.num_params_embedding),
        "pp": plan.pp,
        "dp": plan.dp_replicate,
        "ep": plan.ep,
        "tp": plan.tp,
        "microbatches": plan.pp_mb,
        "framework": framework.name,
    }
    known = {k: v for k, v in facts.items() if v not in ("", None)}
    return known | {"card": json.dumps(card.model_dump(mode="json", by_alias=True))}


def _whole(value: float | str) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def _missing_hosts(hosts: Sequence[Host], manifest: Manifest | None) -> str | None:
    if not manifest:
        return None
    here = {stem(PurePath(h.file_name)) for h in hosts} | {h.name for h in hosts}
    return ",".join(h for h in manifest.hosts if h not in here) or None
