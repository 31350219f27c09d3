"""The page that teaches an agent the command line and the SQL of a warehouse."""

from __future__ import annotations

from pathlib import Path

SKILL = Path(__file__).resolve().parents[1] / "skills" / "tracewarehouse" / "SKILL.md"
"""The page, in a folder of the name that the format of skills asks for."""


def skill() -> str:
    """Its text."""
    return SKILL.read_text(encoding="utf-8")
