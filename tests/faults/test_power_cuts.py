"""The power is cut: runs are as they were or as they became, and what a command said that it did is done.

A strict model of a disk stands in for one. It keeps of a file what it held at its last sync, and of a folder the names
that it had then. Everything later is lost, or, where the model is made to be capricious, lost or kept by chance: names
before contents, halves of files, one rename of two.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from msgspec.structs import replace
from xplane_builder import Space

from tracewarehouse.cli import run
from tracewarehouse.evaluation.evaluator import Evaluator
from tracewarehouse.ingest.lake import durable_files
from tracewarehouse.ingest.lake.lake import DATABASE, Lake
from tracewarehouse.ingest.lake.manifest import manifest_text
from tracewarehouse.warehouse import Warehouse

_NUMBERS = count()
Runs = set[tuple[str, str, str]]
"""Id, version and fingerprint of values of each run."""


class Disk:
    """What of a folder would be there after a power cut; it keeps an image of each moment before a sync.

    Args:
        root: the folder; what it holds now is there.
        seed: makes these images, in which what is not synced is there by chance.

    Attributes:
        deaf_to: the name of a folder whose syncs do nothing, as if its writer had been killed before them.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self._random, self._lock = root, random.Random(seed), Lock()
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self.images: list[Path] = []
        self.deaf_to = ""
        self._held = ExitStack()
        for path in (root, *root.rglob("*")):
            self._keep(path)

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def sync(self, descriptor: int) -> None:
        """Take the place of os.fsync; the power may be cut just before."""
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.name == self.deaf_to or not path.is_relative_to(self.root):
            return
        with self._lock:
            self.images.append(self.image(by_chance=True))
            self._keep(path)

    def _keep(self, path: Path) -> None:
        if path.is_dir():
            self._names[path.stat().st_ino] = {e.name: e.inode() for e in os.scandir(path)}
        else:
            file = self._held.enter_context(path.open("rb"))  # else its number could become another file's
            self._contents[os.fstat(file.fileno()).st_ino] = file.read()

    def image(self, *, by_chance: bool = False) -> Path:
        """A copy of the folder as it would be found."""
        image = self.root.with_name(f"image-{next(_NUMBERS)}")
        now = {p.stat().st_ino: p for p in (self.root, *self.root.rglob("*")) if p.exists()}
        self._restore(self.root.stat().st_ino, image, now if by_chance else {})
        return image

    def _restore(self, inode: int, to: Path, now: dict[int, Path]) -> None:
        path = now.get(inode)
        if inode in self._contents or (inode not in self._names and path and path.is_file()):
            content = self._contents.get(inode, b"")
            current = path.read_bytes() if path and path.is_file() else content
            if current != content and self._random.random() < 0.5:
                content = current[: self._random.choice((None, 100))]
            to.write_bytes(content)
            return
        to.mkdir()
        synced = self._names.get(inode, {})
        present = {e.name: e.inode() for e in os.scandir(path)} if path and path.is_dir() else synced
        for name in sorted(synced.keys() | present.keys()):
            chosen = self._random.choice((synced, present))
            if name in chosen and not name.endswith(".lock"):
                self._restore(chosen[name], to / name, now)


def ids(runs: Runs) -> set[str]:
    return {run_id for run_id, _, _ in runs}


def runs_of(warehouse: Path) -> Runs:
    """The runs that a reader finds, of which every byte must be there."""
    if not warehouse.is_dir():
        return set()
    found = Lake(warehouse)
    readable, unread = found.listing()
    assert not unread, unread
    for each in readable:
        assert found.is_whole(each), f"{each.name} is named and not whole"
    return {(r.run_id, r.version, r.metrics_fingerprint or "") for r in readable}


def answers(warehouse: Path) -> list[tuple[Any, ...]]:
    with Warehouse(warehouse) as opened:
        return opened.query("SELECT run_id, count(*), sum(duration_ps) FROM ops GROUP BY ALL ORDER BY ALL").rows()


def beside(warehouse: Path) -> dict[str, bytes]:
    """The files beside the runs, such as warehouse.duckdb."""
    return {p.name: p.read_bytes() for p in warehouse.iterdir() if p.is_file()}


def capture(path: Path, events: int) -> Path:
    space = Space()
    line = space.host().line("python")
    for i in range(events):
        line.event("f", 10 * i + 1, 2)
    return space.write(path)


def outdate(warehouse: Path) -> None:
    """Let the values of the runs be those of other metrics."""
    found = Lake(warehouse)
    for path, run_version in zip(found.manifests(), found.runs(), strict=True):
        path.write_text(manifest_text(replace(run_version, metrics_fingerprint="older")))


VERBS: dict[str, tuple[list[str], Callable[[Path], object]]] = {
    "ingest into a new warehouse": (["ingest", "{a}"], lambda w: None),
    "ingest another": (["ingest", "{b}"], lambda w: None),
    "ingest again under another name": (["ingest", "{a}", "--name", "other"], lambda w: None),
    "metrics refresh": (["metrics", "refresh"], outdate),
    "build": (["build"], lambda w: (w / DATABASE).unlink(missing_ok=True)),
    "gc": (["gc", "--grace-hours", "0"], lambda w: None),
    "remove": (["remove", "b"], lambda w: None),
    "ingest what was removed": (["ingest", "{b}"], lambda w: None),
}
"""Commands that are given one after the other, each after something that is done before and is on disk."""


class Commands:
    """Gives commands, of which each succeeds, on a disk of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.warehouse = folder / "disk", Path("new") / "warehouse"
        self.root.mkdir()
        self._captures = {n: str(capture(folder / n / f"{n}.xplane.pb", 3 + i)) for i, n in enumerate("ab")}
        self._patch = monkeypatch
        values = {
            "metric": ["m"],
            "version": [1],
            "dimensions": ["{}"],
            "value": [1.0],
            "unit": ["ms"],
            "fingerprint": ["f"],
        }
        monkeypatch.setattr(Evaluator, "__call__", lambda *_: values)  # what they are matters nothing here

    def give(self, words: list[str], disk: Disk) -> Runs:
        """The runs after a command."""
        self._patch.setattr(durable_files.os, "fsync", disk.sync)
        assert run(["-w", str(self.root / self.warehouse), *(w.format(**self._captures) for w in words)]) == 0
        return self.runs(self.root)

    def runs(self, image: Path) -> Runs:
        return runs_of(image / self.warehouse)

    def is_on_disk(self, disk: Disk, after: Runs) -> bool:
        """Whether these runs, what they answer, and the files beside them would be there if the power were cut now."""
        left, now = disk.image() / self.warehouse, self.root / self.warehouse
        return self.runs(left.parents[1]) == after and answers(left) == answers(now) and beside(left) == beside(now)


def test_runs_are_as_they_were_or_as_they_became(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands(tmp_path, monkeypatch)
    for seed, (name, (words, prepare)) in enumerate(VERBS.items()):
        prepare(commands.root / commands.warehouse)
        before = commands.runs(commands.root)
        with Disk(commands.root, seed) as disk:
            after = commands.give(words, disk)
            assert commands.is_on_disk(disk, after), f"{name}: said, and not on disk"
        for image in disk.images:
            found = commands.runs(image)
            assert before & after <= found <= before | after, name
            assert ids(found) >= ids(before) & ids(after), name
        assert disk.images or name == "gc"


def test_what_a_killed_writer_left_reaches_the_disk_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folders, and the manifests that it placed and did not sync."""
    commands = Commands(tmp_path, monkeypatch)
    with Disk(commands.root, 1) as disk:
        (commands.root / commands.warehouse / "manifests").mkdir(parents=True)
        assert commands.is_on_disk(disk, commands.give(["ingest", "{a}"], disk))
    for words, prepare in ((["ingest", "{b}"], None), (["metrics", "refresh"], outdate)):
        if prepare:
            prepare(commands.root / commands.warehouse)
        with Disk(commands.root, 1) as disk:
            disk.deaf_to = "manifests"
            after = commands.give(words, disk)
            assert not commands.is_on_disk(disk, after)
            disk.deaf_to = ""
            commands.give(words, disk)
            assert commands.is_on_disk(disk, after), words
