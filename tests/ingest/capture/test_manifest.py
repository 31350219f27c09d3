"""Manifests: what is read, and what is refused before it costs anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracewarehouse.ingest.capture.manifest import MAX_DEVICES, Mesh, load_manifest
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.tables.run_row import manifest_facts

MANIFEST: dict[str, Any] = {
    "name": "m",
    "model": {"name": "tiny"},
    "dtype": "float32",
    "batch_size": 1,
    "input_length": 2,
    "output_length": 3,
    "mesh": {"axes": {"dp": 2, "tp": 2}, "device_ids": [3, 1, 2, 0]},
}


def write(folder: Path, content: Any) -> Path:
    path = folder / "manifest.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_coordinates_follow_the_device_ids(tmp_path: Path) -> None:
    mesh = load_manifest(write(tmp_path, MANIFEST)).mesh
    assert mesh.coordinates() == {
        3: {"dp": 0, "tp": 0},
        1: {"dp": 0, "tp": 1},
        2: {"dp": 1, "tp": 0},
        0: {"dp": 1, "tp": 1},
    }


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"mesh": {"axes": {"dp": 10**12}, "device_ids": [0]}}, f"at most {MAX_DEVICES} devices"),
        ({"mesh": {"axes": {"dp": 1 << 16, "tp": 1 << 16}}}, f"at most {MAX_DEVICES} devices"),
        ({"mesh": {"axes": {"\x1b[2J": 2}}}, r"unknown mesh axis \\x1b\[2J"),
        ({"batch_size": 1 << 31}, "batch_size"),
        ({"model": {"name": "x", "num_params": 1 << 63}}, "num_params"),
        ({"phases": [{"name": "decode", "step": 1, "start_ns": 1 << 63, "end_ns": 0}]}, "start_ns"),
        ({"backend": "\ud800"}, "surrogates"),
        ({"promised_collectives": [{"phase": "p", "kind": "k", "axis": "tp", "count": 1}] * 300}, "at most 256"),
    ],
)
def test_values_that_fit_nowhere_are_refused(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    with pytest.raises(CaptureError, match=what) as caught:
        load_manifest(write(tmp_path, MANIFEST | change))
    assert str(caught.value).isprintable()


def test_a_file_too_large_for_a_manifest_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CaptureError, match="larger than 64 MB"):
        load_manifest(path)


def test_a_mesh_on_the_command_line_is_bounded_too() -> None:
    with pytest.raises(ValueError, match="at most"):
        Mesh.parse("dp=1000000000000")
    assert Mesh.parse(f"dp={MAX_DEVICES}").size == MAX_DEVICES


@pytest.mark.parametrize(("stated", "expected"), [("1.25", "1.25"), ('"inf"', "inf"), ("2", "2"), ("null", None)])
def test_the_capacity_factor_is_a_fact_of_the_run(tmp_path: Path, stated: str, expected: str | None) -> None:
    (tmp_path / "manifest.json").write_text(f'{{"name": "run", "capacity_factor": {stated}}}')
    assert manifest_facts(load_manifest(tmp_path / "manifest.json")).get("capacity_factor") == expected
