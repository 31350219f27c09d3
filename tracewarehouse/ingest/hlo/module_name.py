"""Reads the names that profilers give the executions of a program."""

from __future__ import annotations

import re

_MODULE = re.compile(r"(.*)\((\d+)\)", re.DOTALL)


def module_and_program(name: str) -> tuple[str, int | None]:
    """Split 'jit_f(123)' into ('jit_f', 123); a name without a program id keeps its whole text."""
    match = _MODULE.fullmatch(name)
    if not match or int(match.group(2)) >= 1 << 64:
        return name, None
    return match.group(1), int(match.group(2))
