"""Files of the ranks of a job, by their names and by what they say of themselves."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.readers.kineto.ranks import file_rank, rank_in_name


def trace(path: Path, rank: int | None = None, world: int = 4, *, is_last: bool = False, padding: int = 0) -> Path:
    """A Kineto trace of one operator; `is_last` puts what it says of the job behind the events."""
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2}
    said: dict[str, Any] = (
        {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}}
    )
    events = {"traceEvents": [event] * (1 + padding)}
    content = json.dumps({"schemaVersion": 1} | (events | said if is_last else said | events)).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3_trace.json", 3),
        ("kineto_trace_12.json", 12),
        ("worker7_step_12.1694128201553.pt.trace.json.gz", 7),
        ("rank-0.1694128201553.pt.trace.json", 0),
        ("run_a_rank_15.1694128201553123456.pt.trace.json", 15),
        ("1694128201-TP-2.trace.json.gz", 2),
        ("1694128201-TP-2-DP-0-PP-0-EP-2.trace.json.gz", 2),
        ("1694128201-TP-2-DP-1.trace.json.gz", None),  # which of them, depends on the sizes of the axes
        ("dp0_pp0_tp1_dcp0_ep0_rank1.1694128201.pt.trace.json.gz", 1),
        ("host-a_4711.1694128201553.pt.trace.json", None),
        ("franking3.json", None),
        ("homeworker3.json", None),
    ],
)
def test_the_rank_in_a_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_a_packed_file_is_of_the_session_of_the_others(tmp_path: Path) -> None:
    for name in ("rank0_trace.json", "rank1_trace.json.gz"):
        trace(tmp_path / name)
    [found] = find_captures(tmp_path)
    assert len(found.files) == 2


def test_what_a_file_says_counts_more_than_its_name(tmp_path: Path) -> None:
    found = file_rank(trace(tmp_path / "rank0_trace.json", rank=2, world=8))
    assert found is not None and (found.rank, found.world_size) == (2, 8)


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_rank_behind_the_events(tmp_path: Path, suffix: str) -> None:
    found = file_rank(trace(tmp_path / f"host-a_4711.pt.trace{suffix}", rank=5, is_last=True, padding=30_000))
    assert found is not None and found.rank == 5


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b'{"traceEvents": [{"ph": "X", "name": "fusion", "ts": 1}]}', b"\x1f\x8bno gzip", b"\0"],
)
def test_other_files_have_no_rank(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rank0.trace.json"
    path.write_bytes(content)
    assert file_rank(path) is None


class TestCaptures:
    def found(self, folder: Path) -> dict[str, list[str]]:
        return {c.name: [f.name for f in c.files] for c in find_captures(folder)}

    def test_the_ranks_of_a_job_are_one_capture_in_their_order(self, tmp_path: Path) -> None:
        folder = tmp_path / "job"
        folder.mkdir()
        names = [f"worker{r}_step_12.16941282015{r}.pt.trace.json" for r in (10, 2, 0)]
        for name in names:
            trace(folder / name)
        assert self.found(folder) == {"job": names[::-1]}

    def test_each_cycle_of_several_is_a_capture(self, tmp_path: Path) -> None:
        for rank in range(2):
            for cycle in (1694128201000, 1694128259000):
                trace(tmp_path / f"worker{rank}.{cycle + rank}.pt.trace.json")
        assert list(self.found(tmp_path).values()) == [
            ["worker0.1694128201000.pt.trace.json", "worker1.1694128201001.pt.trace.json"],
            ["worker0.1694128259000.pt.trace.json", "worker1.1694128259001.pt.trace.json"],
        ]

    def test_steps_in_the_names_tell_recordings_apart(self, tmp_path: Path) -> None:
        for rank in range(2):
            for step in (12, 22):
                trace(tmp_path / f"worker{rank}_step_{step}.169412820155{rank}.pt.trace.json")
        assert [[n[:15] for n in names] for names in self.found(tmp_path).values()] == [
            ["worker0_step_12", "worker1_step_12"],
            ["worker0_step_22", "worker1_step_22"],
        ]

    def test_names_of_processes_tell_nothing_and_the_files_do(self, tmp_path: Path) -> None:
        for rank, process in enumerate((912, 911, 913)):
            trace(tmp_path / f"host-a_{process}.1694128201{rank}00.pt.trace.json", rank=rank, world=3)
        [names] = self.found(tmp_path).values()
        assert [n[7:10] for n in names] == ["912", "911", "913"]

    def test_jobs_of_other_sizes_and_copies_of_a_rank_stay_apart(self, tmp_path: Path) -> None:
        for name, rank, world in (("a_1", 0, 2), ("a_2", 1, 2), ("b_1", 0, 4), ("b_2", 0, 4)):
            trace(tmp_path / f"{name}.pt.trace.json", rank=rank, world=world)
        assert sorted(len(names) for names in self.found(tmp_path).values()) == [1, 1, 2]

    def test_other_chrome_traces_of_workers_stay_apart(self, tmp_path: Path) -> None:
        for rank in range(2):
            event = {"ph": "X", "name": "fusion.1", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
            (tmp_path / f"worker{rank}.trace.json").write_text(json.dumps({"traceEvents": [event]}))
        assert len(self.found(tmp_path)) == 2
