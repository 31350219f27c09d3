"""What a Chrome trace holds according to Python's json and a loop over its events, and according to our reader.

The two share no decoding; both follow the same rules for fields that are missing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Context, Decimal
from pathlib import Path
from typing import Any

from tracewarehouse.ingest.columns.records import Line, Plane, StatKind, Trace
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.readers.chrome.reader import ChromeTrace
from tracewarehouse.ingest.readers.chrome.values import DOUBLES, METADATA_KEYS
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.xplane.plain import PlainLine, PlainPlane, PlainStat

Row = tuple[Any, ...]
"""An event: name, display name, metadata stats, start, duration, stats by name."""


def opened(path: Path, chunk: int | None = None, **options: float) -> ChromeTrace:
    """A trace, read in pieces of this size."""
    return ChromeTrace(CaptureFile(path, **options), chunk)


def rows(trace: Trace, plane: Plane, line: Line) -> list[Row]:
    """Events of a line as our reader reads them."""
    out: list[Row] = []
    for batch in trace.batches(plane, line):
        stats: list[list[tuple[str, StatKind, Any]]] = [[] for _ in range(len(batch))]
        for column in batch.stats:
            assert (column.rows[1:] >= column.rows[:-1]).all()
            assert len(set(column.texts)) == len(column.texts)
            for row, kind, bits in zip(column.rows.tolist(), column.kinds.tolist(), column.bits, strict=True):
                value: Any = int(bits)
                if kind >= StatKind.STRING:
                    value = column.texts[value].decode()
                elif kind == StatKind.INT64:
                    value = int(bits.view("<i8"))
                elif kind == StatKind.DOUBLE:
                    value = float(bits.view("<f8"))
                stats[row].append((column.name, StatKind(kind), value))
        for i in range(len(batch)):
            m = plane.event_metadata[batch.metadata[i]]
            shared = tuple((s.name, s.kind, s.value) for s in m.stats)
            times = int(batch.start_ps[i]), int(batch.duration_ps[i])
            out.append((m.name, m.display_name, shared, *times, sorted(stats[i], key=repr)))
    return out


def everything(trace: Trace) -> list[tuple[Any, ...]]:
    """All planes, lines and events as our reader reads them."""
    return [
        (plane.name, [(line.name, line.line_id, rows(trace, plane, line)) for line in plane.lines])
        for plane in trace.planes
    ]


ChromeStat = tuple[str, StatKind, Any]
"""Name, kind and value; text as str."""
ChromeEvent = tuple[str, str, tuple[ChromeStat, ...], int, int, list[ChromeStat]]
"""Name, display name, stats of the instruction, start and duration in ps, and the event's own stats by name."""
ChromeLine = tuple[str, int, list[ChromeEvent]]
"""Name, id and events of a line."""

_INT64_MAX = (1 << 63) - 1
_COUNTERS = "_counters_"
_COUNTER_LINE = object()
_HOST_PREFIX = re.compile(r"([A-Za-z0-9][-.\w]*) (/(?:host|device):.*)", re.DOTALL)
_NUMBER = re.compile(r"-?\d{1,400}(\.\d{0,400})?([eE][-+]?\d{1,4})?", re.ASCII)


class Number(str):
    """A JSON number as it is written."""


def plain_planes(file: CaptureFile) -> Iterator[PlainPlane]:
    """The planes of a file as records with which `against` verifies a run."""
    try:
        planes = reference(file.read(0, file.size))
    except (ValueError, RecursionError) as error:
        raise CaptureError(f"{file.path}: Python's json cannot read it: {error}") from None
    for name, lines in planes:
        yield PlainPlane(name, lines=[_line(*line) for line in lines])


def _line(name: str, line_id: int, events: list[ChromeEvent]) -> PlainLine:
    rows = [(None, start, duration, list(map(_stat, stats))) for _, _, _, start, duration, stats in events]
    return PlainLine(name, line_id, lambda: iter(rows))


def _stat(stat: ChromeStat) -> PlainStat:
    name, kind, value = stat
    return name, kind, value.encode() if isinstance(value, str) else value


def reference(content: bytes) -> list[tuple[str, list[ChromeLine]]]:
    """Name and lines of each plane: a process, and at the end the environment, if the trace tells its start.

    Raises:
        ValueError: it is no trace.
    """
    data = _loaded(content)
    events = data if isinstance(data, list) else data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list):
        raise ValueError("no traceEvents")  # noqa: TRY004  a file is no argument
    taken = _Events(events)
    hosts = {pid: m for pid, name in taken.processes.items() if (m := _HOST_PREFIX.fullmatch(name))}
    if len({m[1] for m in hosts.values()}) == 1:
        taken.processes.update((pid, m[2]) for pid, m in hosts.items())
    lines: dict[Any, list[ChromeLine]] = {pid: [] for pid in taken.processes}
    for code, ((pid, tid), of_line) in enumerate(taken.lines.items()):
        lines.setdefault(pid, [])
        if not of_line:
            continue
        if tid is _COUNTER_LINE:
            named = [_whole(t) for (p, t), name in taken.threads.items() if p == pid and name == _COUNTERS]
            name, line_id = _COUNTERS, next((n for n in named if n is not None), None)
        else:
            name = taken.threads.get((pid, tid), "unknown thread" if tid is None else str(tid))
            line_id = _whole(tid)
        lines[pid].append((name, -1 - code if line_id is None else line_id, of_line))
    planes = [
        (taken.processes.get(pid, "unknown process" if pid is None else str(pid)), kept) for pid, kept in lines.items()
    ]
    if not planes:
        raise ValueError("no events")
    base = data.get("baseTimeNanoseconds") if isinstance(data, dict) else None
    if not (isinstance(base, Number) and base.isascii() and base.isdigit() and len(base) < 20):
        base = "0"
    if 0 < int(base) + (taken.origin_us or 0) * 1000 < 1 << 63:
        planes.append(("Task Environment", []))
    return planes


class _Events:
    """Events by process and thread."""

    def __init__(self, events: list[Any]) -> None:
        self.processes: dict[Any, str] = {}
        self.threads: dict[Any, str] = {}
        self.lines: dict[Any, list[ChromeEvent]] = {}
        self.origin_us: int | None = None
        self._open: dict[Any, list[dict[str, Any]]] = {}
        for e in events:
            if not isinstance(e, dict) or not all(_is_text(e.get(f, "")) for f in ("ph", "name", "cat")):
                raise ValueError("an element that is no event")
            self._take(e)
        for stack in self._open.values():
            for e in stack:
                self._add((_id(e.get("pid")), _id(e.get("tid"))), e, 0, e.get("args", {}))

    def _take(self, e: dict[str, Any]) -> None:
        phase, key, _ = e.get("ph", ""), (_id(e.get("pid")), _id(e.get("tid"))), _id(e.get("id"))
        if phase == "M":
            args = e.get("args")
            name = args.get("name") if isinstance(args, dict) else None
            if isinstance(name, str) and not isinstance(name, Number):
                if e.get("name", "") == "process_name":
                    self.processes[key[0]] = name
                elif e.get("name", "") == "thread_name":
                    self.threads[key] = name
        elif phase == "X" or (phase == "b" and "exact_dur" in e):
            self._add(key, e, _duration(e), e.get("args", {}))
        elif phase == "e" and "exact_dur" in e:
            pass
        elif phase in ("i", "I"):
            self._add(key, e, 0, e.get("args", {}))
        elif phase == "C":
            self._add((key[0], _COUNTER_LINE), e, 0, e.get("args", {}))
        elif phase in ("B", "b"):
            if (halves := _halves(e, phase)) is not None:
                self._open.setdefault(halves, []).append(e)
        elif phase in ("E", "e") and self._open.get(_halves(e, phase)):
            begin = self._open[_halves(e, phase)].pop()
            key = _id(begin.get("pid")), _id(begin.get("tid"))
            start, stop = _picoseconds(begin.get("ts")), _picoseconds(e.get("ts"))
            if start is None or stop is None or abs(stop - start) > _INT64_MAX:
                return
            args = begin.get("args", {})
            if "args" in e:
                args = _object(args) | _object(e["args"])
            self._add(key, begin, stop - start, args)

    def _add(self, key: Any, e: dict[str, Any], duration: int, args: Any) -> None:
        line = self.lines.setdefault(key, [])
        start = _picoseconds(e.get("ts"))
        if self.origin_us is None:
            microseconds = (start or 0) // 1_000_000
            self.origin_us = microseconds if start and start > _INT64_MAX and microseconds < 1 << 62 else 0
        if start is None or abs(start - self.origin_us * 1_000_000) > _INT64_MAX:
            return
        is_counter = key[1] is _COUNTER_LINE
        facts = [t for k, v in _object(args).items() if (t := _typed(k, v))]
        names = {f[0] for f in facts}
        keys = METADATA_KEYS
        if "hlo_op" in names and "hlo_category" not in names:
            keys = keys - {"program_id"}
        shared = [f for f in facts if f[0] in keys and not is_counter]
        own = [f for f in facts if f[0] not in keys or is_counter]
        if cat := e.get("cat", ""):
            own.append(("cat", StatKind.STRING, cat))
        long_name = next((f[2] for f in shared if f[0] == "long_name" and f[1] == StatKind.STRING), "")
        shared = [f for f in shared if f[0] != "long_name" or f[1] != StatKind.STRING]
        name = e.get("name", "")
        start -= self.origin_us * 1_000_000
        display = name if long_name else ""
        line.append((long_name or name, display, tuple(shared), start, duration, sorted(own, key=repr)))


def _loaded(content: bytes) -> Any:
    """The JSON value, with numbers as they are written.

    Raises:
        ValueError: it is not JSON.
    """
    text = content.removeprefix(b"\xef\xbb\xbf").decode()
    try:
        return _json(text)
    except ValueError:
        # a program that was stopped leaves the array open
        rest = text.strip(" \t\r\n")
        if not rest.startswith("[") or not rest[1:].strip(" \t\r\n,"):
            raise
        return _json(rest.removesuffix(",") + "]")


def _json(text: str) -> Any:
    value = json.loads(text, parse_float=Number, parse_int=Number, parse_constant=_no_constant)
    if re.search(r"\\u[dD]", text):
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no character
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _picoseconds(text: Any) -> int | None:
    """Return microseconds as written in the nearest whole picoseconds; None if the text is no sane number."""
    if not isinstance(text, str) or not _NUMBER.fullmatch(text.strip()):
        return None
    value = Decimal(text.strip())
    if abs(value) > Decimal(10) ** 30:
        return None
    return int(Context(prec=900, rounding=ROUND_HALF_UP).to_integral_value(value.scaleb(6, Context(prec=900))))


def _halves(e: dict[str, Any], phase: str) -> Any:
    """Return the key that an event's halves share: their thread or, if asynchronous, category and id; None without."""
    pid, number = _id(e.get("pid")), _id(e.get("id"))
    if phase in ("B", "E"):
        return pid, _id(e.get("tid"))
    return None if number is None else (pid, (e.get("cat", ""), number))


def _duration(e: dict[str, Any]) -> int:
    duration = _picoseconds(e.get("exact_dur", e.get("dur")))
    return 0 if duration is None or abs(duration) > _INT64_MAX else duration


def _typed(name: str, value: Any) -> ChromeStat | None:
    """Return an argument as a stat."""
    if value is None:
        return None
    if isinstance(value, str):
        if re.fullmatch(r"0|-?[1-9]\d*", value, re.ASCII) and len(value) < 30:
            if -(1 << 63) <= int(value) < 1 << 63:
                return name, StatKind.INT64, int(value)
            if 0 < int(value) < 1 << 64:
                return name, StatKind.UINT64, int(value)
        if name in DOUBLES and len(value) < 40 and _prints_as_is(value):
            return name, StatKind.DOUBLE, float(value)
        is_integer = re.fullmatch(r"-?\d+", value, re.ASCII) and value != "-0"
        if isinstance(value, Number) and not is_integer and math.isfinite(float(value)):
            return name, StatKind.DOUBLE, float(value)
        return name, StatKind.STRING, str(value)
    return name, StatKind.STRING, _compact(value)


def _prints_as_is(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and repr(float(text)) == text
    except ValueError:
        return False


def _compact(value: Any) -> str:
    """Return JSON text that keeps numbers as they are written."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(_compact, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(json.dumps(k, ensure_ascii=False) + ":" + _compact(v) for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def _id(value: Any) -> Any:
    """A pid, tid or id: a number, a text or None."""
    if isinstance(value, Number):
        if re.fullmatch(r"-?\d+", value):
            return int(value)
        if math.isfinite(number := float(value)):
            return number
    elif value is None or isinstance(value, str):
        return value
    raise ValueError("a pid, tid or id that is no number or text")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, Number)


def _object(args: Any) -> dict[str, Any]:
    if not isinstance(args, dict):
        raise ValueError("args that are no object")  # noqa: TRY004
    return args


def _whole(value: Any) -> int | None:
    """Return a pid or tid as a line's id, if it can be one."""
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value) if abs(value) <= _INT64_MAX else None
    return None
