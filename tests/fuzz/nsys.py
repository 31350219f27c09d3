"""The reader of Nsight Systems' exports against a decoder that goes from row to row."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from fuzz.judging import RefusedError, Target, UnknownError, scratch_file
from nsys_builder import TABLES, Export
from nsys_reference import Streams, reference

from tracewarehouse.ingest.columns.batches import concatenate, integers
from tracewarehouse.ingest.columns.profiler_names import STREAM_PREFIX
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.nsys.reader import NsysTrace

DAMAGE = ("none", "none", "none", "table", "column", "value", "backwards", "truncate", "flip", "splice")
TEXTS = ("aten::mm, op_id = 3", "aten::linear, seq = 4, op_id = 9", "{'Module': 'model.layers.1.mlp', 'Inputs': []}",
         "decode 1", "prefill 0", "nccl:all_reduce", "a/b", "", "forward", "\u202e", "c10::x")  # fmt: skip
KERNELS = ("gemm", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "at::native::copy", "", "é")
ODD = ("soon", b"\xff", 1e300, 1 << 62, -(1 << 62), 10**18, None, 0, -1)


class NsysTarget(Target):
    """Exports made at random, with tables, columns and values that are absent or wrong, and damaged as bytes."""

    name = "nsys"
    suffix = ".sqlite"
    memory = 64 << 20

    def __init__(self, traces: Path | None = None) -> None:
        self._path = scratch_file(self, "x.sqlite")
        self._made = scratch_file(self, "made.sqlite")

    def make(self, r: random.Random) -> tuple[str, bytes]:
        kind = r.choice(DAMAGE)
        export = made(r)
        names = [name for name, rows in export.rows.items() if rows]
        if kind == "table":
            del export.rows[r.choice(names)]
        elif kind == "column":
            table = r.choice([n for n in names if n in TABLES])
            column = r.choice(list(export.rows[table][0]))
            for row in export.rows[table]:
                row.pop(column, None)
        elif kind == "value":
            row = r.choice(export.rows[r.choice(names)])
            row[r.choice([n for n in row if n != "shortName"])] = r.choice(ODD)  # which follows from demangledName
        export.write(self._made, order=-1 if kind == "backwards" else 1)
        data = bytearray(self._made.read_bytes())
        match kind:
            case "truncate":
                del data[r.randrange(len(data)) :]
            case "flip":
                for _ in range(r.choice((1, 1, 4))):
                    data[r.randrange(len(data))] = r.randrange(256)
            case "splice":
                start, at = r.randrange(len(data)), r.randrange(len(data))
                piece = data[start : start + r.choice((4, 60, 4096))]
                data[at : at + len(piece)] = piece
        return kind, bytes(data)

    def read(self, data: bytes) -> Any:
        self._path.write_bytes(data)
        return streams(NsysTrace(CaptureFile(self._path)))

    def reference(self, data: bytes) -> Any:
        self._path.write_bytes(data)
        try:
            return reference(self._path)
        except UnicodeDecodeError as error:
            raise UnknownError("a column whose name is no UTF-8") from error
        except ValueError as error:
            raise RefusedError(str(error)) from None

    def may_refuse(self, data: bytes, want: Any, refusal: str) -> str:
        reasons = ("another SQLite database", "its header states", "schemas 2 and 3", "looked for the tables")
        return next((reason for reason in reasons if reason in refusal), "")


def streams(trace: NsysTrace) -> Streams:
    """The events of each stream, as the reference gives them."""
    found: Streams = {}
    for plane in trace.planes:
        for line in plane.lines:
            if not line.name.startswith(STREAM_PREFIX):
                continue
            batch = concatenate(list(trace.batches(plane, line)))
            stats = {s.name: integers(s, len(batch)) for s in batch.stats}
            number = line.name.removeprefix(STREAM_PREFIX).split()[0]
            events = found.setdefault(plane.name, {}).setdefault(number, Counter())
            for i, kind in enumerate(batch.metadata.tolist()):
                metadata = plane.event_metadata[kind]
                path = next((s.value for s in metadata.stats if s.name == "tf_op"), None)
                start, end = int(batch.start_ps[i]), int(batch.start_ps[i] + batch.duration_ps[i])
                correlation, has = stats.get("correlation", ([0] * len(batch), [False] * len(batch)))
                is_unlinked = "is_unlinked" in stats and stats["is_unlinked"][1][i]
                told = int(correlation[i]) if has[i] else None
                events[metadata.name, start, end, told, path, not is_unlinked] += 1
    return found


def made(r: random.Random) -> Export:
    """An export of one process or more, whose ranges nest and whose times all differ."""
    export = Export(r.choice(("3.25.0", "2.9.1", None)))
    origin = r.choice((0, 0, 17_000_000_000, 1_700_000_000_000_000_000))
    now = origin
    is_mapped = r.random() < 0.5
    for pid in r.sample((7, 8, 70_000), r.choice((1, 1, 2))):
        if is_mapped:
            for ordinal in range(2):
                export.add("TARGET_INFO_CUDA_DEVICE", gpuId=r.randrange(3), cudaId=ordinal, pid=pid)
        for _ in range(r.choice((1, 3, 8))):
            now = _thread(r, export, pid, r.choice((pid, pid + 1)), now + 10, 0)
    if not export.rows.get("NVTX_EVENTS"):
        export.range(now, now + 5, "a")
    return export


def _thread(r: random.Random, export: Export, pid: int, tid: int, now: int, depth: int) -> int:
    """Add a range with what is in it, and return the time after it."""
    start, now = now, now + r.randrange(1, 9)
    for _ in range(r.randrange(4)):
        if depth < 4 and r.random() < 0.4:
            now = _thread(r, export, pid, tid, now, depth + 1)
            continue
        end = now + r.randrange(1, 5)
        reused = {"correlationId": r.randrange(4)} if r.random() < 0.2 else {}
        launch: int | None = export.call(now, end, pid=pid, tid=tid, eventClass=r.choice((0, 0, 1, 67)), **reused)
        now = end + r.randrange(1, 4)
        launch = r.choice((launch, launch, launch, None, 10**6))
        where = {"pid": pid, "deviceId": r.randrange(2), "streamId": r.choice((7, 7, 9)), "contextId": 1}
        at = now + r.randrange(100)
        match r.randrange(6):
            case 0:
                kinds = {"copyKind": r.randrange(-1, 15), "srcKind": r.randrange(9), "dstKind": 2}
                export.other("MEMCPY", at, at + 5, launch, bytes=r.choice((8, None)), **where, **kinds)
            case 1:
                export.other("MEMSET", at, at + 1, launch, bytes=4, value=0, **where)
            case 2:
                export.other("GRAPH_TRACE", at, at + 9, launch, graphId=r.randrange(2), **where)
            case _:
                export.kernel(at, at + r.randrange(9), r.choice(KERNELS), launch, **where)
    now += r.randrange(1, 5)
    export.range(start, now if r.random() < 0.95 else None, r.choice(TEXTS), pid=pid, tid=tid)
    return now + r.randrange(1, 5)
