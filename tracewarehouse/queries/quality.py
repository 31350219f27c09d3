"""Finds the quality flags that an answer must carry: those of the runs that its rows come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from tracewarehouse.ingest.lake.lake import RunVersion
    from tracewarehouse.queries.tables_read import TablesRead

CLOCKS = """
SELECT r.run_id, r.name, concat(
    'clock of ', h.host, ': ', printf('%+.3f us', h.clock_offset_ps / 1e6), ' (', h.clock_source,
    printf(', of which %+.3f us', h.clock_correction_ps / 1e6),
    printf(', %d shared collectives', h.clock_instances),
    printf(', residual %.3f us', h.clock_residual_ps / 1e6), ')'
) AS note
FROM main.hosts AS h JOIN main.runs AS r ON r.run_id = h.run_id
WHERE r.host_count > 1
ORDER BY r.name, r.run_id, h.host_index
"""
"""How the clocks of the hosts were aligned, one sentence for each case; runs of one host have no entry."""


@dataclass(frozen=True)
class FlaggedRun:
    """A run whose numbers must be read with care; `SELECT * FROM main.quality_flags` gives the details."""

    run_id: str
    name: str
    flags: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.flags)})"


def flagged(runs: Iterable[RunVersion]) -> list[FlaggedRun]:
    """The runs that have flags, sorted by name."""
    with_flags = [FlaggedRun(r.run_id, r.name, tuple(r.flags)) for r in runs if r.flags]
    return sorted(with_flags, key=lambda r: (r.name, r.run_id))


def in_scope(
    read: TablesRead, parameters: Mapping[str, Any] | None, result: pa.Table, runs: Sequence[RunVersion]
) -> list[FlaggedRun]:
    """Return the flagged ones of the runs that a query's rows may come from; see `runs_behind`."""
    return flagged(runs_behind(read, parameters, result, [r for r in runs if r.flags], runs))


def runs_behind(
    read: TablesRead,
    parameters: Mapping[str, Any] | None,
    result: pa.Table,
    suspects: Sequence[RunVersion],
    runs: Sequence[RunVersion],
) -> list[RunVersion]:
    """Return the runs that a query's rows may come from, without reading a file.

    If the result has a column run_id, these are the runs in that column. Otherwise they are the runs whose id or name
    is a string in the query or a parameter. If there is none either, they are all runs, provided that the query reads a
    table or metric.

    Args:
        read: what the query reads.
        parameters: its parameters.
        result: its rows.
        suspects: the runs to choose from.
        runs: all runs of the warehouse.
    """
    if not suspects or not result.column_names:
        return []
    if "run_id" in result.column_names:
        column = result.column(result.column_names.index("run_id"))
        # pyarrow.compute takes longer to import than a small list takes to build
        here = set((column if len(column) < 10_000 else column.unique()).to_pylist())
        return [r for r in suspects if r.run_id in here]
    if not read.reads_runs:
        return []
    texts = [*read.texts, *(str(v) for v in (parameters or {}).values())]
    named = {r.run_id for r in runs if any(r.run_id in t or r.name == t for t in texts)}
    return [r for r in suspects if r.run_id in named] if named else list(suspects)


def note(runs: Sequence[FlaggedRun], most: int = 5) -> str | None:
    """One sentence that names the flagged runs, for people to read; None if there are none."""
    if not runs:
        return None
    listed = ", ".join(map(str, runs[:most])) + (f" and {len(runs) - most} more" if len(runs) > most else "")
    return f"read with care, flagged: {listed}; `tw runs --notes` says why"
