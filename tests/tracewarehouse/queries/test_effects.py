"""No statement has an effect, whatever it looks like: observed from outside, not by whether an error came."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz.judging import run
from fuzz.query import SECRET, CommandTarget, QueryTarget, Sandbox, every_function

from tracewarehouse.ingest.errors import QueryError
from tracewarehouse.queries import read_only
from tracewarehouse.queries.read_only import run_query

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are observed by inotify")


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Its table macros are looked up once, which takes longer than a query; that none is made is observed."""
    box = Sandbox(tmp_path_factory.mktemp("closed"), every=200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_only, "_table_macros", functools.cache(read_only._table_macros))
        yield box
    box.close()


KEEPS_REJECTED = """
SELECT count(*) FROM read_csv('{{l}}/t.parquet', columns = {{{{'a': 'INT'}}}}, auto_detect = false,
  ignore_errors = true, store_rejects = true, rejects_table = '{}')
"""
"""Makes a temporary table of a name, and with it hides a view or table of that name."""


@pytest.mark.parametrize(
    ("sql", "effect"),
    [
        ("FROM read_text('{o}/t.csv')", "opened"),
        ("FROM '{o}/t.csv'", "the answer tells what stands outside"),
        ("FROM glob('{o}/*')", "the answer tells what stands outside"),
        ("FROM '{l}/link.csv'", "the answer tells what stands outside"),
        ("COPY t TO '{l}/new.csv'", "made"),
        ("COPY t TO '{o}/new.csv'", "made"),
        ("ATTACH '{l}/new.db' AS x", "state changed"),
        ("SET VARIABLE v = 1", "state changed"),
        ("SET enable_object_cache = true; SET preserve_insertion_order = false", "state changed"),
        ("CREATE MACRO m() AS 1", "state changed"),
        ("CREATE VIEW v AS SELECT 1", "state changed"),
        ("CREATE SEQUENCE s", "state changed"),
        ("INSERT INTO kept VALUES (2)", "state changed"),
        ("PREPARE p AS SELECT 1", "state changed"),
        (KEEPS_REJECTED.format("kept"), "state changed"),
        (KEEPS_REJECTED.format("t"), "state changed"),
        ("FROM '{l}/t.parquet'", ""),
        ("SELECT * FROM t", ""),
    ],
)
def test_the_observer_sees_what_an_open_connection_does(tmp_path: Path, sql: str, effect: str) -> None:
    """An observer that never sees anything would let everything pass."""
    box = Sandbox(tmp_path, is_restricted=False)
    found, answer = box.effects(sql.format(o=box.outside, l=box.lake))
    box.close()
    assert answer == "answered"
    assert bool(found) == bool(effect)
    assert not effect or any(effect in f for f in found)


def test_every_function_of_this_duckdb_that_gives_tables(sandbox: Sandbox) -> None:
    """All of them, by the catalogue of the installed version: new ones are tried as soon as there are any."""
    names = every_function(sandbox.connection, ["table", "table_macro", "pragma"])
    assert len(names) > 100
    outside, lake = sandbox.outside, sandbox.lake
    arguments = [
        "",
        f"'{outside}/t.csv'",
        f"['{outside}/t.csv']",
        f"'{outside}/t.db', 'secret'",
        "'FROM t'",
        "'t'",
        "1",
    ]
    arguments += [f"'{lake}/new.csv'", "'memory', 'x'", "NULL", "t", f"'{outside}/{SECRET}.parquet', 'a', 1"]
    answered = set()
    for name in names:
        for at, argument in enumerate(arguments):
            calls = (f"CALL {name}({argument})", f"PRAGMA {name}({argument})")
            for sql in (f'FROM "{name}"({argument})', calls[at % 2]):
                found, answer = sandbox.effects(sql)
                assert not found, (sql, found)
                if answer == "answered":
                    answered.add(name)
    assert not sandbox.changes()
    assert {"range", "duckdb_settings"} <= answered
    refused = {"query", "checkpoint", "enable_logging", "read_duckdb", "duckdb_secrets", "json_execute_serialized_sql"}
    assert not answered & (refused & set(names))


def test_every_option_of_every_function_that_reads_files(sandbox: Sandbox) -> None:
    named = sandbox.connection.execute(
        "SELECT DISTINCT function_name, unnest(parameters) FROM duckdb_functions() WHERE function_type = 'table' "
        "AND function_name IN (SELECT function_name FROM duckdb_functions() WHERE list_contains(parameters, 'path'))"
    ).fetchall()
    assert len(named) > 100
    answered = set()
    for name, option in named:
        sql = f"SELECT count(*) FROM {name}('{sandbox.lake}/t.parquet', {option} = true)"
        found, answer = sandbox.effects(sql)
        assert not found, (sql, found)
        if answer == "answered":
            answered.add((name, option))
    assert not sandbox.changes()
    assert ("read_parquet", "filename") in answered
    assert not {option for _, option in answered} - read_only._OPTIONS


def test_what_a_query_makes_ends_with_it(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a function that does more than read should pass the list of those that only read."""
    monkeypatch.setattr(read_only, "_TABLE_FUNCTIONS", read_only._TABLE_FUNCTIONS | {"read_csv"})
    monkeypatch.setattr(read_only, "_options", lambda function: set())
    for name in ("t", "kept"):
        found, answer = sandbox.effects(KEEPS_REJECTED.format(name).format(l=sandbox.lake))
        assert (found, answer) == ([], "answered")
    answers = []
    for _ in range(2):
        run_query(sandbox.connection, "SELECT setseed(0.5)")
        answers.append(run_query(sandbox.connection, "SELECT random()").rows())
    assert answers[0] != answers[1]
    assert not sandbox.changes()


def test_every_other_function_of_this_duckdb(sandbox: Sandbox) -> None:
    names = every_function(sandbox.connection, ["scalar", "macro", "aggregate"])
    assert len(names) > 500
    path = f"'{sandbox.outside}/t.csv'"
    answered = 0
    for name in names:
        if "sleep" in name:
            continue
        for argument in (path, f"'DROP TABLE kept', {path}"):
            found, answer = sandbox.effects(f'SELECT "{name}"({argument})')
            assert not found, (name, argument, found)
            answered += answer == "answered"
    assert not sandbox.changes()
    assert answered > 100


def test_settings_cannot_be_changed_one_by_one(sandbox: Sandbox) -> None:
    names = [n for (n,) in sandbox.connection.execute("SELECT name FROM duckdb_settings()").fetchall()]
    assert len(names) > 80
    for name in names:
        for sql in (f"SET {name} = '1'", f"RESET {name}", f"PRAGMA {name} = '1'"):
            found, answer = sandbox.effects(sql)
            assert not found, (sql, found)
            assert answer != "answered"
    assert not sandbox.changes()


def test_a_fixed_part_of_the_long_run() -> None:
    target = QueryTarget()
    report = run(target, seed=1, numbers=range(250))
    assert not report.failures
    assert report.accepted > 12
    assert not target.sandbox.changes()


def test_the_command_has_no_effect_either() -> None:
    target = CommandTarget()
    for sql in (
        "COPY runs TO '{o}/new.csv'", "ATTACH '{l}/new.db' AS x", "INSTALL httpfs", "CALL checkpoint()",
        "SET enable_external_access = true", "FROM read_text('{o}/t.csv')", "FROM '{l}/link.csv'",
        "EXPORT DATABASE '{l}/x'", ".shell touch new.csv", "FROM runs; DROP VIEW runs",
    ):  # fmt: skip
        with pytest.raises(QueryError):
            assert target.read(sql.encode()) == [], sql
    assert target.read(b"FROM runs") == []
    assert not run(target, seed=1, numbers=range(2)).failures


def test_parameters_name_no_files(sandbox: Sandbox) -> None:
    for sql in (
        "FROM read_text($p)",
        "FROM glob($p)",
        "SELECT getvariable($p)",
        "FROM query($p)",
        "FROM query_table($p)",
    ):
        found, answer = sandbox.effects(sql, {"p": f"{sandbox.outside}/t.csv"})
        assert not found, (sql, found)
        assert answer != "answered" or "getvariable" in sql


def test_a_kind_of_statement_that_python_does_not_know_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(QueryError, match="expected SELECT"):
        run_query(sandbox.connection, "UPDATE EXTENSIONS")
