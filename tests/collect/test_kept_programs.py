"""Programs that were compiled before are found by what is compiled, wherever its lines stand in our source."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

if not all(map(find_spec, ("jax", "libtpu"))):
    pytest.skip("jax and libtpu are not installed", allow_module_level=True)


class Program:
    """A lowered program whose text names places in source files."""

    def __init__(self, line: int, op: str = "psum", file: str = "/a/model.py") -> None:
        self._text = (
            f'%0 = all_reduce loc(#loc1)\n#loc1 = loc("{file}":{line}:18 to {line + 1}:63)\n#loc2 = loc("{op}")'
        )

    def as_text(self, *, debug_info: bool) -> str:
        assert debug_info
        return self._text


def test_an_edit_above_a_line_compiles_nothing_anew() -> None:
    def digest(*program: Any, topology: str = "v6e:2x4") -> str:
        from tracewarehouse.collect.jax.ahead_of_time import _digest

        return _digest(Program(*program), topology)

    assert digest(136) == digest(140) == digest(140, "psum", "/b/model.py")
    others = {
        digest(136),
        digest(136, "all_gather"),
        digest(136, "psum", "/a/stack.py"),
        digest(136, topology="v5e:2x4"),
    }
    assert len(others) == 4
