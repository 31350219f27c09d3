"""Proves that a run holds all of its capture: decodes it again with other parsers, and compares line by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracewarehouse.ingest.capture.sources import Capture
from tracewarehouse.ingest.columns.keys import distinct, is_new, packed
from tracewarehouse.ingest.columns.profiler_names import (
    CPU_PLANE,
    DEVICE_PREFIX,
    GPU_PREFIX,
    OWN_STATS,
    PREDICTED_STATS,
)
from tracewarehouse.ingest.columns.records import Int32, Int64, StatKind, UInt64
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.fsck import column_batches, table_rows
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import RunVersion, derived_run_id, run_digest
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.files import distinct as distinct_files
from tracewarehouse.ingest.readers.xplane.plain import PlainLine, PlainPlane, PlainStat, double_bits, plain_planes

INSTRUCTION_STATS = {"hlo_op": "name", "hlo_module": "module", "program_id": "program_id"}
"""Stats of CPU and GPU op events that main.ops holds as the instruction, with the instruction's column."""
_CLASS = {
    StatKind.DOUBLE: "double",
    StatKind.UINT64: "integer",
    StatKind.INT64: "integer",
    StatKind.STRING: "text",
    StatKind.REF: "text",
    StatKind.BYTES: "bytes",
}
_WORD = 1 << 64
_SAYS = ("display_name", "display_id", "timestamp_ns", "duration_ps")
_STAT = ["name", "kind", "int_value", "double_value", "string_value", "bytes_value"]


@dataclass
class Tally:
    """Counts and sums of a line's content, modulo 2^64, so that a changed, lost or doubled row shows."""

    events: int = 0
    start_ps: int = 0
    """Sum of the starts on the run's clock."""
    duration_ps: int = 0
    stats: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """By name and class (integer, double, text, bytes): number of values, and the sum of their bits or CRC-32."""

    def add(self, name: str, kind: str, count: int, total: int) -> None:
        """Add values of a stat."""
        before = self.stats.get((name, kind), (0, 0))
        if count:
            self.stats[name, kind] = before[0] + count, (before[1] + total) % _WORD


@dataclass(frozen=True)
class LineCount:
    """One line of a capture beside that of its run; equal if events, times and stats agree in number and sum."""

    host: str
    plane: str
    line: str
    events: int
    events_in_run: int
    stats: int
    is_equal: bool


@dataclass
class CaptureComparison:
    """A capture and its run, line by line."""

    run_id: str
    planes: int = 0
    counts: list[LineCount] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    """One sentence per difference; empty if the run has everything."""

    @property
    def events(self) -> int:
        """Events in the capture."""
        return sum(c.events for c in self.counts)

    @property
    def stats(self) -> int:
        """Stats of events in the capture."""
        return sum(c.stats for c in self.counts)


def compare_with_capture(capture: Capture, warehouse: Path) -> CaptureComparison:
    """Prove from a capture's bytes that its run in the warehouse has all its events and stats.

    The format's independent decoder reads the file and tallies every line: events, times, and the values of each stat.
    The same tally is taken of the Parquet rows. A stat that became a column counts as the stat that it was. HLO names
    of ops count if the instruction has them. Fields of planes, lines and event metadata are compared too, except stats
    of instructions, which planes share. It takes some seconds per million events.
    """
    files, _ = distinct_files(CaptureFile(path, max_gzip_ratio=capture.max_gzip_ratio) for path in capture.files)
    lake = Lake(warehouse)
    run = lake.run(derived_run_id(run_digest(f.digest for f in files)))
    if run is None:
        raise WarehouseError(f"{capture.name}: not in {warehouse}; run `tw ingest` on it first")
    comparison = CaptureComparison(run.run_id)
    try:
        in_tables = _RunTables(lake, run)
        for file in files:
            _compare_file(comparison, file, in_tables)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise WarehouseError(f"run {run.run_id}: its tables cannot be read ({error}); ingest it again") from None
    if in_tables.unread:
        comparison.differences.append(f"the run has {in_tables.unread} lines more than the capture")
    return comparison


class _RunTables:
    def __init__(self, lake: Lake, run: RunVersion) -> None:
        columns = ["line_index", "host", "plane", "line", "line_id", "first_event_id", "event_count", *_SAYS]
        self.lines = sorted(table_rows(lake, run, "lines", columns), key=lambda r: r["line_index"])
        self.hosts = {r["digest"]: r for r in table_rows(lake, run, "hosts", ["digest", "host", "clock_offset_ps"])}
        self.plane_stats = Counter(
            (str(r["host"]), str(r["plane"]), *_row_stat(r))
            for r in table_rows(lake, run, "plane_stats", ["host", "plane", *_STAT])
        )
        self.planes: dict[str, list[dict[str, Any]]] = {}
        planes = table_rows(lake, run, "planes", ["plane_index", "host", "plane", "plane_id"])
        for row in sorted(planes, key=lambda r: r["plane_index"]):
            self.planes.setdefault(row["host"], []).append(row)
        self.metadata = Counter(
            (int(r["plane_index"]), int(r["metadata_id"]), *_row_stat(r))
            for r in table_rows(lake, run, "metadata_stats", ["plane_index", "metadata_id", *_STAT])
        )
        described = ["plane_index", "stat_id", "name", "description"]
        self.descriptions = {tuple(r[c] for c in described) for r in table_rows(lake, run, "stat_metadata", described)}
        names = ["instruction_id", *INSTRUCTION_STATS.values()]
        rows = sorted(table_rows(lake, run, "instructions", names), key=lambda r: r["instruction_id"])
        self.instructions = {s: [r[c] for r in rows] for s, c in INSTRUCTION_STATS.items()}
        self.tallies = [Tally() for _ in self.lines]
        self._instructions = np.full(run.rows["events"], -1, np.int32)
        self._first = np.array([r["first_event_id"] for r in self.lines], np.int64)
        columns = ["event_id", "start_ps", "duration_ps"]
        own = [*columns, "instruction_id", *OWN_STATS, *PREDICTED_STATS.values()]
        for batch in column_batches(lake, run, "ops", own, ["basis"]):
            self._add_events(batch)
        for batch in column_batches(lake, run, "host_events", columns):
            self._add_events(batch)
        self._instruction_ids = self._instructions.tolist()  # as Python integers, fast to look up
        for batch in column_batches(lake, run, "event_stats", ["event_id", *_STAT], ["name", "kind", "string_value"]):
            self._add_stats(batch)
        self._next: dict[tuple[str, str, str, int], list[int]] = {}
        for i, r in reversed(list(enumerate(self.lines))):
            self._next.setdefault((r["host"], r["plane"], r["line"], r["line_id"]), []).append(i)

    def line(self, host: str, plane: str, line: PlainLine) -> int | None:
        indices = self._next.get((host, plane, line.name, line.line_id))
        return indices.pop() if indices else None

    def instruction(self, event_id: int) -> int:
        return self._instruction_ids[event_id] if event_id < len(self._instruction_ids) else -1

    @property
    def unread(self) -> int:
        return sum(map(len, self._next.values()))

    def _line(self, ids: Int64) -> Int64:
        """Return the line index of each event id; of lines with the same first event, the last one has the events."""
        return self._first.searchsorted(ids, side="right") - 1

    def _add_events(self, columns: dict[str, pa.Array]) -> None:
        ids, start, duration = (columns[c].to_numpy() for c in ("event_id", "start_ps", "duration_ps"))
        if "instruction_id" in columns:
            self._instructions[ids] = columns["instruction_id"].to_numpy()
        line = self._line(ids)
        for row, count, [starts, durations] in _sums(line, [start.view(np.uint64), duration.view(np.uint64)]):
            tally = self.tallies[line[row]]
            tally.events += count
            tally.start_ps = (tally.start_ps + starts) % _WORD
            tally.duration_ps = (tally.duration_ps + durations) % _WORD
        for name in OWN_STATS:
            if name in columns:
                is_known = columns[name].is_valid().to_numpy(zero_copy_only=False)
                values = _numbers(columns[name], np.int64)[is_known]
                known_line = line[is_known]
                for row, count, [total] in _sums(known_line, [values]):
                    self.tallies[known_line[row]].add(name, "integer", count, total)

        for name, column in PREDICTED_STATS.items():
            if column in columns:
                kind, values, is_known = _predicted(columns[column])
                known_line = line[is_known]
                for row, count, [total] in _sums(known_line, [values[is_known]]):
                    self.tallies[known_line[row]].add(name, kind, count, total)

    def _add_stats(self, columns: dict[str, pa.Array]) -> None:
        line = self._line(columns["event_id"].to_numpy())
        name, names = _coded(columns["name"])
        kind, kinds = _coded(columns["kind"])
        for code in np.flatnonzero(np.bincount(kind)).tolist():
            at = np.flatnonzero(kind == code)
            kind_class = _CLASS[StatKind[kinds[code].upper()]]
            values = _row_bits(kind_class, {c: v.take(pa.array(at)) for c, v in columns.items() if c != "kind"})
            for row, count, [total] in _sums(packed([line[at], name[at]]), [values]):
                self.tallies[line[at[row]]].add(names[name[at[row]]], kind_class, count, total)


def _compare_file(comparison: CaptureComparison, file: CaptureFile, tables: _RunTables) -> None:
    host = tables.hosts.get(file.digest)
    if host is None:
        comparison.differences.append(f"the file with digest {file.digest[:12]}... is not a host of the run")
        return
    stats: Counter[tuple[str, str, str, str, str]] = Counter()
    for position, plane in enumerate(plain_planes(file)):
        comparison.planes += 1
        if plane.plane_id is not None:
            comparison.differences += _plane_differences(plane, position, tables, host["host"])
        stats.update((host["host"], plane.name, *_plain_stat(s)) for s in plane.stats)
        for line in plane.lines:
            _compare_line(comparison, plane, line, host, tables)
    for key, count in stats.items():
        if tables.plane_stats[key] < count:
            what = f"plane {key[1]!r} has {count} stats {key[2]!r} of the value {key[4][:80]}"
            comparison.differences.append(f"{what}, the run fewer")


def _plane_differences(plane: PlainPlane, position: int, tables: _RunTables, host: str) -> Iterator[str]:
    rows = tables.planes.get(host, [])
    row = rows[position] if position < len(rows) else None
    if row is None or (row["plane"], row["plane_id"]) != (plane.name, plane.plane_id):
        yield f"plane {plane.name!r} with id {plane.plane_id} is not number {position} of its host in the run"
        return
    index = int(row["plane_index"])
    has_instructions = plane.name.startswith(DEVICE_PREFIX) and plane.lines and not plane.name.startswith(GPU_PREFIX)
    wanted: Counter[tuple[int, int, str, str, str]] = Counter()
    for m in plane.metadata:
        stats: list[PlainStat] = [] if has_instructions else list(m.stats)
        if m.display_name and not has_instructions:
            stats.append(("display_name", StatKind.STRING, m.display_name.encode()))
        stats += [("child_id", StatKind.INT64, child) for child in m.children]
        wanted.update((index, m.metadata_id, *_plain_stat(s)) for s in stats)
    lost = wanted - tables.metadata
    if lost:
        (_, metadata_id, name, _, _), _ = lost.most_common(1)[0]
        such = f"such as {name!r} of {metadata_id}"
        yield f"plane {plane.name!r}: {lost.total()} values of event metadata are not in the run, {such}"
    for described in plane.descriptions:
        if (index, *described) not in tables.descriptions:
            yield f"plane {plane.name!r}: the description of stat {described[1]!r} is not in the run"


def _compare_line(
    comparison: CaptureComparison, plane: PlainPlane, line: PlainLine, host: dict[str, Any], tables: _RunTables
) -> None:
    where = f"line {line.name!r} of plane {plane.name!r}"
    index = tables.line(host["host"], plane.name, line)
    if index is None:
        comparison.differences.append(f"{where} is not in the run")
        comparison.counts.append(LineCount(host["host"], plane.name, line.name, 0, 0, 0, is_equal=False))
        return
    tally, stats = _tally(plane, line, tables, tables.lines[index]["first_event_id"], host["clock_offset_ps"])
    before = len(comparison.differences)
    rows = tables.tallies[index]
    in_run = tuple(tables.lines[index][c] or ("" if c == "display_name" else 0) for c in _SAYS)
    if line.says is not None and line.says != in_run:
        comparison.differences.append(
            f"{where}: {', '.join(_SAYS)} are {line.says} in the capture, {in_run} in the run"
        )
    for what in ("events", "start_ps", "duration_ps"):
        in_file, in_rows = getattr(tally, what), getattr(rows, what)
        if in_file != in_rows:
            sums = "" if what == "events" else "sum of "
            comparison.differences.append(f"{where}: {sums}{what} is {in_file} in the capture, {in_rows} in the run")
    for name, kind in sorted(tally.stats.keys() | rows.stats.keys()):
        in_file, in_rows = tally.stats.get((name, kind), (0, 0)), rows.stats.get((name, kind), (0, 0))
        if in_file[0] != in_rows[0]:
            values = f"{in_file[0]} in the capture, {in_rows[0]} in the run"
            comparison.differences.append(f"{where}: {kind} values of stat {name!r}: {values}")
        elif in_file != in_rows:
            comparison.differences.append(f"{where}: stat {name!r} has other values in the run")
    is_equal = len(comparison.differences) == before
    comparison.counts.append(LineCount(host["host"], plane.name, line.name, tally.events, rows.events, stats, is_equal))


def _tally(
    plane: PlainPlane, line: PlainLine, tables: _RunTables, first: int, clock_offset_ps: int
) -> tuple[Tally, int]:
    """Tally a line, without the stats that its instructions have; also return the number of all its stats."""
    tally = Tally()
    has_instructions = plane.name.startswith(GPU_PREFIX) or plane.name == CPU_PLANE
    count = 0
    for _, start, duration, stats in line.events():
        instruction = tables.instruction(first + tally.events)
        tally.events += 1
        tally.start_ps += start + clock_offset_ps
        tally.duration_ps += duration
        count += len(stats)
        for name, kind, value in stats:
            if instruction >= 0 and name in OWN_STATS and isinstance(value, bytes):
                if value.isdigit() and len(value) < 19:  # integers as text are in the column too
                    tally.add(name, "integer", 1, int(value))
            elif instruction >= 0 and has_instructions and name in INSTRUCTION_STATS:
                expected = tables.instructions[name][instruction]
                if expected is not None and _as_column(name, value) == str(expected):
                    continue
            tally.add(name, _CLASS[kind], 1, _bits(value, kind))
    tally.start_ps %= _WORD
    tally.duration_ps %= _WORD
    return tally, count


def _bits(value: float | bytes, kind: StatKind) -> int:
    """Return the 64 bits to sum; for text and bytes, a checksum."""
    if isinstance(value, bytes):
        return crc32(value if kind == StatKind.BYTES else value.decode("utf-8", "replace").encode())
    return double_bits(value) if isinstance(value, float) else value % _WORD


def _as_column(name: str, value: float | bytes) -> str:
    """Return a stat as the text of an instruction's column: program ids are unsigned, other integers signed."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    bits = _bits(value, StatKind.DOUBLE)
    return str(bits if name == "program_id" or bits < _WORD // 2 else bits - _WORD)


def _plain_stat(stat: PlainStat) -> tuple[str, str, str]:
    name, kind, value = stat
    if isinstance(value, bytes):
        text = value.hex() if kind == StatKind.BYTES else value.decode("utf-8", "replace")
    else:
        text = str(double_bits(value)) if isinstance(value, float) else str(value)
    return name, kind.name.lower(), text


def _row_stat(row: dict[str, Any]) -> tuple[str, str, str]:
    """Return a row of a stats table in the form of `_plain_stat`."""
    if row["bytes_value"] is not None:
        text = row["bytes_value"].hex()
    elif row["double_value"] is not None:
        text = str(double_bits(row["double_value"]))
    else:
        text = str(row["int_value"]) if row["int_value"] is not None else row["string_value"]
    return row["name"], row["kind"], text


def _row_bits(kind_class: str, columns: dict[str, pa.Array]) -> UInt64:
    """Return the bits to sum of rows of a stats table; see `_bits`."""
    if kind_class == "double":
        return _numbers(columns["double_value"], np.float64)
    if kind_class == "bytes":
        return np.array([crc32(v) for v in columns["bytes_value"].to_pylist()], np.uint64)
    code, texts = _coded(columns["string_value"])
    used, index = distinct(code)
    number = int if kind_class == "integer" else (lambda t: crc32(t.encode()))  # a uint64 beyond int64 is text
    wide = np.array([number(texts[c]) if c >= 0 else 0 for c in used.tolist()], np.uint64)[index]
    if kind_class == "text":
        return wide
    return np.where(code >= 0, wide, _numbers(columns["int_value"], np.int64))


def _predicted(column: pa.Array) -> tuple[str, UInt64, npt.NDArray[np.bool_]]:
    """Return the class of a column of predicted ops, the bits of its values (see `_bits`), and which are known."""
    is_known = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_dictionary(column.type):
        code, texts = _coded(column)
        sums = np.array([crc32(t.encode()) for t in texts] + [0], np.uint64)
        return "text", sums[code], is_known
    if pa.types.is_boolean(column.type):
        return "integer", column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64), is_known
    return "integer", _numbers(column, np.int64), is_known


def _numbers(column: pa.Array, dtype: npt.DTypeLike) -> UInt64:
    values = np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * 8).view(np.uint64)
    return np.where(column.is_valid().to_numpy(zero_copy_only=False), values, np.uint64(0))


def _coded(column: pa.Array) -> tuple[Int32, list[str]]:
    """Return codes, -1 for NULL, and their texts."""
    codes = column.indices.to_numpy(zero_copy_only=False)
    is_known = column.is_valid().to_numpy(zero_copy_only=False)
    return np.where(is_known, codes, -1).astype(np.int32), column.dictionary.to_pylist()


def _sums(key: Int64, columns: list[UInt64]) -> Iterator[tuple[int, int, list[int]]]:
    """Return for each distinct key one of its rows, their number, and the sum of each column modulo 2^64."""
    if not len(key):
        return
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(is_new(key[order]))
    counts = np.diff(first, append=len(order))
    sums = [np.add.reduceat(c[order], first).tolist() for c in columns]
    yield from zip(order[first].tolist(), counts.tolist(), map(list, zip(*sums, strict=True)), strict=True)
