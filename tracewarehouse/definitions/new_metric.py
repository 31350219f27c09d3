"""Starts a metric: a definition that can be evaluated as it stands, a case worked out by hand, and its preconditions.

The draft counts the ops of each phase, so whoever writes the metric changes what works already.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tracewarehouse.definitions.definition import UNFILLED
from tracewarehouse.definitions.lock import definitions_folder
from tracewarehouse.definitions.reading import SQL, Definitions, load_definitions, load_with
from tracewarehouse.ingest.errors import MetricError

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
