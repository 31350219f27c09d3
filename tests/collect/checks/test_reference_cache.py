"""References are computed once; in processes of their own, as torch warns on import."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.collect.torch_processes import TorchProcesses
from tracewarehouse.collect.checks.reference import weight_files
from tracewarehouse.collect.experiment import run_spec

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("torch_xla is not installed: pip install 'tracewarehouse[collect]'", allow_module_level=True)

PROGRAM = """
import json
import sys
from pathlib import Path
from tracewarehouse.collect.harness import subject
from tracewarehouse.collect.experiment import run_spec

computed = []
plain = subject.reference_logits
subject.reference_logits = lambda *a: computed.append(1) or plain(*a)

def reference(**fields):
    found = subject.tiny_subject(run_spec(output_length=3, **fields)).reference
    return [found.kind, None if found.expected is None else round(float(found.expected.abs().sum()), 3), len(computed)]

out = {}
out["off"] = reference(reference="off")
out["not kept"] = reference(device="tpu")
out["first"] = reference(mesh="tp=4")
out["another mesh"] = reference(mesh="dp=2,tp=2")
out["a tpu"] = reference(device="tpu", dtype="float32")
out["another seed"] = reference(seed=1)
out["another length"] = reference(input_length=16)
(file,) = {subject.compute_reference(run_spec(output_length=3, mesh=mesh)) for mesh in ("tp=4", "tp=8")}
out["kept"] = [file.exists(), len(computed)]
file.write_bytes(b"cut short")
out["damaged"] = reference()
print(json.dumps(out))
"""


def test_a_reference_is_computed_once_for_all_meshes(torch_processes: TorchProcesses, tmp_path: Path) -> None:
    found = torch_processes.answer(PROGRAM, TRACEWAREHOUSE_REFERENCES=str(tmp_path / "references"))

    assert found["off"] == found["not kept"] == ["finite_logits", None, 0]
    kind, size, computed = found["first"]
    assert (kind, computed) == ("full", 1)
    assert found["another mesh"] == found["a tpu"] == ["full", size, 1]
    assert [found["another seed"][2], found["another length"][2]] == [2, 3]
    assert found["another seed"][1] != size
    assert found["kept"] == [True, 3]
    assert found["damaged"] == ["full", size, 4]
    assert len(list((tmp_path / "references").iterdir())) == 3


def test_a_run_is_the_same_whatever_it_is_compared_with() -> None:
    assert run_spec(reference="off").digest == run_spec().digest
    assert [run_spec(device=d).reference_mode for d in ("cpu", "tpu")] == ["compute", "kept"]
    assert run_spec(device="tpu", reference="compute").reference_mode == "compute"


def test_weights_are_told_apart_by_content_in_the_hub_and_else_by_size_and_time(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "blob").write_text("weights")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blob")

    linked = weight_files(tmp_path)

    assert linked[0] == ["model.safetensors", "blob"]
    stat = (tmp_path / "config.json").stat()
    assert linked[1] == ["config.json", 2, stat.st_mtime_ns]
