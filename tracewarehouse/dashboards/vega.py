"""Bundles Vega as one script, and keeps it in the user's cache folder, since vl-convert takes two seconds for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import version

from tracewarehouse.ingest.capture.locations import cache_folder
from tracewarehouse.ingest.lake.durable_files import placed_whole


@cache
def vega_script() -> str:
    """JavaScript that draws a specification; the same for every page."""
    name = f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home folder
        digest, _, kept = (cache_folder() / name).read_bytes().partition(b"\n")
        if digest == _digest(kept):
            return kept.decode()

    import vl_convert

    bundle: Callable[[], str] = vl_convert.javascript_bundle  # type: ignore[assignment]  # its snippet is optional
    script = bundle()
    with suppress(OSError, RuntimeError):
        cache_folder().mkdir(parents=True, exist_ok=True)
        with placed_whole(cache_folder() / name) as part:
            part.write_bytes(b"\n".join((_digest(script.encode()), script.encode())))
    return script


def _digest(script: bytes) -> bytes:
    return hashlib.sha256(script).hexdigest().encode()
