"""Finds the tables that a query reads. DuckDB's own parser finds them; the text is never searched for words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import duckdb

from tracewarehouse.ingest.errors import QueryError
from tracewarehouse.ingest.lake.schema import TABLES

_COMMENTED = frozenset({"duckdb_columns", "duckdb_functions", "duckdb_tables", "duckdb_views"})
_COMMENTED_VIEWS = frozenset({("information_schema", "columns"), ("information_schema", "tables")})

_SPACE = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)"
_EXPLAIN = re.compile(
    rf"{_SPACE}*explain\b{_SPACE}*(?P<options>analyze\b|\([\w\s,]*\))?", re.IGNORECASE | re.DOTALL | re.ASCII
)


@dataclass(frozen=True)
class TablesRead:
    """The names in a query; identifiers are in lower case, as DuckDB ignores case.

    Attributes:
        tables: (schema, name) of each table or view, without those that the query defines by WITH; the schema is
            empty if the query does not name one.
        functions: (schema, name) of each table function or table macro.
        texts: the string literals in the query.
        shows_catalogue: whether the query lists tables (SHOW).
        is_known: False if the parser for SELECT cannot analyse the query, such as a PIVOT over values that DuckDB must
            look up first. Such a query may read anything.
    """

    tables: frozenset[tuple[str, str]] = frozenset()
    functions: frozenset[tuple[str, str]] = frozenset()
    texts: frozenset[str] = frozenset()
    shows_catalogue: bool = False
    is_known: bool = True

    @property
    def reads_runs(self) -> bool:
        """Whether the query reads a table, model, metric or macro, so that its rows may come from runs."""
        return (
            not self.is_known
            or any(schema == "macros" for schema, _ in self.functions)
            or any(
                n in TABLES or (s in ("models", "preconditions", "metrics") and n != "catalog") for s, n in self.tables
            )
        )

    @property
    def shows_comments(self) -> bool:
        """Whether the query reads a catalogue table that holds the comments on tables, columns and macros."""
        named = {name for _, name in self.tables | self.functions}
        return bool(named & _COMMENTED or self.tables & _COMMENTED_VIEWS or "pg_description" in named)

    def __or__(self, other: TablesRead) -> TablesRead:
        """Everything that two statements read."""
        return TablesRead(
            self.tables | other.tables,
            self.functions | other.functions,
            self.texts | other.texts,
            self.shows_catalogue or other.shows_catalogue,
            self.is_known and other.is_known,
        )


class ParsedSql:
    """SQL and what DuckDB's parser says of it, each part found once, when it is first needed.

    One query is parsed to choose its runs, to create the views that it reads, and to check that it only reads. Nothing
    is bound or run; of a connection only the parser is used, so any will do. All methods raise duckdb.Error if the SQL
    cannot be parsed.

    Attributes:
        sql: any statements.
    """

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self._statements: list[tuple[str, str]] | None = None
        self._tree: dict[str, Any] | None = None
        self._tables: TablesRead | None = None

    def statements(self, connection: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
        """DuckDB's name for the kind of each statement, such as SELECT, and its text."""
        if self._statements is None:
            found = connection.extract_statements(self.sql)
            self._statements = [(_statement_kind(s), _statement_text(s) if len(found) > 1 else self.sql) for s in found]
        return self._statements

    def tree(self, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
        """DuckDB's syntax tree of a SELECT; for any other statement an object whose `error` is true. It is shared."""
        if self._tree is None:
            [(text,)] = connection.execute(
                "SELECT CAST(json_serialize_sql($sql) AS VARCHAR)", {"sql": self.sql}
            ).fetchall()
            self._tree = json.loads(text)
        return self._tree

    def tables(self, connection: duckdb.DuckDBPyConnection) -> TablesRead:
        """The tables that the SQL reads, whether they exist or not."""
        if self._tables is None:
            read = TablesRead()
            for kind, text in self.statements(connection):
                parsed = self if text == self.sql else ParsedSql(text)
                if kind == "SELECT" and text:
                    read |= _select_tables(parsed.tree(connection))
                elif kind == "EXPLAIN" and text:
                    read |= _explained_tables(connection, text)
                else:
                    read |= TablesRead(is_known=False)
            self._tables = read
        return self._tables


def tables_read(connection: duckdb.DuckDBPyConnection, sql: str) -> TablesRead:
    """The tables that SQL reads; see `ParsedSql.tables`."""
    return ParsedSql(sql).tables(connection)


def _statement_text(statement: duckdb.Statement) -> str:
    try:
        return str(statement.query)
    except IndexError:  # DuckDB 1.5 raises it for a PIVOT after another statement
        return ""


def _statement_kind(statement: duckdb.Statement) -> str:
    """DuckDB's name for the kind of a statement; a description if its Python package has no name."""
    try:
        return statement.type.name
    except ValueError:
        return "another statement"


def split_explain(sql: str) -> tuple[str, str]:
    """Split a statement into EXPLAIN with its options, and the statement that it explains.

    The statement to run is later joined from the two parts. The first part holds only words and commas, so even a wrong
    split cannot let anything forbidden through.
    """
    match = _EXPLAIN.match(sql)
    if match is None:
        raise QueryError("EXPLAIN is understood as EXPLAIN [ANALYZE] SELECT ... or EXPLAIN (options) SELECT ...")
    return f"EXPLAIN {match['options'] or ''}", sql[match.end() :]


def _explained_tables(connection: duckdb.DuckDBPyConnection, sql: str) -> TablesRead:
    try:
        return tables_read(connection, split_explain(sql)[1])
    except QueryError:
        return TablesRead(is_known=False)


def _select_tables(tree: dict[str, Any]) -> TablesRead:
    if tree.get("error"):
        return TablesRead(is_known=False)
    tables, functions, texts = set(), set(), set()
    shows_catalogue, is_known = False, True
    for node, defined in scoped(tree):
        kind = node.get("type")
        if kind == "BASE_TABLE":
            schema, name = lower(node, "schema_name"), lower(node, "table_name")
            if schema or name not in defined:
                tables.add((schema, name))
        elif kind == "TABLE_FUNCTION":
            function = node["function"]
            name = lower(function, "function_name")
            functions.add((lower(function, "schema"), name))
            if name == "query_table":
                named = _constants(function)
                is_known &= named is not None
                tables |= {("", n.lower()) for n in named or ()}
        elif kind == "SHOW_REF":
            shows_catalogue |= node.get("query") is None
        elif (text := literal_text(node)) is not None:
            texts.add(text)
    return TablesRead(frozenset(tables), frozenset(functions), frozenset(texts), shows_catalogue, is_known)


def scoped(tree: Any) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """All objects of a syntax tree, each with the WITH names visible to it; no recursion, as SQL may nest deeply."""
    stack: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
    while stack:
        node, defined = stack.pop()
        if isinstance(node, list):
            stack += [(child, defined) for child in node]
        elif isinstance(node, dict):
            if node.get("type") == "RECURSIVE_CTE_NODE":
                defined |= {lower(node, "cte_name")}
            for entry in (node.get("cte_map") or {}).get("map", ()):  # each entry sees the entries before it
                stack.append((entry["value"], defined))
                defined |= {lower(entry, "key")}
            yield node, defined
            stack += [(child, defined) for key, child in node.items() if key != "cte_map"]


def _constants(function: dict[str, Any]) -> list[str] | None:
    """The first argument of a function, if it is a string literal or a list of them; else None."""
    [argument, *_] = arguments(function) or [{}]
    members = arguments(argument) if argument.get("function_name") == "list_value" else [argument]
    texts = [text for m in members if (text := literal_text(m)) is not None]
    return texts if len(texts) == len(members) else None


def arguments(function: dict[str, Any]) -> list[dict[str, Any]]:
    """The arguments of a function; DuckDB 1.5 calls them children."""
    return [a["expression"] for a in function.get("arguments") or ()] or function.get("children") or []


def literal_text(node: dict[str, Any]) -> str | None:
    """The text of a string literal; None if the node is anything else. DuckDB 1.5 has it in another place than 2.0."""
    if node.get("type") != "VALUE_CONSTANT":
        return None
    if literal := node.get("literal"):
        return str(literal["text"]) if literal.get("kind") == "STRING" else None
    value = node.get("value") or {}
    is_text = (value.get("type") or {}).get("id") == "VARCHAR" and not value.get("is_null")
    return str(value["value"]) if is_text else None


def is_null(node: dict[str, Any]) -> bool:
    """Whether a node is the literal NULL."""
    if node.get("type") != "VALUE_CONSTANT":
        return False
    literal = node.get("literal")
    return literal.get("kind") == "NULL_LITERAL" if literal else bool((node.get("value") or {}).get("is_null"))


def lower(node: dict[str, Any], key: str) -> str:
    """A name in a syntax tree in lower case; empty if there is none."""
    return str(node.get(key) or "").lower()


def with_values(sql: str, look_up: Callable[[str], list[str]]) -> str | None:
    """The query with `IN (...)` after each expression of a PIVOT that lacks it; None if it cannot be parsed for this.

    DuckDB makes two statements of `PIVOT t ON a`: one creates a type of the values of `a`, which read-only queries may
    not.

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
