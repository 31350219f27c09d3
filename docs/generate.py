"""Writes the generated parts of the documentation: tables.md, metrics.md, metrics/<name>.md, the lists of charts.md.

It also draws the pictures.

python docs/generate.py            write what has changed
python docs/generate.py --check    write nothing; exit 1 where a text is not current
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tracewarehouse.dashboards.registry import CHARTS, Chart
from tracewarehouse.definitions.pages import index_page, metric_pages, table
from tracewarehouse.ingest.devices.flags import FLAGS
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION, TABLES
from tracewarehouse.warehouse import Warehouse, open_warehouse

DOCS = Path(__file__).resolve().parent
CAPTURES = DOCS.parent / "data" / "captures"
WRITTEN_BY = "docs/generate.py"
_HEAD = "<!-- Written by docs/generate.py; edit {source} instead. -->\n\n"


def tables_page() -> str:
    """Every table with its columns, from the schema."""
    parts = [
        _HEAD.format(source="ingest/lake/schema.py"),
        "# Tables\n\n",
        f"Schema version {SCHEMA_VERSION}. Times are integer picoseconds since the run's profile start, intervals are ",
        "half open, sizes decimal. **Bold** columns together identify a row. Unknown is NULL.\n",
    ]
    for t in TABLES.values():
        rows = [(f"**{c.name}**" if c.is_key else c.name, c.type, c.unit, c.doc) for c in t.columns]
        parts += [f"\n## {t.name}\n\n{t.doc}\n\n", table(("column", "type", "unit", "meaning"), rows)]
        if t.name == "quality_flags":
            parts += ["\nThe flags:\n\n", table(("flag", "meaning"), FLAGS.items())]
    return "".join(parts)


def charts_page(page: str) -> str:
    """The page of charts with its lists made anew: each chart's function, its name, and what the function draws."""
    for subject in ("run", "runs", "comparison"):
        begin, end = f"<!-- {subject}: written by {WRITTEN_BY} -->\n", "<!-- end -->"
        before, _, rest = page.partition(begin)
        rows = [_chart_row(c) for c in CHARTS.values() if c.subject == subject]
        listed = table(("function", "name", "draws"), rows)
        page = f"{before}{begin}\n{listed}\n{end}{rest.partition(end)[2]}"
    return page


def _chart_row(chart: Chart) -> tuple[str, str, str]:
    described = chart.draw.__doc__ or ""
    return f"`{chart.draw.__name__}`", chart.name, " ".join(described.partition("\n\n")[0].split())


def texts(warehouse: Warehouse) -> dict[Path, str]:
    """The text of every generated page, by file."""
    definitions = warehouse.definitions
    pages = {DOCS / "tables.md": tables_page(), DOCS / "metrics.md": index_page(definitions, WRITTEN_BY)}
    pages[DOCS / "charts.md"] = charts_page((DOCS / "charts.md").read_text(encoding="utf-8"))
    for name, text in metric_pages(definitions, warehouse.query, WRITTEN_BY).items():
        pages[DOCS / "metrics" / f"{name}.md"] = text
    return pages


def not_current(pages: Mapping[Path, str]) -> list[Path]:
    """The files that differ from the text of their page, and those of metrics that are gone."""
    stale = [p for p, text in pages.items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    return stale + sorted(set((DOCS / "metrics").glob("*.md")) - pages.keys())


def write_pictures(warehouse: Warehouse) -> None:
    """Draw the charts that the documentation shows from the captures in data/."""
    runs = warehouse.lake.runs()
    for chart in CHARTS.values():
        run = next((r for r in sorted(runs, key=lambda r: r.name) if r.name.startswith(chart.picture)), None)
        if run is not None and chart.picture:
            (DOCS / "images").mkdir(exist_ok=True)
            chart(warehouse, run.run_id).save(DOCS / "images" / f"{chart.name}.png")


def main() -> int:
    """Write or check; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a text is not current")
    parser.add_argument("--pictures", action="store_true", help="draw the pictures anew, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open_warehouse(Path(folder) / "warehouse", create=True) as warehouse:
        warehouse.ingest(CAPTURES)
        pages = texts(warehouse)
        changed = not_current(pages)
        if options.check:
            for path in changed:
                print(f"{path.relative_to(DOCS.parent)} is not current: run `make docs`", file=sys.stderr)
            return 1 if changed else 0
        (DOCS / "metrics").mkdir(exist_ok=True)
        for path in changed:
            if path in pages:
                path.write_text(pages[path], encoding="utf-8")
            else:
                path.unlink()
        if options.pictures:
            write_pictures(warehouse)
        print(f"written: {', '.join(str(p.relative_to(DOCS)) for p in changed) or 'no text has changed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
