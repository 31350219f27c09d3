"""Evaluates the metrics of a run in a separate process, which starts up while the capture is decoded.

Importing DuckDB and reading the definitions takes as long as decoding a small capture, and an idle core can do it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tracewarehouse.database.temporary import TemporaryFolder

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tracewarehouse.evaluation.findings import Evaluation, Finding
    from tracewarehouse.evaluation.values import PreparedMetrics
    from tracewarehouse.ingest.processes.pool import Helper

_Task = tuple[Path | None, Mapping[str, Sequence[Path]], str, Path]
"""The user's own definitions, the files, the run, and the folder for rows that do not fit in memory."""


class ForkedEvaluator:
    """An `Evaluator` for one run that works in a helper process; as a context manager, it ends that process.

    It has the attributes of `Evaluator`; they are set once it has been called.

    Args:
        helper: the process; it starts to prepare at once.
        sql: a folder of definitions in addition to the package's, or None.
    """

    def __init__(self, helper: Helper, sql: Path | None) -> None:
        self.findings: list[Finding] = []
        self.beyond_range: dict[str, str] = {}
        self.fingerprint = ""
        self._helper = helper
        self._sql = sql
        helper.send(_get_ready, sql)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._helper.end()

    def __call__(self, files: Mapping[str, Sequence[Path]], run_id: str) -> pa.Table:
        """Evaluate a run from its files by table name, and return rows of main.metric_values without run_id; call once.

        Raises:
            MetricError: a definition is not valid, or a metric cannot be evaluated.
            HelperError: something outside ended the process.
        """
        with TemporaryFolder() as spill:
            try:
                self.fingerprint = self._helper.answer()
                evaluated = self._helper.ask(_evaluated, (self._sql, files, run_id, spill.path))
            except BaseException:  # Ctrl-C too: the helper must stop writing to the folder
                self._helper.end()
                raise
        self._helper.dismiss()
        self.findings, self.beyond_range = evaluated.findings, evaluated.beyond_range
        return evaluated.values()


def _get_ready(_: Any, sql: Path | None) -> str:
    return _prepared(sql)[1].definitions.all_fingerprint


def _evaluated(_: Any, task: _Task) -> Evaluation:
    from tracewarehouse.definitions.texts import remember
    from tracewarehouse.evaluation.evaluator import evaluate_files

    sql, files, run_id, spill = task
    evaluated = evaluate_files(*_prepared(sql), files, run_id, spill)
    remember()  # a helper process is killed, so nothing would be saved at its end
    return evaluated


@cache
def _prepared(sql: Path | None) -> tuple[duckdb.DuckDBPyConnection, PreparedMetrics]:
    """A database and the prepared metrics; never closed, as the process is ended after its answer."""
    from tracewarehouse.definitions.reading import load_with
    from tracewarehouse.evaluation.evaluator import database
    from tracewarehouse.evaluation.values import prepared_metrics

    definitions = load_with(sql)
    connection = database()
    return connection, prepared_metrics(connection, definitions)
