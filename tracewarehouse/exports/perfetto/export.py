"""Writes runs as one Perfetto trace."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from tracewarehouse.exports.perfetto.collectives import Collectives, Flows
from tracewarehouse.exports.perfetto.counters import write_counters
from tracewarehouse.exports.perfetto.devices import Devices
from tracewarehouse.exports.perfetto.hosts import write_hosts
from tracewarehouse.exports.perfetto.instructions import Instructions
from tracewarehouse.exports.perfetto.packets import PacketWriter, compressing
from tracewarehouse.exports.perfetto.selected_run import SelectedRun
from tracewarehouse.exports.perfetto.selection import Selection
from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.ingest.lake.durable_files import placed_whole
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

ENDINGS = (".pftrace", ".pftrace.gz", ".perfetto-trace", ".perfetto-trace.gz")
_PICOSECONDS = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}


def export_perfetto(
    warehouse: Warehouse,
    runs: Sequence[str],
    target: Path,
    selection: Selection | None = None,
    *,
    flows: Flows = "slow",
    force: bool = False,
) -> Path:
    """Write runs as one Perfetto trace; returns the file.

    The trace of one run has its tracks at the top; a trace of several runs has a track per run above them. Time 0 is
    the profile start of each run or, with a selection, its first event.

    Args:
        warehouse: the warehouse.
        runs: run ids, beginnings of ids, or names.
        target: a file that ends in .pftrace or .perfetto-trace; with a further .gz, the file is gzipped. Without, its
            packets are compressed, which Perfetto's tools can read.
        selection: the part of each run to write; None for all.
        flows: which executions of collectives get arrows from rank to rank: none, those that are slow for their
            instruction (see `collectives.SLOW`), or all.
        force: also write runs of hosts whose clocks are not aligned.

    Raises:
        WarehouseError: there is no such run, or it cannot be read.
        TracewarehouseError: the target has another ending or cannot be written, nothing is selected, or the clocks of
            a run's hosts are not aligned.
    """
    if not target.name.endswith(ENDINGS):
        raise TracewarehouseError(f"{target}: a Perfetto trace ends in one of {', '.join(ENDINGS)}; name such a file")
    entries = list({entries.run_id: entries for entries in map(warehouse.run, runs)}.values())
    for run in entries:
        if "clock_unaligned" in run.flags and not force:
            raise TracewarehouseError(
                f"run {run.name}: the clocks of its hosts are not aligned, so events of the same moment would be drawn "
                "at different times; --force writes the trace anyway"
            )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with placed_whole(target) as part, ExitStack() as stack:
            stream = cast("IO[bytes]", stack.enter_context(part.open("wb")))
            if target.suffix == ".gz":
                stream = cast("IO[bytes]", stack.enter_context(gzip.GzipFile("", "wb", 4, stream, mtime=0)))
                writer = PacketWriter(stream.write)
            else:
                writer = PacketWriter(stack.enter_context(compressing(stream.write)))
            first_flow = 1
            for run in entries:
                parent = writer.track(run.name) if len(entries) > 1 else 0
                selected = SelectedRun(warehouse, run.run_id, selection or Selection())
                _write_run(selected, writer, parent, flows, first_flow)
                first_flow += _instances(warehouse, run.run_id)
    except OSError as error:
        raise TracewarehouseError(f"{target}: cannot be written: {error.strerror or error}") from None
    return target


def _write_run(run: SelectedRun, writer: PacketWriter, parent: int, flows: Flows, first_flow: int) -> None:
    """Write all tracks of a run below a track, or at the top if `parent` is 0."""
    writer.origin_ps, _ = run.hull
    instructions = Instructions(run, writer)
    write_counters(run, writer, parent)
    Devices(run, writer, instructions, Collectives(run, writer, instructions, flows, first_flow)).write(parent)
    write_hosts(run, writer, parent)


def _instances(warehouse: Warehouse, run_id: str) -> int:
    """One more than the last instance number of a run's collectives."""
    sql = f"SELECT coalesce(max(instance), -1) + 1 FROM main.collectives WHERE run_id = {literal(run_id)}"
    return int(warehouse.query(sql).scalar())


def picoseconds(text: str) -> int:
    """Read a time with its unit, such as `1.5ms`.

    Raises:
        TracewarehouseError: it is not a number, or has no unit.
    """
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)(ps|ns|us|ms|s)", text.strip())
    if not match:
        raise TracewarehouseError(f"{text!r} is not a time; write a number and ps, ns, us, ms or s, such as 1.5ms")
    return round(float(match[1]) * _PICOSECONDS[match[2]])


def steps(text: str) -> tuple[int, int]:
    """Read a step, or a range of steps such as `3-5`, as its first and its last one.

    Raises:
        TracewarehouseError: it is neither.
    """
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first:
        raise TracewarehouseError(f"{text!r} is not a step; write its number, or the first and last of several as 3-5")
    return first, last
