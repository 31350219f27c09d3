"""The Chrome reader against json.loads and a plain loop."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

from chrome_reference import everything, opened, reference
from fuzz.judging import RefusedError, Target, UnknownError, scratch_file
from fuzz.seeds import capture_files

from tracewarehouse.ingest.readers.chrome.values import METADATA_KEYS

KINDS = ("none", "none", "truncate", "flip", "insert", "delete", "token", "splice", "swap", "number", "deep")
TEXTS = (
    "", "a", "fusion.12", "XLA Ops", "/device:TPU:0", "host-1 /device:TPU:0", "host-2 /host:CPU", "_counters_", "},{",
    '},{"ph":"X"', "]", '"', "\\", "\n", "\0", "<b>", "12", "-3", "007", "1.5", "é", "\u202e", "x" * 90,
    "9223372036854775808", "18446744073709551616", "%a = f32[2] add(%x)",
)  # fmt: skip
NUMBERS = (
    "0", "1", "-1", "12.5", "1144986.718988", "4.3961589999999999", "1e3", "2E-3", "1e300", "-0", "-0.0", "0.0000005",
    "1736630486123456.789012", "9223372036854.775807", "9223372036854775807", "18446744073709551616", "1e999",
    "123456789012345678901234567890", "1.7976931348623157e308", "3.0000000",
)  # fmt: skip
ODD_NUMBERS = ("NaN", "Infinity", "-Infinity", "01", "+1", ".5", "1.", "1e", "0x10", "--1", "1_0", "\u0661")
TOKENS = (
    b'"', b"}", b"{", b"[", b"]", b",", b":", b"\\", b"\xff", b"\xed\xa0\x80", b"\0", b"\n", b"0", b"-", b"e", b".",
    b"null", b"true", b"NaN", b'"ph":"E",', b'"ts":1,', b"},{", b'{"ph":"X"},', b'\\ud800', b"\\u0000", b"\\x", b"/**/",
    b'"args":{},', b'"traceEvents":[],', b"\xef\xbb\xbf", b"[" * 40, b"1e9999999", b"9" * 400,
)  # fmt: skip
PIECES = (1, 50, 300, 1500, 4000)
"""Bytes of events parsed together: from less than one event to several templates' repeats."""
PHASES = ("X", "X", "X", "X", "B", "E", "E", "i", "I", "C", "M", "s", "b", "b", "e", "e", "", "XX")


class _Raw(str):
    """JSON text that stands as it is."""


class ChromeTarget(Target):
    """Traces made at random, in pieces of any size, and damaged as bytes."""

    name = "chrome"
    suffix = ".trace.json"

    def __init__(self, traces: Path | None = None) -> None:
        self._path = scratch_file(self, "x.trace.json")
        files = [f for suffix in (".trace.json", ".trace.json.gz") for f in capture_files(traces, suffix)]
        packed = [f.read_bytes() for f in files if f.stat().st_size < 1 << 21]
        self._corpus = [gzip.decompress(p)[: 1 << 16] if p[:2] == b"\x1f\x8b" else p[: 1 << 16] for p in packed]

    def make(self, r: random.Random) -> tuple[str, bytes]:
        kind = r.choice(KINDS)
        if kind == "deep":
            n = r.choice((10, 500, 5000))
            value = r.choice(("[" * n + "]" * n, '{"a":' * n + "1" + "}" * n, "[" * n))
            event = b'{"ph":"X","ts":1,"dur":1,"name":"a","args":{"a":%b}}' % value.encode()
            return kind, r.choice(
                (b"[%b]", b'{"traceEvents":[%b]}', b'{"x":%b,"traceEvents":[{"ph":"X","ts":1}]}')
            ) % event
        if self._corpus and r.random() < 0.01:
            return kind, damaged(r, r.choice(self._corpus), kind)
        return kind, damaged(r, trace(r, with_odd=kind == "number"), kind)

    def read(self, data: bytes) -> Any:
        self._path.write_bytes(data)
        # follows from the bytes, so that an input is repeated by its bytes alone
        chunk = PIECES[len(data) % len(PIECES)]
        return everything(opened(self._path, chunk))

    def reference(self, data: bytes) -> Any:
        if not data:
            raise RefusedError("empty")
        try:
            return reference(data)
        except RecursionError:
            raise UnknownError("nested too deeply for json") from None
        except ValueError as error:
            raise RefusedError(str(error)) from None

    def may_refuse(self, data: bytes, want: Any, refusal: str) -> str:
        if "nested too deeply" in refusal:
            return "nested too deeply"
        return "two members called traceEvents" if "two members are called traceEvents" in refusal else ""


def damaged(r: random.Random, data: bytes, kind: str) -> bytes:
    """The bytes with one kind of damage."""
    b = bytearray(data)
    at = r.randrange(len(b))
    match kind:
        case "truncate":
            del b[at:]
        case "flip":
            for _ in range(r.choice((1, 1, 2, 8))):
                b[r.randrange(len(b))] = r.choice((r.randrange(256), *b'"{}[],:\\0'))
        case "insert":
            b[at:at] = r.randbytes(r.randrange(1, 9))
        case "delete":
            del b[at : at + r.choice((1, 1, 2, 30))]
        case "token":
            for _ in range(r.choice((1, 1, 3))):
                at = r.randrange(len(b) + 1)
                b[at : at + r.choice((0, 0, 1, 2))] = r.choice(TOKENS)
        case "splice":
            start = r.randrange(len(b))
            b[at:at] = b[start : start + r.choice((3, 20, 300))]
        case "swap":
            marks = [i for i, x in enumerate(b) if x in b'"{}[],:']
            if marks:
                i, j = r.choice(marks), r.choice(marks)
                b[i], b[j] = b[j], b[i]
    return bytes(b)


def trace(r: random.Random, *, with_odd: bool = False) -> bytes:
    """A trace in any of the forms that JSON allows."""
    events = [_event(r, with_odd) for _ in range(r.choice((1, 2, 5, 12, 40)))]
    gap = r.choice(("", "", " ", "\n  ", "\t"))
    texts = [_json(r, e, gap) for e in events]
    body = f"{gap},{gap}".join(texts)
    body = f"[{gap}{body}{gap}]"
    if r.random() < 0.4:
        return body.encode("utf-8", "surrogatepass")
    members = [f'"traceEvents":{gap}{body}']
    if r.random() < 0.3:
        members.insert(0, f'"displayTimeUnit":{gap}"ns"')
    if r.random() < 0.2:
        members.append('"baseTimeNanoseconds":' + r.choice(("1736630486123456789", "0", "-1", '"1"')))
    if r.random() < 0.3:
        members.append(f'"meta":{_json(r, _value(r, 0), gap)}')
    if r.random() < 0.02:
        members.append(f'"traceEvents":{body}')
    return ("{" + f"{gap},{gap}".join(members) + "}").encode("utf-8", "surrogatepass")


def _event(r: random.Random, with_odd: bool) -> Any:
    if r.random() < 0.03:
        return {}
    if r.random() < 0.002:
        return r.choice((None, 1, "text", []))
    ph = r.choice(PHASES)
    event: dict[str, Any] = {
        "ph": ph,
        "pid": r.choice((1, 1, 2)),
        "tid": r.choice((1, 1, 2, 3)),
        "name": r.choice(TEXTS),
    }
    event["ts"] = _time(r, with_odd)
    if r.random() < 0.8:
        event["dur"] = _time(r, with_odd)
    if r.random() < 0.1:
        event["exact_dur"] = _time(r, with_odd)
    if ph == "M":
        event["name"] = r.choice(("process_name", "thread_name", "process_sort_index"))
        event["args"] = {"name": r.choice(TEXTS)} if r.random() < 0.9 else _value(r, 0)
    elif r.random() < 0.7:
        event["args"] = _arguments(r)
    if r.random() < 0.2:
        event["cat"] = r.choice(TEXTS)
    if ph in ("b", "e", "n") and r.random() < 0.9:
        event["id"] = r.choice(("0x1", "0x1", 1, "1", 1.0, None))
    if r.random() < 0.1:
        event[r.choice(("ts", "dur", "exact_dur", "s", "bp"))] = _value(r, 0)
    if r.random() < 0.002:
        event[r.choice(("ph", "pid", "tid", "name", "cat", "args", "id"))] = _value(r, 0)
    if r.random() < 0.1:
        event.pop(r.choice(list(event)))
    if r.random() < 0.3:
        event = dict(r.sample(list(event.items()), len(event)))
    return event


def _time(r: random.Random, with_odd: bool) -> Any:
    if with_odd and r.random() < 0.2:
        return _Raw(r.choice(ODD_NUMBERS))
    if r.random() < 0.6:
        return _Raw(f"{r.randrange(10 ** r.choice((1, 6, 9)))}.{r.randrange(10**6):06}")
    return r.choice((_Raw(r.choice(NUMBERS)), r.choice(NUMBERS), r.randrange(1000)))


def _arguments(r: random.Random) -> Any:
    if r.random() < 0.002:
        return _value(r, 0)
    found: dict[str, Any] = {}
    if r.random() < 0.4:
        found["device_duration_ps"] = str(r.choice((0, 7, 12345678, 10**16, "01", "")))
        found["device_offset_ps"] = str(r.choice((0, 9, 87654321, 10**17, "x")))
    for _ in range(r.randrange(4)):
        key = r.choice((*sorted(METADATA_KEYS), "run_id", "occupancy_pct", "a", "", "x.y", "\u202e"))
        found[key] = _value(r, 0) if r.random() < 0.3 else r.choice((*TEXTS, *NUMBERS))
    return found


def _value(r: random.Random, depth: int) -> Any:
    match r.randrange(8 if depth < 3 else 6):
        case 0:
            return r.choice(TEXTS)
        case 1:
            return _Raw(r.choice(NUMBERS))
        case 2:
            return r.choice((True, False))
        case 3:
            return None
        case 4:
            return r.randrange(-(1 << 70), 1 << 70)
        case 5:
            return r.random() * 10 ** r.randrange(-20, 20)
        case 6:
            return [_value(r, depth + 1) for _ in range(r.randrange(3))]
    return {r.choice(TEXTS): _value(r, depth + 1) for _ in range(r.randrange(3))}


def _json(r: random.Random, value: Any, gap: str) -> str:
    if isinstance(value, _Raw):
        return str(value)
    if isinstance(value, dict):
        items = [f"{_json(r, k, gap)}{gap}:{_json(r, v, gap)}" for k, v in value.items()]
        if items and r.random() < 0.03:
            items.append(r.choice(items))
        return "{" + ",".join(items) + "}"
    if isinstance(value, list):
        return "[" + f",{gap}".join(_json(r, v, gap) for v in value) + "]"
    return json.dumps(value, ensure_ascii=r.random() < 0.5)
