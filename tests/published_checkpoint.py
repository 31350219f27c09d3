"""Small checkpoints in the form of published ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tracewarehouse.collect.models.architectures import ARCHITECTURES

SHARDS = 3
BLOCK = 128


def write_checkpoint(
    folder: Path, architecture: str, dtype: str = "float32", is_eight_bit: bool = False, **numbers: Any
) -> None:
    """Config and weights of a tiny model; `numbers` replace those of its configuration."""
    import transformers

    folder.mkdir(parents=True)
    known = ARCHITECTURES[architecture]
    fields = {"num_hidden_layers": numbers.pop("layers", 2), "max_position_embeddings": 256, **numbers}
    torch.manual_seed(0)
    config = getattr(transformers, known.config_class)(**{**known.config, **fields})
    model = getattr(transformers, known.model_class)(config).to(getattr(torch, dtype))
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.copy_(torch.linspace(-0.2, 0.2, buffer.numel()))
    weights = published_form(model)
    fields = {**config.to_dict(), "torch_dtype": dtype}
    rope = fields.pop("rope_parameters")  # published configurations are older than this field
    fields |= {"rope_theta": rope["rope_theta"], "rope_scaling": numbers.get("rope_scaling")}
    if is_eight_bit:
        weights = eight_bit(weights)
        fields["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}
    (folder / "config.json").write_text(json.dumps(fields))
    write_shards(weights, folder)


def published_form(model: Any) -> dict[str, Any]:
    """Weights by the names of published checkpoints: every expert apart."""
    out = {}
    for name, weight in model.state_dict().items():
        if name.endswith(("gate_up_proj", "experts.down_proj")):
            prefix, _, kind = name.rpartition(".")
            for expert, values in enumerate(weight):
                halves = values.chunk(2, 0) if kind == "gate_up_proj" else [values]
                for part, half in zip(
                    ["gate_proj", "up_proj"] if len(halves) > 1 else ["down_proj"], halves, strict=True
                ):
                    out[f"{prefix}.{expert}.{part}.weight"] = half.contiguous().clone()
        else:
            out[name] = weight.contiguous().clone()
    return out


def eight_bit(weights: dict[str, Any]) -> dict[str, Any]:
    """Linear weights in 8 bits with a scale per block, as DeepSeek-V3 is published."""
    out = {}
    for name, weight in weights.items():
        if weight.dim() != 2 or not name.endswith("_proj.weight"):
            out[name] = weight
            continue
        rows, columns = (math.ceil(n / BLOCK) for n in weight.shape)
        scales = torch.empty(rows, columns)
        scaled = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
        for r in range(rows):
            for c in range(columns):
                block = (slice(r * BLOCK, (r + 1) * BLOCK), slice(c * BLOCK, (c + 1) * BLOCK))
                scales[r, c] = weight[block].float().abs().max() / 448
                scaled[block] = (weight[block].float() / scales[r, c]).to(torch.float8_e4m3fn)
        out[name], out[f"{name}_scale_inv"] = scaled, scales
    return out


def write_shards(weights: dict[str, Any], folder: Path) -> None:
    """Three files of about the same size, and their index."""
    total = sum(w.nbytes for w in weights.values())
    shards: list[dict[str, Any]] = [{} for _ in range(SHARDS)]
    done = 0
    for name, weight in weights.items():
        shards[min(SHARDS - 1, done * SHARDS // total)][name] = weight
        done += weight.nbytes
    index = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{SHARDS:05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    )
