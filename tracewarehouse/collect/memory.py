"""Computes the memory that a run of a published model needs on its chips, or on the host for virtual devices.

Nothing here allocates anything. Weights follow the partition rules of
`tracewarehouse.collect.parallel.partition`, which the run uses too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from tracewarehouse.collect.errors import CollectError, ExperimentError
from tracewarehouse.collect.models.architectures import model_architecture
from tracewarehouse.collect.models.pretrained import PretrainedModel, pretrained_model
from tracewarehouse.collect.parallel.attention_forms import cache_length
from tracewarehouse.collect.parallel.expert_places import Routing, places, served_rows
from tracewarehouse.collect.parallel.partition import BY_KV_HEAD, MODES, Partition, weight_partition
from tracewarehouse.collect.run_spec import MESH_AXES, RunSpec
from tracewarehouse.ingest.capture.hardware import chip_named, chips
from tracewarehouse.ingest.capture.manifest import Mesh

BYTES = {"float32": 4, "bfloat16": 2}
USABLE = 0.95
"""Share of a chip's memory that a run may fill; compiled programs and fragmentation need the rest."""

_SMALLER = "spread it over more chips (tp, ep, pp), use fewer layers, a smaller batch or shorter lengths"

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that one chip must hold."""

    weights: int
    cache: int
    temporaries: int

    @property
    def total(self) -> int:
        """Sum of all parts, which the chip holds at the same time."""
        return self.weights + self.cache + self.temporaries

    def __str__(self) -> str:
        parts = (("weights", self.weights), ("cache", self.cache), ("temporaries", self.temporaries))
        return f"{self.total / 1e9:.2f} GB (" + ", ".join(f"{name} {n / 1e9:.2f}" for name, n in parts) + ")"


def memory_need(model: PretrainedModel, spec: RunSpec) -> MemoryNeed:
    """Return the memory of the fullest chip of a run.

    Weights are split as `collect.parallel.partition` says and copied over dp; layers are split over pp. The cache is
    split over the batch axes dp and ep and, except for latent attention, over tp. Temporaries are an estimate: the
    largest of the float32 attention scores, the logits of prefill, and the dispatch of the experts
    (`places`, `served_rows`), which are live at different times.
    """
    sizes = _sizes(spec)
    element = BYTES[spec.dtype]
    # Every stage holds every slot of the pipeline's program, as zeros if it has no layer for it.
    slots = spec.stage_layout.layer_kinds()
    in_slots = sum(_chip_elements(model.layer_weights(layer), spec) for layer in slots)
    weights = (_chip_elements(model.other_weights(), spec) + in_slots) * element
    batch = -(-spec.batch // (sizes["dp"] * sizes["ep"]))
    length = cache_length(spec)
    cache_bytes = len(slots) * batch * length * model.cache_bytes_per_token(sizes["tp"], element)
    microbatch = -(-batch // spec.microbatch_count)
    return MemoryNeed(weights, cache_bytes, _temporaries(model, spec, sizes, microbatch, element))


def loading_bytes(model: PretrainedModel, spec: RunSpec) -> int:
    """Return the most bytes that the host holds while it loads, besides what is on the devices.

    Weights are read one after the other; while one is sent, torch_xla holds a copy of every device's part, even if
    devices hold the same part.
    """
    named = [model.other_weights(), *(model.layer_weights(layer) for layer in spec.stage_layout.layer_kinds())]
    largest = max(_chip_elements({name: shape}, spec) for weights in named for name, shape in weights.items())
    return largest * BYTES[spec.dtype] * spec.mesh.size


def _sizes(spec: RunSpec) -> dict[str, int]:
    return {axis: spec.axis(axis) for axis in MESH_AXES}


def _temporaries(model: PretrainedModel, spec: RunSpec, sizes: dict[str, int], batch: int, element: int) -> int:
    tp = sizes["tp"]
    c: dict[str, int] = {k: v for k, v in model.config.items() if isinstance(v, int)}
    tokens = batch * spec.input_length
    length = cache_length(spec)
    scores = batch * c["num_attention_heads"] // tp * spec.input_length * length * 4
    logits = tokens * -(-c["vocab_size"] // tp) * 4
    dispatch = 0
    if model.num_experts is not None:
        width = -(-c["moe_intermediate_size"] // tp)
        dispatch = _dispatch(model.num_experts, c, spec, sizes["ep"], tokens, width) * element
    return max(scores, logits, dispatch) + 4 * tokens * c["hidden_size"] * element


def _dispatch(experts: int, config: dict[str, int], spec: RunSpec, devices: int, tokens: int, width: int) -> int:
    """Return the elements that a layer of experts holds at once: sent and received, masks of places, and values.

    As served there are no masks, but rooms for whatever the routing gives.
    """
    chosen, hidden, here = config["num_experts_per_tok"], config["hidden_size"], experts // devices
    if spec.capacity_factor is None:
        rows = served_rows(tokens, Routing.of(model_architecture(spec.model).config, experts), devices)
        exchanged = (2 * rows.received + 2 * rows.sent) * hidden if devices > 1 else 0
        return exchanged + rows.computed * (2 * hidden + 2 * width)
    room = places(tokens, chosen, experts, devices, float(spec.capacity_factor))
    exchanged = 4 * (hidden + here) * room.received
    to_devices = tokens * room.received if room.per_device < tokens else 0
    if room.per_expert == room.received:
        return exchanged + to_devices + 2 * here * room.received * width
    return exchanged + to_devices + here * room.per_expert * (2 * room.received + 2 * hidden + 2 * width)


def _chip_elements(weights: dict[str, tuple[int, ...]], spec: RunSpec) -> int:
    sizes, is_whole = _sizes(spec), spec.sequence_parallelism in MODES
    total = 0
    for name, shape in weights.items():
        if is_whole and ".layers." in name:
            total += math.prod(shape)
        else:
            copies = spec.kv_copies if BY_KV_HEAD.search(name) and len(shape) == 2 else 1
            total += copies * _chip_share(shape, weight_partition(name, len(shape)), sizes)
    return total


def _chip_share(shape: tuple[int, ...], partition: Partition, sizes: dict[str, int]) -> int:
    elements = 1
    for length, axes in zip(shape, partition, strict=True):
        parts: int = math.prod(sizes[axis] for axis in ((axes,) if isinstance(axes, str) else axes or ()))
        elements *= math.ceil(length / parts)
    return elements


def require_memory(spec: RunSpec, kind: str) -> MemoryNeed:
    """Refuse a run that does not fit into its chips, before anything is allocated."""
    need = memory_need(pretrained_model(spec.model), spec)
    capacity = chip_memory(kind)
    if need.total > USABLE * capacity:
        raise ExperimentError(
            f"{spec.name}: needs {need} per chip, and a {kind} chip has {capacity / 1e9:.0f} GB, of which "
            f"{USABLE * capacity / 1e9:.1f} can be used; {_SMALLER}"
        )
    return need


def require_host_memory(spec: RunSpec, available: int | None = None) -> MemoryNeed:
    """Refuse a run on virtual devices that does not fit into this host, which holds the parts of all of them."""
    model = pretrained_model(spec.model)
    need, loading = memory_need(model, spec), loading_bytes(model, spec)
    available = available_memory() if available is None else available
    total = need.total * spec.mesh.size + loading
    if total > USABLE * available:
        raise ExperimentError(
            f"{spec.name}: needs {need} per device, {total / 1e9:.2f} GB for its {spec.mesh.size} virtual devices with "
            f"{loading / 1e9:.2f} GB to load them, and this host can give {available / 1e9:.2f} GB, of which "
            f"{USABLE * available / 1e9:.2f} can be used; "
            f"{_SMALLER}"
        )
    return need


def reference_bytes(model: PretrainedModel, spec: RunSpec, layers: int) -> int:
    """Return the bytes that the same generation of the unsplit model needs on the host, with only the first layers."""
    # The reference runs every sequence twice where tokens are routed: see `PlainModel.generate`.
    batch = spec.batch * (1 if model.num_experts is None else 2)
    one = {"mesh": Mesh(axes={"tp": 1}), "layers": layers, "microbatches": None, "batch": batch}
    whole = spec.model_copy(update=one)
    return memory_need(model, whole).total


def chip_memory(kind: str) -> int:
    """Return the memory in bytes of a chip of a kind in the table."""
    entry = chip_named(kind) or {}
    if "hbm_gb" not in entry:
        raise CollectError(f"the memory of {kind!r} is not known; known are {', '.join(c['kind'] for c in chips())}")
    return int(entry["hbm_gb"] * 1e9)


def available_memory() -> int:
    """Return the bytes that this host can still give processes, as Linux estimates, within a container's limit."""
    available = _memory_info("MemAvailable")
    try:
        limit, used = (int((CGROUP / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no such file; or `max`, which is no limit
        return available
    return min(available, limit - used)


def installed_memory() -> int:
    """Return this host's memory in bytes, which is the same on all hosts of a slice, whatever else runs there."""
    return _memory_info("MemTotal")


def _memory_info(field: str) -> int:
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    return int(facts[field].split()[0]) * 1024
