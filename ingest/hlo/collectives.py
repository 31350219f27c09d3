"""What a collective moves, among which devices: facts of one HLO instruction."""

from __future__ import annotations

from dataclasses import dataclass

from ingest.hlo.instruction import AsyncRole, Instruction
from ingest.hlo.opcodes import async_role, async_start_name, base_opcode
from ingest.hlo.replica_groups import Groups, Pairs
from ingest.hlo.shapes import MAX_BYTES, Shape

KINDS = frozenset(
    {
        "all-gather",
        "all-reduce",
        "all-to-all",
        "collective-broadcast",
        "collective-permute",
        "ragged-all-to-all",
        "recv",
        "reduce-scatter",
        "send",
    }
)
"""HLO opcodes that move data between devices, without -start and -done. HLO `broadcast` is local."""


@dataclass(frozen=True)
class Collective:
    """A collective, or one half of an asynchronous one.

    Attributes:
        kind: HLO opcode without -start and -done.
        role: start, update or done of an asynchronous collective; None for a synchronous one.
        start_name: for an update or done, the instruction that it continues.
        message_bytes: bytes of one execution on one device, summed over a tuple: of the operand, for an all-gather
            of the result (the full buffer). A ragged-all-to-all's is its whole input buffer, an upper bound.
        dtype: element type of the message.
        groups: replica groups; () is one group of all devices, None is unknown.
        pairs: source-target pairs.
        channel_id: the channel.
        group_size: devices in each group, 2 for pairs; None if unknown or if groups differ in size.
    """

    kind: str
    role: AsyncRole | None = None
    start_name: str | None = None
    message_bytes: int | None = None
    dtype: str | None = None
    groups: Groups | None = None
    pairs: Pairs | None = None
    channel_id: int | None = None
    group_size: int | None = None

    @property
    def members(self) -> tuple[tuple[int, ...], ...] | None:
        """The pairs, or else the groups."""
        return self.pairs if self.pairs is not None else self.groups


def collective_of(instruction: Instruction) -> Collective | None:
    """The collective that an instruction is or carries; None for any other op and for transfers to the host.

    Found by opcode, never by name: a fusion named all-reduce is none. A fusion (TPU compilers fuse an all-reduce
    with the slice of its result) or an async op carries the collectives of its computation, which only a proto shows;
    the message is their sum. It is None if they are of several kinds or groups: that is no one collective.
    The done half repeats what its operand's shape tells; groups and channel stand on the start.
    """
    opcode, role = instruction.opcode, async_role(instruction)
    if instruction.is_host_transfer:
        return None
    if instruction.inner:
        return _carried(instruction, role)
    kind = instruction.async_opcode if opcode.startswith("async-") else base_opcode(opcode)
    if kind not in KINDS:
        return None
    operands, results = _operands(instruction, kind, role), _results(instruction, role)
    size = _group_size(instruction)
    message = _message_bytes(kind, operands, results, size)
    return Collective(
        kind=kind,
        role=role,
        start_name=async_start_name(instruction),
        message_bytes=message,
        dtype=_dtype(results if kind == "all-gather" and results else operands or results),
        groups=instruction.replica_groups,
        pairs=instruction.source_target_pairs,
        channel_id=instruction.channel_id,
        group_size=size,
    )


def _carried(instruction: Instruction, role: AsyncRole | None) -> Collective | None:
    inner = [collective for each in instruction.inner if (collective := collective_of(each))]
    if not inner or len({(each.kind, each.groups, each.pairs) for each in inner}) > 1:
        return None
    sizes = [each.message_bytes for each in inner if each.message_bytes is not None]
    first = inner[0]
    return Collective(
        kind=first.kind,
        role=role,
        start_name=async_start_name(instruction),
        message_bytes=sum(sizes) if len(sizes) == len(inner) else None,
        dtype=first.dtype,
        groups=first.groups,
        pairs=first.pairs,
        channel_id=first.channel_id,
        group_size=first.group_size,
    )


def _message_bytes(
    kind: str, operands: tuple[Shape, ...] | None, results: tuple[Shape, ...] | None, group_size: int | None
) -> int | None:
    """Message bytes; from the other side of the op and the group size where the deciding side is not known."""
    sent, received = _bytes(operands), _bytes(results)
    if kind == "all-gather":
        return received if received is not None else _times(sent, group_size)
    if sent is not None:
        return sent
    return _times(received, group_size) if kind == "reduce-scatter" else received


def _operands(instruction: Instruction, kind: str, role: AsyncRole | None) -> tuple[Shape, ...] | None:
    """Shapes of the operands with data; None if not known."""
    if role in ("update", "done"):
        start = instruction.operand_shapes[0] if instruction.operand_shapes else None
        return _start_operands(start, kind, None) if start is not None else None
    shapes = instruction.operand_shapes
    if instruction.is_truncated and kind not in ("send", "ragged-all-to-all"):
        shapes = ()
    # The other operands of these two are a token, and offsets and sizes; a recv has only a token.
    if kind in ("send", "ragged-all-to-all"):
        shapes = shapes[:1]
    known = tuple(shape for shape in shapes if shape is not None)
    if known and len(known) == len(shapes) and kind != "recv":
        return known
    if role == "start":
        count = 0 if instruction.is_truncated else len(instruction.operand_names)
        return _start_operands(instruction.shape, kind, count or None)
    return None


def _start_operands(start: Shape, kind: str, count: int | None) -> tuple[Shape, ...] | None:
    """Operand shapes from the result of a start op.

    (operand, result, contexts...) for most, with tuples for several operands; ((operands...), result, contexts...)
    for async-start; the operands' own shape for all-reduce-start; (data, context, token) for send and recv.
    """
    if not start.is_tuple:
        return (start,)
    if not start.elements:
        return None
    first = start.elements[0]
    if first.is_tuple:
        operands = first.elements
        return operands[:1] if kind == "ragged-all-to-all" else operands
    if kind != "all-reduce":
        return (first,)
    # A context is a u32 scalar; a tuple of twice the operands holds operands and results.
    data = tuple(shape for shape in start.elements if shape.text not in ("u32[]", "s32[]")) or start.elements
    return data[: count or len(data)]


def _results(instruction: Instruction, role: AsyncRole | None) -> tuple[Shape, ...] | None:
    """Shapes of the results with data; None if not known."""
    shape = instruction.shape
    kind = base_opcode(instruction.opcode)
    if kind in ("send", "recv"):
        if kind == "recv" or role == "start":
            return shape.leaves[:1] or None
        return None
    if role in ("start", "update") and (kind != "all-reduce" or (shape.is_tuple and shape.elements[:1] != ())):
        if kind == "all-reduce" and not shape.elements[0].is_tuple:
            return _start_operands(shape, kind, len(instruction.operand_names) or None)
        return (shape.elements[1],) if shape.is_tuple and len(shape.elements) > 1 else None
    return (shape,)


def _group_size(instruction: Instruction) -> int | None:
    if instruction.source_target_pairs:
        return 2
    sizes = {len(group) for group in instruction.replica_groups or ()}
    return sizes.pop() if len(sizes) == 1 else None


def _bytes(shapes: tuple[Shape, ...] | None) -> int | None:
    if shapes is None:
        return None
    sizes = [shape.byte_size for shape in shapes]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) and sum(known) <= MAX_BYTES else None


def _times(size: int | None, group_size: int | None) -> int | None:
    return size * group_size if size is not None and group_size is not None and size * group_size <= MAX_BYTES else None


def _dtype(shapes: tuple[Shape, ...] | None) -> str | None:
    return Shape("tuple", elements=shapes).dtype if shapes else None
