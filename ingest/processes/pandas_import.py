"""Keeps pyarrow from importing pandas where nothing uses it."""

from __future__ import annotations

import sys

import pyarrow as pa


class _NotInstalled:
    """An entry of `sys.meta_path` for which there is no pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is kept out", name=name)
        return


def keep_pandas_out() -> None:
    """Let pyarrow take pandas for not installed, in this process and in those that are forked from it.

    Where pandas is installed, pyarrow imports it for the first array that is made of Python objects, which is a seventh
    of the time of a small ingest. pyarrow looks for it only once: its own `to_pandas` fails from now on, while
    `import pandas` works as before.
    """
    barrier = _NotInstalled()
    sys.meta_path.insert(0, barrier)
    try:
        pa.array([None])
    finally:
        sys.meta_path.remove(barrier)
