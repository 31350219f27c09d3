"""Reads what ran on the GPUs: kernels, copies, sets and graphs, each with the call of the host that launched it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracewarehouse.ingest.columns.keys import packed
from tracewarehouse.ingest.columns.records import Columns, Int64
from tracewarehouse.ingest.readers.nsys.database import NONE, Database

KERNEL, COPY, SET, GRAPH = range(4)
_TABLES = {
    KERNEL: "CUPTI_ACTIVITY_KIND_KERNEL",
    COPY: "CUPTI_ACTIVITY_KIND_MEMCPY",
    SET: "CUPTI_ACTIVITY_KIND_MEMSET",
    GRAPH: "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
}
_NEEDED = ("start", "end", "deviceId", "streamId")
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
CALLS = (RUNTIME, "OSRT_API", "CUDNN_EVENTS", "CUBLAS_EVENTS")
"""Tables of the calls of host threads."""
_CUDA_CLASSES = (0, 1, NONE)
"""eventClass of calls of the runtime and the driver; older exports have each call of the runtime twice, also as 67."""


@dataclass(frozen=True)
class Activities(Columns):
    """What ran on all devices, by start; columns of shape (n,), NONE where not known. Times are in ns.

    `name` and `full_name` are ids of strings, `copy` and the sides are NVIDIA's kinds of copies and of memory.
    """

    kind: Int64
    start: Int64
    end: Int64
    process: Int64
    device: Int64
    context: Int64
    stream: Int64
    correlation: Int64
    graph_node: Int64
    graph: Int64
    name: Int64
    full_name: Int64
    grid_x: Int64
    grid_y: Int64
    grid_z: Int64
    block_x: Int64
    block_y: Int64
    block_z: Int64
    registers: Int64
    static_memory: Int64
    dynamic_memory: Int64
    bytes: Int64
    copy: Int64
    source: Int64
    target: Int64

    def at(self, rows: Int64) -> Activities:
        """Return some of the rows."""
        return Activities(*(column[rows] for column in vars(self).values()))

    @property
    def launch_key(self) -> Int64:
        """A number for each pair of process and correlation, which the call that launched it has too."""
        return packed([self.process, self.correlation])


_COLUMNS = (
    "start", "end", "globalPid", "deviceId", "contextId", "streamId", "correlationId", "graphNodeId", "graphId",
    "shortName", "demangledName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread",
    "staticSharedMemory", "dynamicSharedMemory", "bytes", "copyKind", "srcKind", "dstKind",
)  # fmt: skip


def read_activities(database: Database) -> Activities:
    """Read what ran on all devices; a graph that was recorded as a whole counts only where its kernels are absent.

    Raises:
        MalformedError: the database is damaged.
    """
    queries = [
        database.select(table, _COLUMNS).replace("SELECT ", f"SELECT {kind}, ", 1)
        for kind, table in _TABLES.items()
        if database.has(table, *_NEEDED)
    ]
    if not queries:
        return Activities(*np.zeros((len(_COLUMNS) + 1, 0), np.int64))
    parts = list(database.integers(f"{' UNION ALL '.join(queries)} ORDER BY 2, 3, 4", len(_COLUMNS) + 1))
    if not parts:
        return Activities(*np.zeros((len(_COLUMNS) + 1, 0), np.int64))
    found = Activities(*np.concatenate(parts, axis=1))
    np.right_shift(found.process, 24, out=found.process)
    is_graph = found.kind == GRAPH
    if is_graph.any():
        of_kernels = (found.kind == KERNEL) & (found.correlation != NONE)
        key = found.launch_key
        return found.at(np.flatnonzero(~(is_graph & np.isin(key, key[of_kernels]))))
    return found


@dataclass(frozen=True)
class Calls(Columns):
    """Calls of host threads, by thread and start; columns of shape (n,). Times are in ns.

    `context` and `payload` are those of the NVTX ranges around the call, 0 and -1 without any.
    """

    thread: Int64
    start: Int64
    end: Int64
    correlation: Int64
    name: Int64
    is_cuda: Int64
    context: Int64
    payload: Int64

    def of_thread(self, thread: int) -> slice:
        """Return the places of a thread's calls."""
        return slice(*self.thread.searchsorted([thread, thread + 1]).tolist())


def read_calls(database: Database) -> Calls:
    """Read the calls of all host threads.

    Raises:
        MalformedError: the database is damaged.
    """
    parts = [np.zeros((6, 0), np.int64)]
    columns = ("globalTid", "start", "end", "correlationId", "nameId", "eventClass")
    for table in CALLS:
        if database.has(table, "start", "end", "globalTid"):
            for part in database.integers(database.select(table, columns), len(columns)):
                part[5] = np.isin(part[5], _CUDA_CLASSES) & (table == RUNTIME)
                parts.append(part)
    found = np.concatenate(parts, axis=1)
    found = found[:, (found[0] != NONE) & (found[1] != NONE)]
    found = found[:, np.lexsort((-found[2], found[1], found[0]))]
    count = found.shape[1]
    thread, start, end, correlation, name, is_cuda = found
    around = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    return Calls(thread, start, end, correlation, name, is_cuda, *around)


def launching_calls(activities: Activities, calls: Calls) -> Int64:
    """Return the call that launched each activity, the first of its process with that correlation; -1 for none."""
    at = np.flatnonzero((calls.is_cuda == 1) & (calls.correlation != NONE))
    count = len(activities.start)
    known = np.flatnonzero(activities.correlation != NONE)
    found = np.full(count, -1, np.int64)
    if not len(at) or not len(known):
        return found
    owner = np.concatenate([activities.process[known], calls.thread[at] >> 24])
    both = packed([owner, np.concatenate([activities.correlation[known], calls.correlation[at]])])
    wanted, keys = both[: len(known)], both[len(known) :]
    order = np.lexsort((calls.start[at], keys))
    keys = keys[order]
    place = np.minimum(keys.searchsorted(wanted), len(keys) - 1)
    is_found = keys[place] == wanted
    found[known[is_found]] = at[order[place[is_found]]]
    return found
