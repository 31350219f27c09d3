"""The views of a lens are the same, whether they are copied from the user's cache folder or created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from given_tables import warehouse_of

from tracewarehouse.database import lens as lens_module
from tracewarehouse.definitions.reading import load_definitions

# DuckDB sets brackets and quotes of a view's SQL otherwise once it has read it back
SEEN = {
    "views": "SELECT schema_name, view_name, comment FROM duckdb_views()",
    "columns": "SELECT schema_name, table_name, column_name, data_type, comment FROM duckdb_columns()",
    "functions": "SELECT schema_name, function_name, parameters, comment FROM duckdb_functions()",
}


def lens() -> dict[str, list[Any]]:
    with warehouse_of({}) as connection:
        return {k: connection.execute(f"{sql} WHERE NOT internal ORDER BY ALL").fetchall() for k, sql in SEEN.items()}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACEWAREHOUSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "views"


def test_copies_are_what_creation_gives(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = lens()
    [kept] = cache.iterdir()
    assert lens() == made
    kept.write_bytes(b"damaged")
    assert lens() == made
    assert list(cache.iterdir()) == []  # so that the next one makes it anew
    monkeypatch.setenv("TRACEWAREHOUSE_CACHE", "/dev/null/nowhere")
    assert lens() == made
    assert len({(schema, view) for schema, view, *_ in made["views"]}) > 200
    assert all(made.values())


def test_the_last_used_files_are_kept(cache: Path) -> None:
    def file_of(number: int) -> Path:
        statements = [f"CREATE SCHEMA s; CREATE VIEW s.v{number} AS SELECT 1 AS one"]
        file = lens_module._bound(statements)
        assert file
        return file

    first = file_of(0)
    for number in range(1, 12):
        assert file_of(number).exists()
        assert file_of(0) == first
    assert len(kept := list(cache.iterdir())) == 8
    assert first in kept


def test_a_copy_replaces_views_at_once(cache: Path) -> None:
    definitions = load_definitions()
    with warehouse_of({}) as connection:
        connection.execute("CREATE VIEW models.old AS SELECT 1 AS one")
        lens_module.add_all_views(connection, definitions)
        models = "SELECT view_name FROM duckdb_views() WHERE schema_name = 'models'"
        names = {n for (n,) in connection.execute(models).fetchall()}
        assert "old" not in names
        assert len(names) > 30
        [(databases,)] = connection.execute("SELECT count(*) FROM duckdb_databases() WHERE NOT internal").fetchall()
        assert databases == 1
