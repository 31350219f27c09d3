"""`tw export`: runs and rows in the formats of other tools.

A subcommand only reads its options; it imports its module of `tracewarehouse.exports` when it is called.
"""

from __future__ import annotations

import typer

app = typer.Typer(
    help="Write runs and rows in the formats of other tools.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def export() -> None:
    """Write runs and rows in the formats of other tools."""
