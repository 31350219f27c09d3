"""Makes the timeline of a whole model of that of its first layers: one of the steady layers is repeated.

Compiling 32 layers of Llama-3.1-8B for eight v6e takes twice the time of compiling 8, and the layers in the middle are
alike: from 8 layers a prefill came out as of all 32, and a decode step 0.6 % below. From 4 it was 5.6 % below, because
then more of the weights fit the core's memory ahead of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.op_names import layer_and_part, stage_layer_and_tick
from tracewarehouse.ingest.hlo.opcodes import async_role
from tracewarehouse.predict.timeline import TimedOp

STEADY_LAYERS = 8
"""Fewest layers of a kind that are compiled for a whole model; the first two and the last one are not steady."""
MOST_SPREAD = 0.05
"""Most by which the longest steady layer may exceed the shortest."""
_UNSTEADY = 2


class UnsteadyLayersError(CaptureError):
    """The layers in the middle of a program differ too much to stand for others.

    Attributes:
        phases: the steps that must be compiled whole; empty for all.
    """

    def __init__(self, text: str, phases: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.phases = tuple(phases)


@dataclass(frozen=True)
class WholeModel:
    """The timeline of a whole model.

    Attributes:
        ops: as of `predict_program`; those of repeated and of renumbered layers say for which layer they stand.
        steady_ps: time of the layer that is repeated; in a pipeline of the longest of its ticks.
        spread: longest steady layer over the shortest, less 1.
    """

    ops: list[TimedOp]
    steady_ps: int
    spread: float


def whole_model(module: HloModule, ops: Sequence[TimedOp], added: int, dense: int = 0) -> WholeModel:
    """Return the timeline with more layers; in a pipeline with more of each stage, in each tick.

    A layer lasts from its first op on the core to that of the next one. The steady layer is the one of median time
    among those between the first and the last. Its ops, with the transfers that they start, are repeated behind it.

    Args:
        module: the compiled program.
        ops: one execution of it, as `predict_program` gives it.
        added: layers that were not compiled.
        dense: the first so many layers are of another kind.
    """
    if not added:
        return WholeModel(list(ops), 0, 0.0)
    stated = [_stated_layer(module, op) for op in ops]
    starts = _starts([own if _computes(module, op) else None for op, own in zip(ops, stated, strict=True)])
    out: list[TimedOp] = []
    ends: dict[int, tuple[int, int]] = {}  # by tick, the layer that is repeated and the place behind it
    done, shift, steady, most_spread = 0, 0, 0, 0.0

    def as_compiled(place: int) -> TimedOp:
        op, own = ops[place], stated[place]
        repeated, end = ends.get(own[0], (0, len(ops))) if own else (0, len(ops))
        layer = own[1] + added if own and place >= end and own[1] >= repeated else None
        return op._replace(start_ps=op.start_ps + shift, layer=layer)

    for tick, places in starts.items():
        layer, spread = _steady_layer(module.name, [ops[place].start_ps for place in places], dense)
        begin, end = places[layer], places[layer + 1]
        out += map(as_compiled, range(done, end))
        period = ops[end].start_ps - ops[begin].start_ps
        for copy in range(1, added + 1):
            shift += period
            for op, own in zip(ops[begin:end], stated[begin:end], strict=True):
                number = layer if own is None else max(layer, own[1])
                out.append(op._replace(start_ps=op.start_ps + shift, layer=number + copy, is_repeated=True))
        done, ends[tick] = end, (layer, end)
        steady, most_spread = max(steady, period), max(most_spread, spread)
    out += map(as_compiled, range(done, len(ops)))
    return WholeModel(out, steady, most_spread)


def _stated_layer(module: HloModule, op: TimedOp) -> tuple[int, int] | None:
    """Return the tick and the layer of an op, the tick 0 without a pipeline; None if its names state none."""
    instruction = module.instruction(op.instruction)
    name = instruction.op_name if instruction else None
    layer, tick = stage_layer_and_tick(name)
    if layer is None:
        layer, _ = layer_and_part(name)
    return None if layer is None else (tick or 0, layer)


def _computes(module: HloModule, op: TimedOp) -> bool:
    """Return whether an op is work of the core: a transfer may begin layers before the one that needs it."""
    instruction = module.instruction(op.instruction)
    is_transfer = instruction is not None and async_role(instruction) is not None
    return op.queue == "core" and op.basis != "wait" and not is_transfer


def _starts(computed: Sequence[tuple[int, int] | None]) -> dict[int, list[int]]:
    """Return for each tick the places where its layers start, in order, given tick and layer of what the core does."""
    first: dict[tuple[int, int], int] = {}
    for place, own in enumerate(computed):
        if own is not None:
            first.setdefault(own, place)
    out: dict[int, list[int]] = {}
    for tick, layer in sorted(first):
        places = out.setdefault(tick, [])
        if layer != len(places) or (places and first[tick, layer] <= places[-1]):
            raise UnsteadyLayersError(f"the layers do not run one after the other (layer {layer})")
        places.append(first[tick, layer])
    return out


def _steady_layer(program: str, starts: Sequence[int], dense: int) -> tuple[int, float]:
    """Return the number of the steady layer, and how much longer the longest one is than the shortest."""
    times = [after - start for start, after in pairwise(starts)]
    middle = range(max(_UNSTEADY, dense + 1), len(times) - 1)
    if not middle:
        raise UnsteadyLayersError(
            f"{program}: {len(starts)} layers are too few to tell the steady one; compile {STEADY_LAYERS + dense}"
        )
    steady = [times[layer] for layer in middle]
    spread = max(steady) / min(steady) - 1
    if spread > MOST_SPREAD:
        raise UnsteadyLayersError(
            f"{program}: the longest layer in the middle takes {spread:.0%} more than the shortest, so none stands for "
            "the layers that were not compiled; compile the whole model (--whole)"
        )
    return next(layer for layer in middle if times[layer] == median_low(steady)), spread
