"""A read-only query changes nothing and reads nothing but the lake, whatever it looks like."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracewarehouse.ingest.errors import QueryError
from tracewarehouse.queries.read_only import restrict, run_query


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "warehouse" / "lake"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"]}), folder / "t.parquet")
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    pq.write_table(pa.table({"secret": ["hidden"]}), folder / "t.parquet")
    (folder / "t.csv").write_text("secret\nhidden\n")
    return folder


@pytest.fixture
def connection(lake: Path, tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(":memory:")
    connection.execute(f"CREATE VIEW t AS SELECT * FROM read_parquet(['{lake}/t.parquet'])")
    connection.execute("CREATE TABLE kept AS SELECT 1 AS a")
    connection.execute("CREATE MACRO own_rows(n) AS TABLE SELECT * FROM range(n)")
    connection.execute("CREATE MACRO query(text) AS TABLE SELECT 1")
    restrict(connection, [str(lake.resolve())], tmp_path / "spill")
    yield connection
    connection.close()


READS = [
    "SELECT a FROM t",
    "SELECT a FROM t;",
    "/* ; */ SELECT a FROM t -- ; DROP TABLE kept",
    "FROM t",
    "TABLE t",
    "VALUES (1)",
    "WITH x AS (SELECT 1) FROM x",
    "WITH RECURSIVE x AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM x WHERE n < 3) FROM x",
    "SELECT 1 UNION SELECT 2",
    "DESCRIBE t",
    "DESCRIBE SELECT 1",
    "SUMMARIZE t",
    "SHOW TABLES",
    "SHOW ALL TABLES",
    "EXPLAIN FROM t",
    "explain analyze FROM t",
    "-- why\nEXPLAIN (FORMAT json) FROM t",
    "FROM own_rows(3)",
    "FROM range(3), unnest([1, 2])",
    "PIVOT t ON a IN (1, 2) USING count(*)",
    "FROM duckdb_columns()",
    "FROM query_table('t')",
    "FROM read_parquet('{lake}/*.parquet', filename = true, union_by_name := true)",
    "SELECT 'COPY t TO ''x''' AS text",
    "SELECT a AS copy FROM t",
]


@pytest.mark.parametrize("sql", READS)
def test_a_query_that_reads_is_run(connection: duckdb.DuckDBPyConnection, lake: Path, sql: str) -> None:
    assert run_query(connection, sql.replace("{lake}", str(lake))).rows()


WRITES = [
    "COPY t TO '{lake}/new.csv'",
    "COPY (FROM t) TO '{lake}/new.csv'",
    "COPY kept FROM '{lake}/t.parquet'",
    "WITH x AS (COPY t TO '{lake}/new.csv') FROM x",
    "WITH x AS (INSERT INTO kept VALUES (2) RETURNING *) FROM x",
    "WITH x AS (DELETE FROM kept RETURNING *) FROM x",
    "WITH x AS (UPDATE kept SET a = 9 RETURNING *) FROM x",
    "((WITH x AS (COPY t TO '{lake}/new.csv') FROM x))",
    "WITH x AS MATERIALIZED (COPY t TO '{lake}/new.csv') VALUES (1)",
    "WITH y AS (SELECT 1) (WITH x AS (COPY t TO '{lake}/new.csv') FROM x)",
    "SELECT * FROM (WITH x AS (COPY t TO '{lake}/new.csv') FROM x)",
    "DESCRIBE (WITH x AS (COPY t TO '{lake}/new.csv') FROM x)",
    "EXPLAIN ANALYZE COPY t TO '{lake}/new.csv'",
    "EXPLAIN ANALYZE INSERT INTO kept VALUES (2)",
    "/**/EXPLAIN/**/ANALYZE/**/COPY t TO '{lake}/new.csv'",
    "EXPLAIN (ANALYZE, FORMAT json) COPY t TO '{lake}/new.csv'",
    "EXPLAIN (FORMAT /* ) SELECT 1 -- */ json, ANALYZE) COPY t TO '{lake}/new.csv'",
    "EXPLAIN ANALYZE WITH x AS (COPY t TO '{lake}/new.csv') FROM x",
    "EXPLAIN EXPLAIN ANALYZE COPY t TO '{lake}/new.csv'",
    "FROM query('WITH x AS (COPY t TO ''{lake}/new.csv'') FROM x')",
    "FROM system.main.\"QUERY\"('FROM t')",
    "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "PRAGMA json_execute_serialized_sql('x')",
    "EXPORT DATABASE '{lake}'",
    "IMPORT DATABASE '{lake}'",
    "ATTACH '{lake}/new.db'",
    "ATTACH ':memory:' AS m",
    "DETACH memory",
    "CREATE TABLE new AS FROM t",
    "CREATE TEMP TABLE new AS FROM t",
    "CREATE VIEW new AS FROM t",
    "CREATE MACRO new() AS 1",
    "CREATE SECRET s (TYPE s3)",
    "INSERT INTO kept VALUES (2)",
    "UPDATE kept SET a = 2",
    "DELETE FROM kept",
    "TRUNCATE kept",
    "DROP TABLE kept",
    "ALTER TABLE kept ADD COLUMN c INTEGER",
    "COMMENT ON TABLE kept IS 'x'",
    "MERGE INTO kept USING t ON true WHEN MATCHED THEN DELETE",
    "SELECT 1; DROP TABLE kept",
    "SELECT 1; SELECT 2",
    "SELECT a INTO new FROM t",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{lake}/t.parquet'",
    "FORCE INSTALL httpfs FROM core",
    "SET threads = 1",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "RESET enable_external_access",
    "SET VARIABLE x = 1",
    "PRAGMA enable_external_access",
    "PRAGMA database_list",
    "PRAGMA disable_verification",
    "CALL checkpoint()",
    "FROM checkpoint()",
    "FROM force_checkpoint()",
    "FROM enable_logging()",
    "CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "COMMIT",
    "USE memory",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "PIVOT (SELECT * FROM query('CHECKPOINT')) ON a USING count(*)",
    "PIVOT t ON a USING count(*) ORDER BY 1",
    "UPDATE EXTENSIONS",
    "",
    "   ",
    "-- only a comment",
    ";",
]


PIVOTS = {
    "one column": ("PIVOT p ON kind USING sum(n) GROUP BY device", [(0, 10, 5), (1, None, 7)]),
    "of numbers": ("PIVOT p ON device USING count(*) GROUP BY kind", [("a", 1, 0), ("b", 1, 1)]),
    "inside": ("SELECT * FROM (PIVOT p ON kind USING sum(n)) ORDER BY device", [(0, 10, 5), (1, None, 7)]),
    "by WITH": ("WITH q AS (FROM p WHERE n > 5) PIVOT q ON kind USING sum(n)", [(0, 10, None), (1, None, 7)]),
    "of a part": ("PIVOT (FROM p WHERE n > 5) ON kind USING count(*) GROUP BY device", [(0, 1, 0), (1, 0, 1)]),
}


@pytest.mark.parametrize(("sql", "rows"), PIVOTS.values(), ids=PIVOTS)
def test_a_pivot_looks_up_its_values(connection: duckdb.DuckDBPyConnection, sql: str, rows: list[object]) -> None:
    values = "(0, 'a', 10), (0, 'b', 5), (1, 'b', 7)"
    connection.execute(f"CREATE OR REPLACE VIEW p AS SELECT * FROM (VALUES {values}) AS p (device, kind, n)")
    assert sorted(run_query(connection, sql).rows(), key=str) == rows
    types = connection.execute("SELECT count(*) FROM duckdb_types() WHERE logical_type = 'ENUM' AND NOT internal")
    assert types.fetchall() == [(0,)]


@pytest.mark.parametrize("sql", WRITES)
def test_a_query_that_does_more_is_refused(connection: duckdb.DuckDBPyConnection, lake: Path, sql: str) -> None:
    before = sorted(lake.iterdir())
    with pytest.raises(QueryError):
        run_query(connection, sql.format(lake=lake))
    assert sorted(lake.iterdir()) == before
    assert run_query(connection, "FROM kept").rows() == [(1,)]
    assert run_query(connection, "SELECT count(*) FROM duckdb_tables() WHERE NOT internal").scalar() == 1
    assert run_query(connection, "SELECT value FROM duckdb_settings() WHERE name = 'lock_configuration'").scalar() in (
        "true",
        "1",
    )


LOOKS_OUTSIDE = [
    "FROM '{outside}/t.parquet'",
    "FROM '{outside}/t.csv'",
    "FROM '/etc/passwd'",
    "FROM read_csv('/etc/passwd')",
    "FROM read_csv_auto('{outside}/t.csv')",
    "FROM read_text('/etc/passwd')",
    "FROM read_text(['{lake}/t.parquet', '/etc/passwd'])",
    "FROM read_blob('/etc/passwd')",
    "FROM read_json('/etc/passwd')",
    "FROM read_ndjson('/etc/passwd')",
    "FROM read_parquet('{outside}/t.parquet')",
    "FROM parquet_scan('{outside}/t.parquet')",
    "FROM read_parquet('{lake}/../../outside/t.parquet')",
    "FROM read_parquet('{lake}/nowhere/../../../outside/t.parquet')",
    "FROM read_parquet('file://{outside}/t.parquet')",
    "FROM read_parquet('{lake}/link/t.parquet')",
    "FROM read_text('{lake}/passwd')",
    "FROM read_text('{lake}-beside/t.csv')",
    "FROM read_text('/proc/self/environ')",
    "FROM read_text('/dev/stdin')",
    "FROM read_text('http://localhost/x')",
    "FROM glob('/*')",
    "FROM glob('{outside}/*')",
    "FROM glob('{lake}/../../*')",
    "FROM sniff_csv('/etc/passwd')",
    "FROM parquet_metadata('{outside}/t.parquet')",
    "FROM parquet_schema('{outside}/t.parquet')",
    "FROM parquet_kv_metadata('{outside}/t.parquet')",
    "FROM query_table('{outside}/t.parquet')",
    "FROM query('FROM read_text(''/etc/passwd'')')",
    "FROM read_duckdb('{outside}/x.db')",
    "FROM duckdb_secrets()",
    "DESCRIBE FROM '{outside}/t.csv'",
    "SUMMARIZE '{outside}/t.parquet'",
    "SELECT getenv('HOME')",
    "SELECT (SELECT content FROM read_text('/etc/passwd'))",
    "WITH x AS (FROM read_text('/etc/passwd')) FROM x",
    "FROM t WHERE EXISTS (FROM read_text('/etc/passwd'))",
    "EXPLAIN ANALYZE FROM read_text('/etc/passwd')",
]


@pytest.mark.parametrize("sql", LOOKS_OUTSIDE)
def test_a_query_sees_no_file_outside_the_lake(
    connection: duckdb.DuckDBPyConnection, lake: Path, outside: Path, sql: str
) -> None:
    (lake / "link").symlink_to(outside)
    (lake / "passwd").symlink_to("/etc/passwd")
    beside = lake.with_name("lake-beside")
    beside.mkdir()
    (beside / "t.csv").write_text("secret")
    with pytest.raises(QueryError):
        run_query(connection, sql.format(lake=lake, outside=outside))


def test_a_parameter_cannot_name_a_file_outside(connection: duckdb.DuckDBPyConnection, outside: Path) -> None:
    with pytest.raises(QueryError):
        run_query(connection, "FROM read_text($path)", {"path": str(outside / "t.csv")})
    with pytest.raises(QueryError):
        run_query(connection, "FROM query($text)", {"text": "FROM t"})


def test_python_variables_are_not_tables(connection: duckdb.DuckDBPyConnection) -> None:
    secret = pa.table({"a": [1]})
    with pytest.raises(QueryError, match="secret"):
        run_query(connection, "FROM secret")
    assert secret.num_rows == 1


def test_the_refusal_says_how_to_lift_it(connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(QueryError, match=r"found DROP.*--unrestricted.*read_only=False"):
        run_query(connection, "DROP TABLE kept")
    with pytest.raises(QueryError, match=r"only this warehouse"):
        run_query(connection, "FROM '/etc/passwd.parquet'")
    with pytest.raises(QueryError, match=r"read_csv\(\) is not for read-only.*--unrestricted"):
        run_query(connection, "FROM read_csv('/etc/passwd')")
    with pytest.raises(QueryError, match=r"encryption_config of read_parquet\(\) is not for read-only"):
        run_query(connection, "FROM read_parquet('t.parquet', ENCRYPTION_CONFIG = {footer_key: 'a'})")


def test_large_queries_spill_although_files_are_closed(lake: Path, tmp_path: Path) -> None:
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET memory_limit = '60MB'")
        connection.execute("SET threads = 1")
        restrict(connection, [str(lake.resolve())], tmp_path / "spill")
        texts = "SELECT CAST(hash(range) AS VARCHAR) || repeat('x', 40) AS b FROM range(3_000_000)"
        counted = run_query(connection, f"SELECT count(*), max(b) FROM ({texts} ORDER BY b)").rows()
        assert counted[0][0] == 3_000_000
        assert (tmp_path / "spill").exists()
