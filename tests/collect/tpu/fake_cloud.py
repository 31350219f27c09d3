"""A Google Cloud in a folder: a strict gcloud on PATH (cloud/gcloud.py), and slices whose hosts are folders."""

from __future__ import annotations

import contextlib
import io
import json
import os
import py_compile
import shlex
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tiny_capture import tiny_capture

from tracewarehouse.cli import run
from tracewarehouse.collect.checks.reference import FOLDER
from tracewarehouse.collect.tpu.state import State

PROGRAMS = Path(__file__).parent / "cloud"
REPO = Path(__file__).parents[3]
TOOLS = ("python3", "uv", "python", "sudo", "findmnt", "lsblk", "blkid", "mkfs.ext4", "mount")
TOOLS += ("mountpoint", "gcsfuse")
HOSTNAME = '#!/bin/sh\necho "t1v-n-$FAKE_MACHINE-w-$FAKE_WORKER"\n'
"""As Google names the hosts of a slice; asked for so often that Python would take too long to start."""
TYPES = {"v4": (8, 16, 32, 64), "v5litepod": (1, 4, 8, 16, 32, 64), "v6e": (1, 4, 8, 16, 32, 64)}
ZONES = {
    "us-central2-b": ["v4"],
    "us-central1-a": ["v5litepod"],
    "europe-west4-b": ["v5litepod"],
    "us-east1-d": ["v6e"],
    "europe-west4-a": ["v6e"],
}
DP2TP2, TP4, DP4TP4 = "llama-dp2tp2-b16-i32-o17-tpu", "llama-tp4-b16-i32-o17-tpu", "llama-dp4tp4-b16-i32-o17-tpu"


@dataclass
class Done:
    """What a command did."""

    returncode: int
    stdout: str
    stderr: str


class Cloud:
    """A fake gcloud on PATH, whose virtual machines are folders."""

    def __init__(self, folder: Path, modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "cloud"
        self.output = folder / "captures"
        self.home = folder / "home"
        self.state = State(folder / "state.json")
        self.quota: Path | None = None
        programs = folder / "bin"
        for path in (self.folder, self.folder / "tpus", self.folder / "host-bin", self.home / ".ssh", programs):
            path.mkdir(parents=True)
        _program(programs / "gcloud", modules, "gcloud")
        _program(programs / "ssh-add", modules, "ssh_add")
        for tool in TOOLS:
            _program(self.folder / "host-bin" / tool, modules, "host")
        _executable(self.folder / "host-bin" / "hostname", HOSTNAME)
        for name, text in (("google_compute_engine", "private"), ("google_compute_engine.pub", "ssh-rsa AAAA me")):
            (self.home / ".ssh" / name).write_text(text)
        tiny_capture().write(self.folder / "profile")
        self.wheel = folder / "tracewarehouse-1-py3-none-any.whl"
        self.wheel.write_bytes(b"wheel")
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPO),
            "FAKE_CLOUD": str(self.folder),
            "HOME": str(self.home),
            FOLDER: str(self.home / "references"),
        }
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        for name in ("HF_TOKEN", "HF_HOME", "HF_TOKEN_PATH", "HF_HUB_CACHE", "TRACEWAREHOUSE_SQL"):
            monkeypatch.delenv(name, raising=False)
        self.world(
            account="student@example.com",
            project="study",
            services=["tpu.googleapis.com", "compute.googleapis.com"],
            zones={z: [f"{p}-{n}" for p in prefixes for n in TYPES[p]] for z, prefixes in ZONES.items()},
            networks={"default": {}},
            rules={"ssh": {"network": "default", "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}},
            disks={},
            buckets=[],
            service_accounts=[],
            identities=["service-1@cloud-tpu.iam.gserviceaccount.com"],
        )
        self.experiment = folder / "experiment.yaml"
        self.experiment.write_text(
            "defaults: {device: tpu, backend: torch_xla, batch: 16}\n"
            "runs: [{mesh: tp=4}, {mesh: 'dp=2,tp=2'}, {mesh: 'dp=4,tp=4'}]\n"
        )

    def world(self, **facts: Any) -> None:
        """Change what the project has."""
        file = self.folder / "project.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(known | facts))

    def arguments(self, *arguments: str | Path) -> list[str]:
        """A command of `tw tpu` with this cloud's files, and no time to wait for."""
        verb = str(arguments[0])
        more: list[str | Path] = ["--state", self.state.path]
        more += ["--backoff", "0.01"] if verb in ("create", "run", "delete") else []
        more += ["--poll", "0.2"] if verb == "run" else []
        more += ["--wheel", self.wheel] if verb == "run" and "--setup" not in arguments else []
        more += ["-o", self.output] if verb in ("run", "fetch", "doctor") else []
        more += ["--quota", self.quota] if self.quota and verb not in ("fetch", "delete") else []
        return ["tpu", *map(str, [*arguments, *more])]

    def tw(self, *arguments: str | Path) -> Done:
        """Run a command of `tw tpu` in this process."""
        return tw(*self.arguments(*arguments))

    def start(self, *arguments: str | Path, **streams: Any) -> subprocess.Popen[str]:
        """Start a command of `tw tpu` in a process of its own."""
        code = "from tracewarehouse.cli import main; main()"
        command = [sys.executable, "-c", code, *self.arguments(*arguments)]
        return subprocess.Popen(
            command, env=os.environ | self.environment, text=True, start_new_session=True, **streams
        )

    def gcloud(self, line: str) -> Done:
        """Run a gcloud command as somebody would who copies it from a page or from what tw prints."""
        done = subprocess.run(shlex.split(line), capture_output=True, text=True, check=False, timeout=60)
        return Done(done.returncode, done.stdout, done.stderr)

    def fault(self, verb: str, *texts: str, **how: Any) -> None:
        """Let the next calls of a verb fail, one per text; an empty one does not."""
        file = self.folder / "faults.json"
        faults = json.loads(file.read_text()) if file.exists() else []
        file.write_text(json.dumps([*faults, {"verb": verb, "texts": list(texts), "code": 255, **how}]))

    def calls(self, *words: str) -> list[str]:
        """The gcloud commands so far that contain all of these words."""
        path = self.folder / "calls.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return ["gcloud " + shlex.join(c) for c in lines if all(w in c for w in words)]

    def recorded(self) -> list[str]:
        """`run worker` of each recording that was begun, in order of the names."""
        file = self.folder / "recorded"
        return sorted(line.rpartition(" ")[0] for line in file.read_text().splitlines()) if file.exists() else []

    def rounds(self, run_name: str) -> dict[str, set[str]]:
        """Token of each round of a run to the workers that began it."""
        found: dict[str, set[str]] = {}
        for line in (self.folder / "recorded").read_text().splitlines():
            name, worker, token = line.split()
            if name == run_name:
                found.setdefault(token, set()).add(worker)
        return found

    def captures(self) -> list[str]:
        """Finished ones: a copy that is still being put together has a hidden name, which glob finds as well."""
        return sorted(p.parent.name for p in self.output.glob("[!.]*/manifest.json"))

    def node(self, name: str) -> dict[str, Any]:
        """A slice, as Google knows it."""
        return dict(json.loads((self.folder / "tpus" / name / "node.json").read_text()))

    def change_node(self, name: str, **facts: Any) -> None:
        """Change a slice behind the back of its user."""
        (self.folder / "tpus" / name / "node.json").write_text(json.dumps(self.node(name) | facts))

    def exists(self, name: str) -> bool:
        """Whether a slice or a request for one is there, and may cost."""
        return (self.folder / "tpus" / name).exists() or (self.folder / "queue" / f"{name}.json").exists()

    def occupy(self, name: str, **labels: str) -> None:
        """Somebody else's slice."""
        (self.folder / "tpus" / name / "0").mkdir(parents=True)
        node = {"state": "READY", "labels": labels, "networkEndpoints": [{}]}
        (self.folder / "tpus" / name / "node.json").write_text(json.dumps(node))


def tw(*arguments: str) -> Done:
    """Run `tw` in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(list(arguments))
    return Done(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


def compiled_programs(folder: Path) -> Path:
    """The modules of cloud/ as bytecode: a test starts them a hundred times."""
    for source in PROGRAMS.glob("*.py"):
        py_compile.compile(str(source), str(folder / f"{source.stem}.pyc"), doraise=True)
    return folder


def _program(path: Path, modules: Path, module: str) -> None:
    """An executable that runs `main` of a module of cloud/ under its own name."""
    code = f"""import os, sys
os.environ["FAKE_TOOL"] = {path.name!r}
sys.path.insert(0, {str(modules)!r})
import {module}
sys.exit({module}.main(sys.argv[1:]))"""
    _executable(path, f"#!{sys.executable} -S\n{code}\n")


def _executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
