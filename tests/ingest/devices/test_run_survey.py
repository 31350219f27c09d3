"""The survey of a run: what its tables follow from, found without writing anything and not changed by who reads it."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from tiny_capture import tiny_capture

from tracewarehouse.ingest.capture.manifest import Mesh
from tracewarehouse.ingest.devices.hosts import open_hosts
from tracewarehouse.ingest.devices.run_survey import MissingDevices, Placement, RunSurvey, survey_run
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.formats import open_trace


def surveyed(folder: Path, mesh: str | None) -> RunSurvey:
    path = tiny_capture().write(folder / "vm.xplane.pb")
    hosts = open_hosts([open_trace(CaptureFile(path))], [path])
    return survey_run(hosts, Mesh.parse(mesh) if mesh else None, None)


class TestSurvey:
    def test_devices_are_placed_in_the_mesh(self, tmp_path: Path) -> None:
        run = surveyed(tmp_path, "tp=2")
        assert run.backend == "tpu"
        assert [d.device_id for d in run.devices] == [0, 1]
        assert run.placement.coordinates == {0: {"tp": 0}, 1: {"tp": 1}}
        assert run.placement.missing_of_mesh == MissingDevices()
        assert [device for device, timeline in run.timelines if timeline.steps] == [0, 1]
        assert run.flags == ()

    def test_a_mesh_of_another_size_places_none_of_them(self, tmp_path: Path) -> None:
        run = surveyed(tmp_path, "dp=2,tp=4")
        assert run.placement.coordinates is None
        assert [f.name for f in run.flags] == ["mesh_mismatch"]
        assert run.placement.missing_of_mesh == MissingDevices(
            6, "the mesh dp=2,tp=4 has 8 devices, the capture 2: 6 are missing"
        )

    def test_it_writes_nothing_and_is_frozen(self, tmp_path: Path) -> None:
        run = surveyed(tmp_path, None)
        assert [p.name for p in tmp_path.iterdir()] == ["vm.xplane.pb"]
        assert run.placement == Placement(run.devices)
        with pytest.raises(FrozenInstanceError):
            run.flags = ()  # type: ignore[misc]


def test_hosts_that_are_not_here_are_named() -> None:
    placement = Placement((), absent=("0, 1 of host a", "2, 3 of host b"))
    assert placement.missing(4, "replica groups count") == MissingDevices(
        4, "replica groups count 4 devices, the capture 0: 0, 1 of host a; 2, 3 of host b are missing"
    )
    assert placement.missing(0, "replica groups count") == MissingDevices()
