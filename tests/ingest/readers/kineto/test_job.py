"""The files of a job's ranks as one run: instances, groups and clocks, against made-up traces of two to four GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tracewarehouse.ingest.pipeline import ingest_one

Call = tuple[str, int, int, Mapping[str, Any]]
"""Name of a collective, its start and end on the device in us, and further arguments."""
Query = Callable[..., list[tuple[Any, ...]]]
EVERY_MS = 1000


def group(*ranks: int, name: str = "0", description: str = "default_pg") -> dict[str, Any]:
    return {
        "Process Group Name": name, "Process Group Description": description, "Process Group Ranks": json.dumps(ranks),
        "Group size": len(ranks), "dtype": "Float", "In msg nelems": 1000, "Out msg nelems": 1000,
    }  # fmt: skip


def write_rank(
    folder: Path, rank: int, calls: Sequence[Call], world: int = 2, clock_us: float = 0, gpu: int | None = None
) -> None:
    """Write the trace of a rank, whose clock is ahead by `clock_us`; a call without arguments has a mark alone."""
    gpu = rank if gpu is None else gpu
    events: list[dict[str, Any]] = []
    for number, (name, start, end, said) in enumerate(calls, 1):
        launch = {"pid": 10, "tid": 10, "ts": 1e6 + start + clock_us - 5, "dur": 2}
        events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **launch})
        events[-1]["args"] = {"correlation": number}
        if not said:
            events.append({"ph": "X", "cat": "user_annotation", "name": f"nccl:{name}", **launch | {"dur": 3}})
        kernel = {"device": gpu, "stream": 20, "correlation": number} | said
        if said:
            kernel["Collective name"] = name
        place = {"pid": gpu, "tid": 20, "ts": 1e6 + start + clock_us, "dur": end - start}
        events.append({"ph": "X", "cat": "kernel", "name": "ncclDevKernel_Generic", **place, "args": kernel})
    content = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": i, "name": "NVIDIA H100 80GB HBM3"} for i in range(8)],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        "baseTimeNanoseconds": 1_790_000_000_000_000_000,
        "traceEvents": events,
    }
    (folder / f"rank{rank}_trace.json").write_text(json.dumps(content))


@pytest.fixture
def job(tmp_path: Path, tables_in: Callable[[Path], Query]) -> Callable[[Mapping[int, Sequence[Call]]], Query]:
    """Ingests the calls of each rank; `clocks` says by how many us a rank's clock is ahead, `gpus` which it uses."""

    def ingest(
        ranks: Mapping[int, Sequence[Call]],
        world: int = 2,
        clocks: Mapping[int, float] | None = None,
        gpus: Mapping[int, int] | None = None,
    ) -> Query:
        folder = tmp_path / "job"
        folder.mkdir()
        for rank, calls in ranks.items():
            write_rank(folder, rank, calls, world, (clocks or {}).get(rank, 0), (gpus or {}).get(rank))
        ingest_one(folder, tmp_path / "warehouse")
        return tables_in(tmp_path / "warehouse")

    return ingest


def calls(starts: Sequence[int], ends: Sequence[int], said: Mapping[str, Any], name: str = "allreduce") -> list[Call]:
    return [(name, start, end, said) for start, end in zip(starts, ends, strict=True)]


ENDS = [1000, 2100, 3300, 4600, 6000, 7500, 9100, 10800]
FIRST, SECOND = [end - 100 for end in ENDS], [end - 40 for end in ENDS]
BOTH = group(0, 1)
INSTANCES = """SELECT instance, list(device_id ORDER BY device_id), bool_or(is_partial), any_value(kind)
               FROM collectives GROUP BY instance ORDER BY instance"""


def test_ranks_share_instances(job: Any) -> None:
    query = job({0: calls(FIRST, ENDS, BOTH), 1: calls(SECOND, ENDS, BOTH)})
    assert query(INSTANCES) == [(k, [0, 1], False, "all-reduce") for k in range(8)]
    assert query("SELECT DISTINCT group_size, message_bytes, dtype FROM collectives") == [(2, 4000, "f32")]
    assert query("SELECT device_id, global_id FROM devices ORDER BY ALL") == [(0, 0), (1, 1)]
    assert query("SELECT rank, device_id FROM collective_groups ORDER BY ALL") == [(0, 0), (1, 1)]
    # around a ring of two, each rank sends 2 (n-1)/n of the message
    assert query("SELECT DISTINCT source_device_id, bytes FROM traffic ORDER BY ALL") == [(0, 4000), (1, 4000)]


def test_ranks_may_run_other_kernels_and_sizes_of_one_collective(job: Any) -> None:
    uneven = [
        ("all_to_allv", s, e, BOTH | {"In msg nelems": 10 * k})
        for k, (_, s, e, _) in enumerate(calls(FIRST, ENDS, BOTH), 1)
    ]
    query = job({0: uneven, 1: calls(SECOND, ENDS, BOTH, "all_to_allv")})
    assert query(INSTANCES) == [(k, [0, 1], False, "all-to-all") for k in range(8)]


@pytest.mark.parametrize(("low", "high"), [(0, 8), (2, 8), (0, 6), (1, 5)])
def test_a_rank_that_was_recorded_for_a_shorter_time(job: Any, low: int, high: int) -> None:
    """Its executions are counted from the last; where it also ends earlier, their ends tell which they are."""
    query = job({0: calls(FIRST, ENDS, BOTH), 1: calls(SECOND[low:high], ENDS[low:high], BOTH)})
    expected = [(k, [0, 1] if low <= k < high else [0], not low <= k < high, "all-reduce") for k in range(8)]
    assert query(INSTANCES) == expected


def test_sequence_numbers_tell_even_where_ends_do_not(job: Any) -> None:
    """Executions are as far apart as what the second rank lacks, and its clock is unknown."""
    ends = [1000 * k for k in range(1, 9)]
    starts = [end - 100 for end in ends]
    numbered = [
        [("allreduce", s, e, BOTH | {"Seq": 40 + k}) for k, (s, e) in enumerate(zip(starts, ends, strict=True))]
        for _ in range(2)
    ]
    query = job({0: numbered[0], 1: numbered[1][3:5]}, clocks={1: 3000})
    assert query(INSTANCES) == [(k, [0, 1] if k in (3, 4) else [0], k not in (3, 4), "all-reduce") for k in range(8)]


def test_sequence_numbers_that_some_kernels_lack_follow_from_those_around_them(job: Any) -> None:
    def numbered(starts: Sequence[int], ends: Sequence[int], first: int, known: int) -> list[Call]:
        return [
            ("allreduce", s, e, BOTH | ({"Seq": first + k} if k >= known else {}))
            for k, (s, e) in enumerate(zip(starts, ends, strict=True))
        ]

    query = job({0: numbered(FIRST, ENDS, 7, 2), 1: numbered(SECOND[1:], ENDS[1:], 8, 3)})
    assert query(INSTANCES) == [(k, [0, 1] if k else [0], not k, "all-reduce") for k in range(8)]


def test_clocks_of_hosts_are_moved_to_where_collectives_end_together(job: Any) -> None:
    query = job({0: calls(FIRST, ENDS, BOTH), 1: calls(SECOND, ENDS, BOTH)}, clocks={1: 250})
    assert query("SELECT clock_source, clock_correction_ps FROM hosts ORDER BY host_index") == [
        ("first_host", None),
        ("collective_ends", -250_000_000),
    ]
    assert query(INSTANCES) == [(k, [0, 1], False, "all-reduce") for k in range(8)]
    assert query("SELECT max(end_ps) - min(end_ps) FROM collectives GROUP BY instance LIMIT 1") == [(0,)]


@pytest.mark.parametrize(
    ("gpus", "clock", "link"),
    [
        ({}, 0, "nvlink"),
        ({4: 0, 5: 1}, 0, "nvlink"),
        ({4: 0, 5: 0}, 0, None),  # a GPU in each of two machines, or one that both ranks see as the first
        ({}, 250, None),
    ],
)
def test_ranks_with_the_gpus_and_the_clock_of_one_machine_have_its_links(
    job: Any, gpus: Mapping[int, int], clock: float, link: str | None
) -> None:
    both = group(4, 5)
    query = job({4: calls(FIRST, ENDS, both), 5: calls(SECOND, ENDS, both)}, 8, {5: clock}, gpus)
    assert query("SELECT DISTINCT link FROM collectives") == [(link,)]


def test_ends_a_few_microseconds_apart_move_no_clock(job: Any) -> None:
    query = job({0: calls(FIRST, ENDS, BOTH), 1: calls(SECOND, [end + 7 for end in ENDS], BOTH)})
    assert query("SELECT count(*) FROM hosts WHERE clock_correction_ps IS NOT NULL") == [(0,)]
    assert query(INSTANCES) == [(k, [0, 1], False, "all-reduce") for k in range(8)]


def test_ranks_whose_ends_no_clock_brings_together_are_not_joined(job: Any) -> None:
    """As far apart as 8 us to 134 ms in files of one published job."""
    scattered = [end + by for end, by in zip(ENDS, (8, 700, -450, 390, -610, 520, -330, 134), strict=True)]
    query = job({0: calls(FIRST, ENDS, BOTH), 1: calls([end - 40 for end in scattered], scattered, BOTH)})
    assert query("SELECT count(DISTINCT instance), bool_and(is_partial) FROM collectives") == [(16, True)]
    flags = {flag for (flag,) in query("SELECT flag FROM quality_flags")}
    assert flags & {"unverified_groups", "clock_uncertain"}


@pytest.mark.parametrize(("numbered", "found"), [(False, (16, True)), (True, (8, False))])
def test_files_of_two_recordings_are_doubted(job: Any, numbered: bool, found: tuple[int, bool]) -> None:
    """An hour apart, with steps alike, so that the ends would fit; only numbers join the collectives all the same."""
    ranks = {
        rank: [
            (name, start, end, said | ({"Seq": k} if numbered else {}))
            for k, (name, start, end, said) in enumerate(calls(starts, ENDS, BOTH))
        ]
        for rank, starts in enumerate((FIRST, SECOND))
    }
    query = job(ranks, clocks={1: 3600e6})
    assert query("SELECT count(DISTINCT instance), bool_and(is_partial) FROM collectives") == [found]
    [(said,)] = query("SELECT detail FROM quality_flags WHERE flag = 'clock_uncertain'")
    assert "lie -3600000000.000 us apart, more than clocks of one job do: if these are two recordings" in said


def test_ranks_that_are_not_in_the_capture_leave_instances_partial(job: Any) -> None:
    query = job({1: calls(SECOND, ENDS, group(0, 1))})
    assert query("SELECT DISTINCT group_size, rank_in_group, is_partial FROM collectives") == [(2, 1, True)]
    assert query("SELECT rank, device_id FROM collective_groups ORDER BY ALL") == [(0, None), (1, 0)]


def test_process_groups_are_matched_each_for_itself(job: Any) -> None:
    """Two pairs of tensor parallelism, whose ranks run out of step with the other pair, and all four of data."""
    tp = [group(0, 1, name="1", description="mesh_tp"), group(2, 3, name="2", description="mesh_tp")]
    query = job(
        {
            rank: [
                *calls([s + 7 * (rank // 2) for s in FIRST], [e + 7 * (rank // 2) for e in ENDS], tp[rank // 2]),
                ("allreduce", 11_000 + rank, 12_000, group(*range(4))),
            ]
            for rank in range(4)
        },
        world=4,
    )
    found = query("""SELECT members, axis, axis_source, count(*) FROM (
                       SELECT list(device_id ORDER BY device_id) AS members, any_value(axis) AS axis,
                         any_value(axis_source) AS axis_source
                       FROM collectives GROUP BY instance) GROUP BY ALL ORDER BY ALL""")
    assert [(members, count) for members, _, _, count in found] == [([0, 1], 8), ([0, 1, 2, 3], 1), ([2, 3], 8)]
    assert [found[k][1:3] for k in (0, 2)] == [("tp", "described")] * 2


def test_stages_that_share_nothing_are_each_on_a_clock_of_their_own(job: Any) -> None:
    """The second pair's clocks are off by seconds, and one of its ranks was recorded for a shorter time."""
    pairs = [group(0, 1, name="1"), group(2, 3, name="2")]
    ranks = {rank: calls(FIRST, ENDS, pairs[rank // 2]) for rank in range(4)}
    query = job(ranks | {3: ranks[3][1:6]}, world=4, clocks={2: 9e6, 3: 9e6 + 400})
    found = query(INSTANCES)
    assert [members for _, members, _, _ in found] == [[0, 1]] * 8 + [[2], *[[2, 3]] * 5, [2], [2]]


def test_a_send_is_matched_with_its_receive(job: Any) -> None:
    sent = [("send", s, e, BOTH | {"Dst Rank": 1}) for s, e in zip(FIRST, ENDS, strict=True)]
    received = [("recv", s, e, BOTH | {"Src Rank": 0}) for s, e in zip(SECOND, ENDS, strict=True)]
    query = job({0: sent, 1: received})
    sql = "SELECT instance, list(kind ORDER BY device_id) FROM collectives GROUP BY ALL ORDER BY ALL"
    assert query(sql) == [(k, ["send", "recv"]) for k in range(8)]
    assert query("SELECT DISTINCT source_device_id, target_device_id, bytes FROM traffic") == [(0, 1, 4000)]


def test_a_send_to_nobody_in_particular_is_no_traffic(job: Any) -> None:
    every = group(0, 1, 2)
    query = job({rank: calls(FIRST, ENDS, every, "send") for rank in range(3)}, world=3)
    assert query("SELECT DISTINCT kind, message_bytes, wire_bytes FROM collectives") == [("send", 4000, 4000)]
    assert query("SELECT count(*) FROM traffic") == [(0,)]


def test_a_group_of_as_many_ranks_as_the_job_has_is_all_of_them(job: Any) -> None:
    said = {"Group size": 2, "dtype": "Float", "In msg nelems": 1000}
    query = job({0: calls(FIRST, ENDS, said), 1: calls(SECOND, ENDS, said)})
    assert query(INSTANCES) == [(k, [0, 1], False, "all-reduce") for k in range(8)]
    flags = {flag for (flag,) in query("SELECT flag FROM quality_flags")}
    assert not flags & {"inferred_order", "unverified_groups"}


class TestUnnamedGroups:
    """Traces before PyTorch 2.2 do not say among whom a collective runs."""

    def test_all_ranks_if_they_overlap_in_each_execution(self, job: Any) -> None:
        query = job({0: calls(FIRST, ENDS, {}, "all_reduce"), 1: calls(SECOND, ENDS, {}, "all_reduce")})
        assert query(INSTANCES) == [(k, [0, 1], False, "all-reduce") for k in range(8)]
        assert query("SELECT DISTINCT group_size, message_bytes FROM collectives") == [(2, None)]
        assert "inferred_order" in {flag for (flag,) in query("SELECT flag FROM quality_flags")}

    def test_nobody_if_they_do_not(self, job: Any) -> None:
        """Each rank communicates with others that are in no file, at times of its own."""
        alone = [end + 400 + 13 * k * k for k, end in enumerate(ENDS)]
        other = calls([end - 40 for end in alone], alone, {}, "all_reduce")
        query = job({0: calls(FIRST, ENDS, {}, "all_reduce"), 1: other})
        assert query("SELECT count(DISTINCT instance), count(group_size) FROM collectives") == [(16, 0)]

    def test_not_in_a_job_of_more_ranks_than_files(self, job: Any) -> None:
        query = job({0: calls(FIRST, ENDS, {}, "all_reduce"), 1: calls(SECOND, ENDS, {}, "all_reduce")}, world=4)
        assert query("SELECT count(DISTINCT instance), count(group_size) FROM collectives") == [(16, 0)]
