"""A second decoder of Nsight Systems' exports: row by row, without numpy or any code of the package."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Streams = dict[str, dict[str, Counter[tuple[Any, ...]]]]
KINDS = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
NEEDED = {"start", "end", "deviceId", "streamId"}
COMMON = ["start", "end", "globalPid", "deviceId", "contextId", "streamId", "correlationId", "graphNodeId", "graphId"]
OWN = {
    "KERNEL": ("shortName", "demangledName"),
    "MEMCPY": ("shortName", "copyKind", "srcKind", "dstKind"),
    "MEMSET": ("shortName", "copyKind", "srcKind", "dstKind"),
    "GRAPH_TRACE": ("copyKind", "srcKind", "dstKind"),
}
MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
COPIES = dict(enumerate("? HtoD DtoH HtoA AtoH AtoA AtoD DtoA DtoD HtoH PtoP HtoD DtoH DtoD".split()))  # noqa: SIM905
CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API", "CUDNN_EVENTS", "CUBLAS_EVENTS")
CALL = ("start", "end", "globalTid", "correlationId", "nameId", "eventClass")
RANGE = ("start", "end", "eventType", "globalTid", "textId")
READ = {*NEEDED, *COMMON, *CALL, *RANGE, *(name for names in OWN.values() for name in names), "text", "id", "value"}
READ |= {"gpuId", "cudaId", "pid"}
LONGEST = ((1 << 63) - 1) // 1000


def rows(connection: sqlite3.Connection, table: str, needed: set[str]) -> Iterator[Row]:
    """The rows of a table that has these columns; a row that is damaged in a column of no interest counts."""
    found = {c[1] for c in connection.execute(f'PRAGMA table_info("{table}")')}
    columns = sorted(found & READ)
    if needed <= found:
        for values in connection.execute(f'SELECT {", ".join(columns)} FROM "{table}"'):
            yield dict(zip(columns, values, strict=True))


def numbers(row: Row, names: Any) -> Row:
    """Columns as numbers, None for NULL or without the column; ValueError for anything else."""
    found: Row = {}
    for name in names:
        value = row.get(name)
        found[name] = None if value is None else int(value)
        if value is not None and not -(1 << 63) <= int(value) < 1 << 63:
            raise ValueError(value)
    return found


def reference(path: Path) -> Streams:
    """The events of each stream: name, start and end in ps, correlation, operator path, and whether a call launched it.

    Raises:
        ValueError: it is damaged, or holds nothing.
    """
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        connection.text_factory = lambda b: b.decode("utf-8", "replace").replace("\0", "")
        return _decoded(connection)
    except (sqlite3.Error, OverflowError) as error:
        raise ValueError(str(error)) from None


def _decoded(connection: sqlite3.Connection) -> Streams:
    texts = rows(connection, "StringIds", {"id", "value"})
    strings = {r["id"]: r["value"] for r in texts if isinstance(r["id"], int) and isinstance(r["value"], str)}
    events: list[Row] = []
    for kind in KINDS:
        for row in rows(connection, f"CUPTI_ACTIVITY_KIND_{kind}", NEEDED):
            event = numbers(row, [*COMMON, "bytes", *OWN[kind]])
            if None in (event[n] for n in NEEDED):
                raise ValueError("an event without a time or a place")
            events.append(event | {"kind": kind, "pid": (event["globalPid"] or 0) >> 24})
    calls: list[Row] = []
    for table in CALLS:
        for row in rows(connection, table, {"start", "end", "globalTid"}):
            call = numbers(row, CALL)
            if call["start"] is not None and call["globalTid"] is not None:
                calls.append(call | {"is_cuda": table == CALLS[0] and call["eventClass"] in (0, 1, None)})
    ranges: list[Row] = []
    for row in rows(connection, "NVTX_EVENTS", {"start", "end", "eventType", "globalTid"}):
        mark = numbers(row, RANGE)
        if mark["eventType"] in (59, 60, 34) and mark["start"] is not None:
            text = row["text"] if isinstance(row.get("text"), str) else strings.get(mark["textId"], "")
            ranges.append(mark | {"text": text or "(unnamed)"})
    if not events and not calls and not ranges:
        raise ValueError("nothing")
    launch: dict[tuple[Any, Any], Row] = {}
    for call in sorted(calls, key=lambda c: c["start"]):
        if call["is_cuda"] and call["correlationId"] is not None:
            launch.setdefault((call["globalTid"] >> 24, call["correlationId"]), call)
    kernels = {(e["pid"], e["correlationId"]) for e in events if e["kind"] == "KERNEL"}
    kernels -= {(e["pid"], None) for e in events}
    kept = [e for e in events if e["kind"] != "GRAPH_TRACE" or (e["pid"], e["correlationId"]) not in kernels]
    zero = _zero(kept, calls, ranges)
    ordinals = _ordinals(connection, kept)
    short: dict[int, int] = {}
    for event in events:
        if event["kind"] == "KERNEL" and event["demangledName"] is not None and event["shortName"] in strings:
            named = event["demangledName"], event["shortName"]
            short[named[0]] = min(named[1], short.get(*named))
    found: Streams = {}
    for event in kept:
        by = launch.get((event["pid"], event["correlationId"]))
        path = _path([r for r in ranges if by and _is_around(r, by)])
        times = (event["start"] - zero) * 1000, (event["end"] - zero) * 1000
        streams = found.setdefault(f"/device:GPU:{ordinals[event['pid'], event['deviceId']]}", {})
        line = streams.setdefault(str(event["streamId"]), Counter())
        line[(_name(event, strings, short), *times, event["correlationId"], path, by is not None)] += 1
    return found


def _zero(events: list[Row], calls: list[Row], ranges: list[Row]) -> int:
    every = [(e["start"], e["end"]) for e in (*events, *calls)]
    every = [(start, start if end is None else end) for start, end in every]  # a call that the profile cut
    every += [(r["start"], r["start"] if r["end"] is None else max(r["start"], r["end"])) for r in ranges]
    first, last = min(min(times) for times in every), max(max(times) for times in every)
    zero = first if first > 10**17 else 0
    if max(last - zero, zero - first) > LONGEST:
        raise ValueError("too long")
    return zero


def _ordinals(connection: sqlite3.Connection, events: list[Row]) -> dict[tuple[int, int], int]:
    users = sorted({(e["pid"], e["deviceId"]) for e in events})
    known = {}
    for row in rows(connection, "TARGET_INFO_CUDA_DEVICE", {"gpuId", "cudaId", "pid"}):
        said = numbers(row, ("pid", "cudaId", "gpuId"))
        if said["pid"] is not None and said["gpuId"] is not None:
            known[said["pid"] & 0xFFFFFF, said["cudaId"]] = said["gpuId"]
    mapped = {u: known.get((u[0] & 0xFFFFFF, u[1]), -1) for u in users}
    if all(0 <= gpu < 10_000 for gpu in mapped.values()):
        return mapped
    is_clear = len({d for _, d in users if 0 <= d < 10_000}) == len(users)
    return {u: u[1] if is_clear else i for i, u in enumerate(users)}


def _name(event: Row, strings: dict[int, str], short: dict[int, int]) -> str:
    if event["kind"] == "MEMSET":
        return "Memset (Device)"
    if event["kind"] == "GRAPH_TRACE":
        return f"CUDA graph {event['graphId']}".removesuffix(" None")
    if event["kind"] == "MEMCPY":
        kind = COPIES.get(event["copyKind"] or -1, "Unknown")
        source, target = (dict(enumerate(MEMORY)).get(event[side], "Unknown") for side in ("srcKind", "dstKind"))
        return f"Memcpy {kind} ({source} -> {target})"
    full = event["shortName"] if event["demangledName"] is None else event["demangledName"]
    return strings.get(short.get(full, full)) or "(unnamed kernel)"


def _is_around(mark: Row, call: Row) -> bool:
    is_range = mark["eventType"] == 59 and mark["end"] is not None and mark["end"] >= mark["start"]
    return is_range and mark["globalTid"] == call["globalTid"] and mark["start"] <= call["start"] < mark["end"]


def _path(around: list[Row]) -> str | None:
    """The path of the ranges around a call, of which the outer ones began first."""
    nested: list[Row] = []
    in_order = sorted(around, key=lambda r: (r["start"], -r["end"]))
    for mark in in_order[::-1]:
        if not nested or mark["end"] >= nested[-1]["end"]:  # else they cross
            nested.append(mark)
    path: list[str] = []
    for mark in reversed(nested):
        name = re.split(", (?:seq|op_id) = ", mark["text"])[0]
        if re.match(r"nccl:\w|decode \d|prefill \d", name):
            continue
        if module := re.match(r"\{'Module': '([^']*)'", name):
            path = [module[1]]
            continue
        if path and re.match(r"\w+::", path[-1]):
            path.pop()
        path.append(name.replace("/", "_"))
    return "/".join(path) or None
