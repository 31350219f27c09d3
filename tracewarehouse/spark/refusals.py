"""Refuses what Spark might not answer as DuckDB does: everything that is not listed here as run on both.

Transpiling is silently wrong for some SQL: Spark then returns other rows and says nothing. tests/spark runs everything
that is allowed on both engines, and demonstrates each of these faults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlglot import exp

from tracewarehouse.definitions.portable import PORTABLE, shown
from tracewarehouse.ingest.errors import QueryError
from tracewarehouse.spark.kinds import (
    BOOL,
    DECIMAL,
    DOUBLE,
    INT,
    NULL,
    NUMBERS,
    TEXT,
    UNKNOWN,
    UNSIGNED,
    combined,
    is_to_json,
    kind,
)

ALLOWED: tuple[type[exp.Expr], ...] = (
    *PORTABLE,
    exp.Except, exp.Intersect, exp.Subquery, exp.Exists, exp.Values, exp.Limit, exp.Offset,
    exp.LogicalAnd, exp.LogicalOr, exp.Ceil,
    exp.Upper, exp.DPipe, exp.Length, exp.Substring, exp.StartsWith, exp.Contains, exp.Replace,
    exp.FirstValue, exp.LastValue,
)  # fmt: skip
"""Everything that is run on both engines; the functions below narrow it."""

_QUANTILE = (
    "sqlglot writes an approximate percentile for Spark; take MIN(x) FILTER (WHERE quantile >= 0.5) over "
    "CUME_DIST() AS quantile"
)
_HINTS = {
    "Avg": "AVG divides in 80 bits in DuckDB; write SUM(x) / COUNT(x)",
    **dict.fromkeys(("WithinGroup", "PercentileDisc", "PercentileCont", "Quantile", "Median"), _QUANTILE),
    "Bracket": "lists and structs count their elements differently",
    "TryCast": "the engines disagree on which text is a number; use CAST",
    "ILike": "the engines fold the case of letters beyond ASCII differently; write LOWER(x) LIKE 'text'",
    "Stddev": "the sum of doubles depends on their order, on DuckDB too",
    "Corr": "the sum of doubles depends on their order, on DuckDB too",
    "AnyValue": "which row it takes is left open; use MIN or MAX",
    "First": "which row it takes is left open; use MIN or MAX",
}
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod)
_COMBINING = (exp.Coalesce, exp.Greatest, exp.Least, exp.Case, exp.If, exp.Nullif)
_JOINS = {"", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "OUTER"}
_CASTS = {
    "INT": (INT, UNSIGNED, BOOL, TEXT, NULL),
    "BIGINT": (INT, UNSIGNED, BOOL, TEXT, NULL),
    "DOUBLE": (INT, UNSIGNED, DOUBLE, DECIMAL, BOOL, TEXT, NULL),
    "TEXT": (INT, UNSIGNED, BOOL, TEXT, NULL),
    "VARCHAR": (INT, UNSIGNED, BOOL, TEXT, NULL),
    "BOOLEAN": (INT, BOOL, NULL),
}
_DIGITS = 15
_OTHER_REGEX = re.compile(r"\\|\(\?|\[:|[*+?}]\+|\{,")
"""Parts of regular expressions that RE2 and Java read differently: backslashes, groups that begin with (?, named
classes, possessive quantifiers, and {,n}."""


def refuse(tree: exp.Query) -> None:
    """Refuse a tree of `kinds.typed` that Spark may not answer as DuckDB does."""
    for node in tree.walk():
        for sentence in _refusals(node):
            raise QueryError(f"Spark does not answer this as DuckDB does: {shown(node)}: {sentence}")


def _refusals(node: exp.Expr) -> Iterator[str]:
    if type(node) not in ALLOWED and not is_to_json(node):
        name = type(node).__name__
        called = node.name.upper() if isinstance(node, exp.Anonymous) else node.key.upper()
        yield _HINTS.get(name, f"{called} was not run on both engines")
        return
    match node:
        case exp.Select():
            yield from _select_refusals(node)
        case exp.SetOperation():
            yield from _set_operation_refusals(node)
        case exp.With() if node.args.get("recursive"):
            yield "recursion was not run on both engines"
        case exp.Group() if any(node.args.get(a) for a in ("rollup", "cube", "grouping_sets")):
            yield "grouping sets were not run on both engines"
        case exp.Distinct() if node.args.get("on"):
            yield "DISTINCT ON takes any row; use MIN, MAX or ROW_NUMBER()"
        case exp.Limit() | exp.Offset() if not isinstance(node.expression, exp.Literal) or node.expression.is_string:
            yield "Spark takes a whole number of rows"
        case exp.Table() if node.args.get("sample") or node.args.get("pivots") or node.args.get("joins"):
            yield "samples and pivots were not run on both engines"
        case exp.Join():
            yield from _join_refusals(node)
        case exp.Values():
            rows = [list(t.expressions) for t in node.expressions]
            if any(combined([kind(v) for v in column]) == UNKNOWN for column in zip(*rows, strict=True)):
                yield "a column of VALUES must be of one type"
        case exp.Literal():
            yield from _literal_refusals(node)
        case exp.Cast():
            yield from _cast_refusals(node)
        case exp.Window():
            yield from _window_refusals(node)
        case exp.Like():
            pattern = node.expression
            if not (isinstance(pattern, exp.Literal) and pattern.is_string and "\\" not in pattern.this):
                yield "LIKE needs a literal pattern without a backslash, which Spark takes for an escape"
        case exp.RegexpLike() | exp.RegexpExtract():
            yield from _regexp_refusals(node)
        case exp.In() if node.args.get("unnest") is not None or node.args.get("field") is not None:
            yield "lists were not run on both engines"
    yield from _kinds_refusals(node)


def _kinds_refusals(node: exp.Expr) -> Iterator[str]:
    if isinstance(node, _ARITHMETIC):
        kinds = [kind(node.left), kind(node.right)]
        if UNSIGNED in kinds:
            yield "Spark has no unsigned integers, whose overflow is an error; CAST(x AS DOUBLE) or compare them"
        elif not set(kinds) <= NUMBERS:
            yield f"arithmetic of {_listed(kinds)} was not run on both engines"
        elif isinstance(node, exp.IntDiv | exp.Mod) and not set(kinds) <= {INT, NULL}:
            yield "DuckDB does not cut the quotient of doubles; write FLOOR(a / b)"
        elif kind(node) == DECIMAL:
            yield "decimals have other digits in Spark; write the number with an exponent, such as 1.5e0"
    elif isinstance(node, _COMPARISONS):
        yield from _compared_refusals([node.left, node.right])
    elif isinstance(node, exp.Between):
        yield from _compared_refusals([node.this, node.args["low"], node.args["high"]])
    elif isinstance(node, exp.In):
        query = node.args.get("query")
        yield from _compared_refusals([node.this, *node.expressions, *([query] if query is not None else [])])
    elif isinstance(node, _COMBINING) and kind(node) in (UNKNOWN, DECIMAL):
        yield f"its values are not all of one type ({kind(node)}); cast them, or write 1.5e0 for 1.5"
    elif isinstance(node, exp.Sum):
        if kind(node.this) == DOUBLE:
            yield "a sum of doubles depends on their order, on DuckDB too; sum integers and divide last"
        elif kind(node.this) not in (INT, NULL):
            yield f"a sum of {kind(node.this)} values was not run on both engines"
    elif isinstance(node, exp.Min | exp.Max) and node.expressions:
        yield "the list of the n smallest or largest was not run on both engines"
    elif isinstance(node, exp.Abs | exp.Neg | exp.Floor | exp.Ceil | exp.Sqrt):
        if kind(node.this) not in (INT, DOUBLE, NULL) and not _is_decimal_literal(node.this):
            yield f"it was not run on both engines with {kind(node.this)} values"
        if isinstance(node, exp.Floor | exp.Ceil) and (node.args.get("decimals") or node.args.get("to")):
            yield "it takes one argument"
    elif isinstance(node, exp.Round):
        digits = node.args.get("decimals")
        if digits is not None and not (isinstance(digits, exp.Literal) and str(digits.this) in map(str, range(16))):
            yield "the digits must be a literal from 0 to 15"
        if kind(node.this) not in (INT, DOUBLE, NULL):
            yield f"it was not run on both engines with {kind(node.this)} values"
    elif isinstance(node, exp.DPipe):
        kinds = [kind(node.left), kind(node.right)]
        if not set(kinds) <= {TEXT, INT, NULL}:
            yield f"the engines write {_listed(kinds)} differently; cast to VARCHAR what is not text"
    elif isinstance(node, exp.Substring):
        start, length = node.args.get("start"), node.args.get("length")
        if not _is_count(start, 1) or (length is not None and not _is_count(length, 0)):
            yield "start and length must be literals, and a text begins at 1"
    elif is_to_json(node) and kind(node.expressions[0]) not in (TEXT, INT, BOOL, NULL):
        yield f"it was not run on both engines with {kind(node.expressions[0])} values"


def _select_refusals(node: exp.Select) -> Iterator[str]:
    for clause in ("laterals", "sample", "pivots", "match", "sort", "cluster", "distribute", "prewhere"):
        if node.args.get(clause):
            yield f"{clause.upper()} was not run on both engines"


def _set_operation_refusals(node: exp.SetOperation) -> Iterator[str]:
    if node.args.get("by_name") or node.args.get("on"):
        yield "BY NAME was not run on both engines; list the columns in the same order"
    left, right = node.left.selects, node.right.selects
    for a, b in zip(left, right, strict=False):
        if combined([kind(a), kind(b)]) == UNKNOWN:
            yield f"the column {a.alias_or_name} must be of one type in both parts"


def _join_refusals(node: exp.Join) -> Iterator[str]:
    if node.method or {node.side or "", node.kind or ""} - _JOINS:
        what = " ".join(p for p in (node.method, node.side, node.kind) if p)
        yield f"{what.upper()} JOIN was not run on both engines"


def _literal_refusals(node: exp.Literal) -> Iterator[str]:
    if kind(node) != DECIMAL:
        return
    inner: exp.Expr = node
    while isinstance(inner.parent, exp.Paren | exp.Neg):
        inner = inner.parent
    parent = inner.parent
    is_double = isinstance(parent, (*_ARITHMETIC, *_COMBINING, exp.If)) and kind(parent) == DOUBLE
    is_compared = isinstance(parent, (*_COMPARISONS, exp.Between, exp.In))
    is_cast = isinstance(parent, exp.Cast) and parent.to.this.name == "DOUBLE"
    if isinstance(parent, exp.If) and isinstance(parent.parent, exp.Case):
        is_double = kind(parent.parent) == DOUBLE
    if not (is_double or is_compared or is_cast):
        yield "a number with a point is a DECIMAL; write it with an exponent, such as 1.5e0"
    elif len(node.this.replace(".", "").strip("0")) > _DIGITS:
        yield f"a number of more than {_DIGITS} digits is rounded differently"


def _cast_refusals(node: exp.Cast) -> Iterator[str]:
    to = node.to.this.name if isinstance(node.to.this, exp.DataType.Type) else node.to.sql()
    inner = kind(node.this)
    if isinstance(node, exp.TryCast):
        yield _HINTS["TryCast"]
    elif to not in _CASTS:
        yield f"{node.to.sql(dialect='duckdb')} is not a type that both engines have alike"
    elif to in ("INT", "BIGINT") and inner == DOUBLE:
        if not isinstance(_bare(node.this), exp.Floor | exp.Ceil | exp.Round):
            yield "DuckDB rounds and Spark cuts; write CAST(FLOOR(x + 5e-1) AS BIGINT), or ROUND, FLOOR or CEIL"
    elif inner not in _CASTS[to]:
        yield f"a {inner} value becomes {to} differently"


def _window_refusals(node: exp.Window) -> Iterator[str]:
    if node.args.get("spec") is not None:
        spec = node.args["spec"]
        if spec.args.get("kind") not in ("ROWS", None) and not (
            spec.args.get("start") in ("UNBOUNDED", "CURRENT ROW")
            and spec.args.get("end") in ("UNBOUNDED", "CURRENT ROW")
        ):
            yield "a RANGE or GROUPS frame with a distance was not run on both engines; use ROWS"
        if spec.args.get("exclude"):
            yield "EXCLUDE was not run on both engines"
    if isinstance(node.this, exp.IgnoreNulls | exp.RespectNulls):
        yield "IGNORE NULLS was not run on both engines"


def _regexp_refusals(node: exp.RegexpLike | exp.RegexpExtract) -> Iterator[str]:
    pattern = node.expression
    if not (isinstance(pattern, exp.Literal) and pattern.is_string):
        yield "a regular expression must be a literal"
    elif other := _OTHER_REGEX.search(pattern.this):
        yield f"the engines read {other[0]} in a regular expression differently; for an escaped point write [.]"
    group = node.args.get("group")
    if node.args.get("flag") or node.args.get("parameters") or node.args.get("position"):
        yield "options of regular expressions were not run on both engines"
    if group is not None and not _is_count(group, 0):
        yield "the group must be a literal"


def _compared_refusals(nodes: list[exp.Expr]) -> Iterator[str]:
    kinds = [kind(n) for n in nodes]
    if combined(kinds) == UNKNOWN and len(set(kinds)) > 1:
        yield f"the engines compare {_listed(kinds)} differently; cast one of them"


def _bare(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _is_decimal_literal(node: exp.Expr) -> bool:
    return isinstance(_bare(node), exp.Literal) and kind(node) == DECIMAL


def _is_count(node: exp.Expr | None, least: int) -> bool:
    return isinstance(node, exp.Literal) and not node.is_string and node.this.isdigit() and int(node.this) >= least


def _listed(kinds: list[str]) -> str:
    return " and ".join(dict.fromkeys(kinds))
