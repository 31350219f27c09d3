"""Random captures, random damage to them, and what protobuf's own parser says to each against what our reader says.

Everything follows from a seed, so that an input is repeated by its number.
"""

from __future__ import annotations

import random
import resource
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import DecodeError
from xplane_builder import (
    LineBuilder,
    PlaneBuilder,
    Ref,
    Space,
    StatValue,
    Unsigned,
    content,
    double,
    fixed32,
    group,
    integer,
    varint,
)
from xplane_reference import Contents, decoded, fits_int64, reference

from ingest.errors import CaptureError
from ingest.readers.xplane import read_xplane

EDGES = (0, 1, 127, 128, 300, 1 << 14, (1 << 31) - 1, 1 << 32, 1 << 40, (1 << 63) - 1, -1, -5, -(1 << 63))
NAMES = ("XLA Ops", "flops", "", "a\0b", "<b>x</b>", "é", "';--", "x" * 200, "num_occurrences", "hlo_op", "_c")


def random_space(r: random.Random, damage_inside: str = "none") -> bytes:
    """A legal XSpace, mostly of the shape that writers emit.

    `damage_inside` is one of MUTATIONS: it hits an event, a stat or metadata before that is wrapped in its parents,
    so that the lengths around it fit.
    """
    space = Space(hostnames=["host"] * r.randrange(3), errors=["e"] * r.randrange(2), warnings=["w"] * r.randrange(2))
    for _ in range(r.choice((1, 1, 2, 3))):
        plane = space.tpu(r.randrange(4)) if r.random() < 0.5 else space.plane(r.choice(NAMES), r.choice(EDGES))
        plane.metadata_first = r.random() < 0.3
        _fill(r, plane)
    if damage_inside != "none":
        _damage(r, r.choice(space.planes), damage_inside)
    if r.random() < 0.1:
        space.extra = _unknown(r)
    return space.to_bytes()


def _fill(r: random.Random, plane: PlaneBuilder) -> None:
    for i in range(r.randrange(4)):
        stats = {r.choice(NAMES): _value(r) for _ in range(r.randrange(4))}
        plane.metadata(f"%op.{i} = f32[] add()", r.choice(NAMES), stats, r.choice((None, None, r.choice(EDGES))))
    ids = [*range(1, 5), 300, 70_000, -1, 1 << 40]
    for _ in range(r.choice((0, 1, 1, 1, 2, 4))):
        line = plane.line(r.choice(NAMES), r.choice((0, 0, 7, 212_990, -3)), line_id=r.choice(EDGES))
        line.display_name, line.duration_ps = r.choice(("", "shown")), r.choice((0, 5))
        shape = r.random()  # most lines repeat one shape of event, some mix them
        time_ps = r.choice((0, 1, 10**9, 81_311_052_656))
        for _ in range(r.choice((0, 1, 2, 5, 40, 300 if r.random() < 0.1 else 3))):
            _event(r, line, r.choice(ids), time_ps, shape if r.random() < 0.8 else r.random())
            time_ps += r.randrange(10**7)


def _damage(r: random.Random, plane: PlaneBuilder, mutation: str) -> None:
    lines = [line for line in plane.lines if line.events]
    targets = [plane.event_metadata, plane.stats, *(line.events for line in lines), *(line.events for line in lines)]
    parts = r.choice([t for t in targets if t] or [[b"\x08\x01"]])
    i = r.randrange(len(parts))
    if any(parts is line.events for line in lines):
        body = parts[i][next(k for k in range(1, 12) if parts[i][k] < 0x80) + 1 :]
        parts[i] = content(4, mutated(r, body, mutation))
    else:
        parts[i] = mutated(r, parts[i], mutation)


def _event(r: random.Random, line: LineBuilder, metadata_id: int, time_ps: int, shape: float) -> None:
    duration = r.randrange(10**7)
    plane = line.plane
    if shape < 0.6:
        stats = {n: _value(r, kind) for kind, n in enumerate(r.sample(NAMES, r.randrange(4)))}
        extra = b"".join(content(4, plane.encode_stat(n, v)) for n, v in stats.items())
        line.event(metadata_id, time_ps, duration, extra=extra)
    elif shape < 0.7:
        line.event(metadata_id, 0, duration, occurrences=r.choice((0, 1, 9, -1)), text="y" * r.choice((3, 90, 200)))
    else:
        line.raw_event(*(_event_field(r, plane, metadata_id, time_ps) for _ in range(r.randrange(7))))


def _event_field(r: random.Random, plane: PlaneBuilder, metadata_id: int, time_ps: int) -> bytes:
    width = r.choice((1, 1, 1, 4, 9, 10))
    match r.randrange(6):
        case 0:
            return integer(1, metadata_id, width)
        case 1:
            return integer(2, time_ps, width)
        case 2:
            return integer(3, r.choice((1, 5, 10**7)), width)
        case 3:
            return integer(5, r.choice((0, 3, -2)), width)
        case 4:
            return content(4, _odd_stat(r, plane), r.choice((1, 1, 2, 5)))
    return _unknown(r)


def _odd_stat(r: random.Random, plane: PlaneBuilder) -> bytes:
    parts = [plane.encode_stat(r.choice(NAMES), _value(r)), integer(1, r.choice(EDGES)), integer(3, r.choice(EDGES))]
    parts += [integer(7, r.choice(EDGES)), content(5, b"\xff\0"), double(2, 0.5), _unknown(r)]
    return b"".join(r.sample(parts, r.randrange(4)))


def _value(r: random.Random, kind: int | None = None) -> StatValue:
    match r.randrange(6) if kind is None else kind:
        case 0:
            return Unsigned(r.choice(EDGES))
        case 1:
            return r.choice(EDGES)
        case 2:
            return r.choice((0.5, -1.0, float("inf"), float("nan")))
        case 3:
            return r.choice(NAMES) * r.choice((1, 1, 3))
        case 4:
            return b"\xff\x00\x22\x08" * r.randrange(20)
    return Ref(r.choice(NAMES))


def _unknown(r: random.Random) -> bytes:
    number = r.choice((8, 13, 15, 16, 100, 5000, (1 << 29) - 1))
    choices = (integer(number, r.choice(EDGES)), content(number, b"abc"), double(number, 1.5), fixed32(number, 7))
    return r.choice(choices)


MUTATIONS = ("none", "truncate", "flip", "insert", "delete", "length", "long varint", "wire type", "group", "splice")


def mutated(r: random.Random, data: bytes, mutation: str) -> bytes:
    """`data` with one kind of damage."""
    if not data:
        return data
    b = bytearray(data)
    at = r.randrange(len(b))
    match mutation:
        case "truncate":
            del b[at:]
        case "flip":
            for _ in range(r.choice((1, 1, 2, 8, 64))):
                b[r.randrange(len(b))] = r.choice((r.randrange(256), 0, 0x7F, 0x80, 0xFF, 0x22, 0x08))
        case "insert":
            b[at:at] = r.randbytes(r.randrange(1, 30))
        case "delete":
            del b[at : at + r.choice((1, 2, 30, 1000))]
        case "length":  # a byte that follows a length-delimited tag
            tags = [i for i, x in enumerate(b[:-1]) if x in (0x0A, 0x12, 0x1A, 0x22, 0x2A, 0x32)]
            if tags:
                i = r.choice(tags) + 1
                b[i] = (b[i] + r.choice((-2, -1, 1, 2, 100))) % 256
        case "long varint":
            length = r.choice((2, 5, 6, 9, 10, 11))
            b[at : at + 1] = bytes([b[at] | 0x80, *[0x80] * (length - 2), r.choice((0, 1, 0x7F))])
        case "wire type":
            b[at] = b[at] & ~7 | r.randrange(8)
        case "group":
            b[at:at] = group(r.choice((1, 4, 15, 100)), r.choice((b"", integer(1, 5), b"\x0b\x0c")))
        case "splice":
            start = r.randrange(len(b))
            b[at:at] = b[start : start + r.choice((3, 20, 300))]
    if r.random() < 0.02:
        b += r.choice(
            (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x0a\x80", b"\x07", b"\0", varint(1 << 34 | 2))
        )
    return bytes(b)


@dataclass
class Outcome:
    """What became of one input: a category, and why it is one that must not be."""

    category: str
    failure: str = ""
    seconds: float = 0.0


def judge(data: bytes, path: Path) -> Outcome:
    """Write `data` to `path`, read it with both parsers, compare.

    Our reader may refuse what protobuf takes (groups, say); it may never take what protobuf refuses, give other rows,
    or raise anything but a CaptureError.
    """
    path.write_bytes(data)
    try:
        want: Contents | None = reference(data)
    except DecodeError:
        want = None
    begin = time.perf_counter()
    got: Contents | None = None
    refusal = ""
    try:
        got = decoded(read_xplane(path))
    except CaptureError as error:
        refusal = str(error)
    except Exception as error:
        return Outcome("exception", f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - begin
    if got is None:
        if want is None:
            return Outcome("both refuse", seconds=seconds)
        if not fits_int64(want):
            return Outcome("refused, legal: times beyond int64", seconds=seconds)
        return Outcome(f"refused, legal: {_reason(refusal)}", seconds=seconds)
    if want is None:
        return Outcome("accepted, not legal", "protobuf refuses what the reader takes", seconds)
    if got != want:
        parts = [n for n in ("planes", "metadata", "lines", "events") if getattr(got, n) != getattr(want, n)]
        return Outcome("other rows", f"{' and '.join(parts)} differ from protobuf's", seconds)
    return Outcome("same rows", seconds=seconds)


_LEGAL_BUT_REFUSED = {
    "field tag": "a group, or a tag in more bytes than it needs",
    "without planes": "no planes",
    "empty": "no planes",
    "stands after its events": "a line's header after its events",
}


def _reason(refusal: str) -> str:
    return next((reason for part, reason in _LEGAL_BUT_REFUSED.items() if part in refusal), f"OTHER: {refusal}")


@dataclass
class Report:
    """Outcomes by mutation and category."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[tuple[int, str, str, bytes]] = field(default_factory=list)
    slowest: tuple[float, int] = (0.0, -1)
    peak_kb: int = 0

    @property
    def inputs(self) -> int:
        return sum(self.counts.values())


def run(
    seed: int, first: int, count: int, *, corpus: list[bytes] | None = None, seconds: float | None = None
) -> Report:
    """Judge inputs `first` to `first + count` of `seed`; stop early after `seconds`."""
    report = Report()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder) / "x.xplane.pb"
        for number in range(first, first + count):
            r = random.Random(f"{seed}/{number}")
            mutation = MUTATIONS[number % len(MUTATIONS)]
            if corpus and r.random() < 0.02:
                data = mutated(r, r.choice(corpus), mutation)
            elif r.random() < 0.6:
                data = random_space(r, mutation)
            else:
                data = mutated(r, random_space(r), mutation)
            outcome = judge(data, path)
            report.counts[mutation, outcome.category] += 1
            report.slowest = max(report.slowest, (outcome.seconds, number))
            if outcome.failure or "OTHER" in outcome.category:
                report.failures.append((number, mutation, outcome.failure or outcome.category, data))
            if seconds is not None and time.perf_counter() - begin > seconds:
                break
    report.peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return report
