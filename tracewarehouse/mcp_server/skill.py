"""Reads the page that teaches an agent the command line and the SQL of a warehouse."""

from __future__ import annotations

from pathlib import Path

SKILL = Path(__file__).resolve().parents[1] / "skills" / "tracewarehouse" / "SKILL.md"
"""The page; the format of skills prescribes the name of its folder."""


def skill() -> str:
    """The text of the page."""
    return SKILL.read_text(encoding="utf-8")
