"""Random captures and random damage to them."""

from __future__ import annotations

import random

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
        if plane is not space.planes[0] and r.random() < 0.2:
            _repeat_metadata(r, plane, space.planes[0])
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


def _repeat_metadata(r: random.Random, plane: PlaneBuilder, first: PlaneBuilder) -> None:
    """Give a plane the metadata of the first, but for a few, after adding some that are long enough to be known."""
    for i in range(r.choice((1, 8, 40))):
        first.metadata(f"%repeated.{i} = f32[{'1,' * r.randrange(200)}] add()", stats={"flops": i, "n": "x" * i})
    plane.stat_names |= first.stat_names
    plane.event_metadata = list(first.event_metadata)
    for _ in range(r.randrange(3)):
        plane.event_metadata.insert(r.randrange(9), plane.event_metadata.pop(r.randrange(len(plane.event_metadata))))


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
