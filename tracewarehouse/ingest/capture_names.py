"""Names what the collector and ingest share: the files of a capture and the axes of a mesh."""

from __future__ import annotations

from pathlib import Path

XPLANE_SUFFIX = ".xplane.pb"
"""End of the name of an xplane file, after the name of its host."""
CHROME_SUFFIX = ".trace.json"
"""End of the name of a Chrome trace, after the name of its host."""


def xplane_files(folder: Path) -> list[Path]:
    """Return the xplane files anywhere in a folder, sorted by path."""
    return sorted(folder.rglob(f"*{XPLANE_SUFFIX}"))


def host_name(xplane_file: Path) -> str:
    """Return the name of the host that recorded an xplane file."""
    return xplane_file.name.removesuffix(XPLANE_SUFFIX)


AXES = ("pp", "dp", "ep", "sp", "tp")
"""Mesh axes, outermost first, in the order in which device ids are laid out by default."""
