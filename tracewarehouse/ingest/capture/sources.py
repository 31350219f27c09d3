"""Finds captures under a path, and decides which files belong together as the hosts of one run."""

from __future__ import annotations

import gzip
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePath

from tracewarehouse.ingest.capture.batches import (
    BatchFile,
    batch_files,
    in_run_folder,
    is_batches,
    natural,
    profile_folder,
)
from tracewarehouse.ingest.errors import CaptureError, NoCaptureError, SkippedEntryWarning, shown, system_refusals
from tracewarehouse.ingest.readers.files import MAX_GZIP_RATIO
from tracewarehouse.ingest.readers.formats import (
    FORMATS,
    LOOKED_FOR,
    SUFFIXES,
    Window,
    foreign_kind,
    format_by_file_name,
    is_unnamed_trace,
    profile_window,
)
from tracewarehouse.ingest.readers.kineto.ranks import file_rank, rank_in_name

_ENDINGS = sorted({*(ending for f in FORMATS for ending in f.endings), ".gz"}, key=lambda e: (-len(e), e))
"""File suffixes that are not part of a host's name, the longest first."""
_LARGEST_CARD = 128 << 10  # bytes
_LARGEST_EMPTY_GZIP = 512  # bytes: a header with a long file name
_DESCRIPTIONS = ("manifest.json", "card.yaml")
"""Names of the files that describe the captures in a folder."""
_RANK = re.compile(r"^(dp|rank)\d+_")
"""The beginning of the file names of a server's ranks."""
_COPY_OF_TRACE = ("perfetto_trace.json", "perfetto_trace.json.gz")
"""What JAX writes for Perfetto beside the trace of a host, with the same events."""
_SAYS_NOTHING = re.compile(r"(?:host|worker|process|rank|node|kineto_trace)[-_.]?\d+|localhost|perfetto_trace")
"""Names of files that many captures share."""
_MOST_NAMED = 5
"""Most entries that a warning names."""
_MIN_OVERLAP = 0.5  # of the shorter profile window, for two files to be hosts of one run


@dataclass(frozen=True)
class Capture:
    """The files of one run, and the manifest and card beside them."""

    name: str
    files: tuple[Path, ...]
    manifest: Path | None = None
    card: Path | None = None
    max_gzip_ratio: float = MAX_GZIP_RATIO
    """Highest ratio of uncompressed to compressed bytes of a gzipped file."""

    @property
    def batch_files(self) -> list[BatchFile]:
        """The server's files about its batches, which lie beside the capture files or where the server profiled."""
        return batch_files(self.files)

    @property
    def empty_files(self) -> list[Path]:
        """Empty `.xplane.pb` files of the same hosts; their exports are read instead."""
        exports = [f for f in self.files if (of := format_by_file_name(f.name)) and of.is_export]
        return [p for f in exports for p in _siblings(f) if stem(p) == stem(f) and _is_empty(p)]


def stem(path: PurePath) -> str:
    """File name without the suffixes of a capture."""
    for suffix in _ENDINGS:
        if path.name.endswith(suffix) and path.name != suffix:
            return path.name.removesuffix(suffix)
    return path.name


def find_captures(path: Path, *, max_gzip_ratio: float | None = None) -> list[Capture]:
    """Find the captures at a path, sorted by name.

    A file is one capture. In a folder, every `plugins/profile/<time>` is one capture with one file per host. Hosts that
    start a second apart each create such a folder; these folders are one capture if their profile windows overlap, or
    if the manifest names the hosts of all of them. Loose files in one folder are hosts of one run if their profile
    windows overlap, and separate runs otherwise. Other `.json` files are taken if they begin as a Chrome trace does. A
    `.trace.json` beside the `.xplane.pb` of the same host is the profiler's lossy export and is ignored, unless the
    `.xplane.pb` is empty, as it may be after a long profile. Entries whose names begin with a dot are left out. A
    `SkippedEntryWarning` names what else is: links that lead out of the folder or to nothing, files of other profilers,
    cards of CCL-Bench, and folders that cannot be read.

    Raises:
        NoCaptureError: the path does not exist, or there is no capture under it.
    """
    ratio = MAX_GZIP_RATIO if max_gzip_ratio is None else max_gzip_ratio
    return [replace(c, max_gzip_ratio=ratio) for c in _find(path)]


def _find(path: Path) -> list[Capture]:
    try:
        path.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        why = "no such file or folder" if is_missing else f"cannot be read: {reason}"
        raise NoCaptureError(f"{shown(str(path))}: {why}") from None
    if path.is_file():
        return [_single(path)]
    if not path.is_dir():
        raise NoCaptureError(f"{path}: no such file or folder")
    folders: dict[Path, list[Path]] = {}
    skipped: list[str] = []
    for file in _capture_files(path, path.resolve(), skipped):
        folders.setdefault(file.parent, []).append(file)
    more = f", and {len(skipped) - _MOST_NAMED} more" if len(skipped) > _MOST_NAMED else ""
    left_out = f"left out {', '.join(skipped[:_MOST_NAMED])}{more}"
    if not folders:
        looked_for = f"{path}: no capture in this folder; looked for {LOOKED_FOR}, also gzipped, in all its folders"
        raise NoCaptureError(f"{looked_for}; {left_out}" if skipped else looked_for)
    if skipped:
        warnings.warn(f"{path}: {left_out}", SkippedEntryWarning, stacklevel=3)
    captures = []
    for of_run in _joined(sorted(folders.items())):
        captures += _in_folder(of_run[0][0], [f for _, files in of_run for f in _without_exports(files)])
    return captures


_Folder = tuple[Path, list[Path]]


def _joined(folders: list[_Folder]) -> list[list[_Folder]]:
    beside: dict[Path, list[_Folder]] = {}
    for folder, files in folders:
        beside.setdefault(folder.parent if in_run_folder(folder) else folder, []).append((folder, files))
    runs = []
    for same in beside.values():
        runs += [same] if len(same) == 1 else _joined_sessions(same)
    return runs


def _joined_sessions(folders: list[_Folder]) -> list[list[_Folder]]:
    hosts = _hosts_of_manifest(folders[0][0])
    groups: list[tuple[list[_Folder], Window | None]] = []
    for folder, files in folders:
        windows = map(file_window, _without_exports(files))
        window = next((w for w in windows if w), None)
        names = {stem(f) for f in files}
        for group, other in groups:
            before = {stem(f) for _, of_folder in group for f in of_folder}
            if overlaps(window, other) or (not names & before and names | before <= hosts):
                group.append((folder, files))
                break
        else:
            groups.append(([(folder, files)], window))
    return [g for g, _ in groups]


def _hosts_of_manifest(folder: Path) -> set[str]:
    from tracewarehouse.ingest.capture.manifest import load_manifest

    manifest, _ = _beside(folder)
    try:
        return set(load_manifest(manifest).hosts) if manifest else set()
    except CaptureError:  # reported when the capture is ingested
        return set()


def _leads_out(entry: Path, root: Path) -> bool:
    """Whether an entry is a link to nothing, or to a place outside the folder."""
    return entry.is_symlink() and (not entry.exists() or not entry.resolve().is_relative_to(root))


def _capture_files(folder: Path, root: Path, skipped: list[str]) -> Iterator[Path]:
    """Yield the entries of a folder that are named like captures, of any kind; add those left out to `skipped`."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        if folder.resolve() == root:
            raise NoCaptureError(f"{folder}: cannot be read: {error.strerror or error}") from None
        skipped.append(f"{folder} (cannot be read: {error.strerror or error})")
        return
    for entry in entries:
        is_named = entry.name.endswith(SUFFIXES)
        if entry.name.startswith("."):
            continue
        if _leads_out(entry, root):
            if is_named or entry.is_dir() or (entry.name in _DESCRIPTIONS and not _is_there(entry, root)):
                skipped.append(f"{entry} (a link to {'another place' if entry.exists() else 'nothing'})")
        elif entry.is_dir() and not entry.is_symlink():
            yield from _capture_files(entry, root, skipped)
        elif entry.is_dir():
            continue
        elif is_named or (entry.name.endswith((".json", ".json.gz")) and _is_trace(entry)):
            yield entry
        elif foreign := foreign_kind(entry.name):
            skipped.append(f"{entry} ({foreign})")
        elif entry.suffix in (".yaml", ".yml") and entry.name not in _DESCRIPTIONS and _is_ccl_bench_card(entry):
            skipped.append(f"{entry} (a card of CCL-Bench: `tw import ccl-bench {entry.parent}` reads it)")


def _is_trace(file: Path) -> bool:
    return file.name not in _DESCRIPTIONS and not is_batches(file) and file.is_file() and is_unnamed_trace(file)


def _is_ccl_bench_card(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            head = opened.read(_LARGEST_CARD)
    except OSError:
        return False
    return all(re.search(rb"^%s:" % section, head, re.MULTILINE) for section in (b"workload", b"Model-executor"))


def _single(path: Path) -> Capture:
    manifest, card = _beside(path.parent)
    exports = [f for f in _without_exports([path, *_siblings(path)]) if stem(f) == stem(path)]
    if _is_empty(path) and exports and path not in exports:
        return replace(_single(exports[0]), name=stem(path))
    if _without_exports([path, *_siblings(path)]) not in ([path], []):
        manifest = card = None  # they describe all captures in the folder, not only this file
    return Capture(_telling(stem(path), path.parent), (path,), manifest, card)


def _siblings(path: Path) -> list[Path]:
    try:
        return [p for p in path.parent.iterdir() if p != path and p.name.endswith(SUFFIXES)]
    except OSError:  # files of a folder may be read that may not be listed
        return []


def _beside(folder: Path) -> tuple[Path | None, Path | None]:
    home = profile_folder(folder)
    root = home.resolve()
    manifest, card = (p if _is_there(p, root) else None for p in (home / name for name in _DESCRIPTIONS))
    return manifest, card


def _is_there(entry: Path, root: Path) -> bool:
    try:
        return entry.resolve(strict=True).is_relative_to(root)
    except FileNotFoundError:
        return False
    except (OSError, RuntimeError):  # a link to itself
        return True


def _without_exports(files: Iterable[Path]) -> list[Path]:
    """Leave out exports whose original is there too, and empty originals whose export is there."""
    files = list(files)
    files = [f for f in files if f.name not in _COPY_OF_TRACE] or files
    named = [(f, format_by_file_name(f.name)) for f in files]
    exported = {stem(f) for f, of in named if of and of.is_export and not _is_empty(f)}
    named = [(f, of) for f, of in named if stem(f) not in exported or not _is_empty(f)]
    complete = {stem(f) for f, of in named if of and not of.is_export}
    return [f for f, of in named if (of and not of.is_export) or stem(f) not in complete]


def _is_empty(file: Path) -> bool:
    """Whether a file, gzipped or not, has no content; an unreadable file or a pipe does not count as empty."""
    try:
        size = file.stat().st_size
        if not file.is_file():
            return False
        if file.suffix == ".gz" and 0 < size <= _LARGEST_EMPTY_GZIP:
            return not gzip.decompress(file.read_bytes())
    except (OSError, EOFError, zlib.error):
        return False
    return not size


def _in_folder(folder: Path, files: list[Path]) -> list[Capture]:
    kept = sorted(_without_exports(files), key=lambda f: natural(f.name))
    manifest, card = _beside(folder)
    if in_run_folder(folder):
        home = folder.parent.parent.parent
        name = home.name if manifest else f"{home.name}/{folder.name}" if home.name else folder.name
        return [Capture(name, tuple(kept), manifest, card)]
    ranked = _ranks_of_jobs(kept)
    groups = ranked + _overlapping([f for f in kept if not any(f in g for g in ranked)])
    if len(groups) == 1:
        return [Capture(_telling(_group_name(groups[0]), folder), tuple(groups[0]), manifest, card)]
    groups.sort(key=lambda g: natural(g[0].name))
    names = [_group_name(g) for g in groups]
    are_cycles = len(set(names)) < len(names)
    return [Capture(stem(g[0]) if are_cycles else n, tuple(g)) for n, g in zip(names, groups, strict=True)]


def _telling(name: str, folder: Path) -> str:
    """Return the name of a capture, or that of its folder if many captures have the same."""
    if not _SAYS_NOTHING.fullmatch(name):
        return name
    return stem(profile_folder(folder).resolve()) or name  # the folder of a downloaded file has its whole name


def _group_name(files: list[Path]) -> str:
    if len(files) == 1:
        return stem(files[0])
    stems = [stem(f) for f in files]
    if None not in (ranks := [rank_in_name(f.name) for f in files]) and len(set(ranks)) == len(ranks):
        return stem(files[0].parent.resolve()) or stems[0]
    if len({_RANK.sub("", s) for s in stems}) == 1:
        return _RANK.sub("", stems[0])
    shared = 0
    while shared < min(map(len, stems)) and len({s[shared] for s in stems}) == 1:
        shared += 1
    name = re.sub(r"[-_.]?(host|worker|w|process|p)?[-_.]?$", "", stems[0][:shared])
    return name or stems[0]


_OF_RANKS = (".json", ".json.gz", ".sqlite", ".sqlite.gz")
"""Suffixes of files that each rank of a job may write of itself."""


def _ranks_of_jobs(files: list[Path]) -> list[list[Path]]:
    """Group the files that the ranks of a job wrote of themselves, by rank; files of other kinds are in no group.

    Where each rank wrote several, one for each profiled cycle, the files of a cycle are a group.
    """
    jobs: dict[tuple[str, int | None], dict[int, list[tuple[str, Path]]]] = {}
    for file in files:
        found = file_rank(file) if file.name.endswith(_OF_RANKS) else None
        if found is not None and found.rank is not None:
            of_job = jobs.setdefault((found.session, found.world_size), {})
            of_job.setdefault(found.rank, []).append((found.time, file))
    groups = []
    for ranks in jobs.values():
        if len(ranks) > 1 and len({len(cycles) for cycles in ranks.values()}) == 1:
            by_cycle = zip(*(sorted(cycles) for _, cycles in sorted(ranks.items())), strict=True)
            groups += [[file for _, file in cycle] for cycle in by_cycle]
    return groups


def _overlapping(files: list[Path]) -> list[list[Path]]:
    """Group files whose profile windows overlap or that are ranks of one server; any other file is alone."""
    ranks = {_RANK.sub("", f.name) for f in files}
    if len(files) > 1 and len(ranks) == 1 and all(_RANK.match(f.name) for f in files):
        return [files]
    groups: list[tuple[list[Path], Window | None]] = []
    for file in files:
        window = file_window(file)
        for group, other in groups:
            if overlaps(window, other):
                group.append(file)
                break
        else:
            groups.append(([file], window))
    return [g for g, _ in groups]


def file_window(file: Path) -> Window | None:
    """The profile window of a file; None if it cannot be read or does not state one."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return _window(file, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)  # `tw watch` asks again at every look
def _window(file: Path, _size: int, _changed_ns: int) -> Window | None:
    return profile_window(file)


def overlaps(a: Window | None, b: Window | None) -> bool:
    """Return whether two profile windows are known, and overlap so much that both may belong to one run."""
    if a is None or b is None:
        return False
    shorter = min(a[1] - a[0], b[1] - b[0])
    return shorter > 0 and (min(a[1], b[1]) - max(a[0], b[0])) / shorter >= _MIN_OVERLAP


def ccl_bench_capture(folder: Path) -> Capture:
    """Return the capture in a folder of CCL-Bench, with the folder's name.

    Args:
        folder: a folder with one .yaml, the card, and the trace of a run, or a trace of each of its ranks.

    Raises:
        NoCaptureError: the folder does not exist, or has no card or no trace.
        CaptureError: it has several cards, or traces of several runs.
    """
    card = ccl_bench_card(folder)
    with warnings.catch_warnings(action="ignore", category=SkippedEntryWarning):
        captures = _find(folder)
    if len(captures) > 1:
        found = "; ".join(", ".join(shown(file.name) for file in capture.files) for capture in captures)
        raise CaptureError(
            f"{shown(str(folder))}: expected the trace of one run, or of each of its ranks, and found those of "
            f"{len(captures)}: {found}; remove all but one"
        )
    return replace(captures[0], name=folder.resolve().name, card=card)


def ccl_bench_card(folder: Path) -> Path:
    """Return the card in a folder of CCL-Bench."""
    at = shown(str(folder))
    with system_refusals(f"{at}: not a folder of CCL-Bench", NoCaptureError):
        cards = sorted(p for p in folder.iterdir() if p.suffix in (".yaml", ".yml") and p.is_file())
    if not cards:
        raise NoCaptureError(f"{at}: no workload card in this folder; looked for a .yaml")
    if len(cards) > 1:
        names = ", ".join(shown(p.name) for p in cards)
        raise CaptureError(f"{at}: expected one workload card, found {names}; remove all but one")
    return cards[0]
