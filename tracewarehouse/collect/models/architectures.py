"""Describes tiny models to record: small configurations of real architectures, with random weights from a seed.

Published models, with their published weights, are in tracewarehouse.collect.models.pretrained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tracewarehouse.collect.models.pretrained import ModelFields, PretrainedModel, known_models, pretrained_model
from tracewarehouse.ingest.capture.manifest import ModelFacts

VOCAB_SIZE = 512


@dataclass(frozen=True)
class Architecture(ModelFields):
    """A model architecture of transformers, and the fields of one configuration: the tiny one, or a published one."""

    config_class: str
    model_class: str
    family: str
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def is_moe(self) -> bool:
        """Whether some layers hold routed experts."""
        return self.num_experts is not None

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return int(self.config["num_attention_heads"])

    @property
    def num_kv_heads(self) -> int:
        """Heads of the key-value cache that tensor parallelism can split; MLA caches one latent for all heads."""
        return int(self.config["num_key_value_heads"])

    @property
    def head_dim(self) -> int:
        """Width of a head's keys and values; latent attention has a width for each."""
        return int(self.config.get("head_dim") or self.config["hidden_size"] // self.num_heads)


_COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_MLA = {
    "num_key_value_heads": 8,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
_DEEPSEEK_MOE = {
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        "LlamaConfig", "LlamaForCausalLM", "llama", {**_COMMON, "num_key_value_heads": 8, "head_dim": 16}
    ),
    "qwen2": Architecture(
        "Qwen2Config", "Qwen2ForCausalLM", "qwen2", {**_COMMON, "num_key_value_heads": 4, "head_dim": 16}
    ),
    "qwen3": Architecture(
        "Qwen3Config", "Qwen3ForCausalLM", "qwen3", {**_COMMON, "num_key_value_heads": 4, "head_dim": 16}
    ),
    "qwen3_moe": Architecture(
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        "qwen3",
        {
            **_COMMON,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "decoder_sparse_step": 1,
        },
    ),
    "deepseek_v2": Architecture(
        "DeepseekV2Config",
        "DeepseekV2ForCausalLM",
        "deepseek",
        {**_COMMON, **_MLA, **_DEEPSEEK_MOE, "n_group": 1, "topk_group": 1, "topk_method": "greedy"},
    ),
    "deepseek_v3": Architecture(
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        "deepseek",
        {**_COMMON, **_MLA, **_DEEPSEEK_MOE, "n_group": 2, "topk_group": 1},
    ),
}


def model_architecture(model: str) -> Architecture:
    """Return the architecture of a tiny model by its name, or of a published one by its id or folder."""
    if model in ARCHITECTURES:
        return ARCHITECTURES[model]
    published = pretrained_model(model)
    return replace(ARCHITECTURES[published.architecture], config=published.config)


def tiny_model(name: str, layers: int) -> PretrainedModel:
    """Return the numbers of a tiny model with this many layers."""
    config = {**ARCHITECTURES[name].config, "num_hidden_layers": layers}
    return PretrainedModel(architecture=name, config=config, source=f"the collector's tiny {name}")


def model_facts(name: str, model: PretrainedModel, layers: int) -> ModelFacts:
    """Return the numbers of the first layers of a model, and count its parameters.

    The active parameters of a mixture of experts are all parameters outside the routed experts, and the share of the
    routed experts that one token uses.
    """
    config, weights = model.config, {n: math.prod(shape) for n, shape in model.weights(layers).items()}
    total = sum(weights.values())
    routed = sum(count for weight, count in weights.items() if ".mlp.experts." in weight)
    experts = model.num_experts
    active = total if experts is None else total - routed + routed * config["num_experts_per_tok"] // experts
    return ModelFacts(
        name=f"{name}-tiny" if name in ARCHITECTURES else Path(name).name,
        family=ARCHITECTURES[model.architecture].family,
        hf_url=f"https://huggingface.co/{name}" if name in known_models() else None,
        num_layers=layers,
        hidden_size=config["hidden_size"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=model.query_head_dim,
        vocab_size=config["vocab_size"],
        num_experts=experts,
        num_params=total,
        num_params_active=active,
        num_params_embedding=weights["model.embed_tokens.weight"],
        tie_word_embeddings=bool(config["tie_word_embeddings"]),
    )
