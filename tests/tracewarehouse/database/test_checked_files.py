"""A file of a run that is damaged is told, whatever was damaged, and no answer is made of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import tracewarehouse as tw
from tracewarehouse.database import checked_files
from tracewarehouse.evaluation.evaluator import Evaluator, refresh
from tracewarehouse.exports.rows import export_duckdb

SUM = "SELECT count(*), sum(duration_ps), bit_xor(hash(start_ps, self_ps)) FROM ops"
_TICK = 0.03


@pytest.fixture
def ops(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACEWAREHOUSE_CACHE", str(tmp_path / "cache"))
    return next(folder.glob("lake/*/*/ops.parquet"))


@pytest.fixture
def digested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are digested."""
    names: list[str] = []

    def counted(path: str) -> str | None:
        names.append(Path(path).name)
        return digest(path)

    digest = checked_files._digest
    monkeypatch.setattr(checked_files, "_digest", counted)
    return names


def ask(folder: Path, sql: str = SUM) -> list[tuple[object, ...]]:
    with tw.open(folder) as warehouse:
        return warehouse.query(sql).rows()


def age(file: Path) -> None:
    """Wait until a file has not changed just now: the inode's time cannot be set."""
    while checked_files.time.time_ns() - file.stat().st_ctime_ns < _TICK * 1e9:
        checked_files.time.sleep(_TICK / 3)


def test_any_flipped_bit_is_told(folder: Path, ops: Path) -> None:
    content, random = ops.read_bytes(), Random(1)
    want = ask(folder)
    with tw.open(folder) as opened:
        for _ in range(8):
            damaged = bytearray(content)
            damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
            ops.write_bytes(damaged)
            for query in (lambda: ask(folder), lambda: opened.query(SUM)):
                with pytest.raises(tw.WarehouseError, match=r"\(tiny-tp2\) is damaged: the bytes of .*ops.parquet are"):
                    query()
        ops.write_bytes(content)
        assert opened.query(SUM).rows() == ask(folder) == want


DOES = {
    "model": lambda w, to: w.query("FROM models.leaf_ops"),
    "run named": lambda w, to: w.query("SELECT count(*) FROM ops WHERE run_id = $id", id=w.run("").run_id),
    "pivot": lambda w, to: w.query("PIVOT ops ON kind USING count(*)"),
    "unrestricted": lambda w, to: w.query("CREATE TABLE copy AS FROM ops", read_only=False),
    "audit": lambda w, to: w.audit(),
    "refresh": lambda w, to: refresh(w.lake, w.run(""), Evaluator(lambda: w.definitions)),
    "export": lambda w, to: export_duckdb(w, [w.run("")], to / "all.duckdb"),
}


@pytest.mark.parametrize("does", DOES.values(), ids=DOES)
def test_everything_that_reads_rows_checks_their_files(
    does: Callable[[tw.Warehouse, Path], object], folder: Path, ops: Path, tmp_path: Path
) -> None:
    content = bytearray(ops.read_bytes())
    content[len(content) // 3] ^= 4
    ops.write_bytes(content)
    with tw.open(folder) as warehouse, pytest.raises(tw.WarehouseError, match=r"ops.parquet are not those"):
        does(warehouse, tmp_path)


def test_what_a_question_does_not_read_is_not_checked(folder: Path, ops: Path, digested: list[str]) -> None:
    assert ask(folder, "SELECT count(*) FROM runs") == [(1,)]
    assert digested == ["runs.parquet"]
    assert ask(folder, "SELECT count(*) > 9 FROM duckdb_columns()") == [(True,)]
    assert "ops.parquet" not in digested


def test_a_file_is_digested_once_for_each_change(folder: Path, ops: Path, digested: list[str]) -> None:
    age(ops)
    for _ in range(3):
        ask(folder)
    assert digested == ["ops.parquet"]
    os.utime(ops)  # as a copy of the warehouse has other times and inodes
    age(ops)
    for _ in range(3):
        ask(folder)
    assert digested == ["ops.parquet"] * 2


def test_a_file_that_changed_just_now_is_not_remembered(folder: Path, ops: Path, digested: list[str]) -> None:
    now = max(p.stat().st_ctime_ns for p in folder.rglob("*.parquet"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checked_files.time, "time_ns", lambda: now + 1)
        ask(folder)
    ask(folder)
    assert digested == ["ops.parquet"] * 2


@pytest.mark.parametrize("entry", ["pipe", "folder", "link", "half a record", "large", "file in place of the folder"])
def test_whatever_stands_in_the_cache_does_no_harm(
    entry: str, folder: Path, ops: Path, tmp_path: Path, digested: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    age(ops)
    want = ask(folder)
    [kept] = (tmp_path / "cache" / "checked").rglob("r*")
    kept.unlink()
    if entry == "pipe":
        os.mkfifo(kept)
    elif entry == "folder":
        kept.mkdir()
    elif entry == "link":
        kept.symlink_to("/dev/zero")
    elif entry == "half a record":
        kept.write_bytes(b"x" * 13)
    elif entry == "large":
        monkeypatch.setattr(checked_files, "_MOST_BYTES", 1000)
        kept.write_bytes(b"x" * 50 * checked_files._RECORD.size)
    else:
        kept.parent.rmdir()
        kept.parent.write_bytes(b"")
    for _ in range(2):
        assert ask(folder) == want
    is_mended = entry in ("half a record", "large")
    assert len(digested) == (2 if is_mended else 3)
