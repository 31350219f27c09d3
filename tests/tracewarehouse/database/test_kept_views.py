"""The views of a lens are the same, whether they are copied from the user's cache folder or created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from given_tables import warehouse_of
from tracewarehouse.database.kept_views import copy_views

_WRITES_ALIKE = duckdb.__version__ >= "2"
"""DuckDB 1.5 sets brackets and quotes of a view's SQL otherwise once it has read it back."""
SEEN = {
    "views": f"SELECT schema_name, view_name, {'sql, ' if _WRITES_ALIKE else ''}comment FROM duckdb_views()",
    "columns": "SELECT schema_name, table_name, column_name, data_type, comment FROM duckdb_columns()",
    "functions": "SELECT schema_name, function_name, parameters, "
    f"{'macro_definition, ' if _WRITES_ALIKE else ''}comment FROM duckdb_functions()",
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
    def names(number: int) -> list[tuple[str]]:
        with duckdb.connect() as connection:
            copy_views(connection, ["CREATE SCHEMA s", f"CREATE VIEW s.v{number} AS SELECT 1 AS one"], ["s"])
            return connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()

    assert names(0) == [("v0",)]
    [first] = cache.iterdir()
    for number in range(1, 12):
        assert names(number) == [(f"v{number}",)]
        assert names(0) == [("v0",)]
    assert len(kept := list(cache.iterdir())) == 8
    assert first in kept


def test_a_copy_replaces_schemas_at_once(cache: Path) -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE SCHEMA s; CREATE VIEW s.old AS SELECT 1 AS one; CREATE TABLE s.rows (n INTEGER)")
        with pytest.raises(duckdb.CatalogException):
            copy_views(connection, ["CREATE SCHEMA other", "CREATE VIEW other.x AS SELECT * FROM nothing"], ["s"])
        assert connection.execute("SELECT one FROM s.old").fetchall() == [(1,)]
        copy_views(connection, ["CREATE SCHEMA s", "CREATE VIEW s.new AS SELECT 2 AS two"], ["s"])
        assert connection.execute("SELECT two FROM s.new").fetchall() == [(2,)]
        assert connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall() == [("new",)]
        assert connection.execute("SELECT database_name FROM duckdb_databases() WHERE NOT internal").fetchall() == [
            ("memory",)
        ]
    assert len(list(cache.iterdir())) == 1
