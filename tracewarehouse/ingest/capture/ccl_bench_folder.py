"""Reads a folder of CCL-Bench as a capture: its workload card, and the trace that CCL-Bench's tools read."""

from __future__ import annotations

from pathlib import Path

from tracewarehouse.ingest.capture.sources import Capture
from tracewarehouse.ingest.errors import CaptureError, NoCaptureError, shown


def ccl_bench_capture(folder: Path) -> Capture:
    """Return the capture in a folder of CCL-Bench, with the folder's name.

    Args:
        folder: a folder with one .yaml, the card, and one .trace.json or .json, gzipped or not.

    Raises:
        NoCaptureError: the folder does not exist, or has no card or no trace.
        CaptureError: it has several cards or several traces.
    """
    try:
        files = sorted(p for p in folder.iterdir() if p.is_file())
    except OSError as error:
        raise NoCaptureError(f"{shown(str(folder))}: not a folder of CCL-Bench: {error.strerror or error}") from None
    card = _only(folder, "workload card", [p for p in files if p.suffix in (".yaml", ".yml")], "a .yaml")
    traces = [p for p in files if p.name.endswith((".trace.json", ".trace.json.gz"))]
    traces = traces or [p for p in files if p.name.endswith((".json", ".json.gz"))]
    trace = _only(folder, "trace", traces, "a .trace.json; CCL-Bench keeps traces outside its repository, at trace_url")
    return Capture(folder.resolve().name, (trace,), card=card)


def _only(folder: Path, what: str, paths: list[Path], wanted: str) -> Path:
    if not paths:
        raise NoCaptureError(f"{shown(str(folder))}: no {what} in this folder; looked for {wanted}")
    if len(paths) > 1:
        names = ", ".join(shown(p.name) for p in paths)
        raise CaptureError(f"{shown(str(folder))}: expected one {what}, found {names}; remove all but one")
    return paths[0]
