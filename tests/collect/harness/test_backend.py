"""The seam to the machine learning stack, by a second backend that needs none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.collect.tpu.fake_cloud import tw
from tracewarehouse.collect.errors import CollectError, ExperimentError
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.harness.backend import find_backend
from tracewarehouse.ingest.capture.manifest import load_manifest

TESTS = Path(__file__).parents[2]
FAKE = "fake_backend:FakeBackend"
NAME = "llama-tp2-b4-i32-o17-fake_backend-FakeBackend"


@pytest.fixture(autouse=True)
def path_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the process of a run finds it too."""
    monkeypatch.setenv("PYTHONPATH", f"{TESTS.parent}:{TESTS}")


def test_another_backend_records_without_a_change_elsewhere(tmp_path: Path) -> None:
    done = tw("collect", "--backend", FAKE, "--mesh", "tp=2", "-o", str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / NAME)
    manifest = load_manifest(tmp_path / NAME / "manifest.json")
    assert (manifest.backend, manifest.hosts, manifest.checks) == ("fake", ["fakehost"], {"mesh_seen": "tp=2"})
    assert (tmp_path / NAME / "card.yaml").is_file()
    sql = "SELECT framework, mesh, device_count, is_truncated FROM runs"
    (run,) = json.loads(tw("query", str(tmp_path / NAME), sql, "--format", "json").stdout)
    assert run == {"framework": "fake", "mesh": "tp=2", "device_count": 2, "is_truncated": False}
    # Resuming knows the capture by its content, as any.
    assert "skipped" in tw("collect", "--backend", FAKE, "--mesh", "tp=2", "-o", str(tmp_path)).stderr


def test_a_backend_in_another_interpreter(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)

    done = tw("collect", "--backend", FAKE, "--mesh", "tp=2", "-o", str(tmp_path / "captures"), "--python", str(python))

    assert done.returncode == 0, done.stderr
    required, recorded = (tmp_path / "calls").read_text().splitlines()
    assert required == f"-m tracewarehouse.collect.run_process {FAKE}"
    assert recorded.startswith("-m tracewarehouse.collect.run_process {")


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("/no/python", "/no/python: cannot be started: No such file or directory"),
        ("/bin/false", "/bin/false cannot record with jax: exit code 1; it needs tracewarehouse of the same version"),
        ("jax=", "--python jax=: does not name an interpreter; write jax=PATH"),
        ("torch_tpu=/bin/python", "--python torch_tpu=/bin/python: no run has the backend torch_tpu; jax run"),
    ],
)
def test_an_interpreter_that_cannot_record(tmp_path: Path, python: str, said: str) -> None:
    done = tw("collect", "--backend", "jax", "--mesh", "tp=2", "-o", str(tmp_path), "--python", python)
    assert done.returncode == (2 if "=" in python else 1)
    assert said in " ".join(done.stderr.replace("\u2502", " ").split())


def test_an_interpreter_that_lacks_jax(tmp_path: Path) -> None:
    python = tmp_path / "python"
    hidden = "import sys; sys.modules['jax'] = None; sys.argv[:] = sys.argv[2:]; import runpy; "
    program = f"{hidden}runpy.run_module(sys.argv[0], run_name='__main__')"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}" "$@"\n')
    python.chmod(0o755)

    done = tw(
        "collect", "--backend", "jax", "--mesh", "tp=2", "-o", str(tmp_path / "captures"), "--python", str(python)
    )

    assert done.returncode == 1
    assert "recording with JAX needs jax, which is not installed: pip install 'tracewarehouse[jax]'" in done.stderr


def test_what_a_backend_must_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_profile = tw("collect", "--backend", FAKE, "--mesh", "tp=2", "--seed", "13", "-o", str(tmp_path))
    assert without_profile.returncode == 1
    assert "fake recorded nobody, but left the profiles fakehost" in without_profile.stderr
    monkeypatch.setenv("FAKE_BACKEND_MISSING", "1")
    missing = tw("collect", "--backend", FAKE, "--mesh", "tp=2", "-o", str(tmp_path))
    assert missing.returncode == 1
    assert "error: the fake backend is not installed: pip install fake" in missing.stderr
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]


@pytest.mark.parametrize("name", ["torch_cpu", "no_such_module:Backend", "json:Nothing", "json:__name__"])
def test_an_unknown_backend_is_named(name: str) -> None:
    with pytest.raises(
        CollectError, match=f"backend '{name}' cannot be used: .*; known are jax, torch_xla, torch_tpu, and any"
    ):
        find_backend(name)


def test_the_backend_is_part_of_what_a_run_is() -> None:
    own, other = run_spec(mesh="tp=2"), run_spec(mesh="tp=2", backend=FAKE)
    assert own.digest != other.digest
    assert own.digest == run_spec(mesh="tp=2", backend="jax").digest
    # The captures of data/, whose specifications name no backend, keep their digests and names.
    unmarked = run_spec(mesh="tp=2", backend="torch_xla")
    assert unmarked.digest == "7dc8a220e301ac942b2272f7c5d8f831d2bfade51f202abed0cca548a60dd596"
    assert unmarked.name == own.name.removesuffix("-jax") == "llama-tp2-b4-i32-o17"
    assert find_backend("torch_xla").environment(unmarked) == {
        "PJRT_DEVICE": "CPU",
        "XLA_HLO_DEBUG": "1",
        "CPU_NUM_DEVICES": "2",
    }
    with pytest.raises(ExperimentError, match="backend: String should match pattern"):
        run_spec(backend="rm -rf /")
    with pytest.raises(ExperimentError, match="hosts: jax and torch_xla run several processes, not fake_backend"):
        run_spec(backend=FAKE, mesh="pp=2", hosts=2)
    with pytest.raises(ExperimentError, match="mesh: with jax the devices are in the order of their ids"):
        run_spec(backend="jax", mesh={"axes": {"tp": 2}, "device_ids": [1, 0]})
