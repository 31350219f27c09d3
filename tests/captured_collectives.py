"""The collectives of a recorded capture, against what its manifest promises."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tracewarehouse.ingest.capture.manifest import load_manifest
from tracewarehouse.ingest.pipeline import ingest_one


def collectives(capture: Path, warehouse: Path) -> list[dict[str, Any]]:
    ingest_one(capture, warehouse)
    (table,) = warehouse.rglob("collectives.parquet")
    rows: list[dict[str, Any]] = pq.read_table(table).to_pylist()
    return rows


def assert_as_promised(capture: Path, rows: list[dict[str, Any]], *, is_head_split: bool = True) -> None:
    """Every device has the promised collectives in every step, and no other but those of the argmax over tp."""
    manifest = load_manifest(capture / "manifest.json")
    found = Counter((c["device_id"], c["step"], c["kind"], c["axis"]) for c in rows)
    expected: Counter[tuple[int, int, str, str]] = Counter()
    for device, place in manifest.mesh.coordinates().items():
        for mark in manifest.phases:
            for p in manifest.promised_collectives or ():
                if p.phase == mark.name and p.stage in (None, place.get("pp")):
                    expected[device, mark.step, p.kind, p.axis] += p.count
            if manifest.mesh.axes.get("tp", 1) > 1 and is_head_split:
                expected[device, mark.step, "all-gather", "tp"] += 2
    assert found == expected
