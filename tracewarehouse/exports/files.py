"""Opens the files of an export."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.ingest.lake.durable_files import placed_whole


@contextmanager
def naming_the_unwritable(target: Path) -> Iterator[None]:
    """Raise a TracewarehouseError that names the target, where the system refuses to write."""
    try:
        yield
    except OSError as error:
        raise TracewarehouseError(f"{target}: cannot be written: {error.strerror or error}") from None


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
