"""What a query reads is what DuckDB's parser says it names; what is prepared, joined and flagged follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import tracewarehouse as tw
from tracewarehouse.database.session import behind, lens_names
from tracewarehouse.definitions.reading import load_definitions
from tracewarehouse.ingest.errors import QueryError
from tracewarehouse.queries.tables_read import TablesRead, tables_read


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        yield connection


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 'FROM ops' AS comment -- FROM runs", set()),
        ("FROM Ops", {".ops"}),
        ('SELECT * FROM "Weird ""Name"".x"."Y"', {'weird "name".x.y'}),
        ("FROM memory.main.ops", {"main.ops"}),
        ("SELECT (SELECT max(x) FROM b) FROM a WHERE EXISTS (FROM c WHERE c.x = a.x)", {".a", ".b", ".c"}),
        ("FROM a, LATERAL (SELECT a.x FROM b)", {".a", ".b"}),
        ("FROM a UNION ALL (FROM b EXCEPT FROM c)", {".a", ".b", ".c"}),
        ("SELECT $x FROM a WHERE b = $y", {".a"}),
        ("WITH a AS (FROM b) FROM a", {".b"}),
        ("WITH a AS (FROM a) FROM a", {".a"}),
        ("WITH A AS (FROM b) FROM a JOIN main.a USING (x)", {".b", "main.a"}),
        ("WITH a AS (FROM b), b AS (FROM a) FROM b", {".b"}),
        ("FROM (WITH a AS (FROM b) FROM a) JOIN a USING (x)", {".a", ".b"}),
        ("WITH a AS (FROM b) SELECT (WITH b AS (FROM a) SELECT 1 FROM b)", {".b"}),
        ("WITH RECURSIVE a AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM a JOIN b ON n < 3) FROM a", {".b"}),
        ("WITH a AS MATERIALIZED (FROM b) FROM a UNION FROM a", {".b"}),
        ("PIVOT a ON x IN (1, 2) USING count(*)", {".a"}),
        ("UNPIVOT a ON x, y INTO NAME n VALUE v", {".a"}),
        ("DESCRIBE metrics.a", {"metrics.a"}),
        ("DESCRIBE SELECT * FROM a", {".a"}),
        ("SUMMARIZE a", {".a"}),
        ("SUMMARIZE SELECT x FROM a", {".a"}),
        ("EXPLAIN FROM a", {".a"}),
        ("-- why\nEXPLAIN ANALYZE SELECT $x FROM a", {".a"}),
        ("EXPLAIN (FORMAT json) WITH a AS (FROM b) FROM a", {".b"}),
        ("FROM query_table('A')", {".a"}),
        ("FROM query_table(['a', 'b'])", {".a", ".b"}),
        ("FROM a; FROM b", {".a", ".b"}),
        ("TABLE a", {".a"}),
        ("VALUES (1)", set()),
    ],
)
def test_tables_are_those_that_a_query_names_and_does_not_define(
    connection: duckdb.DuckDBPyConnection, sql: str, expected: set[str]
) -> None:
    read = tables_read(connection, sql)
    assert read.is_known and {f"{schema}.{name}" for schema, name in read.tables} == expected


@pytest.mark.parametrize(
    "sql",
    [
        "FROM a, LATERAL (SELECT x FROM b)",
        "WITH a AS (FROM b) FROM a",
        "WITH a AS (FROM a) FROM a",
        "WITH a AS (FROM b), b AS (FROM a) FROM b",
        "FROM (WITH a AS (FROM b) FROM a), a",
        "WITH a AS (FROM b) SELECT (WITH b AS (FROM a) SELECT 1 FROM b)",
        "WITH c AS (FROM d), d AS (FROM c) FROM c UNION FROM d",
        "WITH RECURSIVE c AS (SELECT 1 AS x UNION ALL SELECT c.x + 1 FROM c, b) FROM c",
        'WITH "B" AS (FROM a) FROM b',
    ],
)
def test_tables_are_those_that_duckdb_binds(sql: str) -> None:
    with duckdb.connect(":memory:") as connection:
        connection.execute("CREATE TABLE a (x INT); CREATE TABLE b (x INT); CREATE TABLE d (x INT)")
        bound = {name.rpartition(".")[2] for name in connection.get_table_names(sql, qualified=True)}
        assert {name for _, name in tables_read(connection, sql).tables} == bound


@pytest.mark.parametrize(
    "sql", ["PIVOT a ON x USING count(*)", "INSERT INTO a FROM b", "FROM query_table($name)", "FROM a; CHECKPOINT"]
)
def test_what_a_parser_of_select_cannot_tell_may_read_anything(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    read = tables_read(connection, sql)
    assert not read.is_known and read.reads_runs


def test_strings_and_functions_are_known(connection: duckdb.DuckDBPyConnection) -> None:
    read = tables_read(connection, "FROM Macros.f('it''s'), range(3), a WHERE b = 'x' AND \"y\" = 1 -- 'z'")
    assert read == TablesRead(
        frozenset({("", "a")}), frozenset({("macros", "f"), ("", "range")}), frozenset({"it's", "x"})
    )


def test_comments_are_shown_by_every_relation_of_the_catalogue_that_has_them(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    """DuckDB's own list of internal views with such a column; the lens comments on tables, columns and macros."""
    views = connection.execute(
        """
        SELECT DISTINCT schema_name || '.' || table_name FROM duckdb_columns()
        WHERE internal AND (column_name ILIKE '%comment' OR table_name = 'pg_description')
        """
    ).fetchall()
    without = {"main.duckdb_databases", "main.duckdb_indexes", "main.duckdb_schemas", "main.duckdb_types"}
    for (view,) in views:
        assert tables_read(connection, f"FROM {view}").shows_comments == (view not in without), view
    assert tables_read(connection, "FROM duckdb_functions()").shows_comments
    for sql in ("SELECT 'comment' AS comment FROM ops", "SHOW ALL TABLES", "FROM duckdb_settings()"):
        assert not tables_read(connection, sql).shows_comments


@pytest.mark.parametrize(
    ("sql", "expected", "is_all"),
    [
        ("FROM ops", {"main.ops"}, False),
        ("SELECT 'metrics.ttft' FROM main.Runs", {"main.runs"}, False),
        ("FROM metrics.catalog", {"metrics.catalog"}, False),
        ("FROM metrics.missing", {"metrics.missing"}, False),
        ("FROM metrics.all_values, range(3)", {"metrics.all_values"}, False),
        ("FROM macros.compare_steps(['x'], [])", {"macros.compare_steps"}, False),
        ("FROM macros.nosuch()", set(), True),
        ("SHOW TABLES", set(), True),
        ("SHOW ALL TABLES", set(), True),
        ("FROM information_schema.tables", set(), True),
        ("FROM pragma_table_info('ops')", set(), True),
        ("FROM ops, opz", {"main.ops"}, True),
        ("PIVOT ops ON kind USING count(*)", set(), True),
    ],
)
def test_what_is_prepared(connection: duckdb.DuckDBPyConnection, sql: str, expected: set[str], is_all: bool) -> None:
    assert lens_names(load_definitions(), tables_read(connection, sql)) == (expected, is_all)


def test_an_alias_stands_for_a_version_and_what_that_reads_comes_with_it(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    definitions = load_definitions()
    names, is_all = lens_names(definitions, tables_read(connection, "FROM metrics.ttft"))
    assert names == {definitions.aliases["ttft"].view.qualified} and not is_all
    assert names < behind(definitions, names)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("FROM metric_values", True),
        ("FROM metrics.all_values", True),
        ("FROM metrics.missing", True),
        ("FROM preconditions.steps", False),
        ("FROM metrics.scaling_efficiency", True),
        ("EXPLAIN FROM metrics.all_values", True),
        ("PIVOT metric_values ON metric USING count(*)", True),
        ("SELECT 'metric_values' AS values FROM ops", False),
        ("FROM metrics.ttft", False),
        ("VALUES (1)", False),
        ("SHOW ALL TABLES", False),
        ("FROM", False),
    ],
)
def test_stored_values_are_made_for_who_reads_them(made_once: Path, sql: str, expected: bool) -> None:
    with tw.open(made_once) as warehouse:
        assert warehouse.reads_values(sql) is expected


def test_a_name_that_is_not_there_gives_duckdbs_own_sentence(made_once: Path) -> None:
    for sql, sentence in {
        "FROM opz": 'Table with name opz does not exist!\nDid you mean "ops"',
        "FROM metrics.ttff": "Table with name ttff does not exist!\nDid you mean",
        "FROM ttft": 'Table with name ttft does not exist!\nDid you mean "metrics.ttft"',
        "SELECT run_idx FROM ops": 'Referenced column "run_idx" not found',
    }.items():
        with tw.open(made_once) as warehouse, pytest.raises(QueryError) as error:
            warehouse.query(sql)
        assert sentence in str(error.value)
        with tw.open(made_once) as warehouse:
            warehouse.connection()  # with every view there is
            with pytest.raises(QueryError) as whole:
                warehouse.query(sql)
        assert str(whole.value) == str(error.value)


def test_a_pivot_answers_also_behind_other_queries(made_once: Path) -> None:
    with tw.open(made_once) as warehouse:
        pivot = "PIVOT ops ON is_leaf IN (true, false) USING count(*) GROUP BY run_id"
        [(_, *counts)] = warehouse.query(pivot).rows()
        assert sum(counts) == warehouse.query("SELECT count(*) FROM ops").scalar() > 0
        with pytest.raises(QueryError, match="not for read-only"):
            warehouse.query("FROM checkpoint()")


def test_comments_come_whatever_the_query_calls_them(made_once: Path) -> None:
    with tw.open(made_once) as warehouse:
        described = warehouse.query("FROM duckdb_views()").dicts()
    assert {v["comment"] is None for v in described if v["schema_name"] == "metrics"} == {False}


def test_every_view_and_comment_is_there_before_sql_that_changes_something(made_once: Path) -> None:
    with tw.open(made_once) as warehouse:
        assert warehouse.query("SELECT count(*) FROM runs", read_only=False).scalar() == 1
        warehouse.query("CREATE VIEW metrics.mine AS FROM metrics.ttft", read_only=False)
        sql = "SELECT view_name FROM duckdb_views() WHERE NOT internal AND comment IS NULL"
        assert warehouse.query(sql, read_only=False).rows() == [("mine",)]
        mine = warehouse.query("FROM metrics.mine ORDER BY ALL", read_only=False)
        assert mine.rows() == warehouse.metric("ttft").rows()


def test_a_pivot_behind_another_statement_is_not_known(connection: duckdb.DuckDBPyConnection) -> None:
    assert not tables_read(connection, "FROM s(); PIVOT n(['']) ON a USING ''").is_known
