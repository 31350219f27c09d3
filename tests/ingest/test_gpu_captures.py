"""GPU captures: executions, steps, exposed communication over streams, kernels of NCCL and RCCL, copies."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hlo_writer import Module
from xplane_builder import PlaneBuilder, Space, Unsigned
from xplane_reference import read_xplane

import tracewarehouse
from tracewarehouse.ingest.capture.hardware import chips
from tracewarehouse.ingest.columns.profiler_names import collective_kind, is_memcpy, is_memset
from tracewarehouse.ingest.devices.host_survey import launches
from tracewarehouse.ingest.hlo.collectives import KINDS
from tracewarehouse.ingest.pipeline import ingest_one

US = 1_000_000


def gpu(space: Space, ordinal: int = 0) -> PlaneBuilder:
    return space.plane(f"/device:GPU:{ordinal}").stat("device_vendor", "Nvidia")


def kernel(line: Any, name: str, op: str, start: int, end: int, module: str = "jit_decode", program: int = 7) -> None:
    """An event in microseconds; without an op, one that no program launched."""
    stats = {"hlo_op": op, "hlo_module": module, "program_id": Unsigned(program)} if op else {}
    line.event(name, start * US, (end - start) * US, **stats)


class TestStreams:
    def space(self) -> Space:
        """Two executions of 200 us; in each an all-reduce of 120 us, of which compute on the other stream hides 90."""
        #  stream 1  |fusion 0..100|       |dot 110..150|
        #  stream 2      |all-reduce 30..150......|     |memcpy 160..180|
        space = Space()
        plane = gpu(space)
        compute, communication = plane.line("Stream #1(Kernel)"), plane.line("Stream #2(Kernel,MemcpyD2H)")
        for at in (0, 200):
            kernel(compute, "loop_fusion", "fusion.1", at, at + 100)
            kernel(compute, "gemm", "dot.2", at + 130, at + 150)
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            kernel(communication, name, "all-reduce-start.3", at + 30, at + 150)
            kernel(communication, "MemcpyD2H", "", at + 145, at + 149)
        return space

    def test_ops_of_every_stream_have_execution_and_step(self, ingest: Any) -> None:
        _, query = ingest(self.space())
        sql = """SELECT name, start_ps // 1000000, execution, step, o.phase
                 FROM ops AS o JOIN instructions USING (instruction_id) ORDER BY start_ps, name"""
        one = [("fusion.1", 0), ("all-reduce-start.3", 30), ("dot.2", 130), ("MemcpyD2H", 145)]
        assert query(sql) == [(name, at + 200 * k, k, k + 1, "decode") for k in range(2) for name, at in one]

    def test_compute_on_another_stream_hides_communication(self, ingest: Any) -> None:
        _, query = ingest(self.space())
        sql = """SELECT kind, (end_ps - start_ps) // 1000000, exposed_ps // 1000000, exposed_added_ps // 1000000, step
                 FROM collectives ORDER BY start_ps"""
        assert query(sql) == [("all-reduce", 120, 30, 30, 1), ("all-reduce", 120, 30, 30, 2)]

    def test_copies_have_a_category_of_their_own(self, ingest: Any) -> None:
        _, query = ingest(self.space())
        sql = "SELECT name, category, op_class, collective FROM instructions ORDER BY name"
        assert query(sql) == [
            ("MemcpyD2H", "memcpy", "copy", None),
            ("all-reduce-start.3", "all-reduce", "communication", "all-reduce"),
            ("dot.2", None, "compute", None),
            ("fusion.1", None, "compute", None),
        ]


class TestExecutions:
    def runs(self, *ops: tuple[str, str, int]) -> list[tuple[str, int, int]]:
        """Executions of (program, op, start) on one stream; each op lasts 1."""
        space = Space()
        plane = gpu(space)
        line = plane.line("Stream #1")
        for program, op, start in ops:
            line.event(op, start, 1, hlo_op=op, hlo_module=program, program_id=Unsigned(ord(program[0])))
        path = Path(self.folder) / "a.xplane.pb"
        trace = read_xplane(space.write(path))
        [read] = trace.planes
        return [(r.module, r.start_ps, r.end_ps) for r in launches(trace.batches(read, read.lines[0]))]

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def test_one_program_over_and_over(self) -> None:
        ops = [("f", op, 10 * k + i) for k in range(3) for i, op in enumerate("abc")]
        assert self.runs(*ops) == [("f", 0, 3), ("f", 10, 13), ("f", 20, 23)]

    def test_a_loop_is_one_execution(self) -> None:
        ops = [("f", op, i) for i, op in enumerate("xabababyxababaaby")]
        assert self.runs(*ops) == [("f", 0, 8), ("f", 8, 17)]

    def test_an_execution_that_is_cut_off(self) -> None:
        ops = [("f", op, i) for i, op in enumerate("abcabcab")]
        assert self.runs(*ops) == [("f", 0, 3), ("f", 3, 6), ("f", 6, 8)]

    def test_another_program_between(self) -> None:
        assert self.runs(("f", "a", 0), ("g", "a", 1), ("f", "b", 2)) == [("f", 0, 1), ("g", 1, 2), ("f", 2, 3)]

    def test_an_execution_begins_with_the_replay_of_its_graph(self) -> None:
        """A copy runs first, and again later, so that the op that runs least often is the second of the replay."""
        space = Space()
        line = gpu(space).line("Stream #1")
        for k, op in enumerate("mabmc" * 3):
            facts = {"hlo_op": "command_buffer", "hlo_module": "f", "program_id": Unsigned(7)}
            line.event(op, 10 * (k // 5) + k % 5, 1, **facts, correlation_id=40 + k // 5)
        trace = read_xplane(space.write(Path(self.folder) / "a.xplane.pb"))
        [plane] = trace.planes
        runs = launches(trace.batches(plane, plane.lines[0]))
        assert [(r.start_ps, r.end_ps) for r in runs] == [(0, 5), (10, 15), (20, 25)]

    def test_no_ops(self) -> None:
        assert launches([]) == []


@pytest.mark.parametrize(
    ("name", "op", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "x", "all-reduce"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "x", "all-gather"),
        ("void ncclDevKernel_ReduceScatter_Sum_f16_RING_LL", "x", "reduce-scatter"),
        ("rcclDevKernel_Broadcast", "x", "collective-broadcast"),
        ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)", "x", "all-reduce"),
        ("ncclSymkDevKernel_ReduceScatter_LDMC_sum_f16", "x", "reduce-scatter"),
        ("mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", "all-reduce-start.4", "all-reduce"),
        ("mscclKernel_Sum_hip_bfloat16_Simple_false", "x", "unknown"),
        ("void stream_executor::gpu::AllReduceKernelImpl<__nv_bfloat16, (xla::ReductionKind)0>(x)", "x", "all-reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "all-to-all.3", "all-to-all"),
        ("ncclDevKernel_SendRecv", "collective-permute-start.12", "collective-permute"),
        ("ncclDevKernel_SendRecv", "ncclDevKernel_SendRecv", "send"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "all-gather-start", "all-gather"),
        ("ncclDevKernel_Generic_4", "ncclDevKernel_Generic_4", "unknown"),
        ("my_ncclDevKernel_AllReduce", "all-reduce.1", None),
        ("loop_all_reduce_fusion", "fusion.1", None),
    ],
)
def test_kernels_of_nccl_and_rccl(name: str, op: str, kind: str | None) -> None:
    assert collective_kind(name, op, KINDS) == kind


def test_copies_by_name() -> None:
    names = [
        "MemcpyH2D",
        "MemcpyD2H",
        "memcpyp2p",
        "__amd_rocclr_copyBuffer.kd",
        "Memset",
        "gemm_memcpy",
        "copy_fusion",
    ]
    assert [is_memcpy(n) for n in names] == [True, True, True, True, False, False, False]
    sets = ["Memset", "Memset (Device)", "memset", "__amd_rocclr_fillBufferAligned.kd", "MemcpyH2D", "gemm_memset"]
    assert [is_memset(n) for n in sets] == [True, True, True, True, False, False]


def test_mi300(shared_traces: Path, tmp_path: Path, tables_in: Any) -> None:
    """54 events: 42 of programs on one stream, 12 copies of the runtime on another."""
    ingest_one(shared_traces / "gpu-mi300-jax-gemm.xplane.pb", tmp_path / "warehouse")
    query = tables_in(tmp_path / "warehouse")
    sql = """SELECT count(*), count(execution), count(step), min(start_ps) FILTER (WHERE step = 0)
             FROM ops WHERE line = 'Stream #16(Kernel)'"""
    [(ops, executions, steps, first)] = query(sql)
    assert (ops, executions, steps) == (42, 42, 38)
    before = "SELECT count(*) FROM ops WHERE line = 'Stream #16(Kernel)' AND step IS NULL AND start_ps < ?"
    assert query(before, first) == [(4,)]  # what runs before the program that begins the first step
    sql = """SELECT line, category, op_class, count(*) FROM ops JOIN instructions USING (instruction_id)
             WHERE op_class = 'copy' GROUP BY ALL ORDER BY ALL"""
    assert ("Stream #17(Kernel)", "memcpy", "copy", 12) in query(sql)
    assert query("SELECT count(*) FROM devices WHERE peak_ici_gbps IS NOT NULL") == [(0,)]
    assert np.all([end > start for start, end in query("SELECT start_ps, end_ps FROM phases")])


H200 = {"device_vendor": "Nvidia", "compute_cap_major": 9, "compute_cap_minor": 0, "memory_size": 150_109_880_320}


@pytest.mark.parametrize(
    ("stated", "kind", "peak", "link"),
    [
        (H200, "H200", 989e12, ("nvlink", 450.0)),
        (H200 | {"core_count": 132}, "H200", 989e12, ("nvlink", 450.0)),
        (H200 | {"core_count": 114}, "Nvidia", None, (None, None)),  # another board
        (H200 | {"memory_size": 85_174_583_296}, "H100", 989e12, ("nvlink", 450.0)),
        (H200 | {"memory_size": 102_000_000_000}, "Nvidia", None, (None, None)),  # H20 or GH200
        (H200 | {"gpu_device_name": "NVIDIA H200"}, "NVIDIA H200", 989e12, ("nvlink", 450.0)),
        (H200 | {"gpu_device_name": "NVIDIA H200 NVL"}, "NVIDIA H200 NVL", None, (None, None)),  # a name is stronger
        (H200 | {"compute_cap_major": 8, "memory_size": 42_297_786_368}, "A100 40GB", 312e12, ("nvlink", 300.0)),
        (H200 | {"compute_cap_major": 8, "memory_size": 85_094_825_984}, "A100 80GB", 312e12, ("nvlink", 300.0)),
        (H200 | {"compute_cap_major": 10, "memory_size": 191_501_107_200}, "B200", 2250e12, ("nvlink", 900.0)),
        (H200 | {"device_vendor": "AMD", "memory_size": 68_702_699_520, "core_count": 104}, "MI250", 181.05e12,
         ("fabric", None)),
        (H200 | {"device_vendor": "AMD", "compute_cap_minor": 4, "memory_size": 206_141_652_992}, "MI300X", 1307e12,
         ("fabric", 448.0)),
        (H200 | {"device_vendor": "AMD", "compute_cap_minor": 4, "memory_size": 274_861_129_728}, "MI325X", 1307e12,
         ("fabric", 448.0)),
        (H200 | {"core_count": 114, "memory_size": 85_029_158_912}, "H100 PCIe", 756e12, (None, None)),
        (H200 | {"gpu_device_name": "NVIDIA H100 PCIe"}, "NVIDIA H100 PCIe", 756e12, (None, None)),
        (H200 | {"gpu_device_name": "NVIDIA H100 NVL"}, "NVIDIA H100 NVL", 835e12, (None, None)),
        (H200 | {"gpu_device_name": "AMD Instinct MI325X"}, "AMD Instinct MI325X", 1307e12, ("fabric", 448.0)),
        ({"device_vendor": "Nvidia"}, "Nvidia", None, (None, None)),
    ],
)  # fmt: skip
def test_the_kind_of_a_gpu_follows_from_what_its_plane_states(
    ingest: Any, stated: dict[str, Any], kind: str, peak: float | None, link: tuple[str | None, float | None]
) -> None:
    space = Space()
    plane = space.plane("/device:GPU:0")
    for name, value in stated.items():
        plane.stat(name, value)
    kernel(plane.line("Stream #1(Kernel)"), "gemm", "dot.2", 0, 1)
    _, query = ingest(space)
    found = "SELECT kind, peak_flops_per_s, link, peak_link_gbps, peak_ici_gbps FROM devices"
    assert query(found) == [(kind, peak, *link, None)]


def test_what_an_amd_gpu_states_of_its_memory_is_half_of_what_hbm3_gives(ingest: Any) -> None:
    space = Space()
    plane = space.plane("/device:GPU:0").stat("device_vendor", "AMD").stat("memory_size", 206_141_652_992)
    plane.stat("compute_cap_major", 9).stat("compute_cap_minor", 4).stat("memory_bandwidth", 2_662_400_000_000)
    kernel(plane.line("Stream #1(Kernel)"), "gemm", "dot.2", 0, 1)
    _, query = ingest(space)
    found = "SELECT peak_hbm_gbps, peak_tf32_flops_per_s, peak_f32_flops_per_s, peak_source FROM devices"
    assert query(found) == [(5300.0, 653.5e12, 163.4e12, "hardware table")]


@pytest.mark.parametrize(
    ("name", "layer_source"), [("scan-marked", "loop"), ("scan-unmarked", "loop"), ("unrolled-marked", "inferred")]
)
def test_h200(shared_traces: Path, tmp_path: Path, tables_in: Any, name: str, layer_source: str) -> None:
    """Three recordings of ours: steps and layers, against the times that the host measured of each step."""
    capture = shared_traces / "gpu-own" / f"h200-jax-llama6-{name}.xplane.pb.gz"
    ingest_one(capture, tmp_path / "warehouse")
    query = tables_in(tmp_path / "warehouse")
    found = "SELECT kind, peak_flops_per_s, peak_hbm_gbps, link, peak_link_gbps, peak_source FROM devices"
    assert query(found) == [("NVIDIA H200", 989e12, 4814.304, "nvlink", 450.0, "both")]
    truth = json.loads((capture.parent / "truth-jax.json").read_text())[f"h200-jax-llama6-{name}"]
    steps = query(
        """SELECT name, start_ps, end_ps FROM phases WHERE kind = 'step' AND device_id = 0 ORDER BY start_ps"""
    )
    assert [phase for phase, _, _ in steps] == ["prefill", *["decode"] * 8]
    host = [truth["prefill_ns"], *truth["decode_ns"]]
    assert all((end - start) // 1000 <= wall for (_, start, end), wall in zip(steps, host, strict=True))
    decode = (steps[8][1] - steps[1][1]) / 1000 / sum(host[1:8])  # from the first to the last decode step
    assert 0.95 < decode < 1
    layers = query(f"""SELECT count(DISTINCT COALESCE(iteration, layer)), sum(self_ps) FROM ops
        JOIN instructions USING (instruction_id) WHERE layer_source = '{layer_source}' AND step > 0 AND is_leaf""")
    [(decoded,)] = query("SELECT sum(self_ps) FROM ops WHERE step > 0 AND is_leaf")
    assert layers[0][0] == truth["L"]
    assert layers[0][1] > 0.8 * decoded


@pytest.mark.parametrize(
    "members",
    [
        '"schemaVersion": 1, "deviceProperties": [{"id": 0}]',
        '"schemaVersion": 1',
        '"deviceProperties": []',
        '"displayTimeUnit": "ms"',  # a tool has dropped both; the operators tell
    ],
)
def test_a_kineto_trace_is_known_by_its_content(tmp_path: Path, tables_in: Any, members: str) -> None:
    """Two events as torch.profiler exports them, under the name of a Chrome trace."""
    path = tmp_path / "rank0.trace.json"
    path.write_text(
        f"{{{members},"
        + """ "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": 1, "dur": 5},
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 3, "dur": 2}
        ], "traceName": "rank0.trace.json"}"""
    )
    result = ingest_one(path, tmp_path / "warehouse")
    assert result.entry.flags == ["unlinked_ops"]
    tables = tables_in(tmp_path / "warehouse")
    assert tables("SELECT format, backend, device_count FROM runs") == [("kineto", "gpu", 1)]
    assert tables("SELECT line, start_ps, duration_ps FROM ops") == [("Stream #7", 2_000_000, 2_000_000)]


def test_no_metric_of_tpu_links_on_a_gpu(tmp_path: Path) -> None:
    """What faster links between chips would save is asked of no GPU."""
    reduce = "%all-reduce.3 = f32[1024]{0} all-reduce(f32[1024]{0} %x), replica_groups={{0,1}}"
    module = Module()
    module.computation(1, "%x = f32[1024]{0} parameter(0)", reduce)
    space = Space()
    for ordinal in range(2):
        line = gpu(space, ordinal).line("Stream #2")
        for at in (0, 100):
            kernel(line, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all-reduce.3", at, at + 50)
    space.hlo_protos({"jit_decode": (7, module.encode())})
    ingest_one(space.write(tmp_path / "a.xplane.pb"), tmp_path / "warehouse")
    with tracewarehouse.open(tmp_path / "warehouse") as warehouse:
        assert warehouse.query("SELECT count(*) FROM main.collectives WHERE NOT is_partial").rows() == [(4,)]
        links = warehouse.query("SELECT DISTINCT link, basis FROM metrics.faster_links").rows()
        assert links == [(None, "exposed")]
        assert warehouse.query("SELECT count(*) FROM metrics.ici_utilization").rows() == [(0,)]


@pytest.mark.parametrize("chip", chips(), ids=lambda c: c["kind"])
def test_each_peak_is_a_number_of_a_source(chip: dict[str, Any]) -> None:
    """Of a device, or of a chip with two; of one direction, or of both; a source may round to four digits."""
    numbers = [float(n.replace(",", "")) for s in chip["sources"] for n in re.findall(r"\d[\d,]*(?:\.\d+)?", s)]
    per_chip = chip.get("devices_per_chip", 1)
    peaks = {**{t: r / 1e12 for t, r in chip["peak_flops_per_s"].items()}, "hbm": chip["hbm_gbps"]}
    for name, peak in {**peaks, "link": chip["link_gbps"], "die": chip.get("die_gbps")}.items():
        if name == "tf32":
            assert peak * 2 == peaks["bf16"]  # of all matrix units that have it
            continue
        if peak is None or (name == "die" and chip["kind"] == "TPU7x") or (name == "link" and chip["kind"] == "TPU v4"):
            continue  # not known; or six times a link, in words; or six links of 50 GB/s
        wanted = {peak, peak * per_chip, peak * 2 * (name == "link"), peak / 1e3 * per_chip}
        assert any(abs(n - w) <= 1e-3 * w for n in numbers for w in wanted if w), name


def test_int8_has_a_peak_of_its_own_on_gpus() -> None:
    peaks = {c["kind"]: c["peak_flops_per_s"].get("int8") for c in chips() if c["link"] != "ici"}
    assert peaks == {
        "A100 40GB": 624e12, "A100 80GB": 624e12, "H100": 1979e12, "H200": 1979e12, "B200": 4500e12,
        "MI250": 181.05e12, "MI300X": 2614.9e12, "MI325X": 2614.9e12, "H100 PCIe": 1512e12, "H100 NVL": 1670e12,
    }  # fmt: skip
