"""Holds one HLO instruction with the facts that the warehouse needs, and tells which are matrix products, of what."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import islice, permutations
from typing import Literal, NamedTuple

from tracewarehouse.ingest.hlo.replica_groups import Groups, Pairs, flattened
from tracewarehouse.ingest.hlo.shapes import ELEMENT_BITS, Shape

AsyncRole = Literal["start", "update", "done"]
OpNameSource = Literal["own", "fusion", "operand", "user"]


KNOWN_TRIPS = re.compile(r'"known_trip_count":\s*\{"n":\s*"(\d{1,18})"\}')
"""Where the configuration of a `while` states its number of iterations."""


class Loop(NamedTuple):
    """A loop of a program.

    Attributes:
        name: the name of its `while`.
        trips: its number of iterations, 0 if the compiler does not tell.
        arrays: the arrays that it carries, as text, without scalars and vectors.
    """

    name: str
    trips: int
    arrays: frozenset[str] = frozenset()


def carried_arrays(shape: Shape) -> frozenset[str]:
    """Return the arrays in what a loop carries, as text, without scalars and vectors."""
    return frozenset(leaf.text for leaf in shape.leaves if len(leaf.dimensions) > 1)


_SLICES = re.compile(r"\{(\d{1,6}(?:,\d{1,6}){0,4095})\}x\{[\d,:]+\}")


class DcnTransfer(NamedTuple):
    """What a send or recv says that the Megascale runtime carries between slices, over the data center network.

    The compiler makes a pair of them from each collective between slices. Their frontend attributes are those that
    XProf's Megascale tool reads.

    Attributes:
        type: ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL or ONE_TO_ONE.
        rendezvous: the name that the send and the recv of one collective share.
        slice_count: number of slices among which a device exchanges data.
    """

    type: str | None = None
    rendezvous: str | None = None
    slice_count: int | None = None


def dcn_transfer(attributes: Mapping[str, str]) -> DcnTransfer | None:
    """Return the transfer that the frontend attributes of a send or recv state; None for a transfer to the host."""
    if attributes.get("_xla_host_transfer_handler_name") != "xla_megascale_runtime":
        return None
    slices = _SLICES.fullmatch(attributes.get("_xla_megascale_target", ""))
    return DcnTransfer(
        attributes.get("_xla_megascale_transfer_type"),
        attributes.get("_xla_host_transfer_rendezvous"),
        len(set(slices[1].split(","))) if slices else None,
    )


_COMMUNICATES = re.compile(r'"has_communication\\*":\s*true|"collective_id\\*":\s*\d')


def is_communicating(backend_config: str) -> bool:
    """Whether the configuration of a custom call says, as Pallas writes it, that the kernel sends to other devices."""
    return _COMMUNICATES.search(backend_config) is not None


class Instruction(NamedTuple):
    """One HLO instruction. A fact is None if the source does not state it.

    It is a tuple because a frozen dataclass with so many fields takes three times as long to create.

    Attributes:
        name: name without '%', unique in its module.
        opcode: HLO opcode such as 'dot' or 'all-reduce-start'.
        shape: shape of the result.
        operand_names: operands in order, without '%'; '' for an operand without a name.
        operand_shapes: their shapes, as many as names; None if the text gives only a name.
        channel_id: channel of a collective.
        replica_groups: replica groups, expanded; () for '{}', which means all devices in one group.
        source_target_pairs: pairs of a collective-permute, or of a send or recv made from one.
        use_global_device_ids: groups count devices over replicas and partitions.
        is_host_transfer: a send or recv to the host, not to a device of the slice.
        dcn: the transfer between slices that such a send or recv hands to the host.
        op_name: the framework's name path.
        op_name_source: where op_name comes from: the instruction's own metadata, the instructions fused in it,
            its operands, or its users.
        op_type: the framework's operation type.
        source_file: file of the framework's source line.
        source_line: its line, from 1.
        fusion_kind: 'kLoop', 'kOutput', ... of a fusion.
        called: names of called computations, without '%'.
        is_communicating: a custom call whose kernel sends data to other devices itself.
        async_opcode: the opcode that an async-start, -update or -done runs.
        spaces: memory space of each array of the result and of the operands, in order: 0 is HBM, 1 the core's own
            memory; () if all are in HBM, and if the text has them.
        inner: collectives in the computation of a fusion or an async op, in order; only a proto can tell.
        text: the HLO text, if it was read from text.
        is_truncated: the text breaks off, so operands or attributes are missing.
    """

    name: str
    opcode: str
    shape: Shape
    operand_names: tuple[str, ...] = ()
    operand_shapes: tuple[Shape | None, ...] = ()
    channel_id: int | None = None
    replica_groups: Groups | None = None
    source_target_pairs: Pairs | None = None
    use_global_device_ids: bool = False
    is_host_transfer: bool = False
    dcn: DcnTransfer | None = None
    op_name: str | None = None
    op_name_source: OpNameSource | None = None
    op_type: str | None = None
    source_file: str | None = None
    source_line: int | None = None
    fusion_kind: str | None = None
    called: tuple[str, ...] = ()
    custom_call_target: str | None = None
    is_communicating: bool = False
    async_opcode: str | None = None
    spaces: tuple[int, ...] = ()
    inner: tuple[Instruction, ...] = ()
    text: str | None = None
    is_truncated: bool = False


_ARRAY = re.compile(r"[a-z][a-z0-9]{0,31}\[[0-9,<=? ]*+\](?:\{[^{}]*+\})?")
_SPACE = re.compile(r"S\((\d{1,3})\)\}$")
_NUMBERS = re.compile(r"(?:\.\d+)+$")
_LONGEST_SIGNATURE = 4000


def signature(instruction: Instruction) -> str | None:
    """Return what an op does as far as its own line tells: opcode, and types, shapes and memory spaces.

    Ops with the same signature take about the same time, whatever they are called. Dimensions of size 1 do not count,
    nor does the memory of single numbers. It is None if an operand's shape or a memory is not known, or if it gets very
    long.
    """
    shapes = (instruction.shape, *instruction.operand_shapes)
    if instruction.is_truncated or None in shapes:
        return None
    counts = [len(shape.leaves) for shape in shapes if shape is not None]
    if sum(counts) > _LONGEST_SIGNATURE // 8:
        return None
    spaces = instruction.spaces or (0,) * sum(counts)
    if instruction.text and not instruction.spaces:
        arrays_in_text = islice(_ARRAY.finditer(instruction.text, instruction.text.find(" = ") + 3), sum(counts))
        spaces = tuple(
            int(stated[1]) if array[0].endswith(")}") and (stated := _SPACE.search(array[0])) else 0
            for array in arrays_in_text
        )
    if len(spaces) != sum(counts):
        return None
    each = iter(spaces)
    arrays = [",".join(_array_text(leaf, next(each)) for leaf in shape.leaves) for shape in shapes if shape is not None]
    kind = instruction.fusion_kind
    if instruction.opcode == "custom-call":  # kernels of one target differ in their names alone
        kind = f"{instruction.custom_call_target} {_NUMBERS.sub('', instruction.name[:200])}"
    said = f"{arrays[0]} {instruction.opcode}{f':{kind}' if kind else ''}({','.join(arrays[1:])})"
    return said if len(said) <= _LONGEST_SIGNATURE else None


_MEMORIES = {0: "hbm", 1: "vmem"}


def _array_text(shape: Shape, space: int) -> str:
    """Return type and sizes of an array with its memory, which of a single number does not matter."""
    sizes = ["?" if size is None else str(size) for size in shape.dimensions if size != 1]
    return f"{f'{_MEMORIES.get(space, space)}:' if sizes else ''}{shape.element}[{','.join(sizes)}]"


def without_groups(instruction: Instruction) -> Instruction:
    """Return the instruction without replica groups and pairs, which are then unknown; also in `inner`."""
    inner = tuple(without_groups(i) for i in instruction.inner)
    return instruction._replace(replica_groups=None, source_target_pairs=None, inner=inner)


def with_logical_numbers(instruction: Instruction, replicas: int, partitions: int) -> Instruction:
    """Return the instruction with groups and pairs of logical numbers, given its program's replicas and partitions."""
    inner = tuple(with_logical_numbers(i, replicas, partitions) for i in instruction.inner)
    has_global_form = instruction.opcode.removesuffix("-start") in ("all-gather", "all-reduce", "reduce-scatter")

    def numbered(groups: Groups) -> Groups:
        found = flattened(
            groups,
            replicas,
            partitions,
            has_channel=instruction.channel_id is not None,
            is_global=instruction.use_global_device_ids,
            has_global_form=has_global_form,
        )
        is_all = not groups and len(found) == 1 and 1 in (replicas, partitions)
        return groups if is_all else found

    groups, pairs = instruction.replica_groups, instruction.source_target_pairs
    return instruction._replace(
        replica_groups=groups if groups is None else numbered(groups),
        source_target_pairs=tuple((a, b) for a, b in numbered(pairs)) if pairs else pairs,
        inner=inner,
    )


def merged(stated: Instruction, embedded: Instruction | None) -> Instruction:
    """Combine what the embedded proto and the text state about an instruction.

    The proto knows more: op_name, and the collectives inside fusions and async ops. The text alone is returned if there
    is no proto, or if the proto states another instruction, as a module of the same name from another run could.
    """
    if embedded is None or (embedded.name, embedded.opcode, embedded.shape) != (
        stated.name,
        stated.opcode,
        stated.shape,
    ):
        return stated
    return embedded._replace(text=stated.text)


_MULTIPLIES = frozenset({"dot", "convolution", "ragged-dot"})
_NAMED = re.compile(r"convolution|dot|gemm|matmul")
_NAMES_PRODUCT = re.compile(r"dot_general|gemm|matmul|gmm|conv_general")


def is_product(instruction: Instruction, category: str | None, op_name: str | None) -> bool:
    """Whether an instruction is a matrix product: by its opcode, the names it goes by, or a custom call's shapes."""
    if instruction.opcode in _MULTIPLIES:
        return True
    if instruction.opcode not in ("fusion", "custom-call"):
        return False
    names = f"{category} {instruction.custom_call_target} {instruction.name}"
    is_named = _NAMED.search(names) or _NAMES_PRODUCT.search(op_name or "")
    return bool(is_named) or (instruction.opcode == "custom-call" and _contracted(instruction) is not None)


def operand_dtype(instruction: Instruction, category: str | None, op_name: str | None) -> str | None:
    """Return the element type that a matrix product multiplies; None for other instructions, or if no operand tells.

    The unit multiplies two operands in the wider of their types. Shapes tell those of a custom call, such as a Pallas
    kernel. The text of a fusion does not say which operands it multiplies. If two matrices have a narrow type, such as
    quantized activations and weights, they are taken as the operands, and wider matrices as ones that it adds. A single
    narrow one, such as quantized weights, is widened first.
    """
    is_other_fusion = instruction.opcode == "fusion" and not _NAMED.search(category or "")
    if is_other_fusion or not is_product(instruction, category, op_name):
        return None  # the name path of a fusion may be that of a product whose operands or result it prepares
    operands = [s for s in instruction.operand_shapes if s is not None and s.element in ELEMENT_BITS]
    if instruction.opcode in _MULTIPLIES:
        return _wider(operands[0], operands[1]) if len(operands) > 1 else None
    if instruction.opcode == "custom-call" and (contracted := _contracted(instruction)):
        return _wider(*contracted)
    matrices = Counter(s.element for s in operands if s.element != "pred" and sum(d != 1 for d in s.dimensions) > 1)
    shared = [element for element, count in matrices.items() if count > 1]
    if shared:
        return min(shared, key=ELEMENT_BITS.__getitem__)
    return max(matrices, key=ELEMENT_BITS.__getitem__, default=None)


def _wider(one: Shape, other: Shape) -> str:
    return max(one.element, other.element, key=ELEMENT_BITS.__getitem__)


def _contracted(instruction: Instruction) -> tuple[Shape, Shape] | None:
    """Return the operands of m x k and of k x n or n x k where the result is m x n; None if none fit.

    Three square matrices of one size prove nothing: a sum has them too.
    """
    result = _matrix(instruction.shape.leaves[0]) if instruction.shape.leaves else None
    if result is None:
        return None
    sized = [(shape, size) for shape in instruction.operand_shapes if shape is not None and (size := _matrix(shape))]
    for (one, (rows, depth)), (other, size) in permutations(sized, 2):
        if rows == result[0] and sorted(size) == sorted((depth, result[1])) and not rows == depth == result[1]:
            return one, other
    return None


def _matrix(shape: Shape) -> tuple[int, int] | None:
    sizes = [d for d in shape.dimensions if d is not None and d != 1]
    return (sizes[0], sizes[1]) if len(sizes) == 2 and not shape.is_tuple and shape.element in ELEMENT_BITS else None
