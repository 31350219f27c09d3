"""Reads from an HLO instruction which data its collective moves, and among which devices."""

from __future__ import annotations

from dataclasses import dataclass

from tracewarehouse.ingest.hlo.instruction import AsyncRole, DcnTransfer, Instruction
from tracewarehouse.ingest.hlo.opcodes import async_role, async_start_name, base_opcode, is_spread, is_spread_step
from tracewarehouse.ingest.hlo.replica_groups import Groups, Pairs
from tracewarehouse.ingest.hlo.shapes import MAX_BYTES, Shape

KINDS = frozenset({
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "ragged-all-to-all", "recv",
    "reduce-scatter", "send",
})  # fmt: skip
"""HLO opcodes that move data between devices, without -start and -done. HLO `broadcast` is local."""

SYNCHRONISING = frozenset({"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"})
"""Kinds in which every rank needs data of every other; a permute's source may end long before its target."""

DCN = "dcn"
"""The data center network, which connects slices."""
DCN_KINDS = {
    "ALL_GATHER": "all-gather",
    "ALL_REDUCE": "all-reduce",
    "ALL_TO_ALL": "all-to-all",
    "ONE_TO_ONE": "collective-permute",
    "REDUCE_SCATTER": "reduce-scatter",
}
"""Kind of the collective between slices, by the type of its transfer."""

_JOINED = frozenset({"all-gather", "all-reduce", "reduce-scatter"})
"""Kinds of collectives that a compiler joins with others of the same kind and groups."""

Shapes = tuple[Shape, ...]


@dataclass(frozen=True)
class Collective:
    """A collective, or one half of an asynchronous one.

    Attributes:
        kind: HLO opcode without -start and -done.
        role: start, update or done of an asynchronous collective; None for a synchronous one.
        start_name: for an update or done, the instruction that it continues.
        message_bytes: bytes of one execution on one device, summed over a tuple: those of the operand, or for an
            all-gather of the result (the full buffer). A ragged-all-to-all counts its whole input buffer, which is an
            upper bound.
        dtype: element type of the message.
        groups: replica groups; () is one group of all devices, None is unknown.
        pairs: source-target pairs.
        group_size: devices in each group, 2 for pairs; None if unknown or if groups differ in size.
        link: DCN if that network carries it; None if the devices decide which links do.
        rendezvous: the name that the two halves of a collective over this network share, its send and its recv.
        is_second_half: the other half stands for the collective, because its shape is that of the message.
        joined: number of collectives that the compiler joined into this one: the operands of a reduction or gather.
            All-to-alls have several operands by nature.
        axis: mesh axes that the description of its process group names, joined by '+'; None if nothing names them.
        communicator: what the ranks of a process group all call it. They run its collectives in the same order,
            whatever kernels these are. None for HLO, whose instruction is the same on all ranks.
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
    link: str | None = None
    rendezvous: str | None = None
    is_second_half: bool = False
    joined: int = 1
    axis: str | None = None
    communicator: str | None = None

    @property
    def members(self) -> tuple[tuple[int, ...], ...] | None:
        """The source-target pairs, or else the groups."""
        return self.pairs if self.pairs is not None else self.groups


def find_collective(instruction: Instruction) -> Collective | None:
    """Return the collective that an instruction is or carries; None for other ops and for transfers to the host.

    It is recognised by opcode, never by name: a fusion named all-reduce is no collective. A fusion (TPU compilers fuse
    an all-reduce with the slice of its result) or an async op carries the collectives of its computation, which only a
    proto shows; the message is their sum. The result is None if these differ in kind or groups. If a collective is
    spread over fusions, the first one carries its start and the last one its done. A done repeats what its operand's
    shape tells; only the start has groups and channel.
    """
    opcode, role = instruction.opcode, async_role(instruction)
    if instruction.dcn:
        return _over_dcn(instruction, instruction.dcn, role)
    if instruction.is_host_transfer or is_spread_step(instruction):
        return None
    if instruction.inner:
        return _carried(instruction, role)
    if is_spread(instruction):
        return _spread(instruction, role)
    kind = instruction.async_opcode if opcode.startswith("async-") else base_opcode(opcode)
    if kind not in KINDS:
        return None
    operands, results = _sides(instruction, kind, role)
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
        joined=max(len(operands or ()), 1) if kind in _JOINED else 1,
    )


def _over_dcn(instruction: Instruction, transfer: DcnTransfer, role: AsyncRole | None) -> Collective | None:
    """Return the collective between slices that a send or recv, or its done, is half of.

    The host takes the data of the send and gives the result to the recv. Without a rendezvous the two cannot be joined:
    each is then a collective of its own, a send or a recv.
    """
    half = base_opcode(instruction.opcode)
    if half not in ("send", "recv"):
        return None
    operands, results = _sides(instruction, half, role)
    sent, received = (operands or results, None) if half == "send" else (None, results)
    kind = DCN_KINDS.get(transfer.type or "", half) if transfer.rendezvous else half
    size = transfer.slice_count if kind in DCN_KINDS.values() and kind != "collective-permute" else 2
    return Collective(
        kind=kind,
        role=role,
        start_name=async_start_name(instruction),
        message_bytes=_message_bytes(kind, sent, received, size),
        dtype=_dtype(sent or received),
        channel_id=instruction.channel_id,
        group_size=size,
        link=DCN,
        rendezvous=transfer.rendezvous if kind != half else None,
        is_second_half=half == ("send" if kind == "all-gather" else "recv"),
    )


def _carried(instruction: Instruction, role: AsyncRole | None) -> Collective | None:
    inner = [collective for each in instruction.inner if (collective := find_collective(each))]
    if not inner or len({(each.kind, each.groups, each.pairs) for each in inner}) > 1:
        return None
    sizes = [each.message_bytes for each in inner if each.message_bytes is not None]
    first = inner[0]
    return Collective(
        kind=first.kind,
        role=role,
        start_name=async_start_name(instruction),
        message_bytes=sum(sizes) if len(sizes) == len(inner) and sum(sizes) <= MAX_BYTES else None,
        dtype=first.dtype,
        groups=first.groups,
        pairs=first.pairs,
        channel_id=first.channel_id,
        group_size=first.group_size,
        joined=sum(each.joined for each in inner),
    )


def _spread(instruction: Instruction, role: AsyncRole | None) -> Collective | None:
    """Read the text of the first or last fusion, whose first values are the collective's operand and result.

    The compiler spreads all-gathers, whose result is larger, reduce-scatters and all-reduces.
    """
    first = instruction.shape.elements if role == "start" else instruction.operand_shapes
    sizes = [_bytes((shape,)) if shape is not None else None for shape in first[:2]]
    if len(sizes) < 2 or not sizes[0] or not sizes[1]:
        return None
    sent, received = sizes[0], sizes[1]
    kind = "all-gather" if received > sent else "reduce-scatter" if received < sent else "all-reduce"
    moved = first[1] if kind == "all-gather" else first[0]
    return Collective(
        kind=kind,
        role=role,
        start_name=async_start_name(instruction),
        message_bytes=max(sent, received),
        dtype=moved.dtype if moved else None,
    )


def _message_bytes(kind: str, operands: Shapes | None, results: Shapes | None, group_size: int | None) -> int | None:
    """Return the message bytes; if the deciding side of the op is unknown, from the other side and the group size."""
    sent, received = _bytes(operands), _bytes(results)
    if kind == "all-gather":
        return received if received is not None else _times(sent, group_size)
    if sent is not None:
        return sent
    return _times(received, group_size) if kind == "reduce-scatter" else received


def _sides(instruction: Instruction, kind: str, role: AsyncRole | None) -> tuple[Shapes | None, Shapes | None]:
    """Return the shapes of the operands and results that hold data; None for an unknown side."""
    if role is None:
        return _stated_operands(instruction, kind), (instruction.shape,)
    if role == "start":
        count = None if instruction.is_truncated else len(instruction.operand_names) or None
        operands, results = _unpack(instruction.shape, kind, count)
        return _stated_operands(instruction, kind) or operands, results
    started = next(iter(instruction.operand_shapes), None)
    operands, results = _unpack(started, kind, None) if started is not None else (None, None)
    if role == "done" and kind != "send":
        results = instruction.shape.leaves[:1] if kind == "recv" else (instruction.shape,)
    return operands, results


def _stated_operands(instruction: Instruction, kind: str) -> Shapes | None:
    """Return the operands that the instruction lists; None if shapes are missing, and for a recv, which has a token."""
    shapes = instruction.operand_shapes
    if kind in ("send", "ragged-all-to-all"):
        # The others are a token, or the output buffer, offsets and sizes.
        shapes = shapes[:1]
    elif kind == "recv" or instruction.is_truncated:
        return None
    known = tuple(shape for shape in shapes if shape is not None)
    return known if known and len(known) == len(shapes) else None


def _unpack(start: Shape, kind: str, count: int | None) -> tuple[Shapes | None, Shapes | None]:
    """Split the shape of a start (or update) op into operands and results.

    (operand, result, contexts...) for most, with tuples for several operands; ((operands...), result, contexts...)
    for async-start; the operands' own shape for all-reduce-start; (data, context, token) for send and recv.
    """
    if not start.is_tuple:
        return (start,), (start,)
    if kind in ("send", "recv"):
        return start.leaves[:1], start.leaves[:1]
    if not start.elements:
        return None, None
    first, second = start.elements[0], start.elements[1:2] or None
    if first.is_tuple:
        return first.elements[:1] if kind == "ragged-all-to-all" else first.elements, second
    if kind != "all-reduce":
        return (first,), second
    # Contexts are integer scalars after the data; if the number of operands is known, it decides.
    data = start.elements[:count] if count else tuple(e for e in start.elements if e.text not in ("u32[]", "s32[]"))
    return data or start.elements, data or start.elements


def _group_size(instruction: Instruction) -> int | None:
    if instruction.source_target_pairs:
        return 2
    sizes = {len(group) for group in instruction.replica_groups or ()}
    return sizes.pop() if len(sizes) == 1 else None


def _bytes(shapes: Shapes | None) -> int | None:
    if shapes is None:
        return None
    sizes = [shape.byte_size for shape in shapes]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) and sum(known) <= MAX_BYTES else None


def _times(size: int | None, group_size: int | None) -> int | None:
    return size * group_size if size is not None and group_size is not None and size * group_size <= MAX_BYTES else None


def _dtype(shapes: Shapes | None) -> str | None:
    return Shape("tuple", elements=shapes).dtype if shapes else None
