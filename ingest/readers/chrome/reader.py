"""Reader of Chrome traces: `.trace.json` and `.trace.json.gz` as JAX, XProf's trace viewer and torch_xla write them.

Processes are planes and threads are lines, named by the metadata events; `line_id` is the tid. Events are taken
in file order from

- X (complete) events, also those without `dur`, whose duration counts as 0;
- B and E pairs of a thread, innermost first, at the place of the E; a B that is never closed has duration 0;
- b and e pairs of a category and id, in the same way, on the thread of the b; those of `tw export chrome` need no
  pairing, since the b has their duration as `exact_dur`;
- i and I (instants), with duration 0;
- C (counters), on a line `_counters_` of their process, with one stat per series.

Events of other phases (flows s, t, f; async n; ...) are counted in the warnings, not read.

Times: XProf and JAX print microseconds with six fractional digits or more, or with the 17 digits of a double (as
in 4.3961589999999999), so that the nearest picosecond of `ts` and `dur` is the value the exporter had. Where that
value came from a device clock it was itself rounded: `dur` differs by some ps from `device_duration_ps`, which
stays a stat. Where `tw export chrome` rounds a `dur` for viewers, `exact_dur` is what it was. Times that 64-bit
picoseconds cannot hold (microseconds since 1970) count from the first event's whole microsecond, which then is the
`profile_start_time` of a plane `Task Environment`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from tracewarehouse.ingest.columns.plane_names import COUNTER_LINE, PROFILE_START, TASK_PLANE
from tracewarehouse.ingest.columns.records import EventBatch, Int64, Line, Plane, Stat, StatKind
from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.readers.chrome.document import Document, Id
from tracewarehouse.ingest.readers.chrome.gather import COUNTERS, Gathered
from tracewarehouse.ingest.readers.chrome.times import INT64_MAX
from tracewarehouse.ingest.readers.files import MAX_GZIP_RATIO, CaptureFile

KINETO = (
    "a PyTorch (Kineto) trace: its operators, kernels and copies are read as events of threads; its devices, steps, "
    "collectives, flows and shapes are not, so that no metric of a device has a value"
)
_KINETO_MEMBERS = frozenset({"schemaVersion", "deviceProperties"})
"""Members that Kineto writes beside the events, and no other profiler; a tool may have dropped one."""
_HOST_PREFIX = re.compile(r"([A-Za-z0-9][-.\w]*) (/(?:host|device):.*)", re.DOTALL)


@dataclass
class _ChromePlane(Plane):
    used: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """Numbers of its event metadata among those of the whole trace, ascending."""


class ChromeTrace:
    """One Chrome trace, read from front to back at once; its events then wait in temporary files."""

    format = "chrome"
    origin_ns = None

    def __init__(self, file: CaptureFile, chunk: int | None = None) -> None:
        self._file = file
        self.size = file.size
        self.errors: Sequence[str] = ()
        try:
            document = Document(file, chunk)
            self._gathered = Gathered(document)
            members = document.members() if document.is_ended else {}
        except MalformedError as error:
            raise MalformedError(f"{file.path}: {error}") from None
        self.hostnames: list[str] = []
        self.planes: list[Plane] = self._planes()
        if not self.planes:
            raise MalformedError(f"{file.path}: a Chrome trace without events; nothing was profiled, record it again")
        self._add_start(members.get("baseTimeNanoseconds", b""))
        self.warnings = self._warnings(document)
        self.foreign = KINETO if members.keys() & _KINETO_MEMBERS or self._has_operators() else None

    @property
    def digest(self) -> str:
        """SHA-256 of the uncompressed bytes, in hex."""
        return self._file.digest

    def batches(self, plane: Plane, line: Line) -> Iterator[EventBatch]:
        """The events of a line, in file order."""
        used = cast(_ChromePlane, plane).used
        for batch in self._gathered.batches(line.start):
            yield replace(batch, metadata=used.searchsorted(batch.metadata).astype(np.int32))

    def _has_operators(self) -> bool:
        """Whether the trace has operators of PyTorch and no device of XLA's, as what is left of a Kineto trace."""
        has_devices = any("/device:" in plane.name for plane in self.planes)
        return not has_devices and any(m.name.startswith("aten::") for m in self._gathered.metadata)

    def _planes(self) -> list[Plane]:
        gathered = self._gathered
        names = dict(gathered.process_names)
        matches = {pid: m for pid, name in names.items() if (m := _HOST_PREFIX.fullmatch(name))}
        self.hostnames = list(dict.fromkeys(m[1] for m in matches.values()))
        if len(self.hostnames) == 1:  # with several, only the whole name tells their processes apart
            names.update((pid, m[2]) for pid, m in matches.items())
        lines: dict[Id, dict[Any, int]] = {pid: {} for pid in names}
        for (pid, tid), code in gathered.codes.items():
            lines.setdefault(pid, {})[tid] = code
        counters: dict[Id, int] = {}
        for (pid, tid), name in gathered.thread_names.items():
            if name == COUNTER_LINE and (number := _number(tid)) is not None:
                counters.setdefault(pid, number)
        planes: list[Plane] = []
        for pid, codes in lines.items():
            name = names.get(pid, "unknown process" if pid is None else str(pid))
            plane = _ChromePlane(name, _number(pid) or 0, used=gathered.used(codes.values()))
            plane.event_metadata = [gathered.metadata[i] for i in plane.used.tolist()]
            for tid, code in codes.items():
                if not len(gathered.places(code)):
                    continue
                if tid == COUNTERS:
                    name, number = COUNTER_LINE, counters.get(pid)
                else:
                    name = gathered.thread_names.get((pid, tid), "unknown thread" if tid is None else str(tid))
                    number = _number(tid)
                plane.lines.append(Line(name, -1 - code if number is None else number, start=code))
            planes.append(plane)
        return planes

    def _add_start(self, base: bytes) -> None:
        """Name the time that the events count from, where the trace says it."""
        start = (int(base) if base.isdigit() and len(base) < 20 else 0) + (self._gathered.origin_us or 0) * 1000
        if 0 < start < 1 << 63:
            self.planes.append(_ChromePlane(TASK_PLANE, stats=(Stat(PROFILE_START, StatKind.UINT64, start),)))

    def _warnings(self, document: Document) -> list[str]:
        gathered = self._gathered
        warnings = [f"{count} {what}" for what, count in sorted(gathered.counted.items()) if count]
        if gathered.left_out:
            phases = ", ".join(f"{n} of phase {ph[:20]!r}" for ph, n in sorted(gathered.left_out.items())[:20])
            warnings.append(
                f"{gathered.left_out.total()} events that are not spans or counters were left out: {phases}"
            )
        if document.has_replaced:
            warnings.append("names or arguments hold bytes that are not UTF-8; they were replaced by U+FFFD")
        if not document.is_ended:
            warnings.append("the array of events has no end; the trace may be truncated")
        if len(self.hostnames) > 1:
            warnings.append(
                f"one file of {len(self.hostnames)} hosts ({', '.join(self.hostnames[:10])}): their devices are not "
                "read; write a file per host, as `tw export chrome RUN -o FOLDER` does"
            )
        return warnings


def read_chrome(path: Path | CaptureFile, *, max_gzip_ratio: float = MAX_GZIP_RATIO) -> ChromeTrace:
    """Open a .trace.json or .trace.json.gz.

    Args:
        path: the file.
        max_gzip_ratio: how many times its own size a gzip file may hold.

    Raises:
        CaptureError: the file is missing, empty or not readable, or a gzip file holds more than it may.
        MalformedError: it is not a Chrome trace, or ends too early.
    """
    file = path if isinstance(path, CaptureFile) else CaptureFile(path, max_gzip_ratio=max_gzip_ratio)
    return ChromeTrace(file)


def _number(value: Id) -> int | None:
    """A pid or tid as an integer, if it is one."""
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value) if abs(value) <= INT64_MAX else None
    return None
