"""Writes the pages about metrics: an index, and one page per metric with its SQL, lineage and an example."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tracewarehouse.definitions.definition import Metric, MetricHeader
from tracewarehouse.definitions.derived import all_audits
from tracewarehouse.definitions.reading import Definitions
from tracewarehouse.queries.result import QueryResult

Query = Callable[..., QueryResult]
"""Runs SQL on a warehouse, with the parameters as keywords."""

_EXAMPLE_ROWS = 5
_INDEX = ("metric", "meaning", "unit", "better", "versions")
_PREFERRED = "llama-tp4-b4"
"""The examples come from a run whose name begins with this, if it has the metric."""


def index_page(definitions: Definitions, written_by: str) -> str:
    """The index page: every metric with its sentence and a link to its page, and what each audit looks for.

    Args:
        written_by: the program that writes the page, named in its first line.
    """
    listed: dict[str, list[tuple[str, ...]]] = {"living": [], "compatibility": [], "deprecated": []}
    for name, metric in definitions.aliases.items():
        versions = [f"{m.version}{_remark(m)}" for m in definitions.metrics if m.name == name]
        about = metric.header
        first = _line(about.description).partition(". ")[0].partition("; ")[0].rstrip(".")
        rows = listed[about.status if about.status in listed else "living"]
        rows.append((f"[{name}](metrics/{name}.md)", first, about.unit, _polarity(metric), ", ".join(versions)))
    return "".join(
        [
            _head(written_by),
            "# Metrics\n\n",
            "Each metric is a view: `metrics.<name>_v<n>`, and `metrics.<name>` for its newest stable version. ",
            "A released version never changes its meaning. A metric without its data has no row; `metrics.missing` ",
            "says why, run by run.\n\n",
            table(_INDEX, listed["living"]),
            *_unstored("Definitions of other tools", _OTHERS, listed["compatibility"]),
            *_unstored("Deprecated", _NEITHER, listed["deprecated"]),
            "\n## Audits\n\nThey find impossible facts. `tw ingest` runs them, and `tw audit RUN` lists the rows.\n\n",
            table(
                ("audit", "finds"),
                list(dict.fromkeys((a.name, _line(a.header.description)) for a in all_audits(definitions))),
            ),
        ]
    )


_NEITHER = "Their views answer, but their values are not stored with runs, and neither compared nor checked."
_OTHERS = f"They reproduce numbers that other tools publish, faults included, and no metric reads them. {_NEITHER}"


def _unstored(title: str, about: str, rows: list[tuple[str, ...]]) -> list[str]:
    return [f"\n## {title}\n\n{about}\n\n", table(_INDEX, rows)] if rows else []


def metric_pages(definitions: Definitions, query: Query, written_by: str) -> dict[str, str]:
    """The text of each metric's page, by metric; see `metric_page`."""
    return {name: metric_page(definitions, query, name, written_by) for name in definitions.aliases}


def metric_page(definitions: Definitions, query: Query, name: str, written_by: str) -> str:
    """The page of one metric.

    Args:
        query: runs SQL on a warehouse; the examples come from its runs.
        written_by: the program that writes the page, named in its first line.
    """
    return _head(written_by) + "".join(_page(definitions, query, name))


def _head(written_by: str) -> str:
    return f"<!-- Written by {written_by}; edit its file in sql/ instead. -->\n\n"


def _page(definitions: Definitions, query: Query, name: str) -> Iterator[str]:
    current = definitions.metric(name)
    about = current.header
    yield f"# {name}\n\n{_meaning(about)}"
    facts = [
        ("view", f"`metrics.{name}`, which stands for `metrics.{current.view.name}`"),
        ("unit", about.unit),
        ("better", _polarity(current)),
        ("a row for each", ", ".join(f"`{g}`" for g in about.grain)),
        ("value", f"`{about.value}`"),
    ]
    facts += [("range", f"`{c}` from {least:g} to {most:g}") for c, (least, most) in about.ranges.items()]
    if about.status != "stable":
        facts.insert(1, ("status", f"{about.status}{': ' if about.deprecated else ''}{_line(about.deprecated)}"))
    if current.view.compares_runs:
        facts.append(("scope", "compares runs: evaluated on request, stored with no run"))
    elif about.is_per_op:
        facts.append(("stored", "with no run, as it has a row for each instruction, kernel or shape; query its view"))
    if about.ccl_bench:
        facts.append(("name in CCL-Bench", f"`{about.ccl_bench}`"))
    yield table(("", ""), facts)
    yield "\n## Columns\n\n" + table(("column", "meaning"), [(c, _line(s)) for c, s in about.columns.items()])
    yield f"\n## Example\n\n{_example(query, current)}"
    if needs := definitions.needs(current):
        yield "\n## Where it is missing\n\n"
        yield "If a run has no row, `metrics.missing` names the first of these that the run does not meet:\n\n"
        yield table(("precondition", "reason, and remedy"), [(f"`{n.precondition}`", n.sentence) for n in needs])
    yield f"\n## Formula\n\n```sql\n{current.view.sql}\n```\n"
    yield f"\n## Lineage\n\n```mermaid\n{_lineage(definitions, current)}\n```\n"
    yield "\n## Versions\n\n"
    versions = [m for m in definitions.metrics if m.name == name]
    rows = [(m.version, m.header.status, _line(m.header.changed), _line(m.header.deprecated)) for m in versions]
    yield table(("version", "status", "what it changed", "why not to use it"), rows)
    for m in versions:
        if m is not current and m.version != current.version:
            yield f"\n### Version {m.version}\n\n{_meaning(m.header)}```sql\n{m.view.sql}\n```\n"


_ABSENT = "None of the runs that this page was made from has the metric.\n"


def _example(query: Query, metric: Metric) -> str:
    """Example rows: of one run, so that no other run's events are read, or of all runs that the metric compares."""
    view = f"metrics.{metric.name}"
    names = [c for c in metric.header.columns if c != "run_id"]
    if metric.view.compares_runs:
        whose, where = "", ""
    else:
        # a run with stored values has rows; if the metric stores none, one run is tried
        example = query(
            "SELECT r.run_id, r.name FROM main.runs AS r LEFT JOIN main.metric_values AS v "
            "ON v.run_id = r.run_id AND v.metric = $metric AND v.version = $version "
            "GROUP BY r.run_id, r.name "
            "ORDER BY count(v.run_id) = 0, NOT starts_with(r.name, $preferred), r.name, r.run_id LIMIT 1",
            metric=metric.name,
            version=metric.version,
            preferred=_PREFERRED,
        ).rows()
        if not example:
            return _ABSENT
        [(run_id, name)] = example
        whose, where = f"From run `{name}`:\n\n", f"WHERE run_id = '{run_id}'\n"
    sql = f"SELECT {', '.join(names)}\nFROM {view}\n{where}ORDER BY ALL LIMIT {_EXAMPLE_ROWS}"
    rows = [[_shown(v) for v in row] for row in query(sql).rows()]
    if not rows:
        return _ABSENT
    return f"{whose}```sql\n{sql}\n```\n\n{table(names, rows)}"


def _lineage(definitions: Definitions, metric: Metric) -> str:
    lines = []
    for view in (*definitions.upstream(metric.view), metric.view):
        for read in sorted(view.depends_on):
            source, target = (n.replace(".", "_") for n in (read, view.qualified))
            shape = f'{source}[("{read}")]' if read.startswith("main.") else f'{source}["{read}"]'
            lines.append(f'  {shape} --> {target}["{view.qualified}"]')
    # sorted, so that another metric does not change the order
    return "\n".join(["flowchart LR", *sorted(lines)])


def _shown(value: object) -> str:
    if value is None:
        return "NULL"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _meaning(about: MetricHeader) -> str:
    notes = f"Notes: {_line(about.notes)}\n\n" if about.notes else ""
    return f"{_line(about.description)}\n\n{notes}"


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _polarity(metric: Metric) -> str:
    polarity = metric.header.polarity
    return "neither" if polarity == "none" else polarity.partition("_")[0]


def _remark(metric: Metric) -> str:
    return "" if metric.header.status == "stable" else f" ({metric.header.status})"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def _cell(text: object) -> str:
    return str(text if text is not None else "").replace("|", "\\|").replace("\n", " ")
