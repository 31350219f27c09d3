"""Published models by Hugging Face id: the numbers of their configurations and the memory that they need per chip.

Nothing here allocates anything or imports torch. Weights follow the partition rules of `collect.sharding`, which are
those that the run uses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from collect.errors import CollectError, ExperimentError
from collect.sharding import Partition, weight_partition

if TYPE_CHECKING:
    from collect.experiment import RunSpec

TABLE = Path(__file__).parent / "models.yaml"
BYTES = {"float32": 4, "bfloat16": 2}
USABLE = 0.95
"""Share of the memory of a chip that a run may fill; the rest is left to compiled programs and fragmentation."""

_ATTENTION = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
_NEEDED = {
    "llama": (*_ATTENTION, "head_dim"),
    "qwen2": _ATTENTION,
    "qwen3": (*_ATTENTION, "head_dim"),
    "qwen3_moe": (*_ATTENTION, "head_dim", "moe_intermediate_size", "num_experts", "num_experts_per_tok"),
}
_LATENT = (
    *_ATTENTION,
    *("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "moe_intermediate_size"),
    *("n_routed_experts", "num_experts_per_tok", "n_shared_experts", "first_k_dense_replace"),
)
_NEEDED |= {"deepseek_v2": _LATENT, "deepseek_v3": _LATENT}


class PretrainedModel(BaseModel):
    """A published model: its architecture and the fields of its config.json."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    architecture: str = Field(description="model_type of transformers, such as llama")
    config: dict[str, Any] = Field(description="fields of config.json, under their own names")
    source: str = Field(description="where the numbers are published")
    parameters: int | None = Field(default=None, description="as published")

    @model_validator(mode="after")
    def _check(self) -> PretrainedModel:
        if self.architecture not in _NEEDED:
            raise ValueError(f"architecture: {self.architecture!r} is not known; known are {', '.join(_NEEDED)}")
        needed = (*_NEEDED[self.architecture], "vocab_size", "tie_word_embeddings")
        if missing := [field for field in needed if field not in self.config]:
            raise ValueError(f"config: {', '.join(missing)} is missing; copy it from the model's config.json")
        return self

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return int(self.config["num_hidden_layers"])

    @property
    def num_experts(self) -> int | None:
        """Routed experts of a layer; None for a dense model."""
        experts: int | None = self.config.get("num_experts", self.config.get("n_routed_experts"))
        return experts

    @property
    def has_latent_cache(self) -> bool:
        """Whether the cache holds the latents of multi-head latent attention."""
        return "kv_lora_rank" in self.config

    @property
    def first_dense_layers(self) -> int:
        """Layers before the first one with experts."""
        return int(self.config.get("first_k_dense_replace", 0))

    def layer_weights(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Name (as in the model of the collector, experts stacked) and shape of every weight of a layer."""
        c = self.config
        hidden = c["hidden_size"]
        weights: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        }
        weights |= {f"self_attn.{name}": shape for name, shape in self._attention().items()}
        if self.num_experts is None or layer < self.first_dense_layers:
            weights |= _feed_forward("mlp", hidden, c["intermediate_size"])
        else:
            width = c["moe_intermediate_size"]
            weights["mlp.gate.weight"] = (self.num_experts, hidden)
            weights["mlp.experts.gate_proj"] = (self.num_experts, width, hidden)
            weights["mlp.experts.up_proj"] = (self.num_experts, width, hidden)
            weights["mlp.experts.down_proj"] = (self.num_experts, hidden, width)
            if shared := c.get("n_shared_experts"):
                weights |= _feed_forward("mlp.shared_experts", hidden, width * shared)
        return {f"model.layers.{layer}.{name}": shape for name, shape in weights.items()}

    def other_weights(self) -> dict[str, tuple[int, ...]]:
        """The weights outside the layers."""
        hidden, vocabulary = self.config["hidden_size"], self.config["vocab_size"]
        weights = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
        return weights if self.config["tie_word_embeddings"] else weights | {"lm_head.weight": (vocabulary, hidden)}

    def count_parameters(self) -> int:
        """Parameters that follow from the configuration, those of multi-token prediction left out."""
        shapes = list(self.other_weights().values())
        for layer in range(self.num_layers):
            shapes += self.layer_weights(layer).values()
        return sum(math.prod(shape) for shape in shapes)

    def _attention(self) -> dict[str, tuple[int, ...]]:
        c = self.config
        hidden, heads = c["hidden_size"], c["num_attention_heads"]
        if self.has_latent_cache:
            latent, rope, nope, value = (
                c[k] for k in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
            )
            query = heads * (nope + rope)
            rank = c["q_lora_rank"]
            queries: dict[str, tuple[int, ...]] = {"q_proj.weight": (query, hidden)}
            if rank is not None:
                queries = {
                    "q_a_proj.weight": (rank, hidden),
                    "q_a_layernorm.weight": (rank,),
                    "q_b_proj.weight": (query, rank),
                }
            return queries | {
                "kv_a_proj_with_mqa.weight": (latent + rope, hidden),
                "kv_a_layernorm.weight": (latent,),
                "kv_b_proj.weight": (heads * (nope + value), latent),
                "o_proj.weight": (hidden, heads * value),
            }
        width = self._head_dim()
        query, key = heads * width, c["num_key_value_heads"] * width
        weights: dict[str, tuple[int, ...]] = {
            "q_proj.weight": (query, hidden),
            "k_proj.weight": (key, hidden),
            "v_proj.weight": (key, hidden),
            "o_proj.weight": (hidden, query),
        }
        if self.architecture == "qwen2":
            weights |= {"q_proj.bias": (query,), "k_proj.bias": (key,), "v_proj.bias": (key,)}
        if self.architecture.startswith("qwen3"):
            weights |= {"q_norm.weight": (width,), "k_norm.weight": (width,)}
        return weights

    def _head_dim(self) -> int:
        return int(self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"])

    def cache_bytes_per_token(self, tp: int, element: int) -> int:
        """Bytes of the key-value cache of one layer for one token of one sequence on one chip."""
        if self.has_latent_cache:
            # One latent serves all heads, so every chip of a tp group holds all of it.
            return int(self.config["kv_lora_rank"] + self.config["qk_rope_head_dim"]) * element
        return 2 * int(self.config["num_key_value_heads"]) // tp * self._head_dim() * element


def _feed_forward(block: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{block}.gate_proj.weight": (width, hidden),
        f"{block}.up_proj.weight": (width, hidden),
        f"{block}.down_proj.weight": (hidden, width),
    }


def known_models(table: Path = TABLE) -> dict[str, PretrainedModel]:
    """The table of published models: Hugging Face id to numbers.

    Raises:
        CollectError: the table cannot be read, or an entry is wrong; the message names it.
    """
    return _known_models(table)


@cache
def _known_models(table: Path) -> dict[str, PretrainedModel]:
    try:
        entries = yaml.safe_load(table.read_text(encoding="utf-8"))["models"]
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError) as error:
        raise CollectError(f"{table}: cannot be read as a table of models: {error}") from None
    models = {}
    for name, entry in entries.items():
        try:
            models[name] = PretrainedModel.model_validate(entry)
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, f['loc']))} {f['msg']}".strip() for f in error.errors())
            raise CollectError(f"{table}: {name}: {faults}") from None
    return models


def pretrained_model(name: str, table: Path = TABLE) -> PretrainedModel:
    """The numbers of a published model.

    Raises:
        ExperimentError: the id is not in the table; the message lists what is, and how to add one.
    """
    known = known_models(table)
    if name not in known:
        raise ExperimentError(unknown_model(name, table))
    return known[name]


def unknown_model(name: str, table: Path = TABLE) -> str:
    """What to say about a model that is neither tiny nor in the table."""
    from collect.models import ARCHITECTURES

    return (
        f"{name!r} is not known; known are {', '.join(ARCHITECTURES)} (tiny), and by Hugging Face id "
        f"{', '.join(known_models(table))}. To add one, add an entry to {table}: its id with architecture "
        f"({', '.join(_NEEDED)}), source, and config, the fields of its config.json"
    )


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that one chip must hold."""

    weights: int
    cache: int
    temporaries: int

    @property
    def total(self) -> int:
        """All of it, at the same time."""
        return self.weights + self.cache + self.temporaries

    def __str__(self) -> str:
        parts = (("weights", self.weights), ("cache", self.cache), ("temporaries", self.temporaries))
        return f"{self.total / 1e9:.2f} GB (" + ", ".join(f"{name} {n / 1e9:.2f}" for name, n in parts) + ")"


def memory_need(model: PretrainedModel, spec: RunSpec) -> MemoryNeed:
    """Memory of the fullest chip of a run.

    Weights are split as `collect.sharding` says, copied over dp, and the layers over pp; the cache is split over the
    batch axes dp and ep and, but for latent attention, over tp. Temporaries are an estimate: the largest of the float32
    attention scores, the logits of prefill, and the dispatch of the experts (collect.experts), each live at its time.
    """
    sizes = {axis: spec.axis(axis) for axis in ("pp", "dp", "ep", "tp")}
    element = BYTES[spec.dtype]
    layers = min(spec.layers, model.num_layers)
    per_layer = [_chip_elements(model.layer_weights(layer), sizes) for layer in range(layers)]
    stage = layers // sizes["pp"]
    fullest = max(sum(per_layer[first : first + stage]) for first in range(0, layers, stage))
    weights = (_chip_elements(model.other_weights(), sizes) + fullest) * element
    batch = -(-spec.batch // (sizes["dp"] * sizes["ep"]))
    length = spec.input_length + spec.output_length
    cache_bytes = stage * batch * length * model.cache_bytes_per_token(sizes["tp"], element)
    microbatch = -(-batch // spec.microbatch_count)
    return MemoryNeed(weights, cache_bytes, _temporaries(model, spec, sizes, microbatch, element))


def _temporaries(model: PretrainedModel, spec: RunSpec, sizes: dict[str, int], batch: int, element: int) -> int:
    tp = sizes["tp"]
    c: dict[str, int] = {k: v for k, v in model.config.items() if isinstance(v, int)}
    tokens = batch * spec.input_length
    length = spec.input_length + spec.output_length
    scores = batch * c["num_attention_heads"] // tp * spec.input_length * length * 4
    logits = tokens * -(-c["vocab_size"] // tp) * 4
    dispatch = 0
    if model.num_experts is not None:
        places = model.num_experts * tokens
        # The one-hot dispatch and combine masks, what is sent before and after the exchange, and the experts' widths.
        dispatch = (2 * tokens + 2 * c["hidden_size"] + 2 * -(-c["moe_intermediate_size"] // tp)) * places * element
    return max(scores, logits, dispatch) + 4 * tokens * c["hidden_size"] * element


def _chip_elements(weights: dict[str, tuple[int, ...]], sizes: dict[str, int]) -> int:
    return sum(_chip_share(shape, weight_partition(name, len(shape)), sizes) for name, shape in weights.items())


def _chip_share(shape: tuple[int, ...], partition: Partition, sizes: dict[str, int]) -> int:
    elements = 1
    for length, axes in zip(shape, partition, strict=True):
        parts: int = math.prod(sizes[axis] for axis in ((axes,) if isinstance(axes, str) else axes or ()))
        elements *= math.ceil(length / parts)
    return elements


def chip_memory(kind: str) -> int:
    """Memory of a chip in bytes, from the table of hardware.

    Args:
        kind: As in the table, such as `TPU v5e`.

    Raises:
        CollectError: the table does not say.
    """
    from importlib.resources import files

    entries = yaml.safe_load(files("ingest").joinpath("hardware.yaml").read_text(encoding="utf-8"))["devices"]
    for entry in entries:
        if entry["kind"] == kind and "hbm_gb" in entry:
            return int(entry["hbm_gb"] * 1e9)
    raise CollectError(f"the memory of {kind!r} is not known; known are {', '.join(e['kind'] for e in entries)}")


def require_memory(spec: RunSpec, kind: str, table: Path = TABLE) -> MemoryNeed:
    """Refuse a run that does not fit into its chips, before anything is allocated.

    Raises:
        ExperimentError: it does not fit, with the numbers; or the model is not known.
    """
    need = memory_need(pretrained_model(spec.model, table), spec)
    capacity = chip_memory(kind)
    if need.total > USABLE * capacity:
        raise ExperimentError(
            f"{spec.name}: needs {need} per chip, and a {kind} chip has {capacity / 1e9:.0f} GB, of which "
            f"{USABLE * capacity / 1e9:.1f} can be used; spread it over more chips (tp, ep, pp), use fewer layers, a "
            "smaller batch or shorter lengths"
        )
    return need
