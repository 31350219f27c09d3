"""Places the devices of a run in its mesh, and finds devices that are missing from the capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from tracewarehouse.ingest.capture.batches import Batch
from tracewarehouse.ingest.capture.sources import stem
from tracewarehouse.ingest.capture_names import AXES
from tracewarehouse.ingest.collectives.groups import CollectiveGroups
from tracewarehouse.ingest.devices.clocks import align
from tracewarehouse.ingest.devices.compiled_program import survey_program
from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.host_survey import HostSurvey, survey_host
from tracewarehouse.ingest.devices.hosts import Device, Host
from tracewarehouse.ingest.devices.inferred_executions import infer_executions
from tracewarehouse.ingest.devices.product_phases import tell_by_shapes
from tracewarehouse.ingest.devices.server_steps import join_batches
from tracewarehouse.ingest.devices.steps import number_steps
from tracewarehouse.ingest.devices.timeline import Timeline
from tracewarehouse.ingest.hlo.instructions import MOST_MEMBERS, Instructions

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.costs import Costs
    from tracewarehouse.ingest.capture.manifest import Manifest, Mesh, PipelineStage


@dataclass(frozen=True)
class MissingDevices:
    """Number of devices that take part in a run but are missing from its capture, and a sentence on who names them."""

    count: int = 0
    sentence: str = ""


@dataclass(frozen=True)
class Placement:
    """The devices of a run, by device id, in its mesh, which user or manifest give."""

    devices: tuple[Device, ...]
    mesh: Mesh | None = None
    coordinates: Mapping[int, Mapping[str, int]] | None = None
    """Coordinate on every mesh axis by device id; None if the mesh is unknown or does not fit."""
    mesh_numbers: Mapping[int, int] = field(default_factory=dict)
    """Device id by its number in the mesh, if only some of the mesh's hosts are in the capture."""
    absent: tuple[str, ...] = ()
    """Devices of hosts that the manifest names but the capture lacks, one phrase per host."""
    mismatch: str | None = None
    """A sentence that says so, if the mesh does not fit the devices."""

    def missing(self, wanted: int, who: str) -> MissingDevices:
        """The devices that are missing from `wanted` devices; `who`, the source of that number, begins the sentence."""
        here = len(self.devices)
        if wanted <= here:
            return MissingDevices()
        which = "; ".join(self.absent) or wanted - here
        return MissingDevices(wanted - here, f"{who} {wanted} devices, the capture {here}: {which} are missing")

    @property
    def missing_of_mesh(self) -> MissingDevices:
        """The devices of the mesh that are missing from the capture."""
        return self.missing(self.mesh.size, f"the mesh {self.mesh} has") if self.mesh else MissingDevices()


def place_devices(surveys: Sequence[HostSurvey], mesh: Mesh | None, manifest: Manifest | None) -> Placement:
    """Set the mesh coordinates of the hosts' devices, and the layers of their pipeline stages."""
    devices = tuple(d for s in surveys for d in s.devices)
    if mesh is None:
        return Placement(devices)
    absent = _number_by_manifest(surveys, mesh, manifest) if manifest else None
    numbers = {} if absent is None else {d.global_id: d.device_id for d in devices if d.global_id is not None}
    mismatch = _place_on_mesh(devices, mesh)
    coordinates = None
    if mismatch is None:
        stages = manifest.stages if manifest else None
        if stages and len(stages) == mesh.axes.get("pp", 1):
            _place_on_stages(devices, stages)
        coordinates = {d.device_id: {a: getattr(d, f"{a}_index") for a in AXES if a in mesh.axes} for d in devices}
    return Placement(devices, mesh, coordinates, numbers, tuple(absent or ()), mismatch)


def _number_by_manifest(surveys: Sequence[HostSurvey], mesh: Mesh, manifest: Manifest) -> list[str] | None:
    """Number the devices in the mesh if hosts of the manifest are missing; return the devices of those hosts.

    Hosts hold equal shares of the mesh, in the manifest's order. If a host here does not, the result is None.
    """
    names = manifest.hosts
    share = mesh.size // max(len(names), 1)
    place = {n: i for i, n in enumerate(names)}
    here = [place.get(stem(PurePath(s.host.file_name)), place.get(s.host.name)) for s in surveys]
    known = [i for i in here if i is not None]
    if len(known) != len(here) or len(known) >= len(names) or share * len(names) != mesh.size:
        return None
    if len(set(known)) != len(known) or any(len(s.devices) != share for s in surveys):
        return None
    for survey, index in zip(surveys, known, strict=True):
        for number, device in enumerate(survey.devices):
            device.global_id = index * share + number
    absent = [i for i in range(len(names)) if i not in known]
    return [f"{', '.join(str(i * share + k) for k in range(share))} of host {names[i]}" for i in absent]


def _place_on_mesh(devices: Sequence[Device], mesh: Mesh) -> str | None:
    """Give the devices their mesh coordinates; return a sentence for the flags if they do not fit."""
    if mesh.size == len(devices):
        numbers = [d.device_id for d in devices]
    else:
        numbers = [d.global_id for d in devices if d.global_id is not None and d.global_id < mesh.size]
        if len(numbers) < len(devices):
            return f"the mesh {mesh} has {mesh.size} devices and the capture {len(devices)}: axes are unknown"
    coordinates = mesh.coordinates()
    for device, number in zip(devices, numbers, strict=True):
        for axis in AXES:
            setattr(device, f"{axis}_index", coordinates[number].get(axis))
    return None


def _place_on_stages(devices: Sequence[Device], stages: Sequence[PipelineStage]) -> None:
    """Give the devices, which have their mesh coordinates, the layers of their pipeline stages."""
    for d in devices:
        if d.pp_index is not None:
            stage = stages[d.pp_index]
            d.first_layer, d.last_layer, d.first_slot = stage.first_layer, stage.last_layer, stage.first_slot


@dataclass(frozen=True)
class RunSurvey:
    """Everything, besides its events, from which a run's tables are made."""

    hosts: tuple[HostSurvey, ...]
    placement: Placement
    manifest: Manifest | None
    instructions: Instructions
    """Numbers the run's instructions: it has those that the survey needed, and gets the others with the events."""
    hlo_notes: list[str]
    """Problems with embedded HLO modules, which are read when an instruction is looked up."""
    flags: tuple[Flag, ...] = ()
    batches: tuple[Batch, ...] = ()
    """The server's batches, joined to the steps."""
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
        mesh: the device mesh that the user gives; it replaces the manifest's.
        manifest: the collector's manifest.
        step_program: the module whose executions begin a step, if the user names it.
        batches: the server's batches.
    """
    hlo_notes: list[str] = []
    surveys: list[HostSurvey] = []
    flags: list[Flag] = []
    told = mesh or (manifest.mesh if manifest else None)
    for host in hosts:
        survey = survey_host(host, sum(len(s.devices) for s in surveys), hlo_notes)
        if program := survey_program(host, told, hlo_notes):
            survey.program, survey.devices, unknown = program
            flags += unknown
        surveys.append(survey)
    placement = place_devices(surveys, told, manifest)
    instructions = Instructions(max(MOST_MEMBERS, sum(h.trace.size for h in hosts) // 4))
    run = RunSurvey(tuple(surveys), placement, manifest, instructions, hlo_notes)
    flags += [Flag("mesh_mismatch", placement.mismatch)] if placement.mismatch else []
    flags += infer_executions(surveys, instructions)
    flags += align(surveys, instructions, run.groups)
    flags += number_steps(surveys, instructions, step_program)
    joined, unmatched = join_batches(surveys, batches)
    said = {b.phase for b in batches}
    flags += [*unmatched, *tell_by_shapes(surveys, instructions, said if None not in said else ())]
    return replace(run, flags=tuple(flags), batches=tuple(joined))
