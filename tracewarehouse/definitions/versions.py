"""Starts a new version of a metric."""

from __future__ import annotations

import re
from pathlib import Path

from tracewarehouse.definitions.headers import UNFILLED
from tracewarehouse.definitions.reading import SQL, Definitions
from tracewarehouse.ingest.errors import MetricError


def definitions_folder(user_folder: Path | None) -> Path:
    """The folder whose definitions may be changed: the user's, or the package's own in a checkout.

    Raises:
        MetricError: the package is installed, so its SQL must not be changed.
    """
    if user_folder is not None:
        return user_folder
    if not (SQL.parents[1] / "pyproject.toml").is_file():
        raise MetricError(
            f"the metrics in {SQL} belong to an installed package; keep your own in a folder and name it with --sql DIR"
        )
    return SQL


def new_version(definitions: Definitions, name: str, folder: Path) -> Path:
    """Copy the newest version of a metric to the next one, experimental, and return its file.

    Args:
        definitions: all definitions.
        name: the metric.
        folder: the folder of its versions.

    Raises:
        MetricError: there is no such metric in the folder, or its newest version is experimental.
    """
    definitions.metric(name)
    newest = [m for m in definitions.metrics if m.name == name][-1]
    if not newest.view.path.is_relative_to(folder):
        raise MetricError(f"{name} is a metric of the package, not of {folder}; copy it there under another name")
    if newest.header.status == "experimental":
        raise MetricError(f"{newest.view.path} is still experimental; change it there")
    target = newest.view.path.with_name(f"{name}_v{newest.version + 1}.sql")
    front, closing, sql = newest.view.path.read_text(encoding="utf-8").partition("---*/")
    front = _with(front, "version", str(newest.version + 1))
    front = _with(front, "status", "experimental")
    front = _with(front, "deprecated", None)
    front = _with(front, "changed", f"{UNFILLED} say what differs from version {newest.version}, and why.")
    target.write_text(front + closing + sql, encoding="utf-8")
    return target


def _with(front: str, key: str, value: str | None) -> str:
    """The front matter with a new value of a key; the old value may continue on indented lines."""
    line = "" if value is None else f"{key}: {value}\n"
    return re.sub(rf"^{key}:.*\n(?:[ \t]+.*\n)*", line, front, flags=re.MULTILINE)
