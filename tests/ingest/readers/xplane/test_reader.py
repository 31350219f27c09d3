"""The xplane reader against protobuf's own parser: hand-made captures in every legal shape, and refusals."""

from __future__ import annotations

import random
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from xplane_builder import (
    PlaneBuilder,
    Ref,
    Space,
    Unsigned,
    content,
    double,
    fixed32,
    group,
    integer,
    varint,
)
from xplane_reference import decoded, read_xplane, reference

from tracewarehouse.ingest.columns.records import StatKind
from tracewarehouse.ingest.errors import CaptureError, MalformedError
from tracewarehouse.ingest.readers.xplane import wire
from tracewarehouse.ingest.readers.xplane.reader import profile_window

INT64_MAX = (1 << 63) - 1


def event(*fields: bytes) -> bytes:
    return content(4, b"".join(fields))


def stat(*fields: bytes) -> bytes:
    return content(4, b"".join(fields))


def basic(metadata_id: int = 1, offset_ps: int = 1000, duration_ps: int = 5) -> bytes:
    return integer(1, metadata_id) + integer(2, offset_ps) + integer(3, duration_ps)


def plain_events(count: int = 1500) -> list[bytes]:
    r = random.Random(1)
    ids = (1, 2, 300, 70_000)
    return [
        event(
            basic(r.choice(ids), 10**9 + i * 997, r.randrange(10**7)),
            stat(integer(1, 1), integer(3, r.getrandbits(64))),
        )
        for i in range(count)
    ]


PLAIN = plain_events()
A_STAT = stat(integer(1, 1), integer(3, 8))
ODDITIES: dict[str, list[bytes]] = {
    "no events": [],
    "one event": [event(basic())],
    "empty event": [event()],
    "thousands of empty events": [event()] * 2500,
    "thousands of usual events": PLAIN,
    "no offset": [event(integer(1, 1), integer(3, 5))] * 1000,
    "offset zero written out": [event(integer(1, 1), integer(2, 0))] * 2000,
    "negative offset": [event(basic(offset_ps=-5))] * 10,
    "negative duration": [event(basic(duration_ps=-5))] * 10,
    "num_occurrences": [event(integer(1, 1), integer(5, 9), integer(3, 5))] * 10,
    "num_occurrences after offset": [event(basic(), integer(5, 9))] * 10,
    "offset after num_occurrences": [event(integer(5, 9), basic())] * 10,
    "stat named num_occurrences": [event(integer(1, 1), stat(integer(1, 8), integer(4, 2)), integer(5, 9))] * 3,
    "fields in reverse": [event(integer(3, 5), integer(2, 1000), integer(1, 2))] * 1000,
    "fields given twice": [event(basic(), basic(2, 7, 9))] * 1000,
    "stat before the id": [event(stat(integer(1, 1), integer(4, 3)), basic())] * 1000,
    "ids of ten bytes": [event(basic(-1))] * 20,
    "padded varints": [event(integer(1, 1, 9), integer(2, 5, 10), integer(3, 5, 4))] * 1000,
    "padded lengths": [varint(34) + varint(9, 4) + integer(1, 1) + integer(2, 1000) + integer(3, 5, 3)] * 9,
    "unknown varint": [*PLAIN[:3], event(basic(), integer(9, 4), A_STAT), *PLAIN[3:6]],
    "unknown text": [*PLAIN[:3], event(basic(), content(11, b"abc"), A_STAT), *PLAIN[3:6]],
    "unknown eight bytes": [*PLAIN[:3], event(basic(), double(12, 1.5), A_STAT), *PLAIN[3:6]],
    "unknown four bytes": [*PLAIN[:3], event(basic(), fixed32(13, 7), A_STAT), *PLAIN[3:6]],
    "unknown field of a high number": [*PLAIN[:3], event(basic(), content(900, b"xyz"), A_STAT), *PLAIN[3:6]],
    "unknown field of the highest number": [event(content((1 << 29) - 1, b"xyz"), basic())] * 3,
    "known field of another wire type": [event(content(1, b"ab"), double(2, 1.0), basic(2), integer(4, 3))] * 9,
    "unknown field in a stat": [event(basic(), stat(integer(1, 2), integer(3, 8), integer(9, 1)))] * 9,
    "unknown field before a stat's id": [event(basic(), stat(content(20, b"q"), integer(1, 3), double(2, 2.5)))] * 9,
    "known field of another wire type in a stat": [event(basic(), stat(content(1, b"x"), double(3, 1.0)))] * 9,
    "stat's value before its id": [event(basic(), stat(integer(3, 8), integer(1, 2)))] * 20,
    "stat without value": [event(basic(), stat(integer(1, 2)))] * 20,
    "stat without id": [event(basic(), stat(integer(3, 8)))] * 20,
    "stat id zero": [event(basic(), stat(integer(1, 0), integer(3, 8)))] * 20,
    "stat with two values": [event(basic(), stat(integer(1, 2), integer(3, 8), content(5, b"last")))] * 20,
    "stat with an id twice": [event(basic(), stat(integer(1, 2), integer(1, 3), integer(3, 8)))] * 20,
    "empty stat": [event(basic(), stat())] * 5,
    "only an empty stat": [event(stat())] * 5,
    "all kinds of stats": [
        event(
            basic(),
            stat(integer(1, 1), double(2, 0.5)),
            stat(integer(1, 2), integer(3, -1)),
            stat(integer(1, 3), integer(4, -1)),
            stat(integer(1, 4), content(5, "é")),
            stat(integer(1, 5), content(6, b"\xff\0")),
            stat(integer(1, 6), integer(7, 3)),
        )
    ]
    * 300,
    "kinds change from event to event": [
        event(basic(), stat(integer(1, 1), value))
        for value in (double(2, 0.5), integer(4, -1), integer(3, 7), content(5, b"s"), integer(7, 2))
    ]
    * 50,
    "one text as text, bytes and reference": [
        event(basic(), *(stat(integer(1, 1), v) for v in (content(5, "stat3"), content(6, "stat3"), integer(7, 3))))
    ]
    * 5,
    "text that is not UTF-8": [event(basic(), stat(integer(1, 4), content(5, b"\xff\xfe\0")))] * 9,
    "empty text": [event(basic(), stat(integer(1, 4), content(5, b"")))] * 9,
    "long text": [event(basic(), stat(integer(1, 4), content(5, b"x" * 40_000))), *PLAIN[:10]],
    "same stat twice": [event(basic(), stat(integer(1, 1), integer(3, 1)), stat(integer(1, 1), integer(3, 2)))] * 9,
    "two ids of one name": [event(basic(), stat(integer(1, 7), integer(3, 1)), stat(integer(1, 9), integer(3, 2)))] * 9,
    "unnamed stat ids": [event(basic(), stat(integer(1, 99), integer(3, 1)), stat(integer(1, 1 << 50), integer(3, 2)))],
    "unnamed stat ids above 2^40": [event(basic(), stat(integer(1, (1 << 50) + i), integer(3, i))) for i in range(9)],
    "negative stat ids": [event(basic(), stat(integer(1, -i), integer(3, i))) for i in range(1, 5)],
    "padded stat id": [event(basic(), stat(integer(1, 1, 5), integer(3, 1, 9)))] * 9,
    "every event its own stat id": [event(basic(), stat(integer(1, i), integer(3, i))) for i in range(2000)],
    "unresolved references": [event(basic(), stat(integer(1, 1), integer(7, i))) for i in (99, 1 << 63, -1)] * 3,
    "unknown metadata id": [event(basic(77))] * 9,
    "huge metadata id": [event(basic(1 << 40))] * 9,
    "negative metadata id": [event(basic(-2))] * 9,
    "text that looks like events": [
        event(basic(), stat(integer(1, 4), content(6, PLAIN[0] * (i % 3)))) for i in range(1500)
    ],
    "unknown text that looks like events": [PLAIN[0], content(15, PLAIN[0] * 400), PLAIN[1]],
    "a stat that comes late": PLAIN * 3 + [event(basic(), stat(integer(1, 7), integer(3, 1)))],
    "events over 128 bytes": [
        event(basic(), stat(integer(1, 4), content(5, b"y" * (100 + i % 90)))) for i in range(1000)
    ],
    "short events among long ones": [
        event(basic(), stat(integer(1, 4), content(5, b"y" * (i * 37 % 700)))) for i in range(1000)
    ],
    "events over 16 KB": [event(basic(), stat(integer(1, 4), content(5, b"y" * 20_000 + varint(i)))) for i in range(9)],
    "hundreds of stats on one event": [
        *PLAIN[:5],
        event(basic(), *(stat(integer(1, 1 + i % 5), integer(3, i)) for i in range(700)), integer(3, 6), integer(5, 2)),
        *PLAIN[5:9],
    ],
    "times near the ends of int64": [event(basic(1, INT64_MAX - 9001, 1)), event(basic(1, -INT64_MAX, 0))],
}


def names_and_metadata(plane: PlaneBuilder) -> None:
    """Metadata for some ids, names for stats 1 to 8; 9 has the name of 7, -3 one of its own."""
    for i in (1, 2, 300, 70_000, 1 << 40, -2):
        plane.metadata(f"op{i}", metadata_id=i)
    plane.stat_names = {f"stat{i}": i for i in range(1, 8)} | {"num_occurrences": 8, "negative": -3}
    plane.extra = content(5, integer(1, 9) + content(2, integer(1, 9) + content(2, "stat7")))


def tail_of_line(space: Space) -> None:
    space.planes[0].lines[0].extra = integer(9, 3) + integer(10, 4) + content(11, b"shown")


def several_lines(space: Space) -> None:
    """The line twice in a plane, after its metadata and with fields after its events, and the plane twice."""
    first = space.planes[0]
    first.metadata_first = True
    tail_of_line(space)
    other = first.line("XLA Ops", 9)
    other.events = first.lines[0].events
    space.planes.append(first)


def line_at_the_end(space: Space) -> None:
    """Nothing follows the events, so that reading past them would leave the file."""
    plane = space.planes[0]
    line = plane.lines.pop()
    plane.extra += content(3, line.encode())
    space.hostnames = ()


PLACEMENTS: dict[str, Callable[[Space], None]] = {
    "several lines": several_lines,
    "at the end of the file": line_at_the_end,
}


def peak_of(read: Callable[[], object]) -> int:
    """Bytes that Python's allocators hold at the most while something is read."""
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def space_with(events: list[bytes]) -> Space:
    space = Space(hostnames=["host"])
    plane = space.plane("/device:TPU:0")
    names_and_metadata(plane)
    plane.line("XLA Ops", 7, line_id=3).events = events
    return space


@pytest.fixture(params=(1 << 8, wire.FEW_BYTES), ids=("by walkers", "one by one"))
def _how_events_are_found(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FEW_BYTES", request.param)


def check(space: Space, folder: Path) -> None:
    path = space.write(folder / "x.xplane.pb")
    assert decoded(read_xplane(path)) == reference(path.read_bytes())


@pytest.mark.usefixtures("_how_events_are_found")
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("oddity", ODDITIES)
def test_rows_equal_protobufs(oddity: str, placement: str, tmp_path: Path) -> None:
    space = space_with(ODDITIES[oddity])
    PLACEMENTS[placement](space)
    check(space, tmp_path)


@pytest.mark.usefixtures("_how_events_are_found")
@pytest.mark.parametrize("window", [*range(64, 100), 4100, 4101, 4102])
def test_events_at_every_cut_of_a_window(window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "WINDOW", window)
    long = event(basic(), stat(integer(1, 4), content(5, b"z" * 300)))
    space = space_with([*PLAIN[:300], long, content(15, b"q" * 200), event(), *PLAIN[:9], long])
    tail_of_line(space)
    check(space, tmp_path)


class TestPlanes:
    def test_text_of_the_space(self, tmp_path: Path) -> None:
        space = Space(errors=["lost"], warnings=["late", "é"], hostnames=["h0", "h1"])
        space.plane("p")
        trace = read_xplane(space.write(tmp_path / "x.pb"))
        assert (trace.errors, trace.warnings, trace.hostnames) == (["lost"], ["late", "é"], ["h0", "h1"])

    def test_stats_of_a_plane(self, tmp_path: Path) -> None:
        space = Space()
        plane = space.plane("p", -7)
        for name, value in {"d": 0.5, "u": Unsigned(1 << 63), "i": -1, "s": "é", "b": b"\xff", "r": Ref("u")}.items():
            plane.stat(name, value)
        (found,) = read_xplane(space.write(tmp_path / "x.pb")).planes
        assert found.plane_id == -7
        assert [(s.name, s.kind, s.value) for s in found.stats] == [
            ("d", StatKind.DOUBLE, 0.5),
            ("u", StatKind.UINT64, 1 << 63),
            ("i", StatKind.INT64, -1),
            ("s", StatKind.STRING, "é"),
            ("b", StatKind.BYTES, b"\xff"),
            ("r", StatKind.REF, "u"),
        ]

    def test_planes_share_metadata_only_under_the_same_stat_names(self, tmp_path: Path) -> None:
        space = Space()
        for keys in ((-1, "flops"), (-2, "bytes"), (-1, "flops")):  # hash(-1) == hash(-2)
            plane = space.plane("p")
            plane.stat_names = {keys[1]: keys[0]}
            plane.event_metadata.append(
                integer(1, 1) + content(2, content(2, "op") + content(5, integer(1, -1) + integer(3, 8)))
            )
        check(space, tmp_path)
        first, second, third = (p.event_metadata[0] for p in read_xplane(tmp_path / "x.xplane.pb").planes)
        assert [s.name for s in first.stats] == ["flops"]
        assert [s.name for s in second.stats] == ["stat -1"]
        assert third is first

    def test_planes_that_repeat_metadata(self, tmp_path: Path) -> None:
        """A plane's metadata are taken over where another begins the same, as far as that is so, and by its names."""
        space = Space()
        first = space.plane("first")
        for i in range(200):
            first.metadata(f"%op.{i} = f32[{i}] add(...)" + "x" * i, stats={"flops": i, "category": "c" * (i % 7)})
        names, entries = dict(first.stat_names), list(first.event_metadata)
        for changed in (None, 0, 1, 150, None, 199, "names", None, "shorter", "longer", "interrupted"):
            plane = space.plane(f"changed: {changed}")
            plane.stat_names, plane.event_metadata = dict(names), list(entries)
            if isinstance(changed, int):
                key = entries[changed][:2] if entries[changed][1] < 0x80 else entries[changed][:3]
                plane.event_metadata[changed] = key + content(2, content(2, f"another {changed}"))
            elif changed == "names":
                plane.stat_names = {f"other {n}": i for n, i in names.items()}
            elif changed == "shorter":
                del plane.event_metadata[120:]
            elif changed == "longer":
                plane.metadata("one more", metadata_id=1 << 30)
            elif changed == "interrupted":
                plane.event_metadata[50] += content(15, b"long" * 5000)
        check(space, tmp_path)
        planes = {p.name: p.event_metadata for p in read_xplane(tmp_path / "x.xplane.pb").planes}
        assert all(a is b for a, b in zip(planes["first"], planes["changed: None"], strict=True))
        assert planes["changed: 150"][149] is planes["first"][149]
        assert planes["changed: names"][0].stats[0].name == "other flops"

    def test_a_large_file_is_not_held_in_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tracewarehouse.ingest.readers.files.IN_MEMORY", 1000)
        monkeypatch.setattr("tracewarehouse.ingest.readers.files.CHUNK", 777)
        space = space_with(PLAIN)
        space.planes[0].metadata("x" * 5000)
        several_lines(space)
        check(space, tmp_path)


class TestRefused:
    """Legal for protobuf or not: what the reader does not take is one error, never a wrong row."""

    def refusal(self, space: Space, folder: Path) -> str:
        with pytest.raises(MalformedError) as error:
            decoded(read_xplane(space.write(folder / "x.xplane.pb")))
        return str(error.value)

    @pytest.mark.parametrize("timestamp_ns", [9_223_372_036_854_775, -9_223_372_036_854_776])
    def test_a_start_beyond_int64(self, timestamp_ns: int, tmp_path: Path) -> None:
        space = space_with([event(basic(1, 807_001 if timestamp_ns > 0 else -INT64_MAX, 0))])
        space.planes[0].lines[0].timestamp_ns = timestamp_ns
        assert "line 'XLA Ops' of plane '/device:TPU:0'" in self.refusal(space, tmp_path)

    @pytest.mark.parametrize(("offset", "duration"), [(INT64_MAX - 7000, 1), (5, INT64_MAX), (-INT64_MAX, -9000)])
    def test_an_end_beyond_int64(self, offset: int, duration: int, tmp_path: Path) -> None:
        space = space_with([event(basic(1, offset, duration))])
        assert "beyond int64 picoseconds" in self.refusal(space, tmp_path)

    def test_ends_are_checked_event_by_event(self, tmp_path: Path) -> None:
        check(space_with([event(basic(1, INT64_MAX - 7000, -5)), event(basic(1, -7050, INT64_MAX))]), tmp_path)

    @pytest.mark.parametrize("header", [integer(1, 5), content(2, "name"), integer(3, 9)])
    def test_a_lines_header_after_its_events(self, header: bytes, tmp_path: Path) -> None:
        space = space_with(PLAIN)
        space.planes[0].lines[0].extra = header
        assert "stands after its events" in self.refusal(space, tmp_path)

    @pytest.mark.parametrize("place", ["space", "plane", "line", "event", "stat", "map entry"])
    def test_groups(self, place: str, tmp_path: Path) -> None:
        g = group(15, integer(1, 2))
        events = {"event": [event(basic(), g)], "stat": [event(basic(), stat(g))]}.get(place, PLAIN[:5])
        space = space_with(events)
        plane = space.planes[0]
        if place == "space":
            space.extra = g
        elif place == "plane":
            plane.extra += g
        elif place == "line":
            plane.lines[0].extra = g
        elif place == "map entry":
            plane.event_metadata.append(integer(1, 1) + g)
        assert "field tag" in self.refusal(space, tmp_path)

    @pytest.mark.parametrize("place", ["plane", "line", "event", "stat"])
    def test_tags_in_more_bytes_than_they_need(self, place: str, tmp_path: Path) -> None:
        """Protobuf reads them as the known fields; compared byte by byte they would be lost without a word."""
        padded_event = varint(0x22, 2) + varint(2) + integer(1, 1)
        space = space_with(
            {
                "line": [PLAIN[0], padded_event],
                "event": [event(varint(0x08, 3) + b"\1")],
                "stat": [event(stat(integer(1, 1), varint(0x18, 2) + b"\5"))],
            }.get(place, [])
        )
        if place == "plane":
            space.planes[0].extra += varint(0x1A, 2) + varint(0)
        self.refusal(space, tmp_path)

    @pytest.mark.parametrize(
        "damage",
        {
            "truncated event": varint(0x22) + varint(9) + b"\x08\x01",
            "truncated varint": event(b"\x08\x80"),
            "varint of eleven bytes": event(b"\x08" + b"\x80" * 10 + b"\1", basic()),
            "length of six bytes": varint(0x22) + varint(2, 6) + b"\x08\x01",
            "length past the end": event(b"\x22\xff\xff\xff\xff\x0f"),
            "stat past its event": event(integer(1, 1), b"\x22\x05\x08\x01"),
            "text past its stat": event(basic(), stat(integer(1, 4), b"\x2a\x50abc")),
            "field number zero": event(b"\0\1"),
            "field number zero in the line": b"\0\1",
            "end of a group": event(b"\x0c"),
            "wire type 7": event(b"\x0f"),
            "tag above 32 bits": event(varint(1 << 35 | 0), basic()),
            "double cut short": event(basic(), stat(integer(1, 1), b"\x11\0\0")),
        }.items(),
        ids=lambda d: d[0],
    )
    @pytest.mark.parametrize("count", [0, 3000])
    def test_damage(self, damage: tuple[str, bytes], count: int, tmp_path: Path) -> None:
        space = space_with([*PLAIN[:count], damage[1]])
        self.refusal(space, tmp_path)
        space = space_with([*PLAIN[:count], damage[1], *PLAIN[:2]])
        with pytest.raises(CaptureError):
            decoded(read_xplane(space.write(tmp_path / "y.pb")))

    def test_no_planes(self, tmp_path: Path) -> None:
        assert "without planes" in self.refusal(Space(hostnames=["h"]), tmp_path)

    def test_more_planes_than_any_capture(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tracewarehouse.ingest.columns.bounds.PLANES", 10)
        space = Space(planes=[PlaneBuilder("p") for _ in range(11)])
        assert "more than 10 planes" in self.refusal(space, tmp_path)

    def test_more_lines_than_any_capture(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tracewarehouse.ingest.columns.bounds.LINES", 10)
        space = Space()
        for _ in range(11):
            space.plane("p").line("l")
        assert "more than 10 threads" in self.refusal(space, tmp_path)

    def test_a_file_that_shrinks_while_it_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tracewarehouse.ingest.readers.files.IN_MEMORY", 1000)
        path = space_with(PLAIN).write(tmp_path / "x.pb")
        trace = read_xplane(path)
        path.write_bytes(b"")
        with pytest.raises(CaptureError, match="changed while it was read"):
            decoded(trace)


class TestMemory:
    """Few bytes must not become many: peaks of what numpy and Python allocate, as a multiple of the file."""

    @pytest.mark.parametrize(
        "events",
        {
            "empty events": [event()] * 200_000,
            "equal long texts": [event(stat(integer(1, 4), content(5, b"x" * 10_000)))] * 400,
            "one event with all stats": [event(basic(), A_STAT * 200_000)],
            "ids far apart": [event(basic(1 << 21))] * 30_000,
        }.items(),
        ids=lambda e: e[0],
    )
    def test_peak_is_bounded(self, events: tuple[str, list[bytes]], tmp_path: Path) -> None:
        path = space_with(events[1]).write(tmp_path / "x.pb")
        read_xplane(path)  # imports

        def read() -> None:
            trace = read_xplane(path)
            for plane in trace.planes:
                for line in plane.lines:
                    for _ in trace.batches(plane, line):
                        pass

        assert peak_of(read) < 40 * path.stat().st_size + (4 << 20)

    def test_metadata_between_other_fields(self, tmp_path: Path) -> None:
        space = Space()
        space.plane("p").extra = (content(4, b"") + content(15, b"")) * 50_000
        path = space.write(tmp_path / "x.pb")
        assert peak_of(lambda: read_xplane(path)) < 40 * path.stat().st_size

    def test_sparse_metadata_ids_need_no_table(self, tmp_path: Path) -> None:
        space = Space()
        for _ in range(300):
            space.plane("p").metadata("op", metadata_id=4_000_000)
        path = space.write(tmp_path / "x.pb")
        assert peak_of(lambda: read_xplane(path)) < 4 << 20


class TestProfileWindow:
    def test_times(self, tmp_path: Path) -> None:
        space = Space()
        space.tpu(0).ops.events = PLAIN
        space.profiled(1_741_722_099_081_044_120, 1_741_722_100_000_000_000)
        found = profile_window(space.write(tmp_path / "x.pb"))
        assert found == (1_741_722_099_081_044_120, 1_741_722_100_000_000_000)

    @pytest.mark.parametrize("value", [float("inf"), float("nan"), "12", b"\xff"])
    def test_times_that_are_no_integers(self, value: float | str | bytes, tmp_path: Path) -> None:
        space = Space()
        plane = space.profiled(1, 2)
        plane.stats.clear()
        plane.stat("profile_start_time", value).stat("profile_stop_time", value)
        assert profile_window(space.write(tmp_path / "x.pb")) is None

    def test_other_captures(self, tmp_path: Path) -> None:
        space = Space()
        space.plane("p")
        assert profile_window(space.write(tmp_path / "x.pb")) is None
        (tmp_path / "y.pb").write_bytes(b"\x0a\x05ab")
        assert profile_window(tmp_path / "y.pb") is None
        assert profile_window(tmp_path / "absent.pb") is None


@pytest.mark.parametrize("field", [4, 5])
@pytest.mark.parametrize(
    "entry",
    [
        "12042a040801200730031202ff03",  # a value that breaks off, which the next one would complete
        "100512050a02ff6e6d12062a040801207f",
        "1209220164090408012007120732020212026e6d",
    ],
)
def test_a_map_entry_whose_values_are_whole_only_together_is_refused(tmp_path: Path, field: int, entry: str) -> None:
    data = content(1, content(2, "/host:CPU") + content(field, bytes.fromhex(entry)))
    with pytest.raises(DecodeError):
        reference(data)
    path = tmp_path / "split.xplane.pb"
    path.write_bytes(data)
    with pytest.raises(MalformedError):
        read_xplane(path)


@given(
    st.lists(
        st.sampled_from(["0801", "0a", "1203", "1202", "61", "6162", "2a04", "08012007", "3202", "01"]), max_size=9
    )
)
def test_map_entries_are_accepted_where_protobuf_accepts_them(parts: list[str]) -> None:
    for field in (4, 5):
        data = content(1, content(2, "/host:CPU") + content(field, bytes.fromhex("".join(parts))))
        with tempfile.NamedTemporaryFile(suffix=".xplane.pb") as file:
            file.write(data)
            file.flush()
            try:
                expected = reference(data)
            except DecodeError:
                with pytest.raises(MalformedError):
                    read_xplane(Path(file.name))
            else:
                assert decoded(read_xplane(Path(file.name))) == expected
