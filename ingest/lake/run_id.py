"""The id of a run, which follows from the bytes of its capture."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def digest_of(digests: Iterable[str]) -> str:
    """The digest of a capture, computed from the digests of its files in any order."""
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def run_id_of(source_digest: str) -> str:
    """The run id of a capture with this digest."""
    return f"r{source_digest[:12]}"
