"""Published weights on the devices, in processes of their own: torch_xla reads its environment once."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.captured_collectives import assert_as_promised, collectives
from tests.collect.torch_processes import TorchProcesses
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.memory import loading_bytes
from tracewarehouse.collect.models.pretrained import pretrained_model
from tracewarehouse.ingest.capture.card import load_card
from tracewarehouse.ingest.capture.manifest import load_manifest
from tracewarehouse.ingest.pipeline import ingest_one

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("torch_xla is not installed: pip install 'tracewarehouse[collect]'", allow_module_level=True)

LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707}
SHORT = {"original_max_position_embeddings": 16}
GROUPS = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "n_shared_experts": 2}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "llama", "layers": 4, "rope_scaling": LLAMA_3 | SHORT},
    "qwen2": {"architecture": "qwen2", "dtype": "bfloat16", "tie_word_embeddings": True, "vocab_size": 509},
    "qwen3_moe": {"architecture": "qwen3_moe"},
    "deepseek_v2": {
        "architecture": "deepseek_v2",
        "q_lora_rank": None,
        "layers": 4,
        "rope_scaling": YARN | SHORT,
        **GROUPS,
    },
    "deepseek_v3": {
        "architecture": "deepseek_v3",
        "dtype": "bfloat16",
        "is_eight_bit": True,
        "hidden_size": 192,
        "rope_scaling": YARN | SHORT,
    },
    "large": {"architecture": "llama", "hidden_size": 1024, "intermediate_size": 4096, "layers": 4, "vocab_size": 8192},
}


CPU = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}


@pytest.fixture(scope="module")
def folder(torch_processes: TorchProcesses, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    todo = json.dumps({str(folder / name): arguments for name, arguments in MODELS.items()})
    torch_processes.answer(WRITE, todo)
    return folder


WRITE = """
import json, sys
from pathlib import Path
from published_checkpoint import write_checkpoint

for place, arguments in json.loads(sys.argv[1]).items():
    write_checkpoint(Path(place), **arguments)
print("null")
"""


LOAD = """
import json, sys
from pathlib import Path
import torch
import torch_xla.runtime as xr
from safetensors.torch import load_file
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.parallel.weights import PublishedWeights
from tracewarehouse.collect.torch_xla.mesh import DeviceMesh
from tracewarehouse.collect.torch_xla.transformers_model import on_devices, on_host
from tracewarehouse.collect.parallel.partition import weight_partition
import torch_xla

def published(folder):
    files = {n: w for f in sorted(folder.glob("*.safetensors")) for n, w in load_file(f).items()}
    out = {}
    for name, weight in files.items():
        if name.endswith("_scale_inv"):
            continue
        if name + "_scale_inv" in files:
            scales = files[name + "_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
            weight = weight.float() * scales[: weight.shape[0], : weight.shape[1]]
        out[name] = weight
    return out

def expected(files, name, dtype):
    if ".experts." in name:
        prefix, _, part = name.rpartition(".")
        weight = torch.stack([files[f"{prefix}.{e}.{part}.weight"] for e in range(8)])
    else:
        weight = files[name]
    return weight.float() if name.endswith("correction_bias") else weight.to(dtype)

xr.use_spmd()
found = {}
for folder, mesh_text in json.loads(sys.argv[1]):
    folder = Path(folder)
    spec = run_spec(model=str(folder), mesh=mesh_text, dtype="bfloat16", backend="torch_xla")
    files, mesh = published(folder), DeviceMesh(spec)
    weights = PublishedWeights(spec, folder)
    model = on_devices(spec, weights, mesh)
    wrong, splits = [], {}
    state = {**dict(model.named_parameters()), **{n: b for n, b in model.named_buffers() if n.endswith("bias")}}
    for name, value in state.items():
        if value.is_meta:  # of a pipeline's layer; see below
            continue
        if not torch.equal(value.cpu(), expected(files, name, torch.bfloat16)):
            wrong.append(name)
        splits[name] = torch_xla._XLAC._get_xla_sharding_spec(value)
    slots = range(spec.stage_layout.slots) if spec.axis("pp") > 1 else ()
    for numbers in map(spec.stage_layout.slot_layers, slots):
        prefix = f"model.layers.{next(n for n in numbers if n is not None)}."
        for part in (name.removeprefix(prefix) for name in state if name.startswith(prefix)):
            names = [None if n is None else f"model.layers.{n}.{part}" for n in numbers]
            value = weights.stacked(names, mesh, "bfloat16")
            empty = torch.zeros_like(expected(files, prefix + part, torch.bfloat16))
            stages = [empty if n is None else expected(files, n, torch.bfloat16) for n in names]
            if not torch.equal(value.cpu(), torch.stack(stages)):
                wrong.append(prefix + part)
            splits[prefix + part] = torch_xla._XLAC._get_xla_sharding_spec(value)
    host = on_host(spec, weights)
    found[f"{folder.name} {mesh_text}"] = {
        "wrong": wrong,
        "weights": len(splits),
        "tied": model.lm_head.weight is model.model.embed_tokens.weight,
        "down": next((s for n, s in splits.items() if n.endswith(("down_proj", "down_proj.weight"))), None),
        "host": [n for n, p in host.named_parameters() if p.dtype != torch.bfloat16],
    }
print(json.dumps(found))
"""


def test_every_device_holds_its_part_of_the_published_weights(torch_processes: TorchProcesses, folder: Path) -> None:
    cases = [
        ("llama", "tp=4"),
        ("qwen2", "dp=2,tp=2"),
        ("qwen3_moe", "ep=2,tp=2"),
        ("qwen3_moe", "pp=2,ep=2"),
        ("deepseek_v2", "ep=2,tp=2"),
        ("deepseek_v2", "pp=2,ep=2"),
        ("deepseek_v3", "ep=2,tp=2"),
    ]

    found = torch_processes.answer(LOAD, json.dumps([(str(folder / name), mesh) for name, mesh in cases]), **CPU)

    assert {case: facts["wrong"] for case, facts in found.items()} == {f"{n} {m}": [] for n, m in cases}
    assert found["llama tp=4"]["weights"] == 3 + 4 * 9
    assert found["llama tp=4"]["down"].startswith("{devices=[1,4]0,1,2,3")
    assert found["qwen3_moe pp=2,ep=2"]["down"].startswith("{devices=[2,2,1,1]0,1,2,3")
    assert [case for case, facts in found.items() if facts["tied"]] == ["qwen2 dp=2,tp=2"]
    assert all(facts["host"] == [] for facts in found.values())


ONE_HOST = """
import json, sys
from pathlib import Path
import torch
import torch_xla, torch_xla.runtime as xr
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.parallel.weights import PublishedWeights
from tracewarehouse.collect.torch_xla.mesh import DeviceMesh
from tracewarehouse.collect.torch_xla.transformers_model import on_devices, on_host

xr.use_spmd()
found = {}
for mesh_text in ("tp=4", "pp=2,tp=2", "dp=2,tp=2"):
    spec = run_spec(model=sys.argv[1], mesh=mesh_text, backend="torch_xla")
    mesh = DeviceMesh(spec)
    torch_xla._XLAC._xla_get_runtime_devices = lambda: ["CPU:2", "CPU:3"]  # of the second of two hosts
    weights = PublishedWeights(spec, Path(sys.argv[1]))
    read = {}
    whole_read = weights.read
    def counted(name, slices, dtype):
        value = whole_read(name, slices, dtype)
        read[name] = read.get(name, 0) + value.size
        return value
    weights.read = counted
    torch_xla._XLAC._global_tensor_from_cpu_shards = lambda shards, sharding, shape: torch.empty(shape)
    on_devices(spec, weights, mesh)
    if spec.axis("pp") > 1:
        weights.stacked([f"model.layers.{n}.mlp.up_proj.weight" for n in (0, 2)], mesh, "float32")
    shown = ("up_proj.weight", "lm_head.weight")
    found[mesh_text] = {n.removeprefix("model."): c for n, c in read.items() if n.endswith(shown)}
print(json.dumps(found))
"""


def test_a_host_reads_only_what_its_devices_hold(torch_processes: TorchProcesses, folder: Path) -> None:
    found = torch_processes.answer(ONE_HOST, str(folder / "llama"), **CPU)

    up, head = 256 * 128, 512 * 128
    every = [f"layers.{n}.mlp.up_proj.weight" for n in range(4)]
    assert found["tp=4"] == dict.fromkeys(every, up // 2) | {"lm_head.weight": head // 2}
    # The devices 2 and 3 are the second stage, whose first layer is number 2; the head is split over tp.
    assert found["pp=2,tp=2"] == {"layers.2.mlp.up_proj.weight": up, "lm_head.weight": head}
    # A replica holds everything, once.
    assert found["dp=2,tp=2"] == dict.fromkeys(every, up) | {"lm_head.weight": head}


PEAK = """
import gc, json, os, sys
from pathlib import Path
import torch
import torch_xla, torch_xla.runtime as xr, torch_xla.core.xla_model as xm
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.parallel.weights import PublishedWeights
from tracewarehouse.collect.torch_xla.mesh import DeviceMesh
from tracewarehouse.collect.torch_xla.transformers_model import on_devices, on_host

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))

xr.use_spmd()
folder = Path(sys.argv[1])
spec = run_spec(model=str(folder), mesh=f"tp={sys.argv[2]}", backend="torch_xla")
mesh = DeviceMesh(spec)
mesh.place(torch.zeros(8, 4), ("tp", None))  # the client's own memory is there
weights = PublishedWeights(spec, folder)
gc.collect()
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
model = on_devices(spec, weights, mesh)
xm.wait_device_ops()
shards = [f.stat().st_size for f in folder.glob("*.safetensors")]
print(json.dumps({"peak": status("VmHWM") - before, "whole": sum(shards), "shard": max(shards)}))
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the kernel does not reset the peak")
def test_the_host_holds_a_file_and_a_copy_of_one_weight_for_each_device(folder: Path) -> None:
    """The virtual devices' own memory is of the same process: the model once, and the embedding on all of them."""
    embedding, devices = 8192 * 1024 * 4, 8
    model = pretrained_model(str(folder / "large"))
    assert loading_bytes(model, run_spec(model=str(folder / "large"), mesh=f"tp={devices}")) == devices * embedding

    # From its beginning a process of its own: one that was forked does not count the memory that it shares.
    variables = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices), "PYTHONWARNINGS": "ignore"}
    variables |= {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is free is given back
    command = [sys.executable, "-c", PEAK, str(folder / "large"), str(devices)]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])

    assert found["whole"] > 2.5 * found["shard"]
    on_devices = found["whole"] + (devices - 1) * embedding
    assert 0.95 * on_devices < found["peak"] < on_devices + devices * embedding + 1.1 * found["shard"]


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {w: i for i, w in enumerate(["<s>", "<unk>", "a", "chip", "waits", "for", "another"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))


def test_recording_eight_bit_weights_of_deepseek_v3(
    torch_processes: TorchProcesses, folder: Path, tmp_path: Path
) -> None:
    write_tokenizer(folder / "deepseek_v3")
    spec = run_spec(
        model=str(folder / "deepseek_v3"),
        mesh="ep=2,tp=2",
        dtype="bfloat16",
        prompt="a chip waits for another chip",
        batch=2,
        input_length=8,
        output_length=3,
        backend="torch_xla",
    )

    capture = torch_processes.record(spec, tmp_path / "captures")

    manifest = load_manifest(capture / "manifest.json")
    assert manifest.checks["reference"] == "full"
    assert manifest.checks["max_logit_error"] < 0.1
    assert manifest.model.name == "deepseek_v3"
    assert manifest.model.num_experts == 8
    assert (manifest.model_extra or {})["prompt_source"] == "text"
    assert load_card(capture / "card.yaml").workload.data.dataset == "text"
    assert [(p.name, p.step) for p in manifest.phases] == [("prefill", 0), ("decode", 1), ("decode", 2)]
    # The promised all-to-alls over ep and all-reduces over tp are there.
    assert ingest_one(capture, tmp_path / "warehouse").notes == []
    assert_as_promised(capture, collectives(capture, tmp_path / "rows"))


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("qwen2", {"mesh": "tp=4", "dtype": "bfloat16"}),
        # Of the 4 layers the first is dense: the stages are unlike.
        ("deepseek_v2", {"mesh": "pp=2,ep=2", "capacity_factor": "inf"}),
    ],
    ids=lambda value: value if isinstance(value, str) else value["mesh"],
)
def test_families_are_recorded_from_their_checkpoints(
    torch_processes: TorchProcesses, folder: Path, tmp_path: Path, model: str, fields: dict[str, Any]
) -> None:
    size = {"batch": 4, "input_length": 8, "output_length": 3}
    spec = run_spec(model=str(folder / model), backend="torch_xla", **size, **fields)

    capture = torch_processes.record(spec, tmp_path / "captures")

    manifest = load_manifest(capture / "manifest.json")
    assert manifest.checks["reference"] == "full"
    assert manifest.checks["tokens_equal"] is True or spec.dtype == "bfloat16"
    # The head of this one is the embedding, which every device has whole.
    assert_as_promised(capture, collectives(capture, tmp_path / "warehouse"), is_head_split=model != "qwen2")


def test_a_model_larger_than_the_host_is_compared_by_its_first_layers(
    torch_processes: TorchProcesses, folder: Path, tmp_path: Path
) -> None:
    size = {"batch": 4, "input_length": 8, "output_length": 3}
    spec = run_spec(model=str(folder / "llama"), mesh="pp=2,tp=2", backend="torch_xla", **size)
    assert spec.layers == 4

    capture = torch_processes.record(spec, tmp_path, host_memory=2_300_000)

    manifest = load_manifest(capture / "manifest.json")
    assert manifest.checks["reference"] == "first_layers"
    assert manifest.checks["first_layers"] == 2
    assert manifest.checks["first_layers_tokens_equal"] is True
    assert "tokens_equal" not in manifest.checks
    assert manifest.model.num_layers == 4
    assert (manifest.model_extra or {})["prompt_source"] == "random tokens"
