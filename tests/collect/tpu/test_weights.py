"""The files of published models on a host: which, from where, and with which room."""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import shutil
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError

from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.weights import WeightsError, needed_files, require_weights

V3 = "deepseek-ai/DeepSeek-V3.1-Base"
LLAMA = "meta-llama/Llama-3.1-8B"
QWEN = "Qwen/Qwen3-4B"
LAYERS = {V3: 62, LLAMA: 32, QWEN: 36}  # V3 has one for multi-token prediction behind its 61
Usage = namedtuple("Usage", "total used free")


class Hub:
    """A hub whose models have a file per layer; downloads are kept in `asked`."""

    def __init__(self, cache: Path) -> None:
        self.cache, self.asked, self.error = cache, [], None
        self.free = 10**12

    def snapshot_download(self, model: str, cache_dir: Path, allow_patterns: list[str]) -> str:
        if self.error is not None:
            raise self.error
        folder = cache_dir / f"models--{model.replace('/', '--')}" / "snapshots" / "abc"
        folder.mkdir(parents=True, exist_ok=True)
        names = {f"model.layers.{i}.mlp.weight": f"layer-{i}.safetensors" for i in range(LAYERS[model])}
        names["lm_head.weight"] = "rest.safetensors"
        files = ["config.json", "tokenizer.json", "original/weights.pth", "model.bin", *names.values()]
        files += ["model.safetensors.index.json"]
        for file in files:
            if any(fnmatch.fnmatch(file, pattern) for pattern in allow_patterns):
                self.asked.append(f"{model} {file}")
                (folder / file).parent.mkdir(exist_ok=True)
                (folder / file).write_text(json.dumps({"weight_map": names}) if "index" in file else "{}")
        return str(folder)

    def usage(self, path: Path) -> Usage:
        held = sum(10**11 for _ in self.cache.glob("models--*"))
        return Usage(0, held, self.free - held)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    fake = Hub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    monkeypatch.setattr(shutil, "disk_usage", fake.usage)
    return fake


def run(model: str, **fields: object) -> RunSpec:
    return run_spec(model=model, device="tpu", mesh="tp=4", **fields)


def test_only_what_a_run_reads_is_downloaded(hub: Hub) -> None:
    require_weights(run(V3, layers=3))

    assert [a.removeprefix(V3 + " ") for a in hub.asked] == [
        *("config.json", "tokenizer.json", "model.safetensors.index.json"),
        *("layer-0.safetensors", "layer-1.safetensors", "layer-2.safetensors", "rest.safetensors"),
    ]


def test_what_is_there_is_not_downloaded_again(hub: Hub) -> None:
    require_weights(run(LLAMA))
    hub.asked.clear()

    require_weights(run(LLAMA))
    require_weights(run(LLAMA, layers=2))

    assert hub.asked == []


def test_what_a_larger_run_lacks_is_added(hub: Hub) -> None:
    require_weights(run(V3, layers=2))
    hub.asked.clear()

    require_weights(run(V3, layers=3))

    assert f"{V3} layer-2.safetensors" in hub.asked


def test_multi_token_prediction_is_never_read(hub: Hub) -> None:
    folder = Path(hub.snapshot_download(V3, hub.cache, ["*.json"]))

    assert len(needed_files(folder, 61)) == 62  # 61 layers and the rest
    assert "layer-61.safetensors" not in needed_files(folder, 61)


def test_tiny_models_and_folders_need_nothing(hub: Hub, tmp_path: Path) -> None:
    require_weights(run("llama"))

    assert hub.asked == []


def test_models_that_are_read_last_are_removed_when_the_disk_is_full(hub: Hub) -> None:
    require_weights(run(LLAMA))
    require_weights(run("Qwen/Qwen3-4B"))
    hub.free = 2 * 10**11 + 5 * 10**11  # each model takes 100 GB here; V3 needs 705

    with pytest.raises(WeightsError, match=r"its files take 705 GB more, and the disk of .* has 700 GB free"):
        require_weights(run(V3), later=[run(LLAMA)])
    assert not list(hub.cache.glob("models--*"))


def test_a_model_that_is_read_again_stays_as_long_as_it_can(hub: Hub) -> None:
    require_weights(run(LLAMA))
    require_weights(run(QWEN))
    hub.free = 8 * 10**11 + 10**10  # with one of the two there, 710 GB are free

    require_weights(run(V3), later=[run(LLAMA)])

    assert sorted(p.name for p in hub.cache.glob("models--*")) == [
        "models--deepseek-ai--DeepSeek-V3.1-Base",
        "models--meta-llama--Llama-3.1-8B",
    ]


def test_a_disk_or_bucket_that_was_not_filled_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    with pytest.raises(WeightsError, match=r"config.json is not in .*hub, which can only be read; fill the disk or bu"):
        require_weights(run(LLAMA))
    assert hub.asked == []


REFUSAL = SimpleNamespace(headers={}, request=None, status_code=403)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (GatedRepoError("no", response=REFUSAL), "its terms must be accepted at https://huggingface.co/meta-llama/Ll"),
        (OSError(errno.ENOSPC, "full"), "is full; use --data-disk or --bucket"),
        (OSError("the line is\nbroken"), "cannot be downloaded: the line is broken"),
    ],
)
def test_a_download_that_fails_ends_the_run_with_what_to_do(hub: Hub, error: Exception, said: str) -> None:
    hub.error = error

    with pytest.raises(WeightsError, match=said):
        require_weights(run(LLAMA))
