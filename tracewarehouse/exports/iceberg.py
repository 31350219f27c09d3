"""Registers the lake's Parquet files as Iceberg tables: metadata alone, no file is copied, changed or moved.

Each table of the lake is a table of the namespace `main` in a SQLite catalogue. An export compares the files of a
table's last snapshot with those of the runs and commits the difference as one snapshot, so that readers see a replaced
run either as it was or as it is.

Files are mapped to columns by name, as they have no field ids: https://iceberg.apache.org/spec/#column-projection.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracewarehouse.exports.files import naming_the_unwritable
from tracewarehouse.ingest.errors import TracewarehouseError, WarehouseError
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION, TABLES, Column, Table

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table as Registered

    from tracewarehouse.ingest.lake.manifest import RunVersion
    from tracewarehouse.warehouse import Warehouse

NAMESPACE = "main"
CATALOGUE = "catalog.db"
_VERSION = "tracewarehouse.schema-version"
_TYPES = {
    "VARCHAR": "string",
    "BOOLEAN": "boolean",
    "INTEGER": "int",
    "BIGINT": "long",
    "DOUBLE": "double",
    "BLOB": "binary",
}
"""Iceberg's types; it has no unsigned integers, so columns of these are left out."""
_RUN_ID = 1
"""Field id of `run_id`, the first column of every table."""


@dataclass(frozen=True)
class IcebergTable:
    """A table of the catalogue after an export, with the numbers of the lake's files that were added and removed.

    Attributes:
        metadata: the file that describes its last snapshot, for readers without a catalogue.
    """

    name: str
    metadata: str
    added: int
    removed: int


def export_iceberg(warehouse: Warehouse, folder: Path) -> list[IcebergTable]:
    """Bring the Iceberg tables in a folder up to date with the runs of a warehouse; returns all tables.

    Args:
        warehouse: the warehouse, on this machine.
        folder: holds `catalog.db`, a SQLite catalogue, and the tables' metadata; it is created if it does not exist.
    """
    try:
        from pyiceberg.catalog.sql import SqlCatalog
        from pyiceberg.exceptions import CommitFailedException
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        raise TracewarehouseError(
            "Iceberg tables need pyiceberg; run `pip install 'tracewarehouse[iceberg]'`"
        ) from None
    if warehouse.lake.filesystem is not None:
        raise WarehouseError(
            f"{warehouse.lake.root}: Iceberg tables can be made of warehouses on this machine; copy it here first"
        )
    runs = warehouse.lake.runs()
    home = folder.resolve()
    try:
        with naming_the_unwritable(folder):
            home.mkdir(parents=True, exist_ok=True)
            catalogue = SqlCatalog("tracewarehouse", uri=f"sqlite:///{home / CATALOGUE}", warehouse=f"file://{home}")
            with closing(catalogue):
                catalogue.create_namespace_if_not_exists(NAMESPACE)
                return [_updated(catalogue, warehouse, runs, table) for table in TABLES.values()]
    except CommitFailedException as error:
        raise TracewarehouseError(
            f"{folder}: another export changed it at the same time; run it again ({error})"
        ) from None
    except SQLAlchemyError as error:
        raise TracewarehouseError(f"{folder / CATALOGUE}: cannot be used: {error.args[0]}") from None


def _updated(catalogue: SqlCatalog, warehouse: Warehouse, runs: Sequence[RunVersion], table: Table) -> IcebergTable:
    """A table, after its changes, if any, have been committed."""
    registered = _registered(catalogue, table)
    there = {task.file.file_path: task.file for task in registered.scan().plan_files()}
    root = warehouse.lake.root
    files = {f"file://{root}/{file}" for run in runs for file in run.files.get(table.name, ())}
    added = [_data_file(name) for name in files - there.keys()]
    removed = [there[name] for name in there.keys() - files]
    if added or removed:
        with registered.transaction() as transaction, transaction.update_snapshot().overwrite() as snapshot:
            for file in removed:
                snapshot.delete_data_file(file)
            for file in added:
                snapshot.append_data_file(file)
    return IcebergTable(table.name, registered.metadata_location, len(added), len(removed))


def _registered(catalogue: SqlCatalog, table: Table) -> Registered:
    from pyiceberg.exceptions import NoSuchTableError

    name = f"{NAMESPACE}.{table.name}"
    try:
        loaded = catalogue.load_table(name)
        if loaded.properties.get(_VERSION) == str(SCHEMA_VERSION):
            return loaded
        catalogue.drop_table(name)
    except NoSuchTableError:
        pass
    names = [{"field-id": number, "names": [column.name]} for number, column in _numbered(table)]
    properties = {
        "comment": table.doc,
        "schema.name-mapping.default": json.dumps(names),
        "gc.enabled": "false",  # the files are the lake's: no engine may delete them
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "20",
        _VERSION: str(SCHEMA_VERSION),
    }
    return catalogue.create_table(name, _schema(table), properties=properties)


def _schema(table: Table) -> Schema:
    from pyiceberg.schema import Schema

    fields: list[dict[str, Any]] = [
        {
            "id": number,
            "name": column.name,
            "type": _TYPES[column.type],
            "required": not column.is_nullable,
            "doc": f"{column.doc} [{column.unit}]" if column.unit else column.doc,
        }
        for number, column in _numbered(table)
        if column.type in _TYPES
    ]
    return Schema.model_validate({"type": "struct", "schema-id": 0, "fields": fields})


def _numbered(table: Table) -> list[tuple[int, Column]]:
    """The columns with their field ids; unused columns come last, as readers want ids for all columns of a file."""
    return list(enumerate(sorted(table.columns, key=lambda column: column.type not in _TYPES), _RUN_ID))


def _data_file(name: str) -> DataFile:
    """A file's entry in a manifest: its rows, its size, and the first and last run id, by which readers skip it."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    path = Path(name.removeprefix("file://"))
    try:
        parquet = pq.read_metadata(path)
        size = path.stat().st_size
    except (OSError, pa.ArrowInvalid) as error:
        raise WarehouseError(f"{path}: cannot be read ({error}); `tw fsck` says what is wrong") from None
    run_ids = [parquet.row_group(number).column(0).statistics for number in range(parquet.num_row_groups)]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=name,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=parquet.num_rows,
        file_size_in_bytes=size,
        lower_bounds={_RUN_ID: min(s.min for s in run_ids).encode()} if run_ids else {},
        upper_bounds={_RUN_ID: max(s.max for s in run_ids).encode()} if run_ids else {},
        spec_id=0,
    )
