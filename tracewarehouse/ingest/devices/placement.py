"""Places the devices of a run in its mesh, and finds devices that are missing from the capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING

from tracewarehouse.ingest.capture.sources import stem
from tracewarehouse.ingest.capture_names import AXES
from tracewarehouse.ingest.devices.device import Device
from tracewarehouse.ingest.devices.survey import HostSurvey

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.manifest import Manifest, Mesh, PipelineStage


@dataclass(frozen=True)
class MissingDevices:
    """Number of devices that take part in a run but are missing from its capture, and the source that names them."""

    count: int = 0
    sentence: str = ""


@dataclass(frozen=True)
class Placement:
    """The devices of a run in its mesh.

    Attributes:
        devices: the devices of all hosts, by device id.
        mesh: the mesh; None if neither user nor manifest gives it.
        coordinates: device id to its coordinate on every mesh axis; None if the mesh is unknown or does not fit.
        mesh_numbers: device id by its number in the mesh, if only some of the mesh's hosts are in the capture.
        absent: devices of hosts that the manifest names but the capture lacks, one phrase per host.
        mismatch: a sentence that says so, if the mesh does not fit the devices.
    """

    devices: tuple[Device, ...]
    mesh: Mesh | None = None
    coordinates: Mapping[int, Mapping[str, int]] | None = None
    mesh_numbers: Mapping[int, int] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    mismatch: str | None = None

    def missing(self, wanted: int, who: str) -> MissingDevices:
        """The devices that are missing from `wanted` devices; `who`, the source of that number, begins the sentence."""
        count = wanted - len(self.devices)
        if count <= 0:
            return MissingDevices()
        which = "; ".join(self.absent) if self.absent else count
        here = len(self.devices)
        return MissingDevices(count, f"{who} {wanted} devices, the capture {here}: {which} are missing")

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
    for of_host, index in zip(surveys, known, strict=True):
        for number, device in enumerate(of_host.devices):
            device.global_id = index * share + number
    return [
        f"{', '.join(str(i * share + k) for k in range(share))} of host {names[i]}"
        for i in range(len(names))
        if i not in known
    ]


def _place_on_mesh(devices: Sequence[Device], mesh: Mesh) -> str | None:
    """Give the devices their mesh coordinates; return a sentence for the flags if they do not fit."""
    ids: dict[int, int | None]
    if mesh.size == len(devices):
        ids = {d.device_id: d.device_id for d in devices}
    elif all(d.global_id is not None and d.global_id < mesh.size for d in devices):
        ids = {d.device_id: d.global_id for d in devices}
    else:
        return f"the mesh {mesh} has {mesh.size} devices and the capture {len(devices)}: axes are unknown"
    coordinates = mesh.coordinates()
    for d in devices:
        place = coordinates[ids[d.device_id] or 0]
        for axis in AXES:
            setattr(d, f"{axis}_index", place.get(axis))
    return None


def _place_on_stages(devices: Sequence[Device], stages: Sequence[PipelineStage]) -> None:
    """Give the devices, which have their mesh coordinates, the layers of their pipeline stages."""
    for d in devices:
        if d.pp_index is not None:
            stage = stages[d.pp_index]
            d.first_layer, d.last_layer, d.first_slot = stage.first_layer, stage.last_layer, stage.first_slot
