"""Writes main.phases: the executions, steps and phases of devices and hosts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tracewarehouse.ingest.devices.hosts import Host
from tracewarehouse.ingest.devices.run_survey import RunSurvey
from tracewarehouse.ingest.devices.timeline import Step, StepMarker, host_steps, named_phase, step_rows
from tracewarehouse.ingest.tables.lines import LinesWritten
from tracewarehouse.ingest.tables.writers import RunWriters

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.manifest import Manifest


def write_phases(writers: RunWriters, survey: RunSurvey, parts: Iterable[LinesWritten]) -> None:
    """Write the rows of all devices and hosts; `parts` holds the step markers that were found."""
    for of_host in survey.hosts:
        host = of_host.host
        for device, timeline in of_host.device_timelines:
            writers.write_rows("phases", timeline.phase_rows(host.name, device.device_id))
        markers: list[StepMarker] = [*of_host.markers]
        for part in parts:
            markers += part.markers.get(host.index, [])
        steps = host_steps(markers) or _manifest_steps(host, survey.manifest)
        writers.write_rows("phases", step_rows(steps, {"host": host.name, "device_id": None}))


def _manifest_steps(host: Host, manifest: Manifest | None) -> list[Step]:
    """Return the steps by the collector's clock, for a capture without markers."""
    if not manifest or host.start_ns is None:
        return []
    zero = host.start_ns - host.clock_offset_ps // 1000
    return [
        Step(m.step, named_phase(m.name), m.name, (m.start_ns - zero) * 1000, (m.end_ns - zero) * 1000, "manifest")
        for m in manifest.phases
    ]
