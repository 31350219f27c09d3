"""Finds a chip in the table of hardware (hardware.json), by its name or by what a GPU states of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from tracewarehouse.ingest.errors import CaptureError, shown


def known_kind(text: str) -> tuple[str, str]:
    """Return backend and kind of a chip in the hardware table, given any of its names."""
    known = chip_named(text.replace("_", " ").strip()) or chip_named(f"TPU {text}")
    if known is None:
        kinds = ", ".join(entry["kind"] for entry in chips())
        raise CaptureError(f"the peaks of a {shown(text)!r} are not known; known are {kinds}")
    return "tpu" if known["link"] == "ici" else "gpu", known["kind"]


def chip_stated(vendor: str | None, stats: Mapping[str, float | None]) -> dict[str, Any] | None:
    """Return the entry of the GPU whose vendor, compute capability, memory and, if stated, cores these are."""
    capability, cores, memory = (
        f"{stats.get('compute_cap_major') or 0:.0f}.{stats.get('compute_cap_minor') or 0:.0f}",
        stats.get("core_count"),
        (stats.get("memory_size") or 0) / 1e9,
    )
    for entry in chips():
        states = entry.get("states")
        if (
            states
            and vendor
            and vendor.lower() == states["vendor"].lower()
            and capability == states["compute_capability"]
        ):
            low, high = states["memory_gb"]
            if low <= memory <= high and cores in (None, states["cores"]):
                return entry
    return None


def vendors() -> set[str]:
    """Return the vendors of GPUs, in lower case."""
    return {entry["states"]["vendor"].lower() for entry in chips() if "states" in entry}


def chip_named(kind: str | None) -> dict[str, Any] | None:
    """Return the entry of the table that has this name; None without one."""
    if kind is None:
        return None
    for entry in chips():
        if any(kind.lower() == m.lower() for m in entry["match"]):
            return entry
    return None


@cache
def chips() -> list[dict[str, Any]]:
    """Return the entries of the table."""
    content = json.loads((files("tracewarehouse") / "hardware.json").read_text(encoding="utf-8"))
    table: list[dict[str, Any]] = content["devices"]
    return table
