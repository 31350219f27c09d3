"""Writes large traces of GPUs: Kineto's by repeating a recorded one, exports of Nsight Systems from nothing.

    python tests/benchmarks/gpu_captures.py OUT.pt.trace.json --megabytes 150
    python tests/benchmarks/gpu_captures.py OUT.sqlite --kernels 1000000

A repeated trace follows the one before on the same threads and streams, with correlations of its own. An export has a
call of the runtime and an NVTX range for each kernel, and a mark for each step of a thousand.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.nsys_builder import TABLES, VM  # noqa: E402

RECORDED = ROOT / "data" / "gpu" / "h200-torch-cuda-graph.pt.trace.json.gz"
_NUMBERS = ("correlation", "External id")
_APART = 1_000_000
"""What two repetitions of a number differ by; more than a recorded trace has."""


def write_kineto(path: Path, megabytes: float) -> None:
    """Write a Kineto trace of about this size; the same arguments give the same bytes."""
    members = json.loads(gzip.decompress(RECORDED.read_bytes()))
    events: list[dict[str, Any]] = members.pop("traceEvents")
    timed = [e for e in events if e["ph"] in "Xsft"]
    spans = [e for e in timed if e["ph"] == "X"]
    length = max(e["ts"] + e.get("dur", 0) for e in spans) - min(e["ts"] for e in spans) + 1000
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(members)[:-1] + ', "traceEvents": [\n')
        file.write(",\n".join(json.dumps(e) for e in events if e["ph"] == "M"))
        for i in range(1 << 30):
            if file.tell() >= megabytes * 1e6:
                break
            file.write(",\n" + ",\n".join(json.dumps(_repeated(e, i, length)) for e in timed))
        file.write("]}")


def _repeated(event: dict[str, Any], times: int, length: float) -> dict[str, Any]:
    event = event | {"ts": round(event["ts"] + times * length, 3)}
    if "id" in event:
        event["id"] += times * _APART
    if "args" in event:
        event["args"] = event["args"] | {n: event["args"][n] + times * _APART for n in _NUMBERS if n in event["args"]}
    return event


def write_nsys(path: Path, kernels: int) -> None:
    """Write an export of Nsight Systems with so many kernels."""
    texts = {f"kernel_{i}": i for i in range(200)} | {"cudaLaunchKernel_v7000": 200}
    texts |= {f"aten::op_{i}": 201 + i for i in range(50)}
    process = VM | 7 << 24
    here = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": process}
    here |= dict.fromkeys(("gridY", "gridZ", "blockX", "blockY", "blockZ"), 1) | {"registersPerThread": 32}
    here |= {"staticSharedMemory": 0, "dynamicSharedMemory": 0}
    on = {"globalTid": process | 7}
    starts = range(1_000_000, 1_000_000 + kernels * 8000, 8000)
    connection = sqlite3.connect(path)

    def add(table: str, rows: Iterator[dict[str, Any]]) -> None:
        columns = [c.strip() for c in TABLES[table].split(",")]
        connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
        marks = ", ".join("?" * len(columns))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", ([r.get(c) for c in columns] for r in rows))

    add("META_DATA_EXPORT", iter([{"name": "EXPORT_SCHEMA_VERSION", "value": "3.25.0"}]))
    add("StringIds", ({"id": i, "value": text} for text, i in texts.items()))
    add("TARGET_INFO_GPU", iter([{"id": 0, "name": "NVIDIA H100 80GB HBM3", "smCount": 132}]))
    add("CUPTI_ACTIVITY_KIND_KERNEL", (
        here | {"start": at, "end": at + 6000 + i % 1000, "correlationId": i + 1, "gridX": 1 + i % 7}
        | dict.fromkeys(("demangledName", "shortName"), i % 200)
        for i, at in enumerate(starts)
    ))  # fmt: skip
    add("CUPTI_ACTIVITY_KIND_RUNTIME", (
        on | {"start": at - 10_000, "end": at - 7000, "eventClass": 0, "correlationId": i + 1, "nameId": 200}
        for i, at in enumerate(starts)
    ))  # fmt: skip
    steps = (
        {"start": at - 10_700, "end": at + 7_985_000, "text": "execute_context_0(0)_generation_8(8)"}
        for at in starts[::1000]
    )
    ops = ({"start": at - 10_500, "end": at - 6500, "textId": 201 + i % 50} for i, at in enumerate(starts))
    add("NVTX_EVENTS", (on | {"eventType": 59, "domainId": 0} | e for events in (steps, ops) for e in events))
    connection.commit()
    connection.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--megabytes", type=float)
    parser.add_argument("--kernels", type=int)
    options = parser.parse_args()
    if options.kernels:
        write_nsys(options.path, options.kernels)
    else:
        write_kineto(options.path, options.megabytes)
