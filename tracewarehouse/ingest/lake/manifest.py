"""Reads and writes a run's manifest: a small file with its id, its current version and all files of its tables."""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tracewarehouse.ingest.errors import WarehouseError, shown
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION

RUN_ID = re.compile(r"[0-9a-z][0-9a-z_-]{0,63}")
"""Pattern of run ids and of versions; each is the name of a folder."""
TABLE_FILE = re.compile(r"[a-z_]+(-\d{4,}|-[0-9a-f]{16}-[0-9a-f]{8})?\.parquet")
"""Pattern of the name of a table's file: the only one, one of several parts, or metric values that replaced others."""
_FILE_IN_LAKE = re.compile(rf"lake/(?P<run_id>{RUN_ID.pattern})/{RUN_ID.pattern}/{TABLE_FILE.pattern}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = 64 << 20
_MOST_NAMED = 10


def run_digest(digests: Iterable[str]) -> str:
    """Return the digest of a capture, computed from the digests of its files in any order."""
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def derived_run_id(source_digest: str) -> str:
    """Return the run id of a capture with this digest."""
    return f"r{source_digest[:12]}"


def checked(name: str) -> str:
    """Return a run id or version unchanged; anything else, which could lead out of the lake, is a WarehouseError."""
    if not RUN_ID.fullmatch(name):
        raise WarehouseError(f"{name!r} is not a run id or version: expected lower-case letters, digits, '-' and '_'")
    return name


class RunVersion(msgspec.Struct, frozen=True):
    """The current version of a run, and the files of its tables (paths relative to the warehouse).

    Creating a dataclass would take four times as long, and a question over all runs creates thousands.
    """

    run_id: str
    version: str
    name: str
    schema_version: int
    ingest_version: str
    source_digest: str
    files: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    rows: Mapping[str, int] = msgspec.field(default_factory=dict)
    metrics_fingerprint: str | None = None
    """Fingerprint of all the metric definitions with which `metric_values` was evaluated."""
    flags: list[str] = msgspec.field(default_factory=list)
    """Names of the run's quality flags, so that every answer can name them without reading a file."""
    digests: Mapping[str, str] = msgspec.field(default_factory=dict)
    """SHA-256 of each file, in hex, by its path."""

    @property
    def paths(self) -> set[str]:
        """All files, relative to the warehouse."""
        return {f for files in self.files.values() for f in files}


@dataclass(frozen=True)
class UnreadRun:
    """A run that has a manifest and cannot be read.

    Attributes:
        run_id: the run id, from the name of the manifest file.
        name: its name for people; the run id if the name cannot be read.
        why: the reason.
        is_outdated: nothing is wrong except that its table schema has another version.
    """

    run_id: str
    name: str
    why: str
    is_outdated: bool

    def __str__(self) -> str:
        return (
            f"{self.run_id} ({self.name}) {self.why}"
            if self.is_outdated
            else f"{self.run_id} cannot be read: {self.why}"
        )


def outdated(run: RunVersion) -> UnreadRun | None:
    """Return the run as one that cannot be read, if its tables have another schema version; None otherwise."""
    if run.schema_version == SCHEMA_VERSION:
        return None
    why = f"has table schema {run.schema_version}, this version of tracewarehouse reads {SCHEMA_VERSION}"
    return UnreadRun(run.run_id, run.name, why, is_outdated=True)


def unread_error(run: UnreadRun) -> WarehouseError:
    """Return the error for a question about a run that cannot be read."""
    return WarehouseError(f"run {run}; run `tw ingest` on its capture again")


def unread_sentence(runs: Sequence[UnreadRun]) -> str:
    """Return a sentence that names runs, what is wrong with them, and what to do."""
    groups: dict[str, list[UnreadRun]] = {}
    for run in runs:
        groups.setdefault(run.why if run.is_outdated else "cannot be read", []).append(run)
    parts = []
    for why, same in groups.items():
        named = [f"{r.run_id} ({shown(r.name) if r.is_outdated else r.why})" for r in same[:_MOST_NAMED]]
        more = f" and {len(same) - _MOST_NAMED} more" if len(same) > _MOST_NAMED else ""
        parts.append(f"{why}: {', '.join(named)}{more}")
    which = "its capture" if len(runs) == 1 else "their captures"
    is_planned = any(run.is_outdated and run.name.endswith("-predicted") for run in runs)
    plan = "; of what is predicted no capture is kept, so remove that and `tw plan` again" * is_planned
    return f"{'; '.join(parts)}; run `tw ingest` on {which} again, or `tw remove` what is not needed{plan}"


def manifest_text(run: RunVersion) -> str:
    """Return the text of a run's manifest."""
    content = msgspec.structs.asdict(run)
    content |= {name: dict(content[name]) for name in ("files", "rows", "digests")}
    return json.dumps(content | {"checksum": _checksum(content)}, indent=1, sort_keys=True)


def read_manifest(path: Path) -> RunVersion | None:
    """Read a manifest of any schema version; return None if there is none.

    Raises:
        WarehouseError: it cannot be read, is damaged, belongs to another run, or names files outside the run's folder.
    """
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):  # a pipe would never answer, and a link may lead anywhere
            raise ValueError("it is not a file")  # noqa: TRY301
        if found.st_size > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES >> 20} MB")  # noqa: TRY301
        content = json.loads(path.read_bytes())
        is_sealed = content.pop("checksum", None) == _checksum(content)
        run = msgspec.convert(content, RunVersion)
        "".join((run.name, run.ingest_version, run.source_digest, *run.flags)).encode()  # not half a surrogate pair
        checked(run.version)
        numbers = (run.schema_version, *run.rows.values())
        outside = [f for f in run.paths if not _is_in_lake(f, run.run_id)]
        undigested = run.paths ^ {f for f, d in run.digests.items() if _DIGEST.fullmatch(d)}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, WarehouseError) as error:
        why = shown(str(error))
    else:
        if not is_sealed:
            why = "its checksum does not match its content"
        elif f"{run.run_id}.json" != path.name:
            why = f"it is of run {shown(run.run_id)}"
        elif not all(0 <= n < 1 << 63 for n in numbers):
            why = "a number in it is negative or has more than 64 bits"
        elif outside:
            why = f"it names {shown(outside[0])!r}, outside the run's folder"
        elif undigested and run.schema_version == SCHEMA_VERSION:
            why = f"it has a wrong digest, or none, of {shown(min(undigested))}"
        else:
            return run
    raise WarehouseError(f"{path}: not a run manifest ({why}); ingest the capture again, or remove the file")


def _is_in_lake(file: str, run_id: str) -> bool:
    match = _FILE_IN_LAKE.fullmatch(file)
    return match is not None and match["run_id"] == run_id


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
