"""Real captures that the fuzzers damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "data" / "captures"


def capture_files(traces: Path | None, suffix: str) -> list[Path]:
    """Files of the repository's captures and of another folder, in an order of their own."""
    return [f for folder in (DATA, traces) if folder for f in sorted(folder.rglob(f"*{suffix}")) if f.is_file()]


def hlo_protos(traces: Path | None) -> Iterator[bytes]:
    """The Hlo Protos that captures embed."""
    from xplane_reference import read_xplane

    for file in capture_files(traces, ".xplane.pb"):
        for plane in read_xplane(file).planes:
            for metadata in plane.event_metadata:
                for stat in metadata.stats:
                    if isinstance(stat.value, bytes) and stat.name.lower().replace("_", " ") == "hlo proto":
                        yield stat.value


def hlo_texts(traces: Path | None) -> Iterator[str]:
    """The HLO texts that captures hold, where there are any: only those of TPUs do."""
    from xplane_reference import read_xplane

    for file in capture_files(traces, ".xplane.pb"):
        for plane in read_xplane(file).planes:
            for metadata in plane.event_metadata:
                if metadata.name.startswith("%") and " = " in metadata.name:
                    yield metadata.name
