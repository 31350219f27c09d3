"""The names that profilers give to the executions of a program."""

from __future__ import annotations

import re

_MODULE = re.compile(r"(.*)\((\d+)\)", re.DOTALL)


def module_and_program(name: str) -> tuple[str, int | None]:
    """'jit_f(123)' -> ('jit_f', 123); a name without a program id keeps its whole text."""
    found = _MODULE.fullmatch(name)
    if not found or int(found.group(2)) >= 1 << 64:
        return name, None
    return found.group(1), int(found.group(2))
