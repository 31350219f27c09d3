"""Finds the runs that references mean: a run id or name, the beginning of one, or a pattern of names.

No text at all means the only run of a warehouse.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import RunVersion, UnreadRun, unread_error

_MOST_NAMED = 10


def runs_meant(
    lake: Lake, warehouse: str | Path, references: str | Sequence[str], *, patterns: bool = False
) -> list[RunVersion]:
    """The runs that references mean, each once.

    All runs are listed at most once, and only if a reference is not the whole id of a run.

    Args:
        warehouse: the name of the warehouse in error messages.
        references: one reference, or several.
        patterns: whether a reference may be a pattern of names, such as 'llama-*'.
    """
    lake.sync()
    meant: dict[str, RunVersion] = {}
    listed: tuple[list[RunVersion], list[UnreadRun]] | None = None
    for reference in [references] if isinstance(references, str) else references:
        if run := lake.readable_run(reference):
            meant[run.run_id] = run
            continue
        runs, unread = listed = listed or lake.listing()
        if patterns and _is_pattern(reference):
            fitting = [r for r in lake.readable(runs, unread) if fnmatchcase(r.name, reference)]
        else:
            fitting = []
        for run in fitting or [_named(lake, warehouse, reference, runs, unread)]:
            meant[run.run_id] = run
    return list(meant.values())


def _is_pattern(reference: str) -> bool:
    return any(c in reference for c in "*?[")


def _named(
    lake: Lake, warehouse: str | Path, reference: str, runs: list[RunVersion], unread: list[UnreadRun]
) -> RunVersion:
    for other in unread:
        if reference in (other.run_id, other.name):
            raise unread_error(other)
    runs = lake.readable(runs, unread)
    for fitting in (
        [r for r in runs if r.run_id == reference],
        [r for r in runs if r.name == reference],
        [r for r in runs if r.run_id.startswith(reference)] if reference or len(runs) == 1 else [],
        [r for r in runs if r.name.startswith(reference)] if reference else [],
    ):
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise WarehouseError(f"{reference!r} stands for {len(fitting)} runs: {_listed(fitting)}; use a run id")
    if not runs:
        raise WarehouseError(f"no run {reference!r}: the warehouse {warehouse} is empty; add runs with `tw ingest`")
    if not reference:
        raise WarehouseError(f"the warehouse {warehouse} holds {len(runs)} runs; name one")
    names = [*dict.fromkeys(r.name for r in runs), *(r.run_id for r in runs)]
    if close := get_close_matches(reference, names, n=3):
        raise WarehouseError(f"no run {reference!r} in {warehouse}; did you mean {' or '.join(close)}?")
    raise WarehouseError(f"no run {reference!r} in {warehouse}; `tw runs` lists its runs")


def _listed(runs: Sequence[RunVersion]) -> str:
    names = [f"{r.run_id} ({r.name})" for r in runs[:_MOST_NAMED]]
    more = len(runs) - _MOST_NAMED
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
