"""Infers the mesh axes of a run from the device groups of its collectives, if no manifest or user gives the mesh.

A row-major mesh numbers devices digit by digit, as a clock numbers seconds: an axis of size n and stride s is the digit
(device // s) % n. The members of a group differ exactly in the digits of the axes that its collective runs along. The
groups therefore show where one digit ends and the next begins, and the collectives along a digit show which kind of
parallelism it is:

1. `digits_of` finds the digits that a set of groups spans.
2. `infer_axes` cuts the device numbers at the ends of all of them.
3. Each digit is named after the kinds of its collectives and the parts of the model that they serve, with
   LIKELIHOODS as the probability to see such a collective along an axis of each name. A kind and part is weighted by
   its number of instructions, so that one all-to-all does not outweigh the two all-reduces of each layer. It counts
   fully if it is at least half as frequent as the most frequent one: a layer may have one of a kind and two of another,
   and both are equally part of the program. Doubling all numbers changes nothing. The confidence of a name is its
   posterior probability times the share of collectives whose groups fit the mesh; the prior gives all ways to assign
   different names to the digits the same probability.

The likelihoods are judgements of what the usual implementations do (tensor parallelism: Shoeybi et al. 2019; sequence
parallelism: Korthikanti et al. 2022, Jacobs et al. 2023, Liu et al. 2023; expert parallelism: Lepikhin et al. 2020;
pipelines: Huang et al. 2019), not measured frequencies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import prod

from tracewarehouse.ingest.capture_names import AXES

NAMES = (*(axis for axis in AXES if axis != "sp"), "sp")
"""The axes; sp comes last, because the first of two that fit equally well is taken."""
REPEATED = 8
"""If a kind without a part has at least this many instructions, they are taken for layers of a model."""
MIN_CONFIDENCE = 0.5
"""A digit whose best name has a lower confidence gets no name."""

_REDUCTIONS = frozenset({"all-reduce", "all-gather", "reduce-scatter"})

#                                        pp    dp    ep    tp    sp
LIKELIHOODS: dict[tuple[str, str], tuple[float, ...]] = {
    ("collective-permute", "pipeline"): (0.90, 0.01, 0.01, 0.01, 0.02),
    ("collective-permute", "attn"):     (0.05, 0.01, 0.02, 0.05, 0.80),
    ("collective-permute", "any part"): (0.60, 0.05, 0.05, 0.05, 0.30),
    ("ring", "mlp"):                    (0.05, 0.01, 0.02, 0.80, 0.05),
    ("ring", "any part"):               (0.30, 0.15, 0.05, 0.30, 0.25),
    ("all-to-all", "moe"):              (0.01, 0.03, 0.90, 0.05, 0.03),
    ("all-to-all", "mlp"):              (0.01, 0.03, 0.80, 0.05, 0.10),
    ("all-to-all", "attn"):             (0.01, 0.01, 0.05, 0.10, 0.80),
    ("all-to-all", "beside experts"):   (0.01, 0.05, 0.60, 0.10, 0.15),
    ("all-to-all", "any part"):         (0.01, 0.05, 0.40, 0.10, 0.40),
    ("all-reduce", "attn"):             (0.02, 0.05, 0.05, 0.90, 0.10),
    ("all-reduce", "mlp"):              (0.02, 0.05, 0.05, 0.90, 0.05),
    ("all-reduce", "repeated"):         (0.02, 0.05, 0.03, 0.80, 0.02),
    ("reduction", "attn"):              (0.02, 0.05, 0.05, 0.90, 0.30),
    ("reduction", "mlp"):               (0.02, 0.05, 0.05, 0.90, 0.20),
    ("reduction", "moe"):               (0.02, 0.25, 0.60, 0.60, 0.15),
    ("reduction", "pipeline"):          (0.80, 0.05, 0.05, 0.10, 0.05),
    ("reduction", "repeated"):          (0.02, 0.05, 0.20, 0.80, 0.20),
    ("reduction", "any part"):          (0.10, 0.30, 0.20, 0.40, 0.30),
    ("none", "any part"):               (0.05, 0.90, 0.02, 0.02, 0.02),
}  # fmt: skip
"""Probability of a collective of this kind in this part of the model along an axis of each of NAMES.

A ring is a permute in which every device that sends also receives. A product that overlaps with its gather sends its
operands around one (Wang et al. 2023), and so do ring attention and circular pipelines.
"""


@dataclass(frozen=True)
class CollectiveSeen:
    """One collective instruction.

    Attributes:
        groups: its groups of device numbers; for a permute, its pairs.
        part: part of the model that its op_name names.
    """

    kind: str
    groups: tuple[tuple[int, ...], ...]
    part: str | None

    @property
    def is_ring(self) -> bool:
        """Whether it is a permute in which every device that sends also receives."""
        return self.kind == "collective-permute" and {g[0] for g in self.groups} == {g[-1] for g in self.groups}


@dataclass(frozen=True)
class InferredAxis:
    """One digit of the device numbers.

    Attributes:
        axis: one of NAMES; None below MIN_CONFIDENCE.
        size: devices along it.
        stride: distance in number between neighbours on it.
        confidence: posterior probability of the likeliest name.
        evidence: the reasons for the name, for people.
    """

    axis: str | None
    size: int
    stride: int
    confidence: float
    evidence: str

    def __str__(self) -> str:
        sure = self.confidence if self.confidence == 1 else min(self.confidence, 0.99)
        return f"{self.axis or 'unnamed'}={self.size} ({sure:.2f}: {self.evidence})"

    def place(self, device: int) -> int:
        """Return the coordinate of a device number on it."""
        return device // self.stride % self.size


Digit = tuple[int, int]
"""Stride, and stride of the next digit."""


def infer_axes(seen: Iterable[CollectiveSeen], world: int, *, has_experts: bool = False) -> list[InferredAxis]:
    """Infer the axes of a mesh of `world` devices, outermost first; empty if no row-major mesh has such groups.

    Args:
        seen: collective instructions whose groups number devices from 0 to world - 1.
        world: devices, as HLO counts them.
        has_experts: the names in the programs mention experts; if they do not, an all-to-all of experts looks like one
            of a sequence.
    """
    digits_by_groups: dict[tuple[tuple[int, ...], ...], tuple[Digit, ...] | None] = {}
    spanned = []
    for c in seen:
        if c.groups not in digits_by_groups:
            digits_by_groups[c.groups] = digits_of(c.groups, world)
        spanned.append((c, digits_by_groups[c.groups]))
    spans = [(c, s) for c, s in spanned if s]
    irregular = sum(s is None for _, s in spanned)
    if world < 2 or (irregular and not spans):
        return []
    cuts = sorted({1, world} | {end for _, span in spans for digit in span for end in digit})
    if any(high % low for low, high in pairwise(cuts)) or len(cuts) - 1 > len(NAMES):
        return []
    digits = list(pairwise(cuts))
    classes = [_classes(digit, spans, has_experts) for digit in digits]
    weights = [_weights(of_digit) for of_digit in classes]
    regular = len(spans) / (len(spans) + irregular) if spans else 1.0
    axes = []
    for (stride, end), of_digit, chances in zip(digits, classes, _posterior(weights), strict=True):
        best = max(range(len(NAMES)), key=chances.__getitem__)
        confidence = regular * chances[best]
        name = NAMES[best] if confidence >= MIN_CONFIDENCE else None
        axes.append(InferredAxis(name, end // stride, stride, confidence, _evidence(of_digit)))
    return axes[::-1]


def digits_of(groups: Sequence[tuple[int, ...]], world: int) -> tuple[Digit, ...] | None:
    """Return the digits in which members of every group differ; None if these are not all groups of a row-major mesh.

    Pairs that share a device count as one group.
    """
    parts = [sorted(p) for p in _joined(groups)]
    offsets = {tuple(d - part[0] for d in part) for part in parts}
    if len(offsets) != 1 or sorted(d for part in parts for d in part) != list(range(world)):
        return None
    [pattern] = offsets
    members = set(pattern)
    digits: list[Digit] = []
    reached = {0}
    while len(reached) < len(pattern):
        stride = next(d for d in pattern if d not in reached)
        size = 2
        while all(d + size * stride in members for d in reached):
            size += 1
        reached = {d + k * stride for k in range(size) for d in reached}
        digits.append((stride, stride * size))
    is_mesh = reached == members and all(world % end == 0 and end % stride == 0 for stride, end in digits)
    is_aligned = all(part[0] // stride % (end // stride) == 0 for part in parts for stride, end in digits)
    return tuple(digits) if is_mesh and is_aligned else None


def _joined(groups: Iterable[tuple[int, ...]]) -> list[set[int]]:
    part_of: dict[int, set[int]] = {}
    for group in groups:
        linked = max((part_of[d] for d in group if d in part_of), key=len, default=set[int]())
        for device in group:
            part = part_of.get(device, {device})
            if part is not linked:
                linked |= part
                part_of.update(dict.fromkeys(part, linked))
    return list({id(part): part for part in part_of.values()}.values())


def _weights(classes: dict[tuple[str, str], Counter[str]]) -> list[float]:
    counts = {row: seen.total() for row, seen in classes.items()}
    most = max(counts.values(), default=0) or 1
    return [
        prod(LIKELIHOODS[row][n] ** min(2 * (count or 1) / most, 1) for row, count in counts.items())
        for n in range(len(NAMES))
    ]


def _classes(
    digit: Digit, spans: Sequence[tuple[CollectiveSeen, tuple[Digit, ...]]], has_experts: bool
) -> dict[tuple[str, str], Counter[str]]:
    """Return the kinds of collectives by row of LIKELIHOODS: along this digit alone, or else along others too."""
    along = [
        (c, span or ()) for c, span in spans if any(low <= digit[0] and digit[1] <= high for low, high in span or ())
    ]
    alone = [c for c, span in along if span == (digit,)] or [c for c, _ in along]
    if not alone:
        return {("none", "any part"): Counter()}
    nameless = Counter(c.kind for c in alone if c.part is None)
    classes: dict[tuple[str, str], Counter[str]] = {}
    for c in alone:
        kind = "reduction" if c.kind in _REDUCTIONS else c.kind
        part = c.part or ("repeated" if nameless[c.kind] >= REPEATED else "any part")
        if c.kind == "all-to-all" and not c.part and has_experts:
            part = "beside experts"
        kinds = ("ring", c.kind) if c.is_ring else (c.kind, kind)
        rows = [(k, p) for p in (part, "any part") for k in kinds if (k, p) in LIKELIHOODS]
        row = rows[0] if rows else (kind, "any part")
        if row in LIKELIHOODS:
            classes.setdefault(row, Counter())[f"{c.kind} in {c.part}" if c.part else c.kind] += 1
    return classes


def _posterior(weights: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the probability of each name for each digit, over all ways to give them different names."""
    chances = [[0.0] * len(NAMES) for _ in weights]
    total = 0.0
    for names in permutations(range(len(NAMES)), len(weights)):
        weight = prod(w[n] for w, n in zip(weights, names, strict=True))
        total += weight
        for of_digit, name in zip(chances, names, strict=True):
            of_digit[name] += weight
    return [[c / total for c in of_digit] for of_digit in chances]


def _evidence(classes: dict[tuple[str, str], Counter[str]]) -> str:
    counts: Counter[str] = sum(classes.values(), Counter())
    if not counts:
        return "no collective along it" if ("none", "any part") in classes else "collectives of other kinds"
    return ", ".join(f"{n} {what}" for what, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
