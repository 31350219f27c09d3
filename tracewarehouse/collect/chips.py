"""Reads the hardware table's facts about accelerators."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from tracewarehouse.collect.errors import CollectError


@cache
def known_chips() -> dict[str, dict[str, Any]]:
    """Return the entries of the table by kind, such as `TPU v5e`."""
    text = files("tracewarehouse").joinpath("hardware.json").read_text(encoding="utf-8")
    return {entry["kind"]: entry for entry in json.loads(text)["devices"]}


def chip_memory(kind: str) -> int:
    """Return the memory of a chip in bytes.

    Args:
        kind: Kind of the chip, as in the table.

    Raises:
        CollectError: the table does not state it.
    """
    entry = known_chips().get(kind, {})
    if "hbm_gb" not in entry:
        raise CollectError(f"the memory of {kind!r} is not known; known are {', '.join(known_chips())}")
    return int(entry["hbm_gb"] * 1e9)
