"""Opens or queries a warehouse or a capture in one line: `tw.open` and `tw.query`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from tracewarehouse.database.temporary import TemporaryFolder
from tracewarehouse.ingest.capture.locations import is_remote
from tracewarehouse.ingest.errors import NoCaptureError
from tracewarehouse.ingest.lake.warehouse_folder import holds_other_files
from tracewarehouse.queries.result import QueryResult
from tracewarehouse.warehouse import Warehouse, open_warehouse

_CAPTURES = (".pb", ".json", ".gz")  # ends of URIs that are files, not warehouses


class CaptureWarehouse(Warehouse):
    """A temporary warehouse of the captures at a path or URI; the end of the program, or of `with`, removes it."""

    def __init__(self, path: str | os.PathLike[str], sql: str | os.PathLike[str] | None = None) -> None:
        from tracewarehouse.ingest.capture.remote import local_copy
        from tracewarehouse.ingest.devices.joined_hosts import find_whole_captures

        captures = find_whole_captures(local_copy(path))
        self._folder_of_its_own = TemporaryFolder()
        super().__init__(self._folder_of_its_own.path / "warehouse", sql)
        self.capture = path
        for capture in captures:
            self.ingest_capture(capture)

    def __repr__(self) -> str:
        return f"CaptureWarehouse({os.fspath(self.capture)!r})"

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._folder_of_its_own.close()


def open_path(
    path: str | os.PathLike[str] = "warehouse",
    *,
    create: bool = False,
    sql: str | os.PathLike[str] | None = None,
    engine: Literal["duckdb", "spark"] = "duckdb",
    master: str | None = None,
) -> Warehouse:
    """Open a warehouse, or a capture as a warehouse of its own.

    Args:
        path: the folder or URI of a warehouse (see `tracewarehouse.warehouse.open_warehouse`); or a capture, a folder
            of captures, or their URI, which are ingested into a temporary warehouse.
        create: create the folder of a warehouse if it does not exist, to ingest into it; then no capture is opened.
        sql: a folder with your own metrics and models, laid out like the package's sql/.
        engine: the engine that answers queries; `spark` needs a warehouse and the extra `spark`.
        master: where Spark runs; see `tracewarehouse.spark.connection.connect`.

    Raises:
        WarehouseError: there is nothing at the path, or it is neither a warehouse nor a capture; or there is no Spark.
        CaptureError: a capture cannot be read.
        MetricError: a definition in `sql` is not valid, or has the name of one in the package.
    """
    if engine == "spark":
        from tracewarehouse.spark.warehouse import open_spark

        return open_spark(path, sql=sql, master=master)
    if create or not _may_hold_captures(path):
        return open_warehouse(path, create=create, sql=sql)
    try:
        return CaptureWarehouse(path, sql)
    except NoCaptureError:
        return open_warehouse(path, sql=sql)  # says what is wrong


def query(target: str | os.PathLike[str], sql: str, /, **parameters: Any) -> QueryResult:
    """Ask one question of a warehouse or a capture.

    Args:
        target: a warehouse or a capture, as for `open_path`.
        sql: one SELECT, with parameters written as `$name`.
        **parameters: values of the parameters.

    Raises:
        QueryError: the query was refused or failed.
        WarehouseError: there is nothing at the path, or it cannot be read.
        CaptureError: a capture cannot be read.
    """
    with open_path(target) as warehouse:
        return warehouse.query(sql, **parameters)


def _may_hold_captures(path: str | os.PathLike[str]) -> bool:
    if is_remote(path):
        return os.fspath(path).endswith(_CAPTURES)
    folder = Path(path)
    if not folder.is_dir():
        return folder.is_file()
    return holds_other_files(folder)
