"""What parsing tells of the SQL of definitions: the tables it reads, and its tokens.

Parsing all definitions takes longer than most commands, so what was found is kept in the user's cache folder under
the digest of the text. A cache of other code or of another parser is another file; without one, texts are parsed.
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

from tracewarehouse.ingest.capture.remote import cache_folder

SCHEMAS = ("main", "models", "metrics")
"""The schemas that a definition may read."""
_MOST_TEXTS = 10_000


class _Remembered:
    """Findings by text, from a file and back into it at the end of the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: dict[str, Any] = {}
        with suppress(OSError, ValueError, RuntimeError):  # RuntimeError: there is no home folder
            read = json.loads((cache_folder() / name).read_bytes())
            self._found = read if isinstance(read, dict) and len(read) <= _MOST_TEXTS else {}
        self._known = len(self._found)
        atexit.register(self.write)

    def get(self, kind: str, text: str, find: Callable[[str], Any]) -> Any:
        """What `find` gives for a text; anything that JSON holds."""
        key = hashlib.sha256(f"{kind}\n{text}".encode()).hexdigest()
        if key not in self._found:
            self._found[key] = find(text)
        return self._found[key]

    def write(self) -> None:
        """Write the file, where something was added; a cache that cannot be written is done without."""
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
    """Keep what has been found so far for other processes, as is done at the end of this one."""
    _remembered().write()


@cache
def tables_of(sql: str) -> frozenset[str]:
    """Tables and views that a SELECT reads, by qualified name.

    Raises:
        ValueError: it cannot be parsed, is not one SELECT, or names a table without its schema.
    """
    return frozenset(_remembered().get("tables", sql, _parsed_tables))


def normalised(sql: str) -> str:
    """SQL as its tokens, without comments and line breaks; words in lower case, quoted text as it stands."""
    found: str = _remembered().get("tokens", sql, _tokens)
    return found


def _parsed_tables(sql: str) -> Collection[str]:
    import sqlglot
    from sqlglot import exp

    try:
        statements = sqlglot.parse(sql, dialect="duckdb")
    except sqlglot.errors.SqlglotError as error:
        raise ValueError(f"cannot be parsed: {' '.join(str(error).split())}") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise ValueError("must be one SELECT")
    tree = statements[0]
    ctes = {c.alias for c in tree.find_all(exp.CTE)}
    found = set()
    for table in tree.find_all(exp.Table):
        if not table.db and table.name in ctes:
            continue
        if table.db not in SCHEMAS or table.catalog:
            raise ValueError(f"names the table {table.sql()}; write it with its schema, {', '.join(SCHEMAS)}")
        found.add(f"{table.db}.{table.name}")
    return sorted(found)


def _tokens(sql: str) -> str:
    import sqlglot

    quoted = {"STRING": "'", "IDENTIFIER": '"'}
    parts = []
    for token in sqlglot.tokenize(sql, dialect="duckdb"):
        mark = quoted.get(token.token_type.name)
        parts.append(f"{mark}{token.text}{mark}" if mark else token.text.lower())
    return " ".join(parts)
