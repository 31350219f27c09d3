"""Checks the folder of a warehouse before anything reads or writes it."""

from __future__ import annotations

import shlex
from contextlib import suppress
from glob import glob
from pathlib import Path

from tracewarehouse.ingest.errors import WarehouseError, printable, shown, system_refusals


def check_folder(folder: Path, *, create: bool) -> None:
    """Make sure that a folder is a warehouse, or an empty one that can become it.

    Args:
        create: create it if it does not exist, and accept one with other files in it.
    """
    _check_path(folder)
    with system_refusals(f"{shown(str(folder))}: cannot be opened", WarehouseError):
        exists = folder.exists()
    named = shlex.quote(str(folder))  # a folder ~ is no home
    if exists and not folder.is_dir():
        raise WarehouseError(
            f"{folder} is a file, not a warehouse; to query a capture itself, `tw query {named} SQL`; to keep it, "
            f"`tw -w FOLDER ingest {named}`"
        )
    if not folder.is_dir() and not create:
        raise WarehouseError(
            f"no warehouse at {folder}; make one with `tw -w {named} ingest CAPTURE`, or name another with -w or "
            "TRACEWAREHOUSE (Python: tw.open(path, create=True))"
        )
    with system_refusals(f"{folder}: cannot be opened as a warehouse", WarehouseError):
        folder.mkdir(parents=True, exist_ok=True)
        is_other = holds_other_files(folder)
    if is_other and not create:
        raise WarehouseError(
            f"{folder} holds files but no warehouse (no folders lake and manifests); name another with -w"
        )


def holds_other_files(folder: Path) -> bool:
    """Whether a folder is neither empty nor a warehouse.

    Raises:
        OSError: the folder cannot be listed.
    """
    return not (folder / "manifests").is_dir() and not (folder / "lake").is_dir() and any(folder.iterdir())


def _check_path(folder: Path) -> None:
    """Refuse a folder for whose path DuckDB would find no files, or the files of another folder."""
    path = str(folder.absolute())
    with suppress(OSError, RuntimeError, ValueError):  # reported when the folder is opened
        path = str(folder.resolve())
    try:
        path.encode()
    except UnicodeEncodeError:
        raise WarehouseError(f"{shown(str(folder))}: a warehouse's path must be UTF-8; rename the folder") from None
    if special := [c for c in path if c in "?\\" or c < " "]:
        raise WarehouseError(
            f"{shown(path)}: a warehouse's path cannot have the character {printable(special[0])}; rename the folder, "
            "or name another with -w"
        )
    if others := sorted({*glob(path)} - {path}):  # noqa: PTH207  the path is absolute
        raise WarehouseError(
            f"{shown(path)}: a warehouse's path cannot be a pattern that others match, such as {shown(others[0])}; "
            "rename the folder, or name another with -w"
        )
