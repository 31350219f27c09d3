"""Reader of Chrome traces: `.trace.json` and `.trace.json.gz` as JAX, XProf's trace viewer and torch_xla write them.

Processes are planes and threads are lines, named by the metadata events; `line_id` is the tid. Events are taken
in file order from

- X (complete) events, also those without `dur`, whose duration counts as 0;
- B and E pairs of a thread, innermost first, at the place of the E; a B that is never closed has duration 0;
- i and I (instants), with duration 0;
- C (counters), on a line `_counters_` of their process, with one stat per series.

Events of other phases (flows s, t, f; async b, n, e; ...) are counted in the warnings, not read.

Times: XProf and JAX print microseconds with six fractional digits or more, or with the 17 digits of a double (as
in 4.3961589999999999), so that the nearest picosecond of `ts` and `dur` is the value the exporter had. Where that
value came from a device clock it was itself rounded: `dur` differs by some ps from `device_duration_ps`, which
stays a stat. Times that 64-bit picoseconds cannot hold (microseconds since 1970) count from the first event's whole
microsecond, which then is the `profile_start_time` of a plane `Task Environment`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from tracewarehouse.ingest.columns.records import EventBatch, Int32, Line, Plane, Stat, StatKind
from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.readers.chrome.args import event_metadata
from tracewarehouse.ingest.readers.chrome.chunks import CHUNK, Chunks
from tracewarehouse.ingest.readers.chrome.events import Id
from tracewarehouse.ingest.readers.chrome.gather import Gatherer, Special
from tracewarehouse.ingest.readers.chrome.helpers import Helpers
from tracewarehouse.ingest.readers.chrome.ranges import Ranges
from tracewarehouse.ingest.readers.chrome.spill import Spill
from tracewarehouse.ingest.readers.chrome.templates import Piece, TemplateParser
from tracewarehouse.ingest.readers.chrome.times import INT64_MAX
from tracewarehouse.ingest.readers.files import MAX_GZIP_RATIO, CaptureFile

COUNTERS = "_counters_"
_HOST_PREFIX = re.compile(r"([A-Za-z0-9][-.\w]*) (/(?:host|device):.*)", re.DOTALL)


@dataclass
class _ChromePlane(Plane):
    rows: Int32 = field(default_factory=lambda: np.zeros(0, np.int32))
    """Row of `event_metadata` for the rows of the whole trace's metadata."""


class _Digester:
    """Reads a file from front to back and digests it on the way, on another core."""

    def __init__(self, file: CaptureFile) -> None:
        self._file = file
        self._sha = hashlib.sha256()
        self._done = 0
        self._last: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> _Digester:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def read_into(self, view: memoryview, low: int) -> None:
        """Fill a buffer with the bytes from `low` on."""
        self._wait()  # no more than one piece waits in memory
        self._file.read_into(view, low)
        if low <= self._done < low + len(view):
            self._last = self._thread.submit(self._sha.update, bytes(view[self._done - low :]))
            self._done = low + len(view)

    def digest(self) -> str:
        """SHA-256 of the whole file, in hex."""
        while self._done < self._file.size:
            self.read_into(memoryview(bytearray(min(CHUNK, self._file.size - self._done))), self._done)
        self._wait()
        return self._sha.hexdigest()

    def _wait(self) -> None:
        if self._last is not None:
            self._last.result()
            self._last = None


class ChromeTrace:
    """One Chrome trace, read from front to back at once; its events then wait in a temporary file if they are many."""

    format = "chrome"
    origin_ns = None

    def __init__(self, file: CaptureFile, helpers: Helpers, chunk: int = CHUNK) -> None:
        self.size = file.size
        self.errors: Sequence[str] = ()
        parse = TemplateParser()
        self._gathered = Gatherer(parse, Spill(others=helpers.outputs))
        ranges = Ranges(file, helpers, chunk)
        with _Digester(file) as digester:
            knows_digest = helpers.digest or file.known_digest
            read_into = file.read_into if knows_digest else digester.read_into
            chunks = Chunks(read_into, file.size, parse, chunk, partial(ranges.follow, gatherer=self._gathered))
            try:
                for piece in chunks:
                    self._gathered.add(piece)
            except MalformedError as error:
                raise MalformedError(f"{file.path}: {error}") from None
            self.digest = file.known_digest or (helpers.digest.results()[0] if helpers.digest else digester.digest())
        self._gathered.finish()
        self.hostnames: list[str] = []
        self.planes: list[Plane] = self._planes()
        if not self.planes:
            raise MalformedError(f"{file.path}: a Chrome trace without events; nothing was profiled, record it again")
        self._add_start(chunks.members)
        self.warnings = self._warnings(parse, chunks)

    def batches(self, plane: Plane, line: Line) -> Iterator[EventBatch]:
        """The events of a line, in file order."""
        rows = cast(_ChromePlane, plane).rows
        for batch in self._gathered.batches(line.start):
            yield EventBatch(rows[batch.metadata], batch.start_ps, batch.duration_ps, batch.stats)

    def _planes(self) -> list[Plane]:
        found = self._gathered
        names = dict(found.process_names)
        matches = {pid: m for pid, name in names.items() if (m := _HOST_PREFIX.fullmatch(name))}
        self.hostnames = list(dict.fromkeys(m[1] for m in matches.values()))
        if len(self.hostnames) == 1:  # with several, only the whole name tells their processes apart
            names.update((pid, m[2]) for pid, m in matches.items())
        planes: dict[Id, _ChromePlane] = {}
        metadata = event_metadata(found.metadata)
        for pid in [*names, *(pid for pid, _ in found.codes)]:
            if pid in planes:
                continue
            used = np.flatnonzero(found.used[pid]).tolist() if pid in found.used else []
            rows = np.full(len(metadata), -1, np.int32)
            rows[used] = np.arange(len(used))
            name = names.get(pid, "unknown process" if pid is None else str(pid))
            plane = _ChromePlane(name, _number(pid) or 0, rows=rows)
            plane.event_metadata = [metadata[i] for i in used]
            planes[pid] = plane
        with_events = found.spill.lines
        for (pid, tid), code in found.codes.items():
            if code not in with_events:
                continue
            if tid is Special.COUNTERS:
                named = (_number(t) for (p, t), name in found.thread_names.items() if p == pid and name == COUNTERS)
                line = Line(COUNTERS, next((t for t in named if t is not None), -1 - code), start=code)
            else:
                name = found.thread_names.get((pid, tid), "unknown thread" if tid is None else str(tid))
                number = _number(tid)
                line = Line(name, -1 - code if number is None else number, start=code)
            planes[pid].lines.append(line)
        return list(planes.values())

    def _add_start(self, members: dict[str, bytes]) -> None:
        """Name the time that the events count from, where the trace says it."""
        base = members.get("baseTimeNanoseconds", b"")
        start = (int(base) if base.isdigit() and len(base) < 20 else 0) + (self._gathered.origin_us or 0) * 1000
        if 0 < start < 1 << 63:
            self.planes.append(
                _ChromePlane("Task Environment", stats=(Stat("profile_start_time", StatKind.UINT64, start),))
            )

    def _warnings(self, parse: TemplateParser, chunks: Chunks[Piece]) -> list[str]:
        found = self._gathered
        warnings = [f"{count} {what}" for what, count in sorted(found.counted.items()) if count]
        if found.left_out:
            phases = ", ".join(f"{n} of phase {ph[:20]!r}" for ph, n in sorted(found.left_out.items())[:20])
            warnings.append(f"{found.left_out.total()} events that are not spans or counters were left out: {phases}")
        if parse.has_replaced:
            warnings.append("names or arguments hold bytes that are not UTF-8; they were replaced by U+FFFD")
        if chunks.is_open:
            warnings.append("the array of events has no end; the trace may be truncated")
        if len(self.hostnames) > 1:
            warnings.append(f"one file of {len(self.hostnames)} hosts: {', '.join(self.hostnames[:10])}")
        return warnings


def read_chrome(path: Path | CaptureFile, *, max_gzip_ratio: float = MAX_GZIP_RATIO, jobs: int = 1) -> ChromeTrace:
    """Open a .trace.json or .trace.json.gz.

    Args:
        path: the file.
        max_gzip_ratio: how many times its own size a gzip file may hold.
        jobs: processes that may read a large trace at once, this one included; what is read does not depend on it.

    Raises:
        CaptureError: the file is missing, empty or not readable, or a gzip file holds more than it may.
        MalformedError: it is not a Chrome trace, or ends too early.
        HelperError: one of several processes was ended from outside.
    """
    file = path if isinstance(path, CaptureFile) else CaptureFile(path, max_gzip_ratio=max_gzip_ratio)
    with Helpers(file, jobs) as helpers:
        return ChromeTrace(file, helpers)


def _number(value: Id) -> int | None:
    """A pid or tid as an integer, if it is one."""
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value) if abs(value) <= INT64_MAX else None
    return None


__all__ = ["COUNTERS", "ChromeTrace", "read_chrome"]
