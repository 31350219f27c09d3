"""Computes the id of a run from the bytes of its capture."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from tracewarehouse.ingest.errors import WarehouseError

RUN_ID = re.compile(r"[0-9a-z][0-9a-z_-]{0,63}")
"""Pattern of run ids and of versions; each is the name of a folder."""


def digest_of(digests: Iterable[str]) -> str:
    """Return the digest of a capture, computed from the digests of its files in any order."""
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def run_id_of(source_digest: str) -> str:
    """Return the run id of a capture with this digest."""
    return f"r{source_digest[:12]}"


def checked(name: str) -> str:
    """Return a run id or version unchanged, if it is one.

    Raises:
        WarehouseError: it is none and could lead out of the lake.
    """
    if not RUN_ID.fullmatch(name):
        raise WarehouseError(f"{name!r} is not a run id or version: expected lower-case letters, digits, '-' and '_'")
    return name
