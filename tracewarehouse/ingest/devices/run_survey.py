"""Surveys a run before its events are written: its hosts on one clock, its devices in their mesh, its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracewarehouse.ingest.capture.batches import Batch
from tracewarehouse.ingest.collectives.groups import CollectiveGroups
from tracewarehouse.ingest.devices.clocks import align
from tracewarehouse.ingest.devices.device import Device
from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.hosts import Host
from tracewarehouse.ingest.devices.inferred_executions import infer_executions
from tracewarehouse.ingest.devices.placement import Placement, place_devices
from tracewarehouse.ingest.devices.program_survey import survey_program
from tracewarehouse.ingest.devices.server_batches import join_batches
from tracewarehouse.ingest.devices.steps import number_steps
from tracewarehouse.ingest.devices.survey import HostSurvey, survey_host
from tracewarehouse.ingest.devices.timeline import Timeline
from tracewarehouse.ingest.hlo.instructions import MOST_MEMBERS, Instructions

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.costs import Costs
    from tracewarehouse.ingest.capture.manifest import Manifest, Mesh


@dataclass(frozen=True)
class RunSurvey:
    """Everything, besides its events, from which a run's tables are made.

    Attributes:
        hosts: the surveys of the hosts, by host index.
        placement: the devices of all hosts in the mesh.
        manifest: the collector's manifest, if there is one.
        instructions: numbers the instructions of the run; it has those that the survey needed, and gets the others when
            the tables are written.
        hlo_notes: problems with embedded HLO modules, which are read when an instruction is looked up.
        flags: the quality flags found so far.
        batches: the server's batches, joined to the steps.
        costs: the costs of kernels that the user gives.
    """

    hosts: tuple[HostSurvey, ...]
    placement: Placement
    manifest: Manifest | None
    instructions: Instructions
    hlo_notes: list[str]
    flags: tuple[Flag, ...] = ()
    batches: tuple[Batch, ...] = ()
    costs: Costs | None = None

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of all hosts, by device id."""
        return self.placement.devices

    @property
    def is_program(self) -> bool:
        """Whether the run is a compiled program that nothing has run."""
        return any(s.program for s in self.hosts)

    @property
    def backend(self) -> str:
        """Kind of the devices: tpu, gpu, cpu, or unknown without devices."""
        return self.devices[0].backend if self.devices else "unknown"

    @property
    def timelines(self) -> list[tuple[int, Timeline]]:
        """Device id and timeline of every device."""
        return [(d.device_id, timeline) for s in self.hosts for d, timeline in s.device_timelines]

    def groups(self) -> CollectiveGroups:
        """The groups of the instructions that have been numbered so far."""
        devices = [[d.device_id for d in s.devices] for s in self.hosts if s.devices]
        where = self.placement
        return CollectiveGroups(self.instructions.rows, devices, where.coordinates, where.mesh, where.mesh_numbers)


def survey_run(
    hosts: Sequence[Host],
    mesh: Mesh | None,
    manifest: Manifest | None,
    step_program: str | None = None,
    batches: Sequence[Batch] = (),
) -> RunSurvey:
    """Find the devices of a run, place them in the mesh, bring the hosts to one clock and number the steps.

    Args:
        hosts: the hosts of the run; their clocks are corrected.
        mesh: the device mesh, if the user gives it; it replaces the manifest's.
        manifest: the collector's manifest, if there is one.
        step_program: the module whose executions begin a step, if the user names it.
        batches: the server's batches.

    Raises:
        CaptureError: the step program never ran, the bytes are not events, or the file changed.
    """
    hlo_notes: list[str] = []
    surveys: list[HostSurvey] = []
    for host in hosts:
        surveys.append(survey_host(host, sum(len(s.devices) for s in surveys), hlo_notes))
    told = mesh or (manifest.mesh if manifest else None)
    flags = [flag for s in surveys for flag in survey_program(s, told, hlo_notes)]
    placement = place_devices(surveys, told, manifest)
    instructions = Instructions(max(MOST_MEMBERS, sum(h.trace.size for h in hosts) // 4))
    run = RunSurvey(tuple(surveys), placement, manifest, instructions, hlo_notes)
    flags += [Flag("mesh_mismatch", placement.mismatch)] if placement.mismatch else []
    flags += infer_executions(surveys, instructions)
    flags += align(surveys, instructions, run.groups)
    flags += number_steps(surveys, instructions, step_program)
    joined, unmatched = join_batches(surveys, batches)
    return replace(run, flags=(*flags, *unmatched), batches=tuple(joined))
