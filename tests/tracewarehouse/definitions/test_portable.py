"""The SQL of every definition is in the portable subset, and the lint sees what is not."""

from __future__ import annotations

from typing import Any

import pytest

from tracewarehouse.definitions.portable import complaints
from tracewarehouse.definitions.reading import load_definitions

DEFINITIONS = load_definitions()


@pytest.mark.parametrize("view", [*DEFINITIONS.ordered, *DEFINITIONS.audits], ids=lambda v: v.qualified)
def test_every_definition_is_portable(view: Any) -> None:
    assert complaints(view.sql, across_runs=view.compares_runs) == []


_ROWS = "FROM main.ops AS o"
_SUMMED = "GROUP BY o.run_id"


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        (f"SELECT AVG(o.self_ps) AS a {_ROWS} {_SUMMED}", "Avg is not in the portable subset"),
        (f"SELECT MEDIAN(o.self_ps) AS a {_ROWS} {_SUMMED}", "Median is not in the portable subset"),
        (
            f"SELECT PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY o.self_ps) AS a {_ROWS} {_SUMMED}",
            "PercentileDisc is not in the portable subset",
        ),
        (f"SELECT CEIL(o.self_ps) AS a {_ROWS}", "Ceil is not in the portable subset"),
        (
            f"SELECT REGEXP_MATCHES(o.line, '\\d') AS a {_ROWS}",
            "a regular expression must be a literal without a backslash",
        ),
        (
            f"SELECT REGEXP_EXTRACT(o.line, o.phase, 1) AS a {_ROWS}",
            "a regular expression must be a literal without a backslash",
        ),
        (f"SELECT o.name LIKE o.line AS a {_ROWS}", "LIKE needs a literal pattern"),
        (f"SELECT o.name LIKE 'a\\_%' AS a {_ROWS}", "without a backslash"),
        (f"SELECT o.name ILIKE 'a%' AS a {_ROWS}", "ILike is not in the portable subset"),
        (f"SELECT [o.step][1] AS a {_ROWS}", "Bracket is not in the portable subset"),
        (f"SELECT SUM(CAST(o.self_ps AS DOUBLE)) AS a {_ROWS} {_SUMMED}", "sums of doubles"),
        (f"SELECT SUM(o.self_ps / 2) AS a {_ROWS} {_SUMMED}", "sums of doubles"),
        (f"SELECT SUM(o.self_ps * 1e3) AS a {_ROWS} {_SUMMED}", "sums of doubles"),
        (f"SELECT o.self_ps * 1.5 AS a {_ROWS}", "DECIMAL"),
        (f"SELECT CAST(o.self_ps AS HUGEINT) AS a {_ROWS}", "no cast to"),
        (f"SELECT CAST(o.self_ps / 2 AS BIGINT) AS a {_ROWS}", "write CAST(FLOOR(x + 5e-1) AS BIGINT)"),
        (f"SELECT CASE o.step WHEN 1 THEN 2 ELSE 3 END AS a {_ROWS}", "searched form"),
        (f"SELECT * {_ROWS}", "the last SELECT must name its columns"),
        (f"WITH a AS (SELECT * {_ROWS}) SELECT run_id FROM a", "columns of a table must be named"),
        (f"WITH a AS (SELECT o.* EXCLUDE (step) {_ROWS}) SELECT run_id FROM a", "columns of a table must be named"),
        ("WITH a AS (SELECT * REPLACE (1 AS b) FROM models.c) SELECT run_id FROM a", "only EXCLUDE may follow"),
        (f"SELECT o.step + 1 {_ROWS}", "a computed column needs a name"),
        (f"SELECT COUNT(*) AS n {_ROWS} GROUP BY o.device_id", "GROUP BY must contain run_id"),
        (f"SELECT COUNT(*) AS n {_ROWS}", "an aggregate needs GROUP BY"),
        (f"SELECT DISTINCT o.run_id AS run_id {_ROWS}", "no DISTINCT"),
        (f"SELECT o.run_id AS run_id {_ROWS} ORDER BY o.run_id", "no ORDER"),
        (f"SELECT o.run_id AS run_id {_ROWS} LIMIT 1", "no LIMIT"),
        (f"SELECT a.run_id AS run_id FROM (SELECT o.run_id AS run_id {_ROWS}) AS a", "not in the portable subset"),
        (f"SELECT o.run_id AS run_id {_ROWS} WHERE o.step IN (SELECT p.step AS step FROM main.ops AS p)", "join"),
        (f"SELECT o.run_id AS r {_ROWS} UNION SELECT o.run_id AS r {_ROWS}", "only UNION ALL"),
        (f"SELECT o.run_id AS r {_ROWS} JOIN main.runs AS s ON o.run_id = s.run_id", "only INNER JOIN"),
        (f"SELECT o.run_id AS r {_ROWS} FULL JOIN main.runs AS s ON o.run_id = s.run_id", "only INNER JOIN"),
        (f"SELECT o.run_id AS r {_ROWS} ASOF JOIN main.runs AS s ON o.run_id = s.run_id", "only INNER JOIN"),
        (f"SELECT o.run_id AS r {_ROWS} INNER JOIN main.ops AS p ON o.step = p.step", "must compare run_id"),
        (f"SELECT o.run_id {_ROWS} INNER JOIN main.ops AS p USING (step, run_id)", "must compare run_id"),
        (
            f"SELECT o.run_id {_ROWS} INNER JOIN main.ops AS p ON o.run_id IS DISTINCT FROM p.run_id",
            "must compare run_id",
        ),
        (f"SELECT MAX(o.step) OVER (PARTITION BY o.device_id) AS a {_ROWS}", "PARTITION BY must begin with run_id"),
        (f"SELECT MAX(o.step) OVER (PARTITION BY o.run_id ORDER BY o.step) AS a {_ROWS}", "needs a ROWS frame"),
        (
            f"SELECT MAX(o.step) OVER (PARTITION BY o.run_id ORDER BY o.step RANGE BETWEEN 1 PRECEDING AND CURRENT ROW)"
            f" AS a {_ROWS}",
            "needs a ROWS frame",
        ),
        (f"SELECT ROW_NUMBER() OVER (PARTITION BY o.run_id) AS a {_ROWS}", "needs ORDER BY"),
        (f"SELECT CUME_DIST() OVER (PARTITION BY o.run_id) AS a {_ROWS}", "needs ORDER BY"),
        (
            f"SELECT MAX(o.step) FILTER (WHERE o.is_leaf) OVER (PARTITION BY o.run_id) AS a {_ROWS}",
            "Spark has no FILTER in a window",
        ),
        (
            f"SELECT MAX(o.step) OVER w AS a {_ROWS} WINDOW w AS (PARTITION BY o.device_id)",
            "PARTITION BY must begin with",
        ),
        (
            f"SELECT MAX(o.step) OVER w AS a {_ROWS} WINDOW w AS (PARTITION BY o.run_id ORDER BY o.step)",
            "needs a ROWS frame",
        ),
        (f"SELECT ROW_NUMBER() OVER w AS a {_ROWS} WINDOW w AS (PARTITION BY o.run_id)", "needs ORDER BY"),
        (f"SELECT o.step {_ROWS} QUALIFY ROW_NUMBER() OVER (ORDER BY o.step) = 1", "PARTITION BY must begin with"),
    ],
)
def test_the_lint_names_what_is_not_portable(sql: str, sentence: str) -> None:
    assert any(sentence in c for c in complaints(sql)), complaints(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT run_id, o.phase, p.step FROM main.ops AS o LEFT JOIN main.ops AS p USING (run_id, device_id)",
        """SELECT o.run_id FROM main.ops AS o
        INNER JOIN main.ops AS p ON o.run_id = p.run_id AND o.phase IS NOT DISTINCT FROM p.phase""",
        """SELECT run_id, SUM(self_ps) FILTER (WHERE is_leaf) / 1e9 AS a, COUNT(*) FILTER (WHERE is_leaf) AS b,
        CASE WHEN step > 1.5 THEN 1 END AS c FROM main.ops GROUP BY run_id, step""",
        """SELECT run_id, MAX(step) OVER earlier AS a FROM main.ops WINDOW earlier AS (
          PARTITION BY run_id ORDER BY step NULLS FIRST ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )""",
        "SELECT run_id, step FROM main.ops QUALIFY CUME_DIST() OVER (PARTITION BY run_id ORDER BY step) >= 0.9",
        """WITH a AS (SELECT * EXCLUDE (step), 1 AS one FROM models.leaf_ops), b AS (
          SELECT a.*, o.step FROM a INNER JOIN main.ops AS o USING (run_id, event_id)
        ) SELECT run_id, one FROM b""",
        """SELECT ROUND(pp / 3, 4) AS a, card ->> '$.workload.model.phase' AS b FROM main.runs
        WHERE REGEXP_MATCHES(name, '^jit_') OR REGEXP_EXTRACT(name, 'copy-start[.]([0-9]+)', 1) = ''""",
    ],
    ids=["using", "not distinct", "filter", "named window", "qualify", "stars", "text"],
)
def test_the_short_forms_are_portable(sql: str) -> None:
    assert complaints(sql) == []


def test_only_a_comparison_of_runs_need_not_keep_them_apart() -> None:
    sql = f"""SELECT o.run_id AS run_id, MAX(o.step) OVER (PARTITION BY o.device_id) AS a {_ROWS}
              INNER JOIN main.ops AS p ON o.step = p.step"""
    assert len(complaints(sql)) == 2
    assert complaints(sql, across_runs=True) == []
    assert complaints(sql.replace("MAX", "AVG"), across_runs=True)
