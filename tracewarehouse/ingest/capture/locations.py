"""Tells whether a location is remote, and finds the folder of copies and derived files, and the sample capture."""

from __future__ import annotations

import os
import re
from pathlib import Path

CACHE_VARIABLE = "TRACEWAREHOUSE_CACHE"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


def is_remote(location: str | os.PathLike[str]) -> bool:
    """Whether a location is a URI rather than a path."""
    return _SCHEME.match(os.fspath(location)) is not None


def cache_folder() -> Path:
    """The user's cache folder: `$TRACEWAREHOUSE_CACHE`, or `tracewarehouse` where the user's caches are."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracewarehouse"


NAME = "llama-tp4-b4-i16-o17"


def sample() -> Path:
    """The folder of the sample capture, to query or to ingest.

    It is a real capture of torch_xla: a prefill of 16 tokens and 16 decode steps at batch size 4.
    """
    return Path(__file__).resolve().parents[2] / "sample_capture"
