"""Disks that are full or cannot be written: one clear error, nothing half visible, what was there still answers."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sealed_manifest import change_manifest
from tiny_capture import write_capture_directory
from xplane_builder import Space

from tracewarehouse.cli import run
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.fsck import fsck
from tracewarehouse.ingest.lake.garbage import collect_garbage, leftovers
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.warehouse import open_warehouse

Tw = Callable[..., tuple[int, str, str]]


@contextmanager
def mounted(*arguments: str | Path) -> Iterator[None]:
    """Mount something while the test runs; skip where that is not allowed."""
    target = str(arguments[-1])
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", target], capture_output=True, check=False)  # a remount is none of its own


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_capture_directory(tmp_path_factory.mktemp("capture") / "tiny")


@pytest.fixture(scope="module")
def made(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse with a run and its database."""
    folder = tmp_path_factory.mktemp("made") / "w"
    with open_warehouse(folder, create=True) as warehouse:
        warehouse.ingest(tiny)
        warehouse.build()
    return folder


@pytest.fixture
def tw(capfd: pytest.CaptureFixture[str]) -> Tw:
    """Exit code, output and errors of `tw`."""

    def command(*arguments: str | Path) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run([str(a) for a in arguments])
        return code, *capfd.readouterr()

    return command


@pytest.fixture
def small_disk(tmp_path: Path, made: Path) -> Iterator[Path]:
    """The warehouse on a disk of its own, of 16 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted("-t", "tmpfs", "-o", "size=16m", "none", disk):
        yield Path(shutil.copytree(made, disk / "w"))


def fill(disk: Path, free: int) -> Path:
    """Leave so many bytes free."""
    ballast = disk / "ballast"
    ballast.unlink(missing_ok=True)
    status = os.statvfs(disk)
    size = max(0, status.f_bavail * status.f_frsize - free)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(size, 1))
    return ballast


def is_one_error(err: str, *words: str) -> bool:
    lines = err.splitlines()
    return len(lines) == 1 and lines[0].startswith("error: ") and all(w in lines[0] for w in words)


def large_capture(folder: Path, events: int = 20_000) -> Path:
    space = Space()
    thread = space.host().line("python")
    dice = random.Random(1)
    for i in range(events):
        thread.event(f"call {i % 97}", i * 1000, 500 + i * i % 499, detail=dice.getrandbits(40))
    return space.write(folder / "large.xplane.pb")


class TestFullDisk:
    def test_ingest_with_ever_less_space(self, small_disk: Path, tmp_path: Path) -> None:
        """It succeeds or fails as a whole, wherever the disk runs out."""
        capture = large_capture(tmp_path)
        before = Lake(small_disk).runs()
        outcomes = []
        for free in [*range(0, 240_000, 16_384), 3_000_000]:
            ballast = fill(small_disk.parent, free)
            try:
                ingest_one(capture, small_disk)
                outcomes.append(True)
            except WarehouseError as error:
                outcomes.append(False)
                assert "space" in str(error), error
                assert "\n" not in str(error)
                assert Lake(small_disk).runs() == before
            assert leftovers(Lake(small_disk), 0) == []
            ballast.unlink()
            if outcomes[-1]:
                lake = Lake(small_disk)
                lake.remove(next(r.run_id for r in lake.runs() if r not in before))
                collect_garbage(lake, 0)
        assert outcomes.count(False) > 5
        assert outcomes[-1]
        assert fsck(small_disk) == []

    def test_every_command_says_so_and_the_old_answers_stay(self, small_disk: Path, tmp_path: Path, tw: Tw) -> None:
        capture = large_capture(tmp_path)
        database = (small_disk / "warehouse.duckdb").read_bytes()
        rows = tw("-w", small_disk, "query", "FROM metric_values ORDER BY ALL", "--format", "csv")
        change_manifest(small_disk, metrics_fingerprint="older")
        fill(small_disk.parent, 0)
        for command in (["ingest", capture], ["build"], ["metrics", "refresh"]):
            code, out, err = tw("-w", small_disk, *command)
            assert (code, out) == (1, ""), command
            assert is_one_error(err, "the disk is full" if command == ["build"] else "space"), err
        assert (small_disk / "warehouse.duckdb").read_bytes() == database
        assert tw("-w", small_disk, "query", "FROM metric_values ORDER BY ALL", "--format", "csv") == rows
        assert leftovers(Lake(small_disk), 0) == []

    def test_gc_gives_back_what_a_killed_ingest_took(self, small_disk: Path, tmp_path: Path, tw: Tw) -> None:
        staging = small_disk / "lake" / ".staging-1-0123abcd" / "r1" / "1"
        staging.mkdir(parents=True)
        (staging / "ops.parquet").write_bytes(b"x" * 6_000_000)
        fill(small_disk.parent, 0)
        assert tw("-w", small_disk, "gc")[0] == 0
        code, _, err = tw("-w", small_disk, "ingest", large_capture(tmp_path))
        assert code == 0, err
        assert len(Lake(small_disk).runs()) == 2

    def test_files_that_may_not_grow(self, made: Path, tmp_path: Path) -> None:
        """The same without a disk of its own: the system refuses every write beyond a size."""
        folder = shutil.copytree(made, tmp_path / "w")
        command = [sys.executable, "-m", "tracewarehouse", "-w", str(folder), "ingest", str(large_capture(tmp_path))]

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

        done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert is_one_error(done.stderr, "File too large"), done.stderr
        assert fsck(folder) == []
        assert leftovers(Lake(folder), 0) == []


class TestReadOnly:
    @pytest.fixture
    def read_only(self, made: Path, tmp_path: Path) -> Iterator[Path]:
        folder = Path(shutil.copytree(made, tmp_path / "w"))
        change_manifest(folder, metrics_fingerprint="older")
        left = folder / "lake" / ".staging-1-0123abcd"
        left.mkdir()
        with mounted("--bind", folder, folder), mounted("-o", "remount,ro,bind", folder):
            with pytest.raises(OSError, match="Read-only"):
                (folder / "x").touch()
            yield folder

    def test_readers_work(self, read_only: Path, tmp_path: Path, tiny: Path, tw: Tw) -> None:
        for command in (
            ["runs"],
            ["query", "FROM ops LIMIT 1"],
            ["metrics", "list"],
            ["metrics", "values"],
            ["audit"],
            ["report", "-o", tmp_path / "r.html"],
            ["gc", "--dry-run"],
            ["fsck", "--against", tiny],
            ["ingest", tiny],  # it is there already
        ):
            code, _, err = tw("-w", read_only, *command)
            assert code == 0, (command, err)
        code, out, _ = tw("-w", read_only, "fsck", "--format", "csv")
        assert code == 1
        assert ".staging-1-0123abcd" in out

    def test_writers_say_so(self, read_only: Path, tmp_path: Path, tw: Tw) -> None:
        other = write_capture_directory(tmp_path / "other", "other", period=170)
        for command in (["ingest", other], ["build"], ["metrics", "refresh"], ["gc"], ["remove", "tiny-tp2"]):
            code, out, err = tw("-w", read_only, *command)
            assert (code, out) == (1, ""), command
            assert is_one_error(err, "Read-only file system"), (command, err)
