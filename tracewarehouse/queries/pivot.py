"""Names the columns of a PIVOT whose values must be looked up, so that one SELECT is left to check and run.

DuckDB makes two statements of `PIVOT t ON a`: one creates a type of the values of `a`, which read-only queries may not.
"""

from __future__ import annotations

from collections.abc import Callable


def with_values(sql: str, look_up: Callable[[str], list[str]]) -> str | None:
    """The query with `IN (...)` after each expression of a PIVOT that lacks it; None if it cannot be parsed for this.

    Args:
        look_up: runs a SELECT of one column of texts, which must be checked like any other query.
    """
    import sqlglot
    from sqlglot import expressions as exp

    try:
        tree = sqlglot.parse_one(sql, read="duckdb")
        for pivot in list(tree.find_all(exp.Pivot)):
            source = pivot.args.get("this")
            if source is None or pivot.args.get("unpivot"):
                continue
            before = "".join(
                f"WITH {', '.join(c.sql('duckdb') for c in w.expressions)} " for w in tree.find_all(exp.With)
            )
            for column in [e for e in pivot.expressions if not isinstance(e, exp.In)]:
                text = column.sql("duckdb")
                values = look_up(
                    f"{before}SELECT DISTINCT CAST({text} AS VARCHAR) AS v FROM {source.sql('duckdb')} "  # noqa: S608
                    f"WHERE {text} IS NOT NULL ORDER BY v"
                )
                named = exp.In(
                    this=exp.cast(column.copy(), "varchar"), expressions=[exp.Literal.string(v) for v in values]
                )
                column.replace(named)
        return tree.sql("duckdb")
    except sqlglot.errors.SqlglotError:
        return None
