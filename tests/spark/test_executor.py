"""What a task of Spark is given, and what becomes of one that fails; without Spark itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_capture import write_capture_directory

from tracewarehouse.executors.executor import IngestTask, ingest_task
from tracewarehouse.ingest import pipeline
from tracewarehouse.ingest.capture.sources import Capture, find_captures
from tracewarehouse.ingest.lake.garbage import remove_abandoned_staging
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.spark.executor import _lost, _with_whole_paths


def test_a_task_names_whole_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_capture_directory(tmp_path / "captures" / "a", "a")
    monkeypatch.chdir(tmp_path)
    [capture] = find_captures(Path("captures"))
    task = _with_whole_paths(IngestTask(0, capture, tmp_path / "w", Path("sql")))
    named = [*task.capture.files, task.capture.manifest, task.sql]
    assert all(p is not None and p.is_relative_to(tmp_path) for p in named)


def test_an_unexpected_exception_is_raised_to_be_repeated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("of a new kind")

    monkeypatch.setattr(pipeline, "ingest_capture", fail)
    task = IngestTask(0, Capture("a", (tmp_path / "a.xplane.pb",)), tmp_path / "w")
    assert "a fault of tracewarehouse" in str(ingest_task(task).error)
    with pytest.raises(ValueError, match="of a new kind"):
        ingest_task(task, is_repeated=True)


def test_an_unreadable_capture_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "a.xplane.pb").write_bytes(b"no capture")
    task = IngestTask(3, Capture("a", (tmp_path / "a.xplane.pb",)), tmp_path / "w")
    outcome = ingest_task(task, is_repeated=True)
    assert outcome.number == 3
    assert "a.xplane.pb" in str(outcome.error)


def test_the_reason_of_a_lost_task_is_one_line(tmp_path: Path) -> None:
    task = IngestTask(0, Capture("a", (tmp_path / "a.xplane.pb",)), tmp_path / "w")
    said = "Job aborted.\nTraceback (most recent call last):\n  File x\nValueError: of a new kind\n\tat org.apache"
    assert str(_lost(task, RuntimeError(said))).endswith("Spark gave up on this capture: ValueError: of a new kind")
    missing = "ModuleNotFoundError: No module named 'tracewarehouse'"
    assert str(_lost(task, RuntimeError(missing))).endswith("tracewarehouse is not installed on Spark's workers")


def test_only_staging_of_ended_writers_is_removed(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    abandoned = tmp_path / "lake" / ".staging-1-0123abcd"
    abandoned.mkdir(parents=True)
    with lake.stage("r0123456789ab", "v0123456789ab") as staging:
        remove_abandoned_staging(lake)
        assert staging.exists()
    assert not abandoned.exists()
