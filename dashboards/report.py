"""The report: one self-contained HTML page about runs, that needs no network to be read."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracewarehouse.dashboards.communication import exposed_communication, traffic_matrix, traffic_volume
from tracewarehouse.dashboards.ops import op_time_share
from tracewarehouse.dashboards.steps import step_parts
from tracewarehouse.dashboards.timeline import device_timeline
from tracewarehouse.ingest.devices.quality import FLAGS
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.quality import CLOCKS
from tracewarehouse.run_summary import Number, facts_of, labelled, numbers_of

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

CHARTS: dict[str, Callable[[Warehouse, str], Any | None]] = {
    "timeline": device_timeline,
    "steps": step_parts,
    "exposed-communication": exposed_communication,
    "traffic": traffic_volume,
    "traffic-matrix": traffic_matrix,
    "op-time": op_time_share,
}
"""Every chart of the page by its name, in order; each gives None for a run without its data."""


@dataclass
class RunSection:
    """What the page shows of one run."""

    run_id: str
    name: str
    facts: list[tuple[str, str]]
    notes: list[str]
    tiles: list[Number]
    charts: list[tuple[str, str]] = field(default_factory=list)
    """Name of each chart and its Vega-Lite specification, as JSON that can stand in a script element."""
    values: list[dict[str, Any]] = field(default_factory=list)


def write_report(warehouse: Warehouse, run_ids: Sequence[str], output: Path) -> Path:
    """Write the page about these runs and return its path; it appears whole or not at all.

    Raises:
        WarehouseError: the page cannot be written.
        QueryError: a view cannot be read.
    """
    sections = [_section(warehouse, run_id) for run_id in run_ids]
    page = _page(sections)
    part = output.with_name(f".{output.name}.{uuid.uuid4().hex[:8]}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(page, encoding="utf-8")
        part.replace(output)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise WarehouseError(f"{output}: the report cannot be written: {error.strerror or error}") from None
    return output


def save_chart(chart: Any, output: Path) -> Path:
    """Save one chart as .html (self-contained), .png or .svg, by the name's ending.

    Raises:
        WarehouseError: another ending, or the file cannot be written.
    """
    if output.suffix not in (".html", ".png", ".svg"):
        raise WarehouseError(f"{output}: a chart can be saved as .html, .png or .svg")
    try:
        if output.suffix == ".html":
            chart.save(output, inline=True)
        else:
            chart.save(output, scale_factor=2 if output.suffix == ".png" else 1)
    except OSError as error:
        raise WarehouseError(f"{output}: the chart cannot be written: {error.strerror or error}") from None
    return output


def _section(warehouse: Warehouse, run_id: str) -> RunSection:
    facts = facts_of(warehouse.query, run_id)
    tiles = [n for n in numbers_of(warehouse.query, run_id) if n.value is not None]
    section = RunSection(run_id, facts["name"], labelled(facts), _notes(warehouse, facts), tiles)
    for name, draw in CHARTS.items():
        chart = draw(warehouse, run_id)
        if chart is not None:
            section.charts.append((name, _script_json(chart.to_dict())))
    section.values = warehouse.query(
        """SELECT metric, version, dimensions, value, unit FROM main.metric_values
           WHERE run_id = $run_id ORDER BY metric, version, dimensions""",
        run_id=run_id,
    ).dicts()
    for value in section.values:
        value["dimensions"] = ", ".join(f"{k} {v}" for k, v in json.loads(value["dimensions"]).items() if v is not None)
    return section


def _notes(warehouse: Warehouse, run: dict[str, Any]) -> list[str]:
    """What a reader must know before trusting a number."""
    notes = []
    if run["backend"] == "cpu":
        notes.append("Recorded on virtual CPU devices: what ran and what moved is real, the times are not a TPU's.")
    flags = warehouse.query(
        'SELECT flag, host, detail FROM main.quality_flags WHERE run_id = $run_id ORDER BY "index"',
        run_id=run["run_id"],
    )
    for flag, host, detail in flags.rows():
        notes.append(f"{FLAGS[flag]} {f'{host}: ' if host else ''}{detail}" if flag in FLAGS else detail)
    clocks = warehouse.query(f"SELECT note FROM ({CLOCKS}) WHERE run_id = $run", run=run["run_id"])
    return notes + [note for (note,) in clocks.rows()]


def _page(sections: Sequence[RunSection]) -> str:
    import jinja2
    import vl_convert

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dashboards"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = _number
    title = sections[0].name if len(sections) == 1 else f"{len(sections)} runs"
    bundle: Callable[[], str] = vl_convert.javascript_bundle  # type: ignore[assignment]  # its snippet is optional
    script = bundle().replace("</script", "<\\/script")
    return environment.get_template("report.html.j2").render(title=title, sections=sections, script=script)


def _script_json(value: Any) -> str:
    """JSON that can stand in a script element: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
