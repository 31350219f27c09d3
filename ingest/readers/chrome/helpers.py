"""Starts the processes that will read ranges of a large Chrome trace."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from typing import IO, Self

from tracewarehouse.ingest.processes.pool import Processes, Work
from tracewarehouse.ingest.readers.files import CaptureFile, digest_of_file

DIVIDED = 64 << 20
"""Bytes from which a trace is divided: below, another process costs more time than it saves."""
SMALLEST, MOST = 4 << 20, 16
"""Bytes of a range, at least, and ranges, at most."""


class Helpers:
    """Processes that wait for ranges of a trace; a context manager that leaves none behind.

    Args:
        file: the trace.
        jobs: processes, this one included.

    Attributes:
        outputs: files without a name for what is found, one per range; they outlive the processes.
        processes: this process and its helpers; None where this one reads the trace alone.
        digest: that of the file, if it was not known.
    """

    def __init__(self, file: CaptureFile, jobs: int) -> None:
        self.outputs: list[IO[bytes]] = []
        self.processes: Processes | None = None
        self.digest: Work[str] | None = None
        if jobs < 2 or file.size < DIVIDED:
            return
        count = max(2, min(MOST, file.size // SMALLEST))
        with suppress(OSError):  # without room for them this process reads alone, and says so when it finds none either
            self.outputs = [tempfile.TemporaryFile() for _ in range(count)]  # noqa: SIM115
            descriptors = [file.descriptor, *(f.fileno() for f in self.outputs)]
            modules = ["tracewarehouse.ingest.readers.chrome.ranges"]
            self.processes = Processes(min(jobs, count) - 1, descriptors, modules)
            if file.known_digest is None:
                self.digest = self.processes.start(digest_of_file, [file])

    def dismiss(self) -> None:
        """Let the processes end, once they have the digest; nothing more is asked of them."""
        if self.processes:
            if self.digest:
                self.digest.results()
            self.processes.dismiss()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.processes:
            self.processes.__exit__()
            self.processes = None


__all__ = ["DIVIDED", "Helpers"]
