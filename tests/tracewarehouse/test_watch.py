"""Watching a folder: complete captures become runs, incomplete ones wait, and nothing is lost by a restart."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_capture import tiny_capture, write_capture_directory

import tracewarehouse as tw
from tracewarehouse.cli import run
from tracewarehouse.cli.watch import Failed, Ingested, Waiting, Watcher
from tracewarehouse.ingest.capture.run_options import RunOptions
from tracewarehouse.ingest.errors import CaptureError, WarehouseError
from tracewarehouse.warehouse import Warehouse

SETTLE = 0.2


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Warehouse]:
    """An empty warehouse."""
    with tw.open(tmp_path / "warehouse", create=True) as opened:
        yield opened


def look(watcher: Watcher) -> tuple[list[Ingested | Failed], tuple[str, ...]]:
    """What happened in one look, and what is pending."""
    *events, last = watcher.look()
    assert isinstance(last, Waiting)
    return [e for e in events if not isinstance(e, Waiting)], last.pending


def age(folder: Path, seconds: float = 3600) -> None:
    """Make a capture look as if it had been written long ago."""
    then = time.time() - seconds
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


class TestCompleteness:
    def test_a_folder_that_is_not_there_yet(self, warehouse: Warehouse, tmp_path: Path) -> None:
        watcher = Watcher(warehouse, str(tmp_path / "logs"), settle=SETTLE)
        assert look(watcher) == ([], ())
        age(write_capture_directory(tmp_path / "logs" / "one", "one"))
        [event], pending = look(watcher)
        assert isinstance(event, Ingested)
        assert (event.result.name, event.result.status, pending) == ("one", "ingested", ())
        assert look(watcher) == ([], ())

    def test_a_file_that_grows_is_waited_for(self, warehouse: Warehouse, tmp_path: Path) -> None:
        content = tiny_capture().to_bytes()
        target = tmp_path / "logs" / "host.xplane.pb"
        target.parent.mkdir()
        watcher = Watcher(warehouse, str(target.parent), settle=SETTLE)
        for end in range(len(content) // 4, len(content), len(content) // 4):
            target.write_bytes(content[:end])
            assert look(watcher) == ([], ("host",))
        target.write_bytes(content)
        assert look(watcher) == ([], ("host",))
        time.sleep(SETTLE)
        [event], _ = look(watcher)
        assert isinstance(event, Ingested)
        [alone] = tw.open(tmp_path / "other", create=True).ingest(target)
        assert event.result.run_id == alone.run_id

    def test_hosts_that_the_manifest_names_are_waited_for(self, warehouse: Warehouse, tmp_path: Path) -> None:
        folder = write_capture_directory(tmp_path / "logs" / "two", "two")
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**manifest, "hosts": ["vm", "vm2"]}))
        age(folder)
        patient = Watcher(warehouse, str(tmp_path / "logs"), settle=SETTLE, patience=7200)
        assert look(patient) == ([], ("two",))
        hasty = Watcher(warehouse, str(tmp_path / "logs"), settle=SETTLE, patience=1)
        [event], _ = look(hasty)
        assert isinstance(event, Ingested)

        [first] = folder.glob("plugins/profile/*/vm.xplane.pb")
        tiny_capture(170).write(first.with_name("vm2.xplane.pb"))
        time.sleep(SETTLE)
        assert look(hasty) == ([], ("two",))
        age(folder)
        look(hasty)
        time.sleep(SETTLE)
        [later], _ = look(hasty)
        assert isinstance(later, Ingested)
        assert later.replaces == event.result.run_id != later.result.run_id


class TestFailures:
    def test_a_bad_capture_does_not_stop_the_others_and_is_tried_again_when_it_changes(
        self, warehouse: Warehouse, tmp_path: Path
    ) -> None:
        bad, good = tmp_path / "logs" / "bad", tmp_path / "logs" / "good"
        write_capture_directory(good, "good")
        write_capture_directory(bad, "bad", period=170)
        [file] = bad.glob("plugins/profile/*/vm.xplane.pb")
        content = file.read_bytes()
        file.write_bytes(content[:-3])
        age(tmp_path / "logs")
        watcher = Watcher(warehouse, str(tmp_path / "logs"), settle=SETTLE)
        [first, second], _ = look(watcher)
        assert isinstance(first, Failed)
        assert isinstance(first.error, CaptureError)
        assert isinstance(second, Ingested)
        assert look(watcher) == ([], ())

        file.write_bytes(content)
        assert look(watcher) == ([], ("bad",))
        time.sleep(SETTLE)
        [event], _ = look(watcher)
        assert isinstance(event, Ingested)

    def test_a_warehouse_that_cannot_be_written_is_tried_again(
        self, warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        age(write_capture_directory(tmp_path / "logs" / "one", "one"))
        watcher = Watcher(warehouse, str(tmp_path / "logs"), settle=SETTLE)

        def full(*_: object, **__: object) -> None:
            raise WarehouseError("no space left")

        with monkeypatch.context() as patched:
            patched.setattr(warehouse, "ingest_capture", full)
            [event], _ = look(watcher)
            assert isinstance(event, Failed)
        time.sleep(SETTLE)
        [event], _ = look(watcher)
        assert isinstance(event, Ingested)

    def test_the_program_that_begins_a_step_is_named_for_all(self, warehouse: Warehouse, tmp_path: Path) -> None:
        age(write_capture_directory(tmp_path / "logs" / "one", "one"))
        watcher = Watcher(warehouse, str(tmp_path / "logs"), RunOptions(step_program="decode.12"), settle=SETTLE)
        [event], _ = look(watcher)
        assert isinstance(event, Ingested)
        assert warehouse.query("SELECT DISTINCT source FROM phases WHERE kind = 'step' AND device_id = 0").rows() == [
            ("told program",)
        ]
        age(write_capture_directory(tmp_path / "logs" / "two", "two", period=170))
        [event], _ = look(
            Watcher(warehouse, str(tmp_path / "logs" / "two"), RunOptions(step_program="x"), settle=SETTLE)
        )
        assert isinstance(event, Failed)
        assert "--step x: no execution of a program of that name" in str(event.error)

    def test_a_capture_that_goes_away(self, warehouse: Warehouse, tmp_path: Path) -> None:
        folder = write_capture_directory(tmp_path / "logs" / "one", "one")
        watcher = Watcher(warehouse, str(tmp_path / "logs"), settle=SETTLE)
        assert look(watcher) == ([], ("one",))
        shutil.rmtree(folder)
        assert look(watcher) == ([], ())


class TestCommand:
    def command(self, tmp_path: Path) -> list[str]:
        watch = ["-w", str(tmp_path / "warehouse"), "watch", str(tmp_path / "logs")]
        return [*watch, "--interval", "0.1", "--settle", "0.5"]

    def start(self, tmp_path: Path, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tracewarehouse", *self.command(tmp_path), *options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_it_follows_is_killed_and_follows_again(self, tmp_path: Path) -> None:
        write_capture_directory(tmp_path / "logs" / "one", "one")
        killed = self.start(tmp_path)
        assert killed.stdout is not None
        [run_id, name, status, _] = killed.stdout.readline().split("\t")
        assert (name, status) == ("one", "ingested")
        killed.send_signal(signal.SIGKILL)
        killed.communicate()

        write_capture_directory(tmp_path / "logs" / "two", "two", period=170)
        late = threading.Timer(3, write_capture_directory, (tmp_path / "logs" / "three", "three"), {"period": 190})
        late.start()
        out, err = self.start(tmp_path, "--until-idle", "15").communicate(timeout=300)
        late.join()
        lines = [line.split("\t")[:3] for line in out.splitlines()]
        assert [run_id, "one", "unchanged"] in lines
        assert sorted(line[1:] for line in lines if line[2] == "ingested") == [
            ["three", "ingested"],
            ["two", "ingested"],
        ]
        assert err == ""

    def test_it_names_the_program_that_begins_a_step(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_capture_directory(tmp_path / "logs" / "one", "one")
        assert run([*self.command(tmp_path), "--step", "prefill.11", "--until-idle", "1"]) == 0
        assert capsys.readouterr().out.split("\t")[2] == "ingested"
        with tw.open(tmp_path / "warehouse") as warehouse:
            assert ("told program",) in warehouse.query("SELECT DISTINCT source FROM phases").rows()

    def test_a_wrong_mesh_is_wrong_usage(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run([*self.command(tmp_path), "--mesh", "xy=2"]) == 2
        assert "xy" in capsys.readouterr().err

    def test_remove_forgets_a_run(self, tmp_path: Path) -> None:
        with tw.open(tmp_path / "warehouse", create=True) as warehouse:
            [result] = warehouse.ingest(write_capture_directory(tmp_path / "one", "one"))
            assert [r.run_id for r in warehouse.remove(result.run_id)] == [result.run_id]
            assert warehouse.runs().rows() == []
            with pytest.raises(WarehouseError):
                warehouse.remove(result.run_id)
