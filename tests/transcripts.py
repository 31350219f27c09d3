"""The transcripts of the pages: commands of `tw`, and what stands below them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracewarehouse.cli import run

DOCS = Path(__file__).resolve().parent.parent / "docs"


def transcripts(*, on_spark: bool) -> Iterator[tuple[str, str, str]]:
    """Page, command and output of each `$ tw` line; those that ask Spark, or the others."""
    for page in sorted(DOCS.glob("*.md")):
        blocks = re.findall(r"^```\n(\$ tw .*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        for part in re.split(r"^\$ tw ", "\n".join(blocks), flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            if ("--engine spark" in command) == on_spark:
                yield page.name, command, output


def check(page: str, command: str, output: str, capsys: pytest.CaptureFixture[str]) -> bool:
    """Run a command, and assert that it prints what the page shows; whether the page shows any of it."""
    run(shlex.split(command))
    printed = capsys.readouterr()
    if output.strip():
        lines = (printed.out + printed.err).splitlines()
        assert [line.rstrip() for line in lines] == output.rstrip().splitlines(), f"{page}: {command}"
    return bool(output.strip())
