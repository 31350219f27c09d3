"""docs/tpu.md, command by command, against the strict gcloud of tests/collect/tpu/cloud."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from tests.collect.tpu.fake_cloud import REPO, Cloud, tw
from tracewarehouse.collect.ahead_of_time import CompiledRun

PAGE = (REPO / "docs" / "tpu.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]
TOOLS = {
    "hf": 'case "$1 $2" in "auth login") mkdir -p ~/.cache/huggingface; echo hf_x > ~/.cache/huggingface/token;; '
    '"download Qwen/Qwen3-32B") ;; *) exit 2;; esac',
    "ssh-keygen": 'test "$*" = "-t rsa -N  -f $HOME/.ssh/google_compute_engine" || exit 2; '
    'echo private > "$6"; echo "ssh-rsa AAAA me" > "$6.pub"',
    "ssh-agent": "echo true",
}
"""What is on a laptop beside gcloud, as far as the page uses it."""


@pytest.fixture
def laptop(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """An empty project, and a folder with an experiment in the place of the study, whose captures are real."""
    cloud.world(account="", project="", services=[], identities=[])
    for file in (cloud.home / ".ssh").iterdir():
        file.unlink()
    programs = Path(os.environ["PATH"].partition(":")[0])
    for name, script in TOOLS.items():
        (programs / name).write_text(f"#!/bin/bash\n{script}\n")
        (programs / name).chmod(stat.S_IRWXU)
    (programs / "ssh-add").write_text('#!/bin/bash\ntest "$1" = -L && echo "ssh-rsa AAAA me"; exit 0\n')
    (cloud.folder / "real_worker").write_text(f"{REPO}:{REPO / 'tests'}")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("TRACEWAREHOUSE", raising=False)
    monkeypatch.setattr("tracewarehouse.collect.tpu.installation.build_wheel", lambda folder: cloud.wheel)
    # What it compiles is tested in test_ahead_of_time.py; here only that it takes the command.
    monkeypatch.setattr(
        "tracewarehouse.comparison.study.compile_all",
        lambda runs, *_: (CompiledRun(run, refused="not compiled here") for run in runs),
    )
    runs = "{device: tpu, mesh: tp=8, backend: 'fake_backend:FakeBackend'}"
    Path("tpu_v6e").write_text(f"runs: [{runs}]\n")
    return cloud


def perform(line: str) -> tuple[int, str, str]:
    """Run a line of the page."""
    if not line.startswith("tw "):
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr
    words = shlex.split(line)[1:]
    if words[0] == "tpu" and words[1] in ("create", "run", "delete"):
        words += ["--backoff", "0.01"]
    result = tw(*words)
    return result.returncode, result.stdout, result.stderr


def test_every_command_of_the_page_in_its_order(laptop: Cloud) -> None:
    assert len(COMMANDS) >= 20
    for line in COMMANDS:
        code, out, err = perform(line)
        if line.startswith("tw tpu doctor"):  # the bucket comes in the next chapter
            missing = [text for text in out.splitlines() if text.startswith("missing")]
            assert missing == re.findall(r"^missing .*$", PAGE, re.MULTILINE)
            assert code == 1
        elif line.startswith("tw plan"):
            assert code == 1
            assert "not compiled here" in out
        else:
            assert code == 0, (line, out, err)

    assert Path("sweep.html").stat().st_size > 10_000
    assert [p.name for p in Path("captures").iterdir() if p.is_dir()] == [
        "llama-tp8-b4-i32-o17-tpu-fake_backend-FakeBackend"
    ]
    assert not laptop.exists("one")
    assert not laptop.exists("two")


def test_the_commands_for_a_real_tpu_are_ones_that_create(laptop: Cloud) -> None:
    laptop.world(
        account="student@example.com",
        project="study",
        services=["tpu.googleapis.com"],
        disks={"weights": {"zone": "us-east1-d", "type": "hyperdisk-balanced", "sizeGb": 250}},
    )
    creations = re.findall(r"`(tw tpu create t [^`]*)`", PAGE)

    assert len(creations) >= 4
    for line in creations:
        for command in (line, "tw tpu delete t"):
            code, _, err = perform(command)
            assert code == 0, (command, err)
