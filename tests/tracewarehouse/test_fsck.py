"""`tw fsck` names what is wrong with the run, the file and the command, and that command mends it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from sealed_manifest import change_manifest
from tiny_capture import overlapping
from xplane_builder import Space, Unsigned

import tracewarehouse as tw
from tracewarehouse.cli import run
from tracewarehouse.ingest.capture.run_options import RunOptions
from tracewarehouse.ingest.capture.sources import find_captures

Fsck = Callable[..., tuple[int, list[dict[str, str]]]]


@pytest.fixture
def fsck(folder: Path, capfd: pytest.CaptureFixture[str]) -> Fsck:
    """Exit code and rows of `tw fsck`."""

    def command(*arguments: str | Path) -> tuple[int, list[dict[str, str]]]:
        capfd.readouterr()
        code = run(["-w", str(folder), "fsck", "--format", "csv", *map(str, arguments)])
        return code, list(csv.DictReader(io.StringIO(capfd.readouterr().out)))

    return command


def test_old_metric_values_and_an_old_database(folder: Path, capture: Path, fsck: Fsck) -> None:
    with tw.open(folder) as wh:
        wh.build()
        wh.ingest_capture(find_captures(capture)[0], RunOptions(name="renamed"))
    change_manifest(folder, metrics_fingerprint="older")
    code, [values, database] = fsck()
    assert code == 1
    assert (values["run"], values["action"]) == ("renamed", "`tw metrics refresh`")
    assert (database["file"], database["action"]) == ("warehouse.duckdb", "`tw build`")
    for command in (["metrics", "refresh"], ["build"]):
        assert run(["-w", str(folder), *command]) == 0
    assert fsck() == (0, [])
    (folder / "warehouse.duckdb").write_bytes(b"no database")
    code, [database] = fsck()
    assert (code, database["action"]) == (1, "`tw build`")


def test_leftovers_are_a_note(folder: Path, fsck: Fsck) -> None:
    (folder / "lake" / ".staging-1-0123abcd").mkdir()
    code, [found] = fsck()
    assert (code, found["severity"], found["action"]) == (0, "note", "`tw gc`")
    assert found["file"] == "lake/.staging-1-0123abcd"


def test_audits(folder: Path, tmp_path: Path, fsck: Fsck) -> None:
    with tw.open(folder) as wh:
        [result] = wh.ingest(overlapping(tmp_path))
    code, [found] = fsck()
    assert (code, found["run_id"]) == (1, result.run_id)
    assert found["problem"].startswith("audit op_line_overlap: ")
    assert found["action"] == f"`tw audit {result.run_id}` lists the rows"


def test_runs_are_audited_together_as_each_alone(
    folder: Path, tmp_path: Path, fsck: Fsck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run is well, and two violate an audit."""
    space = Space()
    tpu = space.tpu(0)
    op = tpu.instruction("%fusion.1 = bf16[8]{0} fusion(bf16[8]{0} %a), kind=kLoop", program_id=Unsigned(1))
    tpu.modules.event("jit_decode(1)", 0, 30_000_000, run_id=Unsigned(1))
    for start in (0, 4_000_000, 8_000_000):
        tpu.ops.event(op, start, 6_000_000)
    with tw.open(folder) as wh:
        [one] = wh.ingest(overlapping(tmp_path))
        [other] = wh.ingest(space.write(tmp_path / "other.xplane.pb"))
    alone = fsck()
    assert {r["run_id"] for r in alone[1]} == {one.run_id, other.run_id}
    monkeypatch.setattr("tracewarehouse.evaluation.fsck._FEW", 0)
    assert fsck() == alone


def test_one_damaged_manifest_does_not_hide_the_others(folder: Path, tmp_path: Path, fsck: Fsck) -> None:
    with tw.open(folder) as wh:
        [result] = wh.ingest(overlapping(tmp_path))
    good = read_manifest_of(folder, result.run_id)
    [other] = [p for p in (folder / "manifests").glob("*.json") if p != good]
    other.write_text("{")
    code, found = fsck()
    assert code == 1
    assert [f["run_id"] for f in found] == [other.stem, result.run_id]


def read_manifest_of(folder: Path, run_id: str) -> Path:
    return folder / "manifests" / f"{run_id}.json"


class TestAgainst:
    def test_a_capture_without_a_run(self, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        capfd.readouterr()
        assert run(["-w", str(folder), "fsck", "--against", str(overlapping(tmp_path))]) == 1
        assert "run `tw ingest` on it first" in capfd.readouterr().err

    def test_captures_need_the_option(self, folder: Path, capture: Path) -> None:
        assert run(["-w", str(folder), "fsck", str(capture)]) == 2
