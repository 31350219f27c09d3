"""Folders of CCL-Bench become runs with their cards' facts, and published values stand beside ours."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from served_capture import write_served_capture

from tests.ingest.readers.kineto.test_job import group, write_rank
from tracewarehouse import cli
from tracewarehouse.exports.ccl_bench.row import Row, write_row
from tracewarehouse.exports.ccl_bench.values import PublishedValue, published_values
from tracewarehouse.ingest.capture.sources import ccl_bench_capture
from tracewarehouse.ingest.errors import CaptureError, NoCaptureError, TracewarehouseError, WarehouseError
from tracewarehouse.warehouse import Warehouse, open_warehouse

CARD = {
    "version": 1,
    "workload": {
        "model": {"phase": "inference", "model_family": "qwen3-4b", "iteration": 3, "epochs": "N/A"},
        "data": {"batch_size": 128, "input_len": 1024, "output_len": 1},
        "hardware": {
            "network_topo": {"topology": "torus", "bandwidth_gbps": ["N/A", 800]},
            "xpu_spec": {"type": "TPU", "model": "tpu_v6e", "total_count": 2, "count_per_node": 8},
        },
    },
    "metric_source": {"traces": ["json_tpu"]},
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A trace that we published."""
    folder = tmp_path_factory.mktemp("published")
    with open_warehouse(folder / "made", create=True) as warehouse:
        warehouse.ingest(write_served_capture(folder / "served.xplane.pb", 3))
        row = write_row(warehouse, warehouse.lake.runs()[0], folder / "x-tpu")
    return next(row.folder.glob("*.json")).read_bytes()


@pytest.fixture
def folder(tmp_path: Path, trace: bytes) -> Path:
    """A folder as CCL-Bench has them: its trace tells no kind of chip."""
    made = tmp_path / "qwen3-4b-vllm-tp2-tpu"
    made.mkdir()
    (made / f"{made.name}.yaml").write_text(yaml.safe_dump(CARD))
    (made / "host.trace.json").write_bytes(trace)
    return made


def imported(folder: Path, warehouse: Path) -> Warehouse:
    assert cli.run(["-w", str(warehouse), "import", "ccl-bench", str(folder)]) == 0
    return open_warehouse(warehouse)


def test_a_folder_becomes_a_run_with_the_facts_of_its_card(folder: Path, tmp_path: Path) -> None:
    with imported(folder, tmp_path / "warehouse") as warehouse:
        [run] = warehouse.runs().dicts()
        [one, two] = warehouse.query("SELECT kind, peak_hbm_gbps, peak_source FROM main.devices").rows()
    assert (run["name"], run["batch_size"], run["input_length"]) == ("qwen3-4b-vllm-tp2-tpu", 128, 1024)
    assert run["model_family"] == "qwen3-4b"
    assert one == two
    assert one[1] > 1000
    assert "card" in one[2]


def test_a_gzipped_trace_is_read_too(folder: Path, tmp_path: Path) -> None:
    trace = folder / "host.trace.json"
    (folder / "host.trace.json.gz").write_bytes(gzip.compress(trace.read_bytes()))
    trace.unlink()
    with imported(folder, tmp_path / "warehouse") as warehouse:
        assert warehouse.query("SELECT event_count > 400 FROM main.runs").scalar()


def test_the_traces_of_ranks_are_one_run(tmp_path: Path) -> None:
    """As torchtitan's rows have them: a file per rank, one card, and what only CCL-Bench's tools read."""
    made = tmp_path / "llama-fsdp2-perlmutter"
    made.mkdir()
    (made / f"{made.name}.yaml").write_text(yaml.safe_dump(CARD | {"metric_source": {"traces": ["json"]}}))
    for rank in range(2):
        write_rank(made, rank, [("allreduce", 10 + rank, 40, group(0, 1))])
    (made / "timing_stats_0.json").write_text('{"steps": [1.5]}')
    with imported(made, tmp_path / "warehouse") as warehouse:
        assert warehouse.query("SELECT name, device_count, batch_size FROM main.runs").rows() == [(made.name, 2, 128)]
        shared = "SELECT count(DISTINCT instance), count(DISTINCT device_id) FROM main.collectives"
        assert warehouse.query(shared).rows() == [(1, 2)]


def test_what_is_no_folder_of_it_is_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoCaptureError, match="not a folder of CCL-Bench"):
        ccl_bench_capture(tmp_path / "nowhere")
    with pytest.raises(NoCaptureError, match=r"no workload card in this folder; looked for a \.yaml"):
        ccl_bench_capture(tmp_path)
    (folder / "second.trace.json").write_text("{}")
    of_two_runs = r"or of each of its ranks, and found those of 2: host\.trace\.json; second\.trace\.json; remove"
    with pytest.raises(CaptureError, match=of_two_runs):
        ccl_bench_capture(folder)
    for trace in folder.glob("*.json"):
        trace.unlink()
    assert cli.run(["-w", str(tmp_path / "warehouse"), "import", "ccl-bench", str(folder)]) == 1
    assert "no trace in this folder" in capsys.readouterr().err


def test_a_row_without_a_trace_is_a_run_with_its_published_values(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a checkout, with a card that leaves things to be determined; the warehouse keeps no word of another row."""
    collection, website = tmp_path / "checkout" / "trace_collection", tmp_path / "checkout" / "website"
    website.mkdir(parents=True)
    metrics = {"mfu": 12.5, "ttft": None, "note": "text", "straggler": 2}
    row = {"trace": f"/data/{folder.name}", "metadata": {}, "metrics": metrics}
    (website / "benchmark_data.json").write_text(json.dumps({"rows": [row]}))
    (folder / "host.trace.json").unlink()
    there = collection / folder.name
    shutil.copytree(folder, there)
    card = CARD | {"workload": {**CARD["workload"], "hardware": {"network_topo": {"bandwidth_gbps": ["TBD", "TBD"]}}}}
    (there / f"{folder.name}.yaml").write_text(yaml.safe_dump(card))
    shutil.copytree(there, collection / "unpublished-tpu")
    with imported(there, tmp_path / "warehouse") as warehouse:
        assert warehouse.query("SELECT * EXCLUDE (run_id) FROM macros.published_values() ORDER BY ALL").rows() == [
            (folder.name, "mfu", 12.5),
            (folder.name, "straggler", 2.0),
        ]
        assert warehouse.query("SELECT flag FROM main.quality_flags").rows() == [("no_trace",)]
        facts = "SELECT name, model_family, batch_size, device_count, event_count FROM main.runs"
        assert warehouse.query(facts).rows() == [(folder.name, "qwen3-4b", 128, 0, 0)]
        assert len(warehouse.values()) == 0
    (there / f"{folder.name}.yaml").write_text("workload:\n  data:\n    i\n    batch_size: 4\n")
    row["metadata"] = {"batch_size": 64, "tp": 2, "model_family": "qwen3-4b", "bandwidth_scaleup": "TBD", "moe": False}
    (website / "benchmark_data.json").write_text(json.dumps({"rows": [row]}))
    with imported(there, tmp_path / "of-the-website") as warehouse:
        assert warehouse.query("SELECT name, model_family, batch_size, tp FROM main.runs").rows() == [
            (folder.name, "qwen3-4b", 64, 2)
        ]
        [[card]] = warehouse.query("SELECT card FROM main.runs").rows()
        assert "the card cannot be read, and these are the facts that the website shows" in card
    capsys.readouterr()
    row["metadata"] = {"batch_size": "many"}
    (website / "benchmark_data.json").write_text(json.dumps({"rows": [row]}))
    assert cli.run(["-w", str(tmp_path / "of-the-website"), "import", "ccl-bench", str(there)]) == 1
    assert "cannot be read as a workload card: line" in capsys.readouterr().err
    assert cli.run(["-w", str(tmp_path / "w"), "import", "ccl-bench", str(collection / "unpublished-tpu")]) == 1
    error = capsys.readouterr().err
    assert "no row of" in error
    assert error.count("\n") == 1


def test_a_run_is_compared_with_rows_of_its_workload(folder: Path, tmp_path: Path) -> None:
    """Another name, but the same model however it is spelled, chip, tp, batch and lengths."""
    (folder / f"{folder.name}.yaml").write_text(
        yaml.safe_dump(CARD | {"Model-executor": {"model_plan_parallelization": {"tp": 2}}})
    )
    workload = {"model_family": "Qwen3_4B", "hardware_model": "tpu_v6e", "tp": 2, "batch_size": 128, "input_len": 1024}
    rows = [
        {"trace": f"/data/{name}", "metadata": workload | {"output_len": 1} | other, "metrics": {"mfu": 1.5}}
        for name, other in (("same", {}), ("another-batch", {"batch_size": 64}), ("unknown", {"output_len": ""}))
    ]
    file = tmp_path / "benchmark_data.json"
    file.write_text(json.dumps({"rows": rows}))
    with imported(folder, tmp_path / "warehouse") as warehouse:
        found = published_values(warehouse, warehouse.lake.runs(), file)
    assert [(v.run, v.row, v.metric, v.published) for v in found] == [(folder.name, "same", "mfu", 1.5)]


def benchmark_data(tmp_path: Path, name: str, metrics: dict[str, Any]) -> Path:
    file = tmp_path / "benchmark_data.json"
    file.write_text(json.dumps({"rows": [{"trace": f"/data/{name}", "metadata": {}, "metrics": metrics}]}))
    return file


def compared(folder: Path, tmp_path: Path, metrics: dict[str, Any]) -> dict[str, PublishedValue]:
    with imported(folder, tmp_path / "warehouse") as warehouse:
        file = benchmark_data(tmp_path, folder.name, metrics)
        return {v.metric: v for v in published_values(warehouse, warehouse.lake.runs(), file)}


def test_a_published_value_stands_beside_ours(folder: Path, tmp_path: Path) -> None:
    with imported(folder, tmp_path / "first") as warehouse:
        row: Row = write_row(warehouse, warehouse.lake.runs()[0], tmp_path / "rows" / "a-tpu")
        [share] = [max(r["share"] for r in warehouse.metric("op_time_share").dicts())]
    ours = row.values["dominant_kernel_concentration"]
    published = {"dominant_kernel_concentration": ours, "mfu": 1.5, "ttft": None, "ttft_group_6": 3, "tpot": 0.1}
    found = compared(folder, tmp_path, published)
    assert {*found} == {*published} - {"ttft_group_6"}
    dominant = found["dominant_kernel_concentration"]
    assert (dominant.published, dominant.reproduced, dominant.relation) == (ours, ours, "follows from this run")
    assert (dominant.metric_of_ours, dominant.taken, dominant.unit) == ("op_time_share", "largest", "ratio")
    assert dominant.right == pytest.approx(share)
    assert "A while loop counts beside the ops" in dominant.why
    assert found["mfu"].relation == "of another trace, card, or version of its tools"
    assert found["mfu"].metric_of_ours == "mfu"
    assert (found["ttft"].reproduced is None, found["ttft"].relation) == (False, "only here")
    # the card says that one token is generated
    assert (found["tpot"].reproduced, found["tpot"].relation) == (None, "only published")
    assert (found["ttft"].published_unit, found["mfu"].published_unit) == ("s", "%")


def test_kinds_of_collectives_are_told_apart(folder: Path, tmp_path: Path) -> None:
    found = compared(folder, tmp_path, {"bandwidth_utilization_allreduce_group_6": 1.0, "collective_vol_total_gb": 2.0})
    assert found["bandwidth_utilization_allreduce_group_6"].metric_of_ours == "collective_transfer"
    assert found["bandwidth_utilization_allreduce_group_6"].reproduced is not None
    assert found["collective_vol_total_gb"].reproduced is not None


def test_the_command_prints_numbers_and_reasons(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    imported(folder, tmp_path / "warehouse").close()
    file = benchmark_data(tmp_path, folder.name, {"mfu": 1.5})
    base = ["-w", str(tmp_path / "warehouse"), "compare", folder.name]
    capsys.readouterr()
    assert cli.run([*base, "--published", str(file), "--format", "json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["metric"], row["published"]) == ("mfu", 1.5)
    assert cli.run([*base, "--published", str(file)]) == 0
    assert "mfu: It divides the operations of all events" in capsys.readouterr().out
    assert cli.run(base) == 2
    assert cli.run([*base, folder.name, "--published", str(file)]) == 2


def test_files_and_runs_that_do_not_fit_are_named(folder: Path, tmp_path: Path) -> None:
    with imported(folder, tmp_path / "warehouse") as warehouse:
        runs = warehouse.lake.runs()
        said = r"no published row has the name of a run, or its model, .*; looked for qwen3-4b-vllm-tp2"
        with pytest.raises(WarehouseError, match=said):
            published_values(warehouse, runs, benchmark_data(tmp_path, "other-tpu", {"mfu": 1}))
        (tmp_path / "data.js").write_text("const BENCHMARK_DATA = {}")
        with pytest.raises(TracewarehouseError, match="not CCL-Bench's published data"):
            published_values(warehouse, runs, tmp_path / "data.js")
