"""Computes the bytes that each device sends to each other one, under the algorithm model of a collective.

With n devices in a group and a message of S bytes (METRICS: message bytes; divisions round down):
ring      to the next rank of the group: all-reduce 2 (n-1) S / n, all-gather and reduce-scatter (n-1) S / n
pairwise  all-to-all: S / n to every other rank
direct    collective-permute and send: S from source to target; a recv sends nothing, its send is counted
No model: ragged-all-to-all, whose sizes are data, and collective-broadcast, whose ranks do not send alike.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tracewarehouse.ingest.errors import MalformedError

MAX_EDGES = 1 << 24
"""Most edges that a result may have; an all-to-all of n devices has n (n-1)."""

_ALGORITHMS = {
    "all-reduce": "ring",
    "all-gather": "ring",
    "reduce-scatter": "ring",
    "all-to-all": "pairwise",
    "collective-permute": "direct",
    "send": "direct",
    "recv": "direct",
}


def algorithm(kind: str) -> str | None:
    """Return the algorithm model of a kind of collective: ring, pairwise or direct; None if there is none."""
    return _ALGORITHMS.get(kind)


def wire_bytes(kind: str, group_size: int, message_bytes: int) -> int | None:
    """Return the bytes that a device (in pairs, a source) sends in one execution; None without a model or devices.

    Args:
        kind: HLO opcode without -start or -done.
        group_size: devices in the group, 2 for pairs.
        message_bytes: message of one execution on one device.
    """
    if group_size < 1:
        return None
    others = group_size - 1
    match kind:
        case "all-reduce":
            return 2 * others * message_bytes // group_size
        case "all-gather" | "reduce-scatter":
            return others * message_bytes // group_size
        case "all-to-all":
            return others * (message_bytes // group_size)
        case "collective-permute" | "send":
            return message_bytes
        case "recv":
            return 0
        case _:
            return None


def edges(
    kind: str,
    groups_or_pairs: Sequence[Sequence[int]],
    message_bytes: int,
    sources: Collection[int] | None = None,
) -> list[tuple[int, int, int]]:
    """Return the bytes from device to device in one execution, as (source, target, bytes), without empty ones.

    The sum over a source's targets is `wire_bytes`, except that a pair of a device with itself moves nothing.

    Args:
        kind: HLO opcode without -start or -done.
        groups_or_pairs: replica groups, or (source, target) pairs, by the numbers that HLO uses.
        message_bytes: message of one execution on one device.
        sources: the senders to list, such as the devices of the capture; all by default.

    Raises:
        MalformedError: there are over MAX_EDGES edges.
    """
    model = _ALGORITHMS.get(kind)
    if model is None or kind == "recv":
        return []
    wanted = None if sources is None else frozenset(sources)
    if model == "direct":
        return [
            (source, target, message_bytes)
            for source, target in groups_or_pairs
            if source != target and message_bytes and (wanted is None or source in wanted)
        ]
    edges: list[tuple[int, int, int]] = []
    for group in groups_or_pairs:
        size = len(group)
        sent = wire_bytes(kind, size, message_bytes) if size > 1 else 0
        if not sent:
            continue
        senders = [rank for rank, device in enumerate(group) if wanted is None or device in wanted]
        if len(edges) + len(senders) * (size - 1 if model == "pairwise" else 1) > MAX_EDGES:
            raise MalformedError(f"the traffic of one {kind} has over {MAX_EDGES} pairs of devices")
        for rank in senders:
            if model == "ring":
                edges.append((group[rank], group[(rank + 1) % size], sent))
            else:
                edges += [(group[rank], other, message_bytes // size) for other in group if other != group[rank]]
    return edges
