"""Reads the files about a server's batches that vLLM on TPU writes beside its captures.

`batch_composition_stats_*.json` describes each profiled step, `all_batches_stats_*.jsonl` every batch while the
profiler ran. Files named `dp<n>_*`, or in a folder `dp_rank_<n>`, belong to data-parallel rank n.
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
_RANK = re.compile(r"dp(?:_rank_)?(\d{1,6})(?:_|$)")
_COLUMNS = {
    "scheduled_tokens": "total_num_scheduled_tokens",
    "prefill_tokens": "num_prefill_tokens",
    "decode_tokens": "num_decode_tokens",
    "padded_tokens": "padded_total_num_scheduled_tokens",
    "requests": "num_reqs",
    "min_kv_length": "min_kv_len",
}
_PHASES = {"prefill_only": "prefill", "decode_only": "decode"}


@dataclass(frozen=True)
class Batch:
    """One row of main.step_batches: what was scheduled together; a field is None if the server does not state it."""

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

    @property
    def phase(self) -> str | None:
        """The phase of a batch that only prefills or only decodes; from its tokens if its kind is not stated."""
        if self.kind:
            return _PHASES.get(self.kind)
        if self.prefill_tokens is None or self.decode_tokens is None:
            return None
        has_tokens = self.prefill_tokens > 0, self.decode_tokens > 0
        return {(True, False): "prefill", (False, True): "decode"}.get(has_tokens)

    def row(self) -> dict[str, Any]:
        """The row as a mapping of column to value."""
        return asdict(self)


def batch_files(folders: Iterable[Path]) -> list[Path]:
    """The files about batches in those of the folders that can be listed, sorted by name."""
    files = {p for folder in folders for p in _listed(folder) if _is_batches(p)}
    return sorted(files, key=lambda p: (str(p.parent), _numbers(p.name)))


def _is_batches(path: Path) -> bool:
    name = re.sub(r"^dp\d+_", "", path.name)
    named = (name.startswith(_COMPOSITION), ".json"), (name.startswith(_ALL), ".jsonl")
    return any(begins and path.suffix == suffix for begins, suffix in named)


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # files of a folder may be read that may not be listed
        return []


def rank_of(path: PurePath) -> int:
    """Data-parallel rank of a file, from its name or else from its folder; 0 if neither states it."""
    match = _RANK.match(path.name) or _RANK.fullmatch(path.parent.name)
    return int(match[1]) if match else 0


def read_batches(files: Sequence[Path]) -> list[Batch]:
    """Read the batches of each rank in the order in which they ran.

    If a rank has files about profiled steps, only those batches are returned, completed by the other file's facts about
    a batch with the same id. Otherwise all batches of the rank are returned.

    Raises:
        CaptureError: a file cannot be read, or does not have the server's format.
    """
    profiled: dict[int, list[dict[str, Any]]] = {}
    every: dict[int, list[dict[str, Any]]] = {}
    for path in files:
        of_rank = (every if path.suffix == ".jsonl" else profiled).setdefault(rank_of(path), [])
        of_rank += _read(path)
    batches = []
    for rank in sorted(profiled.keys() | every.keys()):
        by_id: dict[int | None, dict[str, Any]] = {
            number: s for s in every.get(rank, ()) if (number := s.get("batch_id")) is not None
        }
        stats = [by_id.get(s.get("batch_id"), {}) | s for s in profiled.get(rank) or every[rank]]
        if all(s.get("batch_id") is not None for s in stats):
            stats.sort(key=lambda s: s["batch_id"])
        batches += [_batch(rank, position, s) for position, s in enumerate(stats)]
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


def _batch(rank: int, position: int, stats: dict[str, Any]) -> Batch:
    kind = stats.get("phase")
    return Batch(
        rank=rank,
        position=position,
        batch_id=stats.get("batch_id"),
        kind=kind.rpartition(".")[2].lower() if kind else None,
        **{column: stats.get(name) for column, name in _COLUMNS.items()},
    )


def _is_count(value: Any) -> bool:
    return value is None or (type(value) is int and 0 <= value < 1 << 63)


def _numbers(name: str) -> list[tuple[int, int, str]]:
    """Sort key that puts 2 before 10."""
    return [(1, int(p), "") if p.isdecimal() else (0, 0, p) for p in re.split(r"(\d{1,18})", name) if p]
