"""Whole ingests, with metric values, against the capture's bytes and the warehouse's own checks."""

from __future__ import annotations

import gzip
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
from benchmarks.tpu_captures import write_capture
from chrome_reference import plain_planes as plain_chrome
from chrome_reference import reference as chrome_planes
from fuzz.chrome import ChromeTarget
from fuzz.judging import Target, UnknownError, scratch_file
from fuzz.seeds import capture_files
from google.protobuf.message import DecodeError
from tiny_capture import tiny_capture
from xplane_reference import MESSAGES

import tracewarehouse as tw
from tracewarehouse.evaluation.fsck import Problem
from tracewarehouse.ingest import capture_comparison
from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.errors import CaptureError, MetricError, TracewarehouseError
from tracewarehouse.ingest.lake.fsck import fsck as fsck_of_lake
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.ingest.tables import parts

NUMBERS = (0, 1, 2, 3, -1, -7, 10**6, 10**9, 10**12, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63))
TEXTS = (
    b"", b"Steps", b"XLA Modules", b"XLA Ops", b"Async XLA Ops", b"Framework Ops", b"XLA TraceMe", b"SparseCore Ops",
    b"step 1", b"decode(12)", b"prefill.11(11)", b"%all-reduce.1 = f32[8]{0} all-reduce(f32[8]{0} %x), channel_id=1, "
    b"replica_groups={{0,1}}, to_apply=%add", b"%x-start = (f32[8]{0}, f32[8]{0}) all-gather-start(f32[8]{0} %a), "
    b"dimensions={0}", b"%x-done = f32[8]{0} all-gather-done((f32[8]{0}, f32[8]{0}) %x-start)", b"\xff\xfe", b"a\0b",
    b"%while.1 = (s32[]) while((s32[]) %t), condition=%c, body=%b", b"all-reduce", b"layer1/moe/op",
)  # fmt: skip
PLANES = (
    b"/device:TPU:0", b"/device:TPU:1", b"/device:TPU:1 SparseCore 0", b"/device:GPU:0", b"/host:CPU",
    b"/host:metadata", b"/device:CUSTOM:Megascale Trace", b"Task Environment", b"#Chip TPU Non-Core HW DRAM#",
    b"/device:TPU:99999999", b"",
)  # fmt: skip
JAX = Path(__file__).resolve().parents[1] / "ingest" / "captures" / "jax-dp2tp2.xplane.pb.gz"
LIMIT = 900_000
"""Bytes of the largest capture that is damaged: an ingest takes a hundred times as long as a reading."""


class _IngestTarget(Target):
    """An ingest that succeeds must have every event and stat of the bytes, as another parser reads them.

    The checks of its warehouse must find nothing, and its audits nothing but what the damage explains.
    """

    works, memory, room = 100.0, 64 << 20, 32 << 30  # of DuckDB's, which takes address space for what it may use

    def __init__(self) -> None:
        self._path = scratch_file(self, f"x{self.suffix}")

    def read(self, data: bytes) -> list[str]:
        return self.ingested(data)[0]

    def ingested(
        self, data: bytes, jobs: int | None = None, *, is_audited: bool = True
    ) -> tuple[list[str], dict[str, list[str]]]:
        """What must not be in a warehouse of these bytes, and the rows of its tables."""
        self._path.write_bytes(data)
        folder = self._path.parent / "warehouse"
        try:
            warehouse = tw.open(folder, create=True)
            [result] = warehouse.ingest(self._path, jobs=jobs)
            [capture] = find_captures(self._path)
            lost = [f"lost: {d}" for d in warehouse.against(capture).differences]
            problems = warehouse.fsck() if is_audited else fsck_of_lake(folder)
            lost += [f"fsck: {p.sentence}" for p in problems if not _is_of_the_bytes(p)]
            paths = {t: warehouse.lake.paths(result.entry, t) for t in TABLES}
            return lost, {
                t: [str(r) for p in found for r in pq.read_table(p).to_pylist()] for t, found in paths.items()
            }
        except MetricError as error:  # which no capture may cause
            raise AssertionError(str(error)) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def may_refuse(self, data: bytes, want: Any, refusal: str) -> str:
        return refusal.partition(": ")[2] or refusal


class ChromeIngestTarget(_IngestTarget):
    """The traces that the Chrome reader is fuzzed with."""

    name = "ingest-chrome"
    suffix = ChromeTarget.suffix

    def __init__(self, traces: Path | None = None) -> None:
        super().__init__()
        self._traces = ChromeTarget(traces)

    def make(self, r: random.Random) -> tuple[str, bytes]:
        return self._traces.make(r)

    def read(self, data: bytes) -> list[str]:
        with patch.object(capture_comparison, "plain_planes", plain_chrome):
            return super().read(data)

    def reference(self, data: bytes) -> list[str]:
        try:
            chrome_planes(data)
        except (ValueError, RecursionError) as error:
            raise UnknownError(str(error)) from None
        return []


class IngestTarget(_IngestTarget):
    """Captures of TPU, GPU and CPU devices whose times, names, references and structure were changed."""

    name = "ingest"
    suffix = ".xplane.pb"

    def __init__(self, traces: Path | None = None) -> None:
        super().__init__()
        made = self._path.with_name("made.xplane.pb")
        write_capture(made, 0.05, devices=2, ops=40)
        files = [made, *(f for f in capture_files(traces, ".xplane.pb") if f.stat().st_size < LIMIT)]
        seeds = [tiny_capture().to_bytes(), *(f.read_bytes() for f in files), gzip.decompress(JAX.read_bytes())]
        self._corpus = [MESSAGES["XSpace"].FromString(data) for data in seeds]

    def make(self, r: random.Random) -> tuple[str, bytes]:
        space = MESSAGES["XSpace"]()
        space.CopyFrom(self._corpus[0] if r.random() < 0.5 else r.choice(self._corpus))
        kind = r.choice(list(DAMAGES))
        for _ in range(r.choice((1, 1, 3, 20))):
            DAMAGES[kind](r, space)
        return kind, space.SerializeToString()

    def reference(self, data: bytes) -> list[str]:
        try:
            MESSAGES["XSpace"].FromString(data)
        except DecodeError as error:
            raise UnknownError(str(error)) from None
        return []


class DividedIngestTarget(IngestTarget):
    """The same captures in parts, as large ones are written, by one process or two.

    Parts must be taken where the whole is, and hold its rows.
    """

    name = "ingest-divided"

    def read(self, data: bytes) -> list[str]:
        with patch.object(parts, "DIVIDED", 0), patch.object(parts, "_SMALLEST", 200):
            found = self._outcome(data, 1 + len(data) % 2)
        whole = self._outcome(data, 1)
        if isinstance(found, str) and isinstance(whole, str):
            raise CaptureError(found)
        if isinstance(found, str):
            return [f"refused only in parts: {found}"]
        if isinstance(whole, str):
            return [f"refused only as a whole: {whole}"]
        return found[0] + whole[0] + [f"rows of {t} differ" for t in TABLES if found[1][t] != whole[1][t]]

    def _outcome(self, data: bytes, jobs: int) -> tuple[list[str], dict[str, list[str]]] | str:
        try:
            return self.ingested(data, jobs, is_audited=False)  # the audits of such captures run in `ingest`
        except TracewarehouseError as error:
            return str(error)


def _is_of_the_bytes(problem: Problem) -> bool:
    """Whether it is an audit's finding: damaged times do break what the audits expect of a profiler."""
    return problem.sentence.startswith("audit ")


def _lines(space: Any) -> list[Any]:
    return [line for plane in space.planes for line in plane.lines]


def _events(r: random.Random, space: Any) -> list[Any]:
    lines = [line for line in _lines(space) if line.events]
    return list(r.choice(lines).events) if lines else []


def _number(r: random.Random, value: int) -> int:
    found = r.choice((r.choice(NUMBERS), value + r.choice(NUMBERS), value + r.randrange(-50_000_000, 50_000_000)))
    return max(-(1 << 63), min(found, (1 << 63) - 1))


def _time(r: random.Random, space: Any) -> None:
    for event in r.choices(_events(r, space), k=r.choice((1, 3))) if _events(r, space) else ():
        name = r.choice(("offset_ps", "duration_ps", "duration_ps", "num_occurrences"))
        setattr(event, name, _number(r, getattr(event, name)))


def _line_time(r: random.Random, space: Any) -> None:
    if lines := _lines(space):
        line = r.choice(lines)
        name = r.choice(("timestamp_ns", "timestamp_ns", "duration_ps", "id", "display_id"))
        setattr(line, name, _number(r, getattr(line, name)))


def _metadata(r: random.Random, space: Any) -> None:
    if events := _events(r, space):
        r.choice(events).metadata_id = r.choice((r.choice(events).metadata_id, r.choice(NUMBERS)))


def _stat(r: random.Random, space: Any) -> None:
    owners = [*_events(r, space), *space.planes]
    owners += [e.value for p in space.planes for e in p.event_metadata]
    owner = r.choice([o for o in owners if o.stats] or [None])
    if owner is None:
        return
    stat = r.choice(owner.stats)
    which = r.randrange(7)
    if which == 0:
        stat.metadata_id = r.choice((stat.metadata_id + 1, r.choice(NUMBERS)))
    elif which == 1:
        stat.int64_value = _number(r, stat.int64_value)
    elif which == 2:
        stat.uint64_value = r.choice(NUMBERS) % (1 << 64)
    elif which == 3:
        stat.double_value = r.choice((0.5, -1.0, float("inf"), float("nan"), 1e300, 5e-324))
    elif which == 4:
        stat.str_value = r.choice(TEXTS)
    elif which == 5:
        stat.ref_value = r.choice(NUMBERS) % (1 << 64)
    else:
        del owner.stats[r.randrange(len(owner.stats))]


def _text(r: random.Random, space: Any) -> None:
    named = [e.value for p in space.planes for e in (*p.event_metadata, *p.stat_metadata)] + _lines(space)
    if named:
        owner = r.choice(named)
        field = r.choice([f for f in ("name", "name", "display_name") if hasattr(owner, f)])
        text = getattr(owner, field)
        at = r.randrange(len(text) + 1)
        cut = text[:at] + r.choice(TEXTS)[: r.randrange(9)] + text[at + r.randrange(4) :]
        setattr(owner, field, r.choice((cut, cut, r.choice(TEXTS), getattr(r.choice(named), field, text))))


def _plane(r: random.Random, space: Any) -> None:
    if space.planes:
        r.choice(space.planes).name = r.choice(PLANES)


def _structure(r: random.Random, space: Any) -> None:
    """Something is there twice, or not at all, or elsewhere."""
    parents: list[Any] = [space.planes, *(p.lines for p in space.planes), *(line.events for line in _lines(space))]
    parents += [p.event_metadata for p in space.planes] + [p.stat_metadata for p in space.planes]
    parents += [parents[0], *(p.lines for p in space.planes)] * 3
    items = r.choice([p for p in parents if p] or [None])
    if items is None:
        return
    at = r.randrange(len(items))
    what = r.randrange(4)
    if what == 0:
        del items[at]
    elif what == 1:
        items.add().CopyFrom(items[at])
    elif what == 2:
        i = r.randrange(len(items))
        kept = type(items[at])()
        kept.CopyFrom(items[at])
        items[at].CopyFrom(items[i])
        items[i].CopyFrom(kept)
    else:
        for item in list(items)[at:]:
            items.remove(item)


DAMAGES: dict[str, Callable[[random.Random, Any], None]] = {
    "time": _time,
    "line time": _line_time,
    "metadata": _metadata,
    "stat": _stat,
    "text": _text,
    "plane": _plane,
    "structure": _structure,
    "any": lambda r, space: DAMAGES[r.choice([k for k in DAMAGES if k != "any"])](r, space),
}
"""By name, what changes a capture at one place."""
