"""Writes tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def cell(text: object) -> str:
    """The text, escaped for a cell of a Markdown table."""
    return str(text if text is not None else "").replace("|", "\\|").replace("\n", " ")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(cell(c) for c in row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"
