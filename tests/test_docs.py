"""The generated pages are current."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tracewarehouse.cli import run

ROOT = Path(__file__).resolve().parent.parent


def test_generated_pages_are_current() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_transcripts_are_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stands below a `$ tw` line is what the command prints; where nothing does, it is not shown."""
    monkeypatch.delenv("TRACEWAREHOUSE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(ROOT / "data")
    shown = 0
    for page in sorted((ROOT / "docs").glob("*.md")):
        blocks = re.findall(r"^```\n(\$ tw .*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        for part in re.split(r"^\$ tw ", "\n".join(blocks), flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            if "--engine spark" in command and not find_spec("pyspark"):
                continue
            run(shlex.split(command))
            printed = capsys.readouterr()
            if expected.strip():
                lines = (printed.out + printed.err).splitlines()
                assert [line.rstrip() for line in lines] == expected.rstrip().splitlines(), f"{page.name}: {command}"
                shown += 1
    assert shown >= 3


def test_every_extra_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    table = re.findall(r"^\| (`[^|]+) \|", (ROOT / "docs" / "faq.md").read_text(), re.M)
    explained = {name for cell in table for name in re.findall(r"`([^`]+)`", cell)}
    assert explained == set(project["project"]["optional-dependencies"])
