"""Runs `tw`, also for `python -m tracewarehouse`; signals end it with 128 and their number from its first import on."""

from __future__ import annotations

import os
import signal
from typing import Any

_DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


def _end(number: int, _: object) -> None:
    """End at once: while modules are imported there is nothing to undo, and some would wrap an exception."""
    if number == signal.SIGINT:
        os.write(2, b"interrupted\n")
    os._exit(128 + number)


for _number, _default in _DEFAULTS.items():
    if signal.getsignal(_number) == _default:  # not under nohup
        signal.signal(_number, _end)

from tracewarehouse.cli import main  # noqa: E402

for _number, _default in _DEFAULTS.items():
    if signal.getsignal(_number) is _end:
        signal.signal(_number, _default)

if __name__ == "__main__":
    main()
