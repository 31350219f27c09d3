from __future__ import annotations

import importlib.util
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("safetensors") is None:
    pytest.skip("torch and safetensors are not installed", allow_module_level=True)

from published_checkpoint import write_checkpoint

from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.models.checkpoint import (
    INDEX,
    Checkpoint,
    CheckpointError,
    TensorFile,
    array_type,
    in_file_order,
)
from tracewarehouse.collect.parallel.weights import PublishedWeights


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import torch, which takes long, where these tests run, and not wherever tests are collected."""
    global safetensors_torch, torch
    import safetensors.torch as safetensors_torch
    import torch


def weights_of(folder: Path) -> PublishedWeights:
    return PublishedWeights(run_spec(model=str(folder), mesh="tp=1"), folder)


def stored(folder: Path) -> dict[str, Any]:
    return {n: w for f in sorted(folder.glob("*.safetensors")) for n, w in safetensors_torch.load_file(f).items()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "llama"
    write_checkpoint(folder, "llama")
    return folder


@pytest.fixture
def llama(written: Path, tmp_path: Path) -> Path:
    """A checkpoint to damage."""
    return shutil.copytree(written, tmp_path / "llama")


def shard_of(folder: Path, name: str) -> Path:
    return folder / json.loads((folder / INDEX).read_text())["weight_map"][name]


def change_head(folder: Path, shape: tuple[int, ...] | None) -> None:
    """Give the head, which is in the last shard, another shape, or leave it out."""
    file = max(folder.glob("*.safetensors"))
    weights = safetensors_torch.load_file(file)
    del weights[HEAD]
    safetensors_torch.save_file(weights | ({HEAD: torch.zeros(shape)} if shape else {}), file)


def change_index(folder: Path, *added: str, removed: str = "") -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= dict.fromkeys(added, "model-00003-of-00003.safetensors")
    index["weight_map"].pop(removed, None)
    (folder / INDEX).write_text(json.dumps(index))


HEAD = "lm_head.weight"


def test_a_complete_checkpoint_is_accepted(llama: Path) -> None:
    assert len(list(llama.glob("*.safetensors"))) == 3
    # Further layers, and what follows from other fields, are no weights of another model.
    change_index(llama, "model.layers.2.embed_tokens.weight", "model.layers.0.self_attn.rotary_emb.inv_freq")
    weights_of(llama)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: change_index(f, removed=HEAD), r"llama/model\.safetensors\.index\.json: has no weight lm_head\."),
        (lambda f: change_head(f, None), r"00003\.safetensors: lm_head\.weight cannot be read: .*not contain tensor"),
        (lambda f: change_head(f, (512, 64)), r"00003\.safetensors: lm_head\.weight has shape \[512, 64\], expected "),
        (
            lambda f: change_index(f, "model.layers.1.self_attn.sinks"),
            r"00003\.safetensors: model\.layers\.1\.self_attn\.sinks is no weight",
        ),
    ],
)
def test_a_wrong_weight_is_named_with_its_file(llama: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(llama)

    with pytest.raises(CheckpointError, match=message):
        weights_of(llama)


@pytest.mark.parametrize("how", ["cut", "empty", "gone", "garbage"])
def test_a_damaged_shard_is_named_with_a_weight(llama: Path, how: str) -> None:
    file = shard_of(llama, HEAD)
    content = file.read_bytes()
    file.unlink()
    if how != "gone":
        file.write_bytes({"cut": content[:-100], "empty": b"", "garbage": b"\xff" * 100}[how])

    with pytest.raises(CheckpointError) as caught:
        weights_of(llama)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert "cannot be read" in message
    assert "download the file again" in message
    assert any(n in message for n, f in json.loads((llama / INDEX).read_text())["weight_map"].items() if f == file.name)


def test_a_file_outside_of_the_folder_is_not_read(llama: Path) -> None:
    (llama / INDEX).write_text(json.dumps({"weight_map": {HEAD: "../other.safetensors"}}))

    with pytest.raises(CheckpointError, match="is not a file of this folder"):
        Checkpoint(llama)


@pytest.mark.parametrize("text", ["{}", "[", '{"weight_map": 3}'])
def test_a_damaged_index_is_named(llama: Path, text: str) -> None:
    (llama / INDEX).write_text(text)

    with pytest.raises(CheckpointError, match=r"index\.json: cannot be read as an index"):
        Checkpoint(llama)


def test_no_checkpoint_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither .* is there; download"):
        Checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read"):
        Checkpoint(tmp_path)


def test_a_single_file_and_another_dtype(tmp_path: Path) -> None:
    weight = torch.randn(8, 6)
    safetensors_torch.save_file({"a.weight": weight}, tmp_path / "model.safetensors")

    read = Checkpoint(tmp_path).read("a.weight", (8, 6), (slice(2, 4), slice(0, 3)), array_type("bfloat16"))

    assert torch.equal(torch.from_numpy(read.astype("float32")), weight[2:4, :3].to(torch.bfloat16).float())


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_values_of_every_type_are_those_that_torch_wrote(tmp_path: Path, name: str) -> None:
    weight = torch.randn(7, 5).to(getattr(torch, name))
    file = tmp_path / "model.safetensors"
    safetensors_torch.save_file({"odd": torch.zeros(3, dtype=torch.uint8), "a.weight": weight}, file)

    assert TensorFile(file).tensor("a.weight").astype("float32").tolist() == weight.float().tolist()
    with pytest.raises(ValueError, match="values of type U8 are not known; known are F32"):
        TensorFile(file).tensor("odd")


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b'{"a": 3}',
        b'{"a": {"data_offsets": [0]}}',
        b'{"a": {"data_offsets": [-4, 4]}}',
        b'{"a": {"data_offsets": [4, 0]}}',
        b"[" * 100_000,
        b"\xff",
        b'{"a": {"data_offsets": [0, 1e400]}}',
    ],
    ids=lambda header: header[:40].decode("latin-1"),
)
def test_a_header_that_is_none_is_refused(tmp_path: Path, header: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))

    with pytest.raises(
        CheckpointError, match=r"model\.safetensors: cannot be read: (its header is not|it has 4 bytes)"
    ):
        Checkpoint(tmp_path)


def test_experts_of_a_layer_are_read_as_one_weight(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "moe", "qwen3_moe")
    checkpoint, files = Checkpoint(tmp_path / "moe"), stored(tmp_path / "moe")

    name = "model.layers.1.mlp.experts.down_proj"
    read = checkpoint.read(name, (8, 128, 64), (slice(2, 5), slice(0, 128), slice(16, 48)), "float32")

    assert read.shape == (3, 128, 32)
    for expert, values in zip((2, 3, 4), read, strict=True):
        assert torch.equal(
            torch.from_numpy(values), files[f"model.layers.1.mlp.experts.{expert}.down_proj.weight"][:, 16:48]
        )


def test_eight_bit_weights_are_scaled_block_by_block(tmp_path: Path) -> None:
    weight = torch.randn(300, 200).to(torch.float8_e4m3fn)
    scales = torch.rand(3, 2)
    safetensors_torch.save_file({"a.weight": weight, "a.weight_scale_inv": scales}, tmp_path / "model.safetensors")
    expected = torch.empty(300, 200)
    for row, column in itertools.product(range(300), range(200)):
        expected[row, column] = weight[row, column].float() * scales[row // 128, column // 128]

    checkpoint = Checkpoint(tmp_path)
    for rows, columns in [
        (slice(0, 300), slice(0, 200)),
        (slice(100, 260), slice(50, 150)),
        (slice(299, 300), slice(130, 200)),
    ]:
        read = checkpoint.read("a.weight", (300, 200), (rows, columns), "float32")
        assert torch.equal(torch.from_numpy(read), expected[rows, columns])


def test_eight_bit_weights_need_their_scales_in_the_right_shape(tmp_path: Path) -> None:
    weight = torch.zeros(300, 200).to(torch.float8_e4m3fn)
    file = tmp_path / "model.safetensors"
    safetensors_torch.save_file({"a.weight": weight}, file)
    everything = (slice(0, 300), slice(0, 200))
    with pytest.raises(CheckpointError, match=r"a\.weight has 8 bits, but there is no a\.weight_scale_inv"):
        Checkpoint(tmp_path).read("a.weight", (300, 200), everything, "float32")

    safetensors_torch.save_file({"a.weight": weight, "a.weight_scale_inv": torch.ones(2, 2)}, file)
    with pytest.raises(CheckpointError, match=r"a\.weight_scale_inv has shape \[2, 2\], expected \[3, 2\]"):
        Checkpoint(tmp_path).check({"a.weight": (300, 200)}, 1)


def test_one_file_after_the_other(llama: Path) -> None:
    files = json.loads((llama / INDEX).read_text())["weight_map"]

    order = [files[name] for name in in_file_order(Checkpoint(llama), sorted(files))]

    assert order == sorted(order)
    assert len(set(order)) == 3
