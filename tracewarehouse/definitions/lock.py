"""Locks released versions of metrics by their fingerprints in sql/metrics.lock, and starts metrics and new versions.

A version is released once its status is stable, and stays released when it is deprecated. The models that released
versions read are locked too, because a change in a model changes the metrics that read it. A user's folder of metrics
has a lock of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import yaml

from tracewarehouse.definitions.definition import UNFILLED, Metric, View
from tracewarehouse.definitions.reading import SQL, Definitions, load_definitions, load_with
from tracewarehouse.ingest.errors import MetricError

LOCK = SQL / "metrics.lock"
_COMMAND = "tw metrics lock"
_HEAD = f"""\
# Fingerprints of the released metric versions and of the models beneath them, blind to how they are spelt.
# Written by `{_COMMAND}`. A released version never changes its meaning: a change is a new file.
"""
_DEFINITION = """/*---
status: experimental
unit: count
polarity: none
grain: [run_id, phase]
value: ops
needs: [{needs}]
description: {unfilled} say in at most three short sentences what it is.
---*/
SELECT
  run_id, phase,
  COUNT(*) AS ops -- Ops that the devices ran.
FROM main.ops
WHERE is_leaf AND device_id IS NOT NULL
GROUP BY run_id, phase
"""
_CASES = """- case: ops of all devices count, those of the host do not
  # us     0    1    2    3
  # dev 0  [op  )[op  )
  # dev 1  [op       )
  # host   [op  )
  given:
    ops:
      columns: [device_id, phase, start_us, duration_us]
      rows:
        - [0, decode, 0, 1]
        - [0, decode, 1, 1]
        - [1, decode, 0, 2]
        - [null, decode, 0, 1]
  expect:
    - {run_id: r, phase: decode, ops: 3}

- case: without ops of a device there is no row
  given:
    ops:
      - {device_id: null, phase: decode, start_us: 0, duration_us: 1}
  expect: []
"""
_PRECONDITION = """{name}:
  needs: [timed]
  reason: {unfilled} say what the run lacks
  runs: SELECT run_id FROM main.ops WHERE is_leaf AND device_id IS NOT NULL
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


def new_metric(name: str, folder: Path | None, topic: str | None = None, needs: Sequence[str] = ()) -> list[Path]:
    """Write the draft of a metric and return its files: the definition, its cases, and preconditions that are new.

    Args:
        folder: the user's folder, which is made if it is missing; None for the package's own, in a checkout.
        topic: a folder in it for the definition; the package needs one.
        needs: names of preconditions; for one that does not exist, an entry is written.
    """
    root = definitions_folder(folder)
    definitions = load_definitions() if folder is None or not any(folder.rglob("*.sql")) else load_with(folder)
    _check_name(name, definitions)
    if folder is None and (topic is None or not (SQL / topic).is_dir()):
        topics = ", ".join(sorted(p.name for p in SQL.iterdir() if p.is_dir()))
        raise MetricError(f"a metric of the package has a topic; name one of {topics} with --topic")
    if ".." in Path(topic or "").parts or Path(topic or "").is_absolute():
        raise MetricError(f"the topic {topic} is not a folder in {root}")
    missing = [n for n in dict.fromkeys(needs) if f"preconditions.{n}" not in definitions.names]
    for unknown in missing:
        _check_spelling(unknown)
    cases = root / "cases" if folder is not None else SQL.parents[1] / "tests" / "sql" / "cases"
    texts = {
        root / (topic or "") / f"{name}_v1.sql": _DEFINITION.format(
            needs=", ".join(needs or ["device_ops"]), unfilled=UNFILLED
        ),
        cases / f"{name}_v1.yaml": _CASES,
    }
    if missing:
        path = root / "preconditions.yaml"
        before = path.read_text(encoding="utf-8").rstrip() + "\n" if path.exists() else ""
        added = "".join(_PRECONDITION.format(name=n, unfilled=UNFILLED) for n in missing)
        texts[path] = before.lstrip() + added
    _write(texts, root)
    return [*texts]


def _check_name(name: str, definitions: Definitions) -> None:
    _check_spelling(name)
    if any(m.name == name for m in definitions.metrics):
        raise MetricError(f"there is a metric {name} already; `tw metrics new-version {name}` starts a version of it")


def _check_spelling(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or re.search(r"_v[0-9]+$", name):
        raise MetricError(f"{name!r} is no name; use small letters, digits and _, and no version such as _v1")


def _write(texts: dict[Path, str], root: Path) -> None:
    """Write the files and read the definitions as everybody will; what was there comes back if either fails."""
    for path in texts:
        if path.exists() and path.name != "preconditions.yaml":
            raise MetricError(f"{path} exists already; remove it, or use another name")
    before = {path: path.read_bytes() if path.exists() else None for path in texts}
    made: list[Path] = []
    try:
        for path, text in texts.items():
            for folder in [p for p in reversed(path.parents) if not p.exists()]:
                folder.mkdir()
                made.append(folder)
            path.write_text(text, encoding="utf-8")
        load_definitions(SQL) if root == SQL else load_with(root)
    except (MetricError, OSError) as error:
        for path, content in before.items():
            with suppress(OSError):
                path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()
        if isinstance(error, MetricError):
            raise
        raise MetricError(f"{error.filename}: cannot be written: {error.strerror}") from None
