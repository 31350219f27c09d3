"""Tasks on several cursors: each after what it needs, two at once, and none left behind by one that fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from graphlib import CycleError

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracewarehouse.evaluation.values import run_tasks


@pytest.fixture
def cursors() -> Iterator[list[duckdb.DuckDBPyConnection]]:
    with duckdb.connect(":memory:") as connection:
        yield [connection.cursor(), connection.cursor()]


@pytest.fixture(scope="module")
def idle_cursors() -> Iterator[list[duckdb.DuckDBPyConnection]]:
    """Cursors that are asked nothing, so that all examples can share them."""
    with duckdb.connect(":memory:") as connection:
        yield [connection.cursor(), connection.cursor()]


@settings(deadline=None)
@given(data=st.data())
def test_every_task_runs_once_and_after_what_it_needs(
    idle_cursors: list[duckdb.DuckDBPyConnection], data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, 12))
    needs = {str(i): data.draw(st.sets(st.sampled_from([*map(str, range(i)), "elsewhere"]))) for i in range(count)}
    begun: dict[str, list[str]] = {}
    done: list[str] = []

    def task(name: str, _: duckdb.DuckDBPyConnection) -> None:
        begun[name] = list(done)
        done.append(name)

    run_tasks({n: partial(task, n) for n in needs}, needs, idle_cursors)

    assert sorted(done) == sorted(needs)
    assert all(needs[name] - {"elsewhere"} <= {*begun[name]} for name in needs)


def test_what_has_been_made_is_read_before_more_is_made(cursors: list[duckdb.DuckDBPyConnection]) -> None:
    needs: dict[str, set[str]] = {"a": set(), "b": set(), "reads a": {"a"}, "reads b": {"b"}}
    done: list[str] = []
    run_tasks({n: lambda _, n=n: done.append(n) for n in needs}, needs, cursors[:1])
    assert done in (["a", "reads a", "b", "reads b"], ["b", "reads b", "a", "reads a"])


def test_two_tasks_run_at_once(cursors: list[duckdb.DuckDBPyConnection]) -> None:
    both = threading.Barrier(2)
    taken = []

    def task(cursor: duckdb.DuckDBPyConnection) -> None:
        both.wait(timeout=60)
        taken.append(cursor)

    run_tasks({"a": task, "b": task}, {"a": set(), "b": set()}, cursors)

    assert {*map(id, taken)} == {*map(id, cursors)}


def test_a_task_that_fails_interrupts_the_other_and_starts_no_more(cursors: list[duckdb.DuckDBPyConnection]) -> None:
    has_begun = threading.Event()
    ended: list[str] = []

    def endless(cursor: duckdb.DuckDBPyConnection) -> None:
        has_begun.set()
        try:
            cursor.execute("SELECT sum(a.range * b.range) FROM range(10_000_000) AS a, range(10_000_000) AS b")
        except duckdb.InterruptException:
            ended.append("interrupted")

    def failing(cursor: duckdb.DuckDBPyConnection) -> None:
        has_begun.wait(timeout=60)
        cursor.execute("SELECT no_such_column")

    def after(_: duckdb.DuckDBPyConnection) -> None:
        ended.append("after")

    with pytest.raises(duckdb.BinderException, match="no_such_column"):
        run_tasks(
            {"endless": endless, "failing": failing, "after": after},
            {"endless": set(), "failing": set(), "after": {"failing"}},
            cursors,
        )

    assert ended == ["interrupted"]
    assert cursors[0].execute("SELECT 1").fetchall() == [(1,)]


def test_tasks_in_a_circle_are_refused(cursors: list[duckdb.DuckDBPyConnection]) -> None:
    ran: list[object] = []

    with pytest.raises(CycleError):
        run_tasks({"a": ran.append, "b": ran.append}, {"a": {"b"}, "b": {"a"}}, cursors)

    assert ran == []
