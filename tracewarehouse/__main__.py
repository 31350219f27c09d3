"""Runs `tw`, also for `python -m tracewarehouse`; signals end it with 128 and their number from its first import on."""

from __future__ import annotations

import os
import signal


def _end(number: int, _: object) -> None:
    """End at once: while modules are imported there is nothing to undo, and some would wrap an exception."""
    if number == signal.SIGINT:
        os.write(2, b"interrupted\n")
    os._exit(128 + number)


_defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
for _number, _default in _defaults.items():
    if signal.getsignal(_number) == _default:  # not under nohup
        signal.signal(_number, _end)

from tracewarehouse.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
