"""Starts XProf on the capture of a run."""

from __future__ import annotations

import importlib.util
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.ingest.lake.durable_files import file_digest
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse


def log_folder(warehouse: Warehouse, run: str, capture: Path, folder: Path) -> Path:
    """Lay out links to the capture of a run as the log folder that XProf reads, and return the folder.

    Args:
        warehouse: the warehouse.
        run: a run id, the beginning of one, or a name.
        capture: the .xplane.pb file, or a folder with those of all hosts somewhere below it.
        folder: an empty folder for the links.

    Raises:
        WarehouseError: there is no such run.
        TracewarehouseError: a file that the run was made from is not there.
    """
    entry = warehouse.run(run)
    hosts = warehouse.query(
        f"SELECT host, digest, file_name FROM main.hosts WHERE run_id = {literal(entry.run_id)} ORDER BY host_index"  # noqa: S608
    ).rows()
    candidates = [capture] if capture.is_file() else sorted(capture.rglob("*.xplane.pb"))
    try:
        by_digest = {file_digest(path): path for path in candidates}
    except OSError as error:
        raise TracewarehouseError(f"{capture}: cannot be read: {error.strerror or error}") from None
    target = folder / "plugins" / "profile" / _file_name(entry.name)
    target.mkdir(parents=True)
    for host, digest, file_name in hosts:
        if digest not in by_digest:
            raise TracewarehouseError(
                f"{capture}: no .xplane.pb file of those {len(candidates)} is the capture of run {entry.name} on host "
                f"{host}, which was {file_name}; name the file or folder that the run was ingested from with --capture"
            )
        (target / f"{_file_name(host)}.xplane.pb").symlink_to(by_digest[digest].resolve())
    return folder


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)


def require_xprof() -> None:
    """Raise a TracewarehouseError if XProf is not installed."""
    if importlib.util.find_spec("xprof") is None:
        raise TracewarehouseError("XProf is not installed; run `pip install 'tracewarehouse[xprof]'`")


def run_xprof(folder: Path, port: int) -> int:
    """Run XProf on a log folder until it ends; returns its exit code."""
    with socket.create_server(("127.0.0.1", 0)) as free:  # else several at once would share the default port of workers
        workers = free.getsockname()[1]
    options = ["--logdir", str(folder), "--port", str(port), "--grpc_port", str(workers)]
    command = [sys.executable, "-m", "xprof.server", *options]
    return subprocess.run(command, check=False).returncode  # noqa: S603
