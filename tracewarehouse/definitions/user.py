"""Loads a user's own metrics, models and audits, together with those of the package.

The user's files lie anywhere in the folder: <name>_v<n>.sql for a metric, <name>.sql for a model or audit. The folder's
files pass the same checks and may read the package's models and metrics, but must not reuse a name of the package.
"""

from __future__ import annotations

from pathlib import Path

from tracewarehouse.definitions.headers import MetricHeader
from tracewarehouse.definitions.reading import SQL, Definitions, load_definitions, read_folder
from tracewarehouse.definitions.view import View
from tracewarehouse.ingest.errors import MetricError

_RESERVED = {"metrics.catalog", "metrics.all_values", "metrics.missing"}


def load_with(folder: Path | None) -> Definitions:
    """Load the package's definitions, and those of a user's folder if one is given.

    Raises:
        MetricError: the folder holds no definitions, or one of them is not valid or reuses a name of the package.
    """
    if folder is None:
        return load_definitions()
    views = _read(folder)
    package = load_definitions()
    taken = _RESERVED | package.names | {f"metrics.{name}" for name in package.aliases()}
    for view in views:
        _refuse_taken(view, taken)
    names = {v.qualified for v in views}
    for view in views:
        if isinstance(view.header, MetricHeader) and f"metrics.{view.header.metric}" in names:
            raise MetricError(f"{view.path}: {view.header.metric} is also the name of a version of another metric")
    return Definitions([*read_folder(SQL), *views], added=names)


def portability_notes(definitions: Definitions) -> list[str]:
    """List what in a user's definitions works in DuckDB but may not work in other engines, one sentence each.

    The package's own SQL must stay in the portable subset. A user's SQL may leave it, so these are not errors.
    """
    from tracewarehouse.definitions.portable import complaints

    views = [v for v in (*definitions.ordered, *definitions.audits) if v.qualified in definitions.added]
    return [
        f"{v.path}: not portable to other engines: {c}"
        for v in views
        for c in complaints(v.sql, across_runs=v.compares_runs)
    ]


def _read(folder: Path) -> list[View]:
    if not folder.is_dir():
        raise MetricError(f"no folder {folder} to read metrics from; --sql or TRACEWAREHOUSE_SQL names it")
    if not (views := read_folder(folder)):
        raise MetricError(f"{folder}: holds no metric, model or audit: no file <name>.sql or <name>_v<n>.sql")
    return views


def _refuse_taken(view: View, taken: set[str]) -> None:
    names = {view.qualified: view.name}
    if isinstance(view.header, MetricHeader):
        names[f"metrics.{view.header.metric}"] = view.header.metric
    for qualified, name in names.items():
        if qualified in taken:
            raise MetricError(
                f"{view.path}: {qualified} is a name of the package and cannot be defined anew; use another name, "
                f"such as my_{name}"
            )
