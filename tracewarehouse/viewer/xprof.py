"""Starts XProf on the capture of a run."""

from __future__ import annotations

import importlib.util
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tracewarehouse.exports.files import copy_plain, recorded_files
from tracewarehouse.ingest.errors import TracewarehouseError

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse


def log_folder(warehouse: Warehouse, run: str, capture: Path, folder: Path) -> Path:
    """Lay out links to the capture of a run as the log folder that XProf reads, and return the folder.

    Args:
        run: a run id, the beginning of one, or a name.
        capture: the .xplane.pb file, or a folder with those of all hosts somewhere below it.
        folder: an empty folder for the links.
    """
    target = folder / "plugins" / "profile" / _file_name(warehouse.run(run).name)
    target.mkdir(parents=True)
    for host, path in recorded_files(warehouse, run, capture):
        to = target / f"{_file_name(host)}.xplane.pb"
        copy_plain(path, to) if path.suffix == ".gz" else to.symlink_to(path.resolve())
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
