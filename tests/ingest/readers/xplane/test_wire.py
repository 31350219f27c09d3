"""The wire format in numpy against plain Python, value by value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from xplane_builder import content, double, fixed32, group, integer, varint

from tracewarehouse.ingest.columns.records import UInt8
from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.readers.xplane import wire

WORDS = st.integers(0, (1 << 64) - 1)
PADDING = bytes(wire.PADDING)


def words(data: bytes) -> wire.Words:
    return wire.Words.over(np.frombuffer(data + PADDING, np.uint8))


@given(st.lists(st.tuples(WORDS, st.integers(1, 10)), min_size=1))
@example([((1 << 64) - 1, 1), (0, 10), (1 << 63, 1), (127, 1), (128, 1), ((1 << 56) - 1, 1), (1 << 56, 1)])
def test_varints(values: list[tuple[int, int]]) -> None:
    encoded = [varint(v, width) for v, width in values]
    starts = np.cumsum([0, *map(len, encoded)])
    data = b"".join(encoded)
    found, after = wire.varints(words(data), starts[:-1])
    assert found.tolist() == [v for v, _ in values]
    assert after.tolist() == starts[1:].tolist()
    for start, stop, (value, _) in zip(starts[:-1].tolist(), starts[1:].tolist(), values, strict=True):
        assert wire.read_varint(data, start, len(data)) == (value, stop)


@pytest.mark.parametrize("tail", [b"\x80" * 10 + b"\1", b"\xff" * 16])
def test_a_varint_has_at_most_ten_bytes(tail: bytes) -> None:
    with pytest.raises(MalformedError):
        wire.varints(words(b"\1" + tail), np.array([0, 1]))
    with pytest.raises(MalformedError):
        wire.read_varint(tail, 0, len(tail))


def test_bits_above_the_64th_are_dropped_as_parsers_do() -> None:
    data = b"\xff" * 9 + b"\x7f"
    assert wire.varints(words(data), np.array([0]))[0].tolist() == [(1 << 64) - 1]
    assert wire.read_varint(data, 0, 10) == ((1 << 64) - 1, 10)


def test_a_truncated_varint() -> None:
    with pytest.raises(MalformedError):
        wire.read_varint(b"\x80\x80", 0, 2)


@given(st.lists(st.integers(0, 1 << 35), min_size=1))
def test_lengths_are_capped(values: list[int]) -> None:
    values = [v % (1 << 35) for v in values]
    encoded = [varint(v) for v in values]
    starts = np.cumsum([0, *map(len, encoded)])
    found, after = wire.lengths(words(b"".join(encoded)), starts[:-1])
    assert found.tolist() == values
    assert after.tolist() == starts[1:].tolist()


def test_a_length_has_at_most_five_bytes() -> None:
    with pytest.raises(MalformedError):
        wire.lengths(words(varint(1, 6)), np.array([0]))


@given(WORDS)
def test_signed(value: int) -> None:
    assert wire.signed(value) == int(np.uint64(value).astype(np.int64))


def test_fields() -> None:
    data = integer(1, -1) + content(2, b"abc") + double(3, 1.0) + fixed32(4, 7) + content(900, b"")
    found = [(tag >> 3, tag & 7, stop - start) for tag, start, _, stop in wire.fields(data, 0, len(data))]
    assert found == [(1, 0, 11), (2, 2, 5), (3, 1, 9), (4, 5, 5), (900, 2, 3)]
    payloads = [payload for _, _, payload, _ in wire.fields(data, 0, len(data))]
    assert payloads[0] == (1 << 64) - 1
    assert data[payloads[1] : payloads[1] + 3] == b"abc"


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0",
        group(3),
        b"\x0c",
        b"\x0f\0",
        b"\x0a\x05abc",
        b"\x09abc",
        b"\x08",
        varint(0x0A, 2) + b"\0",
        b"\x0a" + varint(0, 6),
    ],
)
def test_fields_that_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        list(wire.fields(data, 0, len(data)))


TEXTS = st.lists(st.one_of(st.binary(max_size=5), st.binary(min_size=60, max_size=300)), max_size=40)


@given(TEXTS)
def test_distinct_texts(texts: list[bytes]) -> None:
    encoded = [varint(len(t)) + t for t in texts]
    starts = np.cumsum([0, *map(len, encoded)])[:-1].astype(np.int64)
    codes, distinct = wire.distinct_texts(words(b"".join(encoded)), starts)
    assert [distinct[c] for c in codes.tolist()] == texts
    assert len(set(distinct)) == len(distinct)


def test_a_text_outside_the_bytes() -> None:
    with pytest.raises(IndexError):
        wire.distinct_texts(words(b"\x7fab"), np.array([0]))


FIELDS = st.one_of(
    st.builds(
        lambda i, o, d, text: content(4, integer(1, i) + integer(2, o) + integer(3, d) + content(4, text)),
        st.sampled_from([1, 200, 70_000, -1]),
        st.integers(0, 1 << 40),
        st.integers(0, 1 << 20),
        st.one_of(st.binary(max_size=40), st.just(content(4, integer(1, 1) + integer(2, 5)) * 5)),
    ),
    st.builds(lambda raw: content(4, raw), st.binary(max_size=200)),
    st.builds(lambda raw: content(15, raw), st.binary(max_size=200)),
    st.just(integer(9, 5)),
    st.just(content(4, b"")),
)


@given(
    st.lists(st.tuples(FIELDS, st.integers(1, 60)), min_size=1, max_size=20),
    st.sampled_from([64, 100, 4096, 4097, 5000, 8192, 1 << 20]),
    st.integers(0, 5),
)
def test_event_windows_find_every_event_once(parts: list[tuple[bytes, int]], window: int, offset: int) -> None:
    encoded = [field for field, count in parts for _ in range(count)]
    line = b"".join(encoded)
    file = bytes(offset) + line
    data = np.frombuffer(file, np.uint8)

    def read(low: int, high: int, padding: int) -> UInt8:
        assert offset <= low < high <= len(file)
        return np.append(data[low:high], np.full(padding, 0xFF, np.uint8))

    found = []
    for source, starts in wire.event_windows(read, offset, len(file), window):
        for start in starts.tolist():
            size, at = wire.read_varint(source.data.tobytes(), start + 1, source.data.size)
            found.append(source.data[start : at + size].tobytes())
    assert found == [field for field in encoded if field[0] == 0x22]
