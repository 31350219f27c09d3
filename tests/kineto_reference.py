"""What a Kineto trace holds according to Python's json and plain loops, and according to our reader.

The two share no decoding. Of each stream and thread it gives the events, of each device the windows of its steps.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from chrome_reference import Number, _loaded, _picoseconds

from tracewarehouse.ingest.columns.batches import integers
from tracewarehouse.ingest.columns.profiler_names import GPU_PREFIX, STEP_LINE, STREAM_PREFIX
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.kineto.reader import KinetoTrace
from tracewarehouse.ingest.readers.launches import step_mark

WORK = {"kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"}
CALLS = {"cuda_runtime", "cuda_driver", "Runtime"}
Contents = dict[str, Any]
"""Sorted events (start, duration, name) of all streams and of all threads, unlinked events, and steps by name."""


def read(path: Path, chunk: int | None = None) -> Contents:
    """The contents as our reader reads them."""
    trace = KinetoTrace(CaptureFile(path), chunk=chunk)
    streams, threads, steps, unlinked = [], [], [], 0
    for plane in trace.planes:
        for line in plane.lines:
            for batch in trace.batches(plane, line):
                names = [plane.event_metadata[i].name for i in batch.metadata.tolist()]
                rows = list(zip(batch.start_ps.tolist(), batch.duration_ps.tolist(), names, strict=True))
                if not plane.name.startswith(GPU_PREFIX):
                    threads += rows
                elif line.name.startswith(STREAM_PREFIX):
                    streams += [(line.name.removeprefix(STREAM_PREFIX), *row) for row in rows]
                    stats = {s.name: s for s in batch.stats}
                    unlinked += int(integers(stats.get("is_unlinked"), len(batch))[0].sum())
                elif line.name == STEP_LINE:
                    steps += rows
                elif line.name.startswith("Annotations"):
                    threads += rows
    return {"streams": sorted(streams), "threads": sorted(threads), "unlinked": unlinked, "steps": sorted(steps)}


def reference(content: bytes) -> Contents:
    """The contents by plain loops.

    Raises:
        ValueError: it is no trace.
    """
    data = _loaded(content)
    events = data if isinstance(data, list) else data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list) or not all(isinstance(e, dict) for e in events):
        raise ValueError("no events")
    spans = [e for e in events if e.get("ph") == "X"]
    times = [_picoseconds(e.get("ts")) for e in spans]
    first = next((t for t in times if t), None)
    origin = 0 if first is None else first // 10**6 * 10**6
    timed = []
    for e, time in zip(spans, times, strict=True):
        is_zero = time == 0 and origin > 10**6
        if time is not None and abs(time - origin) < 1 << 63 and not is_zero:
            duration = _picoseconds(e.get("dur"))
            kept = duration if duration is not None and abs(duration) < 1 << 63 else 0
            timed.append((time - origin, kept, e))
    if not timed:
        raise ValueError("no events with a time")
    zero = min(start for start, _, _ in timed) // 1000 * 1000
    rows = [(start - zero, duration, e) for start, duration, e in timed]
    work = [r for r in rows if r[2].get("cat", "") in WORK]
    calls: defaultdict[int, list[int]] = defaultdict(list)
    for start, _, e in rows:
        if e.get("cat", "") in CALLS and (number := _whole(_args(e).get("correlation"))):
            calls[number].append(start)
    launched: list[int | None] = []
    for start, _, e in work:
        of = sorted(calls.get(_whole(_args(e).get("correlation")), ()))
        launched.append(max([t for t in of if t <= start], default=of[0] if of else None))
    return {
        "streams": sorted((_stream(e), s, d, e.get("name", "")) for s, d, e in work),
        "threads": sorted((s, d, e.get("name", "")) for s, d, e in rows if e.get("cat", "") not in WORK),
        "unlinked": launched.count(None),
        "steps": _steps(rows, work, launched),
    }


def _steps(rows: list[Any], work: list[Any], launched: list[int | None]) -> list[Any]:
    marks = [(s, s + d, e["name"]) for s, d, e in rows if e.get("cat") == "user_annotation" and step_mark(e["name"])]
    found = []
    for start, end, name in marks:
        by_device: defaultdict[Any, list[tuple[int, int]]] = defaultdict(list)
        for (s, d, e), at in zip(work, launched, strict=True):
            if at is not None and start <= at < end:
                by_device[_args(e).get("device", e.get("pid"))].append((s, s + d))
        for own in by_device.values():
            low = min(s for s, _ in own)
            found.append((low, max(z for _, z in own) - low, name))
    return sorted(found)


def _args(e: dict[str, Any]) -> dict[str, Any]:
    args = e.get("args")
    return args if isinstance(args, dict) else {}


def _stream(e: dict[str, Any]) -> str:
    stream = _args(e).get("stream")
    return str(e.get("tid") if stream is None else stream)


def _whole(value: Any) -> int:
    text = str(value) if isinstance(value, str | Number) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
