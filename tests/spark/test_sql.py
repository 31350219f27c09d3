"""Spark gives the rows that DuckDB gives, compared with ==: of all definitions, and of all SQL that is let through."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import sqlglot

from tracewarehouse.database.session import behind
from tracewarehouse.definitions.definition import View
from tracewarehouse.definitions.reading import load_definitions
from tracewarehouse.ingest.errors import QueryError
from tracewarehouse.queries.result import QueryResult
from tracewarehouse.spark import refusals
from tracewarehouse.spark.translation import to_spark, view_name
from tracewarehouse.spark.warehouse import SparkViews, SparkWarehouse, _types, conform
from tracewarehouse.warehouse import Warehouse

pytestmark = pytest.mark.spark

DEFINITIONS = load_definitions()
VIEWS = [
    pytest.param(view, marks=[pytest.mark.slow] if number % 3 else [])  # continuous integration runs a third of them
    for number, view in enumerate([*DEFINITIONS.ordered, *DEFINITIONS.audits])
]
VALUES = """(VALUES
  (1, 7, -2, 1.5e0, 'a', true), (2, NULL, 3, -2.5e0, 'B', false), (3, 0, NULL, 0.285e0, NULL, NULL),
  (4, 9007199254740993, 5, 0.49999999999999994e0, 'añ🤦🏼x', true), (5, -7, 2, 1e300, 'it''s \\ "q"', false),
  (6, 3, 7, 2.675e0, 'x.y[1]$', true), (7, 12, 1, -0.0e0, '', true)
) AS t(i, a, b, x, s, p)"""
EXPRESSIONS = [
    "a + b", "a - b", "a * 3", "3000000000 * 2", "-a", "a // b", "a % b", "ABS(b)", "ABS(x)",
    "a / b", "a / 2", "1e0 / 3", "x / 0", "a / 0e0", "-x / (i - i)", "1 / x", "SQRT(ABS(x))",
    "FLOOR(x)", "FLOOR(a)", "CEIL(x)", "ROUND(x)", "ROUND(x, 2)", "ROUND(a)", "ROUND(x * 100, 1)",
    "CAST(FLOOR(LEAST(x, 1e9) + 5e-1) AS BIGINT)", "CAST(ROUND(LEAST(x, 1e9)) AS INTEGER)", "CAST(a AS DOUBLE)",
    "CAST(a AS VARCHAR)", "CAST(p AS INTEGER)", "CAST(p AS VARCHAR)", "CAST(b AS BOOLEAN)", "CAST('12' AS BIGINT)",
    "CAST('1.25e2' AS DOUBLE)", "CAST(NULL AS DOUBLE)",
    "a > 1.5", "a >= b", "a <= b", "a != b", "x = 1.5", "a < x", "x BETWEEN 0.1 AND 2.6", "a IN (7, 0)",
    "a NOT IN (7, 0)",
    "s IS NULL",
    "a IS DISTINCT FROM b", "a IS NOT DISTINCT FROM b", "NOT p", "p AND a > 1", "p OR a > 1", "TRUE", "NULL",
    "CASE WHEN p THEN a ELSE b END", "CASE i WHEN 1 THEN 'one' WHEN 2 THEN 'two' END", "IF(p, 1, 2)",
    "COALESCE(a, b, 0)", "COALESCE(x, 0.5)", "NULLIF(a, 7)", "GREATEST(a, b)", "LEAST(x, 1)",
    "s || '!'", "s || i", "LENGTH(s)", "SUBSTRING(s, 2, 2)", "SUBSTRING(s, 2)", "STARTS_WITH(s, 'a')",
    "CONTAINS(s, 'q')", "REPLACE(s, 'a', '$1\\')", "s LIKE 'a%'", "s NOT LIKE '%y_1%'", "LOWER('AbC')",
    "UPPER(NULLIF(s, 'añ🤦🏼x'))", "REGEXP_MATCHES(s, '^a')", "REGEXP_MATCHES(s, '[[]1[]][$]$')",
    "REGEXP_EXTRACT(s, '([a-z])[.]([a-z])', 2)", "REGEXP_EXTRACT(s, '[a-z]+')", "REGEXP_MATCHES('a\n', 'a$')",
    "REGEXP_MATCHES('a\rb', 'a.b')", "CAST(TO_JSON(s) AS VARCHAR)", "CAST(TO_JSON(i) AS VARCHAR)",
    """'{"a": {"b": 1.10, "c": null}}' ->> '$.a.b'""", """'{"a": {"c": [1, 2]}}' ->> '$.a.c'""",
    """'{"a": null}' ->> '$.a'""", """'{"f": 1e5}' ->> '$.f'""", """'{"e": "ü\\n"}' ->> '$.e'""",
    """'{"e": {"z": 1}}' ->> '$.e'""", """'{"e": true}' ->> '$.e'""", "'{}' ->> '$.e'",
]  # fmt: skip
DISTINCT_STEPS = "(SELECT DISTINCT step FROM ops)"
QUERIES = [
    """SELECT kind, COUNT(*) AS n, SUM(group_size) AS g, COUNT(DISTINCT step), MIN(start_ps), MAX(axis),
       COUNT(*) FILTER (WHERE is_async), SUM(step) FILTER (WHERE step > 1) / 1e9
       FROM collectives GROUP BY kind ORDER BY kind""",
    "SELECT * FROM runs ORDER BY name",
    "SELECT * EXCLUDE (card, run_id) FROM runs ORDER BY name",
    "FROM runs SELECT name ORDER BY ALL DESC",
    """SELECT a.name, COUNT(*) FROM runs a JOIN collectives b USING (run_id)
       GROUP BY 1 HAVING COUNT(*) > 10 ORDER BY 2 DESC, 1 LIMIT 3 OFFSET 1""",
    "WITH ops AS (SELECT run_id, step FROM main.ops) SELECT step, COUNT(*) FROM ops GROUP BY ALL ORDER BY step",
    """SELECT name, (SELECT COUNT(*) FROM collectives c WHERE c.run_id = r.run_id) AS n FROM runs r
       WHERE run_id IN (SELECT run_id FROM collectives WHERE kind = $kind)
       AND EXISTS (SELECT 1 FROM collectives c WHERE c.run_id = r.run_id AND c.step > 1) ORDER BY name""",
    """SELECT kind FROM collectives UNION SELECT axis FROM collectives
       EXCEPT SELECT 'all-reduce' INTERSECT SELECT kind FROM collectives ORDER BY 1""",
    f"""SELECT step, ROW_NUMBER() OVER w, RANK() OVER w, DENSE_RANK() OVER w, CUME_DIST() OVER w, LAG(step) OVER w,
        LEAD(step, 2) OVER w, FIRST_VALUE(step) OVER w, LAST_VALUE(step) OVER w, SUM(step) OVER w,
        SUM(step) OVER (ORDER BY step ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING),
        COUNT(*) FILTER (WHERE step > 2) OVER (), ROW_NUMBER() OVER (ORDER BY step DESC NULLS FIRST)
        FROM {DISTINCT_STEPS} WINDOW w AS (ORDER BY step) ORDER BY step NULLS FIRST""",
    """SELECT kind, axis FROM collectives
       QUALIFY ROW_NUMBER() OVER (PARTITION BY kind ORDER BY event_id, run_id) = 1 ORDER BY ALL""",
    """SELECT kind, group_size FROM collectives WHERE step = 1
       QUALIFY group_size = MAX(group_size) OVER (PARTITION BY kind)
       AND ROW_NUMBER() OVER (PARTITION BY kind, group_size ORDER BY event_id, run_id) < 3 ORDER BY kind, group_size""",
    # names that are a column's and an alias's
    f"SELECT -step AS step, step + 1 AS b FROM {DISTINCT_STEPS} WHERE step > 2 ORDER BY step",
    "SELECT step // 2 AS step, COUNT(*) FROM ops GROUP BY step ORDER BY 1, 2",
    f"SELECT step + 1 AS t, t * 2 AS u FROM {DISTINCT_STEPS} WHERE t > 2 ORDER BY t",
    "SELECT kind, MAX(step) AS group_size FROM collectives GROUP BY kind HAVING group_size > 4 ORDER BY 1",
    """SELECT kind, MAX(step) AS step FROM collectives GROUP BY kind
       HAVING MIN(step) < 3 AND COUNT(*) FILTER (WHERE step IS NULL) = 0 ORDER BY 1""",
    "SELECT BOOL_AND(is_leaf), BOOL_OR(is_leaf) FROM ops",
    "SELECT program_id, COUNT(*) FROM instructions GROUP BY program_id ORDER BY program_id",
    f"""SELECT a.step, b.step FROM (SELECT step FROM {DISTINCT_STEPS} WHERE step < 3) a
        FULL JOIN (SELECT step FROM {DISTINCT_STEPS} WHERE step > 1 AND step < 5) b ON a.step = b.step ORDER BY ALL""",
    f"""SELECT step, n FROM (SELECT step FROM {DISTINCT_STEPS} WHERE step < 3) a
        RIGHT JOIN (SELECT step, 1 AS n FROM {DISTINCT_STEPS} WHERE step > 1) b USING (step) ORDER BY ALL""",
    "SELECT COUNT(*) FROM runs a, runs b",
    "SELECT * FROM metrics.catalog ORDER BY ALL",
    "SELECT * FROM metrics.all_values WHERE metric = 'scaling_efficiency' OR version = 1 ORDER BY ALL",
]
PARAMETERS = {"kind": "all-reduce"}

SILENTLY_WRONG = {
    "a double that becomes an integer": "SELECT CAST(1.5e0 AS BIGINT) AS a",
    "a division by a decimal": "SELECT 1.0 * 10 / 7 AS a",
    "half of a rounded decimal": "SELECT ROUND(0.285e0, 2) AS a",
    "the type of FLOOR": "SELECT FLOOR(1.5e0) AS a",
    "the average of large integers": "SELECT AVG(a) AS a FROM (VALUES (9007199254740993), (2), (4)) AS t(a)",
    "a median": "SELECT PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY a) AS a FROM (VALUES (1), (2), (3), (4)) AS t(a)",
    "a letter beyond ASCII": "SELECT UPPER('ß') AS a",
    "the end of a text": "SELECT REGEXP_MATCHES('a\n', 'a$') AS a",
    "a line's end": "SELECT REGEXP_MATCHES('a\rb', 'a.b') AS a",
    "spaces at the ends": "SELECT TRIM('\u2003a') AS a",
    "an index of a list": "SELECT ([10, 20, 30])[i] AS a FROM (VALUES (1)) AS t(i)",
    "a number as text": "SELECT CAST(1e20 AS VARCHAR) AS a",
}
"""What sqlglot alone translates so that Spark gives another value, or another type, and no error."""


def _rows(warehouse: Warehouse, sql: str) -> Any:
    found = warehouse.query(sql, **(PARAMETERS if "$kind" in sql else {}))
    return found.columns, found.arrow().schema.types, found.rows()


class BothEngines:
    """The lens on both engines; what reads a definition on Spark reads the rows that Spark has computed of it."""

    def __init__(self, duckdb_warehouse: Warehouse, spark_warehouse: SparkWarehouse) -> None:
        self.duckdb = duckdb_warehouse.connection()
        self.definitions = duckdb_warehouse.definitions
        self.spark = spark_warehouse.spark.newSession()
        self.spark.conf.set("spark.sql.ansi.enabled", "true")
        self.views = SparkViews(
            self.spark, spark_warehouse.lake, spark_warehouse.lake.runs(), self.definitions, is_local=True
        )
        spark_warehouse.query("SELECT 1")
        planner = spark_warehouse._planner
        assert planner is not None
        planner.complete()
        self.types = _types(planner)

    def compare(self, view: View) -> int:
        """Assert that a definition has the same rows on both, and return how many."""
        self.views.create(behind(self.definitions, view.depends_on), self.types)
        expected = self.duckdb.sql(view.sql).to_arrow_table()
        computed = self.spark.sql(to_spark(view.sql, self.types)).toArrow()
        found = conform(computed, expected.schema)
        assert found.column_names == expected.column_names
        assert Counter(QueryResult(found).rows()) == Counter(QueryResult(expected).rows())
        if view.schema != "audits":
            self.spark.createDataFrame(computed).createOrReplaceTempView(view_name(view.qualified))
            self.views._made.add(view.qualified)
        return len(found)


@pytest.fixture(scope="module")
def both(duckdb_warehouse: Warehouse, spark_warehouse: SparkWarehouse) -> BothEngines:
    return BothEngines(duckdb_warehouse, spark_warehouse)


@pytest.mark.parametrize("view", VIEWS, ids=lambda v: v.qualified)
def test_a_definition_has_the_same_rows(view: View, both: BothEngines) -> None:
    rows = both.compare(view)
    if view.qualified in ("models.leaf_ops", "metrics.tpot_v1", "metrics.exposed_communication_v1"):
        assert rows  # so that not all compare nothing


def test_expressions_have_the_same_values(duckdb_warehouse: Warehouse, spark_warehouse: SparkWarehouse) -> None:
    listed = ", ".join(f"{e} AS c{n}" for n, e in enumerate(EXPRESSIONS))
    sql = f"SELECT i, {listed} FROM {VALUES} ORDER BY i"
    _, types, expected = _rows(duckdb_warehouse, sql)
    _, found_types, found = _rows(spark_warehouse, sql)
    assert found_types == types
    for n, expression in enumerate(["i", *EXPRESSIONS]):  # as text, because nan != nan
        wanted = [str(row[n]).replace("-0.0", "0.0") for row in expected]
        assert [str(row[n]).replace("-0.0", "0.0") for row in found] == wanted, expression


@pytest.mark.parametrize("sql", QUERIES, ids=range(len(QUERIES)))
def test_queries_have_the_same_rows(sql: str, duckdb_warehouse: Warehouse, spark_warehouse: SparkWarehouse) -> None:
    assert _rows(spark_warehouse, sql) == _rows(duckdb_warehouse, sql)


def test_all_that_is_let_through_was_run() -> None:
    """Every kind of node that may be in a query is in one of those above, or in a definition."""
    trees = [
        sqlglot.parse_one(q, dialect="duckdb") for q in [*QUERIES, f"SELECT {', '.join(EXPRESSIONS)} FROM {VALUES}"]
    ]
    run = {type(n) for tree in trees for n in tree.walk()}
    assert set(refusals.ALLOWED) - run == set()


def test_a_metric_of_one_run_and_a_model_of_all_through_the_whole_chain(
    duckdb_warehouse: Warehouse, spark_warehouse: SparkWarehouse
) -> None:
    for name, run in (("tpot", "llama-tp4-b4-i16-o17"), ("exposed_communication", None)):
        found, expected = spark_warehouse.metric(name, run), duckdb_warehouse.metric(name, run)
        assert found.rows() == expected.rows()
        assert found.arrow().schema.types == expected.arrow().schema.types
        assert len(found)


@pytest.mark.parametrize("what", SILENTLY_WRONG)
def test_what_sqlglot_translates_wrong_is_refused_or_made_exact(
    what: str, duckdb_warehouse: Warehouse, spark_warehouse: SparkWarehouse
) -> None:
    sql = SILENTLY_WRONG[what]
    expected = duckdb_warehouse.query(sql).arrow()
    naive = spark_warehouse.spark.sql(sqlglot.transpile(sql, read="duckdb", write="spark")[0]).toArrow()
    assert (naive.schema.types, naive.to_pylist()) != (expected.schema.types, expected.to_pylist())
    try:
        found = spark_warehouse.query(sql).arrow()
    except QueryError as error:
        assert "Spark does not answer this as DuckDB does" in str(error) or "differs between DuckDB" in str(error)
    else:
        assert (found.schema.types, found.to_pylist()) == (expected.schema.types, expected.to_pylist())


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT SUM(a) AS a FROM (VALUES (9223372036854775807), (1)) AS t(a)", "does not fit 64 bits"),
        ("SELECT nam FROM runs", "name"),
        ("DROP VIEW runs", "a query may only read"),
        ("SELECT UPPER(a) AS a FROM (VALUES ('ü')) AS t(a)", "UPPER of letters beyond ASCII differs"),
    ],
)
def test_an_error_is_one_sentence(sql: str, said: str, spark_warehouse: SparkWarehouse) -> None:
    with pytest.raises(QueryError, match=said):
        spark_warehouse.query(sql)
