"""Encodes protobuf fields of many messages at once, as Arrow arrays of bytes.

A column of values becomes a column of encoded fields, and columns are joined to messages. A NULL is a field that its
message lacks. See https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracewarehouse.ingest.protobuf import varint

VARINT, FIXED64, LENGTH = 0, 1, 2
"""Wire types."""
Int64 = npt.NDArray[np.int64]
Integers = Int64 | npt.NDArray[np.uint64]
Encoded = Any
"""A pyarrow BinaryArray with one element per message."""
_SHIFTS = np.arange(0, 70, 7, dtype=np.uint64)


def key(number: int, wire_type: int) -> bytes:
    """The key that comes before a field."""
    return varint(number << 3 | wire_type)


def varints(prefix: bytes, values: Integers, is_absent: npt.NDArray[np.bool_] | None = None) -> Encoded:
    """A prefix and an integer per message.

    Args:
        prefix: the bytes before each integer: its key, or more fields.
        values: integers, shape (n,).
        is_absent: true where the message lacks the field, shape (n,); None if no message does.
    """
    unsigned = values.astype(np.uint64, copy=False)
    sizes = np.ones(len(unsigned), np.int64)
    width = 1
    while width < 10 and (larger := unsigned >> _SHIFTS[width] != 0).any():
        sizes += larger
        width += 1
    head = len(prefix)
    rows = np.empty((len(unsigned), head + width), np.uint8)
    rows[:, :head] = np.frombuffer(prefix, np.uint8)
    for place in range(width):
        more = np.where(sizes > place + 1, np.uint8(128), np.uint8(0))
        rows[:, head + place] = (unsigned >> _SHIFTS[place] & np.uint64(127)).astype(np.uint8) | more
    if is_absent is not None:
        sizes = np.where(is_absent, -head, sizes)
    is_kept = np.arange(head + width) < (head + sizes)[:, None]
    return _array(head + sizes, rows[is_kept], is_absent)


def fixed64s(prefix: bytes, values: npt.NDArray[Any], is_absent: npt.NDArray[np.bool_] | None = None) -> Encoded:
    """A prefix and eight bytes per message: an integer or a double; see `varints`."""
    head = len(prefix)
    rows = np.empty((len(values), head + 8), np.uint8)
    rows[:, :head] = np.frombuffer(prefix, np.uint8)
    rows[:, head:] = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).view(np.uint8).reshape(-1, 8)
    sizes = np.full(len(values), head + 8)
    if is_absent is not None:
        sizes[is_absent] = 0
        rows = rows[~is_absent]
    return _array(sizes, rows.reshape(-1), is_absent)


def joined(*columns: Encoded | bytes) -> Encoded:
    """The fields of each message one after the other, without those that are NULL."""
    return pc.binary_join_element_wise(*columns, b"", null_handling="skip")


def messages(number: int, content: Encoded) -> Encoded:
    """Each content as a field that holds a message; NULL where it is NULL."""
    sizes = pc.fill_null(pc.binary_length(content), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return pc.binary_join_element_wise(varints(key(number, LENGTH), sizes), content, b"")


def repeated(content: bytes, count: int) -> Encoded:
    """The same bytes for each of `count` messages."""
    return _array(np.full(count, len(content)), np.tile(np.frombuffer(content, np.uint8), count), None)


def joined_bytes(column: Encoded) -> memoryview:
    """All messages or texts of an array one after the other, without a copy."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64 if str(column.type).startswith("large_") else np.int32)
    return memoryview(data)[int(ends[column.offset]) : int(ends[column.offset + len(column)])]


def _array(sizes: Int64, data: npt.NDArray[np.uint8], is_absent: npt.NDArray[np.bool_] | None) -> Encoded:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    valid = None if is_absent is None else pa.py_buffer(np.packbits(~is_absent, bitorder="little"))
    return pa.Array.from_buffers(
        pa.binary(), len(sizes), [valid, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )
