"""Opens the files of an export, and finds those that a run was made from."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from tracewarehouse.ingest.errors import TracewarehouseError, system_refusals
from tracewarehouse.ingest.lake.durable_files import file_digest, placed_whole
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse


def naming_the_unwritable(target: Path) -> AbstractContextManager[None]:
    """Raise a TracewarehouseError that names the target, where the system refuses to write."""
    return system_refusals(f"{target}: cannot be written", TracewarehouseError)


@contextmanager
def whole_file(path: Path, level: int = 3) -> Iterator[IO[bytes]]:
    """Open a file that appears whole or not at all; one that ends in .gz is gzipped, always to the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with placed_whole(path) as part, part.open("wb") as file:
        if path.suffix != ".gz":
            yield file
        else:
            with gzip.GzipFile("", "wb", level, file, mtime=0) as packed:
                yield cast("IO[bytes]", packed)


def recorded_files(warehouse: Warehouse, run: str, capture: Path) -> list[tuple[str, Path]]:
    """The files that a run was made from, each behind the name of its host, in the order of hosts.

    Args:
        warehouse: the warehouse, which holds the digests of these files but not the files.
        run: a run id, the beginning of one, or a name.
        capture: the file, or a folder with the files of all hosts somewhere below it.
    """
    entry = warehouse.run(run)
    sql = f"SELECT host, digest, file_name FROM main.hosts WHERE run_id = {literal(entry.run_id)} ORDER BY host_index"
    hosts = warehouse.query(sql).rows()
    endings = {Path(file_name.removesuffix(".gz")).suffix for _, _, file_name in hosts}
    named = (f"*{ending}{packed}" for ending in sorted(endings) for packed in ("", ".gz"))
    with system_refusals(f"{capture}: cannot be read", TracewarehouseError):
        files = [capture] if capture.is_file() else sorted(p for n in named for p in capture.rglob(n) if p.is_file())
        by_digest = {_plain_digest(path): path for path in files}
    for host, digest, file_name in hosts:
        if digest not in by_digest:
            raise TracewarehouseError(
                f"{capture}: none of its {len(files)} {' or '.join(sorted(endings))} files is the capture of run "
                f"{entry.name} on host {host}, which was {file_name}; name the file or folder that the run was "
                "ingested from with --capture"
            )
    return [(host, by_digest[digest]) for host, digest, _ in hosts]


def copy_plain(source: Path, target: Path) -> None:
    """Copy a file; one that ends in .gz is unpacked."""
    with gzip.open(source) if source.suffix == ".gz" else source.open("rb") as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file)


def _plain_digest(path: Path) -> str | None:
    """SHA-256 of the unpacked file, in hex, as `main.hosts` has it; None if it cannot be unpacked."""
    if path.suffix != ".gz":
        return file_digest(path)
    try:
        with gzip.open(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return None
