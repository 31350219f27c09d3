"""Read-only queries: statements of all kinds, nested and disguised, judged by what they do and not by what they answer.

Effects are observed from outside: inotify reports every file of the lake, and of a folder beside it, that is opened,
read, made, changed or removed; settings, extensions, databases and objects of the database are compared before and
after; a word that stands only in files outside of the lake must not be in an answer or an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import random
import re
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz.judging import Target, scratch_file
from xplane_builder import Space

from tracewarehouse import cli
from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.errors import QueryError, shown
from tracewarehouse.queries import read_only
from tracewarehouse.queries.read_only import restrict, run_query
from tracewarehouse.warehouse import open_warehouse

_TABLE_MACROS = read_only._table_macros
SECRET = "hidden7f3a"
"""Stands in the files outside, and in the name of one."""
_OPEN, _ACCESS, _CHANGED = 0x20, 0x1, 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
_NAMES = {0x1: "read", 0x2: "changed", 0x4: "changed", 0x20: "opened", 0x40: "moved", 0x80: "moved", 0x100: "made",
          0x200: "removed", 0x400: "removed", 0x800: "moved"}  # fmt: skip


class Watch:
    """What happens to files, as Linux tells it."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        self._paths: dict[int, Path] = {}

    def add(self, path: Path, mask: int) -> None:
        """Watch a folder or file."""
        number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), mask)
        if number < 0:
            raise OSError(ctypes.get_errno(), f"inotify: {path}")
        self._paths[number] = path

    def seen(self) -> list[str]:
        """What happened since the last call."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._descriptor, 1 << 16):
                at = 0
                while at < len(data):
                    number, mask, _, length = struct.unpack_from("iIII", data, at)
                    name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode(errors="replace")
                    what = "/".join(sorted({word for bit, word in _NAMES.items() if mask & bit})) or hex(mask)
                    found.append(f"{what} {self._paths[number] / name}")
                    at += 16 + length
        return sorted(set(found))

    def close(self) -> None:
        os.close(self._descriptor)


_STATE = (
    "SELECT name, value FROM duckdb_settings() WHERE name NOT IN ('threads', 'worker_threads')",
    "SELECT schema_name, table_name FROM duckdb_tables()",
    "SELECT schema_name, view_name, sql FROM duckdb_views() WHERE NOT internal",
    "SELECT schema_name FROM duckdb_schemas()",
    "SELECT database_name, path FROM duckdb_databases()",
    "SELECT sequence_name, last_value FROM duckdb_sequences()",
    "SELECT type_name FROM duckdb_types() WHERE NOT internal",
    "SELECT name FROM duckdb_variables()",
    "SELECT name FROM duckdb_prepared_statements()",
    "SELECT index_name FROM duckdb_indexes()",
    "SELECT count(*) FROM duckdb_log_contexts()",
    "FROM kept",
    # macros, and whether an extension was loaded
    "SELECT count(*), count(*) FILTER (WHERE NOT internal) FROM duckdb_functions()",
)
_QUESTIONS = (
    "SELECT count(*), sum(a), min(b) FROM t", "SELECT count(*), sum(a) FROM kept", "SHOW ALL TABLES",
    "FROM own_rows(2)",
    "SELECT abs(-1), getvariable('v'), current_schema(), current_setting('TimeZone')",
)  # fmt: skip
"""Read-only queries whose answers other queries must not change."""


class Sandbox:
    """A warehouse of one file, a folder beside it, and a closed connection; everything that happens is observed.

    Args:
        folder: an empty folder.
        is_restricted: False leaves the connection open, to prove that the observer sees.
        every: the state of the database is compared after so many queries; files are watched all the time.
    """

    def __init__(self, folder: Path, *, is_restricted: bool = True, every: int = 1) -> None:
        self.lake, self.outside, self.spill = folder / "wh" / "lake", folder / "outside", folder / "spill"
        for path in (self.lake, self.outside, self.spill):
            path.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"]}), self.lake / "t.parquet")
        pq.write_table(pa.table({"a": [SECRET]}), self.outside / f"{SECRET}.parquet")
        (self.outside / "t.csv").write_text(f"a,b\n{SECRET},1\n")
        (self.outside / "t.json").write_text(f'{{"a":"{SECRET}"}}\n')
        (self.outside / "t.sql").write_text(f"SELECT '{SECRET}'")
        with duckdb.connect(str(self.outside / "t.db")) as database:
            database.execute(f"CREATE TABLE secret AS SELECT '{SECRET}' AS a")
        (self.lake / "link.csv").symlink_to(self.outside / "t.csv")
        (self.lake / "linked").symlink_to(self.outside)
        self.connection = duckdb.connect(":memory:")
        self.connection.execute(f"CREATE VIEW t AS SELECT * FROM read_parquet(['{self.lake}/t.parquet'])")
        self.connection.execute("CREATE TABLE kept AS SELECT 1 AS a")
        self.connection.execute("CREATE MACRO own_rows(n) AS TABLE SELECT * FROM range(n)")
        if is_restricted:
            restrict(self.connection, [str(self.lake.resolve())], self.spill)
        self._is_restricted, self._every = is_restricted, every
        self._watch = Watch()
        self._watch.add(self.outside, _OPEN | _ACCESS | _CHANGED)
        for path in (self.lake, self.lake.parent, self.spill, folder):
            self._watch.add(path, _CHANGED)
        self._before = self._state()
        self._count = 0

    def macros(self, connection: duckdb.DuckDBPyConnection) -> frozenset[str]:
        """The table macros, which do not change; to look them up takes longer than a query."""
        return frozenset({"own_rows"}) if connection is self.connection else _TABLE_MACROS(connection)

    def effects(self, sql: str, parameters: dict[str, Any] | None = None) -> tuple[list[str], str]:
        """What a query did, and what it answered: 'answered', or why it was refused."""
        self._watch.seen()
        text, answer = self._asked(sql, parameters)
        found = self._watch.seen()
        # a query may repeat what it was asked
        if SECRET in text.replace(sql, "") and SECRET not in sql and SECRET not in str(parameters):
            found.append(f"the answer tells what stands outside: {text[:300]}")
        self._count += 1
        if self._count % self._every == 0:
            found += self.changes()
        return found, answer

    def _asked(self, sql: str, parameters: dict[str, Any] | None) -> tuple[str, str]:
        """What is printed, and what was answered."""
        try:
            result = run_query(self.connection, sql, parameters, read_only=self._is_restricted)
        except QueryError as error:
            return str(error), str(error)
        return repr((result.columns, result.rows()[:1000])), "answered"

    def changes(self) -> list[str]:
        """What the queries since the last call changed in the database's state."""
        before, self._before = self._before, self._state()
        return [
            f"state changed: {a!r:.300} became {b!r:.300}" for a, b in zip(before, self._before, strict=True) if a != b
        ]

    def _state(self) -> list[Any]:
        found: list[Any] = [sorted(self.connection.execute(sql).fetchall(), key=repr) for sql in _STATE]
        return [
            *found,
            *map(self._answer, _QUESTIONS),
            sorted(p.name for p in Path.cwd().iterdir() if p.name[0] != "."),
        ]

    def _answer(self, question: str) -> Any:
        try:
            return run_query(self.connection, question, read_only=self._is_restricted).rows()
        except QueryError as error:
            return str(error)

    def close(self) -> None:
        self.connection.close()
        self._watch.close()


KINDS = ("plain", "nested", "disguised", "several", "soup", "call", "options")
PATHS = (
    "{l}/t.parquet",
    "{o}/t.csv", "{o}/t.json", "{o}/*.parquet", "{o}/t.db", "{o}/t.sql", "{o}", "{o}/*", "{l}/../../outside/t.csv",
    "{l}/link.csv", "{l}/linked/t.csv", "{l}/linked/*.parquet", "file://{o}/t.csv", "file:{o}/t.csv", "{o}//t.csv",
    "{l}/./../../outside/./t.csv", "{l}/%2e%2e/%2e%2e/outside/t.csv", "{l}\\..\\..\\outside\\t.csv", "{l}/new.csv",
    "{o}/new.csv", "new.csv", "/dev/stdout", "/proc/self/environ", "~/new.csv", "http://127.0.0.1:9/x.csv",
    "s3://bucket/x.parquet", "{l}/*/../../../outside/t.csv", "{l}/**/t.csv", "{L}/../../OUTSIDE/t.csv", "", ":memory:",
    "{o}/t.csv\0", "{l}/t.parquet\0{o}/t.csv", "{o}/t.csv?x=1", "{o}/t.csv#x", "\u2215tmp", "{l}", "duckdb:{o}/t.db",
    "gcs://x/y", "hf://datasets/x", "azure://x", "memory://x",
)  # fmt: skip
READERS = (
    "read_csv", "read_csv_auto", "read_text", "read_blob", "read_json", "read_json_auto", "read_ndjson",
    "read_json_objects", "read_parquet", "parquet_scan", "parquet_metadata", "parquet_schema", "parquet_kv_metadata",
    "parquet_file_metadata", "parquet_full_metadata", "parquet_bloom_probe", "glob", "sniff_csv", "read_duckdb",
    "query", "query_table", "json_execute_serialized_sql", "arrow_scan", "pandas_scan", "seq_scan", "summary",
    "read_single_csv_file", "read_single_parquet_file", "duckdb_secrets", "which_secret", "checkpoint",
    "enable_logging", "enable_profiling", "pragma_table_info", "getenv", "pragma_storage_info", "table_info",
    "python_map_function", "force_checkpoint", "register_external_resource", "truncate_duckdb_logs",
)  # fmt: skip
OPTIONS = (
    "store_rejects", "rejects_table", "rejects_table", "rejects_scan", "rejects_limit", "ignore_errors", "columns",
    "auto_detect", "header", "filename", "union_by_name", "hive_partitioning", "hive_types", "encryption_config",
    "compression", "schema", "delim", "all_varchar", "sample_size", "null_padding", "strict_mode", "names", "types",
    "file_row_number", "binary_as_string", "explicit_cardinality", "buffer_size", "quote", "encoding", "x",
)  # fmt: skip
STATEMENTS = (
    "COPY t TO '{p}'", "COPY (FROM t) TO '{p}' (FORMAT parquet)", "COPY kept FROM '{p}'",
    "COPY FROM DATABASE memory TO m", "EXPORT DATABASE '{p}'", "IMPORT DATABASE '{p}'", "ATTACH '{p}' AS x",
    "ATTACH '{p}' (READ_ONLY)", "DETACH memory", "ATTACH IF NOT EXISTS '{p}' (TYPE duckdb)", "CREATE DATABASE x",
    "USE memory.main", "INSTALL httpfs", "LOAD '{p}'", "FORCE INSTALL '{p}'", "UPDATE EXTENSIONS",
    "SET temp_directory = '{p}'", "SET enable_external_access = true", "SET lock_configuration = false",
    "SET GLOBAL threads = 1", "SET SESSION search_path = 'x'", "RESET ALL", "RESET allowed_directories",
    "SET VARIABLE v = (SELECT max(content) FROM read_text('{p}'))", "PRAGMA database_list", "PRAGMA enable_profiling",
    "PRAGMA profiling_output = '{p}'", "PRAGMA import_database('{p}')", "PRAGMA show('t')",
    "PRAGMA copy_database('memory', 'x')", "PRAGMA table_info('t')", "CALL {f}('{p}')", "CALL pragma_version()",
    "CREATE TABLE n AS FROM {r}", "CREATE OR REPLACE VIEW t AS FROM {r}", "CREATE MACRO m() AS TABLE FROM {r}",
    "CREATE TEMP MACRO abs(x) AS 1", "CREATE SECRET s (TYPE s3, KEY_ID 'a')", "CREATE SEQUENCE s",
    "CREATE TYPE e AS INT", "CREATE INDEX i ON kept(a)", "DROP TABLE kept", "DROP VIEW t",
    "INSERT INTO kept FROM range(3)", "DELETE FROM kept", "UPDATE kept SET a = 2", "TRUNCATE kept",
    "ALTER TABLE kept RENAME TO k", "COMMENT ON TABLE kept IS 'x'",
    "MERGE INTO kept USING t ON true WHEN MATCHED THEN DELETE", "PREPARE p AS FROM {r}", "EXECUTE p", "DEALLOCATE p",
    "EXECUTE IMMEDIATE 'DROP TABLE kept'", "BEGIN", "COMMIT", "ROLLBACK", "CHECKPOINT", "VACUUM", "ANALYZE", "KILL 1",
    "SELECT a INTO n FROM t", "SHOW DATABASES", "SHOW SETTINGS", "DESCRIBE {r}", "SUMMARIZE {r}", "FROM t",
    "TABLE '{p}'", "PIVOT {r} ON a USING count(*)", "UNPIVOT {r} ON a", "FROM {r}", "SELECT * FROM {r}",
    "FROM t POSITIONAL JOIN {r}", "INSERT INTO kept VALUES (2) RETURNING a", "DELETE FROM kept RETURNING a",
    "EXPLAIN ANALYZE COPY t TO '{p}'", "CREATE TRIGGER x AFTER INSERT ON kept EXECUTE 'DROP TABLE kept'",
    "GRANT ALL ON kept TO x", "LISTEN x", "LOCK kept", "SELECT {f}('{p}')",
    "SELECT nextval('s'), setval('s', 1), setseed(0.5), write_log('x')", "VALUES (1)", ".read {p}",
    "SELECT json_serialize_plan('FROM {r}')", "SELECT current_setting('temp_directory')", "SET s3_endpoint = '{p}'",
)  # fmt: skip
READS = (
    "SELECT a, b FROM t", "FROM t", "SELECT 1", "VALUES (1)", "SELECT count(*) FROM t GROUP BY b", "FROM own_rows(3)",
    "FROM range(3)", "FROM '{l}/t.parquet'", "FROM read_parquet('{l}/*.parquet')", "DESCRIBE t", "TABLE t",
)  # fmt: skip
INSIDE = (
    "WITH x AS ({s}) FROM x", "WITH x AS MATERIALIZED ({s}) SELECT 1",
    "WITH RECURSIVE x AS ({s} UNION ALL {s}) FROM x", "SELECT * FROM ({s}) AS q", "SELECT ({s})",
    "SELECT 1 WHERE EXISTS ({s})", "({s})", "(({s}))", "EXPLAIN {s}", "EXPLAIN ANALYZE {s}",
    "EXPLAIN (ANALYZE, FORMAT json) {s}", "DESCRIBE {s}", "SUMMARIZE {s}", "{s} UNION ALL {s}",
    "SELECT * FROM t, LATERAL ({s})", "FROM query($${s}$$)", "FROM query('{q}')", "SELECT [x FOR x IN ({s})]",
    "SELECT 1 ORDER BY ({s})", "SELECT 1 LIMIT ({s})", "FROM (DESCRIBE {s})", "FROM (SUMMARIZE {s})",
    "FROM (SHOW TABLES)", "WITH a AS (SELECT 1), b AS ({s}) SELECT * FROM a",
    "SELECT count(*) FILTER (WHERE EXISTS ({s})) FROM t", "SELECT CASE WHEN EXISTS ({s}) THEN 1 END",
    "VALUES (({s}))", "SELECT * FROM t WHERE a IN ({s})", "COPY ({s}) TO '{p}'", "PREPARE p AS {s}",
    "CREATE VIEW v AS {s}", "SELECT list_transform([1], x -> ({s}))", "SELECT {{'a': ({s})}}",
    "FROM json_execute_serialized_sql(json_serialize_sql('{q}'))", "SELECT json_serialize_plan('{q}')",
    "FROM t SELECT ({s})", "SELECT * FROM (PIVOT ({s}) ON a USING count(*))", "SELECT * FROM t QUALIFY EXISTS ({s})",
    "{s}; {s}", "FROM t; {s}", "SELECT * FROM query_table(({s}))", "SELECT * FROM range(({s}))",
    "EXPLAIN EXPLAIN ANALYZE {s}", "CALL query('{q}')", "WITH x AS (WITH y AS ({s}) FROM y) FROM x",
    "SELECT * FROM t JOIN ({s}) ON true", "FROM ({s}) SELECT *", "SELECT * REPLACE (({s}) AS a) FROM t",
    "SELECT COLUMNS(c -> EXISTS ({s})) FROM t", "FROM t AT (VERSION => ({s}))",
)  # fmt: skip
_SOURCES = ("'{p}'", "{f}('{p}')", "{f}(['{p}'])", "{f}('{p}', x := 1)", "(FROM '{p}')", '"{p}"', "{f}('FROM t')")
_ENDS = (";", ";--", "/*", "\0", ";\0DROP TABLE kept", "\\", "$$", "'", ";\ud800")
_JUNK = ("\0", "\u202e", "ﬀ", "'", '"', "$x$", "U&'\\0041'", "E'\\x41'", ")", "(", ";", "0x")
SPACES = (" ", "\n", "\t", "/**/", "/* ; */", "--\n", "\u00a0", "\u2003", "\ufeff", "\u200b", "\x0b", "\r", "/*/**/*/")


class QueryTarget(Target):
    """A query never has an effect, however it is asked; whether it is answered is not judged here."""

    name = "query"
    suffix = ".sql"

    def __init__(self, traces: Path | None = None) -> None:
        self._sandbox: Sandbox | None = None

    @property
    def sandbox(self) -> Sandbox:
        """Made when first needed, in the process that needs it: connections do not survive a fork."""
        if self._sandbox is None:
            self._sandbox = self.made(scratch_file(self, "s"))
        return self._sandbox

    def made(self, folder: Path) -> Sandbox:
        """A sandbox in a folder."""
        return Sandbox(folder, every=100)

    def make(self, r: random.Random) -> tuple[str, bytes]:
        kind = r.choice(KINDS)
        return kind, statement(r, kind).encode("utf-8", "surrogatepass")

    def read(self, data: bytes) -> Any:
        box = self.sandbox
        sql = data.decode("utf-8", "surrogatepass") if b"\xed" in data else data.decode("utf-8", "replace")
        sql = sql.replace("{o}", str(box.outside)).replace("{l}", str(box.lake)).replace("{L}", str(box.lake).upper())
        with mock.patch.object(read_only, "_table_macros", box.macros):
            found, answer = box.effects(sql)
            if found and all(f.startswith(("opened", "read")) for f in found):
                found, answer = box.effects(sql)  # other programs look into folders too
        if not found and answer != "answered":
            raise QueryError(shown(answer))
        return found

    def reference(self, data: bytes) -> Any:
        return []

    def difference(self, got: Any, want: Any) -> str:
        return "; ".join(got)

    def may_refuse(self, data: bytes, want: Any, refusal: str) -> str:
        return "it may be"


class CommandSandbox(Sandbox):
    """The same with a warehouse of a run, which `tw query` is asked; every command begins anew, so no state is left.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self._warehouse = folder / "wh"
        with open_warehouse(self._warehouse, create=True) as warehouse:
            space = Space()
            space.host().line("python").event("f", 1, 2)
            warehouse.ingest_capture(find_captures(space.write(folder / "a.xplane.pb"))[0], evaluate=False)
        super().__init__(folder)
        for path in self._warehouse.rglob("*"):
            if path.is_dir():
                self._watch.add(path, _CHANGED)
        self._file = folder.with_name("query.sql")

    def _asked(self, sql: str, parameters: dict[str, Any] | None) -> tuple[str, str]:
        sql = re.sub(r"(?<![/\w.'])t(?![\w.'])", "runs", sql)
        said, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        words = ["-w", str(self._warehouse), "query", "--format", ("csv", "json", "table")[len(sql) % 3]]
        way, given = len(sql) % 4, io.StringIO(sql)
        if way == 1:
            words.append("-")
        elif way == 2:
            self._file.write_text(sql, encoding="utf-8", errors="surrogatepass")
            words += ["-f", str(self._file)]
        else:
            words += ["--", sql]
        with (
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(errors),
            mock.patch.object(sys, "stdin", given),
        ):
            code = cli.run(words)
        printed, told = (stream.buffer.getvalue().decode() for stream in (said, errors))  # type: ignore[attr-defined]
        is_told = not code or told.startswith(("error: ", "Usage: "))
        if code not in (0, 1, 2) or "Traceback" in told or not is_told or (code and printed):
            raise AssertionError(f"the command ended with {code}: {printed[-200:]} {told[-200:]}")
        return printed + told, "answered" if code == 0 else told

    def _state(self) -> list[Any]:
        return [sorted((str(p), p.stat().st_size) for p in self._warehouse.rglob("*"))]


class CommandTarget(QueryTarget):
    """The same statements, given to `tw query` in one process."""

    name = "query-command"
    room = 32 << 30  # each command opens databases of its own, whose threads take address space

    def made(self, folder: Path) -> Sandbox:
        return CommandSandbox(folder)


def statement(r: random.Random, kind: str) -> str:
    """A statement of a kind; {o} and {l} stand for the folder outside and the lake."""
    sql = _filled(r, r.choice(STATEMENTS if r.random() < 0.7 else READS))
    if kind == "call":
        arguments = r.choice(("", "'{p}'", "['{p}']", "1", "'t'", "'{p}', '{p}'", "x := '{p}'", "NULL", "t", "'{q}'"))
        name = r.choice(READERS)
        return _filled(r, r.choice(("FROM ", "CALL ", "PRAGMA ", "SELECT ")) + f"{name}({arguments})")
    if kind == "options":
        options = r.sample(OPTIONS, r.choice((1, 2, 4)))
        if r.random() < 0.5:
            options += ["store_rejects", "columns", "ignore_errors", "auto_detect"]
        given = "".join(f", {o} {r.choice(('=', ':=', '=>'))} {r.choice(_option_values(o))}" for o in options)
        return _filled(r, f"SELECT count(*) FROM {{f}}('{{l}}/t.parquet'{given})")
    if kind in ("nested", "disguised"):
        for _ in range(r.choice((1, 1, 2, 3))):
            sql = _inside(r, r.choice(INSIDE), sql)
    if kind == "several":
        return r.choice((";", ";;", "; ", ";\n--\n")).join([sql, *(_filled(r, r.choice(STATEMENTS)) for _ in range(2))])
    if kind == "soup":
        words = re.findall(r"'[^']*'|\w+|\S", " ".join(_filled(r, r.choice(STATEMENTS)) for _ in range(3)))
        return " ".join(r.choice(words) for _ in range(r.randrange(1, 15)))
    return _disguised(r, sql) if kind == "disguised" else sql


def _option_values(option: str) -> tuple[str, ...]:
    """Values of an option; those that are not random make read_csv keep what it refuses of a Parquet file."""
    kept = {"columns": "{{'a': 'INT'}}", "store_rejects": "true", "ignore_errors": "true", "auto_detect": "false"}
    if option in kept:
        return (kept[option],)
    return (
        ("'t'", "'kept'", "'abs'") if option.startswith("rejects") else ("true", "false", "'t'", "1", "['a']", "NULL")
    )


def _inside(r: random.Random, wrapper: str, sql: str) -> str:
    return _filled(r, wrapper.replace("{s}", "\0s").replace("{q}", "\0q")).replace("\0s", sql).replace(
        "\0q", sql.replace("'", "''")
    )  # fmt: skip


def _filled(r: random.Random, sql: str) -> str:
    source = r.choice(
        ("'{p}'", "{f}('{p}')", "{f}(['{p}'])", "{f}('{p}', x := 1)", "(FROM '{p}')", '"{p}"', "{f}('FROM t')")
    )
    sql = sql.replace("{r}", source).replace("{f}", _spelled(r, r.choice(READERS))).replace("{q}", "FROM ''{p}''")
    while "{p}" in sql:
        sql = sql.replace("{p}", r.choice(PATHS), 1)
    return sql.replace("{{", "{").replace("}}", "}")


def _spelled(r: random.Random, name: str) -> str:
    return r.choice(
        (name, name, name.upper(), f'"{name}"', f"main.{name}", f'system.main."{name.upper()}"', f"pg_catalog.{name}")
    )


def _disguised(r: random.Random, sql: str) -> str:
    out = []
    for word in re.split(r"( )", sql):
        if word == " " and r.random() < 0.3:
            out.append(r.choice(SPACES))
        elif word.isalpha() and r.random() < 0.3:
            out.append("".join(r.choice((c.lower(), c.upper())) for c in word))
        else:
            out.append(word)
    text = "".join(out)
    if r.random() < 0.2:
        text = (
            r.choice(SPACES)
            + text
            + r.choice((";", ";--", "/*", "\0", ";\0DROP TABLE kept", "\\", "$$", "'", ";\ud800"))
        )
    if r.random() < 0.1:
        at = r.randrange(len(text) + 1)
        text = (
            text[:at]
            + r.choice(("\0", "\u202e", "ﬀ", "'", '"', "$x$", "U&'\\0041'", "E'\\x41'", ")", "(", ";", "0x"))
            + text[at:]
        )
    return text


def every_function(connection: duckdb.DuckDBPyConnection, kinds: Sequence[str]) -> list[str]:
    """Names of all functions of the installed DuckDB of some kinds: table, table_macro, pragma, scalar, ..."""
    wanted = ", ".join(f"'{k}'" for k in kinds)
    sql = f"SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type IN ({wanted}) ORDER BY 1"
    return [name for (name,) in connection.execute(sql).fetchall()]
