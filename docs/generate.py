"""Writes the generated parts of the documentation: tables.md, metrics.md and the pictures.

python docs/generate.py            write what has changed
python docs/generate.py --check    write nothing; exit 1 where a text is not current
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dashboards.report import CHARTS, save_chart
from ingest.schema import SCHEMA_VERSION, TABLES
from tracewarehouse.warehouse import Warehouse, open_warehouse

DOCS = Path(__file__).resolve().parent
CAPTURES = DOCS.parent / "data" / "captures"
PICTURES = {"timeline": "deepseek", "steps": "llama", "traffic": "deepseek", "exposed-communication": "deepseek"}
"""Charts that the documentation shows, and the beginning of the name of the capture that they are drawn from."""

_HEAD = "<!-- Written by docs/generate.py; edit {source} instead. -->\n\n"


def cell(text: object) -> str:
    """Text for a cell of a Markdown table."""
    return str(text if text is not None else "").replace("|", "\\|").replace("\n", " ")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(cell(c) for c in row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def tables_page() -> str:
    """Every table with its columns, from the schema."""
    parts = [
        _HEAD.format(source="ingest/schema.py"),
        "# Tables\n\n",
        f"Schema version {SCHEMA_VERSION}. Times are integer picoseconds since the run's profile start, intervals are ",
        "half open, sizes decimal. **Bold** columns together identify a row. Unknown is NULL.\n",
    ]
    for t in TABLES.values():
        rows = [(f"**{c.name}**" if c.is_key else c.name, c.type, c.unit, c.doc) for c in t.columns]
        parts += [f"\n## {t.name}\n\n{t.doc}\n\n", table(("column", "type", "unit", "meaning"), rows)]
    return "".join(parts)


def metrics_page(warehouse: Warehouse) -> str:
    """Every metric version, from the catalogue."""
    parts = [
        _HEAD.format(source="sql/metrics/"),
        "# Metrics\n\n",
        "Each metric is a view: `metrics.<name>_v<n>`, and `metrics.<name>` for its newest stable version. ",
        "A released version never changes its meaning. A metric without its data has no row.\n",
    ]
    for m in warehouse.metrics().dicts():
        columns = m["columns"] if isinstance(m["columns"], dict) else json.loads(m["columns"])
        parts += [
            f"\n## {m['metric']} v{m['version']}\n\n{m['description'].strip()}\n\n",
            f"Unit: {m['unit']}. Polarity: {m['polarity'].replace('_', ' ')}. Status: {m['status']}. ",
            f"A row is one of: {', '.join(f'`{g}`' for g in _names(m['grain']))}. Value: `{m['value']}`.",
            f" Deprecated: {m['deprecated']}" if m["deprecated"] else "",
            f" CCL-Bench asks the same as `{m['ccl_bench']}`." if m["ccl_bench"] else "",
            "\n\n",
            table(("column", "meaning"), list(columns.items())),
        ]
    return "".join(parts)


def _names(grain: object) -> list[str]:
    if isinstance(grain, str):
        return [g.strip(" []\"'") for g in grain.split(",")]
    return [str(g) for g in grain] if isinstance(grain, list) else []


def write_pictures(warehouse: Warehouse) -> None:
    """Draw the charts that the documentation shows from the captures in data/."""
    runs = warehouse.lake.runs()
    for chart_name, prefix in PICTURES.items():
        run = next((r for r in sorted(runs, key=lambda r: r.name) if r.name.startswith(prefix)), None)
        chart = CHARTS[chart_name](warehouse, run.run_id) if run else None
        if chart is not None:
            (DOCS / "images").mkdir(exist_ok=True)
            save_chart(chart, DOCS / "images" / f"{chart_name}.png")


def main() -> int:
    """Write or check; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a text is not current")
    is_check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder, open_warehouse(Path(folder) / "warehouse", create=True) as warehouse:
        stale = []
        for name, text in (("tables.md", tables_page()), ("metrics.md", metrics_page(warehouse))):
            path = DOCS / name
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                stale.append(name)
                if not is_check:
                    path.write_text(text, encoding="utf-8")
        if is_check:
            for name in stale:
                print(f"docs/{name} is not current: run `make docs`", file=sys.stderr)
            return 1 if stale else 0
        if CAPTURES.is_dir():
            warehouse.ingest(CAPTURES)
            write_pictures(warehouse)
        print(f"written: {', '.join(stale) or 'no text has changed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
