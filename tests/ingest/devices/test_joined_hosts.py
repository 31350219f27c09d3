"""Hosts of one run in folders of their own are one run if their devices complement each other, and else are not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hlo_writer import Module
from xplane_builder import Space, Unsigned, integer

from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.devices.joined_hosts import join_hosts
from tracewarehouse.ingest.errors import SkippedEntryWarning
from tracewarehouse.ingest.pipeline import ingest_one

Query = Callable[..., list[tuple[Any, ...]]]
START_NS = 1_700_000_000_000_000_000


def host(
    folder: Path,
    name: str,
    *,
    start_ns: int = START_NS,
    groups: str = "{{0,2},{1,3}}",
    program: int = 42,
    numbers: tuple[int, ...] = (),
    at: int = 100,
) -> Path:
    """Two TPUs that reduce over `groups`, recorded into the log folder of their host."""
    space = Space(hostnames=[name])
    for device in range(2):
        tpu = space.tpu(device)
        if numbers:
            tpu.stat("core_details", integer(2, device) + integer(6, numbers[device]))
        tpu.modules.event(f"jit_step({program})", 0, 1_000_000)
        hlo = f"%all-reduce.1 = f32[256]{{0}} all-reduce(f32[256]{{0}} %x), channel_id=1, replica_groups={groups}"
        op = tpu.instruction(hlo, hlo_category="all-reduce", program_id=Unsigned(program))
        tpu.ops.event(op, at, 100)
    space.profiled(start_ns, start_ns + 10_000_000)
    return space.write(folder / "plugins" / "profile" / "t" / f"{name}.xplane.pb")


def joined(folder: Path) -> list[list[str]]:
    return [[f.name.split(".")[0] for f in c.files] for c in join_hosts(find_captures(folder))]


def test_two_folders_are_one_run(tmp_path: Path, tables_in: Callable[[Path], Query]) -> None:
    host(tmp_path / "logs" / "w0", "a")
    host(tmp_path / "logs" / "w1", "b", start_ns=START_NS + 2_000_000, at=200)
    ingest_one(tmp_path / "logs", tmp_path / "w")
    query = tables_in(tmp_path / "w")
    assert query("SELECT host, host_index FROM hosts ORDER BY 2") == [("a", 0), ("b", 1)]
    assert query("SELECT DISTINCT group_size, is_partial FROM collectives") == [(2, False)]
    assert query("SELECT count(*) FROM quality_flags WHERE flag LIKE 'missing%'") == [(0,)]


@pytest.mark.parametrize(
    "other",
    [
        {"start_ns": START_NS + 8_000_000},  # their windows hardly overlap
        {"groups": "{{0,1}}"},  # complete in itself
        {"groups": "{{0,4},{1,5},{2,6},{3,7}}"},  # compiled for another number of devices
        {"program": 43},
    ],
)
def test_what_does_not_complement_stays_apart(tmp_path: Path, other: dict[str, Any]) -> None:
    host(tmp_path / "w0", "a")
    host(tmp_path / "w1", "b", at=200, **other)
    assert joined(tmp_path) == [["a"], ["b"]]


def test_two_servers_that_are_complete_stay_apart(tmp_path: Path) -> None:
    for name, at in (("a", 100), ("b", 200)):
        host(tmp_path / name, name, groups="{{0,1}}", at=at)
    assert joined(tmp_path) == [["a"], ["b"]]


def test_two_slices_of_one_program_stay_apart(tmp_path: Path) -> None:
    """Four hosts ran a program for two of them: nothing tells which two belong together."""
    for number, name in enumerate("abcd"):
        host(tmp_path / name, name, at=100 + number)
    assert joined(tmp_path) == [["a"], ["b"], ["c"], ["d"]]


def test_a_copy_is_no_second_host(tmp_path: Path) -> None:
    host(tmp_path / "w0", "a")
    shutil.copytree(tmp_path / "w0", tmp_path / "w1")
    assert joined(tmp_path) == [["a"], ["a"]]


def process(folder: Path, host_name: str, rank: int, **fields: Any) -> None:
    """One process of torch_tpu with one device, which it numbers 0, of a program over four."""
    start_ns = fields.get("start_ns", START_NS)
    space = Space(hostnames=[host_name])
    tpu = space.tpu(0)
    tpu.stat("core_details", integer(2, 0) + integer(6, 0))
    tpu.modules.event("jit_step(42)", 0, 1_000_000)
    hlo = "%all-reduce.1 = f32[256]{0} all-reduce(f32[256]{0} %x), channel_id=1, replica_groups={{0,1},{2,3}}"
    tpu.ops.event(tpu.instruction(hlo, hlo_category="all-reduce", program_id=Unsigned(42)), 100 + rank, 100)
    space.profiled(start_ns, start_ns + 10_000_000)
    space.write(folder / "plugins" / "profile" / f"t{9 - rank}" / f"{host_name}_{rank}.xplane.pb")


@pytest.mark.parametrize("is_one_folder", [False, True])
def test_processes_of_one_device_each_are_one_run(
    tmp_path: Path, tables_in: Callable[[Path], Query], is_one_folder: bool
) -> None:
    for rank in (3, 0, 2, 1):
        process(tmp_path / "logs" / ("all" if is_one_folder else f"p{9 - rank}"), "vm-1" if rank < 2 else "vm-0", rank)
    ingest_one(tmp_path / "logs", tmp_path / "w")
    query = tables_in(tmp_path / "w")
    hosts = [("vm-1_0", 0), ("vm-1_1", 1), ("vm-0_2", 2), ("vm-0_3", 3)]
    assert query("SELECT host, host_index FROM hosts ORDER BY 2") == hosts
    assert query("SELECT device_id, host FROM devices ORDER BY 1") == [(index, name) for name, index in hosts]
    assert query("SELECT DISTINCT group_size, is_partial FROM collectives") == [(2, False)]
    members = "SELECT list(DISTINCT device_id ORDER BY device_id) FROM collectives GROUP BY group_index ORDER BY 1"
    assert query(members) == [([0, 1],), ([2, 3],)]
    assert query("SELECT count(*) FROM quality_flags WHERE flag LIKE 'missing%'") == [(0,)]


@pytest.mark.parametrize(
    ("ranks", "late"),
    [
        ((0, 2), None),  # rank 1 is missing
        ((1, 2), None),
        ((0, 1), 1),  # the second began after the first had ended
    ],
)
def test_processes_that_are_not_all_there_stay_apart(tmp_path: Path, ranks: tuple[int, ...], late: int | None) -> None:
    for rank in ranks:
        process(tmp_path / f"p{rank}", "vm", rank, start_ns=START_NS + 20_000_000 * (rank == late))
    assert joined(tmp_path) == [[f"vm_{rank}"] for rank in ranks]


def test_two_runs_of_one_process_stay_apart(tmp_path: Path) -> None:
    process(tmp_path / "one", "a", 0)
    process(tmp_path / "two", "b", 0, start_ns=START_NS + 1)
    assert joined(tmp_path) == [["a_0"], ["b_0"]]


def test_hosts_that_have_the_same_devices_stay_apart(tmp_path: Path) -> None:
    host(tmp_path / "w0", "a", numbers=(0, 1))
    host(tmp_path / "w1", "b", numbers=(1, 2), at=200)
    assert joined(tmp_path) == [["a"], ["b"]]


def test_hosts_stand_in_the_order_of_their_devices(tmp_path: Path) -> None:
    host(tmp_path / "w0", "a", numbers=(2, 3))
    host(tmp_path / "w1", "b", numbers=(0, 1), at=200)
    assert joined(tmp_path) == [["b", "a"]]


def test_hosts_without_numbers_stand_in_the_order_of_their_folders(tmp_path: Path) -> None:
    for number in (10, 2):
        host(tmp_path / f"w{number}", f"h{number}", at=number)
    assert joined(tmp_path) == [["h2", "h10"]]


def test_different_manifests_keep_captures_apart(tmp_path: Path) -> None:
    for name, at in (("a", 100), ("b", 200)):
        host(tmp_path / name, name, at=at)
        (tmp_path / name / "manifest.json").write_text(f'{{"name": "{name}"}}')
    assert joined(tmp_path) == [["a"], ["b"]]
    (tmp_path / "b" / "manifest.json").write_text('{"name": "a"}')
    assert joined(tmp_path) == [["a", "b"]]


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_manifest_that_cannot_be_read_costs_its_capture_alone(tmp_path: Path, kind: str) -> None:
    for name, at in (("a", 100), ("b", 200)):
        host(tmp_path / name, name, at=at)
        (tmp_path / name / "manifest.json").write_text('{"name": "a"}')
    odd = tmp_path / "b" / "manifest.json"
    odd.unlink()
    {"link": lambda: odd.symlink_to(odd.name), "pipe": lambda: os.mkfifo(odd), "folder": odd.mkdir}[kind]()
    assert joined(tmp_path) == [["a"], ["b"]]


def test_a_description_elsewhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "shared.yaml").write_text("workload: {}\n")
    host(tmp_path / "c", "a")
    (tmp_path / "c" / "card.yaml").symlink_to(tmp_path / "shared.yaml")
    with pytest.warns(SkippedEntryWarning, match=r"card\.yaml \(a link to another place\)"):
        assert [c.card for c in find_captures(tmp_path / "c")] == [None]


class TestRanksOfAServer:
    """A process per rank, each with a model over two chips, as a load balancer has them."""

    def test_profiled_together_they_are_one_run(self, tmp_path: Path, tables_in: Callable[[Path], Query]) -> None:
        """Each numbers its chips from 0, and its collectives are its own."""
        for rank in range(2):
            host(tmp_path / "logs" / f"dp_rank_{rank}", "vm", groups="{{0,1}}", numbers=(0, 1), at=100 + rank)
        ingest_one(tmp_path / "logs", tmp_path / "w")
        query = tables_in(tmp_path / "w")
        assert query("SELECT name, device_count FROM runs") == [("logs/t", 4)]
        assert query("SELECT device_id, instance, group_size, is_partial FROM collectives ORDER BY 1") == [
            (0, 0, 2, False),
            (1, 0, 2, False),
            (2, 1, 2, False),
            (3, 1, 2, False),
        ]

    @pytest.mark.parametrize(
        "folders",
        [
            ("a/dp_rank_0", "b/dp_rank_1"),  # two servers
            ("dp_rank_0/decode_only", "dp_rank_1/prefill_only"),
            ("dp_rank_0", "dp_rank_1/a"),
            ("dp_rank_0", "dp_rank_x"),
        ],
    )
    def test_other_paths_stay_apart(self, tmp_path: Path, folders: tuple[str, str]) -> None:
        for number, folder in enumerate(folders):
            host(tmp_path / folder, "ab"[number], groups="{{0,1}}", at=100 + number)
        assert sorted(joined(tmp_path)) == [["a"], ["b"]]

    def test_sessions_one_after_the_other_are_a_run_each(self, tmp_path: Path) -> None:
        for rank in range(2):
            for session in range(2):
                start = START_NS + 20_000_000 * session
                path = tmp_path / f"dp_rank_{rank}"
                file = host(path, f"vm{rank}{session}", groups="{{0,1}}", start_ns=start, at=100 + rank + 2 * session)
                file.parent.rename(file.parent.with_name(f"t{session}"))
        assert joined(tmp_path) == [["vm00", "vm10"], ["vm01", "vm11"]]

    def test_what_may_belong_to_either_stays_apart(self, tmp_path: Path) -> None:
        """A long profile of rank 1 overlaps two of rank 0."""
        for session, start in enumerate((0, 6_000_000)):
            file = host(tmp_path / "dp_rank_0", f"a{session}", groups="{{0,1}}", start_ns=START_NS + start, at=session)
            file.parent.rename(file.parent.with_name(f"t{session}"))
        host(tmp_path / "dp_rank_1", "b", groups="{{0,1}}", start_ns=START_NS + 3_000_000, at=100)
        assert sorted(joined(tmp_path)) == [["a0"], ["a1"], ["b"]]

    def test_a_copy_is_no_second_rank(self, tmp_path: Path) -> None:
        host(tmp_path / "dp_rank_0", "a")
        shutil.copytree(tmp_path / "dp_rank_0", tmp_path / "dp_rank_1")
        assert joined(tmp_path) == [["a"], ["a"]]

    def test_without_windows_the_times_of_the_folders_count(self, tmp_path: Path) -> None:
        for rank, time in enumerate(("t1", "t1", "t2")):
            space = Space()
            space.tpu(0).ops.event("fusion.1", rank, 100)
            space.write(tmp_path / f"dp_rank_{rank}" / "plugins" / "profile" / time / f"vm{rank}.xplane.pb")
        assert joined(tmp_path) == [["vm0", "vm1"], ["vm2"]]


@pytest.mark.parametrize(("partitions", "runs"), [(2, [["a", "b"]]), (1, [["a"], ["b"]])])
def test_on_gpus_the_embedded_program_counts_devices(tmp_path: Path, partitions: int, runs: list[list[str]]) -> None:
    module = Module()
    module.computation(1, "ROOT %add.1 = f32[8] add(f32[8] %x, f32[8] %x)")
    module.assign(1, partitions)
    for number, name in enumerate("ab"):
        space = Space(hostnames=[name])
        space.plane("/device:GPU:0").line("Stream #1").event("kernel", 100 + number, 100)
        space.hlo_protos({"jit_step": (7, module.encode())})
        space.profiled(START_NS, START_NS + 10_000_000)
        space.write(tmp_path / name / "plugins" / "profile" / "t" / f"{name}.xplane.pb")
    assert joined(tmp_path) == runs
