"""Runs SQL tasks that build on each other, some at once, each on a cursor of its own.

DuckDB binds and plans a statement on one core, and over the few rows of a small run it does little else; two statements
at once keep two cores at work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter

import duckdb

Task = Callable[[duckdb.DuckDBPyConnection], None]


def run_tasks(
    tasks: Mapping[str, Task], needs: Mapping[str, Collection[str]], cursors: Sequence[duckdb.DuckDBPyConnection]
) -> None:
    """Run every task once, after those it needs.

    Of the tasks that can be run, one that could be so last comes first: what a task has made is read soon, and need not
    be kept for long. Of those that can be run from the same moment on, the one with the longest chain of tasks behind
    it comes first, so that less is left for one cursor alone at the end.

    Args:
        tasks: what to run, by name.
        needs: for each task, the names of what must be there before; names that are no task are.
        cursors: of one database; as many tasks run at once.

    Raises:
        graphlib.CycleError: tasks need each other.
        Exception: what a task raised. What still runs is interrupted, and what has not begun is left.
    """
    before = {name: needs[name] & tasks.keys() for name in tasks}
    chain = _chains(before)
    order = TopologicalSorter(before)
    order.prepare()
    idle, ready = list(cursors), sorted(order.get_ready(), key=chain.__getitem__)
    running: dict[Future[None], tuple[str, duckdb.DuckDBPyConnection]] = {}
    with ThreadPoolExecutor(len(cursors)) as threads:
        try:
            while ready or running:
                while ready and idle:
                    name, cursor = ready.pop(), idle.pop()
                    running[threads.submit(tasks[name], cursor)] = name, cursor
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    name, cursor = running.pop(future)
                    idle.append(cursor)
                    future.result()
                    order.done(name)
                ready += sorted(order.get_ready(), key=chain.__getitem__)
        except BaseException:  # Ctrl-C too: the threads wait for their statements
            for cursor in cursors:
                cursor.interrupt()
            raise


def _chains(before: Mapping[str, Collection[str]]) -> dict[str, int]:
    """For each task how many tasks must be run one after the other from it on, itself included."""
    chain = dict.fromkeys(before, 1)
    for name in reversed(list(TopologicalSorter(before).static_order())):
        for needed in before[name]:
            chain[needed] = max(chain[needed], chain[name] + 1)
    return chain
