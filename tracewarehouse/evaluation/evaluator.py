"""Evaluates the metrics of one run, at ingest and whenever definitions have changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracewarehouse.ingest.errors import MetricError, WarehouseError
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.ingest.processes.pool import usable_cores

if TYPE_CHECKING:
    from tracewarehouse.definitions.reading import Definitions
    from tracewarehouse.evaluation.audits import Finding
    from tracewarehouse.ingest.lake.lake import Lake
    from tracewarehouse.ingest.lake.manifest import RunVersion


class Evaluator:
    """The metric evaluator that ingest calls; DuckDB and the definitions are loaded when a run needs them.

    It also audits the run. After a call, `findings` holds what the audits found, and `beyond_range` names the metrics
    that have no value because their numbers do not fit 64 bits.

    Args:
        load: gives the models, metrics and audits.
        threads: number of threads that evaluate a run; None for one per core.
    """

    def __init__(self, load: Callable[[], Definitions], *, threads: int | None = None) -> None:
        self._load = load
        self._threads = usable_cores() if threads is None else threads
        self.findings: list[Finding] = []
        self.beyond_range: dict[str, str] = {}

    @cached_property
    def definitions(self) -> Definitions:
        """The models, metrics and audits."""
        return self._load()

    @property
    def fingerprint(self) -> str:
        """The fingerprint of all definitions together."""
        return self.definitions.all_fingerprint

    def prepare(self) -> None:
        """Load DuckDB and all definitions, which the next call would do first, and fail at in the same way."""
        import duckdb

        from tracewarehouse.evaluation.values import prepared_metrics

        with duckdb.connect(":memory:", config={"threads": 1}) as connection:
            prepared_metrics(connection, self.definitions)

    def __call__(self, files: Mapping[str, Sequence[Path]], run_id: str) -> Mapping[str, list[Any]]:
        """Evaluate a run from its files by table name, and return the columns of main.metric_values without run_id."""
        import duckdb

        from tracewarehouse.database.temporary import TemporaryFolder
        from tracewarehouse.evaluation.values import AT_ONCE, prepared_metrics
        from tracewarehouse.queries.read_only import literal

        lists = {t: ", ".join(literal(str(path)) for path in paths) for t, paths in files.items() if paths}
        sources = {t: f"read_parquet([{listed}], hive_partitioning = false)" for t, listed in lists.items()}
        # the threads that call DuckDB work on their statements too
        threads = max(1, self._threads - AT_ONCE + 1)
        with TemporaryFolder() as spill, duckdb.connect(":memory:", config={"threads": threads}) as connection:
            try:
                connection.execute(f"SET temp_directory = {literal(str(spill.path))}")
                evaluated = prepared_metrics(connection, self.definitions).evaluate(connection, run_id, sources)
            except duckdb.Error as error:
                raise MetricError(f"run {run_id}: the metrics cannot be evaluated: {error}") from None
        self.findings, self.beyond_range = evaluated.findings, evaluated.beyond_range
        return evaluated.columns


def refresh(lake: Lake, run: RunVersion, evaluator: Evaluator) -> RunVersion | None:
    """Evaluate a run's metrics again and store them; returns None if the run was replaced meanwhile.

    If the evaluator lacks a user's own metrics, their stored values are kept, with the fingerprint of the definitions
    that they were computed with.
    """
    from tracewarehouse.database.checked_files import CheckedFiles
    from tracewarehouse.ingest.lake.parquet import TableWriter

    CheckedFiles(lake).check([run])
    files = {t: lake.paths(run, t) for t in run.files if t != "metric_values"}
    values = evaluator(files, run.run_id)
    fingerprint = evaluator.fingerprint
    own = (run.metrics_fingerprint or "").partition("+")[2]
    if own and not evaluator.definitions.added:
        unknown = _unknown_values(lake, run, evaluator.definitions)
        values = {name: [*column, *unknown[name]] for name, column in values.items()}
        fingerprint = f"{fingerprint}+{own}"
    try:
        with lake.stage(run.run_id, run.version) as staging:
            with TableWriter(staging, run.run_id, TABLES["metric_values"]) as writer:
                writer.write(len(values["metric"]), values)
            return lake.replace_metric_values(run, writer.path, writer.rows, fingerprint)
    except OSError as error:
        raise WarehouseError(f"{lake.warehouse}: writing the metric values of run {run.name} failed: {error}") from None


def _unknown_values(lake: Lake, run: RunVersion, definitions: Definitions) -> dict[str, list[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = TABLES["metric_values"].arrow_of_run
    stored = pa.concat_tables(
        [schema.empty_table()]
        + [pq.ParquetFile(p).read(schema.names).cast(schema) for p in lake.paths(run, "metric_values")]
    )
    names = {m.name for m in definitions.metrics}
    rows = [r for r in stored.to_pylist() if r["metric"] not in names]
    return {name: [r[name] for r in rows] for name in schema.names}
