"""Reads what ran on the GPUs: kernels, copies, sets and graphs, each with the call of the host that launched it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracewarehouse.ingest.columns.keys import packed
from tracewarehouse.ingest.columns.records import Columns, Int64
from tracewarehouse.ingest.errors import MalformedError
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

    Attributes:
        name: id of the name of a kernel, with its arguments; of a graph its own id.
        first, second, third: of a kernel its grid, its block with registers, and its shared memory, see `kernel_sizes`;
            of a copy NVIDIA's kinds of the copy, of the memory it reads and of that it writes.
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
    bytes: Int64
    name: Int64
    first: Int64
    second: Int64
    third: Int64

    def at(self, rows: Int64) -> Activities:
        """Return some of the rows."""
        return Activities(*(column[rows] for column in vars(self).values()))

    @property
    def launch_key(self) -> Int64:
        """A number for each pair of process and correlation, which the call that launched it has too."""
        return packed([self.process, self.correlation])


_COLUMNS = ("start", "end", "globalPid", "deviceId", "contextId", "streamId", "correlationId", "graphNodeId", "graphId")
_NAME = "COALESCE(demangledName, shortName)"
_GRID = "gridX << 32 | gridY << 16 | gridZ"
_BLOCK = "blockX << 40 | blockY << 28 | blockZ << 20 | registersPerThread"
_MEMORY = "staticSharedMemory + dynamicSharedMemory"
_OWN: dict[int, tuple[str, ...]] = {
    KERNEL: ("bytes", _NAME, _GRID, _BLOCK, _MEMORY),
    COPY: ("bytes", "shortName", "copyKind", "srcKind", "dstKind"),
    SET: ("bytes", "shortName", "copyKind", "srcKind", "dstKind"),
    GRAPH: ("bytes", "graphId", "copyKind", "srcKind", "dstKind"),
}
"""The last five columns of `Activities`; SQLite joins several of the table, since each number read costs time."""


def kernel_sizes(first: int, second: int, third: int) -> tuple[list[int], list[int], int, int]:
    """Return grid, block, registers per thread and bytes of shared memory of a kernel; empty and NONE if unknown."""
    grid = [] if first == NONE else [first >> 32, first >> 16 & 0xFFFF, first & 0xFFFF]
    if second == NONE:
        return grid, [], NONE, third
    return grid, [second >> 40, second >> 28 & 0xFFF, second >> 20 & 0xFF], second & 0xFFFFF, third


def read_activities(database: Database) -> Activities:
    """Read what ran on all devices; a graph that was recorded as a whole counts only where its kernels are absent."""
    width = len(_COLUMNS) + len(_OWN[KERNEL])
    kinds, parts = [np.zeros(0, np.int64)], [np.zeros((width, 0), np.int64)]
    for kind, table in _TABLES.items():
        if database.has(table, *_NEEDED):
            columns = [*_COLUMNS, *_OWN[kind]]
            if kind == KERNEL and not database.has(table, "demangledName", "shortName"):
                has_short = database.has(table, "shortName")
                columns[columns.index(_NAME)] = "shortName" if has_short else "demangledName"
            parts.append(database.columns(table, columns))
            kinds.append(np.full(parts[-1].shape[1], kind))
    start, end, process = (np.concatenate([part[i] for part in parts]) for i in range(3))
    order = np.lexsort((process, end, start))
    joined = (np.concatenate(column)[order] for column in [kinds, *zip(*parts, strict=True)])
    found = Activities(*joined)
    needed = (found.start, found.end, found.device, found.stream)
    if lacking := int(np.any([column == NONE for column in needed], axis=0).sum()):
        raise MalformedError(
            f"{database.path}: damaged: looked for start, end, device and stream of all that ran on GPUs, found "
            f"{lacking} of {len(order)} rows without one of these"
        )
    np.right_shift(np.where(found.process == NONE, 0, found.process), 24, out=found.process)
    is_graph = found.kind == GRAPH
    if is_graph.any():
        of_kernels = (found.kind == KERNEL) & (found.correlation != NONE)
        key = found.launch_key
        return found.at(np.flatnonzero(~(is_graph & np.isin(key, key[of_kernels]))))
    return found


def short_names(database: Database) -> dict[int, int]:
    """Return the id of the short name of a kernel by that of its name with arguments."""
    table = _TABLES[KERNEL]
    if not (database.has(table, "shortName", "demangledName") and database.has("StringIds", "id", "value")):
        return {}
    query = f"SELECT demangledName, MIN(shortName) FROM {table} WHERE demangledName IS NOT NULL "  # noqa: S608  a name of this module
    query += "AND shortName IN (SELECT id FROM StringIds WHERE TYPEOF(value) = 'text') GROUP BY demangledName"
    return {full: short for row in database.texts(query) for full, short in [database.checked(row)]}


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
    """Read the calls of all host threads."""
    parts = [np.zeros((6, 0), np.int64)]
    columns = ("globalTid", "start", "end", "correlationId", "nameId", "eventClass")
    for table in CALLS:
        if database.has(table, "start", "end", "globalTid"):
            part = database.columns(table, columns)
            part[5] = np.isin(part[5], _CUDA_CLASSES) & (table == RUNTIME)
            parts.append(part)
    thread, start, end, *others = (np.concatenate(column) for column in zip(*parts, strict=True))
    end = np.where(end == NONE, start, end)  # a call that the profile cut
    order = np.lexsort((-end, start, thread))
    order = order[(thread[order] != NONE) & (start[order] != NONE)]
    found = [column[order] for column in (thread, start, end, *others)]
    found += [np.zeros(len(order), np.int64), np.full(len(order), -1, np.int64)]
    return Calls(*found)


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
