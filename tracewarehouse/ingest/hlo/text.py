"""Reads HLO instructions from the text that profilers put into the names of event metadata.

It reads the text in one pass, with patterns that cannot backtrack, so hostile text costs linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.hlo.instruction import Instruction, dcn_transfer, is_communicating
from tracewarehouse.ingest.hlo.opcodes import async_opcode_by_name
from tracewarehouse.ingest.hlo.replica_groups import parse_groups, parse_pairs
from tracewarehouse.ingest.hlo.shapes import LONGEST_KEPT, Shape, array_of_text, scan_shape, skip

MAX_NESTING = 256
"""Deepest nesting of brackets that is read; deeper text counts as truncated."""

_NAME = re.compile(r"\s*+(?:ROOT\s++)?%?([A-Za-z0-9_$][^\s=,(){}\[\]]*+) = ")
_OPCODE = re.compile(r"\s*+([a-z][a-z0-9-]{0,63}+)\(")
# The marks that decide the nesting: brackets, commas, strings (closed or not) and comments.
_MARK = re.compile(r'[()\[\]{},]|"[^"\\]*+(?:\\.[^"\\]*+)*(")?|/\*', re.DOTALL)
_KEY = re.compile(r"\s*+([A-Za-z_]\w*+)\s*+=\s*+")
_QUOTED = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*)"', re.DOTALL)
_METADATA = re.compile(r'(?<!\w)(\w++)=(?:"([^"\\]*+(?:\\.[^"\\]*+)*)"|(\d{1,9})(?!\d))', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_COMPUTATION = re.compile(r"%?([^\s,{}%]++)")
_SEND_RECV_PAIRS = re.compile(r'_xla_send_recv_source_target_pairs="?(\{[\d,{}\s]*+)')
# XLA prints a value that begins with a brace without quotes.
_FRONTEND = re.compile(r'(?<!\w)(_xla_\w++)=(?:"([^"\\]*+)"|(\{[\d,:]++\}x\{[\d,:]++\}))')
# An operand as XLA prints nearly all of them: a shape with a flat layout, a name, and what follows it.
_OPERAND = re.compile(
    r" ?(?:/\*index=\d{1,9}\*/)?"
    rf"(?:([a-z][a-z0-9]{{0,31}})\[([0-9,]{{0,{LONGEST_KEPT}}})\](?:\{{[0-9,]*(?::(?:[A-Z]*\([0-9A-Z,]*\))*)?\}})? )?"
    r"%([A-Za-z0-9_.$-]+)([,)])"
)
_MORE_OPERANDS = re.compile(r"\.\.\.(?:\(\+\d++\))?")

# The order in which HLO numbers called computations, so that text and proto agree.
_CALLS = (
    "body", "calls", "to_apply", "select", "scatter", "condition", "true_computation", "false_computation",
    "branch_computations", "called_computations",
)  # fmt: skip
_NO_OPERANDS = frozenset({"constant", "parameter", "iota", "partition-id", "replica-id"})


def is_meant_as_instruction(text: str) -> bool:
    """Return whether text begins like the line of an HLO instruction, so that it is a loss if it cannot be read."""
    return text.startswith("%") and _NAME.match(text) is not None


def parse_instruction(text: str, *, has_groups: bool = True) -> Instruction | None:
    """Read the instruction in a line of HLO text; None if the text is none.

    Text that breaks off gives the facts before the break, and sets `is_truncated`. An attribute that cannot be read is
    unknown. No text raises an error.

    Args:
        text: '%name = shape opcode(operands), attribute=value, ...'.
        has_groups: False leaves replica groups unknown, since a few bytes of text can name very many.
    """
    named = _NAME.match(text)
    if named is None:
        return None
    try:
        shape, position = scan_shape(text, named.end())
    except MalformedError:
        return None
    code = _OPCODE.match(text, position)
    if code is None:
        return None
    name, opcode, position = named[1], code[1], code.end()
    usual = _usual_operands(text, position) if opcode not in _NO_OPERANDS else None
    if usual:
        names, shapes, position = usual
        is_closed = has_all = True
    else:
        parts, position, is_closed = _split(text, position, ")")
        names, shapes, has_all = _operands(parts if opcode not in _NO_OPERANDS else [])
    attributes: dict[str, str] = {}
    is_whole = is_closed and has_all
    if is_closed:
        pieces, _, is_closed = _split(text, position, "")
        is_whole = is_whole and is_closed
        attributes = _attributes(pieces)
    metadata = _metadata(attributes.get("metadata", ""))
    called = _called(attributes)
    pairs = attributes.get("source_target_pairs") or _send_recv_pairs(attributes.get("frontend_attributes", ""))
    op_name = metadata.get("op_name") or None
    return Instruction(
        name=name,
        opcode=opcode,
        shape=shape,
        operand_names=names,
        operand_shapes=shapes,
        channel_id=_integer(attributes.get("channel_id")),
        replica_groups=_read(parse_groups, attributes.get("replica_groups")) if has_groups else None,
        source_target_pairs=_read(parse_pairs, pairs),
        use_global_device_ids=attributes.get("use_global_device_ids") == "true",
        is_host_transfer=attributes.get("is_host_transfer") == "true",
        dcn=dcn_transfer(frontend_attributes(attributes.get("frontend_attributes", ""))),
        op_name=op_name,
        op_name_source="own" if op_name else None,
        op_type=metadata.get("op_type") or None,
        source_file=metadata.get("source_file") or None,
        source_line=_integer(metadata.get("source_line")),
        fusion_kind=attributes.get("kind") if opcode == "fusion" else None,
        called=called,
        custom_call_target=_unquote(attributes.get("custom_call_target")),
        is_communicating=opcode == "custom-call" and is_communicating(attributes.get("backend_config", "")),
        async_opcode=async_opcode_by_name(name, called) if opcode.startswith("async-") else None,
        text=text,
        is_truncated=not is_whole,
    )


def _usual_operands(text: str, position: int) -> tuple[tuple[str, ...], tuple[Shape | None, ...], int] | None:
    """Return names and shapes of the operands from `position` on, and where they end; None if one has another form."""
    names: list[str] = []
    shapes: list[Shape | None] = []
    while match := _OPERAND.match(text, position):
        element, dimensions, name, mark = match.groups()
        try:
            shapes.append(array_of_text(element, dimensions) if element else None)
        except MalformedError:
            return None
        names.append(name)
        position = match.end()
        if mark == ")":
            return tuple(names), tuple(shapes), position
    return None


def _split(text: str, start: int, closing: str) -> tuple[list[str], int, bool]:
    """Split the text from `start` to its closing bracket, or to its end, at commas.

    Returns:
        The parts; the position after them; whether the bracket was closed. A part that breaks off is left out.
    """
    parts: list[str] = []
    depth = 0
    begin = start
    position = start
    while match := _MARK.search(text, position):
        mark = match[0]
        position = match.end()
        if mark in "([{":
            depth += 1
            if depth > MAX_NESTING:
                return parts, len(text), False
        elif mark in ")]}":
            if depth == 0:
                parts.append(text[begin : match.start()])
                return parts, position, mark == closing
            depth -= 1
        elif mark == ",":
            if depth == 0:
                parts.append(text[begin : match.start()])
                begin = position
        elif mark == "/*":
            end = text.find("*/", position)
            if end < 0:
                return parts, len(text), False
            position = end + 2
        elif not match[1]:
            return parts, len(text), False
    if closing or depth or text.endswith("..."):
        return parts, len(text), False
    parts.append(text[begin:])
    return parts, len(text), True


def _operands(parts: list[str]) -> tuple[tuple[str, ...], tuple[Shape | None, ...], bool]:
    """Return names and shapes of operands 'f32[8]{0} %x', '%x' or 'x', and whether all could be read."""
    names: list[str] = []
    shapes: list[Shape | None] = []
    has_all = True
    for part in parts:
        begin = skip(part, 0)
        rest = part[begin:].strip()
        if not rest:
            continue
        if _MORE_OPERANDS.fullmatch(rest):
            has_all = False
            continue
        shape: Shape | None = None
        if not rest.startswith("%"):
            try:
                shape, end = scan_shape(rest, 0)
                rest = rest[end:].strip()
            except MalformedError:
                shape = None
        names.append(rest.removeprefix("%"))
        shapes.append(shape)
    return tuple(names), tuple(shapes), has_all


def _attributes(pieces: list[str]) -> dict[str, str]:
    attributes: dict[str, str] = {}
    mesh: list[str] = []
    for piece in pieces:
        if mesh:
            # mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'} and @mesh<a=2,b=2> {b} are one value with commas in it.
            mesh.append(piece)
        elif key := _KEY.match(piece):
            value = piece[key.end() :].strip()
            if key[1] == "replica_groups" and value.startswith(("mesh", "@mesh")):
                mesh.append(value)
            else:
                attributes.setdefault(key[1], value)
        if mesh and mesh[-1].rstrip().endswith("}"):
            attributes.setdefault("replica_groups", ",".join(mesh))
            mesh = []
    return attributes


def _called(attributes: dict[str, str]) -> tuple[str, ...]:
    names: list[str] = []
    for key in _CALLS:
        if key in attributes:
            names += _COMPUTATION.findall(attributes[key])
    return tuple(names)


def _metadata(text: str) -> dict[str, str]:
    return {key: _ESCAPE.sub(r"\1", quoted) or number for key, quoted, number in _METADATA.findall(text)}


def _send_recv_pairs(text: str) -> str | None:
    match = _SEND_RECV_PAIRS.search(text)
    # Without quotes the brace of the attribute list follows the pairs.
    return match[1][: match[1].rfind("}}") + 2] if match and "}}" in match[1] else None


def frontend_attributes(text: str) -> dict[str, str]:
    """Return XLA's own frontend attributes by key: those in quotes, and a set of slices and devices."""
    return {key: quoted or bare for key, quoted, bare in _FRONTEND.findall(text)}


def _unquote(text: str | None) -> str | None:
    match = _QUOTED.match(text) if text else None
    return _ESCAPE.sub(r"\1", match[1]) if match else None


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) <= 18 else None


def _read(parse: Callable[[str], Any], text: str | None) -> Any:
    try:
        return parse(text) if text else None
    except MalformedError:
        return None
