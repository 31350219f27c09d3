"""A capture with more of something than any profiler writes is refused in one sentence, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nsys_builder import Export
from tests.xplane_builder import Space, Unsigned
from tracewarehouse.ingest.columns import bounds
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.pipeline import ingest_one

US = 1_000_000
Write = Callable[[Path, int], Path]


def xplane(folder: Path, *, ops: int = 1, lines: int = 0, names: int = 0, nested: int = 0) -> Path:
    """A device with so many instructions and further lines, a thread with so many names, and so deep a loop."""
    space = Space()
    tpu = space.tpu(0)
    tpu.modules.event("step(1)", 0, 1000 * US)
    for i in range(ops):
        hlo = f"%fusion.{i} = f32[8]{{0}} fusion(f32[8]{{0}} %x), kind=kLoop, calls=%f"
        tpu.ops.event(tpu.instruction(hlo, program_id=Unsigned(1)), i * US, US)
    loop = tpu.instruction("%while = f32[8]{0} while(f32[8]{0} %x), condition=%c, body=%b", program_id=Unsigned(1))
    for i in range(nested + 1 if nested else 0):
        tpu.ops.event(loop, (100 + i) * US, (200 - 2 * i) * US)
    for i in range(lines):
        tpu.line(f"line {i}").event(loop, 0, US)
    thread = space.plane("/host:CPU").line("python")
    for i in range(names):
        thread.event(f"name {i}", i * US, US)
    return space.write(folder / "capture.xplane.pb")


def chrome(folder: Path, count: int, **member: object) -> Path:
    """A trace of so many names; with the members of Kineto one of its."""
    events = [
        {
            "ph": "X",
            "cat": "cpu_op" if member else "",
            "name": f"name {i}",
            "pid": 1,
            "tid": 1,
            "ts": i,
            "dur": 1,
            "args": {},
        }
        for i in range(count)
    ]
    path = folder / "capture.trace.json"
    path.write_text(json.dumps({**member, "traceEvents": events}))
    return path


def nsys(folder: Path, *, names: int = 0, nested: int = 0) -> Path:
    """An export of so many texts, and of ranges that nest so deep."""
    export = Export().range(0, 1, "name 0")
    for i in range(names):
        export.text(f"text {i}")
    for i in range(nested + 1 if nested else 0):
        export.range(1000 + i, 2000 - i, "name 0")
    return export.write(folder / "capture.sqlite")


CASES: dict[str, tuple[str, int, str, Write]] = {
    "device lines": ("DEVICE_LINES", 8, "lines of devices", lambda f, n: xplane(f, lines=n - 2)),
    "instructions": ("INSTRUCTIONS", 8, "instructions of a program", lambda f, n: xplane(f, ops=n - 3)),
    "names": ("NAMES", 8, "names of events", lambda f, n: xplane(f, names=n - 3)),
    "nested ops": ("NESTED", 8, "nested ops of a loop", lambda f, n: xplane(f, nested=n)),
    "names of a Chrome trace": ("NAMES", 8, "names of events", chrome),
    "names of an export": ("NAMES", 8, "names of events", lambda f, n: nsys(f, names=n)),
    "nested ranges": ("RANGES", 8, "nested NVTX ranges of a thread", lambda f, n: nsys(f, nested=n)),
    "names of a Kineto trace": ("NAMES", 8, "names of events", lambda f, n: chrome(f, n, schemaVersion=1)),
}


@pytest.mark.parametrize(("bound", "most", "sentence", "write"), CASES.values(), ids=CASES)
def test_one_more_than_the_bound_is_refused(
    bound: str, most: int, sentence: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, bound, most)
    warehouse = tmp_path / "warehouse"
    ingest_one(write(tmp_path, most), warehouse)
    with pytest.raises(CaptureError) as refused:
        ingest_one(write(tmp_path, most + 1), warehouse)
    message = str(refused.value)
    assert f"looked for the {sentence}, found more than {most} " in message
    assert message.count("capture") == 1
    assert "\n" not in message
    assert len(Lake(warehouse).runs()) == 1
    assert not [f for f in warehouse.rglob("*") if "staging" in f.parts and f.is_file()]


@pytest.mark.parametrize(("first", "last", "is_taken"), [(-(1 << 61), 1 << 61, True), (-(1 << 61), 3 << 60, False)])
def test_a_run_of_53_days_is_refused(tmp_path: Path, first: int, last: int, is_taken: bool) -> None:
    """The length of a pause between two events would not fit 64 bits at some 106 days."""
    space = Space()
    space.tpu(0).ops.event("a", first, 0)
    space.plane("/host:CPU").line("python").event("b", last, 0)
    path = space.write(tmp_path / "x.xplane.pb")
    if is_taken:
        ingest_one(path, tmp_path / "w")
        return
    with pytest.raises(CaptureError, match="the picoseconds of all events, found more than 4,611,686,018,427,387,904"):
        ingest_one(path, tmp_path / "w")
    assert Lake(tmp_path / "w").runs() == []
