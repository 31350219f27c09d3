"""A capture as a row of CCL-Bench: its card, and the Chrome trace that its TPU tools read.

The field numbers of XSpace are those of OpenXLA's xplane.proto.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracewarehouse.collect.capture import CARD, require_writable, write_error
from tracewarehouse.collect.errors import CollectError
from tracewarehouse.ingest.capture.card import dump_card, load_card
from tracewarehouse.ingest.protobuf import Field, message_classes

_NAME = Field(2, "name", "bytes")
_MESSAGES = message_classes(
    "tracewarehouse.ccl_bench",
    {
        "XStat": [
            Field(1, "metadata_id", "int64"),
            Field(2, "double_value", "double", oneof="value"),
            Field(3, "uint64_value", "uint64", oneof="value"),
            Field(4, "int64_value", "int64", oneof="value"),
            Field(5, "str_value", "bytes", oneof="value"),
            Field(6, "bytes_value", "bytes", oneof="value"),
            Field(7, "ref_value", "uint64", oneof="value"),
        ],
        "XEvent": [
            Field(1, "metadata_id", "int64"),
            Field(2, "offset_ps", "int64"),
            Field(3, "duration_ps", "int64"),
            Field(4, "stats", "XStat", is_repeated=True),
        ],
        "XLine": [
            Field(1, "id", "int64"),
            _NAME,
            Field(3, "timestamp_ns", "int64"),
            Field(4, "events", "XEvent", is_repeated=True),
        ],
        "XEventMetadata": [_NAME, Field(4, "display_name", "bytes"), Field(5, "stats", "XStat", is_repeated=True)],
        "XStatMetadata": [_NAME],
        "EventEntry": [Field(1, "key", "int64"), Field(2, "value", "XEventMetadata")],
        "StatEntry": [Field(1, "key", "int64"), Field(2, "value", "XStatMetadata")],
        "XPlane": [
            Field(1, "id", "int64"),
            _NAME,
            Field(3, "lines", "XLine", is_repeated=True),
            Field(4, "event_metadata", "EventEntry", is_repeated=True),
            Field(5, "stat_metadata", "StatEntry", is_repeated=True),
        ],
        "XSpace": [Field(1, "planes", "XPlane", is_repeated=True)],
    },
)


def write_row(capture: Path, folder: Path) -> Path:
    """Write the folder of a capture's row, `folder/<name of the capture>`: card, and the trace of the first host.

    CCL-Bench reads one trace per row; the other hosts' devices are in the capture alone.

    Returns:
        The row's folder.

    Raises:
        CollectError: the capture has no card or profile, is not of TPUs, or the row cannot be written.
    """
    profiles = sorted(capture.rglob("*.xplane.pb"))
    if not profiles or not (capture / CARD).is_file():
        raise CollectError(f"{capture}: no capture of the collector with {CARD} and a profile is there")
    card = load_card(capture / CARD)
    if card.workload.hardware.xpu_spec.type != "TPU":
        raise CollectError(f"{capture}: was recorded on virtual devices; CCL-Bench takes captures of TPUs")
    row = folder / capture.name
    require_writable(row)
    card.metric_source.traces = ["json_tpu"]
    try:
        dump_card(card, row / f"{capture.name}.yaml")
        trace = row / profiles[0].name.replace(".xplane.pb", ".trace.json")
        trace.write_text(json.dumps(chrome_trace(profiles[0].read_bytes())), encoding="utf-8")
    except OSError as error:
        raise write_error(row, error) from None
    return row


def chrome_trace(xspace: bytes) -> dict[str, Any]:
    """A profile as Chrome trace, with the fields of XProf's export: processes are planes, threads are lines.

    Raises:
        CollectError: it is no profile.
    """
    from google.protobuf.message import DecodeError

    try:
        space = _MESSAGES["XSpace"].FromString(xspace)
    except DecodeError:
        raise CollectError("the profile is damaged; tw fsck and tw ingest say where") from None
    return {
        "displayTimeUnit": "ns",
        "traceEvents": [e for n, plane in enumerate(space.planes) for e in _events(n, plane)],
    }


def _events(pid: int, plane: Any) -> Iterator[dict[str, Any]]:
    events = {entry.key: entry.value for entry in plane.event_metadata}
    names = {entry.key: _text(entry.value.name) for entry in plane.stat_metadata}
    shared = {key: _stats(value.stats, names) for key, value in events.items()}
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": _text(plane.name)}}
    for tid, line in enumerate(plane.lines):
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": _text(line.name)}}
        for event in line.events:
            known = events.get(event.metadata_id)
            name = _text((known.display_name or known.name) if known else b"")
            times = {"device_offset_ps": event.offset_ps, "device_duration_ps": event.duration_ps}
            yield {
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "name": name,
                "ts": line.timestamp_ns / 1e3 + event.offset_ps / 1e6,
                "dur": event.duration_ps / 1e6,
                "args": times | shared.get(event.metadata_id, {}) | _stats(event.stats, names),
            }


def _stats(stats: Any, names: dict[int, str]) -> dict[str, Any]:
    found = {}
    for stat in stats:
        kind = stat.WhichOneof("value")
        if kind is None or kind == "bytes_value":  # programs
            continue
        value = getattr(stat, kind)
        if kind == "ref_value":
            value = names.get(value, "")
        found[names.get(stat.metadata_id, str(stat.metadata_id))] = _text(value) if isinstance(value, bytes) else value
    return found


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
