"""Finds the kind of value of each expression in DuckDB, as far as it decides whether Spark computes the same.

sqlglot gives the types of columns, including those that a query computes in WITH or in a subquery. For a number with a
point, its type is not that of DuckDB, which is DECIMAL, so the kinds of expressions are found here.
"""

from __future__ import annotations

from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify
from sqlglot.schema import MappingSchema

from tracewarehouse.definitions.portable import shown
from tracewarehouse.ingest.errors import QueryError

Types = dict[str, dict[str, dict[str, str]]]
"""DuckDB's types of columns, by schema, table or view, and column."""

INT, UNSIGNED, DOUBLE, DECIMAL, TEXT, BOOL, BLOB, NULL, UNKNOWN = (
    "integer",
    "unsigned integer",
    "double",
    "decimal",
    "text",
    "boolean",
    "blob",
    "null",
    "unknown",
)
NUMBERS = frozenset((INT, UNSIGNED, DOUBLE, DECIMAL, NULL))

_KINDS = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "INTEGER", "BIGINT", "INT128", "HUGEINT"), INT),
    **dict.fromkeys(("UTINYINT", "USMALLINT", "UINT", "UBIGINT"), UNSIGNED),
    "DOUBLE": DOUBLE,
    "DECIMAL": DECIMAL,
    **dict.fromkeys(("TEXT", "VARCHAR"), TEXT),
    "BOOLEAN": BOOL,
    **dict.fromkeys(("VARBINARY", "BLOB"), BLOB),
    "NULL": NULL,
}
_TEXTS = (exp.RegexpExtract, exp.JSONExtractScalar, exp.Lower, exp.Upper)


def kind(node: exp.Expr | None) -> str:
    """The kind of an expression in a tree that `typed` has returned."""
    return UNKNOWN if node is None else str(node.meta.get("kind", UNKNOWN))


def typed(sql: str, types: Types, parameters: dict[str, Any] | None = None) -> exp.Query:
    """Parse a SELECT of DuckDB's dialect; columns are qualified, stars expanded, and every expression has its kind."""
    try:
        tree = sqlglot.parse_one(sql, dialect="duckdb")
        if not isinstance(tree, exp.Query):
            raise QueryError(f"Spark answers only a SELECT, found {tree.key.upper()}")
        _bind(tree, parameters or {})
        _filters_to_cases(tree)
        _name_schemas(tree, types)
        directions = _order_by_all(tree)
        for coalesce in tree.find_all(exp.Coalesce):
            coalesce.meta["is_written"] = True
        schema = MappingSchema({**types}, dialect="duckdb")
        tree = qualify(tree, schema=schema, dialect="duckdb", quote_identifiers=False, identify=False)
        _using_to_left(tree)
        tree = annotate_types(tree, schema=schema, dialect="duckdb", expression_metadata=_metadata())
    except (SqlglotError, RecursionError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise QueryError(f"this cannot be translated for Spark: {said[:300]}") from None
    for query, direction in directions:
        positions = [exp.Literal.number(n) for n in range(1, len(query.selects) + 1)]
        query.set("order", exp.Order(expressions=[_ordered(p, direction) for p in positions]))
    tree = _without_qualify(tree)
    for node in reversed(list(tree.walk(bfs=True))):  # each node after those that it contains
        node.meta["kind"] = _kind(node)
    return tree


def _metadata() -> Any:
    """The types of DuckDB's functions: those that sqlglot knows, and those that it lacks."""
    from sqlglot.dialects.duckdb import DuckDB

    return {**DuckDB.EXPRESSION_METADATA, **{t: {"returns": exp.DataType.Type.TEXT} for t in _TEXTS}}


def _bind(tree: exp.Query, parameters: dict[str, Any]) -> None:
    for placeholder in list(tree.find_all(exp.Placeholder, exp.Parameter)):
        name = str(placeholder.name)
        if name not in parameters:
            raise QueryError(f"the query has a parameter ${name}, but no value for it was given")
        placeholder.replace(_literal(name, parameters[name]))


def _literal(name: str, value: Any) -> exp.Expr:
    if value is None:
        return exp.Null()
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, str):
        return exp.Literal.string(value)
    if isinstance(value, int | float):
        text = repr(abs(value))
        if isinstance(value, float) and "e" not in text:
            text += "e0"
        number = exp.Literal.number(text)
        return exp.Paren(this=exp.Neg(this=number)) if value < 0 else number
    raise QueryError(f"the parameter ${name} is a {type(value).__name__}; Spark is given numbers, text and booleans")


def _filters_to_cases(tree: exp.Query) -> None:
    """Write `SUM(x) FILTER (WHERE c)` as `SUM(CASE WHEN c THEN x END)`.

    Spark has no FILTER in a window, and sqlglot takes a column of a FILTER in HAVING for the alias of that name.
    """
    for node in list(tree.find_all(exp.Filter)):
        aggregate = node.this
        if not isinstance(aggregate, exp.Count | exp.Sum | exp.Min | exp.Max | exp.LogicalAnd | exp.LogicalOr):
            continue
        distinct = aggregate.this if isinstance(aggregate.this, exp.Distinct) else None
        value = distinct.expressions[0] if distinct is not None else aggregate.this
        counted = exp.Literal.number(1) if value is None or isinstance(value, exp.Star) else value.copy()
        case = exp.Case(ifs=[exp.If(this=node.expression.this.copy(), true=counted)])
        if distinct is not None:
            distinct.set("expressions", [case])
        else:
            aggregate.set("this", case)
        node.replace(aggregate)


def _without_qualify(tree: exp.Query) -> exp.Query:
    """Write QUALIFY, which Spark lacks, as a condition on a column of a subquery.

    sqlglot's own rewrite loses the columns that the condition names beside its windows.
    """
    for select in reversed(list(tree.find_all(exp.Select))):
        qualify_ = select.args.get("qualify")
        if qualify_ is None:
            continue
        inner, outer = select.copy(), exp.Select()
        for clause in ("with_", "order", "limit", "offset", "distinct"):
            outer.set(clause, inner.args.pop(clause, None))
        inner.set("qualify", None)
        for projection in select.selects:
            column = exp.column(projection.alias_or_name, table="_q")
            column.type = projection.type
            outer.append("expressions", exp.alias_(column, projection.alias_or_name))
        inner.append("expressions", exp.alias_(qualify_.this.copy(), "_kept"))
        kept = exp.column("_kept", table="_q")
        kept.type = exp.DataType.build("boolean")
        outer.set("from_", exp.From(this=inner.subquery("_q")))
        outer.set("where", exp.Where(this=kept))
        if select is tree:
            return outer
        select.replace(outer)
    return tree


def _order_by_all(tree: exp.Query) -> list[tuple[exp.Query, exp.Ordered]]:
    """Take ORDER BY ALL out of a tree whose stars are not expanded yet; returns where it was."""
    taken = []
    for ordered in list(tree.find_all(exp.Ordered)):
        query = ordered.parent.parent if ordered.parent is not None else None
        if isinstance(ordered.this, exp.Var | exp.Column) and ordered.this.name.upper() == "ALL":
            if not isinstance(query, exp.Query):
                raise QueryError("ORDER BY ALL belongs to a query")
            query.set("order", None)
            taken.append((query, ordered))
    return taken


def _using_to_left(tree: exp.Query) -> None:
    """Replace COALESCE(left, right), which sqlglot writes for USING, by the left column if no row can lack it.

    By a column, Spark finds the files that it needs and the rows that lie together already; by an expression of two
    tables, it finds neither.
    """
    for node in list(tree.find_all(exp.Coalesce)):
        select = node.find_ancestor(exp.Select)
        joins = (select.args.get("joins") or []) if select is not None else []
        if not node.meta.get("is_written") and not any(j.side in ("RIGHT", "FULL") for j in joins):
            node.replace(node.this)


def _ordered(position: exp.Expr, direction: exp.Ordered) -> exp.Ordered:
    return exp.Ordered(this=position, desc=direction.args.get("desc"), nulls_first=direction.args.get("nulls_first"))


def _name_schemas(tree: exp.Query, types: Types) -> None:
    """Name the schema of every table of the warehouse, and refuse other tables."""
    own = {str(cte.alias).lower() for cte in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        name, schema = table.name.lower(), table.db.lower()
        if not isinstance(table.this, exp.Identifier):
            raise QueryError(f"{shown(table)} is a table function of DuckDB, which Spark lacks")
        if not schema and name in own:
            continue
        schema = schema or "main"
        if name not in types.get(schema, {}):
            raise QueryError(f"{shown(table)} is not a table, model or metric, and Spark has nothing else")
        table.set("db", exp.to_identifier(schema))


def _kind(node: exp.Expr) -> str:
    match node:
        case exp.Null():
            return NULL
        case exp.Literal():
            if node.is_string:
                return TEXT
            if "e" in node.this.lower():
                return DOUBLE
            return DECIMAL if "." in node.this else INT
        case exp.Paren() | exp.Alias() | exp.Neg() | exp.Window() | exp.Distinct():
            inner = node.this if node.this is not None else (node.expressions or [None])[0]
            return kind(inner)
        case exp.Min() | exp.Max() | exp.Abs() | exp.Round() | exp.Lag() | exp.Lead():
            return kind(node.this)
        case exp.FirstValue() | exp.LastValue():
            return kind(node.this)
        case exp.Sum():
            return INT if kind(node.this) in (INT, UNSIGNED) else kind(node.this)
        case exp.Div() | exp.Sqrt() | exp.Floor() | exp.Ceil():
            return DOUBLE
        case exp.Add() | exp.Sub() | exp.Mul() | exp.Mod() | exp.IntDiv():
            return combined([kind(node.left), kind(node.right)])
        case exp.Case():
            return combined([*(kind(i.args["true"]) for i in node.args["ifs"]), *_default(node)])
        case exp.If():
            return combined([kind(node.args["true"]), *([kind(node.args["false"])] if node.args.get("false") else [])])
        case exp.Nullif():
            return kind(node.this)
        case exp.Coalesce() | exp.Greatest() | exp.Least():
            return combined([kind(node.this), *(kind(e) for e in node.expressions)])
        case exp.Subquery() if node.is_wrapper or len(node.selects) == 1:
            return kind(node.selects[0]) if node.selects else UNKNOWN
    if isinstance(node, _TEXTS) or is_to_json(node):
        return TEXT
    name = node.type.this.name if node.type is not None and isinstance(node.type.this, exp.DataType.Type) else ""
    return _KINDS.get(name, UNKNOWN)


def _default(node: exp.Case) -> list[str]:
    default = node.args.get("default")
    return [kind(default)] if default is not None else []


def is_to_json(node: exp.Expr) -> bool:
    """Whether the node is TO_JSON(x), which sqlglot does not know."""
    return isinstance(node, exp.Anonymous) and node.name.lower() == "to_json" and len(node.expressions) == 1


def combined(kinds: list[str]) -> str:
    """The kind of a value that may have any of several; UNKNOWN if DuckDB would convert, such as numbers to text."""
    distinct = {k for k in kinds if k != NULL}
    if not distinct:
        return NULL
    if len(distinct) == 1:
        return distinct.pop()
    if distinct <= NUMBERS:
        return next(k for k in (DOUBLE, DECIMAL, UNSIGNED, INT) if k in distinct)
    return UNKNOWN
