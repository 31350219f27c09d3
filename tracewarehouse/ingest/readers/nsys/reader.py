"""Reads the SQLite databases that Nsight Systems exports, of schema 2.9 to 3.25.

Each GPU is a plane with a line for each stream of a process, a line of its steps and one of what the host launched
(`launches.py`). Threads are lines of the host's plane, with their calls and NVTX events. Which tables an export has
depends on what was recorded, so any may be missing, and their rows have no order.

Times count from the start of the session, or from the first event if they were exported as Unix times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tracewarehouse.ingest.columns import bounds
from tracewarehouse.ingest.columns.batches import part
from tracewarehouse.ingest.columns.profiler_names import (
    COUNTER_LINE,
    CPU_PLANE,
    PROFILE_START,
    PROFILE_STOP,
    TASK_PLANE,
)
from tracewarehouse.ingest.columns.records import EventBatch, EventMetadata, Line, Plane, Stat, StatKind, Trace
from tracewarehouse.ingest.errors import CaptureError, MalformedError
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.kineto.ranks import rank_in_name
from tracewarehouse.ingest.readers.launches import integer_stat
from tracewarehouse.ingest.readers.nsys.activities import Activities, Calls, read_activities, read_calls, short_names
from tracewarehouse.ingest.readers.nsys.database import NONE, ROWS, Database
from tracewarehouse.ingest.readers.nsys.gpus import Gpu, find_gpus
from tracewarehouse.ingest.readers.nsys.launched import Launched
from tracewarehouse.ingest.readers.nsys.ranges import UNNAMED, Ranges, ThreadEvents, read_ranges

Window = tuple[int, int]
_EXPORTS = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""Tables that say how a database was exported; older ones have the second."""
_MAJORS = ("2", "3")
_OLDEST, _NEWEST = (2, 9), (3, 25)
"""The schemas between which exports were seen."""
_START_TIME = "TARGET_INFO_SESSION_START_TIME"
_UNIX_NS = 10**17
"""Times from here on are Unix times; a session does not last three years."""
_LONGEST_NS = ((1 << 63) - 1) // 1000


class NsysTrace(Trace):
    """One export of Nsight Systems, read in one pass; its events are held as columns.

    Raises:
        CaptureError: the file is not readable, or there is no room to uncompress it.
        MalformedError: it is no export of Nsight Systems, damaged, or nothing was recorded.
    """

    format = "nsys"

    def __init__(self, file: CaptureFile) -> None:
        self._file = file
        self.size = file.size
        with Database(file) as database:
            self._read(database)

    @property
    def digest(self) -> str:
        """SHA-256 of the uncompressed bytes, in hex."""
        return self._file.digest

    def batches(self, plane: Plane, line: Line) -> Iterator[EventBatch]:
        """Yield the events of a line: those of a GPU by start, those of a thread its NVTX events first."""
        whole = self._batches[line.start]
        for low in range(0, len(whole), ROWS):
            yield part(whole, low, low + ROWS)

    def _read(self, database: Database) -> None:
        newer = _check_version(database)
        strings = _strings(database)
        ranges = Ranges()
        with ThreadPoolExecutor(1) as beside:  # SQLite and Arrow read without Python's lock
            reading = beside.submit(read_calls, database)
            activities, short = read_activities(database), short_names(database)
            calls = reading.result()
        threads: list[ThreadEvents] = []
        for events, around in read_ranges(database, strings, ranges):
            own = calls.of_thread(events.thread)
            inside = around.innermost(calls.start[own])
            calls.context[own] = np.append(around.context, 0)[inside]
            calls.payload[own] = np.append(around.payload, -1)[inside]
            threads.append(events)
        if not len(activities.start) and not threads and not len(calls.start):
            raise MalformedError(
                f"{database.path}: an export of Nsight Systems without events; record it again with --trace=cuda,nvtx"
            )
        self._zero_ns = _zero(database.path, activities, calls, threads)
        self._start_ns, self._stop_ns = _window(database, self._zero_ns)
        self.origin_ns = self._start_ns
        self._batches: list[EventBatch] = []
        used = sorted({*zip(activities.process.tolist(), activities.device.tolist(), strict=True)})
        gpus, job, notes = find_gpus(database, used, ranges, rank_in_name(database.path.name))
        launched = Launched(activities, calls, ranges, strings, short, job, self._zero_ns)
        planes = []
        for gpu in gpus:
            plane, lines = launched.plane(gpu)
            self._add(plane, lines)
            planes.append(plane)
        notes += self._add_counters(database, gpus, planes)
        names = _thread_names(database, strings) | ranges.thread_names
        host = self._host_plane(threads, calls, launched, strings, ranges, names)
        self.planes = [*planes, *([host] if host.lines else []), self._task_plane()]
        self.hostnames = [*filter(None, [database.pairs("TARGET_INFO_SYSTEM_ENV").get("Hostname")])]
        self.warnings = [*newer, *notes]
        self.findings = launched.findings()

    def _add(self, plane: Plane, lines: Sequence[tuple[str, int, EventBatch]]) -> None:
        """Give a plane lines of a name, an id and events."""
        for name, number, events in lines:
            plane.lines.append(Line(name, number, start=len(self._batches)))
            self._batches.append(events)

    def _host_plane(
        self,
        threads: Sequence[ThreadEvents],
        calls: Calls,
        launched: Launched,
        strings: dict[int, str],
        ranges: Ranges,
        names: dict[int, str],
    ) -> Plane:
        """Make the plane of the host's threads; launches have their correlation, step marks their number."""
        plane = Plane(CPU_PLANE)
        metadata: dict[str, int] = {}

        def number(name: str) -> int:
            return metadata.setdefault(name, len(metadata))

        of_text = np.array([number(text) for text in ranges.texts] or [0], np.int32)
        used, code = np.unique(calls.name, return_inverse=True)
        of_call = np.array([number(strings.get(i, UNNAMED)) for i in used.tolist()] or [0], np.int32)[code]
        of_thread = {t.thread: t for t in threads}
        for thread in sorted({*of_thread, *np.unique(calls.thread).tolist()}):
            own = calls.of_thread(thread)
            at = np.arange(own.start, own.stop)
            first = 0
            columns = [(of_call[own], calls.start[own], calls.end[own] - calls.start[own])]
            stats = []
            if events := of_thread.get(thread):
                columns.insert(0, (of_text[events.text], events.start, events.duration))
                first = len(events.start)
                marks = launched.step_marks(thread, events)
                stats.append(integer_stat("step_num", np.flatnonzero(marks >= 0), marks[marks >= 0]))
            has = np.flatnonzero((calls.correlation[own] != NONE) & (calls.is_cuda[own] == 1))
            stats.append(integer_stat("correlation", has + first, calls.correlation[at[has]]))
            devices = launched.dispatched[at]
            has = np.flatnonzero(devices >= 0)
            stats.append(integer_stat("device_ordinal", has + first, devices[has]))
            stats.append(integer_stat("run_id", has + first, at[has]))
            kind, start, duration = (np.concatenate(c) for c in zip(*columns, strict=True))
            batch = EventBatch(kind, (start - self._zero_ns) * 1000, duration * 1000, [s for s in stats if len(s.rows)])
            tid = thread & 0xFFFFFF
            name = names.get(thread, "thread")
            self._add(plane, [(f"{name} {tid}", tid, batch)])
        plane.event_metadata = [EventMetadata(name) for name in metadata]
        return plane

    def _add_counters(self, database: Database, gpus: Sequence[Gpu], planes: Sequence[Plane]) -> list[str]:
        """Give each GPU the line of its sampled metrics, with the name of each as the stat of its samples.

        Return a sentence if nothing tells whose the samples are.
        """
        table, names = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
        if not database.has(table, "timestamp", "typeId", "metricId", "value"):
            return []
        at, kind, metric, value = database.columns(table, ("timestamp", "typeId", "metricId", "value"))
        if len(at) and any(gpu.is_placed for gpu in gpus):
            return [f"{len(at):,} samples of GPUs were left out: nothing tells which process used which GPU"]
        known: dict[int, str] = {}
        if database.has(names, "metricId", "metricName"):
            for number, name in database.texts(f"SELECT metricId, metricName FROM {names}"):  # noqa: S608  a constant
                known[database.checked([number])[0]] = str(name)
        for gpu, plane in zip(gpus, planes, strict=True):
            rows = np.flatnonzero((kind & 255 == gpu.ordinal) & (at != NONE) & (value != NONE))
            rows = rows[np.lexsort((metric[rows], at[rows]))]
            if not len(rows):
                continue
            used, code = np.unique(metric[rows], return_inverse=True)
            called = [known.get(i, f"metric {i}") for i in used.tolist()]
            stats = [
                integer_stat(name, np.flatnonzero(code == i), value[rows[code == i]]) for i, name in enumerate(called)
            ]
            metadata = (code + len(plane.event_metadata)).astype(np.int32)
            plane.event_metadata += [EventMetadata(name) for name in called]
            start = (at[rows] - self._zero_ns) * 1000
            self._add(plane, [(COUNTER_LINE, -3, EventBatch(metadata, start, np.zeros_like(start), stats))])
        return []

    def _task_plane(self) -> Plane:
        times = ((PROFILE_START, self._start_ns), (PROFILE_STOP, self._stop_ns))
        stats = tuple(Stat(name, StatKind.UINT64, at) for name, at in times if at is not None and at >= 0)
        return Plane(TASK_PLANE, stats=stats)


def _check_version(database: Database) -> list[str]:
    """Return a sentence on a version that is older or newer than those that were seen; refuse what is none.

    Raises:
        MalformedError: it is no export of Nsight Systems, or of a schema that is not read.
    """
    exports = {k: v for table in _EXPORTS for k, v in database.pairs(table).items()}
    is_nsys = any(database.has(f"CUPTI_ACTIVITY_KIND_{kind}") for kind in ("KERNEL", "RUNTIME", "GRAPH_TRACE"))
    version = exports.get("EXPORT_SCHEMA_VERSION")
    if version is None and not is_nsys and not database.has("NVTX_EVENTS"):
        raise MalformedError(
            f"{database.path}: no export of Nsight Systems: looked for its tables, found another SQLite database; "
            "export with `nsys export --type=sqlite REPORT.nsys-rep`"
        )
    if version is not None and version.split(".")[0] not in _MAJORS:
        raise MalformedError(
            f"{database.path}: an export of Nsight Systems in schema {version}; schemas 2 and 3 are read, so export it "
            "with another version of nsys"
        )
    numbers = re.match(r"(\d{1,4})\.(\d{1,4})", version or "")
    known = _OLDEST if not numbers else (int(numbers[1]), int(numbers[2]))
    if _OLDEST <= known <= _NEWEST:
        return []
    beyond = "older than 2.9, the oldest" if known < _OLDEST else "newer than 3.25, the newest"
    return [f"in schema {version}, {beyond} that was seen: columns may mean something else"]


def _strings(database: Database) -> dict[int, str]:
    """Return the texts to which other tables refer, by id."""
    if not database.has("StringIds", "id", "value"):
        return {}
    found: dict[int, str] = {}
    for i, value in database.texts("SELECT id, value FROM StringIds"):
        if isinstance(i, int) and isinstance(value, str):
            found[i] = value
            bounds.check(len(found), bounds.NAMES, "names", "events")
    return found


def _thread_names(database: Database, strings: dict[int, str]) -> dict[int, str]:
    """Return the names of threads, by globalTid; those of their processes where they have none."""
    if not database.has("ThreadNames", "globalTid", "nameId"):
        return {}
    rows = database.columns("ThreadNames", ("globalTid", "nameId")).T.tolist()
    return {thread: strings[name] for thread, name in rows if strings.get(name)}


def _zero(path: Path, activities: Activities, calls: Calls, threads: Sequence[ThreadEvents]) -> int:
    """Return the time of the export from which times count: 0, or the first event if its times are Unix times."""
    times = [x for x in (activities.start, activities.end, calls.start, calls.end) if len(x)]
    times += [x for t in threads for x in (t.start, t.start + t.duration)]
    first, last = min(int(x.min()) for x in times), max(int(x.max()) for x in times)
    zero = first if first > _UNIX_NS else 0
    if max(last - zero, zero - first) > _LONGEST_NS:
        raise MalformedError(f"{path}: damaged: looked for times in nanoseconds of a session, found {first} to {last}")
    return zero


def _window(database: Database, zero_ns: int) -> tuple[int | None, int | None]:
    """Return the Unix time from which times count, and that of the end of the session; None if not stated."""
    start = None
    if database.has(_START_TIME, "utcEpochNs"):
        start = next((int(at) for at in database.columns(_START_TIME, ("utcEpochNs",))[0] if at > 0), None)
    if zero_ns:
        start = zero_ns
    elif start is not None and (shift := _shift(database)):
        start -= shift
    if start is None or zero_ns or not database.has("ANALYSIS_DETAILS", "duration"):
        return start, None
    lengths = database.columns("ANALYSIS_DETAILS", ("duration",))[0].tolist()
    return start, next((start + length for length in lengths if length > 0), None)


def _shift(database: Database) -> int:
    """Return by how much the times were moved when they were exported."""
    stated = database.pairs(_EXPORTS[0]).get("EXPORT_PARAM_TIME_SHIFT", "0")
    return int(stated) if re.fullmatch(r"-?[0-9]{1,18}", stated) else 0


open_file = NsysTrace


def profile_window(path: Path) -> Window | None:
    """Return start and end of the session in Unix time; None if the export does not state them, or is damaged."""
    try:
        with Database(CaptureFile(path)) as database:
            start, stop = _window(database, 0)
    except CaptureError:
        return None
    return None if start is None or stop is None else (start, stop)
