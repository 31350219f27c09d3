"""Hosts of one run that wrote into folders of their own, and runs that did not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_capture import write_capture_directory
from xplane_builder import Space, Unsigned

from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.pipeline import ingest_one

Query = Callable[..., list[tuple[Any, ...]]]
START_NS = 1_700_000_000_000_000_000
REDUCE = (
    "%all-reduce.1 = f32[256]{0} all-reduce(f32[256]{0} %x), channel_id=1, replica_groups={{0,2},{1,3}}, "
    "use_global_device_ids=true, to_apply=%add"
)


def host(path: Path, start_ns: int | None = START_NS, *, devices: int = 2) -> Path:
    """A host of some TPUs that reduce with those of the same number on another host, and among themselves."""
    space = Space(hostnames=[path.name.split(".")[0]])
    for device in range(devices):
        tpu = space.tpu(device)
        tpu.modules.event("jit_step(42)", 0, 1_000_000)
        for at, hlo in (
            (100, REDUCE),
            (500, REDUCE.replace("e.1", "e.2").replace("{{0,2},{1,3}}", "{{0,1},{2,3}}")),
        ):
            tpu.ops.event(tpu.instruction(hlo, hlo_category="all-reduce", program_id=Unsigned(42)), at, 100)
    if start_ns is not None:
        space.profiled(start_ns, start_ns + 10_000_000)
    return space.write(path)


def manifest(home: Path, *hosts: str, axes: dict[str, int] | None = None) -> None:
    content = {
        "name": "two",
        "model": {"name": "tiny"},
        "dtype": "float32",
        "batch_size": 1,
        "input_length": 1,
        "output_length": 1,
        "mesh": {"axes": axes or {"dp": 2, "tp": 2}},
        "hosts": list(hosts),
    }
    (home / "manifest.json").write_text(json.dumps(content))


def found(folder: Path) -> list[list[str]]:
    return [[str(f.relative_to(folder)) for f in c.files] for c in find_captures(folder)]


def test_folders_whose_windows_overlap_are_one_run(tmp_path: Path) -> None:
    profile = tmp_path / "logs" / "plugins" / "profile"
    host(profile / "2026_01_01_00_00_00" / "a.xplane.pb")
    host(profile / "2026_01_01_00_00_01" / "b.xplane.pb", START_NS + 2_000_000)
    host(profile / "2026_01_01_00_10_00" / "a.xplane.pb", START_NS + 600_000_000_000)
    names = [c.name for c in find_captures(tmp_path)]
    assert names == ["logs/2026_01_01_00_00_00", "logs/2026_01_01_00_10_00"]
    assert [len(c.files) for c in find_captures(tmp_path)] == [2, 1]


def test_hosts_of_one_name_that_profile_at_once_are_told_apart(
    tmp_path: Path, tables_in: Callable[[Path], Query]
) -> None:
    profile = tmp_path / "logs" / "plugins" / "profile"
    host(profile / "t1" / "vm.xplane.pb")
    host(profile / "t2" / "vm.xplane.pb", START_NS + 1_000)
    ingest_one(tmp_path / "logs", tmp_path / "w")
    assert tables_in(tmp_path / "w")("SELECT host FROM hosts ORDER BY host_index") == [("host0",), ("host1",)]


@pytest.mark.parametrize(("named", "runs"), [(("a", "b"), 1), (("a",), 2), ((), 2)])
def test_without_windows_the_manifest_says(tmp_path: Path, named: tuple[str, ...], runs: int) -> None:
    host(tmp_path / "plugins" / "profile" / "t1" / "a.xplane.pb", None)
    host(tmp_path / "plugins" / "profile" / "t2" / "b.xplane.pb", None)
    manifest(tmp_path, *named)
    assert len(find_captures(tmp_path)) == runs


def test_a_manifest_that_is_damaged_hinders_no_search(tmp_path: Path) -> None:
    write_capture_directory(tmp_path)
    host(tmp_path / "plugins" / "profile" / "t2" / "b.xplane.pb", None)
    (tmp_path / "manifest.json").write_text("{")
    assert len(find_captures(tmp_path)) == 2


def test_one_of_two_hosts_is_missing(tmp_path: Path, tables_in: Callable[[Path], Query]) -> None:
    """The second host's devices are 2 and 3 of the mesh: groups within it are whole, those across are partial."""
    host(tmp_path / "plugins" / "profile" / "t" / "b.xplane.pb")
    manifest(tmp_path, "a", "b")
    ingest_one(tmp_path, tmp_path / "w")
    query = tables_in(tmp_path / "w")
    assert query("SELECT flag, detail FROM quality_flags ORDER BY flag") == [
        (
            "inferred_steps",
            "a step begins with each execution of jit_step, the program with most time; "
            "`--step` at ingest names another",
        ),
        ("missing_devices", "the mesh dp=2,tp=2 has 4 devices, the capture 2: 0, 1 of host a are missing"),
        ("missing_hosts", "the manifest names a, whose files are not here"),
    ]
    assert query("SELECT missing_hosts, missing_devices FROM runs") == [("a", 2)]
    assert query("SELECT global_id, dp_index, tp_index FROM devices ORDER BY 1") == [(2, 1, 0), (3, 1, 1)]
    sql = "SELECT DISTINCT start_ps, axis, group_size, is_partial FROM collectives ORDER BY 1"
    assert query(sql) == [(100, "dp", 2, True), (500, "tp", 2, False)]
    members = (
        "SELECT logical_id, device_id FROM collective_groups WHERE instruction_id = 1 AND group_index = 0 ORDER BY 1"
    )
    assert query(members.replace("= 1", "= (SELECT min(instruction_id) FROM collectives)")) == [(0, None), (2, 0)]
