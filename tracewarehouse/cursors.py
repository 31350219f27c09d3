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
    """Run every task once, after those it needs; of those that can be run the one that could be so last.

    So what a task has made is read soon, and need not be kept for long.

    Args:
        tasks: what to run, by name.
        needs: for each task, the names of what must be there before; names that are no task are.
        cursors: of one database; as many tasks run at once.

    Raises:
        graphlib.CycleError: tasks need each other.
        Exception: what a task raised. What still runs is interrupted, and what has not begun is left.
    """
    order = TopologicalSorter({name: needs[name] & tasks.keys() for name in tasks})
    order.prepare()
    idle, ready = list(cursors), list(order.get_ready())
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
                ready += order.get_ready()
        except BaseException:  # Ctrl-C too: the threads wait for their statements
            for cursor in cursors:
                cursor.interrupt()
            raise
