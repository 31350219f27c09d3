"""Checks that sql/ uses only SQL that means the same on DuckDB and on Spark.

Transpiling is silently wrong for some functions, so this module lists what is allowed, not what is forbidden. It
complains about every node of the syntax tree that is not listed. Everything listed has been run on both engines:
tests/spark/test_sql.py runs each definition. `tracewarehouse.spark.translation` rewrites SQL so that Spark computes the
same, and lets queries of users use more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import sqlglot
from sqlglot import exp

if TYPE_CHECKING:
    from tracewarehouse.definitions.reading import Definitions

PORTABLE: tuple[type[exp.Expr], ...] = (
    # structure
    exp.Select, exp.With, exp.CTE, exp.TableAlias, exp.From, exp.Join, exp.Where, exp.Group, exp.Having, exp.Union,
    exp.Table, exp.Column, exp.Identifier, exp.Alias, exp.Paren, exp.Tuple,
    # values
    exp.Literal, exp.Null, exp.Boolean, exp.Star, exp.Cast, exp.DataType, exp.Case, exp.If, exp.Neg,
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod,
    # conditions
    exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Is, exp.In, exp.Between, exp.Like,
    exp.NullSafeEQ, exp.NullSafeNEQ,
    # functions of integers, and of text for MIN, MAX, COUNT, COALESCE and NULLIF
    exp.Count, exp.Sum, exp.Min, exp.Max, exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least, exp.Abs, exp.Distinct,
    exp.Lower,
    # functions of doubles; Spark rounds differently, which the translation corrects
    exp.Sqrt, exp.Floor, exp.Round,
    # functions of text: patterns, and a value of JSON as text
    exp.RegexpLike, exp.RegexpExtract, exp.JSONExtractScalar, exp.JSONPath, exp.JSONPathRoot, exp.JSONPathKey,
    # windows
    exp.Window, exp.WindowSpec, exp.Order, exp.Ordered, exp.RowNumber, exp.Rank, exp.DenseRank, exp.CumeDist, exp.Lag,
    exp.Lead,
)  # fmt: skip
"""What definitions and queries for Spark may use; `tracewarehouse.spark.refusals` adds what only queries use."""
_ALLOWED = (*PORTABLE, exp.Qualify, exp.Filter)  # the translation for Spark writes the last two in other words
_NUMBERING = (exp.RowNumber, exp.Rank, exp.DenseRank, exp.CumeDist, exp.Lag, exp.Lead)
"""Functions of a window whose frame is always the whole partition."""
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_TYPES = {"BIGINT", "DOUBLE", "VARCHAR", "TEXT", "INT", "INTEGER", "BOOLEAN"}
_INTEGERS = {"BIGINT", "INT", "INTEGER"}
_JOINS = {"INNER", "LEFT", "CROSS"}
_GROUP_BY_RUN = "GROUP BY must contain run_id"
_AGGREGATE_BY_RUN = "an aggregate needs GROUP BY run_id"
_JOIN_BY_RUN = "a join must compare run_id first"
_PARTITION_BY_RUN = "PARTITION BY must begin with run_id"
_RUN_BY_RUN = {_GROUP_BY_RUN, _AGGREGATE_BY_RUN, _JOIN_BY_RUN, _PARTITION_BY_RUN}


def complaints(sql: str, *, across_runs: bool = False) -> list[str]:
    """Find what a definition's SELECT uses outside the portable subset, one sentence each; empty if all is well.

    Args:
        sql: the SELECT in DuckDB's dialect.
        across_runs: the definition compares runs, so it need not keep them apart by run_id.
    """
    tree = sqlglot.parse_one(sql, dialect="duckdb")
    sentences: dict[str, None] = {}
    for node in tree.walk():
        for sentence in _complaints(node):
            if across_runs and sentence in _RUN_BY_RUN:
                continue
            sentences[f"{sentence}: {shown(node)}"] = None
    return list(sentences)


def portability_notes(definitions: Definitions) -> list[str]:
    """List what in a user's definitions works in DuckDB but may not work in other engines, one sentence each.

    The package's own SQL must stay in the portable subset. A user's SQL may leave it, so these are not errors.
    """
    views = [v for v in (*definitions.ordered, *definitions.audits) if v.qualified in definitions.added]
    return [
        f"{v.path}: not portable to other engines: {c}"
        for v in views
        for c in complaints(v.sql, across_runs=v.compares_runs)
    ]


def _complaints(node: exp.Expr) -> Iterator[str]:
    if type(node) not in _ALLOWED:
        yield f"{type(node).__name__} is not in the portable subset"
        return
    match node:
        case exp.Select():
            yield from _select_complaints(node)
        case exp.Union():
            if node.args.get("distinct"):
                yield "only UNION ALL is allowed"
        case exp.Join():
            yield from _join_complaints(node)
        case exp.Star():
            yield from _star_complaints(node)
        case exp.Case():
            if node.args.get("this") is not None:
                yield "only the searched form of CASE is allowed"
        case exp.Sum():
            if any(_is_double(n) for n in node.this.walk()):
                yield "sums of doubles depend on their order; sum integers and divide last"
        case exp.Literal():
            if _is_decimal(node) and not isinstance(node.parent, _COMPARISONS):
                yield "a number with a point is a DECIMAL; write it with an exponent, such as 1.5e0"
        case exp.Cast():
            if node.to.this.name not in _TYPES:
                yield f"no cast to {node.to.sql()}"
            elif node.to.this.name in _INTEGERS and _computes_double(node.this):
                yield "engines round or cut a double that becomes an integer; write CAST(FLOOR(x + 5e-1) AS BIGINT)"
        case exp.Like():
            pattern = node.expression
            if not (isinstance(pattern, exp.Literal) and pattern.is_string and "\\" not in pattern.this):
                yield "LIKE needs a literal pattern without a backslash"
        case exp.RegexpLike() | exp.RegexpExtract():
            pattern = node.expression
            if not (isinstance(pattern, exp.Literal) and pattern.is_string and "\\" not in pattern.this):
                yield "a regular expression must be a literal without a backslash"
        case exp.In():
            if node.args.get("query") is not None:
                yield "no subquery in IN; join"
        case exp.Window():
            yield from _window_complaints(node)


def _select_complaints(node: exp.Select) -> Iterator[str]:
    for clause in ("order", "limit", "offset", "distinct", "laterals", "sample"):
        if node.args.get(clause):
            yield f"no {clause.upper()} in a definition"
    for projection in node.expressions:
        if not isinstance(projection, exp.Alias | exp.Column | exp.Star):
            yield f"a computed column needs a name, {projection.sql()} has none"
    for window in node.args.get("windows") or []:
        if not _begins_with_run_id(window):
            yield _PARTITION_BY_RUN
    if isinstance(node.parent, exp.Subquery):
        yield "no subquery; use WITH"
    group = node.args.get("group")
    if group is not None and not any(_is_run_id(e) for e in group.expressions):
        yield _GROUP_BY_RUN
    if group is None and any(a for p in node.expressions for a in p.find_all(exp.AggFunc) if not _in_window(a)):
        yield _AGGREGATE_BY_RUN


def _star_complaints(node: exp.Star) -> Iterator[str]:
    if isinstance(node.parent, exp.Count):
        return
    select = node.find_ancestor(exp.Select)
    if select is None or select.find_ancestor(exp.CTE) is None:
        yield "the last SELECT must name its columns, not *"
    elif node.args.get("replace") or node.args.get("rename"):
        yield "only EXCLUDE may follow *"
    elif any(t.db == "main" and _reads(node, t) for t in select.find_all(exp.Table)):
        yield "the columns of a table must be named, not *; those of a model and of WITH need not"


def _reads(star: exp.Star, table: exp.Table) -> bool:
    qualifier = star.parent.table if isinstance(star.parent, exp.Column) else ""
    return qualifier in ("", table.alias_or_name)


def _join_complaints(node: exp.Join) -> Iterator[str]:
    kind = node.side or node.kind or ""
    if kind not in _JOINS or node.method:
        yield "only INNER JOIN, LEFT JOIN and CROSS JOIN are allowed"
    if kind == "CROSS":
        return
    if using := node.args.get("using"):
        if using[0].name != "run_id":
            yield _JOIN_BY_RUN
        return
    on = node.args.get("on")
    equalities = [e for e in (on.flatten() if isinstance(on, exp.And) else [on]) if isinstance(e, exp.EQ)]
    if not any(_is_run_id(e.left) and _is_run_id(e.right) for e in equalities):
        yield _JOIN_BY_RUN


def _window_complaints(node: exp.Window) -> Iterator[str]:
    if isinstance(node.this, exp.Filter):
        yield "Spark has no FILTER in a window; write CASE in the aggregate"
    definition = _definition(node)
    if definition is None:  # a window of the WINDOW clause; it is checked where it is used
        return
    if not _begins_with_run_id(definition):
        yield _PARTITION_BY_RUN
    order = definition.args.get("order")
    if isinstance(node.this, _NUMBERING) and order is None:
        yield "needs ORDER BY"
    if order is not None and not isinstance(node.this, _NUMBERING):
        spec = node.args.get("spec") or definition.args.get("spec")
        if spec is None or spec.args.get("kind") != "ROWS":
            yield "a window with ORDER BY needs a ROWS frame"


def _is_run_id(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.Column) and node.name == "run_id"


def _is_double(node: exp.Expr) -> bool:
    if isinstance(node, exp.Literal):
        return not node.is_string and "e" in node.this.lower()
    return isinstance(node, exp.Div) or (isinstance(node, exp.Cast) and node.to.this.name == "DOUBLE")


def _computes_double(node: exp.Expr) -> bool:
    """Whether an expression has a part that produces a double, outside of FLOOR."""
    inside = (exp.Floor, exp.IntDiv)
    return any(_is_double(n) for n in node.walk(prune=lambda n: isinstance(n, inside)) if not isinstance(n, inside))


def _is_decimal(node: exp.Literal) -> bool:
    return not node.is_string and "." in node.this and "e" not in node.this.lower()


def _definition(window: exp.Window) -> exp.Window | None:
    """The window that an OVER uses: itself, or the window of its SELECT with that name; None in a WINDOW clause."""
    if window.arg_key == "windows":
        return None
    if not window.alias:
        return window
    select = window.find_ancestor(exp.Select)
    named: list[exp.Window] = (select.args.get("windows") or []) if select else []
    return next((w for w in named if w.name == window.alias), window)


def _begins_with_run_id(window: exp.Window) -> bool:
    partition = window.args.get("partition_by") or []
    return bool(partition) and _is_run_id(partition[0])


def _in_window(node: exp.Expr) -> bool:
    parent = node.parent
    if isinstance(parent, exp.Filter):
        node, parent = parent, parent.parent
    return isinstance(parent, exp.Window) and parent.this is node


def shown(node: exp.Expr) -> str:
    """The SQL of a part of a tree, on one line and cut to a length that an error can have."""
    text = " ".join(node.sql(dialect="duckdb", comments=False).split())
    return text if len(text) <= 100 else f"{text[:97]}..."
