"""Gives the configurations of published models, by Hugging Face id from a table or from a local folder.

Nothing here reads a weight.
"""

from __future__ import annotations

import json
import math
import os
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tracewarehouse.collect.errors import CollectError, ExperimentError
from tracewarehouse.ingest.errors import shown

TABLE = Path(__file__).parent / "published.yaml"
CONFIG = "config.json"
CORRECTION = "e_score_correction_bias"
"""End of the name of the biases by which DeepSeek-V3 balances its experts (arXiv 2412.19437, section 2.1.2)."""
MORE_MODELS = "TRACEWAREHOUSE_MODELS"
"""Environment variable that names a table of further models, in the form of published.yaml."""

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
"""Architectures that the collector builds, tiny or published, with the fields from which their numbers follow."""
_ALWAYS = ("vocab_size", "tie_word_embeddings")
_FURTHER = (
    *("head_dim", "rms_norm_eps", "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters"),
    *("n_group", "topk_group", "topk_method", "routed_scaling_factor", "norm_topk_prob", "rope_interleave"),
)
"""Fields that change what a step computes, and not its shapes; `tracewarehouse.collect.models.form` has defaults."""
_ONE_FORM: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_layer_freq": 1,
    "use_sliding_window": False,
}
"""Fields that may change the weights or the steps of an architecture, with the one value that the collector builds."""

Shape = tuple[int, ...]


class ModelFields:
    """Facts about a model from the fields of its config.json, under the names of all architectures."""

    config: dict[str, Any]

    @property
    def num_experts(self) -> int | None:
        """Routed experts of a layer; None for a dense model."""
        experts: int | None = self.config.get("num_experts", self.config.get("n_routed_experts"))
        return experts

    @property
    def has_latent_cache(self) -> bool:
        """Whether the cache holds the latents of multi-head latent attention (DeepSeek) instead of keys and values."""
        return "kv_lora_rank" in self.config

    @property
    def first_dense_layers(self) -> int:
        """Layers before the first one with experts; 0 when all layers are alike."""
        return int(self.config.get("first_k_dense_replace", 0))


class PretrainedModel(ModelFields, BaseModel):
    """A published model: its architecture and the fields of its config.json."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    architecture: str = Field(description="model_type of transformers, such as llama")
    config: dict[str, Any] = Field(description="fields of config.json, under their own names")
    source: str = Field(description="where the numbers are published")
    checked: str | None = Field(default=None, description="another source with which the numbers were compared")
    parameters: int | None = Field(default=None, description="number of parameters, as published")

    @model_validator(mode="after")
    def _check(self) -> PretrainedModel:
        if self.architecture not in _NEEDED:
            raise ValueError(f"architecture: {self.architecture!r} is not known; known are {', '.join(_NEEDED)}")
        needed = (*_NEEDED[self.architecture], *_ALWAYS)
        if missing := [field for field in needed if field not in self.config]:
            raise ValueError(f"config: {', '.join(missing)} is missing; copy it from the model's config.json")
        return self

    @classmethod
    def from_folder(cls, folder: Path) -> PretrainedModel:
        """Return the model whose config.json is in a folder."""
        file = folder / CONFIG
        try:
            fields = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ExperimentError(f"{file}: cannot be read as JSON: {error}") from None
        architecture = fields.get("model_type") if isinstance(fields, dict) else None
        if not isinstance(architecture, str):
            raise ExperimentError(f"{file}: is no configuration of a model: it has no model_type")
        if architecture not in _NEEDED:
            raise ExperimentError(f"{file}: model_type {architecture!r} is not known; known are {', '.join(_NEEDED)}")
        for field, usual in _ONE_FORM.items():
            if (value := fields.get(field)) not in (usual, None):
                raise ExperimentError(f"{file}: {field} is {value!r}; the collector builds only {usual!r}")
        heads = fields.get("num_attention_heads")
        if heads and "hidden_size" in fields:
            fields.setdefault("num_key_value_heads", heads)
            if "kv_lora_rank" not in fields and fields.get("head_dim") is None:
                fields["head_dim"] = fields["hidden_size"] // heads
        fields.setdefault("tie_word_embeddings", False)
        if "num_local_experts" in fields:  # as newer versions of transformers write it
            fields.setdefault("num_experts", fields["num_local_experts"])
        if architecture == "deepseek_v3":  # as transformers fills in what a folder leaves out
            fields = {"n_group": 8, "topk_group": 4} | fields
        needed = (*_NEEDED[architecture], *_ALWAYS)
        config = {field: fields[field] for field in (*needed, *_FURTHER) if field in fields}
        try:
            return cls(architecture=architecture, config=config, source=str(file))
        except ValidationError as error:
            raise ExperimentError(f"{file}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None

    def differences(self, other: PretrainedModel) -> list[str]:
        """Return the fields whose values differ from those of another description of the same model."""
        fields = [f for f in self.config if f in other.config and self.config[f] != other.config[f]]
        return [f"{f} is {other.config[f]!r}, not {self.config[f]!r}" for f in fields]

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return int(self.config["num_hidden_layers"])

    def layer_weights(self, layer: int) -> dict[str, Shape]:
        """Return the name (as in the collector's model, experts stacked) and shape of every weight of a layer."""
        c = self.config
        hidden = c["hidden_size"]
        weights: dict[str, Shape] = {
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

    def other_weights(self) -> dict[str, Shape]:
        """Return the name and shape of every weight outside the layers."""
        hidden, vocabulary = self.config["hidden_size"], self.config["vocab_size"]
        weights = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
        return weights if self.config["tie_word_embeddings"] else weights | {"lm_head.weight": (vocabulary, hidden)}

    def weights(self, layers: int) -> dict[str, Shape]:
        """Return the name and shape of every parameter of the first layers and outside of layers."""
        named = self.other_weights()
        for layer in range(layers):
            named |= self.layer_weights(layer)
        return named

    def stored_weights(self, layers: int) -> dict[str, Shape]:
        """Return the parameters, and what a checkpoint holds besides them: DeepSeek-V3's correction of its routers."""
        named = self.weights(layers)
        if self.architecture == "deepseek_v3" and self.num_experts is not None:
            routers = [name for name in named if name.endswith(".mlp.gate.weight")]
            named |= {name.removesuffix("weight") + CORRECTION: (self.num_experts,) for name in routers}
        return named

    def count_parameters(self, layers: int) -> int:
        """Return the number of parameters of the first layers and outside of layers, by the configuration."""
        return sum(math.prod(shape) for shape in self.weights(layers).values())

    def _attention(self) -> dict[str, Shape]:
        c = self.config
        hidden, heads = c["hidden_size"], c["num_attention_heads"]
        if self.has_latent_cache:
            latent, rope, nope, value = (
                c[k] for k in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
            )
            query = heads * (nope + rope)
            rank = c["q_lora_rank"]
            queries: dict[str, Shape] = {"q_proj.weight": (query, hidden)}
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
        weights: dict[str, Shape] = {
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

    @property
    def query_head_dim(self) -> int:
        """Width of a query head; with latent attention it has a part that positions turn, and one that they do not."""
        if self.has_latent_cache:
            return int(self.config["qk_nope_head_dim"] + self.config["qk_rope_head_dim"])
        return self._head_dim()

    def _head_dim(self) -> int:
        return int(self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"])

    def cache_bytes_per_token(self, tp: int, element: int) -> int:
        """Return the bytes of the key-value cache of one layer for one token of one sequence on one chip."""
        if self.has_latent_cache:
            # One latent serves all heads, so every chip of a tp group holds all of it.
            return int(self.config["kv_lora_rank"] + self.config["qk_rope_head_dim"]) * element
        heads = max(1, int(self.config["num_key_value_heads"]) // tp)  # a copy, where there are fewer heads than chips
        return 2 * heads * self._head_dim() * element


def _feed_forward(block: str, hidden: int, width: int) -> dict[str, Shape]:
    return {
        f"{block}.gate_proj.weight": (width, hidden),
        f"{block}.up_proj.weight": (width, hidden),
        f"{block}.down_proj.weight": (hidden, width),
    }


def known_models(table: Path | None = None) -> dict[str, PretrainedModel]:
    """Return the table of published models, Hugging Face id to numbers.

    By default it is the package's, with the entries of the file that `TRACEWAREHOUSE_MODELS` names.
    """
    if table is not None:
        return _known_models(table)
    more = os.environ.get(MORE_MODELS)
    return _known_models(TABLE) | (_known_models(Path(more)) if more else {})


@cache
def _known_models(table: Path) -> dict[str, PretrainedModel]:
    try:
        entries = yaml.safe_load(table.read_text(encoding="utf-8"))["models"].items()
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise CollectError(f"{table}: cannot be read as a table of models: {' '.join(str(error).split())}") from None
    models = {}
    for name, entry in entries:
        try:
            models[name] = PretrainedModel.model_validate(entry)
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, f['loc']))} {f['msg']}".strip() for f in error.errors())
            raise CollectError(f"{table}: {name}: {faults}") from None
    return models


def is_folder(name: str) -> bool:
    """Return whether the name of a model is a local folder with its config.json."""
    try:
        return (Path(name).expanduser() / CONFIG).is_file()
    except (OSError, RuntimeError):  # no name of a file, or ~ of nobody
        return False


def pretrained_model(name: str) -> PretrainedModel:
    """Return the numbers of a published model, by Hugging Face id or local folder."""
    if (published := known_models().get(name)) is not None:
        return published
    if is_folder(name):
        return PretrainedModel.from_folder(Path(name).expanduser())
    raise ExperimentError(unknown_model(name))


def unknown_model(name: str) -> str:
    """Return the error message about a model that is neither tiny, nor in the table, nor a folder."""
    return (
        f"{shown(name)!r} is not known; known are {', '.join(_NEEDED)} (tiny), by Hugging Face id "
        f"{', '.join(known_models())}, and any local folder with a config.json of these architectures. To add an id, "
        f"name in {MORE_MODELS} a YAML file like {TABLE}: models: {{id: {{architecture: one of {', '.join(_NEEDED)}, "
        "source: where the numbers are from, config: fields of its config.json}}"
    )
