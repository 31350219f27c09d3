"""Writes a run as a Chrome trace, in the layout of the profiler's exporter, but whole.

Processes are planes and threads are lines, as in the files of JAX and XProf. Unlike there, asynchronous ops are async
events (`b` and `e`), program_id, symbol_id and flops stay arguments, and no event is left out. If the HLO of an op was
in a proto, for which the format has no room, `long_name` is its text: result, opcode, groups and metadata.

The Perfetto UI rounds `ts` and `dur` to nanoseconds separately, and drops an event that then ends within the next one
or after the one around it. So if the rounded values do not add up to the rounded end, `dur` spans the nanoseconds from
the rounded start to the rounded end, and `exact_dur` is the exact duration. Both halves of an async event have
`exact_dur` too, so that our reader knows the event without looking for its other half.

Ops have the arguments of `ADDED` where they are known. The member `metadata` names these arguments, so that our reader
does not take them for stats of the profiler.

The macro chrome_events writes the text of the events, a bounded number of them at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracewarehouse.exports.files import naming_the_unwritable, whole_file
from tracewarehouse.exports.perfetto.wire import joined_bytes
from tracewarehouse.ingest.columns.profiler_names import PREDICTION, PREDICTION_PLANE
from tracewarehouse.ingest.errors import TracewarehouseError, WarehouseError
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

AT_ONCE = 1 << 16
"""Events whose text is in memory at once."""
ADDED = ("layer", "iteration", "phase", "step")
"""Arguments of ops that the run adds to those of the profiler."""
_HOST_PID, _OTHER_PID = 701, 501
"""The process number that the profiler's exporter gives to host threads, and the first that custom planes get."""

_THREAD_0 = 0xFFFF
"""Thread number of line 0: the Perfetto UI takes thread 0 for the thread with the number of its process."""


@dataclass(frozen=True)
class _Thread:
    """A line of a plane: its process and thread in the trace, and the place of its events in the run."""

    pid: int
    tid: int
    name: str
    kind: str
    is_named: bool
    first_event_id: int
    event_count: int

    @property
    def end_event_id(self) -> int:
        return self.first_event_id + self.event_count


def export_chrome(warehouse: Warehouse, run: str, target: Path) -> list[Path]:
    """Write a run as Chrome trace JSON; returns the files.

    Args:
        run: a run id, the beginning of one, or a name.
        target: a file that ends in .json or .json.gz, for all hosts; or a folder, which becomes a log folder of
            TensorBoard with one file per host, `plugins/profile/<run>/<host>.trace.json.gz`.
    """
    entry = warehouse.run(run)
    run_id = entry.run_id
    hosts = host_names(warehouse, run_id)
    if target.name.endswith((".json", ".json.gz")):
        files = {target: hosts}
    elif target.suffix == "" or target.is_dir():
        folder = target / "plugins" / "profile" / file_name(entry.name)
        files = {folder / f"{file_name(host)}.trace.json.gz": [host] for host in hosts}
    else:
        raise TracewarehouseError(
            f"{target}: a Chrome trace ends in .json or .json.gz; name such a file, or a folder for one file per host"
        )
    with naming_the_unwritable(target):
        for path, names in files.items():
            with whole_file(path) as file:
                file.writelines(chrome_text(warehouse, run_id, names))
    return list(files)


def host_names(warehouse: Warehouse, run_id: str) -> list[str]:
    """The hosts of a run, in order."""
    hosts = warehouse.query(f"SELECT host FROM main.hosts WHERE run_id = {literal(run_id)} ORDER BY host_index")
    return [host for (host,) in hosts.rows()]


def file_name(name: str) -> str:
    """Return the name of a run or host, fit for a file."""
    return re.sub(r"[^\w.-]", "_", name)


def chrome_text(
    warehouse: Warehouse, run_id: str, hosts: Sequence[str], *, is_for_viewers: bool = True
) -> Iterator[bytes | memoryview]:
    """Yield the Chrome trace of some hosts of a run, piece by piece.

    Args:
        is_for_viewers: whether to round `dur` where a viewer would otherwise drop events, and to add arguments.
    """
    started = warehouse.query(f"SELECT profile_start_ns FROM main.runs WHERE run_id = {literal(run_id)}").rows()
    if not started:
        raise WarehouseError(f"run {run_id} was removed while it was exported; ingest its capture again")
    added: dict[str, object] = {"addedArguments": ADDED} if is_for_viewers else {}
    if prediction := _prediction(warehouse, run_id):
        added["prediction"] = prediction
    head: dict[str, object] = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True, **added}}
    if started[0][0] is not None:
        head["baseTimeNanoseconds"] = started[0][0]
    yield json.dumps(head, separators=(",", ":"))[:-1].encode() + b',"traceEvents":[\n'
    threads, names = _threads(warehouse, run_id, hosts)
    last = b""
    for name in names:  # the last one is kept for the end, as no comma may follow the last event
        yield last
        last = name
    for first in range(0, len(threads), 1000):  # hosts may have 10^5 threads
        group: list[_Thread] = []
        for thread in (t for t in threads[first : first + 1000] if t.event_count):
            if group and thread.first_event_id != group[-1].end_event_id:
                yield from _events(warehouse, run_id, group, is_for_viewers)
                group = []
            group.append(thread)
        if group:
            yield from _events(warehouse, run_id, group, is_for_viewers)
    yield last.removesuffix(b",\n") + b"\n]}\n"


def _events(
    warehouse: Warehouse, run_id: str, threads: Sequence[_Thread], is_for_viewers: bool
) -> Iterator[bytes | memoryview]:
    end = threads[-1].end_event_id
    for first in range(threads[0].first_event_id, end, AT_ONCE):
        stop = min(first + AT_ONCE, end)
        here = [t for t in threads if t.first_event_id < stop and t.end_event_id > first]
        lines = ", ".join(
            f'{{first_event_id: {t.first_event_id}, place: \'"pid":{t.pid},"tid":{t.tid}\', '
            f"kind: {literal(t.kind)}, is_named: {t.is_named}}}"
            for t in here
        )
        table = warehouse.query(
            f"SELECT text FROM macros.chrome_events({literal(run_id)}, {first}, {stop}, [{lines}], {is_for_viewers}) "
            "ORDER BY event_id"
        ).arrow()
        for texts in table.column(0).chunks:
            yield joined_bytes(texts)


def _prediction(warehouse: Warehouse, run_id: str) -> str | None:
    told = warehouse.query(
        "SELECT string_value FROM main.plane_stats INNER JOIN main.runs USING (run_id) "
        f"WHERE run_id = {literal(run_id)} AND origin = 'predicted' AND plane = {literal(PREDICTION_PLANE)} "
        f"AND main.plane_stats.name = {literal(PREDICTION)} LIMIT 1"
    ).rows()
    return told[0][0] if told else None


def _threads(warehouse: Warehouse, run_id: str, hosts: Sequence[str]) -> tuple[list[_Thread], Iterator[bytes]]:
    """The lines of the hosts in the order of their events, and the metadata events that name them."""
    wanted = ", ".join(map(literal, hosts))
    lines = warehouse.query(
        "SELECT l.plane_index, l.host, l.plane, p.plane_id, p.kind, l.line, l.kind, l.line_id, l.first_event_id, "
        "l.event_count, r.format = 'chrome', r.origin = 'predicted' FROM main.lines AS l "
        "INNER JOIN main.planes AS p USING (run_id, plane_index) INNER JOIN main.runs AS r USING (run_id) "
        f"WHERE run_id = {literal(run_id)} AND l.host IN ({wanted}) ORDER BY l.line_index"
    ).rows()
    pids: dict[int, int] = {}
    taken: set[int] = set()
    tids: dict[int, set[int]] = {}
    threads: list[_Thread] = []
    processes: dict[int, str] = {}
    for plane_index, host, plane, plane_id, plane_kind, line, kind, line_id, first, count, is_chrome, is_told in lines:
        if plane_index not in pids:
            if is_chrome:
                number = plane_id
            elif plane_kind == "host":
                number = _HOST_PID
            else:
                number = plane_id + 1 if plane_id + 1 < _OTHER_PID else _OTHER_PID
            pids[plane_index] = _free(number, taken)
            # the host of a predicted run says that it is one
            processes[pids[plane_index]] = plane if len(hosts) == 1 and not is_told else f"{host} {plane}"
        pid = pids[plane_index]
        is_named = plane_kind == "host" or plane.startswith("/device:GPU:")
        tid = _free(line_id & 0xFFFFFFFF or _THREAD_0, tids.setdefault(pid, set()))
        threads.append(_Thread(pid, tid, line, kind, is_named, first, count))
    return threads, _names(processes, threads)


def _free(number: int, taken: set[int]) -> int:
    """The number cut to 32 bits, as viewers read it, or the next one that is free."""
    number &= 0xFFFFFFFF
    while number in taken:
        number = (number + 1) & 0xFFFFFFFF
    taken.add(number)
    return number


def _names(processes: dict[int, str], threads: Sequence[_Thread]) -> Iterator[bytes]:
    for pid, name in processes.items():
        yield _metadata(pid, None, "process_name", "name", name)
        yield _metadata(pid, None, "process_sort_index", "sort_index", pid)
    for index, thread in enumerate(threads):
        yield _metadata(thread.pid, thread.tid, "thread_name", "name", thread.name)
        yield _metadata(thread.pid, thread.tid, "thread_sort_index", "sort_index", index)


def _metadata(pid: int, tid: int | None, event: str, key: str, value: str | int) -> bytes:
    thread = {} if tid is None else {"tid": tid}
    content = {"ph": "M", "pid": pid, **thread, "name": event, "args": {key: value}}
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b",\n"
