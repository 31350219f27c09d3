"""Ends a process whose query does not stop when interrupted: DuckDB first finishes its work on one long value."""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future, wait
from typing import Any, Final

PATIENCE_SECONDS: Final = 2.0
may_end_process = False
"""`tw` sets this, as it does nothing besides its query; a program that uses the library waits instead."""


def leave_unless_done(query: Future[Any], end: BaseException) -> None:
    """Give an interrupted query some time to stop, then end the process with the exit code of the interruption."""
    if may_end_process and not wait([query], PATIENCE_SECONDS).done:
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(end.code if isinstance(end, SystemExit) and isinstance(end.code, int) else 130)
