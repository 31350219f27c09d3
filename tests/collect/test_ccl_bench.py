"""Captures as rows of CCL-Bench."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tiny_capture import tiny_capture

from tests.collect.fake_cloud import tw
from tracewarehouse.collect.backend import Recording
from tracewarehouse.collect.capture import write_facts
from tracewarehouse.collect.ccl_bench import chrome_trace
from tracewarehouse.collect.errors import CollectError
from tracewarehouse.collect.run_spec import run_spec
from tracewarehouse.collect.workload_card import workload_card
from tracewarehouse.ingest.capture.manifest import Manifest, ModelFacts
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.warehouse import Warehouse


def capture(folder: Path, device: str = "tpu") -> Path:
    """A capture as the collector leaves it."""
    spec = run_spec(mesh="tp=2", device=device)
    recorded = Recording(model=ModelFacts(name="llama-tiny"), phases=[], hosts=["vm"], chip="TPU v6e")
    made = folder / spec.name
    tiny_capture().write(made / "plugins" / "profile" / "s" / "vm.xplane.pb")
    write_facts(made, workload_card(spec, recorded, "torch_xla", {}), Manifest(name=spec.name, hosts=["vm"]))
    return made


def test_a_row_has_card_and_trace_and_nothing_else(tmp_path: Path) -> None:
    made = capture(tmp_path / "captures")

    done = tw("tpu", "ccl-bench", str(made), "-o", str(tmp_path / "rows"))

    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'rows' / made.name}\n")
    row = tmp_path / "rows" / made.name
    assert sorted(p.name for p in row.iterdir()) == [f"{made.name}.yaml", "vm.trace.json"]
    card = yaml.safe_load((row / f"{made.name}.yaml").read_text())
    assert card["metric_source"]["traces"] == ["json_tpu"]
    assert card["workload"]["hardware"]["xpu_spec"]["model"] == "tpu_v6e"


def test_the_trace_has_what_their_tools_read(tmp_path: Path) -> None:
    """Two devices of 4 steps with 8 ops of 12 us and what is left to the end of each all-reduce."""
    events = chrome_trace(tiny_capture().to_bytes())["traceEvents"]

    planes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    tpus = [pid for pid, name in planes.items() if "/device:TPU:" in name]
    assert len(tpus) == 2
    ops = [e for e in events if e["ph"] == "X" and "hlo_category" in e["args"]]
    assert len(ops) == 2 * 4 * 8
    dots = [e for e in ops if e["name"] == "dot.0" and e["pid"] == tpus[0]]
    assert [e["ts"] for e in dots] == [10.0, 160.0, 310.0, 460.0]
    assert {(e["dur"], e["args"]["device_duration_ps"]) for e in dots} == {(12.0, 12_000_000)}
    assert dots[0]["args"]["hlo_category"] == "convolution fusion"
    reduces = [e["dur"] for e in ops if e["args"]["hlo_category"] == "all-reduce" and e["pid"] == tpus[0]]
    assert reduces[:4] == [8.0, 8.0, 8.0, 8.0]


def test_the_trace_is_the_capture(tmp_path: Path) -> None:
    """Ingested as a Chrome trace it has the ops of the profile."""
    row = tmp_path / "row"
    row.mkdir()
    (row / "vm.trace.json").write_text(json.dumps(chrome_trace(tiny_capture().to_bytes())))
    sql = "SELECT count(*), sum(self_ps) FROM models.leaf_ops"
    found = []
    for source in (row, tiny_capture().write(tmp_path / "vm.xplane.pb")):
        warehouse = tmp_path / f"warehouse-{source.name}"
        ingest_one(source, warehouse)
        with Warehouse(warehouse) as opened:
            found.append(opened.query(sql).rows())

    assert found[0] == found[1] != [(0, None)]


def test_what_is_no_row(tmp_path: Path) -> None:
    virtual = tw("tpu", "ccl-bench", str(capture(tmp_path, device="cpu")), "-o", str(tmp_path / "rows"))
    nothing = tw("tpu", "ccl-bench", str(tmp_path / "rows"))

    assert (virtual.returncode, nothing.returncode) == (1, 1)
    assert "was recorded on virtual devices" in virtual.stderr
    assert "no capture of the collector with card.yaml" in nothing.stderr
    with pytest.raises(CollectError, match="damaged"):
        chrome_trace(b"\xff\xff")
