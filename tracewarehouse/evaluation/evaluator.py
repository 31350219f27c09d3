"""Evaluates the metrics of one run, at ingest and whenever definitions have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from tracewarehouse.database.temporary import TemporaryFolder
from tracewarehouse.definitions.reading import Definitions, load_definitions
from tracewarehouse.evaluation.findings import Evaluation, Finding
from tracewarehouse.evaluation.values import AT_ONCE, PreparedMetrics, prepared_metrics
from tracewarehouse.ingest.errors import MetricError, WarehouseError
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.ingest.processes.pool import usable_cores
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    import pyarrow as pa

    from tracewarehouse.ingest.lake.lake import Lake
    from tracewarehouse.ingest.lake.manifest import RunVersion


class Evaluator:
    """The metric evaluator that ingest calls.

    It also audits the run. After a call, `findings` holds what the audits found, and `beyond_range` names the metrics
    that have no value because their numbers do not fit 64 bits. `fingerprint` covers all definitions together.

    Args:
        definitions: the models, metrics and audits; by default those of the package.
        threads: number of threads that evaluate a run; None for one per core.
    """

    def __init__(self, definitions: Definitions | None = None, *, threads: int | None = None) -> None:
        self._threads = threads
        self.definitions = definitions or load_definitions()
        self.findings: list[Finding] = []
        self.beyond_range: dict[str, str] = {}
        self.fingerprint = self.definitions.all_fingerprint

    def __call__(self, files: Mapping[str, Sequence[Path]], run_id: str) -> pa.Table:
        """Evaluate a run from its files by table name, and return rows of main.metric_values without run_id.

        Raises:
            MetricError: a metric cannot be evaluated.
        """
        with TemporaryFolder() as spill, database(self._threads) as connection:
            prepared = prepared_metrics(connection, self.definitions)
            evaluated = evaluate_files(connection, prepared, files, run_id, spill.path)
        self.findings, self.beyond_range = evaluated.findings, evaluated.beyond_range
        return evaluated.values()


def database(threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """An empty database in memory, for `evaluate_files`.

    Args:
        threads: number of threads that evaluate a run; None for one per core.
    """
    count = usable_cores() if threads is None else threads
    # the threads that call DuckDB work on their statements too
    return duckdb.connect(":memory:", config={"threads": max(1, count - AT_ONCE + 1)})


def evaluate_files(
    connection: duckdb.DuckDBPyConnection,
    prepared: PreparedMetrics,
    files: Mapping[str, Sequence[Path]],
    run_id: str,
    spill: Path,
) -> Evaluation:
    """Evaluate the metrics and audits of a run from its files.

    Args:
        connection: an empty database.
        prepared: the metrics and audits.
        files: the run's files by table name.
        run_id: the run.
        spill: a folder for rows that do not fit in memory.

    Raises:
        MetricError: a metric or an audit cannot be evaluated.
    """
    sources = {t: _source(paths) for t, paths in files.items() if paths}
    try:
        connection.execute(f"SET temp_directory = {literal(str(spill))}")
        return prepared.evaluate(connection, run_id, sources)
    except duckdb.Error as error:
        raise MetricError(f"run {run_id}: the metrics cannot be evaluated: {error}") from None


def _source(files: Sequence[Path]) -> str:
    return f"read_parquet([{', '.join(literal(str(f)) for f in files)}], hive_partitioning = false)"


def refresh(lake: Lake, run: RunVersion, evaluator: Evaluator) -> RunVersion | None:
    """Evaluate a run's metrics again and store them; returns None if the run was replaced meanwhile.

    If the evaluator lacks a user's own metrics, their stored values are kept, with the fingerprint of the definitions
    that they were computed with.

    Raises:
        MetricError: a metric cannot be evaluated.
        WarehouseError: the values cannot be written.
    """
    import pyarrow as pa

    from tracewarehouse.ingest.lake.parquet import TableWriter

    files = {t: lake.paths(run, t) for t in run.files if t != "metric_values"}
    values = evaluator(files, run.run_id)
    fingerprint = evaluator.fingerprint
    own = (run.metrics_fingerprint or "").partition("+")[2]
    if own and not evaluator.definitions.added:
        values = pa.concat_tables([values, _unknown_values(lake, run, evaluator.definitions)])
        fingerprint = f"{fingerprint}+{own}"
    try:
        with lake.stage(run.run_id, run.version) as staging:
            with TableWriter(staging, run.run_id, TABLES["metric_values"]) as writer:
                writer.write(len(values), {n: values.column(n).combine_chunks() for n in values.column_names})
            return lake.replace_metric_values(run, writer.path, writer.rows, fingerprint)
    except OSError as error:
        raise WarehouseError(f"{lake.warehouse}: writing the metric values of run {run.name} failed: {error}") from None


def _unknown_values(lake: Lake, run: RunVersion, definitions: Definitions) -> pa.Table:
    """The stored values of metrics that are not among the definitions."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    schema = TABLES["metric_values"].arrow_of_run
    stored = pa.concat_tables(
        [schema.empty_table()]
        + [pq.ParquetFile(p).read(schema.names).cast(schema) for p in lake.paths(run, "metric_values")]
    )
    names = pa.array({m.name for m in definitions.metrics}, pa.string())
    return stored.filter(pc.invert(pc.is_in(stored["metric"], names)))
