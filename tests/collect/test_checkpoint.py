from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from collect.checkpoint import INDEX, Checkpoint, CheckpointError, device_slices, device_weights
from collect.experiment import run_spec
from collect.models import ARCHITECTURES, build_model, config_values
from collect.pretrained import PretrainedModel
from collect.sharding import weight_partition

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")


def tiny(name: str, folder: Path) -> tuple[PretrainedModel, dict[str, Any]]:
    """Save a tiny model in several files; its numbers and its whole weights as the collector names them."""
    from collect.experts import split_gate_and_up

    spec = run_spec(model=name, mesh="tp=1")
    model = build_model(spec)
    for index, (n, buffer) in enumerate(model.named_buffers()):
        if n.endswith("correction_bias"):
            buffer.copy_(torch.arange(8.0) + index)
    model.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    split_gate_and_up(model)
    weights = {n: p for n, p in model.state_dict().items() if not n.endswith("inv_freq")}
    return PretrainedModel(architecture=name, config=config_values(spec), source="random"), weights


MESHES: list[dict[str, int]] = [{}, {"tp": 4}, {"dp": 2, "tp": 2}, {"ep": 2, "tp": 2}]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_parts_of_all_devices_are_the_whole_model(name: str, tmp_path: Path) -> None:
    model, whole = tiny(name, tmp_path)
    checkpoint = Checkpoint(tmp_path)

    for sizes in MESHES:
        rebuilt = {n: torch.full_like(w, math.nan) for n, w in whole.items()}
        for place in itertools.product(*(range(n) for n in sizes.values())):
            coordinate = dict(zip(sizes, place, strict=True))
            for n, part in device_weights(checkpoint, model, sizes, coordinate, torch.float32):
                where = device_slices(whole[n].shape, weight_partition(n, whole[n].dim()), sizes, coordinate)
                assert part.shape == whole[n][where].shape
                rebuilt[n][where] = part
        assert all(torch.equal(rebuilt[n], w) for n, w in whole.items())


def test_a_stage_reads_only_its_layers(tmp_path: Path) -> None:
    model, whole = tiny("llama", tmp_path)
    index = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    first = {file for n, file in index.items() if ".layers.1." not in n}
    gone = set(index.values()) - first
    for file in gone:
        (tmp_path / file).unlink()

    read = dict(device_weights(Checkpoint(tmp_path), model, {"pp": 2}, {"pp": 0}, torch.float32))

    assert gone
    assert set(read) == {n for n in whole if ".layers.1." not in n}
    with pytest.raises(CheckpointError, match="cannot be read"):
        dict(device_weights(Checkpoint(tmp_path), model, {"pp": 2}, {"pp": 1}, torch.float32))


def test_a_single_file_and_another_dtype(tmp_path: Path) -> None:
    weight = torch.randn(8, 6)
    safetensors_torch.save_file({"a.weight": weight}, tmp_path / "model.safetensors")

    read = Checkpoint(tmp_path).read("a.weight", (8, 6), (slice(2, 4), slice(0, 3)), torch.bfloat16)

    assert torch.equal(read, weight[2:4, :3].to(torch.bfloat16))


def test_eight_bit_weights_are_scaled_block_by_block(tmp_path: Path) -> None:
    weight = torch.randn(300, 200).to(torch.float8_e4m3fn)
    scales = torch.rand(3, 2)
    safetensors_torch.save_file({"a.weight": weight, "a.weight_scale_inv": scales}, tmp_path / "model.safetensors")
    whole = torch.empty(300, 200)
    for row, column in itertools.product(range(300), range(200)):
        whole[row, column] = weight[row, column].float() * scales[row // 128, column // 128]

    checkpoint = Checkpoint(tmp_path)
    for rows, columns in [
        (slice(0, 300), slice(0, 200)),
        (slice(100, 260), slice(50, 150)),
        (slice(299, 300), slice(130, 200)),
    ]:
        read = checkpoint.read("a.weight", (300, 200), (rows, columns), torch.float32)
        assert torch.equal(read, whole[rows, columns])


def test_slices_worked_by_hand() -> None:
    assert device_slices((10, 4), (("dp", "tp"), None), {"dp": 2, "tp": 2}, {"dp": 1, "tp": 0}) == (
        slice(6, 9),
        slice(0, 4),
    )
    assert device_slices((4,), ("tp",), {"tp": 8}, {"tp": 6}) == (slice(4, 4),)


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither .* is there; download"):
        Checkpoint(tmp_path)
    safetensors_torch.save_file({"a.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    whole = (slice(0, 2), slice(0, 2))
    with pytest.raises(CheckpointError, match=r"has no weight b\.weight"):
        checkpoint.read("b.weight", (2, 2), whole, torch.float32)
    with pytest.raises(CheckpointError, match=r"has shape \[2, 2\], expected \[2, 3\]"):
        checkpoint.read("a.weight", (2, 3), whole, torch.float32)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match="cannot be read"):
        Checkpoint(tmp_path)
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(CheckpointError, match="cannot be read as an index"):
        Checkpoint(tmp_path)
