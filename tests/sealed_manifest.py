"""Changes the manifest of a run as a program would that knows its checksum."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tracewarehouse.ingest.lake.manifest import RunVersion, manifest_text


def read_manifest(warehouse: Path) -> RunVersion:
    """The only run of a warehouse."""
    [path] = (warehouse / "manifests").glob("*.json")
    content = json.loads(path.read_text())
    del content["checksum"]
    return RunVersion(**content)


def change_manifest(warehouse: Path, **changes: Any) -> None:
    """Change fields of the only run of a warehouse."""
    run = read_manifest(warehouse)
    path = warehouse / "manifests" / f"{run.run_id}.json"
    path.write_text(manifest_text(replace(run, **changes)))
