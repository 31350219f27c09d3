"""What reads the warehouse without tracewarehouse sees each run once, as it is now: warehouse.duckdb and the files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.dataset as ds
import pytest
from tiny_capture import write_capture_directory

import tracewarehouse as tw
from tracewarehouse.cli import run
from tracewarehouse.cli.watch import Failed, Watcher
from tracewarehouse.ingest.capture.run_options import RunOptions
from tracewarehouse.ingest.capture.sources import find_captures

ROOT = Path(__file__).resolve().parents[3]


def names(folder: Path) -> list[str]:
    """Names of the runs, as any DuckDB reads them."""
    with duckdb.connect(str(folder / "warehouse.duckdb"), read_only=True) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM runs ORDER BY name").fetchall()]


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A capture that is not in the warehouse."""
    return write_capture_directory(tmp_path / "other", "other", period=170)


class TestDatabase:
    def test_ingest_refresh_remove_and_watch_bring_it_up_to_date(
        self, folder: Path, capture: Path, other: Path
    ) -> None:
        run_of = ["-w", str(folder)]
        assert run([*run_of, "build"]) == 0
        assert run([*run_of, "ingest", str(capture), "--name", "renamed"]) == 0
        assert names(folder) == ["renamed"]
        assert run([*run_of, "ingest", str(other), "--name", "second"]) == 0
        assert names(folder) == ["renamed", "second"]
        assert run([*run_of, "remove", "second"]) == 0
        assert names(folder) == ["renamed"]
        with tw.open(folder) as wh:
            wh.ingest(other, name="third")
            assert names(folder) == ["renamed", "third"]
            wh.remove("third")
            events = list(Watcher(wh, str(other), settle=0).look())
            assert not [e for e in events if isinstance(e, Failed)]
            assert len(names(folder)) == 2
            assert wh.fsck() == []

    def test_none_is_made_where_nobody_asked_for_one(self, folder: Path, capture: Path) -> None:
        with tw.open(folder) as wh:
            wh.ingest(capture, name="renamed")
            assert wh.is_database_current()
        assert not (folder / "warehouse.duckdb").exists()

    def test_it_is_not_written_where_nothing_changed(self, folder: Path, capture: Path) -> None:
        with tw.open(folder) as wh:
            before = wh.build().stat().st_ino
            wh.ingest(capture)
            assert (folder / "warehouse.duckdb").stat().st_ino == before

    def test_a_damaged_one_is_replaced(self, folder: Path, other: Path) -> None:
        (folder / "warehouse.duckdb").write_bytes(b"no database")
        with tw.open(folder) as wh:
            assert not wh.is_database_current()
            wh.ingest(other, name="second")
        assert "second" in names(folder)

    def test_metrics_of_a_users_own_are_not_lost(self, folder: Path, other: Path, tmp_path: Path) -> None:
        """Without --sql ingest extends the rows and keeps them; nothing else may be built in their place."""
        own = tmp_path / "own"
        (own / "metrics").mkdir(parents=True)
        packaged = ROOT / "tracewarehouse" / "sql" / "serving" / "ttft_v1.sql"
        mine = packaged.read_text(encoding="utf-8").replace("ttft", "my_ttft")
        mine = re.sub("status: stable", "status: experimental", mine)
        (own / "metrics" / "my_ttft_v1.sql").write_text(mine, encoding="utf-8")
        with tw.open(folder, sql=own) as wh:
            wh.build()
        with tw.open(folder) as wh:
            wh.ingest(other, name="second")
        assert names(folder) == ["second", "tiny-tp2"]
        with duckdb.connect(str(folder / "warehouse.duckdb")) as connection:
            assert connection.execute("SELECT count(*) > 0 FROM metrics.my_ttft").fetchall() == [(True,)]
            connection.execute("UPDATE store.made SET definitions = 'older'")
        with tw.open(folder) as wh, pytest.raises(tw.WarehouseError, match=r"my_ttft.*--sql if they are your own"):
            wh.remove("second")
        with tw.open(folder, sql=own) as wh:
            assert wh.update_database()
        assert names(folder) == ["tiny-tp2"]

    def test_a_moved_warehouse_answers_or_says_what_to_do(self, folder: Path, tmp_path: Path) -> None:
        with tw.open(folder) as wh:
            wh.build()
        moved = folder.rename(tmp_path / "elsewhere")
        assert names(moved) == ["tiny-tp2"]  # a small table, which is in the file itself
        for table in ("ops", "metrics.tpot", "models.leaf_ops"):
            with (
                duckdb.connect(str(moved / "warehouse.duckdb"), read_only=True) as connection,
                pytest.raises(duckdb.IOException, match="run-tw-build"),
            ):
                connection.execute(f"FROM {table}")
        with tw.open(moved) as wh:
            assert not wh.is_database_current()
            assert wh.update_database()
        assert names(moved) == ["tiny-tp2"]

    @pytest.mark.skipif(duckdb.__version__ < "2", reason="DuckDB 1.5 reads the file with the mark all the same")
    def test_the_mark_costs_a_query_nothing(self, folder: Path) -> None:
        """DuckDB plans a query without it."""
        with tw.open(folder) as wh:
            run_id = wh.runs().dicts()[0]["run_id"]
            database = wh.build()
        with duckdb.connect(str(database), read_only=True) as connection:
            sql = f"EXPLAIN SELECT sum(self_ps) FROM ops WHERE run_id = '{run_id}'"
            plan = str(connection.execute(sql).fetchall())
        assert "PARQUET" in plan.upper()
        assert plan.upper().count("READ_PARQUET") == 1


class TestFiles:
    @pytest.fixture
    def replaced(self, folder: Path, capture: Path) -> tuple[Path, int]:
        """A warehouse whose run has a replaced version, which readers may still use, and how many ops it has."""
        with tw.open(folder) as wh:
            wh.ingest_capture(find_captures(capture)[0], RunOptions(name="renamed"))
            return folder, wh.query("SELECT count(*) FROM ops").scalar()

    def test_a_replaced_version_is_not_counted(self, replaced: tuple[Path, int]) -> None:
        folder, count = replaced
        assert len(list(folder.glob("lake/*/*/ops*.parquet"))) > 1  # what a pattern would find
        with tw.open(folder) as wh:
            files = wh.files("ops")
        assert pl.scan_parquet(files).select(pl.len()).collect().item() == count
        assert ds.dataset(files).count_rows() == count
        assert duckdb.execute("SELECT count(*) FROM read_parquet(?)", [files]).fetchall() == [(count,)]

    def test_manifests_tell_who_has_no_python(self, replaced: tuple[Path, int]) -> None:
        """DuckDB alone, also of a warehouse that was moved: as docs/reading.md has it."""
        folder, count = replaced
        page = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
        [sql] = re.findall(r"```sql\n(SET VARIABLE.*?)```", page, re.DOTALL)
        moved = shutil.move(folder, folder.with_name("elsewhere"))
        with duckdb.connect() as connection:
            for statement in sql.replace("'warehouse/", f"'{moved}/").split(";"):
                if statement.strip():
                    connection.execute(statement)
            assert connection.fetchall() == [(count,)]

    def test_an_unknown_table_is_told_from_a_known_one(self, folder: Path) -> None:
        with tw.open(folder) as wh:
            with pytest.raises(tw.WarehouseError, match="did you mean ops"):
                wh.files("op")
            with pytest.raises(tw.WarehouseError, match=r"there are runs, quality_flags"):
                wh.files("nothing-of-the-kind")
