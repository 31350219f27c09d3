"""Reads the files about a server's batches that vLLM on TPU writes beside its captures.

`batch_composition_stats_*.json` describes each profiled step and the batch before which the profiler stopped,
`all_batches_stats_*.jsonl` every batch while the profiler ran. Files named `dp<n>_*` or `rank<n>_*`, or in a folder
`dp_rank_<n>` or `rank_<n>`, belong to rank n. The server profiles into such a folder, and moves the captures of all
ranks into the folder above when it is done; the batches stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any

from tracewarehouse.ingest.errors import CaptureError, found_instead

_COMPOSITION, _ALL = "batch_composition_stats_", "all_batches_stats_"
_LARGEST = 64 << 20
_RANK = re.compile(r"(?:dp|rank)(\d{1,6})_")
_RANK_FOLDER = re.compile(r"(?:dp_)?rank_(\d{1,6})")
_COLUMNS = {
    "scheduled_tokens": "total_num_scheduled_tokens",
    "prefill_tokens": "num_prefill_tokens",
    "decode_tokens": "num_decode_tokens",
    "padded_tokens": "padded_total_num_scheduled_tokens",
    "requests": "num_reqs",
    "min_kv_length": "min_kv_len",
}
_PHASES = {
    "prefill_only": "prefill",
    "decode_only": "decode",
    "prefill_heavy": "mixed",
    "balanced": "mixed",
    "decode_heavy": "mixed",
    "ambiguous": "mixed",
}
"""Kinds of batches. Before the server had the first two, prefill_heavy and decode_heavy were all batches of which at
least 90 % prefills, or at most 20 %."""


@dataclass(frozen=True)
class Batch:
    """One row of main.step_batches: requests scheduled together; a field is None if the server does not state it.

    The server describes each batch that it profiles, and the one before which it stops; `is_profiled` marks these.
    """

    rank: int
    position: int
    step: int | None = None
    batch_id: int | None = None
    kind: str | None = None
    scheduled_tokens: int | None = None
    prefill_tokens: int | None = None
    decode_tokens: int | None = None
    padded_tokens: int | None = None
    requests: int | None = None
    min_kv_length: int | None = None
    is_profiled: bool = False

    @property
    def phase(self) -> str | None:
        """Prefill, decode, or mixed if it does both: by its tokens or, if they are not stated, by its kind."""
        if self.prefill_tokens is not None and self.decode_tokens is not None:
            has_tokens = self.prefill_tokens > 0, self.decode_tokens > 0
            if any(has_tokens):
                return {(True, False): "prefill", (False, True): "decode"}.get(has_tokens, "mixed")
        return _PHASES.get(self.kind or "")

    def row(self) -> dict[str, Any]:
        """The row as a mapping of column to value."""
        return {name: value for name, value in asdict(self).items() if name != "is_profiled"}


@dataclass(frozen=True)
class BatchFile:
    """A file about the batches of a rank."""

    path: Path
    rank: int


def batch_files(captures: Iterable[Path]) -> list[BatchFile]:
    """Return the files about batches that lie beside captures or where the server profiled, in order of their names."""
    of_home: dict[Path, list[Path]] = {}
    for path in captures:
        of_home.setdefault(profile_folder(path.parent), []).append(path)
    of_server: set[BatchFile] = set()
    for home, files in of_home.items():
        are_ranks = any(_RANK.match(f.name) for f in files)
        own = server_rank(home / "batches")
        folders = [f for f in _listed(home) if is_rank_folder(f) and _batches_in(f)]
        ranks = {f: server_rank(f / "batches") if are_ranks or len(folders) > 1 else own for f in folders}
        for folder in {home, *(f.parent for f in files), *folders}:
            of_folder = ranks.get(folder, own)
            of_server.update(BatchFile(p, _number(_RANK.match(p.name), of_folder)) for p in _batches_in(folder))
    return sorted(of_server, key=lambda f: (str(f.path.parent), natural(f.path.name)))


def profile_folder(folder: Path) -> Path:
    """Return the folder into which a profiler was told to write, given a folder with captures."""
    return folder.parent.parent.parent if in_run_folder(folder) else folder


def in_run_folder(folder: Path) -> bool:
    """Return whether a folder is a `plugins/profile/<time>`."""
    return folder.parent.name == "profile" and folder.parent.parent.name == "plugins"


def is_rank_folder(folder: Path) -> bool:
    """Return whether a folder is named after a rank and is no link."""
    return bool(_RANK_FOLDER.fullmatch(folder.name)) and folder.is_dir() and not folder.is_symlink()


def _batches_in(folder: Path) -> list[Path]:
    return [p for p in _listed(folder) if is_batches(p)]


def is_batches(path: PurePath) -> bool:
    """Return whether a file is named like a file about batches."""
    prefix = _RANK.match(path.name)
    name = path.name[prefix.end() :] if prefix else path.name
    named = (name.startswith(_COMPOSITION), ".json"), (name.startswith(_ALL), ".jsonl")
    return any(begins and path.suffix == suffix for begins, suffix in named)


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # files of a folder may be read that may not be listed
        return []


def server_rank(path: PurePath) -> int:
    """Return the rank of a server's file, from its name or the nearest folder that names one; 0 if none does."""
    in_folders = (_RANK_FOLDER.fullmatch(p.name) for p in path.parents)
    return _number(_RANK.match(path.name) or next(filter(None, in_folders), None), 0)


def _number(match: re.Match[str] | None, otherwise: int) -> int:
    return int(match[1]) if match else otherwise


def read_batches(files: Sequence[BatchFile]) -> list[Batch]:
    """Read the batches of each rank in the order in which they ran.

    If a rank has files about profiled steps, only those batches are returned, completed by the other file's facts about
    a batch with the same id. Otherwise all batches of the rank are returned.
    """
    profiled: dict[int, list[dict[str, Any]]] = {}
    every: dict[int, list[dict[str, Any]]] = {}
    for file in files:
        of_rank = (every if file.path.suffix == ".jsonl" else profiled).setdefault(file.rank, [])
        of_rank += _read(file.path)
    batches = []
    for rank in sorted(profiled.keys() | every.keys()):
        by_id: dict[int | None, dict[str, Any]] = {
            number: s for s in every.get(rank, ()) if (number := s.get("batch_id")) is not None
        }
        stats = [by_id.get(s.get("batch_id"), {}) | s for s in profiled.get(rank) or every[rank]]
        if all(s.get("batch_id") is not None for s in stats):
            stats.sort(key=lambda s: s["batch_id"])
        batches += [_batch(rank, position, s, rank in profiled) for position, s in enumerate(stats)]
    return batches


def _read(path: Path) -> Iterator[dict[str, Any]]:
    try:
        if not path.is_file():  # reading a pipe would block
            raise CaptureError(f"{path}: looked for a server's batches, {found_instead(path)}")
        if path.stat().st_size > _LARGEST:
            raise CaptureError(
                f"{path}: more than {_LARGEST >> 20} MB of batches; move it elsewhere to ingest the capture without it"
            )
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            listed = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            whole = json.loads(text)
            listed = whole if isinstance(whole, list) else [whole]
    except (OSError, ValueError, RecursionError) as error:
        raise CaptureError(f"{path}: looked for a server's batches as JSON, found none: {error}") from None
    for stats in listed:
        if not isinstance(stats, dict):
            raise CaptureError(f"{path}: looked for a JSON object per batch, found {str(stats)[:40]!r}")
        for name in ("batch_id", *_COLUMNS.values()):
            if not _is_count(stats.get(name)):
                found = str(stats[name])[:40]
                raise CaptureError(f"{path}: looked for a whole number from 0 on as {name}, found {found!r}")
        if not isinstance(stats.get("phase"), str | None):
            raise CaptureError(f"{path}: looked for a text as phase, found {str(stats['phase'])[:40]!r}")
        yield stats


def _batch(rank: int, position: int, stats: dict[str, Any], is_profiled: bool) -> Batch:
    kind = stats.get("phase")
    return Batch(
        rank=rank,
        position=position,
        batch_id=stats.get("batch_id"),
        kind=kind.rpartition(".")[2].lower() if kind else None,
        is_profiled=is_profiled,
        **{column: stats.get(name) for column, name in _COLUMNS.items()},
    )


def _is_count(value: Any) -> bool:
    return value is None or (type(value) is int and 0 <= value < 1 << 63)


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts host2 before host10."""
    return [(1, int(p), "") if p.isdecimal() else (0, 0, p) for p in re.split(r"(\d{1,18})", name) if p]
