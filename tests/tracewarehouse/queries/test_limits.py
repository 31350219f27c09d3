"""A query within limits: it ends in time, gives no more rows than allowed, and the next one is answered."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path
from threading import Event, Thread, Timer

import duckdb
import pytest
from faults.warehouse_state import ended, spawn
from tiny_capture import write_capture_directory

from tracewarehouse.ingest.errors import QueryError, StuckQueryError
from tracewarehouse.queries import memory_limit
from tracewarehouse.queries.read_only import Limits, run_query
from tracewarehouse.warehouse import Warehouse, open_warehouse

LONG = "SELECT count(*) FROM range(100000000000) AS a, range(1000) AS b WHERE hash(a.range + b.range) = 3"


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    folder = tmp_path_factory.mktemp("limits")
    opened = open_warehouse(folder / "warehouse", create=True)
    opened.ingest(write_capture_directory(folder / "tiny"))
    return opened


def test_a_long_query_is_interrupted_and_the_next_one_is_answered(warehouse: Warehouse) -> None:
    with warehouse.limited(Limits(seconds=0.3)):
        with pytest.raises(QueryError, match=r"longer than its time limit of 0\.3 s") as cut:
            warehouse.query(LONG)
        assert not isinstance(cut.value, StuckQueryError)
        assert warehouse.query("SELECT count(*) FROM runs").scalar() == 1


def test_a_query_of_one_long_value_is_left_alone(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracewarehouse.queries.read_only.PATIENCE_SECONDS", 0.0)
    stuck = "SELECT levenshtein(repeat('a', 30000) || i, repeat('b', 30000)) FROM range(1) AS t(i)"
    with open_warehouse(warehouse.path) as own:  # closing it does not wait for the query
        own.query("SELECT 1")
        with own.limited(Limits(seconds=0.05)), pytest.raises(StuckQueryError):
            own.query(stuck)


def test_a_query_whose_result_nobody_wants_any_more_ends(warehouse: Warehouse) -> None:
    """Whether it runs or is about to begin; there is no limit of time."""
    unwanted: Future[None] = Future()
    leaving = Timer(0.1, unwanted.set_result, [None])
    leaving.start()
    with warehouse.limited(Limits(unwanted=unwanted)):
        for _ in range(2):
            with pytest.raises(QueryError, match="nobody waits for the query"):
                warehouse.query(LONG)
    assert warehouse.query("SELECT count(*) FROM runs").scalar() == 1


def test_rows_beyond_the_limit_are_left_out_and_said(warehouse: Warehouse) -> None:
    numbers = "SELECT range AS i FROM range({}) ORDER BY i DESC"
    with warehouse.limited(Limits(rows=3)):
        cut, whole = warehouse.query(numbers.format(4)), warehouse.query(numbers.format(3))
        assert (cut.rows(), cut.is_cut) == ([(3,), (2,), (1,)], True)
        assert (whole.rows(), whole.is_cut) == ([(2,), (1,), (0,)], False)
        assert warehouse.query("DESCRIBE SELECT 1 AS a, 2 AS b, 3 AS c, 4 AS d").is_cut
        assert len(warehouse.query("EXPLAIN SELECT 1")) == 1
        assert len(warehouse.query("SELECT 1; -- the last word")) == 1
        assert warehouse.query("SELECT 1 AS a, 2 AS a").columns == ["a", "a"]
    assert len(warehouse.query(numbers.format(4))) == 4


def test_limits_hold_for_a_summary(warehouse: Warehouse) -> None:
    with warehouse.limited(Limits(seconds=0)), pytest.raises(QueryError, match="time limit of 0 s"):
        warehouse.summary("tiny-tp2")


def test_a_part_of_a_result(warehouse: Warehouse) -> None:
    result = warehouse.query("SELECT range FROM range(10)")
    assert result.part(4, 2).rows() == [(4,), (5,)]
    assert result.part(9, 2).rows() == [(9,)]


def test_memory_is_shared_among_databases(monkeypatch: pytest.MonkeyPatch, warehouse: Warehouse) -> None:
    monkeypatch.setenv(memory_limit.VARIABLE, "6GiB")
    memory_limit.share_among(3)
    assert os.environ[memory_limit.VARIABLE] == "2.00 GiB"
    with open_warehouse(warehouse.path) as own:
        assert own.query("SELECT current_setting('memory_limit')").scalar() == "2.0 GiB"


def test_a_share_of_memory_is_a_share_of_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB has percentages since 2.0 only; without a limit it takes 80% itself."""
    units = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
    with duckdb.connect() as connection:
        number, unit = connection.execute("SELECT current_setting('memory_limit')").fetchall()[0][0].split()
        whole = float(number) * units[unit] / 0.8
        for share in (25, 50, 50, 100):
            monkeypatch.setenv(memory_limit.VARIABLE, f"{share}%")
            memory_limit.set_memory_limit(connection)
            number, unit = connection.execute("SELECT current_setting('memory_limit')").fetchall()[0][0].split()
            assert float(number) * units[unit] == pytest.approx(whole * share / 100, rel=0.05)


@pytest.mark.parametrize("limit", ["0GB", "0%", "1KB", "120%", "%", "much", "\udcff"])
def test_no_memory_limit_to_work_with(limit: str, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(memory_limit.VARIABLE, limit)
    with open_warehouse(warehouse.path) as own, pytest.raises(QueryError, match="expected a size such as 8GB or 50%"):
        own.query("SELECT 1")


def test_a_file_outside_the_warehouse_stays_closed(warehouse: Warehouse, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    for query in (f"FROM read_text('{tmp_path}/secret.txt')", f"FROM glob('{tmp_path}/*')", "FROM read_text('/etc/*')"):
        with warehouse.limited(Limits(5, 10)), pytest.raises(QueryError):
            warehouse.query(query)


def test_a_thread_does_the_queries_that_follow_but_not_those_behind_one_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that begins while memory is lacking may never say that it began, and Python waits for it."""
    with duckdb.connect() as first, duckdb.connect() as second:
        ends = Event()
        first.create_function("waits", lambda: ends.wait() and 1, [], "INTEGER")
        monkeypatch.setattr("tracewarehouse.queries.read_only.PATIENCE_SECONDS", 0.0)
        with pytest.raises(StuckQueryError):
            run_query(first, "SELECT waits()", limits=Limits(seconds=0))
        assert run_query(second, "SELECT 1").scalar() == 1
        ends.set()
        with monkeypatch.context() as patch:
            patch.setattr(Thread, "start", lambda _: pytest.fail("a thread begins"))
            assert run_query(second, "SELECT 2").scalar() == 2
        assert ended(spawn(lambda: run_query(duckdb.connect(), "SELECT 3"))) == 0  # a fork has none of the threads
