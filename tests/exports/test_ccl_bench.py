"""A row of CCL-Bench: names, fields, types and digits as its tools and its website take them."""

from __future__ import annotations

import gzip
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from conftest import ROOT
from nsys_builder import Export
from served_capture import write_served_capture
from xplane_builder import Space, Unsigned

from tests.ingest.readers.kineto.test_job import group, write_rank
from tracewarehouse.cli import run
from tracewarehouse.exports.ccl_bench import plug_in
from tracewarehouse.exports.ccl_bench.card import sureness
from tracewarehouse.exports.ccl_bench.readme import read_with_care
from tracewarehouse.exports.ccl_bench.row import RUN_TABLES, Row, row_name, write_row
from tracewarehouse.exports.ccl_bench.values import METRIC_INFO, compatible_info
from tracewarehouse.exports.ccl_bench.website import TRACE_ROOT, merge, write_website
from tracewarehouse.ingest.capture.card import load_card
from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.warehouse import Warehouse, open_warehouse

pytestmark = pytest.mark.usefixtures("asked_once")

CAPTURE = ROOT / "data" / "captures" / "llama-tp4-b4-i16-o17"
COLLECTED = {
    "mfu": {"trace_types": ["json_tpu"]},
    "ttft": {"trace_types": ["json_tpu", "json"], "phases": ["inference"]},
    "avg_step_time": {"trace_types": ["json_tpu"]},
    "communication_fraction": {"trace_types": ["json_tpu"], "label": "L", "category": "communication", "unit": "%"},
    "collective_vol_total_gb": {"trace_types": ["json_tpu"], "higher_is_better": False},
    "unheard_of": {"trace_types": ["json_tpu"]},
    "straggler": {"trace_types": ["json"]},
    "loss": {"trace_types": ["json_tpu"], "phases": ["training"]},
}


@pytest.fixture(scope="module")
def warehouse(copy_of_captures: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A run of a capture with a card, and one of a server without."""
    folder = tmp_path_factory.mktemp("rows")
    found = open_warehouse(copy_of_captures(folder / "warehouse", "llama-tp4-b4-i16-o17"))
    found.ingest(write_served_capture(folder / "served.xplane.pb", 1))
    return found


def exported(warehouse: Warehouse, name: str, folder: Path, **options: Any) -> Row:
    run = warehouse.run(name)
    return write_row(warehouse, run, folder / row_name(warehouse, run), **options)


@pytest.fixture(scope="module")
def once(warehouse: Warehouse, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Row]:
    """Exports a run, once for all tests of it."""
    return cache(lambda name: exported(warehouse, name, tmp_path_factory.mktemp("once")))


@pytest.fixture
def row_of(once: Callable[[str], Row], tmp_path: Path) -> Callable[[str], Row]:
    """The row of a run, in the folder of the test."""

    def copied(name: str) -> Row:
        row = once(name)
        return replace(row, folder=shutil.copytree(row.folder, tmp_path / row.name))

    return copied


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of the layout of CCL-Bench's, with one row."""
    website = tmp_path / "checkout" / "website"
    website.mkdir(parents=True)
    categories = [{"id": "communication", "label": "Communication", "description": "d"}]
    pair = {"trace": "/data/other-tpu", "metrics": "auto", "required_update": False}
    config = {"_comment": "c", "pairs": [pair], "metric_categories": categories, "metric_info": COLLECTED}
    row = {
        "trace": "/data/other-tpu",
        "metadata": {"workload_name": "other-tpu", "batch_size": 8, "tp": "", "bandwidth_scaleout": "N/A", "moe": True},
        "metrics": {"mfu": 12.5, "ttft": None, "note": "text"},
    }
    data = {
        "generated_at": "then",
        "all_metrics": ["mfu", "ttft"],
        "metric_categories": categories,
        "metric_info": {**COLLECTED, "mfu": {**COLLECTED["mfu"], "required_update": True}},
        "rows": [row],
    }
    (website / "benchmark_config.json").write_text(json.dumps(config, indent=2))
    (website / "benchmark_data.json").write_text(json.dumps(data, indent=2))
    (website / "data.js").write_text(f"// made\nconst BENCHMARK_DATA = {json.dumps(data, indent=2)};\n")
    return website.parent


def test_the_folder_holds_what_the_tools_look_for(warehouse: Warehouse, tmp_path: Path) -> None:
    row = exported(warehouse, "llama-tp4-b4-i16-o17", tmp_path, trace_url="https://example.org/x", archive=True)
    with tarfile.open(tmp_path / f"{row.name}.tar.gz") as archive:
        assert f"{row.name}/tables/ops.parquet" in archive.getnames()
    assert row.name == "llama-tp4-b4-i16-o17-tpu"
    assert [p.name for p in row.folder.glob("*.json")] == ["vm.trace.json"]
    assert [p.name for p in row.folder.glob("*.yaml")] == [f"{row.name}.yaml"]
    card = yaml.safe_load((row.folder / f"{row.name}.yaml").read_text())
    assert card == row.card
    assert card["trace_url"] == "https://example.org/x"
    assert card["metric_source"]["traces"] == ["json_tpu", "tracewarehouse", "xplane"]
    arch = card["workload"]["model"]["model_arch"]
    assert arch["num_params_active"] == arch["num_active_params"] == 459392
    assert (arch["hidden_size"], arch["vocab_size"], arch["num_kv_heads"]) == (128, 512, 8)
    script = (row.folder / "run.sh").read_text()
    assert "tw collect --mesh tp=4 --model llama" in script
    assert "--backend torch_xla" in script
    assert {p.stem for p in (row.folder / "tables").iterdir()} == {*RUN_TABLES, "definitions"}
    for table in RUN_TABLES:
        file = row.folder / "tables" / f"{table}.parquet"
        runs = duckdb.sql(f"SELECT DISTINCT run_id FROM read_parquet('{file}', hive_partitioning = false)").fetchall()
        of_run = warehouse.run("llama-tp4-b4-i16-o17")
        assert runs == [(of_run.run_id,)] * (of_run.rows.get(table, 0) > 0)
    values = row.folder / "metric_values.parquet"
    assert values.stat().st_size < 100_000
    names = {n for (n,) in duckdb.sql(f"SELECT DISTINCT metric FROM '{values}'").fetchall()}
    assert {"tpot", "sync_wait", "ccl_collective_vol"} <= names


def test_every_published_value_leads_to_its_definition_and_evidence(
    row_of: Callable[[str], Row], warehouse: Warehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the folder alone: the README's table, the file of values, and tables that are there. And `tw metrics show`."""
    row = row_of("llama-tp4-b4-i16-o17")
    lines = (row.folder / "README.md").read_text().split("## From a published value", 1)[1].split("\n\n")[1]
    table = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines.splitlines()[2:]]
    table = [
        [name, *value.split(", "), *rest] if ", " in value else [name, value, "", *rest] for name, value, *rest in table
    ]
    assert {name: float(value) for name, value, *_ in table} == row.values
    assert all(cells[3] == METRIC_INFO.get(cells[0], {}).get("unit", cells[3]) != "" for cells in table)
    values = row.folder / "metric_values.parquet"
    columns = "published_as, metric, value, unit, polarity, version, description, notes, sql"
    found = {
        name: rest
        for name, *rest in duckdb.sql(f"SELECT {columns} FROM '{values}' WHERE published_as <> ''").fetchall()
    }
    assert set(found) == set(row.values)
    for name, value, mark, unit, definition, evidence in table:
        metric, exact, *facts = found[name]
        assert float(f"{exact:.6g}") == float(value)
        assert definition in (f"metrics.{metric}", "macros.ccl_row")
        assert all(facts), (name, facts)
        assert facts[0] == unit
        assert ("In this row: " in facts[4]) == (mark != "")
        assert ("In this row: 0 stands for unknown" in facts[4]) == (mark == "unknown")
        assert all((row.folder / "tables" / f"{read}.parquet").is_file() for read in evidence.split(", "))
        assert run(["metrics", "show", name]) == 0
        assert name in METRIC_INFO or "CCL-Bench" in capsys.readouterr().out
    every = "SELECT count(*), count(unit), count(polarity), count(description), count(status) FROM '{}'"
    [counts] = duckdb.sql(every.format(values)).fetchall()
    assert len({*counts}) == 1


def test_duckdb_alone_computes_the_values_again(row_of: Callable[[str], Row], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the tables and the definitions of the folder; and it says why a metric has none."""
    row = row_of("llama-tp4-b4-i16-o17")
    monkeypatch.chdir(row.folder / "tables")
    with duckdb.connect() as alone:
        alone.execute(Path("definitions.sql").read_text())
        wanted = "metric LIKE 'ccl%' OR metric IN ('tpot', 'sync_wait')"
        values = f"SELECT metric, list(value ORDER BY value) FROM '{row.folder}/metric_values.parquet'"
        listed = alone.sql(f"{values} WHERE {wanted} GROUP BY metric").fetchall()
        assert len(listed) > 5
        for metric, expected in listed:
            [[column]] = alone.sql(f"SELECT DISTINCT value FROM metrics.catalog WHERE metric = '{metric}'").fetchall()
            found = alone.sql(f"SELECT {column} FROM metrics.{metric} WHERE {column} IS NOT NULL ORDER BY 1").fetchall()
            assert [value for (value,) in found] == expected, metric
        assert alone.sql("SELECT count(*) FROM metrics.all_values WHERE metric = 'tpot'").fetchall() == [(2,)]
        [own] = alone.sql(f"SELECT {', '.join(METRIC_INFO)} FROM macros.ccl_row((SELECT run_id FROM runs))").fetchall()
        assert [float(f"{value:.6g}") for value in own] == [row.values[name] for name in METRIC_INFO]
        readme = (row.folder / "README.md").read_text()
        absent = readme.split("## Without a value")[1].split("## ")[0]
        missing = alone.sql("SELECT metric, reason FROM metrics.missing").fetchall()
        assert len(missing) > 5
        assert all(f"`metrics.{metric}`" in absent and reason in absent for metric, reason in missing)
        examples = [line.split('"')[1] for line in readme.splitlines() if "duckdb -init" in line]
        assert len(examples) == 2
        assert all(alone.sql(query).fetchall() for query in examples)


def test_the_trace_has_one_text(row_of: Callable[[str], Row]) -> None:
    """Its digest is in the README, so what ends up beside what must not depend on threads."""
    trace = json.loads((row_of("llama-tp4-b4-i16-o17").folder / "vm.trace.json").read_text())
    stated = [[*event["args"]] for event in trace["traceEvents"] if {"_ct", "num_threads"} & {*event.get("args", ())}]
    assert max(map(len, stated)) > 2
    assert all(names == sorted(names) for names in stated)


def test_the_plug_in_gives_what_is_published(row_of: Callable[[str], Row]) -> None:
    """As a file on its own: nothing of tracewarehouse is imported."""
    row = row_of("llama-tp4-b4-i16-o17")
    values = runpy.run_path(plug_in.__file__)["metric_cal"]
    assert {name: float(f"{values(str(row.folder), name):.6g}") for name in row.values} == row.values
    assert values(str(row.folder), "tpot_of_nobody") is None
    assert values(str(row.folder / "tables"), "ttft") is None
    command = [sys.executable, "-I", plug_in.__file__, str(row.folder), "exposed_communication_share"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(f"{float(done.stdout):.6g}") == row.values["exposed_communication_share"]


def test_the_sample_row_is_whole() -> None:
    """The folder in data/ that shows what a contribution is: card, README, values and tables that agree.

    Trace and definitions are left out of git.
    """
    [folder] = [path for path in (ROOT / "data" / "ccl_bench").iterdir() if path.is_dir()]
    card = load_card(folder / f"{folder.name}.yaml")
    assert (card.workload.data.output_len, card.model_executor.model_plan_parallelization.tp) == (129, 4)
    readme = (folder / "README.md").read_text()
    digests = dict(line.split("  ")[::-1] for line in readme.split("```\n")[1].splitlines())
    left_out = (".trace.json", "/definitions.sql")
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != "README.md" and not str(p).endswith(left_out)]
    assert {str(path.relative_to(folder)) for path in files} == {n for n in digests if not n.endswith(left_out)}
    for path in files:
        assert sha256(path.read_bytes()).hexdigest() == digests[str(path.relative_to(folder))]
    assert {path.stem for path in files if path.parent.name == "tables"} == {*RUN_TABLES}
    decodes = f"FROM '{folder}/tables/phases.parquet' WHERE kind = 'step' AND name = 'decode' AND device_id IS NOT NULL"
    steps = f"SELECT device_id, count(*) {decodes} GROUP BY ALL ORDER BY ALL"
    assert duckdb.sql(steps).fetchall() == [(device, 128) for device in range(4)]
    reduced = f"SELECT count(*) FROM '{folder}/tables/collectives.parquet' WHERE kind = 'all-reduce' AND axis = 'tp'"
    assert duckdb.sql(reduced).fetchall() == [(4 * 4 * 129,)]  # two a layer, on each device and in each step
    published = f"SELECT published_as FROM '{folder}/metric_values.parquet' WHERE published_as <> '' AND sql <> ''"
    named = {name for (name,) in duckdb.sql(published).fetchall()}
    assert named >= {*METRIC_INFO}
    assert all(f"| {name} |" in readme for name in named)


def test_caveats_are_in_the_readme_the_card_and_the_tables(row_of: Callable[[str], Row]) -> None:
    row = row_of("served")
    care = (row.folder / "README.md").read_text().split("## Read with care", 1)[1].split("##")[0]
    comment = [line for line in (row.folder / f"{row.name}.yaml").read_text().splitlines() if line.startswith("#")]
    assert comment[0] == "# Read with care:"
    assert [f"- {line.removeprefix('# ')}" for line in comment[1:]] == care.strip().splitlines()
    flags = duckdb.sql(f"SELECT flag FROM '{row.folder}/tables/quality_flags.parquet' ORDER BY flag").fetchall()
    assert flags == [("inferred_steps",), ("unsized_time",)]
    assert [line.split(":")[0] for line in comment[1:3]] == ["# inferred_steps", "# unsized_time"]
    assert all(line.removeprefix("# ").split(":")[0].split(", ")[0] in row.values for line in comment[3:])
    assert read_with_care([], {}) == []


@pytest.mark.parametrize(("name", "marked"), [("llama-tp4-b4-i16-o17", False), ("served", True)])
def test_values_that_mislead_say_so(row_of: Callable[[str], Row], name: str, marked: bool) -> None:
    """A step without marks, a sum over devices, zeros that nothing measured; not real zeros and marked steps."""
    row = row_of(name)
    care = (row.folder / "README.md").read_text().split("## Read with care", 1)[1].split("##")[0]
    assert ("- avg_step_time: the whole span of the trace" in care) is not marked
    assert re.search(r"our `(ttft|tpot)` is [\d.]+ ms", care) is not None or marked
    assert "- total_communication_time: the sum over the" in care
    assert ("`group_6` is a part of CCL-Bench's name" in care) is (
        "bandwidth_utilization_allreduce_group_6" in row.values
    )
    kinds = f"SELECT DISTINCT kind FROM '{row.folder}/tables/collectives.parquet'"
    seen = {f"collective_vol_{kind.replace('-', '')}_gb" for (kind,) in duckdb.sql(kinds).fetchall()}
    zeros = {each for each in seen if row.values.get(each) == 0}
    assert {line[2:].split(":")[0] for line in care.splitlines() if "0 stands for unknown: there" in line} == zeros
    assert bool(zeros) is not marked
    assert "collective_vol_alltoall_gb" not in care  # there is none, so 0 is what it is


def test_our_values_follow_from_their_descriptions(row_of: Callable[[str], Row]) -> None:
    """Computed anew from the tables by the words alone: the shortest over the ranks, and what is beyond it."""
    row = row_of("llama-tp4-b4-i16-o17")
    decode = f"SELECT * FROM '{row.folder}/tables/collectives.parquet' WHERE phase = 'decode'"
    words = f"""
        WITH timed AS (SELECT *, end_ps - start_ps AS own_ps, min(end_ps - start_ps) OVER (PARTITION BY instance) AS ps
                       FROM ({decode})),
        each AS (SELECT DISTINCT instance, ps, (CASE kind WHEN 'all-reduce' THEN 2 ELSE 1 END) * (group_size - 1)
                        * message_bytes / group_size AS bytes FROM timed),
        waits AS (SELECT device_id, sum(own_ps - ps) / count(DISTINCT step) / 1e9 AS ms FROM timed GROUP BY device_id)
        SELECT (SELECT sum(bytes) / sum(ps) * 1e3 FROM each), (SELECT avg(ms) FROM waits)"""
    [found] = duckdb.sql(words).fetchall()
    names = ("collective_bus_bandwidth", "collective_sync_wait")
    assert found == pytest.approx([row.values[name] for name in names], rel=1e-3)
    assert all("shortest" in METRIC_INFO[name]["description"] for name in names)
    assert (row.folder / "README.md").read_text().count("Here it is of decode steps.") == len(METRIC_INFO)


def test_only_what_is_certain_is_all_sure() -> None:
    said = {0.87: "87% sure", 0.9949: "99% sure", 0.9974: "over 99% sure", 1.0: "100% sure"}
    assert {confidence: sureness(confidence) for confidence in said} == said


def test_a_metric_without_a_value_has_one_reason(row_of: Callable[[str], Row]) -> None:
    """CCL-Bench's apart from ours, each name once, and our value where there is one."""
    absent = (row_of("llama-tp4-b4-i16-o17").folder / "README.md").read_text().split("## Without a value")[1]
    theirs, ours = (part.strip() for part in absent.split("## ")[0].split("Metrics of ours:"))
    names = re.findall(r"`([\w.]+)`", " ".join(line.split(": ")[0] for line in absent.split("## ")[0].splitlines()))
    assert len(names) == len({*names}) > 20
    assert re.search(r"- `tpot`: CCL-Bench looks for .*; ours, `metrics.tpot`, has [\d.]+ ms \(clock device\)", theirs)
    assert "- `mfu`: CCL-Bench looks for operations that events state, on the chip tpu_v6e; ours, " in theirs
    assert "CCL-Bench" not in ours


def test_a_row_of_cpus_says_so_first_and_how_to_read_it_again(row_of: Callable[[str], Row], tmp_path: Path) -> None:
    """The command for the recording is that of the README, in the folder."""
    row = row_of("llama-tp4-b4-i16-o17")
    text = (row.folder / "README.md").read_text()
    assert "Recorded on CPU devices, not on TPUs." in text.split("|")[0]
    assert "Recorded on" not in (row_of("served").folder / "README.md").read_text()
    [command] = [line.strip() for line in text.splitlines() if line.startswith("    tw ")]
    read, values = (
        command.replace("/tmp/again", str(tmp_path / "again")).replace(" . ", f" {row.folder} ").split(" && ")
    )
    assert run(read.split()[1:]) == run(values.split()[1:]) == 0


def test_what_was_inferred_stands_in_the_card_and_says_so(tmp_path: Path) -> None:
    """A capture of four devices without card and manifest: its axis is inferred from the groups of the collectives."""
    warehouse = open_warehouse(tmp_path / "warehouse", create=True)
    [taken] = warehouse.ingest(
        shutil.copy(next(CAPTURE.glob("plugins/profile/*/*.xplane.pb")), tmp_path / "alone.xplane.pb")
    )
    [(size, confidence)] = warehouse.query("SELECT size, confidence FROM main.mesh_axes WHERE axis = 'tp'").rows()
    row = write_row(warehouse, warehouse.run(taken.run_id), tmp_path / "row-tpu")
    assert row.card["Model-executor"]["model_plan_parallelization"]["tp"] == size == 4
    assert row.card["description"].endswith(f"[inferred from the trace: tp=4 ({confidence:.0%} sure)]")
    assert f"- tp=4 is inferred, {confidence:.0%} sure: " in (row.folder / "README.md").read_text()
    columns = "axis, source, confidence"
    axes = duckdb.sql(f"SELECT {columns} FROM '{row.folder}/tables/mesh_axes.parquet'").fetchall()
    assert axes == [("tp", "inferred", confidence)]


def test_the_readme_names_every_file_and_its_queries_run(row_of: Callable[[str], Row]) -> None:
    row = row_of("served")
    text = (row.folder / "README.md").read_text()
    for path in row.folder.rglob("*"):
        if path.is_file() and path.name != "README.md":
            assert f"{sha256(path.read_bytes()).hexdigest()}  {path.relative_to(row.folder)}" in text
    queries = [line.split('"')[1] for line in text.splitlines() if "duckdb -c" in line]
    assert len(queries) == 4
    for query in queries:
        here = query.replace("FROM '", f"FROM '{row.folder}/").replace("JOIN '", f"JOIN '{row.folder}/")
        assert len(duckdb.sql(here).columns) >= 2
    assert "workload.hardware.xpu_spec.model" in text


def test_what_the_card_does_not_tell_is_filled_from_the_capture(row_of: Callable[[str], Row]) -> None:
    card = row_of("served").card
    chip = card["workload"]["hardware"]["xpu_spec"]
    assert (chip["type"], chip["model"], chip["total_count"], chip["count_per_node"]) == ("TPU", "tpu_v6e", 2, 2)
    assert card["workload"]["hardware"]["network_topo"]["bandwidth_gbps"] == ["", 6400]
    assert card["workload"]["model"]["phase"] == "inference"
    assert card["contributor"] == ""


@pytest.mark.parametrize(
    ("gpu", "kernel", "library"),
    [("NVIDIA H100 80GB HBM3", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "NCCL"),
     ("AMD Instinct MI300X", "ncclDevKernel_Generic", "RCCL"), ("NVIDIA H100 80GB HBM3", "gemm", "")],
)  # fmt: skip
def test_the_card_of_a_gpu_run_names_no_xla(tmp_path: Path, gpu: str, kernel: str, library: str) -> None:
    export = Export().gpu(0, gpu)
    ingest_one(export.kernel(0, 9, kernel, export.call(0, 1)).write(tmp_path / "run.sqlite"), tmp_path / "warehouse")
    warehouse = open_warehouse(tmp_path / "warehouse")
    row = write_row(warehouse, warehouse.run("run"), tmp_path / "rows" / "run")
    card = row.card
    assert card["metric_source"]["traces"] == ["nsys", "tracewarehouse"]
    assert "its trace is not here" in row.warnings[-1]
    assert "duckdb -csv" in (row.folder / "run.sh").read_text()
    assert card["workload"]["hardware"]["xpu_spec"]["type"] == "GPU"
    executor = card["Model-executor"]
    assert executor["communication_library"]["name"] == library
    assert executor["framework"]["compiler_tool_selection"] == ""


def test_a_gpu_row_has_the_traces_that_were_recorded(tmp_path: Path) -> None:
    """CCL-Bench's tools read these, and none of them takes the name for a TPU's. Imported again, it is the same run."""
    job = tmp_path / "job"
    job.mkdir()
    for rank in range(2):
        write_rank(job, rank, [("allreduce", 10 + rank, 40, group(0, 1))])
    plain = {path.name: path.read_bytes() for path in job.iterdir()}
    for name, content in plain.items():
        (job / f"{name}.gz").write_bytes(gzip.compress(content))
        (job / name).unlink()
    base = ["-w", str(tmp_path / "warehouse")]
    assert run([*base, "ingest", str(job)]) == 0
    export = [*base, "export", "ccl-bench", "job", "--out", str(tmp_path / "rows")]
    assert run([*export, "--capture", str(job)]) == 0
    folder = tmp_path / "rows" / "job"
    assert {path.name: path.read_bytes() for path in folder.glob("*.json")} == plain
    assert yaml.safe_load((folder / "job.yaml").read_text())["metric_source"]["traces"] == ["json", "tracewarehouse"]
    assert not (tmp_path / "rows" / "job-tpu").exists()
    script = (folder / "run.sh").read_text()
    assert all(f"{sha256(content).hexdigest()}  job/{name}\n" in script for name, content in plain.items())
    care = (folder / "README.md").read_text().split("## Read with care")[1].split("##")[0]
    assert "coll_call_num: 0 stands for unknown" in care  # CCL-Bench counts in a file of another name alone
    assert "0 stands for unknown" not in care.replace("coll_call_num: 0", "")
    assert run(["-w", str(tmp_path / "again"), "import", "ccl-bench", str(folder)]) == 0
    stored = [[row[1:] for row in open_warehouse(tmp_path / name).values().rows()] for name in ("warehouse", "again")]
    assert stored[0] == stored[1] != []
    assert run([*export, "--name", "job-tpu"]) == 1
    (job / "rank0_trace.json.gz").write_bytes(gzip.compress(b"{}"))
    assert run([*export, "--capture", str(job)]) == 1


def test_warnings_name_what_keeps_a_row_from_being_used(row_of: Callable[[str], Row]) -> None:
    warnings = "\n".join(row_of("llama-tp4-b4-i16-o17").warnings)
    assert "it has 16 decode steps, and CCL-Bench asks for 128" in warnings
    assert "it was recorded on cpu devices" in warnings
    assert "no public trace_url" in warnings
    assert "and this row has model llama-tiny and an input of 16 tokens" in warnings


def test_names_and_files_that_its_tools_do_not_take_are_refused(warehouse: Warehouse, tmp_path: Path) -> None:
    run = warehouse.run("served")
    for name in ("served", "tpu one"):
        with pytest.raises(TracewarehouseError, match="if 'tpu' is in it, and this one is of a TPU"):
            write_row(warehouse, run, tmp_path / name)
        assert not (tmp_path / name).exists()
    (tmp_path / "a-tpu").mkdir()
    (tmp_path / "a-tpu" / "other.json").write_text("{}")
    with pytest.raises(TracewarehouseError, match=r"other\.json would be another"):
        write_row(warehouse, run, tmp_path / "a-tpu")


@pytest.fixture
def published(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder that a web server gives, and its address."""
    folder = tmp_path / "public"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_script_in_a_checkout_fetches_the_trace_and_gives_the_values(
    warehouse: Warehouse, tmp_path: Path, published: tuple[Path, str]
) -> None:
    """A stranger has what git has of the row, and neither our warehouse nor the trace."""
    folder, address = published
    row = exported(warehouse, "served", folder, trace_url=f"{address}/served-tpu.tar.gz", archive=True)
    there = tmp_path / "checkout" / "trace_collection" / row.name
    there.mkdir(parents=True)
    for name in (f"{row.name}.yaml", "README.md", "run.sh", "metric_values.parquet"):
        shutil.copy(row.folder / name, there)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRACEWAREHOUSE")} | {"PATH": path}

    def repeated() -> subprocess.CompletedProcess[str]:
        command = ["sh", str(there / "run.sh")]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    done = repeated()
    assert done.returncode == 0, done.stderr
    assert "device_idle" in done.stdout
    assert not (tmp_path / "warehouse").exists()
    trace = row.folder / next(row.folder.glob("*.trace.json")).name
    trace.write_bytes(trace.read_bytes() + b" ")
    with tarfile.open(folder / f"{row.name}.tar.gz", "w:gz") as archive:
        archive.add(row.folder, row.name)
    changed = repeated()
    assert changed.returncode != 0
    assert "FAILED" in changed.stderr
    assert changed.stdout == ""


def test_a_refused_merge_leaves_the_rows_unwritten(warehouse: Warehouse, checkout: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", checkout], check=True)
    (checkout / ".gitignore").write_text("served*\n")
    out = tmp_path / "rows"
    for into in (checkout, tmp_path):  # a row that git would drop, and no checkout at all
        arguments = ["export", "ccl-bench", "llama-tp4-b4-i16-o17", "served", "--out", str(out), "--into", str(into)]
        assert run(["-w", str(warehouse.lake.warehouse), *arguments]) == 1
        assert not out.exists()


def test_the_script_of_several_hosts_prints_the_values(tmp_path: Path) -> None:
    """Their one trace has no devices for `tw ingest`, and no manifest says how to record them again."""
    for n in range(2):
        space = Space(hostnames=[f"h{n}"])
        tpu = space.tpu(0)
        tpu.modules.event("step(1)", 0, 10**7)
        tpu.ops.event(tpu.instruction("%dot.1 = f32[8]{0} dot(%a, %b)", program_id=Unsigned(1)), 0, 5 * 10**6)
        space.write(tmp_path / "plugins" / "profile" / "pod" / f"h{n}.xplane.pb")
    with open_warehouse(tmp_path / "warehouse", create=True) as opened:
        opened.ingest(tmp_path / "plugins")
        [run] = opened.lake.runs()
        row = write_row(opened, run, tmp_path / row_name(opened, run))
    duckdb_cli = Path(sys.executable).with_name("duckdb")
    if not duckdb_cli.exists():
        pytest.skip("no duckdb command beside python")
    environment = {**os.environ, "PATH": f"{duckdb_cli.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([row.folder / "run.sh"], capture_output=True, text=True, check=True, env=environment)
    header, *lines = done.stdout.splitlines()
    assert header == "metric,dimensions,value,unit"
    assert duckdb.sql(f"SELECT count(*) FROM '{row.folder / 'metric_values.parquet'}'").fetchall() == [(len(lines),)]


def test_a_merge_touches_its_own_row_alone(row_of: Callable[[str], Row], checkout: Path) -> None:
    website = checkout / "website"
    files = ("benchmark_config.json", "benchmark_data.json")
    before = {n: json.loads((website / n).read_text()) for n in files}
    row = row_of("llama-tp4-b4-i16-o17")
    merge(row, checkout)
    config, data = (json.loads((website / n).read_text()) for n in files)
    assert config["pairs"].pop() == {"trace": f"{TRACE_ROOT}/{row.name}", "metrics": "auto", "required_update": False}
    added = data["rows"].pop()
    assert data["generated_at"] != before[files[1]]["generated_at"]
    assert {*data["all_metrics"]} == {"mfu", "ttft", *added["metrics"]}
    for content in (config, data):
        assert {name: content["metric_info"].pop(name) for name in METRIC_INFO} == METRIC_INFO
        content.pop("generated_at", None), content.pop("all_metrics", None)
    for name in ("generated_at", "all_metrics"):
        before[files[1]].pop(name)
    assert [config, data] == [*before.values()]
    assert added["trace"] == f"{TRACE_ROOT}/{row.name}"
    assert len(added["metadata"]) == 39
    assert (added["metadata"]["tp"], added["metadata"]["epochs"], added["metadata"]["moe"]) == (4, "", False)
    chosen = {n for n, i in COLLECTED.items() if "json_tpu" in i["trace_types"]} - {"loss"} | {*METRIC_INFO}
    assert {*added["metrics"]} == chosen
    assert added["metrics"]["unheard_of"] is None
    assert added["metrics"]["ttft"] is None
    assert added["metrics"]["collective_vol_total_gb"] == 0
    script = (website / "data.js").read_text()
    assert script.startswith("// made\nconst BENCHMARK_DATA = {")
    assert json.loads(script.partition("= ")[2].rstrip(";\n"))["rows"][-1] == added
    published = checkout / "trace_collection" / row.name
    assert {p.name for p in published.iterdir()} == {f"{row.name}.yaml", "README.md", "run.sh", "metric_values.parquet"}


def test_a_second_merge_changes_nothing(
    warehouse: Warehouse, row_of: Callable[[str], Row], tmp_path: Path, checkout: Path
) -> None:
    assert merge(row_of("served"), checkout)
    before = {p: p.read_bytes() for p in checkout.rglob("*") if p.is_file()}
    assert merge(exported(warehouse, "served", tmp_path), checkout) == []
    assert {p: p.read_bytes() for p in checkout.rglob("*") if p.is_file()} == before


def test_one_line_of_duckdb_answers_over_all_rows(row_of: Callable[[str], Row], checkout: Path) -> None:
    row = row_of("llama-tp4-b4-i16-o17")
    merge(row, checkout)
    folder = checkout / "website" / "parquet"
    found = duckdb.sql(
        f"SELECT trace, tp, batch_size, moe, metric_value_num FROM '{folder}/metadata.parquet' "
        f"JOIN '{folder}/metrics.parquet' USING (row_id) WHERE metric_name IN ('mfu', 'exposed_communication_share') "
        "AND metric_value_num IS NOT NULL ORDER BY row_id"
    ).fetchall()
    share = row.values["exposed_communication_share"]
    assert found == [("/data/other-tpu", None, 8, True, 12.5), (f"{TRACE_ROOT}/{row.name}", 4, 4, False, share)]
    texts = duckdb.sql(
        f"SELECT metric_value_text FROM '{folder}/metrics.parquet' WHERE metric_name = 'note'"
    ).fetchall()
    assert texts == [("text",)]
    names = duckdb.sql(f"SELECT metric_name FROM '{folder}/metric_info.parquet'").fetchall()
    assert {n for (n,) in names} == {*COLLECTED, *METRIC_INFO}
    assert duckdb.sql(f"SELECT label, sort_order FROM '{folder}/metric_categories.parquet'").fetchall() == [
        ("Communication", 0)
    ]
    info = duckdb.sql(f"SELECT value FROM '{folder}/run_info.parquet' WHERE key = 'row_count'").fetchall()
    assert info == [("2",)]


def test_the_same_tables_are_had_without_a_checkout(
    row_of: Callable[[str], Row], warehouse: Warehouse, tmp_path: Path, checkout: Path
) -> None:
    """Of rows of several exports, as long as their folders are there; the columns are those of a checkout's."""
    info = compatible_info(warehouse.definitions)
    first = row_of("llama-tp4-b4-i16-o17")
    write_website([first], tmp_path, info)
    second = row_of("served")
    folder = write_website([second], tmp_path, info)
    merge(first, checkout)
    for table in ("metadata", "metrics", "metric_info", "metric_categories", "run_info"):
        one, other = (
            sorted(duckdb.sql(f"SELECT column_name, column_type FROM (DESCRIBE FROM '{f}/{table}.parquet')").fetchall())
            for f in (folder, checkout / "website" / "parquet")
        )
        assert one == other
    found = duckdb.sql(
        f"SELECT workload_name, metric_name, metric_value_num FROM '{folder}/metadata.parquet' "
        f"JOIN '{folder}/metrics.parquet' USING (row_id) JOIN '{folder}/metric_info.parquet' USING (metric_name)"
    ).fetchall()
    names = {*first.values, *second.values}
    assert sorted(found) == sorted((r.name, name, r.values.get(name)) for r in (first, second) for name in names)
    labels = dict(duckdb.sql(f"SELECT metric_name, higher_is_better FROM '{folder}/metric_info.parquet'").fetchall())
    assert (labels["mfu"], labels["ttft"], labels["collective_sync_wait"]) == (True, False, False)
    before = {p: p.read_bytes() for p in folder.parent.rglob("*") if p.is_file()}
    write_website([second], tmp_path, info)
    assert {p: p.read_bytes() for p in before} == before
    shutil.rmtree(first.folder)
    write_website([second], tmp_path, info)
    assert duckdb.sql(f"SELECT workload_name FROM '{folder}/metadata.parquet'").fetchall() == [(second.name,)]


def test_a_folder_with_another_website_is_refused(
    row_of: Callable[[str], Row], warehouse: Warehouse, tmp_path: Path
) -> None:
    (tmp_path / "website").mkdir()
    (tmp_path / "website" / "benchmark_data.json").write_text('{"rows": [1]}')
    with pytest.raises(TracewarehouseError, match="not the published data of an earlier export"):
        write_website([row_of("served")], tmp_path, compatible_info(warehouse.definitions))
