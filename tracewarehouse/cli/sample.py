"""`tw sample`: copy the capture that comes with the package, to try things on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from tracewarehouse.ingest.errors import WarehouseError


def sample(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to copy it into.")] = Path(
        "captures"
    ),
) -> None:
    """Copy a small real capture here, and print its folder: a tiny Llama on 4 virtual devices."""
    from tracewarehouse.samples import NAME, sample

    target = output / NAME
    try:
        shutil.copytree(sample(), target, dirs_exist_ok=True)
    except OSError as error:
        raise WarehouseError(f"{target}: cannot be written: {error.strerror or error}") from None
    typer.echo(target)
    typer.echo(f"next: tw ingest {target}", err=True)
