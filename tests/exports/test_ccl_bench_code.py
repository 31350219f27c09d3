"""CCL-Bench's own tools, run on an exported row, give what the ccl_* metrics give.

Its repository has no licence, so that nothing of it is here. With a copy of it, and a Python that has pandas, numpy and
PyYAML, these tests run:

    git clone https://github.com/cornell-sysphotonics/ccl-bench
    CCL_BENCH=$PWD/ccl-bench CCL_BENCH_PYTHON=python pytest tests/exports/test_ccl_bench_code.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from served_capture import write_served_capture

from tracewarehouse.exports.ccl_bench import website as merging
from tracewarehouse.exports.ccl_bench.row import Row, row_name, write_row
from tracewarehouse.exports.ccl_bench.values import METRIC_INFO
from tracewarehouse.warehouse import open_warehouse

METRICS = (
    "avg_step_time", "ttft", "tpot", "mfu", "dominant_kernel_concentration", "average_memory_bandwidth",
    "memory_transfer_overhead", "communication_fraction", "total_communication_time", "compute_comm_overlap",
    *(f"bandwidth_utilization_{k}_group_6" for k in ("allgather", "allreduce", "alltoall", "reducescatter")),
    *(f"collective_vol_{k}_gb" for k in ("allgather", "allreduce", "alltoall", "reducescatter", "total")),
)  # fmt: skip
TOOLS = """
import contextlib, io, json, os, runpy, sys, warnings
warnings.simplefilter("ignore")
os.chdir(sys.argv[1])
found = {}
for metric in sys.argv[3:]:
    out = io.StringIO()
    kept, sys.argv = sys.argv, ["tools/main.py", "--trace", sys.argv[2], "--metric", metric]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            runpy.run_path("tools/main.py", run_name="__main__")
    except SystemExit:
        pass
    finally:
        sys.argv = kept
    found[metric] = float(out.getvalue().split()[-1])
print(json.dumps(found))
"""
"""Runs tools/main.py for each metric, and takes the last word that it prints, as CCL-Bench's website does."""


@pytest.fixture(scope="session")
def ccl_bench() -> Path:
    """The copy of CCL-Bench."""
    if not (folder := os.environ.get("CCL_BENCH")):
        pytest.skip("no copy of CCL-Bench; this file says how to get one, and CCL_BENCH where it is")
    return Path(folder).resolve()


PYTHON = os.environ.get("CCL_BENCH_PYTHON", sys.executable)


def row_of(capture: Path, tmp_path: Path) -> Row:
    with open_warehouse(tmp_path / "warehouse", create=True) as warehouse:
        warehouse.ingest(capture)
        run = warehouse.lake.runs()[0]
        return write_row(warehouse, run, tmp_path / "rows" / row_name(warehouse, run))


def theirs(ccl_bench: Path, folder: Path) -> dict[str, float]:
    """What CCL-Bench computes, as its website takes it: six digits, and neither NaN nor -1."""
    command = [PYTHON, "-c", TOOLS, str(ccl_bench), str(folder), *METRICS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return {n: float(f"{v:.6g}") for n, v in found.items() if v == v and v != -1}


def assert_equal(ccl_bench: Path, row: Row) -> None:
    ours = {name: value for name, value in row.values.items() if name not in METRIC_INFO}
    assert ours == theirs(ccl_bench, row.folder)


@pytest.mark.parametrize("seed", range(6))
def test_made_up_servers(ccl_bench: Path, seed: int, tmp_path: Path) -> None:
    mark = "StepMarker" if seed == 5 else "$core.py:331 step"
    capture = write_served_capture(tmp_path / "served.xplane.pb", seed, steps=seed + 1, mark=mark)
    assert_equal(ccl_bench, row_of(capture, tmp_path))


@pytest.mark.parametrize("name", sorted(p.parent.name for p in (ROOT / "data" / "captures").glob("*/manifest.json")))
def test_captures_of_the_repository(ccl_bench: Path, name: str, tmp_path: Path) -> None:
    assert_equal(ccl_bench, row_of(ROOT / "data" / "captures" / name, tmp_path))


@pytest.mark.parametrize(
    "name",
    [
        "cpu/cpu_deepseekv2_ep4.xplane.pb",
        "cpu/cpu_deepseekv3_dp2ep2tp2.xplane.pb",
        "cpu/cpu_llama_pp2tp2.xplane.pb",
        "cpu/cpu_llama_sp_tp4.xplane.pb",
        "cpu/cpu_llama_tp4.xplane.pb",
        "cpu/cpu_qwen3_dp2tp2.xplane.pb",
        "gpu-mi300-jax-gemm.xplane.pb",
        "tpu-2chip-vllm-tp2-prefill.trace.json.gz",
        "tpu-2chip-vllm-tp2-prefill.xplane.pb",
        "tpu-2chip-vllm-tp2-quantized.trace.json.gz",
        "tpu-2chip-vllm-tp2-quantized.xplane.pb",
        "tpu-v6e-4chip-host-offload.xplane.pb",
        "tpu-v6e-matmul-percost.xplane.pb",
    ],
)
def test_real_captures(ccl_bench: Path, name: str, shared_traces: Path, tmp_path: Path) -> None:
    assert_equal(ccl_bench, row_of(shared_traces / name, tmp_path))


def test_its_website_takes_the_row(ccl_bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    website_takes(ccl_bench, write_served_capture(tmp_path / "served.xplane.pb", 2), tmp_path, monkeypatch)


def test_its_website_takes_the_row_of_a_cpu_capture(
    ccl_bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    website_takes(ccl_bench, ROOT / "data" / "captures" / "llama-tp4-b4-i16-o17", tmp_path, monkeypatch)


def test_its_website_takes_the_row_of_the_vllm_capture(
    ccl_bench: Path, shared_traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    website_takes(ccl_bench, shared_traces / "tpu-2chip-vllm-tp2-prefill.xplane.pb", tmp_path, monkeypatch)


def website_takes(ccl_bench: Path, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator keeps the row as it is and, told to compute it again, comes to the same values."""
    row = row_of(capture, tmp_path)
    copy = tmp_path / "checkout"
    for name in ("tools", "website"):
        shutil.copytree(ccl_bench / name, copy / name)
    shutil.copy(ccl_bench / "index.html", copy)
    monkeypatch.setattr(merging, "TRACE_ROOT", str(row.folder.parent))
    merging.merge(row, copy)
    config, data = copy / "website" / "benchmark_config.json", copy / "website" / "benchmark_data.json"
    merged = json.loads(data.read_text())["rows"][-1]
    for again in (False, True):
        settings = json.loads(config.read_text())
        settings["pairs"] = [settings["pairs"][-1] | {"required_update": again}]
        config.write_text(json.dumps(settings))
        done = subprocess.run(
            [PYTHON, "website/generate_data.py"], cwd=copy, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        [found] = json.loads(data.read_text())["rows"]
        assert found["metadata"] == merged["metadata"]
        computed = {n: v for n, v in found["metrics"].items() if n not in METRIC_INFO or not again}
        assert computed == {n: v for n, v in merged["metrics"].items() if n in computed}
