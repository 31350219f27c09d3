"""Every command of the README runs, in the order in which a reader meets them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
SHOWN = re.findall(r"^```bash\n((?:(?!^```).)*?)^```\n\n```text\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
"""Commands, and what stands below them."""
CAPTURES = ("llama-tp4-b4-i16-o17", "llama-tp4-sp-b4-i16-o9")
"""Captures of data/: the one that the README names, and another."""


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if k != "TRACEWAREHOUSE"} | {"PATH": path}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done


def test_commands_and_python_run_and_print_what_is_shown(tmp_path: Path) -> None:
    for name in CAPTURES:  # of all that a reader has there, which do not change what the commands do
        shutil.copytree(ROOT / "data" / "captures" / name, tmp_path / "data" / "captures" / name)
    printed: dict[str, str] = {}
    for language, block in BLOCKS:
        if block.startswith(("make", "tw collect")):
            continue  # tested below
        command = [sys.executable, "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]
        printed[block] = run([*command, block], tmp_path).stdout
    assert len(printed) >= 6
    assert len(SHOWN) >= 2
    for block, shown in SHOWN:
        assert printed[block].splitlines() == shown.splitlines(), block
    assert (tmp_path / "warehouse" / "warehouse.duckdb").is_file()
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_collect_command_records_a_capture(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch_xla") is None:
        pytest.skip("torch_xla is not installed; `make test` installs it where pip has it")
    block = next(block for _, block in BLOCKS if block.startswith("tw collect"))
    run(["bash", "-euo", "pipefail", "-c", block], tmp_path)
    assert len(list(tmp_path.glob("captures/*/plugins/profile/*/*.xplane.pb"))) == 1


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
