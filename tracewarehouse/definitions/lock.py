"""Locks released versions of metrics by their fingerprints in sql/metrics.lock, and starts new versions.

The lock makes sure that no released version changes its meaning unnoticed. A version is released once its status is
stable, and stays released when it is deprecated. The models that released versions read are locked too, because a
change in a model changes the metrics that read it.

    tw metrics lock                    add newly released versions
    tw metrics lock --accept-models    also accept changed models, after the cases have passed
    tw metrics lock --check            write nothing, print what has changed

A user's folder of metrics has a lock of its own, which `tw --sql DIR metrics lock` writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import yaml

from tracewarehouse.definitions.definition import UNFILLED, Metric, View
from tracewarehouse.definitions.reading import SQL, Definitions
from tracewarehouse.ingest.errors import MetricError

LOCK = SQL / "metrics.lock"
_COMMAND = "tw metrics lock"
_HEAD = f"""\
# Fingerprints of the released metric versions and of the models beneath them, blind to how they are spelt.
# Written by `{_COMMAND}`. A released version never changes its meaning: a change is a new file.
"""


@dataclass(frozen=True)
class Lock:
    """Fingerprints by name: of metric versions such as ttft_v1, and of models."""

    metrics: dict[str, str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)


def read_lock(path: Path = LOCK) -> Lock:
    """Read the lock file; returns an empty lock if there is no file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return Lock(dict(content["metrics"]), dict(content["models"]))
    except FileNotFoundError:
        return Lock()
    except (OSError, yaml.YAMLError, TypeError, KeyError, ValueError) as error:
        raise MetricError(f"{path}: not a metric lock ({error}); restore it from version control") from None


def current_lock(definitions: Definitions) -> Lock:
    """The lock for the definitions as they are now; if a user's own are among them, the lock covers only those."""
    metrics: dict[str, str] = {}
    models: dict[str, str] = {}
    for metric in definitions.metrics:
        if _is_released(metric) and (not definitions.added or metric.view.qualified in definitions.added):
            metrics[metric.view.name] = metric.view.fingerprint
            models |= {v.name: v.fingerprint for v in definitions.upstream(metric.view) if v.schema == "models"}
    return Lock(metrics, dict(sorted(models.items())))


def changes(definitions: Definitions, lock: Lock) -> list[str]:
    """List the changes of released definitions, each with what to do; empty if nothing has changed."""
    now = current_lock(definitions)
    changed = _changed_models(definitions, lock, now)
    return [*_broken(definitions, lock, now), *changed, *_unlocked(lock, now)]


def write_lock(definitions: Definitions, path: Path = LOCK, *, accept_models: bool = False) -> Lock:
    """Add newly released versions to the lock file.

    Accept changed models only if every case still gives the same rows.
    """
    now, lock = current_lock(definitions), read_lock(path)
    refused = _broken(definitions, lock, now)
    if not accept_models:
        refused += _changed_models(definitions, lock, now)
    if refused:
        raise MetricError("\n".join(refused))
    content = yaml.safe_dump({"metrics": now.metrics, "models": now.models}, sort_keys=True)
    path.write_text(_HEAD + content, encoding="utf-8")
    return now


def _broken(definitions: Definitions, lock: Lock, now: Lock) -> list[str]:
    broken = []
    for name, fingerprint in lock.metrics.items():
        base, _, version = name.rpartition("_v")
        if name not in now.metrics:
            files = [_file(m.view) for m in definitions.metrics if m.view.name == name]
            file = files[0] if files else f"{name}.sql"
            broken.append(
                f"{name} was released and is gone or no longer stable; restore {file}, and set "
                "its status to deprecated if it should no longer be used"
            )
        elif now.metrics[name] != fingerprint:
            latest = max(m.version for m in definitions.metrics if m.name == base)
            file = _file(definitions.metric(base, int(version)).view)
            broken.append(
                f"{file} was released and has changed; restore it and put the change into "
                f"{file.with_name(f'{base}_v{max(latest, int(version)) + 1}.sql')}"
            )
    return broken


def _changed_models(definitions: Definitions, lock: Lock, now: Lock) -> list[str]:
    changed = []
    for name, fingerprint in lock.models.items():
        if name in now.models and now.models[name] != fingerprint:
            above = [
                m.view.name
                for m in definitions.metrics
                if _is_released(m) and f"models.{name}" in {v.qualified for v in definitions.upstream(m.view)}
            ]
            file = _file(definitions[f"models.{name}"])
            changed.append(
                f"{file} has changed beneath {', '.join(above)}; if every case still gives the same rows, run "
                f"`{_COMMAND} --accept-models`, else restore it and give the changed model a new name"
            )
    return changed


def _file(view: View) -> PurePosixPath:
    is_package = view.path.is_relative_to(SQL)
    return PurePosixPath("sql", view.path.relative_to(SQL)) if is_package else PurePosixPath(view.path)


def _unlocked(lock: Lock, now: Lock) -> list[str]:
    new = [n for n in now.metrics if n not in lock.metrics] + [f"models.{n}" for n in now.models.keys() ^ lock.models]
    return [f"the lock does not agree on {', '.join(new)}; run `{_COMMAND}`"] if new else []


def _is_released(metric: Metric) -> bool:
    return metric.header.status != "experimental"


def definitions_folder(user_folder: Path | None) -> Path:
    """The folder whose definitions may be changed: the user's, or the package's own in a checkout."""
    if user_folder is not None:
        return user_folder
    if not (SQL.parents[1] / "pyproject.toml").is_file():
        raise MetricError(
            f"the metrics in {SQL} belong to an installed package; keep your own in a folder and name it with --sql DIR"
        )
    return SQL


def new_version(definitions: Definitions, name: str, folder: Path) -> Path:
    """Copy the newest version of a metric in a folder to the next one, experimental, and return its file."""
    definitions.metric(name)
    newest = [m for m in definitions.metrics if m.name == name][-1]
    if not newest.view.path.is_relative_to(folder):
        raise MetricError(f"{name} is a metric of the package, not of {folder}; copy it there under another name")
    if newest.header.status == "experimental":
        raise MetricError(f"{newest.view.path} is still experimental; change it there")
    target = newest.view.path.with_name(f"{name}_v{newest.version + 1}.sql")
    front, closing, sql = newest.view.path.read_text(encoding="utf-8").partition("---*/")
    front = _with(_with(front, "status", "status: experimental\n"), "deprecated")
    front = _with(front, "changed") + f"changed: {UNFILLED} say what differs from version {newest.version}, and why.\n"
    target.write_text(front + closing + sql, encoding="utf-8")
    return target


def _with(front: str, key: str, line: str = "") -> str:
    """The front matter with another line for a key, or without it; the old value may continue on indented lines."""
    return re.sub(rf"^{key}:.*\n(?:[ \t]+.*\n)*", line, front, flags=re.MULTILINE)
