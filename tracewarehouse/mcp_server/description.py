"""Describes what SQL can read: tables, models, metrics and macros, with types, units and definitions.

The page of `skill` teaches an agent the command line and the SQL of a warehouse.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from tracewarehouse.definitions.definition import MacroHeader, Metric, MetricHeader, View
from tracewarehouse.definitions.reading import Definitions
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.mcp_server.answer import Answer, Names, Table, Tool
from tracewarehouse.warehouse import Warehouse

SKILL = Path(__file__).resolve().parents[1] / "skills" / "tracewarehouse" / "SKILL.md"
"""The page; the format of skills prescribes the name of its folder."""


def skill() -> str:
    """The text of the page."""
    return SKILL.read_text(encoding="utf-8")


class Describe(Tool):
    """Describe the tables, models, metrics and macros that SQL can read.

    Without a name: all of them, with a sentence each. With a name, such as ops, leaf_ops or tpot: its columns with
    types and units; for a metric also its definition, grain, versions and SQL.
    """

    name = "describe"
    advice = "describe one of them by its name"

    names: Annotated[Names, Field(description="Tables, models, metrics or macros; empty for the list of all.")] = []
    search: Annotated[str, Field(description="List only those whose name or sentence has this word.")] = ""

    def answer(self, warehouse: Warehouse) -> Answer:
        """The list, or the details of what the names stand for."""
        definitions = warehouse.definitions
        if not self.names:
            return catalogue(definitions, self.search)
        answers = [described(warehouse, definitions, name) for name in self.names]
        return Answer(
            tables=[t for a in answers for t in a.tables],
            metric_versions={m: v for a in answers for m, v in a.metric_versions.items()},
            notes=[n for a in answers for n in a.notes],
        )


def _first(text: str) -> str:
    joined = " ".join(text.split())
    return joined.partition(". ")[0].rstrip(".") + "."


def catalogue(definitions: Definitions, word: str) -> Answer:
    """All that SQL can read, with a sentence each, or only those with a word in their name or sentence."""
    metrics = {
        m.name: ["metric", f"metrics.{m.name}", m.header.unit, _first(m.header.description)]
        for m in definitions.aliases.values()
        if m.header.status not in ("deprecated", "compatibility")
    }
    views = [v for v in (*definitions.ordered, *definitions.macros) if v.schema in ("models", "macros")]
    rows: list[list[Any]] = [
        *(["table", f"main.{t.name}", None, _first(t.doc)] for t in TABLES.values()),
        *metrics.values(),
        *([v.schema.rstrip("s"), _called(v), None, _first(v.header.description)] for v in views),
    ]
    lower = word.lower()
    kept = [r for r in rows if lower in f"{r[1]} {r[3]}".lower()]
    notes = [
        "Times in tables are integer picoseconds since the profile start of their run (_ps).",
        "Each metric has one value per row of its grain; metrics.NAME is its newest stable version.",
    ]
    if not kept:
        raise WarehouseError(f"nothing has {word!r} in its name or sentence; describe without search lists all")
    return Answer(tables=[Table(name="relations", columns=["kind", "name", "unit", "meaning"], rows=kept)], notes=notes)


def _called(view: View) -> str:
    signature = f"({', '.join(view.header.parameters)})" if isinstance(view.header, MacroHeader) else ""
    return f"{view.qualified}{signature}"


def described(warehouse: Warehouse, definitions: Definitions, name: str) -> Answer:
    """The columns of a table, model, metric or macro, and what it means."""
    bare = name.strip().removesuffix("()").lower()
    schema, _, last = bare.rpartition(".")
    if schema in ("", "main") and last in TABLES:
        columns = [[c.name, c.type, c.unit, c.doc] for c in TABLES[last].columns]
        return Answer(
            tables=[Table(name=f"main.{last}", columns=["column", "type", "unit", "meaning"], rows=columns)],
            notes=[TABLES[last].doc],
        )
    metric = metric_named(definitions, schema, last)
    view = metric.view if metric else _view(definitions, schema, last)
    if view is None:
        known = [*TABLES, *definitions.aliases, *(v.name for v in (*definitions.ordered, *definitions.macros))]
        close = get_close_matches(last, known, n=3)
        hint = f"did you mean {' or '.join(dict.fromkeys(close))}?" if close else "describe without a name lists all"
        raise WarehouseError(f"there is no table, model, metric or macro {name!r}; {hint}")
    types: dict[str, str] = {}
    if not isinstance(view.header, MacroHeader):
        types = {r[0]: r[1] for r in warehouse.query(f"DESCRIBE {view.qualified}").rows()}
    columns = [[c, types.get(c), None, " ".join(s.split())] for c, s in view.header.columns.items()]
    tables = [Table(name=_called(view), columns=["column", "type", "unit", "meaning"], rows=columns)]
    notes = [view.header.about]
    if isinstance(view.header, MacroHeader):
        notes.append(
            f"parameters of {_called(view)}: " + " ".join(f"{n}: {s}" for n, s in view.header.parameters.items())
        )
    if isinstance(view.header, MetricHeader):
        tables.insert(0, _definition(definitions, view, view.header))
        for row in columns:
            row[2] = view.header.unit if row[0] == view.header.value else None
    versions = {metric.name: [metric.version]} if metric else {}
    return Answer(tables=tables, metric_versions=versions, notes=notes)


def metric_named(definitions: Definitions, schema: str, name: str) -> Metric | None:
    """The version that a name of schema metrics stands for, such as tpot or tpot_v1."""
    if schema not in ("", "metrics"):
        return None
    aliases = {m.name: m for m in definitions.aliases.values()}
    exact = {m.view.name: m for m in definitions.metrics}
    return aliases.get(name) or exact.get(name)


def _view(definitions: Definitions, schema: str, name: str) -> View | None:
    for view in (*definitions.ordered, *definitions.macros):
        if view.name == name and schema in ("", view.schema):
            return view
    return None


def _definition(definitions: Definitions, view: View, about: MetricHeader) -> Table:
    metric = Metric(view, about)
    versions = [str(m.version) for m in definitions.metrics if m.name == about.metric]
    facts = {
        "view": view.qualified,
        "unit": about.unit,
        "value column": about.value,
        "grain": ", ".join(about.grain),
        "polarity": about.polarity,
        "status": about.status,
        "versions": ", ".join(versions),
        "needs": "; ".join(n.reason for n in definitions.needs(metric)) or None,
        "changed": " ".join(about.changed.split()),
        "deprecated": about.deprecated,
        "sql": view.sql.strip(),
    }
    rows = [[k, v] for k, v in facts.items() if v is not None]
    return Table(name=f"definition of {about.metric} v{about.version}", columns=["fact", "value"], rows=rows)
