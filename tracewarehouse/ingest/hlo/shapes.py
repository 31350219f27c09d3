"""Reads shapes of HLO values from HLO text: element types, dimensions and sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from tracewarehouse.ingest.errors import MalformedError

ELEMENT_BITS: dict[str, int] = {
    "pred": 8, "s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16,
    "s32": 32, "u32": 32, "s64": 64, "u64": 64, "f4e2m1fn": 4, "f8e3m4": 8, "f8e4m3": 8, "f8e4m3b11fnuz": 8,
    "f8e4m3fn": 8, "f8e4m3fnuz": 8, "f8e5m2": 8, "f8e5m2fnuz": 8, "f8e8m0fnu": 8, "f16": 16, "bf16": 16, "f32": 32,
    "f64": 64, "c64": 64, "c128": 128, "token": 0, "opaque": 0,
}  # fmt: skip
"""Bits per element of every XLA primitive type; tokens and opaque values carry no data."""

PRIMITIVE_TYPES: dict[int, str] = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32",
    12: "f64", 14: "opaque", 15: "c64", 16: "bf16", 17: "token", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4",
    22: "u4", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3",
    29: "f8e3m4", 30: "s1", 31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu",
}  # fmt: skip
"""Names of the enum `PrimitiveType` in xla_data.proto, by number."""

TUPLE_TYPE = 13
BUFFER_TYPE = 34

MAX_BYTES = 1 << 42
"""More bytes than any device's memory. Larger shapes count as of unknown size; this also keeps sums in 64 bits."""

MAX_DEPTH = 64
"""Deepest nesting of tuples that is read."""

LONGEST_KEPT = 200
"""Longest text of dimensions that `array_of_text` may keep."""

_ARRAY = re.compile(r"([a-z][a-z0-9]{0,31})\[([0-9,<=? ]*)\]")
_PLAIN = re.compile(r"\d{1,19}(?:,\d{1,19})*", re.ASCII)
_DIMENSION = re.compile(r"(<=)?(\d{1,19})|(\?)")
_SKIP = re.compile(r"(?:\s+|/\*[^*]*+\*/)*")
_BRACE = re.compile(r"[{}]")


@dataclass(frozen=True)
class Shape:
    """The type of an HLO value: an array, or a tuple of shapes. Layouts are not part of it.

    Attributes:
        element: element type of an array such as 'bf16'; 'tuple' for a tuple.
        dimensions: sizes of an array's dimensions, or upper bounds of dynamic ones; None if unbounded.
        dynamic: which dimensions are dynamic; empty if none is.
        elements: element shapes of a tuple.
    """

    element: str
    dimensions: tuple[int | None, ...] = ()
    dynamic: tuple[bool, ...] = ()
    elements: tuple[Shape, ...] = ()

    @property
    def is_tuple(self) -> bool:
        """True for a tuple, even an empty one."""
        return self.element == "tuple"

    @cached_property
    def leaves(self) -> tuple[Shape, ...]:
        """The arrays (and tokens) of a tuple in order, at any depth; an array is its own leaf."""
        if not self.is_tuple:
            return (self,)
        return tuple(leaf for element in self.elements for leaf in element.leaves)

    @cached_property
    def byte_size(self) -> int | None:
        """Bytes of the values without padding, rounded up to whole bytes per array.

        None if a dimension is unbounded, if an element type is unknown because it is newer than this table, or if the
        shape is absurd.
        """
        if self.is_absurd:
            return None
        if self.is_tuple:
            sizes = [element.byte_size for element in self.elements]
            known = [size for size in sizes if size is not None]
            return sum(known) if len(known) == len(sizes) else None
        if None in self.dimensions or self.element not in ELEMENT_BITS:
            return None
        elements = prod(size for size in self.dimensions if size is not None)
        return (elements * ELEMENT_BITS[self.element] + 7) // 8

    @cached_property
    def is_absurd(self) -> bool:
        """True if it would have more than MAX_BYTES bytes, as no real value has."""
        return self._least_bytes() > MAX_BYTES

    def _least_bytes(self) -> int:
        """Bytes, with unbounded dimensions counted as 1; beyond MAX_BYTES any larger number."""
        if self.is_tuple:
            return min(sum(element._least_bytes() for element in self.elements), MAX_BYTES + 1)
        if 0 in self.dimensions:
            return 0
        # The product is taken step by step: a long list of huge sizes must not become a huge integer.
        size = (ELEMENT_BITS.get(self.element, 8) + 7) // 8
        for dimension in self.dimensions:
            size *= dimension or 1
            if size > MAX_BYTES:
                break
        return size

    @cached_property
    def dtype(self) -> str:
        """Element type of an array, or of the largest (first of equal) element of a tuple; 'tuple' if it is empty."""
        if not self.leaves:
            return self.element
        return max(self.leaves, key=lambda leaf: leaf.byte_size or 0).element

    @cached_property
    def text(self) -> str:
        """Canonical HLO text without layout: 'bf16[1024,5120]', '(f32[2],s32[])', 'f32[<=16,?]'."""
        if self.is_tuple:
            return "(" + ",".join(element.text for element in self.elements) + ")"
        dynamic = self.dynamic or (False,) * len(self.dimensions)
        sizes = (
            "?" if size is None else f"<={size}" if is_dynamic else str(size)
            for size, is_dynamic in zip(self.dimensions, dynamic, strict=True)
        )
        return f"{self.element}[{','.join(sizes)}]"

    def __str__(self) -> str:
        return self.text


def array_shape(element: str, dimensions: tuple[int | None, ...], dynamic: tuple[bool, ...] = ()) -> Shape:
    """Make an array shape, and check it."""
    if any(size is not None and size < 0 for size in dimensions):
        raise MalformedError(f"a dimension of a {element} array is negative")
    unbounded = tuple(dimension is None for dimension in dimensions)
    dynamic = tuple(map(bool.__or__, dynamic, unbounded)) if dynamic else unbounded
    return Shape(element, dimensions, dynamic if any(dynamic) else ())


def parse_shape(text: str) -> Shape:
    """Read a shape from HLO text such as 'bf16[1024,5120]{1,0:T(8,128)(2,1)S(1)}' or '(f32[2], s32[])'."""
    shape, end = scan_shape(text, 0)
    end = skip(text, end)
    if end != len(text):
        raise MalformedError(f"HLO shape: {text[end : end + 40]!r} follows a shape")
    return shape


def scan_shape(text: str, start: int) -> tuple[Shape, int]:
    """Return the shape that begins at `start`, and the position of its end; layouts and comments are skipped."""
    open_tuples: list[list[Shape]] = []
    wrappers: list[bool] = []
    position = start
    while True:
        position = skip(text, position)
        # 'b(' is a buffer: a value of the wrapped shape.
        is_buffer = text.startswith("b(", position)
        if is_buffer or text.startswith("(", position):
            if len(open_tuples) >= MAX_DEPTH:
                raise MalformedError(f"HLO shape: tuples nest deeper than {MAX_DEPTH}")
            position = skip(text, position + (2 if is_buffer else 1))
            open_tuples.append([])
            wrappers.append(is_buffer)
            if not text.startswith(")", position):
                continue
        else:
            shape, position = _scan_array(text, position)
            if not open_tuples:
                return shape, position
            open_tuples[-1].append(shape)
        # After an element: a comma leads to the next one, closing brackets end tuples.
        while True:
            position = skip(text, position)
            if text.startswith(",", position):
                position += 1
                break
            if not text.startswith(")", position):
                raise MalformedError(f"HLO shape: a tuple does not end: {text[start : start + 40]!r}")
            position += 1
            elements, is_buffer = tuple(open_tuples.pop()), wrappers.pop()
            shape = elements[0] if is_buffer and len(elements) == 1 else Shape("tuple", elements=elements)
            if not open_tuples:
                return shape, position
            open_tuples[-1].append(shape)


def skip(text: str, position: int) -> int:
    """Return the position after white space and /*comments*/."""
    match = _SKIP.match(text, position)
    return match.end() if match else position


def _scan_array(text: str, position: int) -> tuple[Shape, int]:
    match = _ARRAY.match(text, position)
    if match is None:
        raise MalformedError(f"HLO shape: {text[position : position + 40]!r} is not a shape")
    read = array_of_text if len(match[2]) <= LONGEST_KEPT else array_of_text.__wrapped__
    shape, end = read(match[1], match[2]), match.end()
    return shape, _scan_layout(text, end) if text.startswith("{", end) else end


@lru_cache(maxsize=1 << 14)
def array_of_text(element: str, dimensions: str) -> Shape:
    """Return the array of an element type and its dimensions' text, such as '1024,5120'; equal ones share an object.

    Many instructions have few distinct shapes. A text that is too long for a real shape must not be kept.
    """
    if not dimensions or _PLAIN.fullmatch(dimensions):  # as nearly all are
        return Shape(element, tuple(map(int, dimensions.split(","))) if dimensions else ())
    sizes: list[int | None] = []
    dynamic: list[bool] = []
    for part in dimensions.split(",") if dimensions.strip() else ():
        dimension = _DIMENSION.fullmatch(part.strip())
        if dimension is None:
            raise MalformedError(f"HLO shape: {part[:40]!r} is not a dimension")
        sizes.append(None if dimension[3] else int(dimension[2]))
        dynamic.append(bool(dimension[1]))
    return array_shape(element, tuple(sizes), tuple(dynamic))


def _scan_layout(text: str, position: int) -> int:
    first = text.find("}", position) + 1
    if first and text.find("{", position + 1, first) < 0:
        return first
    depth = 0
    for brace in _BRACE.finditer(text, position):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    raise MalformedError("HLO shape: a layout does not end")
