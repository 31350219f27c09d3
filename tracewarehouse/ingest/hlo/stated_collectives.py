"""Reads the collective that a GPU kernel executes from what PyTorch and NCCL say of its launch, where no HLO tells it.

Kind: the collective's name among the arguments that Kineto copies from the launching `record_param_comms`; else the
annotation or NVTX range around the launch, such as `nccl:all_to_all`; else the kernel's name. Which of NCCL's kernels
runs tells little: SendRecv executes all-to-alls, and RCCL's Generic everything.

Message: elements times the size of their type. A gather or scatter counts the full buffer, which is the larger side;
other kinds count what goes in. Without arguments the annotation's input shapes tell it. PyTorch counts elements, not
bytes; NCCL's NVTX payload counts bytes, of a gather, scatter or all-to-all those of one rank's part.

Group: the global ranks that the process group lists. PyTorch abbreviates long lists; if the group's ranks are equally
far apart, start, stride and size tell them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any

from tracewarehouse.ingest.capture_names import AXES
from tracewarehouse.ingest.columns.profiler_names import UNKNOWN_COLLECTIVE, collective_kind
from tracewarehouse.ingest.hlo.collectives import KINDS, Collective
from tracewarehouse.ingest.hlo.replica_groups import MAX_MEMBERS
from tracewarehouse.ingest.hlo.shapes import ELEMENT_BITS, MAX_BYTES

Stated = Mapping[str, Any]
"""Stats of a kernel by name, as Kineto calls them."""

_KINDS = (
    ("allreduce", "all-reduce"),
    ("barrier", "all-reduce"),  # NCCL has no other
    ("allgather", "all-gather"),
    ("reducescatter", "reduce-scatter"),
    ("alltoall", "all-to-all"),
    ("broadcast", "collective-broadcast"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
)
"""Kinds by what a name begins with, without its prefix, case and underscores; the first that fits counts."""
_PREFIX = re.compile(r"\A(?:nccl|rccl|xccl|c10d)(?::+|(?=[A-Z]))|\A_+", re.ASCII)
_PEER = re.compile(r"\A(send|recv)(?![a-z]|_?recv)", re.IGNORECASE)
_WHOLE = frozenset({"all-gather", "reduce-scatter", "gather", "scatter"})
"""Kinds whose larger side is the full buffer."""
_DTYPES = {
    "bool": "pred", "byte": "u8", "unsigned char": "u8", "uint8": "u8", "char": "s8", "signed char": "s8", "int8": "s8",
    "short": "s16", "int16": "s16", "int": "s32", "int32": "s32", "long": "s64", "long int": "s64", "int64": "s64",
    "long long": "s64", "uint16": "u16", "unsigned short": "u16", "uint32": "u32", "unsigned int": "u32",
    "uint64": "u64", "unsigned long": "u64", "half": "f16", "float16": "f16", "bfloat16": "bf16", "float": "f32",
    "float32": "f32", "double": "f64", "float64": "f64", "complexfloat": "c64", "complexdouble": "c128",
    "float8_e4m3fn": "f8e4m3fn", "float8_e4m3fnuz": "f8e4m3fnuz", "float8_e5m2": "f8e5m2",
    "float8_e5m2fnuz": "f8e5m2fnuz", "float8_e8m0fnu": "f8e8m0fnu",
}  # fmt: skip
"""Element types by PyTorch's names and by those of C++, in lower case and without c10."""
_AXES = {
    "tp": "tp", "tensor": "tp", "attntp": "tp", "moetp": "tp", "dp": "dp", "data": "dp", "fsdp": "dp", "ddp": "dp",
    "hsdp": "dp", "replicate": "dp", "shard": "dp", "replica": "dp", "pp": "pp", "pipeline": "pp", "pipe": "pp",
    "ep": "ep", "expert": "ep", "cp": "sp", "context": "sp", "sp": "sp", "sequence": "sp", "ulysses": "sp",
}  # fmt: skip
"""Mesh axes by the words with which descriptions of process groups name them."""
_WORD = re.compile(r"[a-z]+")
_COMPUTES = re.compile(r"\A(?:void )?at::native::|\A(?:Memcpy|Memset)", re.ASCII)
"""Kernels that copy or prepare a collective's buffers within its call."""


def stated_collective(kernel: str, stated: Stated, rank: int | None = None) -> Collective | None:
    """Return the collective that a kernel executes; None for any other kernel.

    Args:
        kernel: its name.
        stated: what its launch says, as stats by name; see the module.
        rank: the global rank that runs it, which a send or recv needs to know its pair.
    """
    by_name = collective_kind(kernel, "", KINDS)
    called = text(stated, "Collective name")
    if by_name is None and (called is None or _COMPUTES.match(kernel)):
        return None
    mark = text(stated, "annotation")
    kind = _kind(called) or _kind(mark) or by_name or UNKNOWN_COLLECTIVE
    groups = ranks_of_group(stated)
    pairs = _pair(kind, stated, rank)
    size = 2 if pairs else len(groups[0]) if groups else number(stated, "Group size")
    message, dtype = _message(kind, stated, of_mark=_kind(mark) == kind, group_size=size)
    return Collective(
        kind,
        message_bytes=message,
        dtype=dtype,
        groups=None if pairs else groups,
        pairs=pairs,
        group_size=size,
        axis=axis_of(text(stated, "Process Group Description")),
        communicator=_communicator(stated, groups),
    )


@lru_cache(maxsize=1 << 12)
def _kind(name: str | None) -> str | None:
    """Return the kind that the name of an operator, an annotation or NCCL's own function tells; None without one."""
    bare = (name or "").strip()
    while match := _PREFIX.match(bare):
        bare = bare[match.end() :]
    if peer := _PEER.match(bare):
        return peer[1].lower()
    plain = bare.replace("_", "").lower()
    return next((kind for word, kind in _KINDS if plain.startswith(word)), None)


def ranks_of_group(stated: Stated) -> tuple[tuple[int, ...], ...] | None:
    """Return the global ranks of a process group as one group; None if they are not stated."""
    ranks, size = _integers(text(stated, "Process Group Ranks")), number(stated, "Group size")
    if ranks and size in (len(ranks), None) and len(set(ranks)) == len(ranks) and min(ranks) >= 0:
        return (tuple(ranks),)
    start, stride = number(stated, "Global rank start"), number(stated, "Global rank stride")
    if ranks is not None or start is None or stride is None or size is None:
        return None
    is_possible = stride > 0 <= start and 0 < size <= MAX_MEMBERS
    return (tuple(range(start, start + stride * size, stride)),) if is_possible else None


def _pair(kind: str, stated: Stated, rank: int | None) -> tuple[tuple[int, int], ...] | None:
    """Return source and target of a send or recv, of which each side states the other."""
    source = number(stated, "Src Rank") if kind == "recv" else rank
    target = number(stated, "Dst Rank") if kind == "send" else rank
    if kind not in ("send", "recv") or source is None or target is None or min(source, target) < 0:
        return None
    return ((source, target),)


def axis_of(description: str | None) -> str | None:
    """Return the mesh axes that the description of a process group names, joined by '+'; None if it names none.

    A word counts anywhere: `mesh_tp`, `TENSOR_MODEL_PARALLEL_GROUP`, `dp_shard_cp`, `tp:0`. `default_pg` names none.
    """
    words = _WORD.findall((description or "").lower())
    named = {_AXES[word] for word in words if word in _AXES}
    return "+".join(axis for axis in AXES if axis in named) or None


def _communicator(stated: Stated, groups: tuple[tuple[int, ...], ...] | None) -> str:
    """Return what the ranks of a process group all call it, to match its collectives by their order."""
    return json.dumps([text(stated, "Process Group Name"), groups], separators=(",", ":"))


def _message(kind: str, stated: Stated, *, of_mark: bool, group_size: int | None) -> tuple[int | None, str | None]:
    """Return the bytes of the message and the type of its elements; None for what is not stated."""
    dtype = _dtype(text(stated, "dtype"))
    if (size := number(stated, "message_bytes")) is not None:
        return _possible(size * (group_size or 0) if kind in _WHOLE or kind == "all-to-all" else size), dtype
    if dtype is None and isinstance(types := _parsed(text(stated, "dtype")), list):  # several calls of one kernel
        counts = _integers(text(stated, "In msg nelems")) or []
        sizes = [_bytes(n, _dtype(t if isinstance(t, str) else None)) for n, t in zip(counts, types, strict=False)]
        is_known = len(counts) == len(types) and None not in sizes
        return (_possible(sum(size or 0 for size in sizes)) if is_known else None), None
    sent, received = number(stated, "In msg nelems"), number(stated, "Out msg nelems")
    counts = [n for n in (sent, received) if n is not None]
    if any(counts):
        elements = max(counts) if kind in _WHOLE or sent is None else sent
        return _bytes(elements, dtype), dtype
    if of_mark and not counts:  # shapes of a call of this kind, not of one that holds it
        shapes, of_inputs = _inputs(text(stated, "annotation dims"), text(stated, "annotation types"))
        parts = group_size or 0 if kind == "all-gather" else 1
        if shapes and parts:
            return _bytes(shapes * parts, of_inputs), of_inputs
    return None, dtype


def _inputs(dimensions: str | None, types: str | None) -> tuple[int | None, str | None]:
    """Return the elements of all tensors that went in, and their type; None if unknown, or if they differ in type."""
    shapes, names = _parsed(dimensions), _parsed(types)
    if not isinstance(shapes, list) or not isinstance(names, list) or len(shapes) != len(names):
        return None, None
    sizes: list[int] = []
    found: set[str | None] = set()
    for shape, name in zip(shapes, names, strict=True):
        if not isinstance(shape, list) or not shape:  # a number, or a list of tensors whose shapes are not recorded
            continue
        if not all(isinstance(n, int) and n >= 0 for n in shape) or not isinstance(name, str):
            return None, None
        sizes.append(prod(shape))
        found.add(_dtype(name))
    return (sum(sizes), found.pop()) if sizes and len(found) == 1 else (None, None)


def stated_inputs(dimensions: str | None, types: str | None) -> list[tuple[tuple[int, ...], str] | None]:
    """Return dimensions and element type of each input of an operator; None for what is no array, or not known."""
    shapes, names = _parsed(dimensions), _parsed(types)
    if not isinstance(shapes, list) or not isinstance(names, list) or len(shapes) != len(names):
        return []
    inputs: list[tuple[tuple[int, ...], str] | None] = []
    for shape, name in zip(shapes, names, strict=True):
        is_array = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
        dtype = _dtype(name) if is_array and isinstance(name, str) else None
        inputs.append((tuple(shape), dtype) if dtype else None)
    return inputs


def _dtype(name: str | None) -> str | None:
    return _DTYPES.get((name or "").lower().removeprefix("c10::"))


def _bytes(elements: int, dtype: str | None) -> int | None:
    return None if dtype is None else _possible(elements * ELEMENT_BITS[dtype] // 8)


def _possible(size: int) -> int | None:
    return size if 0 < size <= MAX_BYTES else None


def text(stated: Stated, name: str) -> str | None:
    """Return a stat that is text; None if it is absent or empty."""
    value = stated.get(name)
    return value if isinstance(value, str) and value else None


def number(stated: Stated, name: str) -> int | None:
    """Return a stat that is an integer, also as text; None if it is absent."""
    value = stated.get(name)
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return value if isinstance(value, int) else None


def _integers(value: str | None) -> list[int] | None:
    """Return a list of integers; None if it is abbreviated or no such list."""
    found = _parsed(value)
    is_whole = isinstance(found, list) and len(found) <= MAX_MEMBERS and all(isinstance(n, int) for n in found)
    return found if is_whole else None


def _parsed(value: str | None) -> Any:
    try:
        return json.loads(value) if value else None
    except (ValueError, RecursionError):
        return None
