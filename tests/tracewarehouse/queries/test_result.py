"""A result is the same whether its rows are held as Python values or as an Arrow table."""

from __future__ import annotations

import math

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracewarehouse.queries.read_only import Limits, run_query
from tracewarehouse.queries.result import ARROW_TYPES, QueryResult, TypedRows

_INTEGERS = {f"{sign}{name}": (sign, bits) for sign in ("", "U") for name, bits in
             (("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64))}  # fmt: skip
ROWS = "SELECT * FROM (VALUES (1, 'a', 0.5e0), (NULL, 'b', NULL), (3, 'a', 2e0)) AS t(n, name, share)"
OTHERS = (
    "DATE '2026-01-02'", "1.50", "UUID '00000000-0000-0000-0000-000000000001'", "[1, 2]", "{'a': 1}", "MAP {'a': 1}",
    "INTERVAL 1 DAY", "TIMESTAMP_NS '2026-01-02 03:04:05.123456789'", "'x'::BLOB", "'a'::ENUM('a', 'b')",
)  # fmt: skip


_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    """One for all: to open one takes longer than most queries here."""
    return duckdb.connect(":memory:", config={"threads": 1})


def both(database: duckdb.DuckDBPyConnection, sql: str) -> tuple[QueryResult, QueryResult]:
    return run_query(database, sql, as_values=True), run_query(database, sql)


def _values(kind: str) -> st.SearchStrategy[object]:
    if kind in _INTEGERS:
        sign, bits = _INTEGERS[kind]
        return st.integers(0, 2**bits - 1) if sign else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return {
        "HUGEINT": st.integers(-(10**38) + 1, 10**38 - 1),  # what decimal128 holds
        "BOOLEAN": st.booleans(),
        "FLOAT": st.floats(width=32),
        "DOUBLE": st.floats(),
        "VARCHAR": _TEXTS,
        "VARCHAR[]": st.lists(st.none() | _TEXTS, max_size=2),
    }[kind]


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return f"'{value}'" if isinstance(value, float) else str(value)


@given(data=st.data(), kinds=st.lists(st.sampled_from(sorted(ARROW_TYPES)), min_size=1, max_size=4))
def test_values_of_every_type_become_the_table_that_duckdb_gives(
    database: duckdb.DuckDBPyConnection, data: st.DataObject, kinds: list[str]
) -> None:
    rows = data.draw(st.lists(st.tuples(*(st.none() | _values(k) for k in kinds)), max_size=3))
    columns = ", ".join(f"CAST(c{i} AS {k}) AS c{i % 3}" for i, k in enumerate(kinds))  # the fourth has a name again
    names = ", ".join(f"c{i}" for i in range(len(kinds)))
    literals = ", ".join(f"({', '.join(map(_literal, r))})" for r in [*rows, [None] * len(kinds)])
    sql = f"SELECT {columns} FROM (VALUES {literals}) AS t({names}) LIMIT {len(rows)}"
    values, table = both(database, sql)
    assert isinstance(values._held, TypedRows)
    assert values.columns == table.columns
    assert len(values) == len(table) == len(rows)
    assert list(map(repr, values.rows())) == list(map(repr, table.rows()))
    assert values.arrow().schema == table.arrow().schema
    assert repr(values.arrow().to_pydict()) == repr(table.arrow().to_pydict())


@pytest.mark.parametrize("expression", OTHERS)
def test_what_python_holds_otherwise_than_arrow_stays_arrow(
    database: duckdb.DuckDBPyConnection, expression: str
) -> None:
    values, table = both(database, f"SELECT 1 AS n, {expression} AS other")
    assert not isinstance(values._held, TypedRows)
    assert values.arrow().equals(table.arrow())


def test_what_arrow_needs_is_asked_again_in_one_transaction(database: duckdb.DuckDBPyConnection) -> None:
    """A result that was begun and is not wanted does not block the connection, and what changes something runs once."""
    sql = "SELECT i, DATE '2026-01-02' AS day FROM range(100000) AS t(i)"
    assert len(run_query(database, sql, as_values=True)) == 100_000
    database.execute("CREATE TABLE days (day DATE)")
    insert = "INSERT INTO days VALUES (DATE '2026-01-02') RETURNING day"
    assert len(run_query(database, insert, as_values=True, read_only=False)) == 1
    assert run_query(database, "SELECT count(*) FROM days", as_values=True).scalar() == 1


def test_every_method_gives_the_same(database: duckdb.DuckDBPyConnection) -> None:
    values, table = both(database, ROWS)
    assert isinstance(values._held, TypedRows)
    for result in (values, table):
        assert result.dicts()[1] == {"n": None, "name": "b", "share": None}
        assert result.distinct("name") == {"a", "b"}
        assert result.part(1, 5).rows() == [(None, "b", None), (3, "a", 2.0)]
        assert result.kept([True, False, True]).rows() == [(1, "a", 0.5), (3, "a", 2.0)]
        assert result.kept([False] * 3).columns == ["n", "name", "share"]
        assert list(result) == result.rows()
        assert str(result) == str(table)
        assert result._repr_html_() == table._repr_html_()
        assert result.pl().equals(table.pl())
        with pytest.raises(ValueError, match=r"shape \(3, 3\)"):
            result.scalar()
    assert run_query(database, "SELECT 7", as_values=True).scalar() == 7


def test_nothing_is_a_result_too(database: duckdb.DuckDBPyConnection) -> None:
    for sql in (f"{ROWS} WHERE false", "SET threads = 1"):
        values = run_query(database, sql, as_values=True, read_only=False)
        assert values.rows() == []
        assert values.arrow().equals(run_query(database, sql, read_only=False).arrow())


def test_a_limit_of_rows_holds(database: duckdb.DuckDBPyConnection) -> None:
    result = run_query(database, ROWS, as_values=True, limits=Limits(rows=2))
    assert (len(result), result.is_cut) == (2, True)


def test_a_double_that_is_no_number_stays_one(database: duckdb.DuckDBPyConnection) -> None:
    values, _ = both(database, "SELECT 'nan'::DOUBLE, '-inf'::DOUBLE, -0.0::DOUBLE")
    nan, infinity, zero = values.rows()[0]
    assert math.isnan(nan)
    assert infinity == -math.inf
    assert math.copysign(1, zero) == -1
