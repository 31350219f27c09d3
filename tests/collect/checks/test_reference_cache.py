from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracewarehouse.collect.checks.reference import FOLDER, kept_files, weight_files
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.harness import subject
from tracewarehouse.collect.run_spec import RunSpec


@pytest.fixture
def computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunSpec]:
    """The runs whose references are computed from here on; an empty folder keeps them."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "references"))
    runs: list[RunSpec] = []
    plain = subject.reference_generation

    def counted(spec: RunSpec, *rest: Any) -> Any:
        runs.append(spec)
        return plain(spec, *rest)

    monkeypatch.setattr(subject, "reference_generation", counted)
    return runs


def reference(**fields: Any) -> subject.Reference:
    return subject.tiny_subject(run_spec(output_length=3, **fields)).reference


def without_ties() -> bytes:
    file = io.BytesIO()
    np.savez(file, logits=np.zeros((4, 3, 512), np.float32))
    return file.getvalue()


def logits(found: subject.Reference) -> Any:
    assert found.expected is not None
    return found.expected.logits


def test_a_reference_is_computed_once_for_all_meshes_and_backends(computed: list[RunSpec], tmp_path: Path) -> None:
    for without in (reference(reference="off"), reference(device="tpu")):
        assert (without.kind, without.expected, computed) == ("finite_logits", None, [])
    first = reference(mesh="tp=4")
    assert (first.kind, len(computed)) == ("full", 1)
    for same in ({"mesh": "dp=2,tp=2"}, {"backend": "torch_xla"}, {"device": "tpu", "dtype": "float32"}):
        assert np.array_equal(logits(reference(**same)), logits(first))
    assert len(computed) == 1
    assert not np.array_equal(logits(reference(seed=1)), logits(first))
    reference(input_length=16)
    assert len(computed) == 3
    (file,) = {subject.compute_reference(run_spec(output_length=3, mesh=mesh)) for mesh in ("tp=4", "tp=8")}
    assert (file.exists(), len(computed)) == (True, 3)
    assert kept_files(["llama"]) == sorted((tmp_path / "references").iterdir())


@pytest.mark.parametrize("content", [b"", b"cut short", b"\x93NUMPY\x01\x00", b"PK\x03\x04", without_ties()])
def test_a_damaged_reference_is_computed_again(computed: list[RunSpec], content: bytes) -> None:
    first = logits(reference())
    file = subject.compute_reference(run_spec(output_length=3))
    file.write_bytes(content)
    assert np.array_equal(logits(reference()), first)
    assert len(computed) == 2
    assert np.array_equal(np.load(file)["logits"], first)


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
