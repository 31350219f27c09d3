"""The Chrome trace of a run: the profiler's layout, nothing left out, and read back as the same run."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from xplane_builder import Ref, Space, Unsigned

from tracewarehouse.exports import chrome
from tracewarehouse.exports.chrome import export_chrome
from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.warehouse import Warehouse, open_warehouse

OPS = """
    SELECT o.host, o.plane, o.line, d.local_ordinal, o.execution, i.program_id, i.name, i.opcode, i.category,
      i.op_class, i.collective,
      i.async_role, i.shape, i.dtype, i.message_bytes, i.group_size, i.replica_groups, i.op_name, i.source,
      i.channel_id, i.flops, i.model_flops, i.bytes_accessed, i.layer, i.part, o.start_ps, o.duration_ps, o.depth,
      o.self_ps, o.device_offset_ps, o.device_duration_ps
    FROM main.ops AS o
    INNER JOIN main.instructions AS i USING (run_id, instruction_id)
    LEFT JOIN main.devices AS d USING (run_id, device_id)
    WHERE run_id = $run
"""
COLLECTIVES = """
    SELECT c.host, d.local_ordinal, c.kind, c.group_size, c.rank_in_group, c.message_bytes, c.wire_bytes, c.is_async,
      c.start_ps, c.end_ps, c.exposed_ps, c.window_source, c.instance, c.dtype, c.channel_id, c.is_partial
    FROM main.collectives AS c
    INNER JOIN main.devices AS d USING (run_id, device_id)
    WHERE run_id = $run
"""
HOST_EVENTS = "SELECT host, plane, thread, name, start_ps, duration_ps FROM main.host_events WHERE run_id = $run"
COUNTERS = "SELECT name, plane, start_ps, value FROM main.counters WHERE run_id = $run"


def made(tmp_path: Path) -> Warehouse:
    """A run of one TPU with ops, an asynchronous copy, a counter and a host thread."""
    space = Space(hostnames=["h"])
    tpu = space.tpu(0)
    dot = tpu.instruction(
        '%dot.1 = bf16[8,8]{1,0} dot(%a, %b), metadata={op_name="a \\"b\\""}',
        hlo_category="convolution fusion",
        flops=1024,
        model_flops=1000,
        program_id=Unsigned(42),
        symbol_id=Unsigned(7),
        memory_access_breakdown=b"\1\2",
    )
    copy = tpu.instruction("%copy-start.1 = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(%a)", hlo_category="copy-start")
    tpu.modules.event("jit_step(42)", 1_000_000, 9_000_001, run_id=Unsigned(1))
    tpu.ops.event(dot, 1_000_000, 5_000_000, device_offset_ps=Unsigned(17), note="über\n", share=0.25)
    tpu.async_ops.event(copy, 2_000_000, 3_500_000)
    tpu.line("counters_1").event("power", 2_500_000, 0, watts=70)
    space.host().line("main", line_id=5).event("wait", 123, 1, what=Ref("lock"))
    space.write(tmp_path / "run.xplane.pb")
    warehouse = open_warehouse(tmp_path / "warehouse", create=True)
    warehouse.ingest(tmp_path / "run.xplane.pb")
    return warehouse


def exported(warehouse: Warehouse, target: Path) -> dict[str, Any]:
    export_chrome(warehouse, "run", target)
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def test_layout_is_that_of_the_profiler(tmp_path: Path) -> None:
    found = exported(made(tmp_path), tmp_path / "out.trace.json")
    events = found.pop("traceEvents")
    assert found == {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}}
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e.get("name") in chrome_names()}
    pid = next(pid for (pid, _), name in names.items() if name == "/device:TPU:0")
    lines = {name: tid for (p, tid), name in names.items() if p == pid}
    assert {"XLA Modules", "XLA Ops", "Async XLA Ops"} <= lines.keys()
    assert names[701, None] == "/host:CPU"
    assert events[-1] == {}
    events = [e for e in events if e.get("ph") not in ("M", None)]
    op = next(e for e in events if e["name"] == "dot.1")
    assert (op["ph"], op["tid"], op["ts"], op["dur"]) == ("X", lines["XLA Ops"], 1.0, 5.0)
    assert op["args"] == {
        "note": "über\n",
        "share": 0.25,
        "hlo_category": "convolution fusion",
        "long_name": '%dot.1 = bf16[8,8]{1,0} dot(%a, %b), metadata={op_name="a \\"b\\""}',
        "flops": "1024",
        "model_flops": "1000",
        "program_id": "42",
        "tf_op": 'a "b"',
        "symbol_id": "7",
        "memory_access_breakdown": "<opaque bytes>",
        "device_offset_ps": "17",
    }
    module = next(e for e in events if e["name"] == "jit_step(42)")
    assert (module["ts"], module["dur"], module["args"]) == (1.0, 9.000001, {"run_id": "1"})
    begin, end = (e for e in events if e["name"] == "copy-start.1")
    assert (begin["ph"], begin["ts"], begin["args"]["hlo_category"]) == ("b", 2.0, "copy-start")
    assert (end["ph"], end["ts"], end["id"], end["cat"]) == ("e", 5.5, begin["id"], begin["cat"])
    counter = next(e for e in events if e["name"] == "power")
    assert (counter["ph"], counter["ts"], counter["args"]) == ("C", 2.5, {"watts": 70})
    assert next(e for e in events if e["pid"] == 701) == {
        "ph": "X", "pid": 701, "tid": 5, "ts": 0.000123, "dur": 0.000001, "name": "wait", "args": {"what": "lock"},
    }  # fmt: skip


def chrome_names() -> set[str]:
    return {"process_name", "thread_name"}


def test_events_are_the_same_however_many_are_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = made(tmp_path)
    whole = exported(warehouse, tmp_path / "whole.json")
    monkeypatch.setattr(chrome, "AT_ONCE", 2)
    assert exported(warehouse, tmp_path / "pieces.json") == whole


def test_gzip_holds_the_same(tmp_path: Path) -> None:
    warehouse = made(tmp_path)
    whole = exported(warehouse, tmp_path / "whole.json")
    export_chrome(warehouse, "run", tmp_path / "packed.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "packed.json.gz").read_bytes())) == whole


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TracewarehouseError, match=r"out\.csv: a Chrome trace ends in \.json or \.json\.gz"):
        export_chrome(made(tmp_path), "run", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_times_before_the_profile_keep_their_sign(tmp_path: Path) -> None:
    space = Space(hostnames=["h"])
    space.tpu(0).ops.event("early", -1_500_000, 1)
    space.write(tmp_path / "run.xplane.pb")
    with open_warehouse(tmp_path / "warehouse", create=True) as warehouse:
        warehouse.ingest(tmp_path / "run.xplane.pb")
        start = warehouse.query("SELECT start_ps FROM main.ops").scalar()
        events = exported(warehouse, tmp_path / "out.json")["traceEvents"]
    assert start < 0
    assert next(e["ts"] for e in events if e.get("name") == "early") == start / 1e6


CAPTURES = sorted(p.parent.name for p in (ROOT / "data" / "captures").glob("*/manifest.json"))
SHARED = [
    "cpu/cpu_deepseekv3_dp2ep2tp2.xplane.pb",
    "cpu/cpu_llama_pp2tp2.xplane.pb",
    "gpu-mi300-jax-gemm.xplane.pb",
    "tpu-2chip-vllm-tp2-prefill.trace.json.gz",
    "tpu-2chip-vllm-tp2-prefill.xplane.pb",
    "tpu-v6e-4chip-host-offload.xplane.pb",
]


def comes_back(capture: Path, tmp_path: Path) -> None:
    """Ingest, export and ingest again; a run of one host does not keep the host's name, and no manifest comes along."""
    with open_warehouse(tmp_path / "first", create=True) as first:
        first.ingest(capture)
        run = first.lake.runs()[0].run_id
        export_chrome(first, run, tmp_path / "log")
        before = [first.query(sql, run=run) for sql in (OPS, COLLECTIVES, HOST_EVENTS, COUNTERS)]
    with open_warehouse(tmp_path / "second", create=True) as second:
        second.ingest(tmp_path / "log")
        [again] = second.lake.runs()
        after = [second.query(sql, run=again.run_id) for sql in (OPS, COLLECTIVES, HOST_EVENTS, COUNTERS)]
    hosts = len({row[0] for row in before[2].rows()})
    for one, other in zip(before, after, strict=True):
        skipped = 1 if hosts == 1 and one.columns[0] == "host" else 0
        assert Counter(row[skipped:] for row in one.rows()) == Counter(row[skipped:] for row in other.rows())


@pytest.mark.parametrize("name", CAPTURES)
def test_captures_of_the_repository_come_back(name: str, tmp_path: Path) -> None:
    comes_back(ROOT / "data" / "captures" / name, tmp_path)


@pytest.mark.parametrize("name", SHARED)
def test_real_captures_come_back(name: str, shared_traces: Path, tmp_path: Path) -> None:
    comes_back(shared_traces / name, tmp_path)
