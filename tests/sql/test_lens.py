"""The lens answers from files, under any name, in the DuckDB CLI, and reads only the files of the runs asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import duckdb
import pytest
from given_tables import evaluated, warehouse_of

from tracewarehouse.database.catalogue import MARK, Catalogue
from tracewarehouse.database.lens import comment_on_tables, create_lens, run_sources
from tracewarehouse.definitions.derived import MISSING
from tracewarehouse.definitions.reading import SQL, load_definitions
from tracewarehouse.evaluation import values as metric_values
from tracewarehouse.evaluation.values import Task, run_tasks
from tracewarehouse.ingest.lake.durable_files import file_digest
from tracewarehouse.ingest.lake.lake import DATABASE, Lake
from tracewarehouse.ingest.lake.manifest import RunVersion, manifest_text
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION, TABLES
from tracewarehouse.warehouse import open_warehouse

DEFINITIONS = load_definitions()
VIEWS = [v.qualified for v in DEFINITIONS.ordered]
NEED_MORE = {
    "models.caveats",  # flags
    "models.ccl_copies",
    "models.ccl_kernels",  # kernels of GPUs
    "models.ccl_marks",
    "models.ccl_messages",
    "models.launched_runs",
    "models.layer_ops",  # layers
    "models.ccl_steps",  # host events
    "metrics.ccl_average_memory_bandwidth_v1",
    "metrics.ccl_bandwidth_utilization_v1",
    "metrics.ccl_coll_call_num_v1",
    "metrics.ccl_compute_comm_overlap_v1",
    "metrics.ccl_memory_transfer_overhead_v1",
    "metrics.ccl_load_imbalance_ratio_v1",
    "metrics.ccl_mean_sm_coverage_v1",
    "metrics.ccl_mfu_v1",
    "metrics.ccl_moe_fraction_v1",
    "metrics.ccl_straggler_v1",
    "metrics.ccl_tpot_v1",
    "metrics.ccl_ttft_v1",
    "models.what_ifs",
    "models.attention_caches",  # kernels with their HLO text
    "models.copy_windows",
    "models.decode_contexts",  # a server's batches
    "models.served_output",
    "models.step_tokens",
    "models.dispatches",  # calls of the host
    "models.device_peaks",  # the peaks of a device
    "models.fitted_lines",  # messages of several sizes
    "models.instruction_layers",  # devices
    "models.predicted_runs",  # a predicted run
    "models.prediction_times",
    "metrics.prediction_basis_v1",
    "metrics.prediction_range_v1",
    "preconditions.predicted",
    "metrics.prediction_error_v1",
    "metrics.microbenchmarks_v1",  # microbenchmarks
    "models.calibration_rates",
    "preconditions.microbenchmark_programs",
    "metrics.token_cost_v1",  # devices
    "models.run_chips",
    "models.transfer_fit",  # messages of several sizes
    "metrics.copy_bandwidth_v1",
    "metrics.copy_overhead_v1",
    "metrics.decode_cost_per_context_token_v1",
    "metrics.gemm_efficiency_v1",  # the peaks of a device
    "metrics.hbm_bandwidth_v1",  # bytes accessed
    "metrics.hockney_v1",
    "metrics.ici_utilization_v1",  # the peaks of a device
    "metrics.kv_cache_traffic_v1",
    "metrics.launch_overhead_v1",  # a line of modules
    "metrics.layer_bottleneck_v1",  # the peaks of a device
    "models.memory_states",  # host events
    "metrics.memory_in_use_v1",  # host events
    "metrics.faster_chips_v1",
    "models.instruction_bounds",
    "metrics.mfu_v1",
    "metrics.moe_fraction_v1",  # experts
    "metrics.padding_waste_v1",  # a server's batches
    "metrics.pipeline_bubble_v1",  # a pipeline
    "metrics.roofline_v1",
    "metrics.scaling_efficiency_v1",  # metric values
    "metrics.traffic_by_link_v1",  # devices
    "models.collective_links",  # devices
    "metrics.unit_utilization_v1",  # counters
    *(
        f"preconditions.{name}"
        for name in (
            "allocations",
            "async_copies",
            "copy_bytes",
            "bounded_ops",
            "known_caches",
            "any_copy",
            "decode_batches",
            "varied_contexts",
            "experts",
            "fitted_transfers",
            "link_peak",
            "matrix_peak",
            "memory_traffic",
            "model_name",
            "model_shape",
            "op_costs",
            "padded_batches",
            "paired_copies",
            "pipeline",
            "pipeline_transfers",
            "product_costs",
            "repeated_launches",
            "several_sizes",
            "single_rank",
            "known_throughput",
            "unit_counters",
        )
    ),
}
"""Views that need what the given rows do not have; their own cases have it."""

GIVEN = {
    "runs": [{"device_count": 2, "batch_size": 4, "input_length": 16, "output_length": 3}],
    "hosts": [{"clock_source": "first_host"}],
    "phases": [
        {"kind": "step", "name": n, "index": i, "device_id": d, "start_us": 10 * i, "end_us": 10 * i + 8}
        for i, n in enumerate(("prefill", "decode", "decode"))
        for d in (0, 1, None)
    ],
    "instructions": [
        {"instruction_id": 0, "opcode": "fusion", "category": "loop fusion", "layer": 0, "part": "attn"},
        {"instruction_id": 1, "opcode": "all-reduce", "category": "all-reduce", "collective": "all-reduce"},
    ],
    "ops": [
        {
            "event_id": 4 * s + 2 * d + i,
            "device_id": d,
            "instruction_id": i,
            "phase": "decode" if s else "prefill",
            "step": s,
            "execution": s,
            "start_us": 10 * s + 5 * i,
            "duration_us": 3,
        }
        for s in range(3)
        for d in (0, 1)
        for i in (0, 1)
    ],
    "collectives": [
        {
            "event_id": 4 * s + 2 * d + 1,
            "instance": s,
            "device_id": d,
            "instruction_id": 1,
            "kind": "all-reduce",
            "group_size": 2,
            "message_bytes": 5000,
            "wire_bytes": 5000,
            "phase": "decode" if s else "prefill",
            "step": s,
            "start_us": 10 * s + 5,
            "end_us": 10 * s + 8,
            "exposed_us": 3,
        }
        for s in range(3)
        for d in (0, 1)
    ],
    "traffic": [
        {"instruction_id": 1, "source_device_id": d, "target_device_id": 1 - d, "algorithm": "ring", "bytes": 5000}
        for d in (0, 1)
    ],
    "metric_values": [{"metric": "ttft", "version": 1, "dimensions": '{"clock": "host"}', "value": 0.008}],
}


def write_run(warehouse: Path, run_id: str) -> RunVersion:
    """A published run of the given rows; tables without rows have no file."""
    folder = Path("lake") / run_id / "1"
    (warehouse / folder).mkdir(parents=True)
    files = {}
    with warehouse_of(GIVEN, DEFINITIONS) as connection:
        for table in GIVEN:
            path = folder / f"{table}.parquet"
            rows = connection.sql(f"SELECT * REPLACE ('{run_id}' AS run_id) FROM given.{table}")
            rows.to_parquet(str(warehouse / path))
            files[table] = [str(path)]
    digests = {f: file_digest(warehouse / f) for named in files.values() for f in named}
    run = RunVersion(run_id, "1", run_id, SCHEMA_VERSION, "0", "digest", files, digests=digests)
    (warehouse / "manifests").mkdir(exist_ok=True)
    (warehouse / "manifests" / f"{run_id}.json").write_text(manifest_text(run))
    return run


def build(warehouse: Path) -> Path:
    return Catalogue(Lake(warehouse), None, lambda: DEFINITIONS).build()


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("it's a warehouse")
    write_run(folder, "a")
    write_run(folder, "2")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def counted(warehouse: Path) -> dict[str, dict[str, int]]:
    """Rows by run of every view, alias and given table."""
    names = [*VIEWS, *(f"main.{t}" for t in GIVEN), *(f"metrics.{n}" for n in DEFINITIONS.aliases)]
    with duckdb.connect(str(warehouse / DATABASE), read_only=True) as connection:
        by_run = "SELECT run_id, count(*) FROM {} GROUP BY run_id ORDER BY run_id"
        return {name: dict(connection.execute(by_run.format(name)).fetchall()) for name in names}


def test_every_view_has_rows_of_every_run(counted: dict[str, dict[str, int]]) -> None:
    assert {v for v in VIEWS if not counted[v]} == {v for v in VIEWS if v in NEED_MORE}
    assert {v for v in VIEWS if counted[v] and list(counted[v]) != ["2", "a"]} == set()


def test_columns_are_those_of_the_front_matter_and_integers_stay_integers(warehouse: Path) -> None:
    with duckdb.connect(str(warehouse / DATABASE), read_only=True) as connection:
        for view in (*DEFINITIONS.ordered, *DEFINITIONS.audits):
            described = connection.execute(f"DESCRIBE {view.sql}").fetchall()
            assert [row[0] for row in described] == list(view.header.columns), view.qualified
            types = {row[1] for row in described}
            assert types <= {"VARCHAR", "BOOLEAN", "INTEGER", "BIGINT", "DOUBLE"}, (view.qualified, types)
        for metric in DEFINITIONS.metrics:
            described = connection.execute(f"DESCRIBE {metric.view.sql}").fetchall()
            assert {row[0]: row[1] for row in described}[metric.header.value] in {"BIGINT", "DOUBLE"}


def test_a_run_reads_its_own_files_only(warehouse: Path) -> None:
    with duckdb.connect(str(warehouse / DATABASE), read_only=True) as connection:
        reading = 0
        for view in (MISSING, *(v for v in VIEWS if v not in NEED_MORE)):
            plan = connection.execute(f"EXPLAIN (FORMAT json) SELECT * FROM {view} WHERE run_id = 'a'").fetchall()[0][1]
            read = re.findall(r'"Scanning Files":\s*"(\d+/\d+)', plan)
            reading += bool(read)
            assert set(read) <= {"1/2", "1/1"}, (view, read)  # DuckDB 1.5 says so of a list that it has cut before
        assert reading > 30  # the others read only tables that the catalogue holds


def test_everything_has_a_comment(warehouse: Path) -> None:
    with duckdb.connect(str(warehouse / DATABASE), read_only=True) as connection:
        views = connection.execute(
            "SELECT schema_name || '.' || view_name, comment FROM duckdb_views() WHERE NOT internal"
        ).fetchall()
        assert {n for n, _ in views} >= {
            *VIEWS,
            MISSING,
            "metrics.catalog",
            "metrics.all_values",
            "metrics.ttft",
            "main.ops",
        }
        assert [n for n, comment in views if not comment] == []
        columns = connection.execute(
            "SELECT schema_name, table_name, column_name FROM duckdb_columns() WHERE NOT internal AND comment IS NULL"
        ).fetchall()
        assert columns == []
        [(unit,)] = connection.execute(
            "SELECT comment FROM duckdb_columns() WHERE table_name = 'ops' AND column_name = 'self_ps'"
        ).fetchall()
        assert unit.endswith("[ps]")


def test_the_catalogue_lists_every_version(warehouse: Path) -> None:
    with duckdb.connect(str(warehouse / DATABASE), read_only=True) as connection:
        rows = connection.execute("SELECT * FROM metrics.catalog ORDER BY metric, version")
        found = [dict(zip([d[0] for d in rows.description], row, strict=True)) for row in rows.fetchall()]
    assert [(r["metric"], r["version"]) for r in found] == [(m.name, m.version) for m in DEFINITIONS.metrics]
    for row, metric in zip(found, DEFINITIONS.metrics, strict=True):
        assert row["fingerprint"] == DEFINITIONS.fingerprint(metric.view)
        assert json.loads(row["columns"]) == metric.header.columns
        assert row["grain"].split(", ") == metric.header.grain
        assert " ".join(filter(None, (row["description"], row["notes"]))) == metric.header.about


def test_a_run_is_evaluated_in_a_database_that_is_open_for_reading_only(warehouse: Path) -> None:
    with duckdb.connect(str(warehouse / DATABASE), read_only=True) as connection:
        columns = evaluated(connection, "a", DEFINITIONS).columns
        assert [*columns] == TABLES["metric_values"].arrow_of_run.names
        stored = [m for m in DEFINITIONS.metrics if m.header.is_stored and not m.view.compares_runs]
        assert {m.name for m in stored if m.view.qualified not in NEED_MORE} == {*columns["metric"]}
        assert connection.execute("SELECT count(*) FROM duckdb_databases() WHERE NOT internal").fetchone() == (1,)
        assert evaluated(connection, "no such run", DEFINITIONS).columns["value"] == []


def test_no_model_is_kept_longer_than_it_is_read(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[str]] = []

    def run(tasks: dict[str, Task], needs: dict[str, frozenset[str]], cursors: list[duckdb.DuckDBPyConnection]) -> None:
        ends = {n: t for n, t in tasks.items() if n.startswith("end of ")}
        run_tasks({n: t for n, t in tasks.items() if n not in ends}, needs, cursors)
        tables = "SELECT 'end of models.' || table_name FROM duckdb_tables() WHERE schema_name = 'models'"
        made.append(sorted(n for (n,) in cursors[0].execute(tables).fetchall()))
        run_tasks(ends, needs, cursors)
        made.append(cursors[0].execute(tables).fetchall())
        assert sorted(ends) == made[0]

    monkeypatch.setattr(metric_values, "run_tasks", run)
    with duckdb.connect(str(warehouse / DATABASE), read_only=True) as connection:
        evaluated(connection, "a", DEFINITIONS)
    assert len(made[0]) > 10
    assert made[1] == []


def test_a_build_replaces_the_file_under_a_reader(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    path = build(tmp_path)
    with duckdb.connect(str(path), read_only=True) as reader:
        write_run(tmp_path, "b")
        build(tmp_path)
        assert reader.execute("SELECT count(DISTINCT run_id) FROM main.ops").fetchone() == (1,)
    with duckdb.connect(str(path), read_only=True) as reader:
        assert reader.execute("SELECT count(DISTINCT run_id) FROM main.ops").fetchone() == (2,)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == sorted([MARK, DATABASE])


def test_an_empty_warehouse_has_every_table_and_no_rows(tmp_path: Path) -> None:
    with duckdb.connect(str(build(tmp_path)), read_only=True) as connection:
        for name in (*VIEWS, *(f"main.{t}" for t in TABLES)):
            assert connection.execute(f"SELECT * FROM {name}").fetchall() == []
        for table in TABLES.values():
            described = connection.execute(f"DESCRIBE main.{table.name}").fetchall()
            assert [(r[0], r[1]) for r in described] == [(c.name, c.type) for c in table.columns]


def test_tables_in_place_are_used_and_commented(tmp_path: Path) -> None:
    """A database that holds the rows itself needs no views of the tables."""
    runs = [write_run(tmp_path, "a")]
    with duckdb.connect() as connection:
        for table, source in run_sources(str(tmp_path), runs).items():
            if source:
                connection.execute(f"CREATE TABLE main.{table} AS FROM {source}")
        tables = {t: f"main.{t}" if t in GIVEN else None for t in TABLES}
        create_lens(connection, tables, DEFINITIONS)
        comment_on_tables(connection, tables)
        assert connection.execute("SELECT count(*) FROM metrics.ttft").fetchone() == (2,)
        [(comment,)] = connection.execute("SELECT comment FROM duckdb_tables() WHERE table_name = 'ops'").fetchall()
        assert comment == TABLES["ops"].doc


def test_a_nest_of_views_is_planned_without_the_step_that_takes_longest(warehouse: Path) -> None:
    """Where this DuckDB has it; the numbers of a run are then planned in a third of the time."""
    known = duckdb.sql("SELECT name FROM duckdb_optimizers() WHERE name = 'projection_pullup'").fetchall()
    with open_warehouse(warehouse) as opened:
        left_out = opened.query("SELECT current_setting('disabled_optimizers')").scalar()
    assert left_out == ("projection_pullup" if known else "")


def test_the_steps_that_planning_leaves_out_are_set_in_one_place() -> None:
    """A second place would overwrite the first."""
    setting = re.compile(r"SET \w*\s*disabled_optimizers", re.IGNORECASE)
    found = [p.name for p in SQL.parent.rglob("*.py") for _ in setting.findall(p.read_text())]
    assert found == ["lens.py"]
