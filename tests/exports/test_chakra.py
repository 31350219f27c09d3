"""Chakra traces of a run: a graph per rank that a simulator can run to its end, with the time and bytes of the run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import ROOT
from perfetto_reader import read_varint, wire_fields
from tiny_capture import US, write_capture_directory
from typer.testing import CliRunner
from xplane_builder import Space, Unsigned

from tracewarehouse.cli import app
from tracewarehouse.exports.chakra import ChakraExport, export_chakra
from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.warehouse import Warehouse, open_warehouse

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
INT32, INT64, UINT64, BOOL, STRING = 7, 9, 13, 27, 29
"""Field numbers of an attribute's value, which say its type."""


@dataclass
class Node:
    """A node as it is in the file; an attribute is its type and its value."""

    id: int
    name: str
    type: int
    depends_on: list[int]
    start: int
    duration: int
    attributes: dict[str, tuple[int, object]]


def read_nodes(path: Path) -> list[Node]:
    data, at, messages = path.read_bytes(), 0, []
    while at < len(data):
        size, at = read_varint(data, at)
        messages.append(data[at : at + size])
        at += size
    assert list(wire_fields(messages[0])) == [(1, b"0.0.4")]
    return [node(raw) for raw in messages[1:]]


def node(raw: bytes) -> Node:
    fields = list(wire_fields(raw))
    one = dict(fields)
    depends_on = []
    for number, packed in fields:
        at = 0
        while number == 5 and at < len(packed):  # type: ignore[arg-type]
            value, at = read_varint(packed, at)  # type: ignore[arg-type]
            depends_on.append(value)
    attributes = {}
    for number, attribute in fields:
        if number == 10:
            (_, name), (kind, value) = wire_fields(attribute)  # type: ignore[arg-type]
            attributes[name.decode()] = (kind, value)  # type: ignore[union-attr]
    name = one[2].decode()  # type: ignore[union-attr]
    return Node(one[1], name, one[3], depends_on, one.get(6, 0), one.get(7, 0), attributes)  # type: ignore[arg-type]


def exported(tmp_path: Path, capture: Path) -> tuple[ChakraExport, list[list[Node]], dict[str, list[int]]]:
    ingest_one(capture, tmp_path / "warehouse")  # without metric values, which no trace has
    return written(open_warehouse(tmp_path / "warehouse"), tmp_path)


def written(warehouse: Warehouse, tmp_path: Path) -> tuple[ChakraExport, list[list[Node]], dict[str, list[int]]]:
    [run] = warehouse.lake.runs()
    export = export_chakra(warehouse, run.run_id, tmp_path / "out")
    groups = json.loads(export.files[-1].read_text())
    return export, [read_nodes(path) for path in export.files[:-1]], groups


def test_a_step_is_a_chain_of_compute_and_collectives(tmp_path: Path) -> None:
    """The second step of device 1, which begins 2 us late at 162 us; both devices end an all-reduce together."""
    export, traces, groups = exported(tmp_path, write_capture_directory(tmp_path / "tiny"))
    assert [path.name for path in export.files] == ["tiny-tp2.0.et", "tiny-tp2.1.et", "comm_group.json"]
    assert (groups, export.warnings) == ({"1": [0, 1]}, [])
    assert [(n.id, n.name, n.type, n.depends_on, n.start, n.duration) for n in traces[1][8:12]] == [
        (9, "dot.0", COMPUTE, [8], 162, 12),
        (10, "all-reduce.04", COLLECTIVE, [9], 174, 6),
        (11, "fusion.0", COMPUTE, [10], 180, 12),
        (12, "all-reduce.03", COLLECTIVE, [11], 192, 8),
    ]
    assert traces[1][8].attributes["is_cpu_op"] == (BOOL, 0)
    assert traces[1][9].attributes == {
        "is_cpu_op": (BOOL, 0),
        "comm_type": (INT64, 0),
        "comm_size": (INT64, 256),
        "pg_name": (STRING, b"1"),
    }


class Devices:
    """A made-up capture of TPUs that run one program once; an op is its HLO text, start and duration in us."""

    def __init__(self, count: int) -> None:
        self.space = Space(hostnames=["h"])
        self.tpus = [self.space.tpu(index) for index in range(count)]
        for tpu in self.tpus:
            tpu.modules.event("step(1)", 0, 1000 * US, run_id=Unsigned(1))

    def run(self, device: int, *ops: tuple[str, float, float], **stats: int | str) -> None:
        for text, start, duration in ops:
            tpu = self.tpus[device]
            op = tpu.instruction(text, program_id=Unsigned(1), **stats)
            tpu.ops.event(op, round(start * US), round(duration * US))

    def write(self, tmp_path: Path) -> Path:
        return self.space.write(tmp_path / "run.xplane.pb")


def dot(number: int) -> str:
    return f"%dot.{number} = f32[8]{{0}} dot(f32[8]{{0}} %a, f32[8]{{0}} %b)"


def test_compute_is_merged_up_to_a_microsecond(tmp_path: Path) -> None:
    """0.4 + 0.4 + 0.4 us are a node of 1.2 us, 0.1 goes into the 3 us behind it, and 0.7 is left: 5.0 us in all."""
    devices = Devices(1)
    lengths = (0.4, 0.4, 0.4, 0.1, 3.0, 0.7)
    for n, length in enumerate(lengths):
        devices.run(0, (dot(n), 10 * n, length), flops=10 + n, bytes_accessed=100)
    _, [nodes], groups = exported(tmp_path, devices.write(tmp_path))
    assert [(n.name, n.duration, n.depends_on) for n in nodes] == [
        ("dot.0 and 2 more", 1, []),
        ("dot.4 and 1 more", 3, [1]),
        ("dot.5", 1, [2]),
    ]
    assert [n.attributes["num_ops"] for n in nodes] == [(INT64, 33), (INT64, 27), (INT64, 15)]
    assert [n.attributes["tensor_size"] for n in nodes] == [(UINT64, 300), (UINT64, 200), (UINT64, 100)]
    assert groups == {}


def test_compute_beside_an_asynchronous_collective_does_not_wait_for_it(tmp_path: Path) -> None:
    """dot.1, start, dot.2, done, dot.3: dot.2 needs dot.1 alone, dot.3 needs dot.2 and the all-gather of 2 + 5 us.

    Its comm_size is what one rank contributes: half of 64 floats.
    """
    devices = Devices(2)
    groups_of = "channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true"
    start = f"%all-gather-start.1 = (f32[32]{{0}}, f32[64]{{0}}) all-gather-start(f32[32]{{0}} %x), {groups_of}"
    done = "%all-gather-done.1 = f32[64]{0} all-gather-done((f32[32]{0}, f32[64]{0}) %all-gather-start.1)"
    for device in range(2):
        devices.run(device, (dot(1), 0, 10), (start, 10, 2), (dot(2), 12, 20), (done, 32, 5), (dot(3), 37, 4))
    _, traces, groups = exported(tmp_path, devices.write(tmp_path))
    for nodes in traces:
        assert [(n.name, n.type, n.depends_on, n.duration) for n in nodes] == [
            ("dot.1", COMPUTE, [], 10),
            ("all-gather-start.1", COLLECTIVE, [1], 7),
            ("dot.2", COMPUTE, [1], 20),
            ("dot.3", COMPUTE, [2, 3], 4),
        ]
        assert (nodes[1].attributes["comm_type"], nodes[1].attributes["comm_size"]) == ((INT64, 2), (INT64, 128))
    assert groups == {"1": [0, 1]}


def test_a_permute_is_a_receive_and_a_send_with_one_tag(tmp_path: Path) -> None:
    """Device 0 sends to 1, and 1 to 2: device 1 receives and sends, and device 3 has no part in it."""
    devices = Devices(4)
    permute = (
        "%collective-permute.1 = f32[16]{0} collective-permute(f32[16]{0} %x), channel_id=1, "
        "source_target_pairs={{0,1},{1,2}}"
    )
    for device in range(4):
        devices.run(device, (dot(1), 0, 10), (permute, 10, 6), (dot(2), 16, 4))
    export, traces, groups = exported(tmp_path, devices.write(tmp_path))
    assert [[(n.type, n.depends_on, n.duration) for n in nodes] for nodes in traces] == [
        [(COMPUTE, [], 10), (SEND, [1], 6), (COMPUTE, [2], 4)],
        [(COMPUTE, [], 10), (RECEIVE, [1], 6), (SEND, [1], 0), (COMPUTE, [2, 3], 4)],
        [(COMPUTE, [], 10), (RECEIVE, [1], 6), (COMPUTE, [2], 4)],
        [(COMPUTE, [], 10), (COMPUTE, [1], 6), (COMPUTE, [2], 4)],
    ]
    ends = {}
    for nodes in traces:
        for n in nodes:
            if n.type in (SEND, RECEIVE):
                facts = tuple(n.attributes[name] for name in ("comm_src", "comm_dst", "comm_tag", "comm_size"))
                ends.setdefault(facts, []).append(n.type)
    assert all(sorted(types) == [SEND, RECEIVE] for types in ends.values())
    assert sorted((facts[0], facts[1], facts[3]) for facts in ends) == [
        ((INT32, 0), (INT32, 1), (INT64, 64)),
        ((INT32, 1), (INT32, 2), (INT64, 64)),
    ]
    assert (groups, export.warnings) == ({}, [])


def test_a_collective_that_lacks_ranks_counts_as_compute(tmp_path: Path) -> None:
    devices = Devices(1)
    reduce = "%all-reduce.1 = f32[8]{0} all-reduce(f32[8]{0} %x), channel_id=1, replica_groups={{0,1}}, to_apply=%add"
    devices.run(0, (dot(1), 0, 10), (reduce, 10, 6))
    export, [nodes], groups = exported(tmp_path, devices.write(tmp_path))
    assert [(n.type, n.duration) for n in nodes] == [(COMPUTE, 10), (COMPUTE, 6)]
    assert groups == {}
    assert export.warnings == ["1 executions of all-reduce lack ranks that are not in the run, and count as compute"]


def test_ranks_that_differ_in_their_order_are_refused(tmp_path: Path) -> None:
    devices = Devices(2)
    reduces = [
        f"%all-reduce.{n} = f32[8]{{0}} all-reduce(%x), channel_id={n}, replica_groups={{{{0,1}}}}, to_apply=%add"
        for n in (1, 2)
    ]
    devices.run(0, (reduces[0], 0, 5), (reduces[1], 5, 5))
    devices.run(1, (reduces[1], 0, 5), (reduces[0], 5, 5))
    with pytest.raises(
        TracewarehouseError, match="rank 1 ran collectives of group 0, 1 in another order than other ranks"
    ):
        exported(tmp_path, devices.write(tmp_path))
    assert not (tmp_path / "out").exists()


def test_overlapping_collectives_get_the_order_in_which_all_ranks_had_begun_them(tmp_path: Path) -> None:
    """Both ranks have begun the second all-gather at 2 us and the first at 3 us; on rank 0 the first began before.

    ```
    rank 0   [1 ... ][2 ............ ]   starts at 0 and 2, dones at 20 and 24
    rank 1   [2 ............ ][1 ... ]   starts at 1 and 3
    ```
    """
    devices = Devices(2)
    starts, dones = (
        [text.format(n=n) for n in (1, 2)]
        for text in (
            "%all-gather-start.{n} = (f32[32]{{0}}, f32[64]{{0}}) all-gather-start(f32[32]{{0}} %x), channel_id={n}, "
            "replica_groups={{{{0,1}}}}, dimensions={{0}}, use_global_device_ids=true",
            "%all-gather-done.{n} = f32[64]{{0}} all-gather-done((f32[32]{{0}}, f32[64]{{0}}) %all-gather-start.{n})",
        )
    )
    for device, (one, other), times in ((0, (0, 1), (0, 2)), (1, (1, 0), (1, 3))):
        devices.run(device, (starts[one], times[0], 1), (starts[other], times[1], 1), (dot(1), 5, 10))
        devices.run(device, (dones[0], 20, 2), (dones[1], 24, 2), (dot(2), 30, 4))
    _, traces, groups = exported(tmp_path, devices.write(tmp_path))
    can_be_simulated(traces, groups)
    for nodes in traces:
        assert [(n.name, n.depends_on, n.duration) for n in nodes] == [
            ("all-gather-start.2", [], 3),
            ("all-gather-start.1", [], 3),
            ("dot.1", [], 10),
            ("dot.2", [1, 2, 3], 4),
        ]
    assert [n.start for n in traces[0]] == [2, 0, 5, 30]


def test_a_run_without_ops_is_refused(tmp_path: Path) -> None:
    space = Space(hostnames=["h"])
    space.tpu(0)
    space.host().line("main").event("wait", 0, 5)
    with pytest.raises(TracewarehouseError, match="has no ops of devices, so there is nothing to simulate"):
        exported(tmp_path, space.write(tmp_path / "run.xplane.pb"))


def test_command(tmp_path: Path) -> None:
    ingest_one(write_capture_directory(tmp_path / "tiny"), tmp_path / "warehouse")
    options = ["-w", str(tmp_path / "warehouse"), "export", "chakra", "tiny-tp2", "-o", str(tmp_path / "out")]
    lines = CliRunner().invoke(app, options).output.split()
    assert [Path(line).name for line in lines] == ["tiny-tp2.0.et", "tiny-tp2.1.et", "comm_group.json"]


CAPTURES = ["deepseek_v2-ep4-b4-i16-o9", "llama-pp2tp2-b4-i16-o5-hosts2", "llama-tp4-sp-b4-i16-o9"]
SHARED = [
    "gpu-mi300-jax-gemm.xplane.pb",
    "tpu-2chip-vllm-tp2-prefill.xplane.pb",
    "tpu-v6e-4chip-host-offload.xplane.pb",
]
Taken = Callable[[Path], Warehouse]
BUSY = "SELECT sum(duration_ps - overlap_ps) FROM main.ops WHERE is_leaf GROUP BY device_id ORDER BY device_id"
IN_FULL = """
    SELECT count(*) FROM main.collectives
    WHERE NOT is_partial AND kind IN ('all-reduce', 'all-gather', 'all-to-all', 'reduce-scatter')
"""


def can_be_simulated(traces: Sequence[Sequence[Node]], groups: dict[str, list[int]]) -> None:
    """Ids are unique, nodes depend on earlier ones, and the ranks of a group have its collectives in one order."""
    for nodes in traces:
        assert [n.id for n in nodes] == list(range(1, len(nodes) + 1))
        assert all(parent < n.id for n in nodes for parent in n.depends_on)
    for name, members in groups.items():
        orders = [
            [
                (n.name, n.attributes["comm_type"], n.attributes["comm_size"])
                for n in traces[rank]
                if n.attributes.get("pg_name") == (STRING, name.encode())
            ]
            for rank in members
        ]
        assert orders[0]
        assert all(order == orders[0] for order in orders)
        for rank in set(range(len(traces))) - set(members):
            assert all(n.attributes.get("pg_name") != (STRING, name.encode()) for n in traces[rank])


def holds(warehouse: Warehouse, tmp_path: Path) -> list[Path]:
    export, traces, groups = written(warehouse, tmp_path)
    can_be_simulated(traces, groups)
    busy = [ps for (ps,) in warehouse.query(BUSY).rows()]
    assert [sum(n.duration for n in nodes) for nodes in traces] == [(ps + US // 2) // US for ps in busy]
    assert sum(n.type == COLLECTIVE for nodes in traces for n in nodes) == warehouse.query(IN_FULL).scalar()
    return export.files[:-1]


@pytest.mark.parametrize("name", CAPTURES)
def test_captures_of_the_repository(name: str, taken: Taken, tmp_path: Path) -> None:
    holds(taken(ROOT / "data" / "captures" / name), tmp_path)


@pytest.mark.parametrize("name", SHARED)
def test_real_captures(name: str, shared_traces: Path, taken: Taken, tmp_path: Path) -> None:
    holds(taken(shared_traces / name), tmp_path)


@pytest.mark.skipif(
    find_spec("chakra") is None, reason="run `pip install --no-deps mlc-chakra` for Chakra's own reader"
)
def test_chakras_own_reader_reads_the_same(taken: Taken, tmp_path: Path) -> None:
    """Its protos are of an older protobuf, which warns: it runs in a process of its own."""
    for path in holds(taken(ROOT / "data" / "captures" / "llama-pp2tp2-b4-i16-o5-hosts2"), tmp_path):
        reader = [sys.executable, "-m", "chakra.src.jsonizer.jsonizer", "--input_filename", str(path)]
        subprocess.run([*reader, "--output_filename", str(tmp_path / "read.json")], check=True, timeout=300)
        text, at, found = (tmp_path / "read.json").read_text(), 0, []
        while at < len(text):
            one, at = json.JSONDecoder().raw_decode(text, at)
            found.append(one)
        types = {COMPUTE: "COMP_NODE", SEND: "COMM_SEND_NODE", RECEIVE: "COMM_RECV_NODE", COLLECTIVE: "COMM_COLL_NODE"}
        assert found[0] == {"version": "0.0.4"}
        assert [
            (
                int(n["id"]),
                n["name"],
                n["type"],
                [int(i) for i in n.get("dataDeps", [])],
                int(n.get("durationMicros", 0)),
            )
            for n in found[1:]
        ] == [(n.id, n.name, types[n.type], n.depends_on, n.duration) for n in read_nodes(path)]
        names = {a["name"]: next(k for k in a if k != "name") for n in found[1:] for a in n["attr"]}
        assert names["is_cpu_op"] == "boolVal"
        assert names["comm_type"] == names["comm_size"] == "int64Val"
