"""A manifest that is damaged, or of another schema version, is named and hides only its own run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from small_runs import publish, version

from tracewarehouse.ingest.errors import UnreadRunWarning, WarehouseError
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import manifest_text
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION


def test_another_schema_version_names_the_command(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake, replace(version(), schema_version=SCHEMA_VERSION + 1))
    with pytest.raises(WarehouseError, match="tw ingest"):
        lake.run("r1")
    with pytest.raises(WarehouseError, match=r"has table schema .*: r1 \(name\); run `tw ingest` on its"):
        lake.runs()


def test_a_manifest_names_files_of_its_own_run_only(tmp_path: Path) -> None:
    """Queries take the run of a row from the file's path."""
    lake = Lake(tmp_path)
    publish(lake, version("r1"))
    run = publish(lake, version("r2"))
    (tmp_path / "manifests" / "r2.json").write_text(
        manifest_text(replace(run, files={"ops": ["lake/r1/v1/ops.parquet"]}))
    )
    with pytest.raises(WarehouseError, match=r"names 'lake/r1/v1/ops.parquet', outside the run's folder"):
        lake.run("r2")


@pytest.mark.parametrize("schema", [SCHEMA_VERSION - 1, SCHEMA_VERSION])
def test_a_damaged_manifest_is_named(tmp_path: Path, schema: int) -> None:
    lake = Lake(tmp_path)
    publish(lake, replace(version(), schema_version=schema))
    content = json.loads((tmp_path / "manifests" / "r1.json").read_text())
    (tmp_path / "manifests" / "r1.json").write_text(json.dumps(content | {"rows": {"ops": 2}}))
    with pytest.raises(WarehouseError, match=r"r1\.json: not a run manifest \(its checksum"):
        lake.runs()


def test_runs_that_cannot_be_read_do_not_hide_the_others(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    placed = publish(lake, version("r1"))
    publish(lake, replace(version("r2"), name="old", schema_version=SCHEMA_VERSION + 1))
    publish(lake, version("r3"))
    (tmp_path / "manifests" / "r3.json").write_text('{"files": {"ops": 3}}')
    with pytest.warns(UnreadRunWarning) as caught:
        assert lake.runs() == [placed]
    assert lake.runs() == [placed]  # says it no second time
    [warning] = caught
    for part in ("r2 (old)", "r3.json: not a run manifest", "their captures again"):
        assert part in str(warning.message)
    (tmp_path / "manifests" / "r2.json").write_text("{")
    with pytest.warns(UnreadRunWarning, match=r"left out: cannot be read: r2 .*its capture again"):
        lake.runs()
    found, unread = lake.listing()
    assert found == [placed]
    assert [(r.run_id, r.is_outdated) for r in unread] == [("r2", False), ("r3", False)]


@pytest.mark.parametrize(
    "content",
    ['{"files": 3}', '{"run_id": 1}', "[" * 100_000, '{"checksum": {}}', "\x00", '{"files": {"ops": [[1]]}}'],
)
def test_whatever_stands_in_a_manifest_only_hides_its_run(tmp_path: Path, content: str) -> None:
    lake = Lake(tmp_path)
    placed = publish(lake, version("r1"))
    fields = json.loads((tmp_path / "manifests" / "r1.json").read_text())
    for text in (content, content[:1] + json.dumps({**fields, "run_id": "r2"})[1:-1] + "," + content[1:]):
        (tmp_path / "manifests" / "r2.json").write_text(text)
        assert lake.listing()[0] == [placed]
        assert [r.run_id for r in lake.listing()[1]] == ["r2"]
