"""Small checkpoints in the form of published ones, written with numpy alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tracewarehouse.collect.models.architectures import tiny_model
from tracewarehouse.collect.models.pretrained import PretrainedModel
from tracewarehouse.collect.parallel.weights import RandomWeights

SHARDS = 3
BLOCK = 128
TYPES = {"float32": "F32", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3"}


def write_checkpoint(
    folder: Path, architecture: str, dtype: str = "float32", is_eight_bit: bool = False, **numbers: Any
) -> None:
    """Config and weights of a tiny model; `numbers` replace those of its configuration."""
    folder.mkdir(parents=True)
    layers = numbers.pop("layers", 2)
    config = {**tiny_model(architecture, layers).config, "max_position_embeddings": 256, **numbers}
    model = PretrainedModel(architecture=architecture, config=config, source="test")
    random = RandomWeights(model, layers, 0)
    whole = {name: random.whole(name, dtype) for name in random.names()}
    for name, values in whole.items():
        if name.endswith("correction_bias"):
            values[:] = np.linspace(-0.2, 0.2, len(values))
    weights = published_form(dict(sorted(whole.items(), key=lambda item: item[0] == "lm_head.weight")))
    fields = {"model_type": architecture, "torch_dtype": dtype, "rope_theta": 10000.0, **config}
    if is_eight_bit:
        weights = eight_bit(weights)
        fields["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}
    (folder / "config.json").write_text(json.dumps(fields))
    write_shards(weights, folder)


def published_form(weights: dict[str, Any]) -> dict[str, Any]:
    """Weights by the names of published checkpoints: every expert apart."""
    out = {}
    for name, values in weights.items():
        prefix, _, part = name.rpartition(".")
        if prefix.endswith(".experts"):
            out |= {f"{prefix}.{expert}.{part}.weight": own for expert, own in enumerate(values)}
        else:
            out[name] = values
    return out


def eight_bit(weights: dict[str, Any]) -> dict[str, Any]:
    """Linear weights in 8 bits with a scale per block, as DeepSeek-V3 is published."""
    out = {}
    for name, weight in weights.items():
        if weight.ndim != 2 or not name.endswith("_proj.weight"):
            out[name] = weight
            continue
        rows, columns = (math.ceil(n / BLOCK) for n in weight.shape)
        scales = np.empty((rows, columns), np.float32)
        scaled = np.empty(weight.shape, ml_dtypes.float8_e4m3fn)
        for r in range(rows):
            for c in range(columns):
                block = (slice(r * BLOCK, (r + 1) * BLOCK), slice(c * BLOCK, (c + 1) * BLOCK))
                values = weight[block].astype(np.float32)
                scales[r, c] = np.abs(values).max() / 448
                scaled[block] = (values / scales[r, c]).astype(ml_dtypes.float8_e4m3fn)
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
        write_safetensors(shard, folder / file)
        index |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    )


def write_safetensors(tensors: dict[str, Any], file: Path) -> None:
    """A safetensors file: the length of the header, the header, the values."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, values in tensors.items():
        offsets = [place, place + values.nbytes]
        header[name] = {"dtype": TYPES[values.dtype.name], "shape": values.shape, "data_offsets": offsets}
        place += values.nbytes
    text = json.dumps(header).encode()
    values = b"".join(np.ascontiguousarray(v).tobytes() for v in tensors.values())
    file.write_bytes(len(text).to_bytes(8, "little") + text + values)
