"""Lists the verbs, imports each when it is called, and gives it the options that may stand before or after it."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from tracewarehouse.cli.output import note_format

VERBS = {
    "collect": "collect:collect",
    "tpu": "tpu:app",
    "sample": "overview:sample",
    "plan": "plan:plan",
    "ingest": "ingest:ingest",
    "watch": "ingest:watch",
    "query": "query:query",
    "shell": "query:shell",
    "runs": "runs:runs",
    "show": "runs:show",
    "metrics": "metrics:app",
    "compare": "compare:compare",
    "check": "compare:check",
    "baseline": "compare:baseline",
    "report": "report:report",
    "chart": "report:chart",
    "open": "serve:open_run",
    "mcp": "serve:mcp",
    "serve": "serve:serve",
    "export": "export:app",
    "import": "ingest:import_app",
    "build": "maintenance:build",
    "audit": "maintenance:audit",
    "fsck": "maintenance:fsck",
    "remove": "maintenance:remove",
    "gc": "maintenance:gc",
}
"""By verb, a module of this package and a function in it, or an app with verbs of its own; help has this order."""

_RUN = "llama-tp4-b4-i16-o17"
EXAMPLES = {
    "collect": "tw collect tiny --dry-run",
    "tpu plan": "tw tpu plan tpu_v6e --generation v6e",
    "tpu doctor": "tw tpu doctor tpu_v6e --generation v6e --bucket study-weights",
    "tpu create": "tw tpu create two --type v6e-4 --queue 6h",
    "tpu run": "tw tpu run one tpu_v6e -o captures --token",
    "tpu fetch": "tw tpu fetch one tpu_v6e -o captures",
    "tpu delete": "tw tpu delete one",
    "sample": "tw sample",
    "plan": "tw plan llama --slices v6e:2x4 --meshes tp=8",
    "ingest": "tw ingest captures",
    "watch": "tw watch captures --until-idle 60",
    "query": "tw query 'SELECT name, mesh FROM runs'",
    "shell": "tw shell",
    "runs": "tw runs --notes",
    "show": f"tw show {_RUN}",
    "metrics list": "tw metrics list",
    "metrics show": "tw metrics show tpot",
    "metrics values": f"tw metrics values {_RUN} -m tpot,ttft",
    "metrics docs": "tw metrics docs tpot",
    "metrics refresh": "tw metrics refresh",
    "metrics new": "tw --sql mine metrics new ops_per_phase",
    "metrics lock": "tw --sql mine metrics lock",
    "metrics new-version": "tw --sql mine metrics new-version ops_per_phase",
    "compare": f"tw compare llama-tp4-sp-b4-i16-o9 {_RUN} --force",
    "baseline": f"tw baseline {_RUN} -o baseline.ndjson",
    "check": f"tw check {_RUN} --against baseline.ndjson",
    "report": "tw report -o report.html",
    "chart": f"tw chart traffic {_RUN} -o traffic.pdf",
    "open": f"tw open {_RUN}",
    "mcp": "tw mcp --skill",
    "serve": "tw serve --port 0 --no-browser",
    "export chrome": f"tw export chrome {_RUN} -o run.json.gz",
    "export ccl-bench": f"tw export ccl-bench {_RUN} --out rows",
    "export perfetto": f"tw export perfetto {_RUN} --step 0-2",
    "export chakra": f"tw export chakra {_RUN}",
    "export duckdb": "tw export duckdb -o runs.duckdb",
    "export iceberg": "tw export iceberg -o iceberg",
    "export rows": "tw export rows tpot -o tpot.csv",
    "import ccl-bench": "tw import ccl-bench ccl-bench/trace_collection/NAME",
    "build": "tw build",
    "audit": f"tw audit {_RUN}",
    "fsck": "tw fsck",
    "remove": f"tw remove {_RUN}",
    "gc": "tw gc --dry-run",
}
"""By verb, a call of it, which its help shows. Tests make them, in this order where no page has them."""


class Verbs(TyperGroup):
    """The group of all verbs; it imports the module of a verb when somebody asks for it.

    Importing every module, and making a command of every function, takes as long as many questions do.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the verbs."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a verb; None if there is no such verb."""
        # for an unknown verb, typer looks for a similar one among all commands, so all are made
        for name in [cmd_name] if cmd_name in VERBS else VERBS:
            if name not in self.commands:
                self.commands[name] = _made(name)
        return self.commands.get(cmd_name)


def _made(verb: str) -> Any:
    module, _, attribute = VERBS[verb].partition(":")
    command = getattr(import_module(f"tracewarehouse.cli.{module}"), attribute)
    app = typer.Typer(rich_markup_mode=None)
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=verb)
    else:
        app.command(verb)(command)
    return with_options(get_group(app).commands[verb])


_WITHOUT_WAREHOUSE = {"collect", "tpu", "sample"}


def set_warehouse(context: typer.Context, value: str | None) -> None:
    """Make a command use another warehouse than the one named before the verb."""
    if value is not None and not context.resilient_parsing:
        context.obj = replace(context.obj, warehouse=value)


def set_sql(context: typer.Context, value: Path | None) -> None:
    """Make a command use the metrics of a folder."""
    if value is not None and not context.resilient_parsing:
        context.obj = replace(context.obj, sql=value)


def set_memory_limit(value: str | None) -> None:
    """Bound the memory of queries."""
    if value is not None:
        os.environ["TRACEWAREHOUSE_MEMORY_LIMIT"] = value


def _set_json(context: typer.Context, value: bool) -> None:
    if value:
        note_format(context, "json")


def _set_csv(context: typer.Context, value: bool) -> None:
    if value:
        note_format(context, "csv")


_app = typer.Typer(add_completion=False)


@_app.command()
def _options(
    warehouse: Annotated[
        str | None,
        typer.Option("--warehouse", "-w", help="As before the verb.", callback=set_warehouse, expose_value=False),
    ] = None,
    sql: Annotated[
        Path | None, typer.Option("--sql", help="As before the verb.", callback=set_sql, expose_value=False)
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="As before the verb.", callback=set_memory_limit, expose_value=False)
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Short for --format json.", callback=_set_json, expose_value=False)
    ] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Short for --format csv.", callback=_set_csv, expose_value=False)
    ] = False,
) -> None: ...


@cache
def _parameters() -> list[Any]:
    return get_command(_app).params


def with_options(verb: Any) -> Any:
    """Give a command, or every command of a group, the options that may stand before the verb.

    A command with --format also gets its short forms. An option that a command has already stays its own.

    Args:
        verb: the command that typer makes of a function, or the group that it makes of an app.
    """
    for name, command in _commands(verb).items():
        command.epilog = f"Example: {EXAMPLES[name]}"
        if verb.name in _WITHOUT_WAREHOUSE:
            continue
        own = {p.name for p in command.params}
        short = {"json", "csv"} if "output_format" in own else set()
        wanted = {"warehouse", "sql", "memory_limit", *short} - own
        command.params += [p for p in _parameters() if p.name in wanted]
    return verb


def _commands(verb: Any) -> dict[str, Any]:
    if hasattr(verb, "commands"):
        return {f"{verb.name} {name}": command for name, command in verb.commands.items()}
    return {verb.name: verb}
