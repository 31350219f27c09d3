"""Reads replica groups and source-target pairs in every encoding of HLO, and expands them to plain tuples.

HLO names the devices of a collective in four ways, in text and in proto:
explicit lists        {{0,1},{2,3}}
iota                  [4,2]<=[2,4]T(1,0)       an iota of the right shape, transposed, reshaped to the left shape
mesh axes             mesh['a'=2,'b'=4] {'b'}  one group per position on the axes that are not named
nothing               {}                       all devices in one group; HLO does not state its size
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.errors import MalformedError

Groups = tuple[tuple[int, ...], ...]
Pairs = tuple[tuple[int, int], ...]
SubAxis = tuple[int, int, int]
"""Index, pre-size and size of a mesh axis: the part that XLA writes 'a':(pre_size)size; size 0 is the whole axis."""

MAX_MEMBERS = 1 << 17
"""Most members that groups may have in all; it bounds the memory that damaged text can demand."""

_MAX_DIMENSIONS = 32
_MAX_DEVICE = (1 << 31) - 1
_INNER = re.compile(r"\{([\d,\s]*+)\}")
_IOTA = re.compile(r"\[([\d,\s]++)\]<=\[([\d,\s]++)\](?:T\(([\d,\s]++)\))?")
_PERMUTED = re.compile(r"\[([\d,\s]++)\](?:T\(([\d,\s]++)\))?")
# Today's mesh['a'=2], the same without quotes, and the earlier @mesh<a=2>.
_MESH = re.compile(
    r"(?:mesh\[(?P<axes>[^\]]*+)\]|@mesh<(?P<old>[^>]*+)>)"
    r"(?:\s*,\s*device_ids=\((?P<ids>[\d,\s\[\]T]*+(?:\([\d,\s]*+\))?)\))?"
    r"\s*\{(?P<named>[^{}]*+)\}"
)
_AXIS = re.compile(r"\s*('[^']*'|[^'=,\s]+)=(\d{1,9})\s*(?:,|$)")
_NAMED = re.compile(r"\s*('[^']*'|[^':,\s]+)(?::\((\d{1,9})\)(\d{1,9}))?\s*(?:,|$)")


def parse_groups(text: str) -> Groups:
    """Read replica groups from their HLO text, in any encoding; '{}' gives ()."""
    text = text.strip()
    if text.startswith("{"):
        return explicit_groups(_parse_lists(text, "replica groups"))
    if text.startswith("["):
        match = _IOTA.fullmatch(text)
        if match is None:
            raise MalformedError(f"replica groups: {text[:60]!r} is not an iota list such as [4,2]<=[2,4]T(1,0)")
        return iota_groups(*(tuple(_integers(match[i] or "")) for i in (1, 2, 3)))
    match = _MESH.fullmatch(text)
    if match is None:
        raise MalformedError(f"replica groups: {text[:60]!r} is none of the encodings of HLO")
    return _parse_mesh(match)


def parse_pairs(text: str) -> Pairs:
    """Read source-target pairs from HLO text such as '{{0,1},{1,0}}'."""
    return explicit_pairs(_parse_lists(text.strip(), "source-target pairs"))


def explicit_groups(groups: Iterable[Sequence[int]]) -> Groups:
    """Check groups: at most MAX_MEMBERS members, no negative device, none twice. A single empty group means '{}'."""
    result = tuple(tuple(group) for group in groups if group)
    members = [device for group in result for device in group]
    if len(members) > MAX_MEMBERS:
        raise MalformedError(f"replica groups have {len(members)} members; at most {MAX_MEMBERS} are read")
    if any(not 0 <= device <= _MAX_DEVICE for device in members):
        raise MalformedError("replica groups hold a number that no device has")
    if len(set(members)) != len(members):
        raise MalformedError("replica groups name a device twice")
    return result


def explicit_pairs(pairs: Iterable[Sequence[int]]) -> Pairs:
    """Check source-target pairs."""
    result: list[tuple[int, int]] = []
    for pair in pairs:
        if len(pair) != 2 or not all(0 <= device <= _MAX_DEVICE for device in pair):
            raise MalformedError("source-target pairs: an entry is not a pair of device numbers")
        result.append((pair[0], pair[1]))
    for side in zip(*result, strict=True):
        if len(set(side)) != len(side):
            raise MalformedError("source-target pairs: a device sends or receives twice")
    return tuple(result)


@lru_cache(maxsize=32)  # a program has few distinct groups and many instructions, which share one object
def iota_groups(dimensions: tuple[int, ...], reshape: tuple[int, ...], permutation: tuple[int, ...] = ()) -> Groups:
    """Expand the iota form `dimensions<=reshape T(permutation)` to groups.

    The dimensions are the number of groups and the devices per group; a single number is one group. The numbers 0, 1,
    2, ... get the shape `reshape`, and are transposed if there is a permutation.
    """
    if not 1 <= len(dimensions) <= 2:
        raise MalformedError(f"replica groups: an iota list has two sizes, groups and devices; found {len(dimensions)}")
    devices = _iota(reshape, permutation)
    if _size(dimensions) != devices.size:
        raise MalformedError(
            f"replica groups: {list(dimensions)[:8]} do not hold the {devices.size} devices of an iota"
        )
    return _rows(devices.reshape(-1, dimensions[-1]))


def flattened(
    groups: Groups, replicas: int, partitions: int, *, has_channel: bool, is_global: bool, has_global_form: bool
) -> Groups:
    """Translate a collective's groups to logical numbers, which are replica x partitions + partition.

    HLO's rule (collective_op_group_mode): without a channel the numbers are replicas, and each partition has its own
    collective. With a channel they are partitions, and each replica has its own. If the opcode has a global form
    (all-gather, all-reduce, reduce-scatter), they are replicas with all their partitions, or with
    `use_global_device_ids` logical numbers. () is one group of all. Numbers that no replica or partition has are taken
    as logical ones: a text may leave out `use_global_device_ids`.
    """
    if has_channel and is_global:
        return groups
    counts_partitions = has_channel and not has_global_form
    count = partitions if counts_partitions else replicas
    stated = groups or (tuple(range(count)),)
    if any(n >= count for group in groups for n in group):
        return groups
    members = sum(map(len, stated)) * (replicas if counts_partitions else partitions)
    if members > MAX_MEMBERS:
        raise MalformedError(f"replica groups have {members} members; at most {MAX_MEMBERS} are read")
    if counts_partitions:
        return tuple(tuple(r * partitions + p for p in group) for r in range(replicas) for group in stated)
    if has_channel:
        return tuple(tuple(r * partitions + p for r in group for p in range(partitions)) for group in stated)
    return tuple(tuple(r * partitions + p for r in group) for p in range(partitions) for group in stated)


@lru_cache(maxsize=32)
def mesh_groups(sizes: tuple[int, ...], axes: tuple[SubAxis, ...], device_ids: tuple[int, ...] = ()) -> Groups:
    """Expand the mesh-axes form: a group is the devices that differ only on the named (sub-)axes, in their order.

    A sub-axis with pre-size p and size s of an axis of size n is the middle dimension of [p, s, n / (p s)]. The mesh is
    row-major; its devices are 0, 1, 2, ... without `device_ids`.
    """
    if max(len(sizes), len(axes)) > _MAX_DIMENSIONS:
        raise MalformedError(f"replica groups: a mesh of {len(sizes)} axes has {len(axes)} names")
    total = _size(sizes)
    if device_ids and len(device_ids) != total:
        raise MalformedError(f"replica groups: {len(device_ids)} device ids for a mesh of {total} devices")
    parts: dict[int, list[tuple[int, int]]] = {}
    for axis, before, size in axes:
        if not 0 <= axis < len(sizes):
            raise MalformedError(f"replica groups: axis number {axis} of a mesh that has {len(sizes)} axes")
        parts.setdefault(axis, []).append((before, size) if size else (1, sizes[axis]))
    # Cut every axis at the borders of its sub-axes, so that each named (sub-)axis is one dimension.
    shape: list[int] = []
    dimension_of: dict[SubAxis, int] = {}
    for axis, full in enumerate(sizes):
        done = 1
        for before, size in sorted(parts.get(axis, ())):
            if before < done or size < 1 or before % done or full % (before * size):
                raise MalformedError(f"replica groups: the parts of mesh axis {axis} overlap or do not divide {full}")
            shape.append(before // done)
            dimension_of[axis, before, size] = len(shape)
            shape.append(size)
            done = before * size
        shape.append(full // done)
    grouped = [dimension_of[(axis, before, size) if size else (axis, 1, sizes[axis])] for axis, before, size in axes]
    permutation = [dimension for dimension in range(len(shape)) if dimension not in grouped] + grouped
    devices: npt.NDArray[np.int64] = np.array(device_ids, dtype=np.int64) if device_ids else np.arange(total)
    members = prod(shape[dimension] for dimension in grouped)
    groups = _rows(_transpose(devices, shape, permutation).reshape(-1, members))
    return explicit_groups(groups) if device_ids else groups


def _parse_mesh(match: re.Match[str]) -> Groups:
    text = match["axes"] if match["axes"] is not None else match["old"]
    axes = [(name.strip("'"), int(size)) for name, size in _all(_AXIS, text)]
    index = {name: position for position, (name, _) in enumerate(axes)}
    sizes = [size for _, size in axes]
    named: list[SubAxis] = []
    for name, before, size in _all(_NAMED, match["named"]):
        if name.strip("'") not in index:
            raise MalformedError(f"replica groups: the mesh has no axis {name[:40]}")
        named.append((index[name.strip("'")], int(before or 1), int(size or 0)))
    ids: Sequence[int] = ()
    if match["ids"]:
        permuted = _PERMUTED.fullmatch(match["ids"].strip())
        ids = (
            _iota(_integers(permuted[1]), _integers(permuted[2] or "")).ravel().tolist()
            if permuted
            else _integers(match["ids"])
        )
    return mesh_groups(tuple(sizes), tuple(named), tuple(ids))


def _all(pattern: re.Pattern[str], text: str) -> list[tuple[str, ...]]:
    """Return the groups of matches that follow one another and fill the text."""
    parts: list[tuple[str, ...]] = []
    position = 0
    while position < len(text):
        match = pattern.match(text, position)
        if match is None or match.end() == position:
            raise MalformedError(f"replica groups: {text[position : position + 40]!r} is not a mesh axis")
        parts.append(tuple(group or "" for group in match.groups()))
        position = match.end()
    return parts


def _parse_lists(text: str, what: str) -> list[list[int]]:
    if len(text) < 2 or text[0] != "{" or text[-1] != "}":
        raise MalformedError(f"{what}: {text[:60]!r} is not a list such as {{{{0,1}},{{2,3}}}}")
    inside = text[1:-1]
    if len(inside) > 12 * MAX_MEMBERS:
        raise MalformedError(f"{what}: a list of {len(inside)} characters; at most {MAX_MEMBERS} members are read")
    lists = [_integers(match[1]) for match in _INNER.finditer(inside)]
    if _INNER.sub("", inside).replace(",", "").strip():
        raise MalformedError(f"{what}: {text[:60]!r} is not a list of lists")
    return lists


def _integers(text: str) -> list[int]:
    numbers = []
    for part in text.split(","):
        digits = part.strip()
        if not digits:
            if text.strip():
                raise MalformedError(f"replica groups: a number is missing in {text[:40]!r}")
            continue
        if not digits.isdecimal() or len(digits) > 18:
            raise MalformedError(f"replica groups: {digits[:40]!r} is not a device number")
        numbers.append(int(digits))
    return numbers


def _size(dimensions: Sequence[int]) -> int:
    size = 1
    for dimension in dimensions:
        if dimension < 1:
            raise MalformedError(f"replica groups: a dimension of {dimension} devices")
        size *= dimension
        if size > MAX_MEMBERS:
            raise MalformedError(f"replica groups have over {MAX_MEMBERS} members")
    return size


def _iota(reshape: Sequence[int], permutation: Sequence[int]) -> npt.NDArray[np.int64]:
    if len(reshape) > _MAX_DIMENSIONS:
        raise MalformedError(f"replica groups: an iota of {len(reshape)} dimensions")
    devices: npt.NDArray[np.int64] = np.arange(_size(reshape), dtype=np.int64)
    if permutation and sorted(permutation) != list(range(len(reshape))):
        raise MalformedError(
            f"replica groups: {list(permutation)[:8]} is not a permutation of {len(reshape)} dimensions"
        )
    return _transpose(devices, reshape, permutation or range(len(reshape)))


def _transpose(
    devices: npt.NDArray[np.int64], shape: Sequence[int], permutation: Sequence[int]
) -> npt.NDArray[np.int64]:
    # Dimensions of size 1 move nothing, and numpy allows only so many dimensions.
    kept = [dimension for dimension in permutation if shape[dimension] > 1]
    order = {dimension: position for position, dimension in enumerate(sorted(kept))}
    array = devices.reshape([shape[dimension] for dimension in sorted(kept)])
    return array.transpose([order[dimension] for dimension in kept])


def _rows(array: npt.NDArray[np.int64]) -> Groups:
    return tuple(tuple(row) for row in array.tolist())
