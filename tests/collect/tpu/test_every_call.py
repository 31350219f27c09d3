"""A sweep that is killed, or whose slice is taken back, at each of its calls of gcloud; both providers.

The stand-in for gcloud runs in this process, and hosts do at once what their shells would be told, so every moment is
tried. What the shells really do is in the tests of sweeps.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import signal
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from tests.collect.tpu.fake_cloud import PROGRAMS, Cloud
from tracewarehouse.cli.tpu import _deleted_at_the_end
from tracewarehouse.collect.experiment import Experiment, run_spec
from tracewarehouse.collect.tpu import commands
from tracewarehouse.collect.tpu.gcloud import Gcloud
from tracewarehouse.collect.tpu.installation import Installation
from tracewarehouse.collect.tpu.quota import load_quota
from tracewarehouse.collect.tpu.slices import Slices
from tracewarehouse.collect.tpu.state import State
from tracewarehouse.collect.tpu.sweep import run_sweep

MESHES = {"v6e-4": ["tp=4", "dp=2,tp=2"], "tpu7x-16": ["dp=2,ep=4,tp=2", "pp=2,dp=2,ep=2,tp=2"]}
"""Slices of the Cloud TPU API and of Compute Engine, with one host and with two, and the meshes of two runs."""
How = Literal["killed before", "killed after", "preempted", "ended"]
"""SIGKILL before or after what the call does, a slice that is taken back, and SIGTERM to a sweep with --delete."""


class Killed(BaseException):
    """The process is gone: nothing that comes after runs a command or writes the record of slices."""


class Google:
    """The stand-in for gcloud in this process; something happens at one of its calls."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(PROGRAMS))
        for name in ("FAKE_WORKER", "FAKE_MACHINE"):
            monkeypatch.setenv(name, "0")
        self._modules = [importlib.import_module(name) for name in ("gcloud", "instance_groups", "host")]
        self._gcloud, _, self._host = self._modules
        for module in self._modules:
            monkeypatch.setattr(module, "CLOUD", folder)
        self._lock, self._real = threading.RLock(), subprocess.Popen
        self.calls, self.at, self.how, self.is_dead = 0, -1, "killed before", False
        monkeypatch.setattr(subprocess, "Popen", self._popen)
        monkeypatch.setattr(subprocess, "run", self._run)
        changing = State._changing

        def while_alive(state: State) -> Any:
            if self.is_dead:
                raise Killed
            return changing(state)

        monkeypatch.setattr(State, "_changing", while_alive)

    def begin(self, at: int = -1, how: How = "killed before") -> None:
        """Start a process anew, to which something happens at a call."""
        self.calls, self.at, self.how, self.is_dead = 0, at, how, False

    def _run(self, arguments: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(arguments, *self._called(arguments[1:]))

    def _popen(self, arguments: list[str], **how: Any) -> Any:
        if arguments[0] == "bash":
            code, said = self._shell(Path(how["cwd"]), arguments[2]), ""
        else:
            code, said, error = self._called(arguments[1:])
            how["stdout"].write(said + error)
            how["stdout"].flush()
        return SimpleNamespace(returncode=code, wait=lambda _=None: code, poll=lambda: code, pid=0)

    def _called(self, arguments: list[str]) -> tuple[int, str, str]:
        with self._lock:
            is_now, self.calls = self.calls == self.at, self.calls + 1
            self.is_dead |= is_now and self.how == "killed before"
            if self.is_dead:
                raise Killed
            if is_now and self.how == "ended" and signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
                raise SystemExit(128 + signal.SIGTERM)  # as the handler of the command does
            if is_now and self.how == "preempted":
                for node in self._gcloud.CLOUD.glob("tpus/*/node.json"):
                    self._gcloud.preempt(node.parent.name)
            out, err, code = io.StringIO(), io.StringIO(), 0
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    self._gcloud.main(arguments)
                except SystemExit as ended:
                    code = int(ended.code or 0)
            self.is_dead |= is_now and self.how == "killed after"
            if self.is_dead:
                raise Killed
            return code, out.getvalue(), err.getvalue()

    def _shell(self, home: Path, command: str) -> int:
        """What a host does when it is told to list, to record or to do anything else."""
        host = f"t1v-n-{home.parent.name}-w-{home.name}"
        if commands.HAS in command:
            for manifest in sorted((home / commands.CAPTURES).glob("*/*/manifest.json")):
                print(commands.HAS, host, manifest.parent.relative_to(home / commands.CAPTURES))
        elif found := re.search(rf"slice_worker \S+ (\S+) {commands.CAPTURES}/(\w+)", command):
            name, token = found.groups()
            if not (home / commands.CAPTURES / token / name).exists():
                self._host.WORKER = home.name
                self._host.record(str(home / commands.RUNS), name, str(home / commands.CAPTURES / token))
            print(commands.ENDED, token, host, 0)
        return 0


def sweep(slices: Slices, kind: str, experiment: Experiment, cloud: Cloud, done: list[str]) -> None:
    """Create a slice, record on it and delete it, as the commands do; `done` tells how far it came."""
    slices.create("one", kind, attempts=2)
    with _deleted_at_the_end(slices, "one", True):
        done.append("create")
        run_sweep(slices, "one", experiment, cloud.output, installation=Installation(wheel=cloud.wheel))
    done.append("run")


@pytest.mark.parametrize("how", ["killed before", "killed after", "preempted", "ended"])
@pytest.mark.parametrize("kind", MESHES)
def test_at_every_call(
    tmp_path: Path, cloud_programs: Path, monkeypatch: pytest.MonkeyPatch, kind: str, how: How
) -> None:
    """The same calls again record what is missing, and nothing that was here; in the end no slice is left."""
    pool = {"generation": "tpu7x", "zone": "us-central1-c", "spot": True, "chips": 8}
    quota = load_quota()
    quota = quota.model_copy(update={"quota": [*quota.quota, quota.quota[0].model_copy(update=pool)]})
    runs = [run_spec(device="tpu", backend="jax", model="microbenchmarks", mesh=mesh) for mesh in MESHES[kind]]
    experiment = Experiment.from_runs(*runs)
    moment, last = 0, 1
    while moment <= last:
        with monkeypatch.context() as patch:
            cloud = Cloud(tmp_path / str(moment), cloud_programs, patch)
            google = Google(cloud.folder, patch)
            said: list[str] = []
            done: list[str] = []
            patch.setenv("HF_TOKEN_PATH", str(tmp_path / "no token"))
            slices = Slices(cloud.state, quota, Gcloud(said.append), said.append, 0.0)

            google.begin(moment - 1, how)
            with contextlib.suppress(Killed, SystemExit):
                sweep(slices, kind, experiment, cloud, done)
            last = google.calls if moment == 0 else last  # nothing happens the first time
            here, recorded = cloud.captures(), cloud.recorded()
            assert how != "ended" or not done or not cloud.exists("one"), (moment, said)
            if "run" not in done and (cloud.state.slices() or not here or how == "ended"):
                google.begin()
                sweep(slices, kind, experiment, cloud, done)
            assert len(cloud.captures()) == 2, (moment, said)
            again, before = ([r for r in lines if r.split()[0] in here] for lines in (cloud.recorded(), recorded))
            assert again == before, (moment, said)
            assert not list(cloud.output.glob(".*")), moment
            assert not [line for line in said if "no free chips" in line]  # they were there, and were taken back
            assert not cloud.exists("one"), moment
            kept = [cloud.folder / f"{what}.json" for what in ("templates", "policies")]
            assert all(json.loads(file.read_text()) == {} for file in kept if file.exists()), moment
            assert cloud.state.slices() == {}
            if how.startswith("killed"):
                assert len(cloud.calls("create", "tpu-vm" if kind == "v6e-4" else "instance-groups")) <= 2
        moment += 1
    assert last > 10
