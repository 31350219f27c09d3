"""Opens the hosts of a run, with distinct names and on a common clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tracewarehouse.ingest.capture.batches import server_rank
from tracewarehouse.ingest.capture.sources import stem
from tracewarehouse.ingest.columns.profiler_names import PROFILE_START, PROFILE_STOP, TASK_PLANE
from tracewarehouse.ingest.columns.records import Trace


@dataclass
class Host:
    """One file of a capture, opened; one row of main.hosts. `rank` is its rank in a server, 0 if there is none."""

    index: int
    name: str
    trace: Trace
    file_name: str
    rank: int
    start_ns: int | None
    stop_ns: int | None
    clock_offset_ps: int
    clock_source: str
    clock_correction_ps: int | None = None
    clock_residual_ps: int | None = None
    clock_instances: int | None = None

    @property
    def window_ps(self) -> tuple[int, int] | None:
        """Start and end of its profile on the run's clock; None if the capture does not state them."""
        if self.start_ns is None or self.stop_ns is None or self.stop_ns < self.start_ns:
            return None
        return self.clock_offset_ps, self.clock_offset_ps + (self.stop_ns - self.start_ns) * 1000

    def row(self, event_count: int) -> dict[str, Any]:
        """The row as a mapping of column to value, given the events on all its lines."""
        return {
            "host": self.name,
            "host_index": self.index,
            "hostname": self.trace.hostnames[0] if self.trace.hostnames else None,
            "file_name": self.file_name,
            "digest": self.trace.digest,
            "bytes": self.trace.size,
            "profile_start_ns": self.start_ns,
            "profile_stop_ns": self.stop_ns,
            "clock_offset_ps": self.clock_offset_ps,
            "clock_source": self.clock_source,
            "clock_correction_ps": self.clock_correction_ps,
            "clock_residual_ps": self.clock_residual_ps,
            "clock_instances": self.clock_instances,
            "event_count": event_count,
        }


def clock_notes(hosts: Sequence[Host]) -> list[str]:
    """One sentence for each host whose clock was corrected."""
    return [
        f"the clock of {h.name} was moved by {h.clock_correction_ps / 1e6:+.3f} us: {h.clock_instances} shared "
        f"collectives now end within {(h.clock_residual_ps or 0) / 1e6:.3f} us (median)"
        for h in hosts
        if h.clock_correction_ps is not None
    ]


def open_hosts(traces: Sequence[Trace], paths: Sequence[PurePath]) -> list[Host]:
    """Name the hosts and align their clocks by the start of their profiles.

    A host gets its recorded name if no other host of the run has it, else the name of its file, else its number.
    """
    names = _names(traces, paths)
    windows = [_window(t) for t in traces]
    starts = [w[0] for w in windows if w[0] is not None]
    first = min(starts, default=None)
    hosts = []
    for i, (trace, (start, stop)) in enumerate(zip(traces, windows, strict=True)):
        if start is None or first is None:
            offset, source = 0, "none"
        else:
            offset = (start - first) * 1000
            source = "first_host" if start == first else "profile_start"
        hosts.append(Host(i, names[i], trace, paths[i].name, server_rank(paths[i]), start, stop, offset, source))
    return hosts


def _names(traces: Sequence[Trace], paths: Sequence[PurePath]) -> list[str]:
    recorded = [t.hostnames[0] if t.hostnames else "" for t in traces]
    if all(recorded) and len(set(recorded)) == len(recorded):
        return recorded
    stems = [stem(p) for p in paths]
    if len(traces) > 1 and len(set(stems)) == len(stems):
        return stems
    return [f"host{i}" for i in range(len(traces))]


def _window(trace: Trace) -> tuple[int | None, int | None]:
    for plane in trace.planes:
        if plane.name == TASK_PLANE:
            values = {s.name: s.value for s in plane.stats}
            start, stop = values.get(PROFILE_START), values.get(PROFILE_STOP)
            start = start if isinstance(start, int) else trace.origin_ns
            return start, stop if isinstance(stop, int) else None
    return trace.origin_ns, None
