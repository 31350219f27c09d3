"""The ccl_* metrics of real GPU traces are what CCL-Bench's own tools answered on them."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.warehouse import Warehouse, open_warehouse

SHARED = Path(__file__).parents[3] / "shared" / "traces" / "gpu"
TRACES = {  # in the order of the columns of the table; the card's GPUs, and whether it is of inference
    "kineto-v100-dlrm-8rank": (8, "training"),
    "kineto-a100-ddp-ncclmeta.json.gz": (2, "training"),
    "kineto-a100-overlap-rank3of8.json.gz": (8, "training"),
    "kineto-mi300x-ddp-rank0.json.gz": (8, "training"),
    "kineto-h100-qwen-modules.json.gz": (1, "inference"),
    "kineto-mi300x-vllm-piecewise.json.gz": (1, "inference"),
    "kineto-mi300x-sglang-decode.json.gz": (1, "inference"),
    "nsys-2gpu-fsdp.sqlite.gz": (2, "training"),
    "nsys-a100-saxpy-schema2.sqlite.gz": (1, "training"),
}
CARD = """version: 1
workload:
  model:
    phase: {}
    model_family: llama
    model_arch: {{num_params: 8000000000, num_layers: 32, num_heads: 32, head_dim: 128}}
  data: {{batch_size: 8, seq_len: 1024}}
  hardware:
    xpu_spec: {{type: GPU, model: nvidia_a100, total_count: {}}}
"""
KINDS = {"allreduce": "all-reduce", "allgather": "all-gather", "alltoall": "all-to-all", "total": "total",
         "reducescatter": "reduce-scatter"}  # fmt: skip
ANSWERED_ALIKE = {
    "ttft": -1.0,
    "tpot": -1.0,
    "straggler": 0.0,
    "coll_call_num": 0.0,
    **{f"bandwidth_utilization_{kind}_group_6": float("nan") for kind in ("allgather", "alltoall", "reducescatter")},
}
"""What its tools answer on each of the traces."""
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no GPU traces in {SHARED}")


def answers() -> dict[str, list[float]]:
    """The table of what its tools answered, by tool; a column for each of TRACES."""
    rows = (line.strip().strip("|").split("|") for line in (SHARED / "README.md").read_text().splitlines())
    cells = [[cell.strip() for cell in row] for row in rows if len(row) == 1 + len(TRACES)]
    table = {tool: list(map(float, values)) for tool, *values in cells if tool != "tool" and set(tool) != {"-"}}
    assert len(table) == 14
    return table | {tool: [answer] * len(TRACES) for tool, answer in ANSWERED_ALIKE.items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Warehouse, list[str]]:
    """The warehouse with the traces, named as CCL-Bench wants them, and the ids of their runs."""
    folder, ids = tmp_path_factory.mktemp("gpu"), []
    for name, (count, phase) in TRACES.items():
        capture = folder / name
        capture.mkdir()
        (capture / "card.yaml").write_text(CARD.format(phase, count))
        source = SHARED / name
        for number, file in enumerate(sorted(source.iterdir()) if source.is_dir() else [source]):
            as_named = "nsys_0.sqlite" if ".sqlite" in name else f"rank{number}_trace.json"
            with gzip.open(file) as compressed, (capture / as_named).open("wb") as plain:
                shutil.copyfileobj(compressed, plain)
        ids.append(ingest_one(capture, folder / "warehouse").run_id)
    return open_warehouse(folder / "warehouse"), ids


@pytest.mark.parametrize("tool", answers() if SHARED.is_dir() else ["none"])
def test_six_digits(runs: tuple[Warehouse, list[str]], tool: str) -> None:
    """A metric without a row stands for -1 and for NaN."""
    warehouse, ids = runs
    metric, kind = tool, None
    for name, of_kind in KINDS.items():
        if tool in (f"bandwidth_utilization_{name}_group_6", f"collective_vol_{name}_gb"):
            metric, kind = tool.split(f"_{name}_")[0], of_kind
    value = warehouse.definitions.metric(f"ccl_{metric}", 1).header.value
    rows = [r for r in warehouse.metric(f"ccl_{metric}").dicts() if kind in (None, r.get("kind"))]
    of_run = {r["run_id"]: f"{r[value]:.6g}" for r in rows}
    found = [of_run.get(run_id) for run_id in ids]
    assert found == [None if v != v or v == -1 else f"{v:.6g}" for v in answers()[tool]]


def test_the_grouped_sends_of_fsdp_are_all_to_alls(runs: tuple[Warehouse, list[str]]) -> None:
    """33 a GPU, of which the first has no launch in the export, so that nothing tells more than its kernel's name."""
    warehouse, ids = runs
    known = json.loads((SHARED / "facts" / "nsys-2gpu-fsdp.sqlite.facts.json").read_text())["devices"].values()
    sql = """SELECT device_id, count(*), count(*) FILTER (kind = 'all-to-all' AND NOT is_partial AND group_size = 2),
                    CAST(sum(end_ps - start_ps) // 1000 AS BIGINT), count(message_bytes)
             FROM collectives WHERE run_id = $run GROUP BY device_id ORDER BY device_id"""
    found = warehouse.query(sql, run=ids[list(TRACES).index("nsys-2gpu-fsdp.sqlite.gz")]).rows()
    assert found == [(i, 33, 32, d["nccl"]["ncclDevKernel_SendRecv"]["ns"], 0) for i, d in enumerate(known)]
