"""`tw` without a verb, and `tw sample`: the first steps."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracewarehouse.cli.options import a_folder
from tracewarehouse.cli.output import say_flags, say_note
from tracewarehouse.ingest.errors import WarehouseError, printable, system_refusals

if TYPE_CHECKING:
    from tracewarehouse.cli.options import WarehouseOptions
    from tracewarehouse.warehouse import Warehouse

_SHOWN = 10

_RUNS = """
WITH inferred AS (
    SELECT run_id, string_agg(coalesce(axis, '?') || '=' || size, ',' ORDER BY "position") || ' (inferred)' AS mesh
    FROM main.mesh_axes WHERE source = 'inferred' GROUP BY run_id
)
SELECT
    r.name,
    r.device_count AS devices,
    r.backend,
    coalesce(r.mesh, i.mesh) AS mesh,
    max(v.value) FILTER (WHERE v.metric = 'tpot') AS tpot_ms
FROM main.runs AS r
LEFT JOIN metrics.all_values AS v
    ON v.run_id = r.run_id AND v.metric = 'tpot' AND (v.dimensions ->> '$.clock') = 'device'
LEFT JOIN inferred AS i ON i.run_id = r.run_id
GROUP BY r.run_id, r.name, r.device_count, r.backend, r.mesh, i.mesh
ORDER BY r.name, r.run_id
"""


def overview(place: WarehouseOptions) -> None:
    """Print what is in the warehouse, what is wrong there, and the next commands."""
    from pathlib import Path

    from tracewarehouse.ingest.capture.locations import is_remote

    if not is_remote(place.warehouse) and not Path(place.warehouse).exists():
        typer.echo(f"There is no warehouse at {printable(place.warehouse)} yet.\n")
        _print_next(
            [
                ("tw sample", "copy a small real capture here"),
                ("tw ingest captures", "turn captures into runs of the warehouse"),
                ("tw query CAPTURE SQL", "or ask a capture directly"),
                ("tw --help", "all commands; -w names another warehouse"),
            ]
        )
        return
    with place.open() as warehouse:
        _print_runs(warehouse)


def _print_runs(warehouse: Warehouse) -> None:
    from tracewarehouse.queries.output import write
    from tracewarehouse.queries.result import flagged

    unread = warehouse.unread_runs()
    runs = sorted(warehouse.lake.runs(), key=lambda r: r.name) if not unread or warehouse.lake.listing()[0] else []
    typer.echo(f"{len(runs)} run{'s' * (len(runs) != 1)} in {printable(str(warehouse.path))}\n")
    if not runs:
        for run in unread:
            say_note(str(run))
        _print_next([("tw sample", "copy a small real capture here"), ("tw ingest captures", "turn it into a run")])
        return
    rows = warehouse.rows(f"{_RUNS} LIMIT {_SHOWN}")
    write(rows, "table")
    if len(runs) > _SHOWN:
        typer.echo(f"and {len(runs) - _SHOWN} more; `tw runs` lists all")
    typer.echo()
    for remark in _remarks(warehouse):
        say_note(remark)
    say_flags(flagged(runs))
    first = shlex.quote(printable(rows.dicts()[0]["name"]))
    _print_next(
        [
            (f"tw show {first}", "main numbers, what dominates a step"),
            (f"tw metrics values {first}", "the values of all metrics"),
            ("tw report -o report.html", "the same as pictures, in one page"),
            ("tw shell", "SQL over all tables and metrics"),
            ("tw --help", "all commands"),
        ]
    )


def _remarks(warehouse: Warehouse) -> Iterator[str]:
    if unread := warehouse.unread_runs():
        yield f"{len(unread)} runs cannot be read; `tw runs` names them"
    if stale := warehouse.stale_runs():
        yield f"{len(stale)} runs have values of older definitions; run `tw metrics refresh`"
    if not warehouse.is_database_current():
        yield "warehouse.duckdb is older than the runs; run `tw build`"


def _print_next(commands: list[tuple[str, str]]) -> None:
    widest = max(len(command) for command, _ in commands)
    is_beside = all(widest + len(meaning) + 4 <= shutil.get_terminal_size().columns for _, meaning in commands)
    typer.echo("next:")
    for command, meaning in commands:
        typer.echo(f"  {command:<{widest}}  {meaning}" if is_beside else f"  {command}\n      {meaning}")


def sample(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to copy it into.", callback=a_folder)
    ] = Path("captures"),
) -> None:
    """Copy a small real capture here, and print its folder: a tiny Llama on 4 virtual devices."""
    from tracewarehouse.ingest.capture.locations import NAME, sample

    target = output / NAME
    with system_refusals(f"{target}: cannot be written", WarehouseError):
        shutil.copytree(sample(), target, dirs_exist_ok=True)
    typer.echo(target)
    typer.echo(f"next: tw ingest {target}", err=True)
