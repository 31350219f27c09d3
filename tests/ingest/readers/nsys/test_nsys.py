"""Exports of Nsight Systems: what each table becomes, and what of it must not be confused."""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from nsys_builder import COMMUNICATOR, MESSAGE, Export, payload

from tracewarehouse.ingest.columns.batches import codes, concatenate, integers
from tracewarehouse.ingest.columns.records import EventBatch, Plane
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.formats import open_trace, profile_window
from tracewarehouse.ingest.readers.nsys.reader import NsysTrace

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def opened(path: Path) -> NsysTrace:
    trace = open_trace(CaptureFile(path))
    assert isinstance(trace, NsysTrace)
    return trace


def stats_of(batch: EventBatch) -> dict[str, dict[int, Any]]:
    """Stats by name and place of the event."""
    found: dict[str, dict[int, Any]] = {}
    for s in batch.stats:
        values, known = integers(s, len(batch))
        code, texts = codes(s, len(batch))
        found[s.name] = {
            i: int(values[i]) if known[i] else texts[code[i]] for i in range(len(batch)) if known[i] or code[i] >= 0
        }
    return found


def events(trace: NsysTrace, plane: Plane, line: str) -> list[tuple[str, int, int]]:
    """Name, start and end in ns of the events of a line."""
    [of_name] = [x for x in plane.lines if x.name == line]
    batch = concatenate(list(trace.batches(plane, of_name)))
    columns = batch.metadata.tolist(), batch.start_ps.tolist(), batch.duration_ps.tolist()
    return [(plane.event_metadata[m].name, s // 1000, (s + d) // 1000) for m, s, d in zip(*columns, strict=True)]


def metadata(plane: Plane) -> dict[str, dict[str, Any]]:
    return {m.name: {s.name: s.value for s in m.stats} for m in plane.event_metadata}


def batch(trace: NsysTrace, plane: Plane, line: str) -> EventBatch:
    [of_name] = [x for x in plane.lines if x.name == line]
    return concatenate(list(trace.batches(plane, of_name)))


class TestDevices:
    def test_an_ordinal_of_cuda_counts_per_process(self, tmp_path: Path) -> None:
        """Both processes call their GPU 0; the export says which GPUs these are."""
        export = Export().gpu(0).gpu(3, "NVIDIA H200", smCount=132)
        for pid, gpu in ((7, 3), (8, 0)):
            export.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=pid)
            export.kernel(10 * pid, 10 * pid + 5, pid=pid)
        trace = opened(export.write(tmp_path / "a.sqlite"))
        names = {p.name: {s.name: s.value for s in p.stats}.get("gpu_device_name") for p in trace.planes}
        assert names["/device:GPU:0"] == "NVIDIA H100 80GB HBM3"
        assert names["/device:GPU:3"] == "NVIDIA H200"
        assert events(trace, trace.planes[0], "Stream #7") == [("gemm", 80, 85)]
        assert events(trace, trace.planes[1], "Stream #7") == [("gemm", 70, 75)]

    def test_two_processes_share_a_gpu_only_if_the_export_says_so(self, tmp_path: Path) -> None:
        export = Export().kernel(0, 5, pid=7).kernel(1, 6, pid=8)
        trace = opened(export.write(tmp_path / "a.sqlite"))
        assert [p.name for p in trace.planes if p.lines] == ["/device:GPU:0", "/device:GPU:1"]
        assert any("nothing tells the ranks" in w for w in trace.warnings)
        for pid in (7, 8):
            export.add("TARGET_INFO_CUDA_DEVICE", gpuId=2, cudaId=0, pid=pid)
        shared = opened(export.write(tmp_path / "b.sqlite"))
        [plane] = [p for p in shared.planes if p.lines]
        assert plane.name == "/device:GPU:2"
        assert [x.name for x in plane.lines] == ["Stream #7", "Stream #7 (process 8, context 1)"]

    def test_without_a_mapping_a_gpu_has_what_all_of_them_have(self, tmp_path: Path) -> None:
        export = Export().gpu(0).gpu(1, memoryBandwidth=1).kernel(0, 5)
        plane = opened(export.write(tmp_path / "a.sqlite")).planes[0]
        stats = {s.name: s.value for s in plane.stats}
        assert stats["gpu_device_name"] == "NVIDIA H100 80GB HBM3"
        assert stats["core_count"] == 132
        assert "memory_bandwidth" not in stats
        assert "uuid" not in stats

    def test_ranks_are_those_of_the_largest_communicator(self, tmp_path: Path) -> None:
        export = Export().nccl()
        for rank, pid in ((5, 7), (1, 8)):
            export.kernel(0, 5, pid=pid)
            for ranks, own in ((2, 0), (8, rank)):
                blob = payload(COMMUNICATOR, ranks, ranks, own, 0)
                export.range(0, 1, "ncclCommInitRank", pid=pid, domainId=1, binaryData=blob)
        trace = opened(export.write(tmp_path / "a.sqlite"))
        stats = [{s.name: s.value for s in p.stats} for p in trace.planes if p.name.startswith("/device")]
        assert [(s["rank"], s["world_size"]) for s in stats] == [(5, 8), (1, 8)]
        assert not trace.warnings

    def test_mpi_names_its_threads_by_rank(self, tmp_path: Path) -> None:
        export = Export().kernel(0, 5).range(3, None, "MPI Rank 6", eventType=39)
        plane = opened(export.write(tmp_path / "a.sqlite")).planes[0]
        assert ("rank", 6) in [(s.name, s.value) for s in plane.stats]


class TestLaunches:
    def test_a_correlation_counts_per_process(self, tmp_path: Path) -> None:
        """Correlation 9 of process 7 launches under a mark, that of process 8 outside of one and a day later."""
        export = Export().range(0, 20, "decode 1")
        export.call(5, 6, correlationId=9)
        export.call(86_400 * 10**9, 86_400 * 10**9 + 1, pid=8, tid=8, correlationId=9)
        export.kernel(10, 15, launch=9).kernel(86_400 * 10**9 + 5, 86_400 * 10**9 + 6, launch=9, pid=8)
        trace = opened(export.write(tmp_path / "a.sqlite"))
        steps = [stats_of(batch(trace, p, "Stream #7")).get("launch_step") for p in trace.planes[:2]]
        assert steps == [{0: 1}, {0: -1}]

    @pytest.mark.parametrize("kind", [{}, {"eventType": 60, "endGlobalTid": 9}], ids=["push and pop", "start and end"])
    def test_steps_are_those_of_the_launch(self, tmp_path: Path, kind: dict[str, int]) -> None:
        """The host is two steps ahead: both kernels run after both marks."""
        export = Export()
        for k in range(2):
            export.range(100 * k, 100 * k + 50, f"execute_context_0(0)_generation_{k + 3}({k + 3})", **kind)
            export.kernel(1000 + 300 * k, 1200 + 300 * k, launch=export.call(100 * k + 10, 100 * k + 12))
        trace = opened(export.write(tmp_path / "a.sqlite"))
        names = [f"execute_context_0(0)_generation_{n}({n})" for n in (3, 4)]
        assert events(trace, trace.planes[0], "Steps") == [(names[0], 1000, 1200), (names[1], 1300, 1500)]
        marks = stats_of(batch(trace, trace.planes[0], "Steps"))
        assert marks["mark_start_ps"] == {0: 0, 1: 100_000}

    def test_the_runtime_of_old_exports_is_doubled(self, tmp_path: Path) -> None:
        """In schema 2.9 a call has two rows; both are events of the thread, and the runtime's own one launches."""
        export = Export("2.9.1")
        export.call(10, 30, "cudaLaunchKernel", eventClass=67, correlationId=4)
        export.call(12, 28, "cudaLaunchKernel_v7000", correlationId=4)
        trace = opened(export.kernel(40, 50, launch=4).write(tmp_path / "a.sqlite"))
        [host] = [p for p in trace.planes if p.name == "/host:CPU"]
        assert events(trace, host, "thread 7") == [("cudaLaunchKernel", 10, 30), ("cudaLaunchKernel_v7000", 12, 28)]
        assert stats_of(batch(trace, host, "thread 7"))["device_ordinal"] == {1: 0}
        assert not trace.findings

    def test_a_kernel_from_before_the_recording_is_flagged(self, tmp_path: Path) -> None:
        export = Export().kernel(0, 30, launch=99).kernel(40, 50, launch=77)
        export.call(35, 36, correlationId=77)
        trace = opened(export.write(tmp_path / "a.sqlite"))
        assert trace.findings == [("unlinked_ops", "1 of 2 ops, 75.0% of their time, have no launch in the capture")]
        assert stats_of(batch(trace, trace.planes[0], "Stream #7"))["is_unlinked"] == {0: 1}

    def test_a_graph_is_an_op_only_where_its_kernels_are_absent(self, tmp_path: Path) -> None:
        export = Export()
        whole, parts = (export.call(10 * k, 10 * k + 5, "cudaGraphLaunch_v10000") for k in range(2))
        export.other("GRAPH_TRACE", 100, 200, whole, graphId=5).other("GRAPH_TRACE", 300, 400, parts, graphId=5)
        export.kernel(300, 350, "a", parts, graphId=5, graphNodeId=1).kernel(350, 400, "b", parts, graphId=5)
        trace = opened(export.write(tmp_path / "a.sqlite"))
        plane = trace.planes[0]
        assert events(trace, plane, "Stream #7") == [("CUDA graph 5", 100, 200), ("a", 300, 350), ("b", 350, 400)]
        assert [name for name, _, _ in events(trace, plane, "Launches")] == ["graph 0", "graph 1"]
        assert [name for name, _ in trace.findings] == ["opaque_graphs"]

    def test_a_launch_is_around_ranges_of_its_own_thread(self, tmp_path: Path) -> None:
        export = Export().range(0, 100, "{'Module': 'model.layers.3.mlp', 'TrainableParams': {}}")
        export.range(0, 100, "model.layers.9", tid=8).range(10, 40, "aten::linear, seq = 4, op_id = 8")
        export.range(12, 38, "aten::mm, op_id = 9, sizes = [[2, 3], [3, 4]], input_op_ids = [(8,0)]")
        export.kernel(200, 300, "gemm", export.call(20, 25)).kernel(300, 310, "add", export.call(60, 65))
        trace = opened(export.write(tmp_path / "a.sqlite"))
        said = metadata(trace.planes[0])
        assert said["gemm"]["tf_op"] == "model.layers.3.mlp/aten::mm"
        assert said["gemm"]["Input Dims"] == "[[2, 3], [3, 4]]"
        assert said["add"]["tf_op"] == "model.layers.3.mlp"

    def test_of_ranges_that_cross_the_later_one_does_not_stand_in_the_earlier(self, tmp_path: Path) -> None:
        export = Export().range(0, 100, "model").range(10, 40, "first").range(20, 60, "second")
        export.kernel(200, 300, "gemm", export.call(30, 35)).kernel(300, 310, "add", export.call(50, 55))
        said = metadata(opened(export.write(tmp_path / "a.sqlite")).planes[0])
        assert [said[name]["tf_op"] for name in ("gemm", "add")] == ["model/second", "model/second"]

    @pytest.mark.parametrize("change", ["RENAME COLUMN shortName TO other", ""])
    def test_a_kernel_without_a_short_name_has_its_full_one(self, tmp_path: Path, change: str) -> None:
        path = Export().kernel(0, 9, "gemm").write(tmp_path / "a.sqlite")
        with sqlite3.connect(path) as export:
            table = "CUPTI_ACTIVITY_KIND_KERNEL"
            export.execute(f"ALTER TABLE {table} {change}" if change else f"UPDATE {table} SET shortName = -57")
        export.close()
        assert [m.name for m in opened(path).planes[0].event_metadata if "gemm" in m.name] == ["void gemm(int)"]

    def test_kernels_without_a_name_are_flagged_with_their_share(self, tmp_path: Path) -> None:
        """Of 100 ns 30 and 10: an id without a text, and none; a copy has no name to lack."""
        export = Export().kernel(0, 60).kernel(60, 90, shortName=998, demangledName=999)
        export.kernel(90, 100, shortName=None, demangledName=None).other("MEMCPY", 0, 900)
        trace = opened(export.write(tmp_path / "a.sqlite"))
        said = "2 of 3 kernels, 40.0% of their time, have no name in the export's StringIds; export it again"
        assert [found for found in trace.findings if found[0] == "unnamed_kernels"] == [("unnamed_kernels", said)]
        line = [name for name, _, _ in events(trace, trace.planes[0], "Stream #7")]
        assert line.count("(unnamed kernel)") == 2

    def test_an_export_without_names(self, tmp_path: Path) -> None:
        path = Export().kernel(0, 60).write(tmp_path / "a.sqlite")
        connection = sqlite3.connect(path)
        connection.execute("DROP TABLE StringIds")
        connection.commit()
        flags = dict(opened(path).findings)
        assert flags["unnamed_kernels"].startswith("1 of 1 kernels, 100.0% of their time")

    def test_operators_differ_by_name_and_not_by_number(self, tmp_path: Path) -> None:
        export = Export()
        for k in range(50):
            export.range(10 * k, 10 * k + 9, f"aten::mm, op_id = {k}")
            export.kernel(10 * k, 10 * k + 5, launch=export.call(10 * k + 1, 10 * k + 2))
        plane = opened(export.write(tmp_path / "a.sqlite")).planes[0]
        assert [m.name for m in plane.event_metadata].count("gemm") == 1


class TestCollectives:
    def test_the_annotation_of_pytorch_is_more_than_what_nccl_calls(self, tmp_path: Path) -> None:
        export = (
            Export().range(0, 90, "nccl:all_to_all").range(5, 80, "record_param_comms").range(10, 70, "ncclGroupEnd")
        )
        export.kernel(100, 200, "ncclDevKernel_SendRecv", export.call(20, 30))
        assert metadata(opened(export.write(tmp_path / "a.sqlite")).planes[0])["ncclDevKernel_SendRecv"][
            "annotation"
        ] == ("nccl:all_to_all")

    def test_bytes_and_size_of_the_group_are_those_of_the_payload(self, tmp_path: Path) -> None:
        export = Export().nccl()
        export.range(0, 1, "ncclCommInitRank", domainId=1, binaryData=payload(COMMUNICATOR, 77, 4, 2, 0))
        export.range(10, 30, "ncclAllReduce", domainId=1, binaryData=payload(MESSAGE, 77, 4096))
        export.kernel(100, 200, ALL_REDUCE, export.call(20, 25))
        said = metadata(opened(export.write(tmp_path / "a.sqlite")).planes[0])[ALL_REDUCE]
        assert (said["annotation"], said["message_bytes"], said["Group size"]) == ("ncclAllReduce", 4096, 4)

    def test_kernels_from_before_the_recording_share_a_channel_with_the_others(
        self, tmp_path: Path, tables_in: Any
    ) -> None:
        """Nothing tells what the first kernel of each process does, nor its group; those of the second overlap."""
        export = Export()
        for pid in (7, 8):
            export.kernel(0, 50, "ncclDevKernel_SendRecv", 10**6, pid=pid, deviceId=pid)
            export.range(60, 90, "nccl:all_to_all", pid=pid, tid=pid)
            launch = export.call(70, 75, pid=pid, tid=pid)
            export.kernel(100, 200, "ncclDevKernel_SendRecv", launch, pid=pid, deviceId=pid)
        ingest_one(export.write(tmp_path / "a.sqlite"), tmp_path / "warehouse")
        query = tables_in(tmp_path / "warehouse")
        found = query("SELECT kind, group_size, is_partial, COUNT(DISTINCT instance) FROM collectives GROUP BY ALL")
        assert sorted(found) == [("all-to-all", 2, False, 1), ("send", None, True, 2)]

    def test_a_communicator_is_the_group_of_its_messages(self, tmp_path: Path, tables_in: Any) -> None:
        """Four processes: world communicator 9; communicator 5 joins ranks 0 and 2 as 1 and 0, and 6 has one absent."""
        export = Export().nccl()
        at = 0
        for pid, (world, pair, in_pair) in {11: (2, 5, 0), 12: (3, 6, 0), 13: (0, 5, 1), 14: (1, 7, 1)}.items():
            own = {"pid": pid, "tid": pid}
            for communicator, ranks, rank in ((9, 4, world), (pair, 2, in_pair)):
                blob = payload(COMMUNICATOR, communicator, ranks, rank, 0)
                export.range(at, at + 1, "ncclCommInitRank", domainId=1, binaryData=blob, **own)
            for k, communicator in enumerate((9, pair)):
                start = 100 + 100 * k
                blob = payload(MESSAGE, communicator, 1024 * (k + 1))
                export.range(start, start + 20, "ncclAllReduce", domainId=1, binaryData=blob, **own)
                export.kernel(1000 + start, 1050 + start, ALL_REDUCE, export.call(start + 5, start + 9, **own), pid=pid)
        path = export.write(tmp_path / "a.sqlite")
        groups = [metadata(p)[ALL_REDUCE].get("Process Group Ranks") for p in opened(path).planes[:4]]
        assert groups == ["[2, 0]", None, "[2, 0]", None]  # of the last communicator, by process
        ingest_one(path, tmp_path / "warehouse")
        query = tables_in(tmp_path / "warehouse")
        found = query("""SELECT message_bytes, group_size, is_partial, count(*), count(DISTINCT instance)
                         FROM collectives GROUP BY ALL ORDER BY ALL""")
        assert found == [(1024, 4, False, 4, 1), (2048, 2, False, 2, 1), (2048, None, True, 2, 2)]
        pair = query("""SELECT DISTINCT rank, d.global_id FROM collective_groups JOIN devices AS d USING (device_id)
                        JOIN instructions USING (instruction_id) WHERE message_bytes = 2048 ORDER BY 1""")
        assert pair == [(0, 2), (1, 0)]

    def test_pairs_are_groups_without_a_communicator_of_the_job(self, tmp_path: Path, tables_in: Any) -> None:
        """Four processes, each in one communicator of two: all say rank 0 or 1, so the GPUs' order numbers them."""
        export = Export().nccl()
        for pid, (pair, rank) in {11: (5, 1), 12: (6, 0), 13: (5, 0), 14: (6, 1)}.items():
            own = {"pid": pid, "tid": pid}
            export.range(
                0, 1, "ncclCommInitRank", domainId=1, binaryData=payload(COMMUNICATOR, pair, 2, rank, 0), **own
            )
            export.range(100, 120, "ncclAllReduce", domainId=1, binaryData=payload(MESSAGE, pair, 1024), **own)
            export.kernel(1000, 1050, ALL_REDUCE, export.call(105, 109, **own), pid=pid)
        path = export.write(tmp_path / "a.sqlite")
        trace = opened(path)
        ranks = [{s.name: s.value for s in p.stats} for p in trace.planes[:4]]
        assert [(s["rank"], s["world_size"]) for s in ranks] == [(0, 4), (1, 4), (2, 4), (3, 4)]
        assert any("nothing tells the ranks" in w for w in trace.warnings)
        groups = [metadata(p)[ALL_REDUCE]["Process Group Ranks"] for p in trace.planes[:4]]
        assert groups == ["[2, 0]", "[1, 3]", "[2, 0]", "[1, 3]"]
        ingest_one(path, tmp_path / "warehouse")
        query = tables_in(tmp_path / "warehouse")
        found = query("SELECT group_size, is_partial, count(*), count(DISTINCT instance) FROM collectives GROUP BY ALL")
        assert found == [(2, False, 4, 2)]

    def test_a_pair_with_an_absent_member_numbers_nobody(self, tmp_path: Path) -> None:
        export = Export().nccl()
        for pid, pair in ((11, 5), (12, 6)):
            blob = payload(COMMUNICATOR, pair, 2, 0, 0)
            export.range(0, 1, "ncclCommInitRank", pid=pid, tid=pid, domainId=1, binaryData=blob).kernel(5, 9, pid=pid)
        trace = opened(export.write(tmp_path / "a.sqlite"))
        assert all(s.name not in ("rank", "world_size") for p in trace.planes for s in p.stats)

    def test_one_process_may_hold_several_ranks(self, tmp_path: Path) -> None:
        """As of ncclCommInitAll: the communicator's device tells which GPU has which rank."""
        export = Export().nccl()
        for device, rank in ((0, 1), (1, 0)):
            blob = payload(COMMUNICATOR, 9, 2, rank, device)
            export.range(rank, rank + 1, "ncclCommInitRank", domainId=1, binaryData=blob)
            export.kernel(100, 200, ALL_REDUCE, export.call(20, 25), deviceId=device)
        planes = opened(export.write(tmp_path / "a.sqlite")).planes[:2]
        assert [{s.name: s.value for s in p.stats}["rank"] for p in planes] == [1, 0]
        assert [metadata(p)[ALL_REDUCE].get("Process Group Ranks") for p in planes] == ["[0, 1]"] * 2

    @pytest.mark.parametrize(("communicators", "group"), [((9,), "[0, 1]"), ((9, 8), None)], ids=["one", "two"])
    def test_a_replay_is_of_the_only_communicator(
        self, tmp_path: Path, communicators: tuple[int, ...], group: str | None
    ) -> None:
        export = Export().nccl()
        for rank, pid in enumerate((7, 8)):
            own = {"pid": pid, "tid": pid}
            for k, number in enumerate(communicators):
                blob = payload(COMMUNICATOR, number, 2, rank, 0)
                export.range(k, k + 1, "ncclCommInitRank", domainId=1, binaryData=blob, **own)
            launch = export.call(10, 15, "cudaGraphLaunch_v10000", **own)
            export.kernel(100, 200, ALL_REDUCE, launch, pid=pid, graphNodeId=4).kernel(
                200, 300, "gemm", launch, pid=pid
            )
        said = metadata(opened(export.write(tmp_path / "a.sqlite")).planes[0])
        assert said[ALL_REDUCE].get("Process Group Ranks") == group
        assert "Process Group Ranks" not in said["gemm"]

    def test_the_name_of_a_file_tells_its_rank(self, tmp_path: Path) -> None:
        """A communicator in which the process has another number is smaller than the job."""
        export = Export().nccl().kernel(0, 5)
        export.range(0, 1, "ncclCommInitRank", domainId=1, binaryData=payload(COMMUNICATOR, 9, 2, 1, 0))
        stats = {s.name: s.value for s in opened(export.write(tmp_path / "x_rank3.sqlite")).planes[0].stats}
        assert (stats["rank"], stats.get("world_size")) == (3, None)
        same = {s.name: s.value for s in opened(export.write(tmp_path / "x_rank1.sqlite")).planes[0].stats}
        assert (same["rank"], same["world_size"]) == (1, 2)
        two = export.kernel(0, 5, pid=8).write(tmp_path / "y_rank3.sqlite")
        assert 3 not in [s.value for p in opened(two).planes for s in p.stats if s.name == "rank"]

    def test_files_of_ranks_are_one_run(self, tmp_path: Path, tables_in: Any) -> None:
        (tmp_path / "in").mkdir()
        for rank in range(2):
            export = Export().nccl().kernel(100, 200, ALL_REDUCE)
            export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=10**18, utcTime="")
            export.range(0, 1, "ncclCommInitRank", domainId=1, binaryData=payload(COMMUNICATOR, 9, 2, rank, 0))
            export.write(tmp_path / "in" / f"job_rank{rank}.sqlite")
        ingest_one(tmp_path / "in", tmp_path / "warehouse")
        query = tables_in(tmp_path / "warehouse")
        assert query("SELECT global_id FROM devices ORDER BY 1") == [(0,), (1,)]
        assert query("SELECT group_size, is_partial, count(DISTINCT instance) FROM collectives GROUP BY ALL") == [
            (2, False, 1)
        ]

    @pytest.mark.parametrize(("gap_s", "doubted"), [(60, []), (61, ["job_rank1", "job_rank2"])])
    def test_files_of_two_jobs_are_doubted(
        self, tmp_path: Path, tables_in: Any, gap_s: int, doubted: list[str]
    ) -> None:
        """Their communicators differ, so no collective compares them; the second job has two ranks."""
        (tmp_path / "in").mkdir()
        for rank, start_s in enumerate((0, 9 + gap_s, 12 + gap_s)):
            export = Export().nccl().kernel(100, 200, ALL_REDUCE)
            export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=10**18 + start_s * 10**9, utcTime="")
            export.add("ANALYSIS_DETAILS", duration=9 * 10**9)
            said = payload(COMMUNICATOR, 9 + min(rank, 1), 3, rank, 0)
            export.range(0, 1, "ncclCommInitRank", domainId=1, binaryData=said)
            export.write(tmp_path / "in" / f"job_rank{rank}.sqlite")
        ingest_one(tmp_path / "in", tmp_path / "warehouse")
        query = tables_in(tmp_path / "warehouse")
        found = query("SELECT host, detail FROM quality_flags WHERE flag = 'clock_uncertain' ORDER BY 1")
        assert [host for host, _ in found] == doubted
        assert [said for _, said in found][:1] == [
            "its recording begins 61 s after the end of others: if these are of two jobs, ingest each apart"
        ] * bool(doubted)

    @pytest.mark.parametrize(("ranks", "rank"), [(2, 1 << 32 - 1), (2, 2), (0, 0), (1 << 31, 0)])
    def test_a_payload_of_an_impossible_rank_says_nothing(
        self, tmp_path: Path, tables_in: Any, ranks: int, rank: int
    ) -> None:
        export = Export().nccl()
        blob = payload(COMMUNICATOR, 9, ranks, rank, 0)
        export.range(0, 1, "ncclCommInitRank", domainId=1, binaryData=blob)
        export.range(10, 30, "ncclAllReduce", domainId=1, binaryData=payload(MESSAGE, 9, (1 << 64) - 1))
        export.kernel(100, 200, ALL_REDUCE, export.call(20, 25))
        ingest_one(export.write(tmp_path / "a.sqlite"), tmp_path / "warehouse")
        query = tables_in(tmp_path / "warehouse")
        assert query("SELECT group_size, message_bytes FROM collectives") == [(None, None)]
        assert query("SELECT global_id FROM devices") == [(None,)]

    @pytest.mark.parametrize(
        "blob", [b"", b"\0" * 31, payload(MESSAGE, 1, 2)[:40], b"\xff" * 64], ids=["empty", "header", "half", "foreign"]
    )
    def test_a_payload_that_is_cut_off_says_nothing(self, tmp_path: Path, blob: bytes) -> None:
        export = Export().nccl().range(10, 30, "ncclAllReduce", domainId=1, binaryData=blob)
        export.kernel(100, 200, ALL_REDUCE, export.call(20, 25))
        said = metadata(opened(export.write(tmp_path / "a.sqlite")).planes[0])[ALL_REDUCE]
        assert "message_bytes" not in said


class TestRows:
    def test_rows_have_no_order(self, tmp_path: Path) -> None:
        export = Export().range(0, 1000, "decode 1").range(5, 900, "aten::mm")
        for k in range(20):
            export.kernel(1000 + k * 10, 1009 + k * 10, f"k{k}", export.call(10 + k, 11 + k))
        one, other = (opened(export.write(tmp_path / f"{o}.sqlite", order=o)) for o in (1, -1))
        for line in ("Stream #7", "Steps", "Launches"):
            assert events(one, one.planes[0], line) == events(other, other.planes[0], line)
        assert metadata(one.planes[0]) == metadata(other.planes[0])

    def test_copies_and_sets(self, tmp_path: Path) -> None:
        export = Export().other("MEMCPY", 0, 5, bytes=64, copyKind=1, srcKind=1, dstKind=2)
        export.other("MEMCPY", 5, 9, bytes=8, copyKind=99, srcKind=-1, dstKind=2).other(
            "MEMSET", 9, 10, bytes=4, value=0
        )
        trace = opened(export.write(tmp_path / "a.sqlite"))
        names = ["Memcpy HtoD (Pinned -> Device)", "Memcpy Unknown (Unknown -> Device)", "Memset (Device)"]
        assert [name for name, _, _ in events(trace, trace.planes[0], "Stream #7")] == names
        assert stats_of(batch(trace, trace.planes[0], "Stream #7"))["bytes"] == {0: 64, 1: 8, 2: 4}

    def test_samples_of_a_gpu_are_counters(self, tmp_path: Path, tables_in: Any) -> None:
        export = Export().kernel(0, 10)
        export.add("TARGET_INFO_GPU_METRICS", typeId=1 << 8, metricId=4, metricName="SMs Active [%]")
        for at, value in ((7, 90), (3, 80)):
            export.add("GPU_METRICS", timestamp=at, typeId=1 << 8, metricId=4, value=value)
        export.add("GPU_METRICS", timestamp=3, typeId=1 << 8 | 1, metricId=4, value=33)  # of a GPU that ran nothing
        ingest_one(export.write(tmp_path / "a.sqlite"), tmp_path / "warehouse")
        query = tables_in(tmp_path / "warehouse")
        assert query("SELECT name, device_id, start_ps, value FROM counters ORDER BY start_ps") == [
            ("SMs Active [%]", 0, 3000, 80.0),
            ("SMs Active [%]", 0, 7000, 90.0),
        ]
        assert query("SELECT kind, event_count FROM lines WHERE line = '_counters_'") == [("counters", 2)]

    def test_samples_are_of_no_gpu_where_nothing_tells_which_process_used_it(self, tmp_path: Path) -> None:
        """Both processes call their GPU 0; with CUDA_VISIBLE_DEVICES the first may have used GPU 3."""
        export = Export().kernel(0, 10, pid=7).kernel(0, 10, pid=8)
        for gpu in (0, 3):
            export.add("GPU_METRICS", timestamp=3, typeId=1 << 8 | gpu, metricId=4, value=gpu)
        trace = opened(export.write(tmp_path / "a.sqlite"))
        assert "2 samples of GPUs were left out: nothing tells which process used which GPU" in trace.warnings
        for pid, gpu in ((7, 3), (8, 0)):
            export.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=pid)
        trace = opened(export.write(tmp_path / "b.sqlite"))
        samples = {p.name: batch(trace, p, "_counters_") for p in trace.planes[:2]}
        assert [(name, stats_of(b)["metric 4"]) for name, b in samples.items()] == [
            ("/device:GPU:0", {0: 0}),
            ("/device:GPU:3", {0: 3}),
        ]

    def test_a_graphless_export_of_only_the_host(self, tmp_path: Path) -> None:
        trace = opened(
            Export()
            .range(0, 10, "a")
            .add("OSRT_API", start=3, end=4, globalTid=7, nameId=None)
            .write(tmp_path / "a.sqlite")
        )
        assert [p.name for p in trace.planes] == ["/host:CPU", "Task Environment"]

    def test_a_range_without_an_end_is_an_event_that_holds_nothing(self, tmp_path: Path) -> None:
        export = Export().range(5, None, "cut")
        export.kernel(20, 30, launch=export.call(10, 11))
        trace = opened(export.write(tmp_path / "a.sqlite"))
        [host] = [p for p in trace.planes if p.name == "/host:CPU"]
        assert ("cut", 5, 5) in events(trace, host, "thread 7")
        assert "tf_op" not in metadata(trace.planes[0])["gemm"]


class TestTimes:
    def session(self) -> Export:
        export = Export().add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000 * 10**9)
        return export.add("ANALYSIS_DETAILS", duration=5_000)

    def test_times_count_from_the_start_of_the_session(self, tmp_path: Path) -> None:
        path = self.session().kernel(20, 30).write(tmp_path / "a.sqlite")
        assert opened(path).origin_ns == 1_700_000_000 * 10**9
        assert profile_window(path) == (1_700_000_000 * 10**9, 1_700_000_000 * 10**9 + 5_000)

    @pytest.mark.parametrize(("value", "shift"), [("1000", 1000), ("-1000", -1000), ("--5", 0), ("\u00b2", 0)])
    def test_a_shift_of_the_export_is_taken_back(self, tmp_path: Path, value: str, shift: int) -> None:
        export = self.session().add("META_DATA_EXPORT", name="EXPORT_PARAM_TIME_SHIFT", value=value)
        path = export.kernel(1020, 1030).write(tmp_path / "a.sqlite")
        assert opened(path).origin_ns == 1_700_000_000 * 10**9 - shift

    def test_unix_times_count_from_the_first_event(self, tmp_path: Path) -> None:
        at = 1_700_000_000 * 10**9
        trace = opened(self.session().kernel(at + 20, at + 30).kernel(at + 40, at + 50).write(tmp_path / "a.sqlite"))
        assert trace.origin_ns == at + 20
        assert events(trace, trace.planes[0], "Stream #7") == [("gemm", 0, 10), ("gemm", 20, 30)]


class TestRefusals:
    def refused(self, path: Path) -> str:
        with pytest.raises(CaptureError) as caught:
            open_trace(CaptureFile(path))
        return str(caught.value)

    def test_another_database(self, tmp_path: Path) -> None:
        connection = sqlite3.connect(tmp_path / "a.sqlite")
        connection.execute("CREATE TABLE history (url)")
        connection.commit()
        assert "found another SQLite database" in self.refused(tmp_path / "a.sqlite")

    @pytest.mark.parametrize(
        ("version", "said"),
        [
            ("2.3.0", ["older than 2.9, the oldest"]),
            ("2.9.0", []),
            ("3.3.0", []),
            ("3.25.7", []),
            ("3.26.1", ["newer than 3.25, the newest"]),
        ],
    )
    def test_a_schema_that_was_not_seen_is_read_and_says_so(
        self, tmp_path: Path, version: str, said: list[str]
    ) -> None:
        trace = opened(Export(version).kernel(100, 200).write(tmp_path / "a.sqlite"))
        assert trace.warnings == [
            f"in schema {version}, {beyond} that was seen: columns may mean something else" for beyond in said
        ]
        assert events(trace, trace.planes[0], "Stream #7") == [("gemm", 100, 200)]

    @pytest.mark.parametrize("version", ["1.9.9", "4.1.0", "unknown"])
    def test_another_schema(self, tmp_path: Path, version: str) -> None:
        found = self.refused(Export(version).kernel(0, 1).write(tmp_path / "a.sqlite"))
        assert f"schema {version}; schemas 2 and 3 are read" in found

    def test_a_file_of_this_name_that_is_no_database(self, tmp_path: Path) -> None:
        (tmp_path / "a.sqlite").write_text("<html>the login page</html>" * 20)
        found = self.refused(tmp_path / "a.sqlite")
        assert "looked for an SQLite database, found b'<html>the login '" in found

    def test_nothing_recorded(self, tmp_path: Path) -> None:
        assert "without events" in self.refused(Export().gpu(0).write(tmp_path / "a.sqlite"))

    def test_a_report_that_is_not_exported(self, tmp_path: Path) -> None:
        (tmp_path / "my run.nsys-rep").write_bytes(b"QDREP\0\1\2")
        found = self.refused(tmp_path / "my run.nsys-rep")
        assert "run `nsys export --type=sqlite --include-blobs=true 'my run.nsys-rep'`" in found

    @pytest.mark.parametrize("value", ["soon", b"\1\2", 1.5e300])
    def test_a_time_that_is_none(self, tmp_path: Path, value: Any) -> None:
        path = Export().kernel(value, 30).write(tmp_path / "a.sqlite")
        assert "looked for an integer" in self.refused(path)

    @pytest.mark.parametrize(
        ("start", "end"), [(0, 1 << 62), (-(1 << 62), 0), (5, -(1 << 62)), (1 << 62, 5), (None, 30), (3, None)]
    )
    def test_times_that_64_bits_of_picoseconds_cannot_hold(self, tmp_path: Path, start: Any, end: Any) -> None:
        assert "damaged" in self.refused(Export().kernel(start, end).write(tmp_path / "a.sqlite"))

    def test_a_truncated_file(self, tmp_path: Path) -> None:
        export = Export()
        for k in range(500):
            export.kernel(k, k + 1, launch=k)
        content = export.write(tmp_path / "a.sqlite").read_bytes()
        for size in (20, 100, 4000, len(content) // 2, len(content) - 1):
            (tmp_path / "a.sqlite").write_bytes(content[:size])
            assert "damaged" in self.refused(tmp_path / "a.sqlite")
        packed = gzip.compress(content)
        (tmp_path / "b.sqlite.gz").write_bytes(packed[: len(packed) // 2])
        assert "damaged gzip file" in self.refused(tmp_path / "b.sqlite.gz")

    def test_a_view_or_a_generated_column_is_no_table(self, tmp_path: Path) -> None:
        """Its query would run for ever."""
        endless = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n AS start, n AS end FROM r"
        connection = sqlite3.connect(Export().range(0, 10, "a").write(tmp_path / "a.sqlite"))
        connection.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}")
        slow = "length(zeroblob(1000000000))"
        connection.execute(f"CREATE TABLE GPU_METRICS (timestamp, typeId, metricId, value AS ({slow}))")
        connection.execute("INSERT INTO GPU_METRICS VALUES (1, 1, 1)")
        connection.commit()
        connection.close()
        assert [p.name for p in opened(tmp_path / "a.sqlite").planes] == ["/host:CPU", "Task Environment"]

    def test_pages_that_many_others_share_are_not_read_for_ever(self, tmp_path: Path) -> None:
        """A forged tree of 12 levels, each with its one child 100 times over: 10^24 rows in 60 kB."""
        path = forged_tree(Export().kernel(0, 5).write(tmp_path / "a.sqlite"), levels=12, width=100)
        assert "more rows than a file of its size can have" in self.refused(path)


def forged_tree(path: Path, levels: int, width: int) -> Path:
    """Put levels of inner pages above the only page of the kernels' table, of which all cells lead to one page."""
    connection = sqlite3.connect(path)
    [(root,)] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'")
    [(size,)] = connection.execute("PRAGMA page_size")
    connection.close()
    content = bytearray(path.read_bytes())
    count = len(content) // size
    leaf = content[(root - 1) * size : root * size]
    content += leaf
    child = count + 1
    for level in range(levels):
        page = bytearray(size)
        cells = bytes(child.to_bytes(4, "big") + bytes([1]))
        start = size - width * len(cells)
        page[0] = 5  # an inner page of a table
        page[3:5] = width.to_bytes(2, "big")
        page[5:7] = start.to_bytes(2, "big")
        page[8:12] = child.to_bytes(4, "big")
        for i in range(width):
            at = start + i * len(cells)
            page[12 + 2 * i : 14 + 2 * i] = at.to_bytes(2, "big")
            page[at : at + len(cells)] = cells
        if level == levels - 1:
            content[(root - 1) * size : root * size] = page
        else:
            content += page
            child = len(content) // size
    content[28:32] = (len(content) // size).to_bytes(4, "big")
    path.write_bytes(content)
    return path
