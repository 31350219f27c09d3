"""`tw runs`: what is in the warehouse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracewarehouse.output import Format, format_of, write

_SUMMARY = r"""
SELECT
    run_id,
    name,
    backend,
    device_count AS devices,
    mesh,
    event_count AS events,
    coalesce(nullif(concat_ws(
        ', ',
        CASE WHEN is_truncated THEN 'truncated' END,
        'missing hosts: ' || missing_hosts,
        'missing devices: ' || missing_devices,
        'profiler errors: ' || len(string_split(profiler_errors, chr(10))),
        'profiler warnings: ' || len(string_split(profiler_warnings, chr(10))),
        'notes: ' || len(string_split(quality_notes, chr(10)))
    ), ''), 'ok') AS quality
FROM main.runs
ORDER BY name, run_id
"""


def runs(
    context: typer.Context,
    notes: Annotated[bool, typer.Option("--notes", help="Also print what was noticed about each capture.")] = False,
    output_format: Annotated[Format | None, typer.Option("--format", help="Default: table.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")] = None,
) -> None:
    """List the runs with their quality flags; `SELECT * FROM main.runs` has every fact."""
    with context.obj.open() as warehouse:
        if not warehouse.lake.runs():
            typer.echo(f"the warehouse {context.obj} is empty; add runs with `tw ingest CAPTURE`", err=True)
        result = warehouse.query(_SUMMARY)
        remarks = warehouse.query(
            "SELECT name, concat_ws(chr(10), profiler_errors, profiler_warnings, quality_notes) FROM main.runs "
            "ORDER BY name, run_id"
        )
    write(result, output_format or (format_of(output) if output else "table"), output)
    if notes:
        for name, text in remarks.rows():
            for line in text.splitlines():
                typer.echo(f"{name}: {line}", err=True)
