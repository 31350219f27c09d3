"""Joins captures that lie in folders of their own but are the hosts of one run."""

from __future__ import annotations

import filecmp
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations
from pathlib import Path

from tracewarehouse.ingest.capture.batches import is_rank_folder, natural, profile_folder, server_rank
from tracewarehouse.ingest.capture.sources import Capture, file_window, find_captures, overlaps
from tracewarehouse.ingest.errors import CaptureError

_PROCESS_FILE = re.compile(r".+_(\d{1,6})\.xplane\.pb(?:\.gz)?")
_PROCESSES = Path("processes")
"""In place of a path within a rank's folder: the ranks are in the names of the files."""


@dataclass(frozen=True)
class DevicesOfFile:
    """The accelerators with events of one file, and the number of devices for which its programs were compiled."""

    count: int = 0
    numbers: frozenset[int] = frozenset()
    """Their numbers among all devices of the slice; empty if the capture does not state them."""
    wanted: Mapping[Hashable, int] = field(default_factory=dict)
    """Devices of each program, by its identity, which is the same on all hosts."""


def find_whole_captures(*paths: Path, max_gzip_ratio: float | None = None) -> list[Capture]:
    """Find the captures at paths, as `find_captures` does, and join those that are the hosts of one run."""
    return join_hosts([c for path in paths for c in find_captures(path, max_gzip_ratio=max_gzip_ratio)])


def join_hosts(captures: Sequence[Capture]) -> list[Capture]:
    """Join captures whose profile windows overlap and whose devices complement each other; the order stays.

    Devices complement each other if both ran the same program, which is compiled for more devices than either has, and
    together they have at most that many. If there are more candidates than the program has devices, as when two slices
    ran it at the same time, nothing tells which belong together, and all stay apart. So do copies of one file, captures
    with different manifests, and captures of virtual CPU devices.

    Before that, the ranks of a server are joined, whose folders differ only in a name like `dp_rank_<n>`, if each was
    profiled while the others were. Their devices tell nothing: every process may number its own from 0, and a chip
    belongs to one process at a time. The same holds for processes of torch_tpu, each with one device, a log folder
    beside those of the others, and a file `<host>_<rank>.xplane.pb`, if there is one of every rank from 0.
    """
    captures = _joined_ranks(captures)
    near = _near(captures) if len(captures) > 1 else {}
    devices = {i: _devices(captures[i]) for i in near}
    joined: list[Capture] = []
    taken: set[int] = set()
    for i, capture in enumerate(captures):
        if i in taken:
            continue
        group = _complements(i, near[i], devices, captures) if i in near else []
        if taken.intersection(group):
            group = []
        taken.update(group)
        joined.append(_joined([(captures[j], devices[j] or ()) for j in (i, *group)]) if group else capture)
    return joined


def _joined_ranks(captures: Sequence[Capture]) -> list[Capture]:
    servers: dict[tuple[Path, Path], list[int]] = {}
    for i, capture in enumerate(captures):
        home = profile_folder(capture.files[0].parent)
        folder = next(filter(is_rank_folder, (home, *home.parents)), None)
        if folder:
            servers.setdefault((folder.parent, home.relative_to(folder)), []).append(i)
        elif None not in map(_process_rank, capture.files):
            servers.setdefault((home.parent, _PROCESSES), []).append(i)
    joined = {i: _by_rank(c) for i, c in enumerate(captures)}
    for (server, kind), candidates in servers.items():
        near = {i: [j for j in candidates if i == j or _are_together(captures[i], captures[j])] for i in candidates}
        for group in (near[i] for i in candidates if near[i][0] == i < near[i][-1]):
            if all(near[i] == group for i in group) and _are_ranks([captures[i] for i in group]):
                whole = _joined([(captures[i], [DevicesOfFile()] * len(captures[i].files)) for i in group])
                name = re.sub(r"^(dp_)?rank_\d+(?=/|$)", server.name, whole.name)
                name = server.name or name if kind == _PROCESSES else re.sub(r"^(dp|rank)\d+_", "", name)
                joined[group[0]] = _by_rank(replace(whole, name=name))
                for i in group[1:]:
                    del joined[i]
    return list(joined.values())


def _are_ranks(captures: Sequence[Capture]) -> bool:
    """Return whether each capture has a rank of its own, and nothing else shows that they are different runs."""
    processes = [_process_rank(f) for c in captures for f in c.files]
    if None not in processes:
        return set(processes) == set(range(len(processes))) and _are_of_one_run(captures)
    numbers = [{server_rank(f) for f in c.files} for c in captures]
    return sum(map(len, numbers)) == len(set().union(*numbers)) and _are_of_one_run(captures)


def _by_rank(capture: Capture) -> Capture:
    """Return a capture with the files of its processes in the order of their ranks, where names tell these."""
    ranks = {file: _process_rank(file) for file in capture.files}
    ordered = sorted(capture.files, key=lambda file: ranks[file] or 0)
    return capture if None in ranks.values() else replace(capture, files=tuple(ordered))


def _process_rank(file: Path) -> int | None:
    """Return the rank at the end of the name of an xplane file; None if there is none."""
    match = _PROCESS_FILE.fullmatch(file.name)
    return int(match[1]) if match else None


def _are_together(a: Capture, b: Capture) -> bool:
    """Whether two captures were profiled at the same time, by their windows or else by the names of their folders."""
    first, second = file_window(a.files[0]), file_window(b.files[0])
    if first or second:
        return overlaps(first, second)
    folders = [c.files[0].parent for c in (a, b)]
    return all(profile_folder(f) != f for f in folders) and folders[0].name == folders[1].name


def _near(captures: Sequence[Capture]) -> dict[int, list[int]]:
    """Return the captures whose profile windows overlap that of each capture, if there are any."""
    known = [(w, i) for i, c in enumerate(captures) if (w := next(filter(None, map(file_window, c.files)), None))]
    known.sort()
    near: dict[int, list[int]] = {}
    for k, (window, i) in enumerate(known):
        for other, j in known[k + 1 :]:
            if other[0] >= window[1]:
                break
            if overlaps(window, other):
                near.setdefault(i, []).append(j)
                near.setdefault(j, []).append(i)
    return near


def _complements(
    first: int, near: Sequence[int], devices: Mapping[int, Sequence[DevicesOfFile] | None], captures: Sequence[Capture]
) -> list[int]:
    """Return the captures near the first one that are the other hosts of its run; empty if none or too many are."""
    own = devices[first]
    if own is None:
        return []
    for program, wanted in sorted(_wanted(own).items(), key=lambda item: -item[1]):
        others = [j for j in near if (d := devices.get(j)) and _wanted(d).get(program) == wanted]
        group = [first, *others]
        count = sum(d.count for i in group for d in devices[i] or ())
        numbers = [n for i in group for d in devices[i] or () for n in d.numbers]
        is_lacking = sum(d.count for d in own) < wanted and count <= wanted
        are_distinct = len(set(numbers)) == len(numbers)
        if others and is_lacking and are_distinct and _are_of_one_run([captures[i] for i in group]):
            return others
    return []


def _wanted(devices: Sequence[DevicesOfFile]) -> dict[Hashable, int]:
    return {program: count for d in devices for program, count in d.wanted.items()}


def _are_of_one_run(captures: Sequence[Capture]) -> bool:
    is_copy = any(_is_same(a, b) for a, b in combinations([f for c in captures for f in c.files], 2))
    described = [[p for c in captures if (p := getattr(c, kind))] for kind in ("manifest", "card")]
    return not is_copy and all(_is_same(paths[0], p) for paths in described for p in paths[1:])


def _is_same(a: Path, b: Path) -> bool:
    try:
        return a.is_file() and b.is_file() and filecmp.cmp(a, b, shallow=False)
    except OSError:
        return False


def _joined(hosts: Sequence[tuple[Capture, Sequence[DevicesOfFile]]]) -> Capture:
    """Return one capture of all files, in the order of their devices' numbers or, without those, of their paths."""
    captures = [c for c, _ in hosts]
    files = [(f, d) for c, devices in hosts for f, d in zip(c.files, devices, strict=True)]
    files.sort(key=lambda known: (min(known[1].numbers, default=-1), [natural(p) for p in known[0].parts]))
    manifest = next((c.manifest for c in captures if c.manifest), None)
    card = next((c.card for c in captures if c.card), None)
    return replace(captures[0], files=tuple(f for f, _ in files), manifest=manifest, card=card)


def _devices(capture: Capture) -> list[DevicesOfFile] | None:
    try:
        stats = [(f, f.stat()) for f in capture.files]
        return [_devices_of_file(f, s.st_size, s.st_mtime_ns, capture.max_gzip_ratio) for f, s in stats]
    except (CaptureError, OSError):
        return None


@lru_cache(maxsize=256)  # `tw watch` asks again at every look
def _devices_of_file(path: Path, _size: int, _changed: int, max_gzip_ratio: float) -> DevicesOfFile:
    from tracewarehouse.ingest.columns.profiler_names import device_plane
    from tracewarehouse.ingest.devices.hosts import accelerator
    from tracewarehouse.ingest.hlo.instructions import Instructions
    from tracewarehouse.ingest.hlo.modules import HloModules
    from tracewarehouse.ingest.readers.files import CaptureFile
    from tracewarehouse.ingest.readers.formats import open_trace

    trace = open_trace(CaptureFile(path, max_gzip_ratio=max_gzip_ratio))
    named = [(p, device_plane(p.name)) for p in trace.planes if any(line.has_events for line in p.lines)]
    planes = [(p, d) for p, d in named if d and not d.is_sparse_core]
    modules = HloModules([p for p in trace.planes if not p.lines], [])
    instructions = Instructions()
    for plane, _ in planes:
        instructions.add_metadata(plane, modules)
    wanted: dict[Hashable, int] = dict(modules.device_counts())
    for row in instructions.rows:
        if row.members and row.program_id is not None:
            size = max(max(g, default=-1) for g in row.members) + 1
            wanted[row.program_id] = max(wanted.get(row.program_id, 0), size)
    numbers = [accelerator(0, "", p, d.backend, d.ordinal).global_id for p, d in planes]
    return DevicesOfFile(len(planes), frozenset(n for n in numbers if n is not None), wanted)
