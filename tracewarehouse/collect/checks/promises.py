"""Lists the collectives that a parallelism must cause, against which a capture is checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracewarehouse.collect.models.architectures import model_architecture
from tracewarehouse.collect.parallel.expert_places import (
    Places,
    Routing,
    Rows,
    expert_popularity,
    places,
    served_rows,
)
from tracewarehouse.collect.parallel.partition import MODES
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.ingest.capture.manifest import PromisedCollective


def promised_collectives(spec: RunSpec) -> list[PromisedCollective]:
    """Return the collectives that the mesh of a run promises; virtual devices add only the gathers of the argmax.

    tp: attention and the MLP or shared experts of a layer end in an all-reduce each, and so do the routed experts.
        With Megatron's sequence parallelism, every block of the prefill gathers first, and all but the routed experts
        end in a reduce-scatter. With Ulysses, query, key, value and output of a layer are exchanged by an all-to-all
        each. With ring, keys and values go to the next device tp - 1 times, and once into the cache, which is split by
        head, by an all-to-all each. Both gather a layer's attention in a decode step. After a split prefill, an
        all-reduce brings the last position to all devices.
    ep: a layer of experts has an all-to-all to the experts and one back, whatever the capacity factor. As served they
        are ragged all-to-alls, and one of integers comes first. Virtual devices have no ragged one, and take an
        all-to-all of as many rows as there can be.
    pp: the stages pass their hidden states on in every tick but the first, and an all-reduce brings the last stage's
        result to all. If stages differ, every device takes part in the layers of all, because they share one program.
        With one program per stage (hosts), each promises its own.
    dp: nothing.

    The two all-gathers over tp of an argmax over the split vocabulary, for the largest logit of each piece and its
    index, are not promised, because a compiler may join them.
    """
    layout = spec.stage_layout
    if not spec.has_programs_of_stages:
        return _program_promises(spec, layout.layer_kinds(), is_last=True)
    stages = [list(range(stage.first_layer, stage.last_layer + 1)) for stage in layout.stages]
    return [
        promise.model_copy(update={"stage": number})
        for number, layers in enumerate(stages)
        for promise in _program_promises(spec, layers, is_last=number == len(stages) - 1)
    ]


def _program_promises(spec: RunSpec, layers: Sequence[int], *, is_last: bool) -> list[PromisedCollective]:
    """Return the collectives that a program of these layers, in a pipeline once per tick, promises on each device."""
    # Over hosts the stages take turns and pass hidden states without a collective.
    ticks = 1 if spec.has_programs_of_stages else spec.microbatch_count + spec.axis("pp") - 1
    dense, sparse = (ticks * n for n in _dense_and_sparse(spec, layers))
    has_shared = "n_shared_experts" in model_architecture(spec.model).config
    mode = spec.sequence_parallelism
    out: list[PromisedCollective] = []

    def promise(phase: str, kind: str, axis: str, count: int) -> None:
        if count:
            out.append(PromisedCollective(phase=phase, kind=kind, axis=axis, count=count))

    for phase in ("prefill", "decode")[: spec.output_length]:
        is_split = mode is not None and phase == "prefill"
        last = spec.microbatch_count if is_split and is_last else 0
        if spec.axis("tp") > 1:
            blocks, routed = 2 * dense + sparse + (sparse if has_shared else 0), sparse
            if mode in MODES:
                _promise_context(spec, phase, dense, promise)
                promise(phase, "all-reduce", "tp", last)
            elif is_split:
                promise(phase, "all-gather", "tp", 2 * (dense + sparse))
                promise(phase, "reduce-scatter", "tp", blocks)
                promise(phase, "all-reduce", "tp", routed + last)
            else:
                promise(phase, "all-reduce", "tp", blocks + routed)
        if spec.axis("ep") > 1:
            if spec.capacity_factor is not None:
                promise(phase, "all-to-all", "ep", 2 * sparse)
            elif spec.device == "cpu":
                promise(phase, "all-to-all", "ep", 3 * sparse)
            else:
                promise(phase, "all-to-all", "ep", sparse)
                promise(phase, "ragged-all-to-all", "ep", 2 * sparse)
        if spec.axis("pp") > 1 and not spec.has_programs_of_stages:
            promise(phase, "collective-permute", "pp", ticks - 1)
            promise(phase, "all-reduce", "pp", 1)
    return out


def _promise_context(spec: RunSpec, phase: str, layers: int, promise: Callable[[str, str, str, int], None]) -> None:
    if phase == "decode":
        promise(phase, "all-gather", "tp", layers)
    elif spec.sequence_parallelism == "ulysses":
        promise(phase, "all-to-all", "tp", 4 * layers)
    else:
        promise(phase, "collective-permute", "tp", 2 * (spec.axis("tp") - 1) * layers)
        promise(phase, "all-to-all", "tp", 2 * layers)


def expert_places(spec: RunSpec) -> dict[str, Places] | dict[str, Rows]:
    """Return the places or rows of a layer of experts by phase; none for a model without experts."""
    architecture = model_architecture(spec.model)
    sequences = spec.batch // (spec.axis("dp") * spec.axis("ep") * spec.microbatch_count)
    if architecture.num_experts is None:
        return {}
    routing, devices = Routing.of(architecture.config, architecture.num_experts), spec.axis("ep")
    tokens = {phase: sequences * length for phase, length in spec.step_lengths}
    if spec.capacity_factor is None:
        return {phase: served_rows(count, routing, devices) for phase, count in tokens.items()}
    chosen, experts, factor = routing.chosen, routing.experts, float(spec.capacity_factor)
    return {phase: places(count, chosen, experts, devices, factor) for phase, count in tokens.items()}


def busiest_load(spec: RunSpec) -> float | None:
    """Return what the busiest device of ep computes as a multiple of the mean, expected of a run's routing skew.

    None without a skew, and where it is not known (`Routing.busiest_load`).
    """
    architecture = model_architecture(spec.model)
    if spec.routing_skew is None or architecture.num_experts is None:
        return None
    popularity = expert_popularity(architecture.num_experts, spec.routing_skew, spec.seed)
    return Routing.of(architecture.config, architecture.num_experts).busiest_load(popularity, spec.axis("ep"))


def routed_pairs(spec: RunSpec) -> int:
    """Return the pairs of token and expert in a whole generation, over all layers of a model with experts."""
    _, sparse = _dense_and_sparse(spec, range(spec.layers))
    tokens = spec.batch * (spec.input_length + spec.output_length - 1)
    return tokens * sparse * int(model_architecture(spec.model).config["num_experts_per_tok"])


def _dense_and_sparse(spec: RunSpec, layers: Sequence[int]) -> tuple[int, int]:
    """Return how many layers have a dense MLP, and how many have experts."""
    architecture = model_architecture(spec.model)
    sparse = sum(architecture.is_moe and layer >= architecture.first_dense_layers for layer in layers)
    return len(layers) - sparse, sparse
