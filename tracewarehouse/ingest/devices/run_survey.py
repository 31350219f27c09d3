"""Places the devices of a run in its mesh, and finds devices that are missing from the capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from tracewarehouse.ingest.capture.batches import Batch
from tracewarehouse.ingest.capture.sources import stem
from tracewarehouse.ingest.capture_names import AXES
from tracewarehouse.ingest.collectives.groups import CollectiveGroups
from tracewarehouse.ingest.collectives.numbering import DeviceNumbers
from tracewarehouse.ingest.columns.profiler_names import PREDICTION_PLANE
from tracewarehouse.ingest.devices.clocks import align
from tracewarehouse.ingest.devices.compiled_program import survey_program
from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.host_survey import HostSurvey, survey_host
from tracewarehouse.ingest.devices.hosts import Device, Host
from tracewarehouse.ingest.devices.inferred_executions import infer_executions
from tracewarehouse.ingest.devices.product_phases import tell_by_shapes
from tracewarehouse.ingest.devices.server_steps import join_batches, marked_batches
from tracewarehouse.ingest.devices.steps import number_steps
from tracewarehouse.ingest.devices.timeline import Timeline
from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.hlo.instructions import MOST_MEMBERS, Instructions

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.costs import Costs
    from tracewarehouse.ingest.capture.manifest import Manifest, Mesh, PipelineStage
    from tracewarehouse.ingest.capture.prediction import Prediction


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
    coordinates_by_number: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """The same by global id, in the order of the mesh, also of devices that are not in the capture."""
    is_assumed: bool = False
    """Whether neither the mesh nor a device assignment tells where the devices lie on it."""
    stages: tuple[PipelineStage, ...] = ()
    """The stages of the pipeline, by their place on pp."""
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

    def lay(self, coordinates: Mapping[int, Mapping[str, int]]) -> None:
        """Give the devices their mesh coordinates, by device id, and the layers of their pipeline stages."""
        for device in self.devices:
            place = coordinates[device.device_id]
            for axis in AXES:
                setattr(device, f"{axis}_index", place.get(axis))
            if self.stages and device.pp_index is not None:
                stage = self.stages[device.pp_index]
                device.first_layer, device.last_layer = stage.first_layer, stage.last_layer
                device.first_slot = stage.first_slot

    @property
    def missing_of_mesh(self) -> MissingDevices:
        """The devices of the mesh that are missing from the capture."""
        return self.missing(self.mesh.size, f"the mesh {self.mesh} has") if self.mesh else MissingDevices()


def place_devices(surveys: Sequence[HostSurvey], mesh: Mesh | None, manifest: Manifest | None) -> Placement:
    """Set the mesh coordinates of the hosts' devices, and the layers of their pipeline stages.

    A mesh without device ids is laid over the devices as the device assignment of the programs says.
    """
    devices = tuple(d for s in surveys for d in s.devices)
    if mesh is None:
        return Placement(devices)
    absent = _number_by_manifest(surveys, mesh, manifest) if manifest else None
    assignment = _main_assignment(surveys, mesh.size)
    by_number = mesh.coordinates(assignment)
    coordinates, mismatch = _mesh_coordinates(devices, mesh, by_number)
    stages = manifest.stages if manifest and manifest.stages else ()
    if len(stages) != mesh.axes.get("pp", 1):
        stages = ()
    is_assumed = mesh.device_ids is None and assignment is None
    where = Placement(devices, mesh, coordinates, by_number, is_assumed, tuple(stages), tuple(absent or ()), mismatch)
    if coordinates:
        where.lay(coordinates)
    return where


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


def _main_assignment(surveys: Sequence[HostSurvey], size: int) -> tuple[int, ...] | None:
    """Return the device assignment over `size` devices under which programs ran longest; None if none is stated."""
    ran: Counter[tuple[int, ...]] = Counter()
    for survey in surveys:
        time_ps: Counter[tuple[int | None, str]] = Counter()
        for _, timeline in survey.device_timelines:
            for run in timeline.runs:
                time_ps[run.program_id, run.module] += run.end_ps - run.start_ps
        for program, ps in time_ps.items():
            for assignment in survey.modules.assignments(*program):
                ran[assignment] += ps
        if survey.program:
            ran[survey.program.module.assignment] += 1
    return max((a for a in ran if len(a) == size), key=ran.__getitem__, default=None)


def _mesh_coordinates(
    devices: Sequence[Device], mesh: Mesh, by_number: Mapping[int, Mapping[str, int]]
) -> tuple[dict[int, Mapping[str, int]] | None, str | None]:
    """Return the coordinates of the devices by device id, or a sentence for the flags if the mesh does not fit.

    `by_number` has them by global id. Devices whose global ids are not stated, or are others, have them in their order.
    """
    stated = [d.global_id for d in devices if d.global_id in by_number]
    if len(set(stated)) == len(devices):
        numbers = [number for number in stated if number is not None]
    elif mesh.size == len(devices):
        numbers = sorted(by_number)
    else:
        return None, f"the mesh {mesh} has {mesh.size} devices and the capture {len(devices)}: axes are unknown"
    return {d.device_id: by_number[number] for d, number in zip(devices, numbers, strict=True)}, None


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
    prediction: Prediction | None = None
    """What was predicted; None if the run was recorded or only compiled."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of all hosts, by device id."""
        return self.placement.devices

    @property
    def origin(self) -> str:
        """Where its times come from: recorded, predicted, or compiled, which has none."""
        return "predicted" if self.prediction else "compiled" if self.is_program else "recorded"

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

    @property
    def clocks(self) -> dict[int, int]:
        """A number for each device, equal for those whose times can be compared: of one host, or of aligned hosts."""
        uncertain = {f.host for f in self.flags if f.name == "clock_uncertain"}
        checked = [s.host for s in self.hosts if s.host.is_aligned and s.host.name not in uncertain]
        of_host = {h.index: -1 - (h.clock_reference or 0) for h in checked}
        return {d.device_id: of_host.get(s.host.index, s.host.index) for s in self.hosts for d in s.devices}

    @property
    def doubted_clocks(self) -> frozenset[int]:
        """The devices of hosts whose clocks shared collectives contradict."""
        uncertain = {f.host for f in self.flags if f.name == "clock_uncertain"}
        return frozenset(d.device_id for s in self.hosts if s.host.name in uncertain for d in s.devices)

    def groups(self) -> CollectiveGroups:
        """The groups of the instructions that have been numbered so far."""
        devices = [[d.device_id for d in s.devices] for s in self.hosts if s.devices]
        stated = {d.device_id: d.global_id for d in self.devices if d.global_id is not None}
        ids = stated if len(set(stated.values())) == len(self.devices) else {}
        runners: dict[int | str | None, set[int]] = {}
        for device, timeline in self.timelines:
            for program in {p for run in timeline.runs for p in (run.program_id, run.module) if p is not None}:
                runners.setdefault(program, set()).add(device)
        where = self.placement
        mesh_order = where.mesh.device_ids if where.mesh else None
        numbers = DeviceNumbers(devices, ids, runners, mesh_order)
        return CollectiveGroups(
            self.instructions.rows,
            numbers,
            where.coordinates,
            where.coordinates_by_number,
            is_mesh_assumed=where.is_assumed,
        )


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
    joined = joined or marked_batches(surveys)
    said = {b.phase for b in batches}
    flags += [*unmatched, *tell_by_shapes(surveys, instructions, said if None not in said else ())]
    prediction = _prediction(hosts)
    flags += [Flag("predicted", prediction.sentence)] if prediction else []
    return replace(run, flags=tuple(flags), batches=tuple(joined), prediction=prediction)


def _prediction(hosts: Sequence[Host]) -> Prediction | None:
    """Return what is predicted."""
    if not any(p.name == PREDICTION_PLANE for h in hosts for p in h.trace.planes):
        return None
    from tracewarehouse.ingest.capture.prediction import prediction_of

    found = [prediction_of(h.trace, h.file_name) for h in hosts]
    if any(p != found[0] for p in found):
        raise MalformedError(
            f"{hosts[0].file_name}: of its hosts some are predicted otherwise than others, or recorded"
        )
    return found[0]
