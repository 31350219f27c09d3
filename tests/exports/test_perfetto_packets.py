"""The encoding of Perfetto packets, and the lanes of slices that overlap."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from xplane_builder import varint as plain_varint

from tracewarehouse.exports.perfetto.packets import begins_and_ends, nesting_lanes
from tracewarehouse.exports.perfetto.wire import (
    fixed64s,
    joined,
    joined_bytes,
    key,
    messages,
    repeated,
    varints,
)
from tracewarehouse.ingest.protobuf import varint

INTEGERS = st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 127, 128, 2**14 - 1, 2**14, 2**63]), max_size=20)


@given(INTEGERS)
def test_varints_are_those_of_the_wire_format(values: list[int]) -> None:
    found = varints(b"\x08", np.array(values, np.uint64))
    assert found.to_pylist() == [b"\x08" + plain_varint(v) for v in values]
    assert [varint(v) for v in values] == [plain_varint(v) for v in values]
    assert bytes(joined_bytes(found)) == b"".join(found.to_pylist())


def test_negative_integers_are_twos_complements() -> None:
    assert varints(b"", np.array([-1, -128])).to_pylist() == [varint(-1), varint(-128)]
    assert varint(-1) == b"\xff" * 9 + b"\x01"


def test_absent_fields_are_left_out_of_messages() -> None:
    is_absent = np.array([False, True, False])
    small = varints(b"\x08", np.array([1, 2, 300]), is_absent)
    large = fixed64s(key(47, 1), np.array([5, 6, 7]), np.array([True, False, False]))
    assert small.to_pylist() == [b"\x08\x01", None, b"\x08\xac\x02"]
    assert messages(4, small).to_pylist() == [b"\x22\x02\x08\x01", None, b"\x22\x03\x08\xac\x02"]
    assert joined(small, large).to_pylist() == [
        b"\x08\x01",
        b"\xf9\x02" + struct.pack("<q", 6),
        b"\x08\xac\x02\xf9\x02" + struct.pack("<q", 7),
    ]
    assert fixed64s(b"", np.array([0.5])).to_pylist() == [struct.pack("<d", 0.5)]
    assert repeated(b"ab", 3).to_pylist() == [b"ab"] * 3
    assert bytes(joined_bytes(pa.concat_arrays([small.slice(0, 1), small.slice(2, 1)]))) == b"\x08\x01\x08\xac\x02"


def test_a_slice_that_ends_in_the_middle_of_another_gets_the_next_lane() -> None:
    """Bars 0 to 3; the third overlaps the first and the second, the fourth lies in the first.

    0: [----------)
    1:    [------------)
    2:       [-------------)
    3:        [-)
    """
    start, end = np.array([0, 3, 6, 7]), np.array([11, 16, 20, 9])
    assert nesting_lanes(start, end).tolist() == [0, 1, 2, 0]


def test_begins_and_ends_at_one_time() -> None:
    """A holds B, and ends with it where C begins; D has no length and begins with C: A B /B /A C D /C."""
    start, end = np.array([0, 2, 5, 5]), np.array([5, 5, 7, 5])
    assert nesting_lanes(start, end).tolist() == [0, 0, 0, 0]
    assert begins_and_ends(start, end).tolist() == [0, 1, 5, 4, 2, 3, 6]


SLICES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=40)


@given(SLICES)
def test_slices_of_a_lane_nest_whatever_they_are(slices: list[tuple[int, int]]) -> None:
    found = sorted(((start, start + length) for start, length in slices), key=lambda s: (s[0], -s[1]))
    start, end = np.array([s for s, _ in found], np.int64), np.array([e for _, e in found], np.int64)
    lanes = nesting_lanes(start, end)
    for lane in set(lanes.tolist()):
        here = np.flatnonzero(lanes == lane)
        stack: list[int] = []
        times = []
        n = len(here)
        for event in begins_and_ends(start[here], end[here]).tolist():
            if event >= n:
                assert stack.pop() == event - n
                times.append(int(end[here][event - n]))
            else:
                times.append(int(start[here][event]))
                if end[here][event] > start[here][event]:
                    stack.append(event)
        assert not stack
        assert times == sorted(times)
        assert lane == 0 or n
    if all(one[1] <= other[0] or other[1] <= one[1] for i, one in enumerate(found) for other in found[i + 1 :]):
        assert not lanes.any()
