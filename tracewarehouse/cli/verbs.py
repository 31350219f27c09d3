"""Lists the verbs of the command line, and imports each when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from tracewarehouse.cli.anywhere import with_options

VERBS = {
    "collect": "collect:collect",
    "tpu": "tpu:app",
    "sample": "sample:sample",
    "plan": "plan:plan",
    "ingest": "ingest:ingest",
    "watch": "watch:watch",
    "query": "query:query",
    "shell": "shell:shell",
    "runs": "runs:runs",
    "show": "show:show",
    "metrics": "metrics:app",
    "compare": "compare:compare",
    "check": "compare:check",
    "baseline": "compare:baseline",
    "report": "report:report",
    "open": "viewer:open_run",
    "mcp": "mcp:mcp",
    "serve": "serve:serve",
    "export": "export:app",
    "import": "imports:app",
    "build": "maintenance:build",
    "audit": "maintenance:audit",
    "fsck": "maintenance:fsck",
    "remove": "maintenance:remove",
    "gc": "maintenance:gc",
}
"""By verb, a module of this package and a function in it, or an app with verbs of its own; help has this order."""


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
