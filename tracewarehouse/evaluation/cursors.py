"""Runs SQL tasks that depend on each other, several in parallel, each on its own cursor.

DuckDB binds and plans a statement on one core. With the few rows of a small run that is most of the work, so two
parallel statements keep two cores busy.
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
    """Run every task once, after the tasks that it needs.

    Among the tasks that are ready, those that became ready last run first, so that the result of a task is read soon
    and not kept for long. Among tasks that became ready together, the one with the longest chain of tasks after it runs
    first, so that less work is left for a single cursor at the end.

    Args:
        tasks: the tasks, by name.
        needs: for each task, the names of the tasks that it needs; a name that is not a task counts as done.
        cursors: cursors of one database; each runs one task at a time.
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
    """The number of tasks in the longest chain that begins with each task, the task included."""
    chain = dict.fromkeys(before, 1)
    for name in reversed(list(TopologicalSorter(before).static_order())):
        for needed in before[name]:
            chain[needed] = max(chain[needed], chain[name] + 1)
    return chain
