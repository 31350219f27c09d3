"""What is translated for Spark, and what is refused; without Spark itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlglot import exp

from tracewarehouse.definitions import portable
from tracewarehouse.definitions.derived import all_values_sql, catalog_sql
from tracewarehouse.definitions.reading import load_definitions
from tracewarehouse.ingest.errors import QueryError
from tracewarehouse.spark import refusals
from tracewarehouse.spark.kinds import Types
from tracewarehouse.spark.translation import to_spark
from tracewarehouse.spark.warehouse import conform
from tracewarehouse.warehouse import open_warehouse

DEFINITIONS = load_definitions()


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Types]:
    from tracewarehouse.database.session import Session
    from tracewarehouse.spark.warehouse import _types

    with open_warehouse(tmp_path_factory.mktemp("empty") / "warehouse", create=True) as warehouse:
        session = Session(warehouse.lake, lambda: DEFINITIONS, is_restricted=True, only=())
        session.complete()
        yield _types(session)
        session.close()


def test_every_definition_is_translated(types: Types) -> None:
    for view in [*DEFINITIONS.ordered, *DEFINITIONS.audits]:
        assert to_spark(view.sql, types), view.qualified
    assert to_spark(catalog_sql(DEFINITIONS), types)
    assert to_spark(all_values_sql(DEFINITIONS), types)


def test_what_the_lint_of_definitions_allows_is_let_through() -> None:
    """QUALIFY and FILTER become other nodes before they are looked at; what is let through was run, see test_sql.py."""
    assert set(portable._ALLOWED) - set(refusals.ALLOWED) == {exp.Qualify, exp.Filter}


@pytest.mark.parametrize(
    ("sql", "construct"),
    [
        ("SELECT AVG(step) AS a FROM ops", "AVG(ops.step): AVG divides in 80 bits"),
        ("SELECT MEDIAN(step) AS a FROM ops", "MEDIAN(ops.step): sqlglot writes an approximate percentile"),
        ("SELECT PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY step) AS a FROM ops", "approximate percentile"),
        ("SELECT QUANTILE_CONT(step, 0.5) AS a FROM ops", "approximate percentile"),
        ("SELECT SUM(peak_ici_gbps) AS a FROM devices", "a sum of doubles depends on their order"),
        ("SELECT STDDEV(step) AS a FROM ops", "the sum of doubles depends on their order"),
        ("SELECT [step][1] AS a FROM ops", "lists and structs"),
        ("SELECT {'a': step} AS a FROM ops", "STRUCT was not run"),
        ("SELECT LIST(step) AS a FROM ops", "was not run on both engines"),
        ("SELECT step * 1.5 AS a FROM ops", "ops.step * 1.5: decimals have other digits"),
        ("SELECT 1.5 AS a", "a number with a point is a DECIMAL"),
        ("SELECT step / 1.2345678901234567 AS a FROM ops", "more than 15 digits"),
        ("SELECT CAST(step AS DECIMAL(10, 2)) AS a FROM ops", "is not a type that both engines have alike"),
        ("SELECT CAST(step AS HUGEINT) AS a FROM ops", "is not a type that both engines have alike"),
        ("SELECT CAST(name AS TIMESTAMP) AS a FROM runs", "is not a type that both engines have alike"),
        ("SELECT TIMESTAMP '2026-01-01' AS a", "is not a type that both engines have alike"),
        ("SELECT NOW() AS a", "was not run on both engines"),
        ("SELECT CAST(step / 2 AS BIGINT) AS a FROM ops", "DuckDB rounds and Spark cuts"),
        ("SELECT TRY_CAST(name AS BIGINT) AS a FROM runs", "disagree on which text is a number"),
        ("SELECT CAST(peak_ici_gbps AS VARCHAR) AS a FROM devices", "a double value becomes TEXT differently"),
        ("SELECT 'x' || peak_ici_gbps AS a FROM devices", "write text and double differently"),
        ("SELECT peak_ici_gbps // 2 AS a FROM devices", "does not cut the quotient of doubles"),
        ("SELECT program_id + 1 AS a FROM instructions", "Spark has no unsigned integers"),
        ("SELECT name = 1 AS a FROM runs", "compare text and integer differently"),
        ("SELECT COALESCE(name, 1) AS a FROM runs", "not all of one type"),
        ("SELECT name FROM runs UNION ALL SELECT step FROM ops", "the column name must be of one type"),
        ("SELECT ROUND(peak_ici_gbps, step) AS a FROM devices, ops", "the digits must be a literal"),
        ("SELECT LN(step) AS a FROM ops", "LN was not run"),
        ("SELECT RANDOM() AS a", "RAND was not run"),
        ("SELECT name LIKE name AS a FROM runs", "LIKE needs a literal pattern"),
        ("SELECT name LIKE 'a\\_%' AS a FROM runs", "LIKE needs a literal pattern without a backslash"),
        ("SELECT name ILIKE 'a%' AS a FROM runs", "fold the case"),
        ("SELECT REGEXP_MATCHES(name, '\\d') AS a FROM runs", "differently; for an escaped point write [.]"),
        ("SELECT REGEXP_MATCHES(name, 'a++') AS a FROM runs", "the engines read ++"),
        ("SELECT REGEXP_MATCHES(name, '[[:alpha:]]') AS a FROM runs", "the engines read [:"),
        ("SELECT REGEXP_MATCHES(name, name) AS a FROM runs", "must be a literal"),
        ("SELECT SUBSTRING(name, 0, 2) AS a FROM runs", "a text begins at 1"),
        ("SELECT TRIM(name) AS a FROM runs", "TRIM was not run"),
        ("SELECT ARG_MAX(name, run_id) AS a FROM runs", "was not run"),
        ("SELECT ANY_VALUE(name) AS a FROM runs", "was not run"),
        ("SELECT DISTINCT ON (kind) kind, step FROM collectives", "DISTINCT ON takes any row"),
        ("SELECT kind FROM collectives GROUP BY ROLLUP (kind)", "was not run|grouping sets"),
        ("SELECT MAX(step) OVER (ORDER BY start_ps RANGE 5 PRECEDING) AS a FROM ops", "use ROWS"),
        ("SELECT LAG(step IGNORE NULLS) OVER (ORDER BY start_ps) AS a FROM ops", "was not run"),
        ("SELECT * FROM ops ASOF JOIN phases USING (run_id, start_ps)", "ASOF JOIN was not run"),
        ("SELECT * FROM ops SEMI JOIN phases USING (run_id)", "SEMI JOIN was not run"),
        ("SELECT * FROM RANGE(3)", "is a table function of DuckDB, which Spark lacks"),
        ("SELECT * FROM read_parquet('x')", "is a table function of DuckDB, which Spark lacks"),
        ("SELECT UNNEST([1])", "was not run"),
        ("SELECT * FROM ops USING SAMPLE 3", "was not run"),
        (
            "PIVOT collectives ON kind USING COUNT(*)",
            "cannot be translated|was not run|Spark answers only a SELECT|pivots",
        ),
        ("WITH RECURSIVE t AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM t) SELECT * FROM t", "recursion"),
        ("EXPLAIN SELECT 1", "Spark answers only a SELECT"),
        ("SELECT COLUMNS(*) FROM ops", "COLUMNS was not run"),
        ("SELECT * FROM information_schema.tables", "is not a table, model or metric"),
    ],
)
def test_what_is_not_exact_is_refused_by_name(sql: str, construct: str, types: Types) -> None:
    with pytest.raises(QueryError) as caught:
        to_spark(sql, types)
    assert re.search(construct if "|" in construct else re.escape(construct), str(caught.value)), str(caught.value)


def test_parameters_become_literals(types: Types) -> None:
    sql = "SELECT $a AS a, $b AS b, $c AS c, $d AS d, $e AS e FROM runs WHERE name = $name"
    values: dict[str, Any] = {"a": -1, "b": 0.1, "c": None, "d": True, "e": "it's", "name": "x"}
    assert to_spark(sql, types, values) == (
        "SELECT (-1) AS `a`, 0.1e0 AS `b`, NULL AS `c`, TRUE AS `d`, 'it\\'s' AS `e` FROM `main__runs` AS `runs` "
        "WHERE `runs`.`name` = 'x'"
    )
    with pytest.raises(QueryError, match=r"parameter \$name, but no value"):
        to_spark(sql, types, {n: v for n, v in values.items() if n != "name"})


def test_using_gives_the_left_column_where_no_join_lacks_its_row(types: Types) -> None:
    joined = "SELECT run_id, COUNT(*) AS n FROM runs {} JOIN collectives USING (run_id) GROUP BY run_id"
    for side in ("", "LEFT"):
        assert "COALESCE" not in to_spark(joined.format(side), types)
    for side in ("RIGHT", "FULL"):
        assert "COALESCE(`runs`.`run_id`, `collectives`.`run_id`)" in to_spark(joined.format(side), types)
    written = "SELECT COALESCE(c.run_id, r.run_id) AS id FROM runs AS r LEFT JOIN collectives AS c USING (run_id)"
    assert "COALESCE(`c`.`run_id`, `r`.`run_id`)" in to_spark(written, types)


def test_a_column_that_keeps_its_name_has_no_alias(types: Types) -> None:
    """Spark's optimizer refused its own plan of host_gap with them, once the models that it reads were kept."""
    assert to_spark("SELECT o.run_id, o.step AS run_step FROM ops AS o", types) == (
        "SELECT `o`.`run_id`, `o`.`step` AS `run_step` FROM `main__ops` AS `o`"
    )


def test_columns_get_the_types_of_duckdb_or_are_refused() -> None:
    import pyarrow as pa

    wanted = pa.schema([("a", pa.decimal128(38, 0)), ("b", pa.int32()), ("c", pa.uint64()), ("d", pa.string())])
    found = pa.table(
        {"c0": [1], "c1": pa.array([2], pa.int64()), "c2": pa.array([3], pa.decimal128(20, 0)), "c3": ["x"]}
    )
    assert conform(found, wanted).schema.types == wanted.types
    with pytest.raises(QueryError, match="column a is double in DuckDB, but Spark computes int64; cast it"):
        conform(pa.table({"c0": [1]}), pa.schema([("a", pa.float64())]))
