"""Which quality flags an answer must carry: those of the runs that its rows come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracewarehouse.ingest.lake.schema import TABLES

if TYPE_CHECKING:
    import pyarrow as pa

    from tracewarehouse.ingest.lake.lake import RunVersion

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
"""What was done to the clocks of hosts, one sentence each; runs of one host have none."""


@dataclass(frozen=True)
class FlaggedRun:
    """A run whose numbers want care; `SELECT * FROM main.quality_flags` says more."""

    run_id: str
    name: str
    flags: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.flags)})"


def flagged(runs: Iterable[RunVersion]) -> list[FlaggedRun]:
    """The runs that have flags, in order of name."""
    found = [FlaggedRun(r.run_id, r.name, tuple(r.flags)) for r in runs if r.flags]
    return sorted(found, key=lambda r: (r.name, r.run_id))


def in_scope(
    sql: str,
    parameters: Mapping[str, Any] | None,
    result: pa.Table,
    runs: Sequence[RunVersion],
    tables_read: Callable[[], Iterable[tuple[str, bool]]],
) -> list[FlaggedRun]:
    """The flagged runs that a query's rows may come from; no file is read for it.

    Those named in a column run_id of the result; without that column those that the SQL or a parameter names by run id
    or name; without either all, if the query reads a table or metric at all.

    Args:
        sql: the query.
        parameters: its parameters.
        result: its rows.
        runs: the runs of the warehouse.
        tables_read: gives the names that the query reads from, each with whether it is of schema models or metrics.
    """
    suspects = flagged(runs)
    if not suspects:
        return []
    if "run_id" in result.column_names:
        column = result.column(result.column_names.index("run_id"))
        # a function of Arrow's compute first imports all of them, which takes longer than a small list
        here = set((column if len(column) < 10_000 else column.unique()).to_pylist())
        return [r for r in suspects if r.run_id in here]
    if not any(name in TABLES or (is_view and name != "catalog") for name, is_view in tables_read()):
        return []
    texts = [str(v) for v in (parameters or {}).values()]
    named = {r.run_id for r in runs if _is_named(r, sql, texts)}
    return [r for r in suspects if r.run_id in named] if named else suspects


def note(runs: Sequence[FlaggedRun], most: int = 5) -> str | None:
    """A sentence for people that names the flagged runs; None without any."""
    if not runs:
        return None
    listed = ", ".join(map(str, runs[:most])) + (f" and {len(runs) - most} more" if len(runs) > most else "")
    return f"read with care, flagged: {listed}; `tw runs --notes` says why"


def _is_named(run: RunVersion, sql: str, texts: Sequence[str]) -> bool:
    quoted = "'" + run.name.replace("'", "''") + "'"
    return run.run_id in sql or quoted in sql or any(run.run_id in t or run.name == t for t in texts)
