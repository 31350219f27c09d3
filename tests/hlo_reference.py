"""HLO text and protos read the plain way: one character at a time, groups counted out; nothing of the readers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

ROOM = 1 << 42
MOST_MEMBERS = 1 << 17
BITS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128, "bf16": 16}


class UnreadableError(Exception):
    """The text is not what was looked for."""


@dataclass(frozen=True)
class Shape:
    """An array, or a tuple: `element` is then 'tuple'."""

    element: str
    sizes: tuple[int | None, ...] = ()
    dynamic: tuple[bool, ...] = ()
    elements: tuple[Shape, ...] = ()

    @property
    def text(self) -> str:
        if self.element == "tuple":
            return "(" + ",".join(e.text for e in self.elements) + ")"
        parts = []
        for i, size in enumerate(self.sizes):
            is_dynamic = bool(self.dynamic) and self.dynamic[i]
            parts.append("?" if size is None else f"<={size}" if is_dynamic else str(size))
        return f"{self.element}[{','.join(parts)}]"

    @property
    def bytes(self) -> int | None:
        if self.room > ROOM:
            return None
        if self.element == "tuple":
            sizes = [e.bytes for e in self.elements]
            return None if None in sizes else sum(s for s in sizes if s is not None)
        bits = bits_of(self.element)
        if bits is None or None in self.sizes:
            return None
        return -(-prod(s for s in self.sizes if s is not None) * bits // 8)

    @property
    def room(self) -> int:
        """Bytes with each element in whole ones, unbounded sizes counted as 1."""
        if self.element == "tuple":
            return sum(e.room for e in self.elements)
        bits = bits_of(self.element)
        return -(-(8 if bits is None else bits) // 8) * prod(s for s in self.sizes if s is not None)


def bits_of(element: str) -> int | None:
    """Bits of an element, by its name."""
    if element in BITS:
        return BITS[element]
    known = re.fullmatch(
        r"[su](1|2|4|8|16|32|64)|f(16|32|64)|f(4)e2m1fn|f(8)(?:e3m4|e4m3|e4m3b11fnuz|e4m3fn|e4m3fnuz|e5m2|e5m2fnuz|e8m0fnu)",
        element,
    )
    return int(next(g for g in known.groups() if g)) if known else None


def checked_array(element: str, sizes: Sequence[int | None], dynamic: Sequence[bool] = ()) -> Shape:
    """An array without negative sizes."""
    if any(s is not None and s < 0 for s in sizes):
        raise UnreadableError
    is_dynamic = tuple(s is None or (bool(dynamic) and dynamic[i]) for i, s in enumerate(sizes))
    return Shape(element, tuple(sizes), is_dynamic if any(is_dynamic) else ())


class Text:
    """A text and where one is in it."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text, self.at = text, at

    def sees(self, mark: str) -> bool:
        return self.text.startswith(mark, self.at)

    def skip(self) -> None:
        """Step over white space and comments; a comment with a * in it is not one that a shape may hold."""
        while self.at < len(self.text):
            if self.text[self.at].isspace():
                self.at += 1
                continue
            end = self.text.find("*", self.at + 2) if self.sees("/*") else -1
            if end < 0 or not self.text.startswith("*/", end):
                return
            self.at = end + 2

    def shape(self, depth: int = 0) -> Shape:
        """Read a shape and its layout."""
        self.skip()
        is_buffer = self.sees("b(")
        if not is_buffer and not self.sees("("):
            return self._array()
        if depth >= 64:
            raise UnreadableError
        self.at += 2 if is_buffer else 1
        self.skip()
        elements = []
        if not self.sees(")"):
            while True:
                elements.append(self.shape(depth + 1))
                self.skip()
                if not self.sees(","):
                    break
                self.at += 1
        self.skip()
        if not self.sees(")"):
            raise UnreadableError
        self.at += 1
        return elements[0] if is_buffer and len(elements) == 1 else Shape("tuple", elements=tuple(elements))

    def _array(self) -> Shape:
        begin = self.at
        while self.at < len(self.text) and (self.text[self.at] in "abcdefghijklmnopqrstuvwxyz0123456789"):
            self.at += 1
        element = self.text[begin : self.at]
        if not element or element[0].isdigit() or len(element) > 32 or not self.sees("["):
            raise UnreadableError
        end = self.text.find("]", self.at)
        inside = self.text[self.at + 1 : end]
        if end < 0 or any(c not in "0123456789,<=? " for c in inside):
            raise UnreadableError
        self.at = end + 1
        sizes: list[int | None] = []
        dynamic = []
        for part in inside.split(",") if inside.strip() else []:
            digits = part.strip()
            dynamic.append(digits.startswith("<="))
            digits = digits.removeprefix("<=")
            if digits == "?" and not dynamic[-1]:
                sizes.append(None)
            elif digits.isdigit() and len(digits) <= 19:
                sizes.append(int(digits))
            else:
                raise UnreadableError
        shape = checked_array(element, sizes, dynamic)
        if self.sees("{"):
            depth = 0
            while True:
                if self.at >= len(self.text):
                    raise UnreadableError
                depth += {"{": 1, "}": -1}.get(self.text[self.at], 0)
                self.at += 1
                if not depth:
                    break
        return shape

    def parts(self, closing: str) -> tuple[list[str], bool]:
        """What stands between commas up to the bracket that closes it, or to the end; whether it ends well."""
        found: list[str] = []
        depth, begin, text = 0, self.at, self.text
        while self.at < len(text):
            c = text[self.at]
            if c == '"':
                end = self.at + 1
                while end < len(text) and text[end] != '"':
                    end += 2 if text[end] == "\\" else 1
                if end >= len(text):
                    self.at = len(text)
                    return found, False
                self.at = end + 1
                continue
            if text.startswith("/*", self.at):
                end = text.find("*/", self.at + 2)
                if end < 0:
                    self.at = len(text)
                    return found, False
                self.at = end + 2
                continue
            self.at += 1
            if c in "([{":
                depth += 1
                if depth > 256:
                    self.at = len(text)
                    return found, False
            elif c in ")]}":
                if not depth:
                    found.append(text[begin : self.at - 1])
                    return found, c == closing
                depth -= 1
            elif c == "," and not depth:
                found.append(text[begin : self.at - 1])
                begin = self.at
        if closing or depth or text.endswith("..."):
            return found, False
        return [*found, text[begin:]], True


@dataclass
class Facts:
    """What a text states."""

    name: str
    opcode: str
    shape: str
    operands: list[tuple[str, str | None]] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    is_truncated: bool = False


def facts(text: str) -> Facts | None:
    """The facts of a line of HLO text; None where it is none."""
    head = re.match(r"\s*(?:ROOT\s+)?%?([A-Za-z0-9_$][^\s=,(){}\[\]]*) = ", text)
    if head is None:
        return None
    cursor = Text(text, head.end())
    try:
        shape = cursor.shape()
    except UnreadableError:
        return None
    opcode = re.compile(r"\s*([a-z][a-z0-9-]*)\(").match(text, cursor.at)
    if opcode is None or len(opcode[1]) > 64:
        return None
    cursor.at = opcode.end()
    found = Facts(head[1], opcode[1], shape.text)
    parts, is_whole = cursor.parts(")")
    has_all = True
    if opcode[1] not in ("constant", "parameter", "iota", "partition-id", "replica-id"):
        for part in parts:
            has_all &= _add_operand(found, part)
    attributes: dict[str, str] = {}
    if is_whole:
        pieces, is_whole = cursor.parts("")
        attributes = _attributes(pieces)
    found.is_truncated = not (is_whole and has_all)
    found.attributes = _read(attributes, opcode[1])
    return found


def _add_operand(found: Facts, part: str) -> bool:
    cursor = Text(part)
    cursor.skip()
    rest = part[cursor.at :].strip()
    if not rest:
        return True
    if re.fullmatch(r"\.\.\.(\(\+\d+\))?", rest):
        return False
    shape = None
    if not rest.startswith("%"):
        cursor = Text(rest)
        try:
            shape = cursor.shape().text
            rest = rest[cursor.at :].strip()
        except UnreadableError:
            pass
    found.operands.append((rest.removeprefix("%"), shape))
    return True


def _attributes(pieces: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    i = 0
    while i < len(pieces):
        match = re.match(r"\s*([A-Za-z_]\w*)\s*=\s*", pieces[i])
        if match is None:
            i += 1
            continue
        key, value = match[1], pieces[i][match.end() :].strip()
        if key == "replica_groups" and value.startswith(("mesh", "@mesh")):
            # a mesh holds commas: it goes on to the piece that ends with the named axes
            last = next((j for j in range(i, len(pieces)) if pieces[j].rstrip().endswith("}")), None)
            if last is None:
                return found
            value = ",".join([value, *pieces[i + 1 : last + 1]])
            i = last
        found.setdefault(key, value)
        i += 1
    return found


_CALLS = (
    "body", "calls", "to_apply", "select", "scatter", "condition", "true_computation", "false_computation",
    "branch_computations", "called_computations",
)  # fmt: skip


def _read(attributes: dict[str, str], opcode: str) -> dict[str, Any]:
    metadata = _pairs_of_metadata(attributes.get("metadata", ""))
    called = []
    for key in _CALLS:
        for name in re.split(r"[\s,{}%]+", attributes.get(key, "")):
            called += [name] if name else []
    pairs = attributes.get("source_target_pairs")
    if not pairs:
        at = re.search(
            r'_xla_send_recv_source_target_pairs="?(\{[\d,{}\s]*)', attributes.get("frontend_attributes", "")
        )
        if at and "}}" in at[1]:
            pairs = at[1][: at[1].rfind("}}") + 2]
    target = re.match(r'"((?:[^"\\]|\\.)*)"', attributes.get("custom_call_target", ""), re.DOTALL)
    return {
        "channel_id": _integer(attributes.get("channel_id")),
        "replica_groups": _or_none(groups, attributes.get("replica_groups")),
        "source_target_pairs": _or_none(pair_list, pairs),
        "use_global_device_ids": attributes.get("use_global_device_ids") == "true",
        "is_host_transfer": attributes.get("is_host_transfer") == "true",
        "op_name": metadata.get("op_name") or None,
        "op_type": metadata.get("op_type") or None,
        "source_file": metadata.get("source_file") or None,
        "source_line": _integer(metadata.get("source_line")),
        "fusion_kind": attributes.get("kind") if opcode == "fusion" else None,
        "called": tuple(called),
        "custom_call_target": _unescaped(target[1]) if target else None,
    }


def _or_none(parse: Any, text: str | None) -> Any:
    try:
        return parse(text) if text else None
    except UnreadableError:
        return None


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) <= 18 else None


def _unescaped(text: str) -> str:
    out = []
    i = 0
    while i < len(text):
        i += text[i] == "\\"
        out.append(text[i])
        i += 1
    return "".join(out)


def _pairs_of_metadata(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0

    def is_word(c: str) -> bool:
        return c.isalnum() or c == "_"

    while at < len(text):
        if not is_word(text[at]) or (at and is_word(text[at - 1])):
            at += 1
            continue
        end = at
        while end < len(text) and is_word(text[end]):
            end += 1
        key = text[at:end]
        if text.startswith('="', end):
            stop = end + 2
            while stop < len(text) and text[stop] != '"':
                stop += 2 if text[stop] == "\\" else 1
            if stop < len(text):
                found[key] = _unescaped(text[end + 2 : stop])
                at = stop + 1
                continue
        elif text.startswith("=", end):
            stop = end + 1
            while stop < len(text) and text[stop].isdecimal():
                stop += 1
            if 1 <= stop - end - 1 <= 9:
                found[key] = text[end + 1 : stop]
                at = stop
                continue
        at += 1
    return found


def _numbers(text: str) -> list[int]:
    parts = [p.strip() for p in text.split(",")]
    if parts == [""]:
        return []
    if not all(p.isdecimal() and len(p) <= 18 for p in parts):
        raise UnreadableError
    return [int(p) for p in parts]


def _lists(text: str) -> list[list[int]]:
    text = text.strip()
    if len(text) < 2 or text[0] != "{" or text[-1] != "}":
        raise UnreadableError
    found, at, inside = [], 0, text[1:-1]
    while at < len(inside):
        if inside[at] == "{":
            end = inside.find("}", at)
            if end < 0:
                raise UnreadableError
            found.append(_numbers(inside[at + 1 : end]))
            at = end
        elif inside[at] != "," and not inside[at].isspace():
            raise UnreadableError
        at += 1
    return found


def groups(text: str) -> tuple[tuple[int, ...], ...]:
    """Replica groups in any encoding."""
    text = text.strip()
    if text.startswith("{"):
        return listed(_lists(text))
    if text.startswith("["):
        match = re.fullmatch(r"\[([\d,\s]+)\]<=\[([\d,\s]+)\](?:T\(([\d,\s]+)\))?", text)
        if match is None:
            raise UnreadableError
        return iota_groups(_numbers(match[1]), _numbers(match[2]), _numbers(match[3] or ""))
    match = re.fullmatch(
        r"(?:mesh\[([^\]]*)\]|@mesh<([^>]*)>)(?:\s*,\s*device_ids=\(([\d,\s\[\]T]*(?:\([\d,\s]*\))?)\))?\s*\{([^{}]*)\}",
        text,
    )
    if match is None:
        raise UnreadableError
    axes, named = [], []
    for axis in _items(match[1] if match[1] is not None else match[2]):
        one = re.fullmatch(r"('[^']*'|[^'=,\s]+)=(\d{1,9})", axis)
        if one is None:
            raise UnreadableError
        axes.append((one[1].strip("'"), int(one[2])))
    number = {name: i for i, (name, _) in enumerate(axes)}
    for axis in _items(match[4]):
        one = re.fullmatch(r"('[^']*'|[^':,\s]+)(?::\((\d{1,9})\)(\d{1,9}))?", axis)
        if one is None or one[1].strip("'") not in number:
            raise UnreadableError
        named.append((number[one[1].strip("'")], int(one[2] or 1), int(one[3] or 0)))
    ids: list[int] = []
    if match[3]:
        moved = re.fullmatch(r"\[([\d,\s]+)\](?:T\(([\d,\s]+)\))?", match[3].strip())
        ids = _iota(_numbers(moved[1]), _numbers(moved[2] or "")) if moved else _numbers(match[3])
    return mesh_groups([n for _, n in axes], named, ids)


def _items(text: str) -> list[str]:
    """What stands between commas; one comma may end it."""
    if not text:
        return []
    quoted = False
    parts = [""]
    for c in text:
        quoted ^= c == "'"
        if c == "," and not quoted:
            parts.append("")
        else:
            parts[-1] += c
    if parts[-1] == "":
        parts.pop()
    return [p.strip() for p in parts]


def pair_list(text: str) -> tuple[tuple[int, int], ...]:
    """Source-target pairs."""
    return checked_pairs(_lists(text))


def listed(found: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Groups that are written out."""
    kept = tuple(tuple(g) for g in found if len(g))
    members = [d for g in kept for d in g]
    if len(members) > MOST_MEMBERS or len(set(members)) < len(members):
        raise UnreadableError
    if any(d < 0 or d >= 1 << 31 for d in members):
        raise UnreadableError
    return kept


def checked_pairs(found: Iterable[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Pairs in which none sends or receives twice."""
    kept = [tuple(p) for p in found]
    if any(len(p) != 2 or min(p) < 0 or max(p) >= 1 << 31 for p in kept):
        raise UnreadableError
    for side in (0, 1):
        if len({p[side] for p in kept}) < len(kept):
            raise UnreadableError
    return tuple((p[0], p[1]) for p in kept)


def _count(sizes: Sequence[int]) -> int:
    total = 1
    for n in sizes:
        if n < 1:
            raise UnreadableError
        total *= n
        if total > MOST_MEMBERS:
            raise UnreadableError
    return total


def _iota(sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """0, 1, 2, ... as an array of these sizes, its dimensions in another order, row by row."""
    _count(sizes)
    if len(sizes) > 32 or (order and sorted(order) != list(range(len(sizes)))):
        raise UnreadableError
    order = order or range(len(sizes))
    strides = [prod(sizes[i + 1 :]) for i in range(len(sizes))]
    devices = [0]
    for dimension in order:
        steps = [i * strides[dimension] for i in range(sizes[dimension])]
        devices = [d + s for d in devices for s in steps] if len(steps) > 1 else devices
    return devices


def iota_groups(sizes: Sequence[int], reshape: Sequence[int], order: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Groups of the form sizes<=reshape T(order)."""
    if not 1 <= len(sizes) <= 2:
        raise UnreadableError
    devices = _iota(reshape, order)
    if _count(sizes) != len(devices):
        raise UnreadableError
    n = sizes[-1]
    return tuple(tuple(devices[i : i + n]) for i in range(0, len(devices), n))


def mesh_groups(
    sizes: Sequence[int], named: Sequence[tuple[int, int, int]], ids: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Groups of devices whose positions differ on the named axes alone."""
    if max(len(sizes), len(named)) > 32:
        raise UnreadableError
    total = _count(sizes)
    if len(ids) not in (0, total):
        raise UnreadableError
    whole = []
    for axis, before, size in named:
        if not 0 <= axis < len(sizes):
            raise UnreadableError
        whole.append((axis, before, size) if size else (axis, 1, sizes[axis]))
    for axis, n in enumerate(sizes):
        done = 1
        for _, before, size in sorted(w for w in whole if w[0] == axis):
            if size < 1 or before < done or before % done or n % (before * size):
                raise UnreadableError
            done = before * size
    found: dict[Any, list[tuple[Any, int]]] = {}
    for position, at in enumerate(product(*(range(n) for n in sizes))):
        place = []
        rest = list(at)
        for axis, before, size in whole:
            inner = sizes[axis] // (before * size)
            digit = at[axis] // inner % size
            place.append(digit)
            rest[axis] -= digit * inner
        found.setdefault(tuple(rest), []).append((tuple(place), ids[position] if ids else position))
    made = tuple(tuple(d for _, d in sorted(members, key=lambda m: m[0])) for members in found.values())
    return listed(made) if ids else made
