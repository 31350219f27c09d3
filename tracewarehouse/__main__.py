"""Runs `tw`, also for `python -m tracewarehouse`; Ctrl-C ends it with 130 from its first import on."""

from __future__ import annotations

import os
import signal


def _end(*_: object) -> None:
    """End at once: while modules are imported there is nothing to undo, and some would wrap a KeyboardInterrupt."""
    os.write(2, b"interrupted\n")
    os._exit(130)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)

from tracewarehouse.cli import main  # noqa: E402

if signal.getsignal(signal.SIGINT) is _end:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if __name__ == "__main__":
    main()
