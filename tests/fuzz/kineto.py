"""The Kineto reader against json and plain loops."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import kineto_reference
from fuzz.chrome import PIECES, damaged
from fuzz.judging import RefusedError, Target, UnknownError, scratch_file

KINDS = ("none", "none", "none", "none", "truncate", "flip", "delete", "token", "splice", "swap")
NAMES = ("ncclDevKernel_Generic", "nvjet_tst", "void at::native::add<float>", "Memcpy DtoD (Device -> Device)", "é", "")


class KinetoTarget(Target):
    """Traces of a host that launches kernels on streams, with steps, graphs, and launches that are missing."""

    name = "kineto"
    suffix = ".pt.trace.json"

    def __init__(self, traces: Path | None = None) -> None:
        self._path = scratch_file(self, "x.pt.trace.json")

    def make(self, r: random.Random) -> tuple[str, bytes]:
        kind = r.choice(KINDS)
        return kind, damaged(r, trace(r), kind)

    def read(self, data: bytes) -> Any:
        self._path.write_bytes(data)
        return kineto_reference.read(self._path, PIECES[len(data) % len(PIECES)])

    def reference(self, data: bytes) -> Any:
        if not data:
            raise RefusedError("empty")
        try:
            return kineto_reference.reference(data)
        except RecursionError:
            raise UnknownError("nested too deeply for json") from None
        except (TypeError, KeyError) as error:  # fields of other types, which the reader refuses or reads as none
            raise UnknownError(str(error)) from None
        except ValueError as error:
            raise RefusedError(str(error)) from None

    def may_refuse(self, data: bytes, want: Any, refusal: str) -> str:
        for reason in (
            "two members are called",
            "Expected `",
            "nested too deeply",
            "Number out of range",
        ):
            if reason in refusal:
                return reason
        return ""


def trace(r: random.Random) -> bytes:
    """A trace whose steps follow each other on the host, and whose kernels run later, in order on each stream."""
    base = r.choice((0, 100, 4835912161316.594, 1661203462598738))
    decimals = r.choice((0, 3))
    host, free, correlation = 1.0, [1.0, 1.0], r.choice((1, 500))
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "python"}}]

    def add(cat: str, name: str, pid: int, tid: int, at: float, lasts: float, **args: Any) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": round(base + at, decimals)}
        events.append(event | {"dur": round(lasts, decimals), "args": args})

    for step in range(r.randrange(4)):
        begin = host
        for _ in range(r.randrange(6)):
            host += r.choice((1, 2.5))
            correlation += 1
            is_graph = r.random() < 0.2
            if r.random() < 0.9:
                call = "cudaGraphLaunch" if is_graph else "cudaLaunchKernel"
                add("cuda_runtime", call, 9, 9, host, 1, correlation=correlation)
            for _ in range(r.randrange(5) if is_graph else 1):
                stream = r.randrange(2)
                start = max(free[stream], host + 2)
                free[stream] = start + r.choice((0, 1, 3.25))
                cat, shape = r.choice(("kernel", "kernel", "gpu_memcpy")), {"grid": [r.randrange(9), 1, 1]}
                given = {"device": 0, "stream": 7 + stream, "correlation": correlation} | shape
                add(cat, r.choice(NAMES), 0, 7 + stream, start, free[stream] - start, **given)
        host += 3
        name = r.choice(("ProfilerStep#%d", "decode_%d", "other %d")) % step
        add("user_annotation", name, 9, 9, begin, host - begin - 1)
    add("cpu_op", "aten::mm", 9, 9, 1, 1, **{"Input Dims": [[1, 2], []]})
    r.shuffle(events)
    members = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]}
    return json.dumps(members | {"traceEvents": events}).encode()
