"""Finds the runs that the rows of an answer come from, and the flagged ones among them, which it must name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracewarehouse.queries.quality import FlaggedRun, flagged

if TYPE_CHECKING:
    from tracewarehouse.ingest.lake.manifest import RunVersion
    from tracewarehouse.queries.result import QueryResult
    from tracewarehouse.queries.tables_read import TablesRead


def in_scope(
    read: TablesRead, parameters: Mapping[str, Any] | None, result: QueryResult, runs: Sequence[RunVersion]
) -> list[FlaggedRun]:
    """Return the flagged ones of the runs that a query's rows may come from; see `runs_behind`."""
    return flagged(runs_behind(read, parameters, result, [r for r in runs if r.flags], runs))


def runs_behind(
    read: TablesRead,
    parameters: Mapping[str, Any] | None,
    result: QueryResult,
    suspects: Sequence[RunVersion],
    runs: Sequence[RunVersion],
) -> list[RunVersion]:
    """Return the runs that a query's rows may come from, without reading a file.

    If the result has a column run_id, these are the runs in that column. Otherwise they are the runs whose id or name
    is a string in the query or a parameter. If there is none either, they are all runs, provided that the query reads a
    table or metric.

    Args:
        read: what the query reads.
        suspects: the runs to choose from.
        runs: all runs of the warehouse.
    """
    if not suspects or not result.columns:
        return []
    if "run_id" in result.columns:
        here = result.distinct("run_id")
        return [r for r in suspects if r.run_id in here]
    if not read.reads_runs:
        return []
    texts = [*read.texts, *(str(v) for v in (parameters or {}).values())]
    named = {r.run_id for r in runs if any(r.run_id in t or r.name == t for t in texts)}
    return [r for r in suspects if r.run_id in named] if named else list(suspects)
