"""Translates SQL of DuckDB's dialect to Spark's, where the rows are the same to the last bit, and refuses the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sqlglot
from sqlglot import exp

from tracewarehouse.ingest.errors import QueryError
from tracewarehouse.spark.kinds import DOUBLE, INT, NULL, Types, is_to_json, kind, typed
from tracewarehouse.spark.refusals import refuse

_WHOLE = "4503599627370496e0"
"""2^52; a double from here on is a whole number."""
_CLASS = re.compile(r"\[(\^?)(\]?[^\]]*)\]")


def to_spark(sql: str, types: Types, parameters: Mapping[str, Any] | None = None) -> str:
    """Translate a SELECT of DuckDB's dialect to Spark's.

    Args:
        types: the column types of everything that it reads.
        parameters: values of its parameters `$name`.
    """
    tree = typed(sql, types, dict(parameters or {}))
    refuse(tree)
    for node in reversed(list(tree.walk(bfs=True))):
        replacement = _replacement(node)
        if replacement is not node:
            replacement.meta["kind"] = kind(node)
            if node is tree:
                raise QueryError("this cannot be translated for Spark")
            node.replace(replacement)
    try:
        return str(tree.sql(dialect="spark", identify=True, comments=False, unsupported_level=sqlglot.ErrorLevel.RAISE))
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        raise QueryError(f"this cannot be translated for Spark: {' '.join(str(error).split())}") from None


def view_name(qualified: str) -> str:
    """The name of Spark's temporary view for a table or view of the warehouse, such as main__ops for main.ops."""
    return qualified.replace(".", "__")


def _replacement(node: exp.Expr) -> exp.Expr:
    """The translation of a part of the tree for Spark; the part itself if it means the same there.

    A column that keeps its name gets no alias. Spark's optimizer removes such an alias even if the window beside it
    needs the column; pushed below a union, the column is then there twice, and the optimizer refuses its own plan.
    """
    match node:
        case exp.Table() if node.db:
            name = node.name.lower()
            table = exp.Table(this=exp.to_identifier(view_name(f"{node.db.lower()}.{name}")))
            table.set("alias", exp.TableAlias(this=exp.to_identifier(node.alias_or_name)))
            if node.args.get("alias") is not None:
                table.set("alias", node.args["alias"])
            return table
        case exp.Alias() if isinstance(node.this, exp.Column) and node.this.name == node.alias:
            return node.this.copy()
        case exp.Div():
            return _quotient(node)
        case exp.Floor() | exp.Ceil():
            name = "FLOOR" if isinstance(node, exp.Floor) else "CEIL"
            return _whole(node.this, _call(name, _double(node.this)))
        case exp.Round():
            return _rounded(node)
        case exp.Window() if isinstance(node.this, exp.RowNumber | exp.Rank | exp.DenseRank):
            return exp.Cast(this=node.copy(), to=exp.DataType.build("BIGINT"))
        case exp.Length():
            return exp.Cast(this=_call("LENGTH", node.this), to=exp.DataType.build("BIGINT"))
        case exp.Lower() | exp.Upper():
            return _cased(node)
        case exp.RegexpLike():
            return exp.RegexpLike(this=node.this.copy(), expression=_pattern(node.expression))
        case exp.RegexpExtract():
            group = node.args.get("group") or exp.Literal.number(0)
            return _call("REGEXP_EXTRACT", node.this, _pattern(node.expression), group)
        case exp.Anonymous() if is_to_json(node):
            return _json(node.expressions[0])
        case exp.StartsWith():
            return _call("STARTSWITH", node.this, node.expression)
    return node


def _call(name: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=[a.copy() for a in arguments])


def _double(node: exp.Expr) -> exp.Expr:
    if kind(node) == DOUBLE:
        return node.copy()
    return exp.Cast(this=node.copy(), to=exp.DataType.build("DOUBLE"))


def _case(condition: exp.Expr, value: exp.Expr, otherwise: exp.Expr) -> exp.Expr:
    return exp.Case(ifs=[exp.If(this=condition, true=value)], default=otherwise)


def _number(text: str) -> exp.Expr:
    return exp.Literal.number(text)


def _quotient(node: exp.Div) -> exp.Expr:
    """Division as doubles, as in DuckDB; by zero, DuckDB gives an infinity or NaN, where Spark would fail."""
    top, below = _double(node.left), _double(node.right)
    quotient = exp.Div(this=_enclosed(top), expression=_enclosed(below), typed=False, safe=False)
    if _is_never_zero(node.right):
        return exp.Paren(this=quotient)
    sign = _case(
        exp.Like(
            this=exp.Cast(this=below.copy(), to=exp.DataType.build("STRING")), expression=exp.Literal.string("-%")
        ),
        _infinity("-Infinity"),
        _infinity("Infinity"),
    )
    guarded = exp.Div(this=_enclosed(top), expression=_call("NULLIF", below, _number("0e0")), typed=False, safe=False)
    zero = exp.EQ(this=_enclosed(below), expression=_number("0e0"))
    return exp.Paren(this=_case(zero, exp.Mul(this=_enclosed(top), expression=exp.Paren(this=sign)), guarded))


def _is_never_zero(node: exp.Expr) -> bool:
    while isinstance(node, exp.Paren | exp.Cast):
        node = node.this
    if isinstance(node, exp.Literal):
        return float(node.this) != 0
    other = node.expression if isinstance(node, exp.Nullif) else None
    return isinstance(other, exp.Literal) and not other.is_string and float(other.this) == 0


def _infinity(text: str) -> exp.Expr:
    return exp.Cast(this=exp.Literal.string(text), to=exp.DataType.build("DOUBLE"))


def _enclosed(node: exp.Expr) -> exp.Expr:
    """A copy of the node, in parentheses if an operator beside it needs them."""
    copied: exp.Expr = node.copy()
    return copied if isinstance(node, exp.Column | exp.Literal | exp.Paren | exp.Cast) else exp.Paren(this=copied)


def _whole(value: exp.Expr, call: exp.Expr) -> exp.Expr:
    """The result of a call as a double; Spark gives a BIGINT, which cuts off what it cannot hold."""
    if kind(value) in (INT, NULL):
        return _double(value)
    small = exp.LT(this=_call("ABS", value), expression=_number(_WHOLE))
    return exp.Paren(this=_case(small, exp.Cast(this=call, to=exp.DataType.build("DOUBLE")), _double(value)))


def _rounded(node: exp.Round) -> exp.Expr:
    """ROUND as in DuckDB: the product with a power of ten, halves away from zero; Spark rounds the shortest decimal."""
    value, digits = node.this, int(node.args["decimals"].this) if node.args.get("decimals") is not None else 0
    if kind(value) in (INT, NULL):
        return _enclosed(value)
    if digits == 0:
        return _call("ROUND", value, _number("0"))
    power = _number(f"1e{digits}")
    scaled = exp.Mul(this=_enclosed(value), expression=power)
    rounded = exp.Div(this=_call("ROUND", scaled, _number("0")), expression=power.copy(), typed=False, safe=False)
    is_finite = exp.LT(this=_call("ABS", scaled), expression=_infinity("Infinity"))
    return exp.Paren(this=_case(is_finite, rounded, value.copy()))


def _cased(node: exp.Lower | exp.Upper) -> exp.Expr:
    """LOWER or UPPER of ASCII text; the engines disagree on the case of other letters, so for these Spark stops."""
    name = "LOWER" if isinstance(node, exp.Lower) else "UPPER"
    is_ascii = exp.EQ(this=_call("OCTET_LENGTH", node.this), expression=_call("CHAR_LENGTH", node.this))
    said = exp.Literal.string(f"{name} of letters beyond ASCII differs between DuckDB and Spark")
    stop = _call("RAISE_ERROR", said)
    is_null = exp.Is(this=_enclosed(node.this), expression=exp.Null())
    return exp.Paren(this=_case(exp.Or(this=is_null, expression=is_ascii), _call(name, node.this), stop))


def _pattern(pattern: exp.Expr) -> exp.Expr:
    """The regular expression for Java: only a line feed ends a line, $ is the end of the text, and no class nests."""
    parts = _CLASS.split(pattern.this)  # between classes, the caret and the characters of each
    text = parts[0].replace("$", "\\z")
    for caret, characters, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        escaped = re.sub(r"([][&^])", r"\\\1", characters)
        text += f"[{caret}{escaped}]" + rest.replace("$", "\\z")
    return exp.Literal.string(f"(?d){text}")


def _json(value: exp.Expr) -> exp.Expr:
    """A value as JSON, cut out of an object that holds it alone: {"v":...}."""
    made = _call("TO_JSON", _call("NAMED_STRUCT", exp.Literal.string("v"), value))
    inner = _call("SUBSTRING", made, _number("6"), exp.Sub(this=_call("LENGTH", made), expression=_number("6")))
    return exp.Paren(this=_case(exp.Is(this=_enclosed(value), expression=exp.Null()), exp.Null(), inner))
