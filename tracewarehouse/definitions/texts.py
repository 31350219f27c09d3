"""Parses the SQL of definitions: finds the tables it reads, the comments on its columns, and its normal form.

Parsing all definitions takes longer than most commands, so the results are kept in the user's cache folder, each under
the digest of its text. Other versions of the code or of the parser use another cache file.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tracewarehouse.ingest.capture.locations import cache_folder

SCHEMAS = ("main", "models", "metrics")
"""The schemas that a definition may read."""
_MOST_TEXTS = 10_000


class _Remembered:
    """Results by text, read from a file and written back to it at the end of the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: dict[str, Any] = {}
        with suppress(OSError, ValueError, RuntimeError):  # RuntimeError: the user has no home folder
            read = json.loads((cache_folder() / name).read_bytes())
            self._found = read if isinstance(read, dict) and len(read) <= _MOST_TEXTS else {}
        self._known = len(self._found)
        atexit.register(self.write)

    def get(self, kind: str, text: str, find: Callable[[str], Any]) -> Any:
        key = hashlib.sha256(f"{kind}\n{text}".encode()).hexdigest()
        if key not in self._found:
            self._found[key] = find(text)
        return self._found[key]

    def write(self) -> None:
        if len(self._found) == self._known:
            return
        with suppress(OSError, RuntimeError):
            folder = cache_folder()
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / f".{self._name}.{os.getpid()}"
            part.write_text(json.dumps(self._found))
            part.replace(folder / self._name)
            self._known = len(self._found)


@cache
def _remembered() -> _Remembered:
    made_by = hashlib.sha256(Path(__file__).read_bytes() + version("sqlglot").encode()).hexdigest()
    return _Remembered(f"sql-{made_by[:16]}.json")


def remember() -> None:
    """Save the results so far for other processes now, instead of at the end of this one."""
    _remembered().write()


@cache
def tables_in(sql: str) -> frozenset[str]:
    """The tables and views that a SELECT reads, by qualified name.

    Raises:
        ValueError: the SQL cannot be parsed, is not one SELECT, or names a table without its schema.
    """
    return frozenset(_remembered().get("tables", sql, _parsed_tables))


def normalised(sql: str) -> str:
    """Return SQL in a normal form that depends only on its syntax tree, not on its spelling.

    These make no difference: comments, spacing, letter case, quotes around names, redundant parentheses, names of
    relations within a SELECT, `x.a AS a` for `x.a`, and `x.a` for `a` if there is only one relation.
    """
    normal_form: str = _remembered().get("normal form", sql, _normal_form)
    return normal_form


def column_sentences(sql: str) -> dict[str, str]:
    """The columns of the last SELECT with their comments, or ""; of a UNION ALL, those of its first SELECT.

    A comment belongs to a column if it follows the column on the same line, or stands alone on the lines before it.
    """
    sentences: dict[str, str] = _remembered().get("sentences", sql, _column_sentences)
    return sentences


def _parsed_tables(sql: str) -> Collection[str]:
    import sqlglot
    from sqlglot import exp

    try:
        statements = sqlglot.parse(sql, dialect="duckdb")
    except sqlglot.errors.SqlglotError as error:
        raise ValueError(f"cannot be parsed: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ValueError("cannot be parsed: it is nested too deeply") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise ValueError("must be one SELECT")
    tree = statements[0]
    ctes = {c.alias for c in tree.find_all(exp.CTE)}
    tables = set()
    for table in tree.find_all(exp.Table):
        if not table.db and table.name in ctes:
            continue
        if isinstance(table.this, exp.Anonymous) and table.db == "macros":
            tables.add(f"macros.{table.this.name}")
            continue
        if table.db not in SCHEMAS or table.catalog:
            raise ValueError(f"names the table {table.sql()}; write it with its schema, {', '.join(SCHEMAS)}")
        tables.add(f"{table.db}.{table.name}")
    return sorted(tables)


def _column_sentences(sql: str) -> dict[str, str]:
    import sqlglot

    depth = 0
    sentences: dict[str, str] = {}
    name, before, said, is_listing = "", "", list[str](), False
    try:
        tokens = sqlglot.tokenize(sql, dialect="duckdb")
    except sqlglot.errors.SqlglotError as error:
        raise ValueError(f"the query cannot be parsed: {' '.join(str(error).split())}") from None
    for token in tokens:
        kind = token.token_type.name
        depth += {"L_PAREN": 1, "R_PAREN": -1}.get(kind, 0)
        if not is_listing:
            is_listing = depth == 0 and kind == "SELECT"
            continue
        is_end = depth == 0 and kind == "FROM" and before != "DISTINCT"  # else FROM belongs to IS DISTINCT FROM
        before = kind
        if not is_end:
            said += token.comments
        if not is_end and (depth or kind != "COMMA"):
            name = token.text
            continue
        sentences[name] = " ".join(" ".join(said).split())
        said = []
        if is_end:
            break
    return sentences


def _normal_form(sql: str) -> str:
    import sqlglot
    from sqlglot import exp

    tree = sqlglot.parse_one(sql, dialect="duckdb")
    for identifier in tree.find_all(exp.Identifier):
        identifier.set("this", identifier.name.lower())
        identifier.set("quoted", False)
    for select in list(tree.find_all(exp.Select)):
        _name_relations(select)
    for alias in list(tree.find_all(exp.Alias)):
        if isinstance(alias.this, exp.Column) and alias.this.name == alias.alias:
            alias.replace(alias.this)
    # remove all parentheses, then add every possible one, so that the text depends only on the tree
    for paren in list(tree.find_all(exp.Paren)):
        paren.replace(paren.this)
    operators = (exp.Binary, exp.Unary, exp.Between, exp.In)
    for node in reversed(list(tree.find_all(*operators))):
        if isinstance(node.parent, operators):
            node.replace(exp.Paren(this=node.copy()))
    return tree.sql(dialect="duckdb", comments=False)


def _name_relations(select: Any) -> None:
    """Rename the relations of a SELECT by their position; a single relation gets no name."""
    from sqlglot import exp
    from sqlglot.optimizer.scope import walk_in_scope

    start = select.args.get("from_")
    if start is None:
        return
    relations = [start.this, *(j.this for j in select.args.get("joins") or [])]
    places = {r.alias_or_name: f"r{place}" if len(relations) > 1 else "" for place, r in enumerate(relations)}
    for node in walk_in_scope(select):
        if isinstance(node, exp.Column) and node.table in places:
            node.set("table", exp.to_identifier(places[node.table] or None))
    for relation in relations:
        place = places[relation.alias_or_name]
        relation.set("alias", exp.TableAlias(this=exp.to_identifier(place)) if place else None)
