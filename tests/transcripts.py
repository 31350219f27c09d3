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


def check(page: str, command: str, output: str, capsys: pytest.CaptureFixture[str], is_update: bool = False) -> bool:
    """Run a command, and assert that it prints what the page shows, or write that; whether the page shows any of it."""
    run(shlex.split(command))
    printed = capsys.readouterr()
    shown, found = output.rstrip(), "\n".join(line.rstrip() for line in (printed.out + printed.err).splitlines())
    if shown and is_update:
        text = (DOCS / page).read_text(encoding="utf-8")
        (DOCS / page).write_text(
            text.replace(f"$ tw {command}\n{shown}\n", f"$ tw {command}\n{found}\n"), encoding="utf-8"
        )
    elif shown:
        assert found == shown, f"{page}: {command}"
    return bool(shown)
