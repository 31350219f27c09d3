"""The Chrome reader on hand-made traces, on a real capture, and against a plain json.loads reader."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from chrome_reference import everything, opened, reference, rows

from tracewarehouse.ingest.columns.records import StatKind
from tracewarehouse.ingest.errors import CaptureError

VLLM = "tpu-2chip-vllm-tp2-prefill"


def write(folder: Path, content: Any, name: str = "x.trace.json") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def one_line(folder: Path, events: list[Any]) -> list[tuple[Any, ...]]:
    trace = opened(write(folder, {"traceEvents": events}))
    (plane,) = trace.planes
    (line,) = plane.lines
    return rows(trace, plane, line)


def test_planes_lines_and_names(tmp_path: Path) -> None:
    trace = opened(
        write(
            tmp_path,
            {
                "traceEvents": [
                    {"ph": "X", "pid": 7, "tid": 2, "ts": 1.5, "dur": 2, "name": "a"},
                    {"ph": "X", "pid": 7, "tid": 1, "ts": 0, "dur": 0.000001, "name": "b"},
                    {"ph": "M", "pid": 7, "name": "process_name", "args": {"name": "host-1 /device:TPU:0"}},
                    {"ph": "M", "pid": 7, "tid": 2, "name": "thread_name", "args": {"name": "XLA Ops"}},
                    {"ph": "M", "pid": 7, "tid": 5, "name": "thread_name", "args": {"name": "never used"}},
                    {},
                ]
            },
        )
    )
    assert trace.format == "chrome"
    assert trace.hostnames == ["host-1"]
    assert not trace.warnings
    (plane,) = trace.planes
    assert (plane.name, plane.plane_id) == ("/device:TPU:0", 7)
    assert [(line.name, line.line_id) for line in plane.lines] == [("XLA Ops", 2), ("1", 1)]
    assert rows(trace, plane, plane.lines[0]) == [("a", "", (), 1_500_000, 2_000_000, [])]
    assert rows(trace, plane, plane.lines[1]) == [("b", "", (), 0, 1, [])]


def test_facts_of_an_instruction_are_metadata_and_the_rest_stays_with_the_event(tmp_path: Path) -> None:
    def op(name: str, ts: int, **args: str) -> dict[str, Any]:
        return {"ph": "X", "pid": 3, "tid": 3, "ts": ts, "dur": 1, "name": name, "args": args}

    facts = {"long_name": "%add.1 = f32[2]{0} add(f32[2]{0} %a, f32[2]{0} %b)", "bytes_accessed": "24"}
    trace = opened(
        write(
            tmp_path,
            [
                op("add.1", 0, device_duration_ps="7", device_offset_ps="900", **facts),
                op("add.1", 1, device_duration_ps="8", device_offset_ps="1000", run_id="18446744073709551615", **facts),
                op("add.1", 2, **{**facts, "bytes_accessed": "25"}),
            ],
        )
    )
    (plane,) = trace.planes
    assert [(m.name, m.display_name) for m in plane.event_metadata] == [(facts["long_name"], "add.1")] * 2
    got = rows(trace, plane, plane.lines[0])
    assert [r[2] for r in got] == [(("bytes_accessed", StatKind.INT64, b),) for b in (24, 24, 25)]
    assert [r[5] for r in got] == [
        [("device_duration_ps", StatKind.INT64, 7), ("device_offset_ps", StatKind.INT64, 900)],
        [
            ("device_duration_ps", StatKind.INT64, 8),
            ("device_offset_ps", StatKind.INT64, 1000),
            ("run_id", StatKind.UINT64, 18446744073709551615),
        ],
        [],
    ]


def test_the_program_of_an_event_that_names_its_instruction_stays_with_the_event(tmp_path: Path) -> None:
    """As in captures of GPUs and virtual devices, whose events have hlo_op and program_id; a TPU's are facts."""
    program = ("program_id", StatKind.INT64, 5)
    args = {"hlo_op": "add.1", "program_id": "5"}
    event = {"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 1, "name": "add.1"}
    named, fact = one_line(tmp_path, [event | {"args": args}, event | {"args": args | {"hlo_category": "copy"}}])
    assert (named[2], named[5]) == ((), [("hlo_op", StatKind.STRING, "add.1"), program])
    assert (fact[2], fact[5]) == (
        (program, ("hlo_category", StatKind.STRING, "copy")),
        [("hlo_op", StatKind.STRING, "add.1")],
    )


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("12", StatKind.INT64, 12),
        ("-12", StatKind.INT64, -12),
        ("0", StatKind.INT64, 0),
        ("-9223372036854775808", StatKind.INT64, -(1 << 63)),
        ("9223372036854775808", StatKind.UINT64, 1 << 63),
        ("18446744073709551616", StatKind.STRING, "18446744073709551616"),
        ("-9223372036854775809", StatKind.STRING, "-9223372036854775809"),
        ("012", StatKind.STRING, "012"),
        ("+12", StatKind.STRING, "+12"),
        ("-0", StatKind.STRING, "-0"),
        ("١٢", StatKind.STRING, "١٢"),
        ("1.5", StatKind.STRING, "1.5"),
        ("", StatKind.STRING, ""),
        (12, StatKind.INT64, 12),
        (1 << 64, StatKind.STRING, "18446744073709551616"),
        (1.5, StatKind.DOUBLE, 1.5),
        (True, StatKind.STRING, "true"),
        ([1, {"a": None}], StatKind.STRING, '[1,{"a":null}]'),
    ],
)
def test_types_of_stats_are_lossless(tmp_path: Path, value: Any, kind: StatKind, expected: Any) -> None:
    ((*_, stats),) = one_line(tmp_path, [{"ph": "X", "ts": 1, "dur": 1, "name": "e", "args": {"key": value}}])
    assert stats == [("key", kind, expected)]


def test_begin_and_end_instants_and_counters(tmp_path: Path) -> None:
    events = [
        {"ph": "B", "pid": 1, "tid": 1, "ts": 10, "name": "outer", "args": {"a": "1", "b": "1"}},
        {"ph": "B", "pid": 1, "tid": 1, "ts": 11, "name": "inner"},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 12.25},
        {"ph": "i", "pid": 1, "tid": 1, "ts": 13, "name": "mark", "s": "t"},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 20, "args": {"b": "2"}},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 21},
        {"ph": "C", "pid": 1, "ts": 5, "name": "memory", "args": {"free": 3, "used": "4.5", "flops": 9}},
        {"ph": "B", "pid": 1, "tid": 1, "ts": 30, "name": "open"},
        {"ph": "s", "pid": 1, "tid": 1, "ts": 30, "name": "flow", "id": 1},
        {"ph": "f", "pid": 1, "tid": 1, "ts": 31, "name": "flow", "id": 1},
        {"ph": "M", "pid": 1, "tid": 0, "name": "thread_name", "args": {"name": "_counters_"}},
    ]
    trace = opened(write(tmp_path, {"traceEvents": events}))
    (plane,) = trace.planes
    thread, counters = plane.lines
    int64 = StatKind.INT64
    assert rows(trace, plane, thread) == [
        ("inner", "", (), 11_000_000, 1_250_000, []),
        ("mark", "", (), 13_000_000, 0, []),
        ("outer", "", (), 10_000_000, 10_000_000, [("a", int64, 1), ("b", int64, 2)]),
        ("open", "", (), 30_000_000, 0, []),
    ]
    assert (counters.name, counters.line_id) == ("_counters_", 0)
    series = [("flops", int64, 9), ("free", int64, 3), ("used", StatKind.STRING, "4.5")]
    assert rows(trace, plane, counters) == [("memory", "", (), 5_000_000, 0, series)]
    text = "; ".join(trace.warnings)
    assert "1 begin event(s) without an end" in text
    assert "1 end event(s) without a begin" in text
    assert "2 events that are not spans or counters were left out: 1 of phase 'f', 1 of phase 's'" in text


def test_asynchronous_events_are_paired_by_category_and_id_on_the_thread_where_they_begin(tmp_path: Path) -> None:
    def half(ph: str, ts: int, number: Any, cat: str = "async", tid: int = 1, **more: Any) -> dict[str, Any]:
        return {"ph": ph, "pid": 1, "tid": tid, "ts": ts, "cat": cat, "id": number, "name": f"of {number}", **more}

    events = [
        half("b", 10, "0x1", args={"a": "1"}),
        half("b", 11, "0x2"),
        half("b", 12, "0x1", cat="other"),
        half("b", 13, 1),
        half("e", 20, "0x1", tid=2, args={"b": "2"}),
        half("e", 21, "0x2"),
        half("e", 22, 1),
        half("e", 23, "0x3"),
        {"ph": "b", "pid": 1, "tid": 1, "ts": 30, "name": "without an id"},
        half("n", 31, "0x2"),
    ]
    trace = opened(write(tmp_path, {"traceEvents": events}))
    (plane,) = trace.planes
    (line,) = plane.lines
    us, cat = 1_000_000, ("cat", StatKind.STRING, "async")
    assert rows(trace, plane, line) == [
        ("of 0x1", "", (), 10 * us, 10 * us, [("a", StatKind.INT64, 1), ("b", StatKind.INT64, 2), cat]),
        ("of 0x2", "", (), 11 * us, 10 * us, [cat]),
        ("of 1", "", (), 13 * us, 9 * us, [cat]),
        ("of 0x1", "", (), 12 * us, 0, [("cat", StatKind.STRING, "other")]),
    ]
    text = "; ".join(trace.warnings)
    assert "1 begin event(s) without an end" in text
    assert "1 end event(s) without a begin" in text
    assert "2 events that are not spans or counters were left out: 1 of phase 'b', 1 of phase 'n'" in text


def test_times_since_1970_count_from_the_first_event(tmp_path: Path) -> None:
    texts = ["1736630486123456.789012", "1736630486123450", "1736630486123457.0000005"]
    events = ",".join(f'{{"ph":"X","ts":{t},"dur":1,"name":"e"}}' for t in texts)
    trace = opened(write(tmp_path, f"[{events}]".encode()))
    plane, environment = trace.planes
    assert [r[3] for r in rows(trace, plane, plane.lines[0])] == [789012, -6_000_000, 1_000_001]
    assert environment.name == "Task Environment"
    assert [(s.name, s.value) for s in environment.stats] == [("profile_start_time", 1736630486123456000)]


def test_odd_events_are_kept_or_named(tmp_path: Path) -> None:
    content = rb"""[{"ph":"X","ts":1,"name":"no dur"}, {"ph":"X","dur":1,"name":"no ts"}, {"ph":"X","ts":1e300,"dur":1},
        {"ph":"X","ts":-5,"dur":-1,"name":"back"}, {"ph":"X","ts":null,"dur":1,"name":"null"},
        {"ph":"X","ts":1,"dur":2,"name":"a\u0000<b>\n\ud83d\ude00","pid":"Spark","tid":1.5},
        {"ph":"X","ts":1,"ts":2,"dur":2,"name":"twice","args":{"x":"1","x":"2"}}, {}]"""
    trace = opened(write(tmp_path, content))
    unknown, spark = trace.planes
    assert [r[:5] for r in rows(trace, unknown, unknown.lines[0])] == [
        ("no dur", "", (), 1_000_000, 0),
        ("back", "", (), -5_000_000, -1_000_000),
        ("twice", "", (), 2_000_000, 2_000_000),
    ]
    assert spark.name == "Spark"
    assert rows(trace, spark, spark.lines[0]) == [("a\0<b>\n\U0001f600", "", (), 1_000_000, 2_000_000, [])]
    text = "; ".join(trace.warnings)
    assert "3 event(s) without a readable time" in text
    assert "1 event(s) without a readable dur" in text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_no_room_for_the_events_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", partial(open, "/dev/full", "r+b", buffering=0))
    with pytest.raises(CaptureError, match="No space left on device; make room there"):
        opened(write(tmp_path, [{"ph": "X", "ts": 1, "dur": 1, "name": "a"}]))


def test_the_real_capture_equals_the_reference_in_pieces_of_any_size(shared_traces: Path) -> None:
    content = gzip.decompress((shared_traces / f"{VLLM}.trace.json.gz").read_bytes())
    expected = reference(content)
    for chunk in (1 << 23, 1 << 16):
        trace = opened(shared_traces / f"{VLLM}.trace.json.gz", chunk)
        assert trace.digest == hashlib.sha256(content).hexdigest()
        assert everything(trace) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b" ", "found the end of the file"),
        (b"\x00\x01garbage", "looked for JSON"),
        (b'"text"', "looked for JSON"),
        (b"{}", "traceEvents"),
        (b'{"a":1,"b":[{}]}', "only 'a', 'b'"),
        (b'{"\xba":1}', "not JSON"),
        (b'{"traceEvents":3}', "looked for an array"),
        (b'{"traceEvents":[]}', "without events"),
        (b"[]", "without events"),
        (b"[", "end of their array"),
        (b'{"traceEvents":[{"ph":"X","ts":1,"dur":1}', "end of their array"),
        (b'{"traceEvents":[{"ph":"X","ts":1,"dur":1}]', "looked for ',' or '}'"),
        (b'{"traceEvents":[{"ph":"X","ts":1,"dur":1},]}', "not complete JSON"),
        (b'{"traceEvents":[,{"ph":"X","ts":1,"dur":1}]}', "not complete JSON"),
        (b'{"traceEvents":[{"ph":"X","ts":1}],"traceEvents":[]}', "two members"),
        (b'{"traceEvents":[{"ph":"X","ts":1}]} x', "trailing characters"),
        (b'[{"ph":"X","ts":1}] x', "looked for the end of the file, found b'x'"),
        (b'{"traceEvents":[{"ph":"X","ts":1}],"a":{"b"}}', "not complete JSON"),
        (b'{"traceEvents":[{"ph":"X","ts":1}],"a":{"b":', "truncated"),
        (b'[{"ph":"X","ts":1', "not complete JSON"),
        (b'[{"ph":"X","ts":1}}]', "not complete JSON"),
        (b'[{"ph":"X","ts":1}}{"ph":"X","ts":2}]', "looked for events, and ',' or ']' behind an event"),
        (b"[1,2]", "Expected `object`"),
        (b'[{"ph":"X","ts":1,"dur":NaN}]', "invalid character"),
        (b'[{"ph":"X","ts":1,"name":"\xff"}]', "can't decode byte"),
        (b'[{"ph":"X","ts":1,"unread":"\xff"}]', "can't decode byte"),
        (b'{"a":"\xff","traceEvents":[{"ph":"X","ts":1}]}', "can't decode byte"),
        (b'[{"ph":"X","ts":1,"name":"\\ud800 "}]', "not complete JSON"),
        (b'[{"ph":"X","ts":1,"name":"a\tb"}]', "invalid character"),
        (b'[{"ph":"X","ts":1,"name":7}]', "Expected `str`"),
        (b'[{"ph":"X","ts":1,"pid":true}]', "got `bool`"),
        (b'[{"ph":"X","ts":1,"args":"text"}]', "looked for a JSON object as args"),
        (b'[{"ph":"X","ts":1,"args":{"a":"\\ud800 "}}]', "not complete JSON"),
        (b'[{"ph":"X","ts":1,"args":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}]", "nested too deeply"),
    ],
)
def test_what_is_no_trace_gives_one_clear_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(CaptureError, match=re.escape(message)) as caught:
        opened(write(tmp_path, content))
    assert "x.trace.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["pid", "tid"])
def test_more_threads_than_a_profiled_program_has_are_refused(
    tmp_path: Path, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracewarehouse.ingest.columns.bounds.LINES", 100)
    events = [{"ph": "X", field: i, "ts": 1, "dur": 1, "name": "a"} for i in range(101)]
    assert sum(len(p.lines) for p in opened(write(tmp_path, events[:100])).planes) == 100
    for chunk in (1000, 1 << 20):
        with pytest.raises(CaptureError, match="more than 100 threads"):
            opened(write(tmp_path, events), chunk)
    names = [{"ph": "M", "pid": 1, field: i, "name": "process_name", "args": {"name": "a"}} for i in range(101)]
    names = [{**e, "name": "thread_name"} for e in names] if field == "tid" else names
    with pytest.raises(CaptureError, match="more than 100 threads"):
        opened(write(tmp_path, names))


def test_blanks_behind_an_event_do_not_end_the_array(tmp_path: Path) -> None:
    """The text that is read of an event longer than a piece may end behind it and before its comma."""
    event = b'{"ph":"X","pid":1,"tid":1,"ts":%d,"dur":1,"name":"a"}'
    for gap in range(0, 300, 11):
        path = write(tmp_path, b"[" + (b" " * gap + b",").join(event % i for i in range(4)) + b"]")
        for chunk in (1, 25, 90):
            assert everything(opened(path, chunk)) == reference(path.read_bytes())


def test_an_array_without_end_is_read_with_a_warning(tmp_path: Path) -> None:
    for tail in (b"", b",", b" ,\n"):
        trace = opened(write(tmp_path, b'[{"ph":"X","ts":1,"dur":1,"name":"a"},{"ph":"X","ts":2,"dur":1}' + tail))
        assert len(rows(trace, trace.planes[0], trace.planes[0].lines[0])) == 2
        assert "may be truncated" in trace.warnings[0]


def test_gzip(tmp_path: Path) -> None:
    content = b'[{"ph":"X","ts":1,"dur":1,"name":"a"}]'
    plain = opened(write(tmp_path, content))
    packed = write(tmp_path, gzip.compress(content), "y.trace.json.gz")
    assert opened(packed).digest == plain.digest == hashlib.sha256(content).hexdigest()
    assert opened(packed).size == len(content)
    with pytest.raises(CaptureError, match="gzip"):
        opened(write(tmp_path, packed.read_bytes()[:-9], "z.trace.json.gz"))


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    content = b'[{"ph":"X","ts":1,"dur":1,"name":"a"}]' + b" " * (80 << 20)
    bomb = write(tmp_path, gzip.compress(content, 1), "bomb.trace.json.gz")
    with pytest.raises(CaptureError, match="times its size"):
        opened(bomb)
    assert opened(bomb, max_gzip_ratio=5000).size == len(content)


def test_the_events_are_those_of_the_outermost_object(tmp_path: Path) -> None:
    event = {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "name": "a"}
    inner = {"traceEvents": [event, event]}
    content = {"meta": inner, "a": ["traceEvents", [inner]], "traceEvents": [event], "end": [inner]}
    trace = opened(write(tmp_path, content))
    assert [len(rows(trace, p, line)) for p in trace.planes for line in p.lines] == [1]


@pytest.mark.parametrize("place", ["before", "behind", "in an event", "in events", "in args"])
def test_a_million_small_members_stay_within_the_bound_on_memory(tmp_path: Path, place: str) -> None:
    """200 bytes per byte of a damaged or hostile file and 16 MB, as docs/reliability.md says; here a tenth of them."""
    count = 100_000
    members = ",".join(f'"k{i}":{i}' for i in range(count))
    event = '{"ph":"X","pid":1,"tid":1,"name":"a","ts":1,"dur":2'
    text = {
        "before": f'{{{members},"traceEvents":[{event}}}]}}',
        "behind": f'{{"traceEvents":[{event}}}],{members}}}',
        "in an event": f'{{"traceEvents":[{event},{members}}}]}}',
        "in events": '{"traceEvents":[' + ",".join(f'{event},"args":{{"k{i}":1}}}}' for i in range(count)) + "]}",
        "in args": f'{{"traceEvents":[{event},"args":{{{members}}}}}]}}',
    }[place]
    path = tmp_path / "many.trace.json"
    path.write_text(text)
    tracemalloc.start()
    try:
        if place in ("in events", "in args"):
            with pytest.raises(CaptureError, match="more than 8,192 names of arguments"):
                opened(path)
        else:
            opened(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (16 << 20) + 200 * len(text)
    if place in ("before", "behind"):
        assert peak < (16 << 20) + 4 * len(text)
