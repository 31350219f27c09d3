"""Keeps pyarrow from importing pandas if nothing uses it."""

from __future__ import annotations

import sys

import pyarrow as pa


class _NotInstalled:
    """An entry of `sys.meta_path` that hides pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is kept out", name=name)
        return


def keep_pandas_out() -> None:
    """Make pyarrow believe that pandas is not installed, in this process and in those forked from it.

    If pandas is installed, pyarrow imports it for the first array of Python objects, which takes a seventh of the time
    of a small ingest. pyarrow looks for it only once: its own `to_pandas` fails from now on, while `import pandas`
    works as before.
    """
    barrier = _NotInstalled()
    sys.meta_path.insert(0, barrier)
    try:
        pa.array([None])
    finally:
        sys.meta_path.remove(barrier)
