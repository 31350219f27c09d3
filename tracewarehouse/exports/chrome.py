"""Writes a run as a Chrome trace, in the layout of the profiler's exporter, but whole.

Processes are planes and threads are lines, as in the files of JAX and XProf. Unlike there, asynchronous ops are async
events (`b` and `e`), program_id, symbol_id and flops stay arguments, and no event is left out. If the HLO of an op was
in a proto, for which the format has no room, `long_name` is its text: result, opcode, groups and metadata.

The Perfetto UI rounds `ts` and `dur` to nanoseconds separately, and drops an event that then ends within the next one
or after the one around it. So if the rounded values do not add up to the rounded end, `dur` spans the nanoseconds from
the rounded start to the rounded end, and `exact_dur` is the exact duration. Both halves of an async event have
`exact_dur` too, so that our reader knows the event without looking for its other half.

DuckDB writes the text of the events, a bounded number of them at a time.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from tracewarehouse.ingest.errors import TracewarehouseError, WarehouseError
from tracewarehouse.ingest.lake.durable_files import placed_whole
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    import pyarrow as pa

    from tracewarehouse.warehouse import Warehouse

AT_ONCE = 1 << 16
"""Events whose text is in memory at once."""
_HOST_PID, _OTHER_PID = 701, 501
"""The process number that the profiler's exporter gives to host threads, and the first that custom planes get."""

_THREAD_0 = 0xFFFF
"""Thread number of line 0: the Perfetto UI takes thread 0 for the thread with the number of its process."""


@dataclass(frozen=True)
class _Thread:
    """A line of a plane: its process and thread in the trace, and the place of its events in the run."""

    pid: int
    tid: int
    name: str
    kind: str
    is_named: bool
    first_event_id: int
    event_count: int


def export_chrome(warehouse: Warehouse, run: str, target: Path) -> list[Path]:
    """Write a run as Chrome trace JSON; returns the files.

    Args:
        warehouse: the warehouse.
        run: a run id, the beginning of one, or a name.
        target: a file that ends in .json or .json.gz, for all hosts; or a folder, which becomes a log folder of
            TensorBoard with one file per host, `plugins/profile/<run>/<host>.trace.json.gz`.

    Raises:
        WarehouseError: there is no such run.
        TracewarehouseError: the target has another ending, or cannot be written.
    """
    entry = warehouse.run(run)
    run_id = entry.run_id
    hosts = [h for (h,) in _rows(warehouse, f"SELECT host FROM main.hosts WHERE {_of(run_id)} ORDER BY host_index")]
    if target.name.endswith((".json", ".json.gz")):
        files = {target: hosts}
    elif target.suffix == "" or target.is_dir():
        folder = target / "plugins" / "profile" / _file_name(entry.name)
        files = {folder / f"{_file_name(host)}.trace.json.gz": [host] for host in hosts}
    else:
        raise TracewarehouseError(
            f"{target}: a Chrome trace ends in .json or .json.gz; name such a file, or a folder for one file per host"
        )
    try:
        for path, of_file in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with placed_whole(path) as part, ExitStack() as stack:
                stream = cast("IO[bytes]", stack.enter_context(part.open("wb")))
                if path.suffix == ".gz":
                    stream = cast("IO[bytes]", stack.enter_context(gzip.GzipFile("", "wb", 3, stream, mtime=0)))
                for piece in chrome_text(warehouse, run_id, of_file):
                    stream.write(piece)
    except OSError as error:
        raise TracewarehouseError(f"{target}: cannot be written: {error.strerror or error}") from None
    return list(files)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)


def chrome_text(
    warehouse: Warehouse, run_id: str, hosts: Sequence[str], *, is_for_viewers: bool = True
) -> Iterator[bytes | memoryview]:
    """Yield the Chrome trace of some hosts of a run, piece by piece.

    Args:
        warehouse: the warehouse.
        run_id: the run.
        hosts: the hosts.
        is_for_viewers: whether to round `dur` where a viewer would otherwise drop events.

    Raises:
        WarehouseError: the run is no longer in the warehouse, or cannot be read.
    """
    started = _rows(warehouse, f"SELECT profile_start_ns FROM main.runs WHERE {_of(run_id)}")
    if not started:
        raise WarehouseError(f"run {run_id} was removed while it was exported; ingest its capture again")
    head: dict[str, object] = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}}
    if started[0][0] is not None:
        head["baseTimeNanoseconds"] = started[0][0]
    yield json.dumps(head, separators=(",", ":"))[:-1].encode() + b',"traceEvents":[\n'
    threads, names = _threads(warehouse, run_id, hosts)
    last = b""
    for name in names:  # the last one is kept for the end, as no comma may follow the last event
        yield last
        last = name
    for first in range(0, len(threads), 1000):  # hosts may have 10^5 threads
        some = [t for t in threads[first : first + 1000] if t.event_count]
        low, end = 0, 0
        group: list[_Thread] = []
        for thread in some:
            if group and thread.first_event_id != end:
                yield from _events(warehouse, run_id, group, low, end, is_for_viewers)
                group = []
            low = low if group else thread.first_event_id
            end = thread.first_event_id + thread.event_count
            group.append(thread)
        if group:
            yield from _events(warehouse, run_id, group, low, end, is_for_viewers)
    yield last.removesuffix(b",\n") + b"\n]}\n"


def _events(
    warehouse: Warehouse, run_id: str, threads: Sequence[_Thread], low: int, end: int, is_for_viewers: bool
) -> Iterator[bytes | memoryview]:
    """The text of the events from number `low` to `end`, exclusive, which all belong to these threads."""
    for first in range(low, end, AT_ONCE):
        stop = min(first + AT_ONCE, end)
        here = [t for t in threads if t.first_event_id < stop and t.first_event_id + t.event_count > first]
        table = warehouse.query(_sql(run_id, here, first, stop, is_for_viewers)).arrow()
        for chunk in table.column(0).chunks:
            yield _bytes_of(chunk)


def _bytes_of(texts: pa.StringArray) -> memoryview:
    """The texts of an Arrow array one after the other, without a copy."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64 if str(texts.type) == "large_string" else np.int32)
    low, high = int(ends[texts.offset]), int(ends[texts.offset + len(texts)])
    return memoryview(data)[low:high]


def _threads(warehouse: Warehouse, run_id: str, hosts: Sequence[str]) -> tuple[list[_Thread], Iterator[bytes]]:
    """The lines of the hosts in the order of their events, and the metadata events that name them."""
    wanted = ", ".join(map(literal, hosts))
    lines = _rows(
        warehouse,
        "SELECT l.plane_index, l.host, l.plane, p.plane_id, p.kind, l.line, l.kind, l.line_id, l.first_event_id, "
        "l.event_count, r.format = 'chrome' FROM main.lines AS l "
        f"INNER JOIN main.planes AS p USING (run_id, plane_index) INNER JOIN main.runs AS r USING (run_id) "
        f"WHERE {_of(run_id)} AND l.host IN ({wanted}) ORDER BY l.line_index",
    )
    pids: dict[int, int] = {}
    taken: set[int] = set()
    tids: dict[int, set[int]] = {}
    threads: list[_Thread] = []
    processes: dict[int, str] = {}
    for plane_index, host, plane, plane_id, plane_kind, line, kind, line_id, first, count, is_chrome in lines:
        if plane_index not in pids:
            if is_chrome:
                number = plane_id
            elif plane_kind == "host":
                number = _HOST_PID
            else:
                number = plane_id + 1 if plane_id + 1 < _OTHER_PID else _OTHER_PID
            pids[plane_index] = _free(number, taken)
            processes[pids[plane_index]] = plane if len(hosts) == 1 else f"{host} {plane}"
        pid = pids[plane_index]
        is_named = plane_kind == "host" or plane.startswith("/device:GPU:")
        tid = _free(line_id & 0xFFFFFFFF or _THREAD_0, tids.setdefault(pid, set()))
        threads.append(_Thread(pid, tid, line, kind, is_named, first, count))
    return threads, _names(processes, threads)


def _free(number: int, taken: set[int]) -> int:
    """The number cut to 32 bits, as viewers read it, or the next one that is free."""
    number &= 0xFFFFFFFF
    while number in taken:
        number = (number + 1) & 0xFFFFFFFF
    taken.add(number)
    return number


def _names(processes: dict[int, str], threads: Sequence[_Thread]) -> Iterator[bytes]:
    for pid, name in processes.items():
        yield _metadata(pid, None, "process_name", "name", name)
        yield _metadata(pid, None, "process_sort_index", "sort_index", pid)
    for index, thread in enumerate(threads):
        yield _metadata(thread.pid, thread.tid, "thread_name", "name", thread.name)
        yield _metadata(thread.pid, thread.tid, "thread_sort_index", "sort_index", index)


def _metadata(pid: int, tid: int | None, event: str, key: str, value: str | int) -> bytes:
    thread = {} if tid is None else {"tid": tid}
    content = {"ph": "M", "pid": pid, **thread, "name": event, "args": {key: value}}
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b",\n"


def _sql(run_id: str, threads: Sequence[_Thread], low: int, end: int, is_for_viewers: bool) -> str:
    """SQL for the text of the events from `low` to `end`, exclusive, in file order."""
    own = f"{_of(run_id)} AND event_id >= {low} AND event_id < {end}"
    places = ", ".join(
        f'({t.first_event_id}, \'"pid":{t.pid},"tid":{t.tid}\', {literal(t.kind)}, {t.is_named})' for t in threads
    )
    return f"""
WITH threads (first_event_id, place, kind, is_named) AS (VALUES {places}),
events AS (
  SELECT event_id, instruction_id, NULL AS name, start_ps, duration_ps, device_offset_ps, device_duration_ps
  FROM main.ops
  WHERE {own}
  UNION ALL
  SELECT event_id, NULL, name, start_ps, duration_ps, NULL, NULL
  FROM main.host_events
  WHERE {own}
),
stats AS (
  SELECT
    event_id,
    string_agg({_member("name", _STAT)}, ',') AS members,
    string_agg({_member("name", _SAMPLE)}, ',') AS samples
  FROM main.event_stats
  WHERE {own}
  GROUP BY event_id
),
of_instruction AS (
  SELECT
    instruction_id,
    max(string_value) FILTER (WHERE name = 'name') AS long_name,
    max(string_value) FILTER (WHERE name IN ('display_name', 'event_name')) AS event_name,
    string_agg({_member("name", _STAT)}, ',') FILTER (WHERE name NOT IN ('name', 'display_name', 'event_name'))
      AS members
  FROM main.instruction_stats
  WHERE {_of(run_id)}
  GROUP BY instruction_id
),
used AS (SELECT DISTINCT instruction_id FROM events WHERE instruction_id IS NOT NULL),
instructions AS (
  SELECT
    i.instruction_id,
    coalesce(s.event_name, i.name) AS name,
    nullif(concat_ws(',', {_DESCRIBED}, {_MODEL_FLOPS}, s.members), '') AS members,
    nullif(concat_ws(',', {_DESCRIBED}, s.members), '') AS async_members,
    nullif(concat_ws(',', {_NAMED}, s.members), '') AS named_members
  FROM used
  INNER JOIN main.instructions AS i USING (instruction_id)
  LEFT JOIN of_instruction AS s USING (instruction_id)
  WHERE {_of(run_id)}
),
placed AS (SELECT * FROM events ASOF INNER JOIN threads ON events.event_id >= threads.first_event_id),
written AS (
  SELECT
    e.event_id,
    e.place,
    e.kind,
    e.duration_ps,
    {_microseconds("e.start_ps")} AS ts,
    {_microseconds("e.duration_ps")} AS dur,
    {_shown_ns("e.start_ps", "e.duration_ps") if is_for_viewers else "NULL"} AS shown_ns,
    {_microseconds("e.start_ps + e.duration_ps")} AS end_ts,
    to_json(coalesce(i.name, e.name))::VARCHAR AS name,
    s.samples,
    CASE WHEN e.kind = 'async_ops' THEN printf(',"cat":"async","id2":{{"local":"0x%x"}}', e.event_id) END AS async_id,
    concat_ws(
      ',',
      s.members,
      CASE WHEN e.is_named THEN i.named_members WHEN e.kind = 'async_ops' THEN i.async_members ELSE i.members END,
      '"device_offset_ps":"' || e.device_offset_ps || '"',
      '"device_duration_ps":"' || e.device_duration_ps || '"'
    ) AS members
  FROM placed AS e
  LEFT JOIN instructions AS i USING (instruction_id)
  LEFT JOIN stats AS s USING (event_id)
)
SELECT
  CASE
    WHEN kind = 'async_ops'
      THEN '{{"ph":"b",' || place || ',"ts":' || ts || ',"exact_dur":' || dur || async_id || ',"name":' || name
        || ',"args":{{' || members || '}}}},\n{{"ph":"e",' || place || ',"ts":' || end_ts || ',"exact_dur":' || dur
        || async_id || ',"name":' || name || '}},\n'
    WHEN kind = 'counters' AND duration_ps = 0
      THEN '{{"ph":"C",' || place || ',"ts":' || ts || ',"name":' || name || ',"args":{{' || coalesce(samples, '')
        || '}}}},\n'
    ELSE '{{"ph":"X",' || place || ',"ts":' || ts || ',"dur":'
      || CASE WHEN shown_ns IS NULL THEN dur ELSE {_microseconds("shown_ns * 1000")} || ',"exact_dur":' || dur END
      || ',"name":' || name
      || CASE WHEN members = '' THEN '' ELSE ',"args":{{' || members || '}}' END || '}},\n'
  END AS text
FROM written
ORDER BY event_id
"""


_STAT = """CASE kind
      WHEN 'double' THEN CASE
        WHEN isfinite(double_value) THEN CAST(double_value AS VARCHAR)
        ELSE '"' || double_value || '"'
      END
      WHEN 'bytes' THEN '"<opaque bytes>"'
      ELSE coalesce('"' || int_value || '"', to_json(coalesce(string_value, ''))::VARCHAR)
    END"""
"""A stat as the exporters write it: integers as text, bytes not at all."""
_SAMPLE = f"coalesce(CAST(int_value AS VARCHAR), {_STAT})"
"""The value of a counter, which viewers draw if it is a number."""


def _member(name: str, value: str) -> str:
    return f"to_json({name})::VARCHAR || ':' || {value}"


def _text(key: str, value: str) -> str:
    """A member with a text; NULL if there is none."""
    return f"'\"{key}\":' || to_json({value})::VARCHAR"


def _number(key: str, value: str) -> str:
    """A member with an integer as text; NULL if there is none."""
    return f"'\"{key}\":\"' || {value} || '\"'"


_FACTS = [_number("program_id", "i.program_id"), _text("source", "i.source"), _text("tf_op", "i.op_name")]
_DESCRIBED = ", ".join(
    [
        _text("hlo_category", "i.category"),
        _text("long_name", "coalesce(i.hlo_text, s.long_name)"),
        _number("flops", "i.flops"),
        _number("bytes_accessed", "i.bytes_accessed"),
        *_FACTS,
    ]
)
"""Members for an op of a TPU, whose events have the facts of their instruction as arguments."""
_MODEL_FLOPS = _number("model_flops", "i.model_flops")
"""Left out for asynchronous ops: readers that add up all events would count the flops here and at the start half."""
_ESCAPED = r"""replace(replace({}, '\', '\\'), '"', '\"')"""
_HLO_TEXT = f"""'%' || i.name || ' = ' || i.shape || ' ' || i.opcode || '()' || concat_ws(
      '',
      CASE WHEN i.category LIKE '_% fusion' THEN ', kind=k' || upper(i.category[1]) || i.category[2:-8] END,
      ', channel_id=' || i.channel_id,
      CASE
        WHEN i.opcode LIKE 'collective-permute%' OR i.opcode LIKE 'send%' OR i.opcode LIKE 'recv%'
          THEN ', source_target_pairs='
        ELSE ', replica_groups='
      END || translate(i.replica_groups, '[]', '{{}}'),
      ', metadata={{' || nullif(concat_ws(
        ' ',
        'op_name="' || {_ESCAPED.format("i.op_name")} || '"',
        'source_file="' || {_ESCAPED.format("regexp_replace(i.source, ':[0-9]+$', '')")} || '"',
        'source_line=' || nullif(regexp_extract(i.source, ':([0-9]+)$', 1), '')
      ), '') || '}}'
    )"""
"""The text of an instruction whose facts were in a proto; it lacks the operands, which no table has."""
_NAMED = ", ".join(
    [
        "CASE WHEN coalesce(i.module, i.opcode, s.event_name, CAST(i.program_id AS VARCHAR)) IS NOT NULL "
        f"THEN {_text('hlo_op', 'i.name')} END",
        _text("hlo_module", "i.module"),
        _number("program_id", "i.program_id"),
        _text("long_name", f"coalesce(i.hlo_text, {_HLO_TEXT})"),
    ]
)
"""Members for an op of a GPU or a virtual device, whose events name their instruction."""


def _microseconds(picoseconds: str) -> str:
    """Microseconds with six decimals, exactly."""
    size = f"abs({picoseconds})"
    return (
        f"CASE WHEN {picoseconds} < 0 THEN '-' ELSE '' END || {size} // 1000000 || '.' "
        f"|| lpad(CAST({size} % 1000000 AS VARCHAR), 6, '0')"
    )


def _shown_ns(start: str, duration: str) -> str:
    """Nanoseconds from the rounded start to the rounded end, as the Perfetto UI rounds; NULL if its result is the same.

    The UI multiplies the microseconds, a double, by 1000 and rounds to the nearest integer, halves away from 0.
    """

    def rounded(picoseconds: str) -> str:
        return f"CAST(round({picoseconds} / 1e6 * 1000) AS BIGINT)"

    shown = f"{rounded(f'({start} + {duration})')} - {rounded(start)}"
    return f"CASE WHEN {shown} <> {rounded(duration)} THEN {shown} END"


def _of(run_id: str) -> str:
    return f"run_id = {literal(run_id)}"


def _rows(warehouse: Warehouse, sql: str) -> list[tuple[Any, ...]]:
    return warehouse.query(sql).rows()
