"""Starts and stops the profiler of a torch_xla process, which writes plugins/profile/<time>/<host>.xplane.pb."""

from __future__ import annotations

import time
from pathlib import Path

from tracewarehouse.collect.errors import CheckError
from tracewarehouse.ingest.capture_names import xplane_files


def start(logdir: Path) -> None:
    """Begin to record into a log directory."""
    import torch_xla.debug.profiler as xp

    xp.start_trace(str(logdir))


def stop(logdir: Path) -> list[Path]:
    """End the recording, and return the xplane files that it wrote, one per host.

    Raises:
        CheckError: no file was written, or an empty one.
    """
    import torch_xla.debug.profiler as xp

    # The worker threads are still handing over events of the last step.
    time.sleep(0.05)
    xp.stop_trace()
    files = xplane_files(logdir)
    if not files or any(not f.stat().st_size for f in files):
        raise CheckError(f"the profiler wrote {len(files)} xplane files, some empty or none; nothing was recorded")
    return files
