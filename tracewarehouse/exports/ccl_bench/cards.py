"""Makes runs of published rows whose trace is not at hand, from their cards and published values in a checkout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tracewarehouse.exports.ccl_bench.card import card_of
from tracewarehouse.exports.ccl_bench.values import published_rows
from tracewarehouse.ingest.capture.card import PUBLISHED, WorkloadCard, dump_card, load_card
from tracewarehouse.ingest.capture.sources import Capture, ccl_bench_card
from tracewarehouse.ingest.capture_names import XPLANE_SUFFIX
from tracewarehouse.ingest.errors import CaptureError, TracewarehouseError, shown

DATA = Path("website") / "benchmark_data.json"


def card_capture(folder: Path, staging: Path) -> Capture:
    """Write a capture without events for a row of a checkout: its card, with the row's published values in it.

    Where the card cannot be read, its facts are those that the row publishes, and the description says so.

    Raises:
        NoCaptureError: the folder has no card.
        CaptureError: the card cannot be read, and the row publishes no facts of it that can be.
        TracewarehouseError: the folder is not in a checkout with website/benchmark_data.json, or no row has its name.
    """
    file, name = ccl_bench_card(folder), folder.resolve().name
    data = folder.resolve().parent.parent / DATA
    row = published_rows(data).get(name) if data.is_file() else None
    if row is None:
        raise TracewarehouseError(
            f"{shown(str(folder))}: no trace in this folder, and no row of {shown(str(data))} has its name; CCL-Bench "
            "keeps traces outside its repository, at trace_url"
        )
    try:
        card = load_card(file)
    except CaptureError as error:
        card = _published_card(row, error)
    home = staging / name
    home.mkdir()
    dump_card(card.model_copy(update={PUBLISHED: _numbers(row["metrics"])}), home / "card.yaml")
    profile = home / f"{name}{XPLANE_SUFFIX}"
    profile.write_bytes(_no_events(name))
    return Capture(name, (profile,), card=home / "card.yaml")


def _published_card(row: Mapping[str, Any], unread: CaptureError) -> WorkloadCard:
    shown_of_it = row.get("metadata") or {}
    try:
        card = card_of(shown_of_it)
    except ValidationError:
        raise unread from None
    said = f"[the card cannot be read, and these are the facts that the website shows: {shown(str(unread))}]"
    return card.model_copy(update={"description": f"{card.description} {said}".strip()})


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}


def _no_events(host: str) -> bytes:
    """The bytes of an XSpace of a host, with a plane without lines; the name makes it a run of its own."""
    return _field(1, _field(2, b"/host:metadata")) + _field(4, host.encode())


def _field(number: int, content: bytes) -> bytes:
    """A field of the wire format, of less than 16 kB."""
    length = len(content)
    return bytes([number << 3 | 2, *([length] if length < 128 else [length & 127 | 128, length >> 7])]) + content
