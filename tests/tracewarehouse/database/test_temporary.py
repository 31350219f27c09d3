"""Temporary folders: in use while their process lives, garbage when it was killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tracewarehouse.cli import run
from tracewarehouse.database import temporary
from tracewarehouse.database.temporary import TemporaryFolder, abandoned, remove_abandoned

HOLDS_ONE = """
import sys, tempfile
from tracewarehouse.database.temporary import TemporaryFolder
tempfile.tempdir = sys.argv[1]
folder = TemporaryFolder()
(folder.path / "spilled").write_bytes(bytes(1000))
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go; others on this machine have theirs elsewhere."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_folder_goes_with_its_use(place: Path) -> None:
    with TemporaryFolder() as folder:
        (folder.path / "rows").write_text("spilled")
        assert folder.path.parent == place
        assert list(abandoned()) == []
    assert list(place.iterdir()) == []


def test_a_folder_goes_with_the_last_that_knows_it(place: Path) -> None:
    folder = TemporaryFolder()
    assert len(list(place.iterdir())) == 1
    del folder
    assert list(place.iterdir()) == []


def test_only_folders_of_killed_processes_are_garbage(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "tracewarehouse-notes").mkdir()
    arguments = [sys.executable, "-c", HOLDS_ONE, str(place)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        assert list(abandoned()) == []
        process.kill()
        process.wait()

    with TemporaryFolder() as own:
        [found] = abandoned()
        assert found.path == left
        size = 1000 + (left / ".lock").stat().st_size
        assert found.bytes == size
        warehouse = str(tmp_path / "wh")
        (tmp_path / "wh").mkdir()
        assert run(["-w", warehouse, "gc", "--dry-run"]) == 0
        assert run(["-w", warehouse, "gc"]) == 0
        said = capsys.readouterr()
        assert said.out == f"{left}\n{left}\n"
        assert said.err == (f"1 leftovers would be removed, {size:,} bytes\n1 leftovers removed, {size:,} bytes\n")
        assert {p.name for p in place.iterdir()} == {"tracewarehouse-notes", own.path.name}


def test_what_is_not_proven_to_be_ours_stays(place: Path, tmp_path: Path) -> None:
    names = ("empty", "unsigned", "copied", "linked", "piped")
    empty, unsigned, copied, linked, piped = (place / f"tracewarehouse-{name}" for name in names)
    own = TemporaryFolder()
    signed = (own.path / ".lock").read_text()
    for folder in (empty, unsigned, copied, piped):
        folder.mkdir()
    (unsigned / ".lock").touch()  # another program's lock
    (unsigned / "notes").write_text("kept")
    (copied / ".lock").write_text(signed)
    os.mkfifo(piped / ".lock")
    own.close()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".lock").write_text(signed.replace(own.path.name, linked.name))
    linked.symlink_to(elsewhere)
    for folder in (empty, unsigned, copied):
        os.utime(folder, (0, 0))
    assert remove_abandoned() == []
    assert {*place.iterdir()} == {empty, unsigned, copied, linked, piped}
    assert (elsewhere / ".lock").exists()


def test_a_folder_taken_before_it_is_locked_is_made_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = temporary.fcntl.flock

    def lock_late(file: int, operation: int) -> None:
        monkeypatch.setattr(temporary.fcntl, "flock", lock)
        [taken] = place.iterdir()
        shutil.rmtree(taken)
        lock(file, operation)

    monkeypatch.setattr(temporary.fcntl, "flock", lock_late)
    with TemporaryFolder() as folder:
        assert [*place.iterdir()] == [folder.path]
