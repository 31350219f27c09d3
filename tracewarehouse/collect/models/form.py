"""Gives what the steps of a model need besides its weights: widths, constants, routing, and angles of the positions.

Fields have the names of the modules of transformers, so that formulas can be compared with theirs. A field that a kind
of layer lacks, such as the norm of its queries, is absent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracewarehouse.collect.errors import ExperimentError
from tracewarehouse.collect.models.pretrained import PretrainedModel

_DEFAULTS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"norm_topk_prob": False},
    "deepseek_v2": {"n_group": None, "topk_group": None, "topk_method": "greedy", "routed_scaling_factor": 1.0},
    "deepseek_v3": {
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "rope_interleave": True,
    },
}
"""Values of fields that a config.json may leave out, as transformers fills them in."""
_LATENT_EPSILON = 1e-6
"""Epsilon of the norms of DeepSeek's latents, whatever the configuration says."""
_THETA = 10000.0


@dataclass(frozen=True)
class Norm:
    """A root mean square norm."""

    variance_epsilon: float


@dataclass(frozen=True)
class HeadAttention:
    """Attention with keys and values per head."""

    head_dim: int
    scaling: float
    """Factor of the scores."""


@dataclass(frozen=True)
class NormedAttention(HeadAttention):
    """The same with norms of queries and keys (Qwen3)."""

    q_norm: Norm
    k_norm: Norm


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""

    config: Config
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    scaling: float
    q_a_layernorm: Norm = Norm(_LATENT_EPSILON)
    kv_a_layernorm: Norm = Norm(_LATENT_EPSILON)

    @property
    def qk_head_dim(self) -> int:
        """Width of a query head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


@dataclass(frozen=True)
class SoftmaxRouter:
    """The router of Qwen3: the largest of a softmax."""

    top_k: int
    norm_topk_prob: bool


@dataclass(frozen=True)
class GroupRouter:
    """The router of DeepSeek-V2: greedy, or the best groups of experts first (`topk_method`)."""

    top_k: int
    routed_scaling_factor: float
    topk_method: str
    num_group: int | None
    topk_group: int | None


@dataclass(frozen=True)
class CorrectedRouter:
    """The router of DeepSeek-V3, whose choice a bias corrects."""

    top_k: int
    routed_scaling_factor: float
    num_group: int
    topk_group: int
    norm_topk_prob: bool


@dataclass(frozen=True)
class DenseMlp:
    """A gated MLP."""


@dataclass(frozen=True)
class RoutedMlp:
    """A mixture of experts."""

    experts: int
    gate: SoftmaxRouter | GroupRouter | CorrectedRouter


@dataclass(frozen=True)
class SharedMlp(RoutedMlp):
    """The same, with experts that every token visits."""

    shared_experts: int


@dataclass(frozen=True)
class Layer:
    """A decoder layer."""

    self_attn: HeadAttention | LatentAttention
    mlp: DenseMlp | RoutedMlp
    input_layernorm: Norm
    post_attention_layernorm: Norm


@dataclass(frozen=True)
class Rotary:
    """The angles by which positions turn queries and keys (RoPE, Su et al. 2021)."""

    inv_freq: Any
    """Angle of each pair per position, [pairs] of float32."""
    attention_scaling: float
    """Factor of cosines and sines."""


@dataclass(frozen=True)
class Config:
    """The facts about a model as a whole."""

    model_type: str
    num_heads: int
    kv_heads: int
    """Heads of the cache; 1 for latents, which all heads share."""
    cache_widths: tuple[int, int]
    """Widths of a position's keys and values in the cache; of the latent and the rotated key, if it has latents."""
    rope_interleave: bool
    """Whether rotation takes neighbouring elements for pairs (DeepSeek-V3)."""


@dataclass(frozen=True)
class ModelForm:
    """What the steps of a model need besides its weights."""

    config: Config
    layers: tuple[Layer, ...]
    norm: Norm
    rotary: Rotary


def complete_config(model: PretrainedModel) -> dict[str, Any]:
    """Return the fields of a model's config.json, with what it leaves out."""
    given = {field: value for field, value in model.config.items() if value is not None}
    rope = {**(given.get("rope_scaling") or {}), **(given.get("rope_parameters") or {})}
    rope = {**rope, "rope_type": rope.get("rope_type", rope.get("type", "default"))}
    rope.setdefault("rope_theta", given.get("rope_theta", _THETA))
    filled = {"rms_norm_eps": 1e-6, **_DEFAULTS.get(model.architecture, {})}
    filled |= {**model.config, **given, "rope_parameters": rope}
    return {field: value for field, value in filled.items() if field not in ("rope_scaling", "rope_theta")}


def model_form(model: PretrainedModel, layers: int) -> ModelForm:
    """Return what the steps of the first layers of a model need."""
    fields = complete_config(model)
    rope, norm = fields["rope_parameters"], Norm(fields["rms_norm_eps"])
    is_latent = model.has_latent_cache
    heads = fields["num_attention_heads"]
    width = fields["qk_rope_head_dim"] if is_latent else fields.get("head_dim") or fields["hidden_size"] // heads
    widths = (fields["kv_lora_rank"], width) if is_latent else (width, width)
    config = Config(
        model.architecture,
        heads,
        1 if is_latent else fields["num_key_value_heads"],
        widths,
        bool(fields.get("rope_interleave")),
    )
    attention = _latent(config, fields, rope) if is_latent else _by_head(model.architecture, width, norm)
    experts = _experts(model, fields)
    mlps = [DenseMlp() if experts is None or n < model.first_dense_layers else experts for n in range(layers)]
    return ModelForm(
        config, tuple(Layer(attention, mlp, norm, norm) for mlp in mlps), norm, _rotary(rope, width, model.source)
    )


def _by_head(architecture: str, width: int, norm: Norm) -> HeadAttention:
    is_normed = architecture.startswith("qwen3")
    return NormedAttention(width, width**-0.5, norm, norm) if is_normed else HeadAttention(width, width**-0.5)


def _latent(config: Config, fields: dict[str, Any], rope: dict[str, Any]) -> LatentAttention:
    widths = {name: fields[name] for name in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")}
    scaling = (fields["qk_rope_head_dim"] + fields["qk_nope_head_dim"]) ** -0.5
    if rope["rope_type"] != "default" and rope.get("mscale_all_dim"):
        scaling *= _mscale(rope["factor"], rope["mscale_all_dim"]) ** 2
    return LatentAttention(
        config, q_lora_rank=fields["q_lora_rank"], kv_lora_rank=fields["kv_lora_rank"], scaling=scaling, **widths
    )


def _experts(model: PretrainedModel, fields: dict[str, Any]) -> RoutedMlp | None:
    if (count := model.num_experts) is None:
        return None
    chosen = fields["num_experts_per_tok"]
    if model.architecture == "qwen3_moe":
        return RoutedMlp(count, SoftmaxRouter(chosen, fields["norm_topk_prob"]))
    factor, groups, kept = (fields[name] for name in ("routed_scaling_factor", "n_group", "topk_group"))
    router: GroupRouter | CorrectedRouter
    if model.architecture == "deepseek_v2":
        router = GroupRouter(chosen, factor, fields["topk_method"], groups, kept)
    else:
        router = CorrectedRouter(chosen, factor, groups, kept, fields["norm_topk_prob"])
    shared = fields.get("n_shared_experts")
    return SharedMlp(count, router, shared) if shared else RoutedMlp(count, router)


def _rotary(rope: dict[str, Any], width: int, source: str) -> Rotary:
    """Return the angles of a model.

    `linear` divides positions, `llama3` only slow pairs (Llama 3.1), `yarn` all by a ramp (Peng et al. 2023,
    arXiv 2309.00071, section 3.2), and it scales cosines and sines (3.4).
    """
    known = {"default": _unchanged, "linear": _linear, "llama3": _llama3, "yarn": _yarn}
    if rope["rope_type"] not in known or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ExperimentError(
            f"{source}: its angles are of type {rope['rope_type']!r}, and the collector computes "
            f"{', '.join(known)}, over the whole width of a head; choose another model"
        )
    places = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    plain = np.float32(1) / np.float32(rope["rope_theta"]) ** places
    angles, scaling = known[rope["rope_type"]](plain, rope, width)
    return Rotary(angles.astype(np.float32), scaling)


def _unchanged(plain: Any, rope: dict[str, Any], width: int) -> tuple[Any, float]:
    return plain, 1.0


def _linear(plain: Any, rope: dict[str, Any], width: int) -> tuple[Any, float]:
    return plain / rope["factor"], 1.0


def _llama3(plain: Any, rope: dict[str, Any], width: int) -> tuple[Any, float]:
    """Keep pairs of short wavelength, divide those of long ones, and mix in between."""
    turns = rope["original_max_position_embeddings"] * plain / (2 * math.pi)  # within the first training's context
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    share = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - share) * plain / rope["factor"] + share * plain, 1.0


def _yarn(plain: Any, rope: dict[str, Any], width: int) -> tuple[Any, float]:
    factor, context, theta = rope["factor"], rope["original_max_position_embeddings"], rope["rope_theta"]

    def place(turns: float) -> float:
        """Return the pair that turns so often within the first training's context."""
        return width * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = place(rope.get("beta_fast") or 32), place(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    ramp = np.clip((np.arange(width // 2) - first) / (last - first or 0.001), 0, 1)
    scaling = rope.get("attention_factor")
    if scaling is None:
        by_mscale = rope.get("mscale") and rope.get("mscale_all_dim")
        scaling = _mscale(factor, rope["mscale"]) / _mscale(factor, rope["mscale_all_dim"]) if by_mscale else None
    return plain / factor * ramp + plain * (1 - ramp), float(_mscale(factor) if scaling is None else scaling)


def _mscale(factor: float, mscale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
