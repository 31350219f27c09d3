"""Shows a run: the summary of `tw show`, its charts, its steps and its slowest collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from tracewarehouse.dashboards.figure import Figure, NothingToDraw
from tracewarehouse.dashboards.report import RUN_CHARTS, run_in_short
from tracewarehouse.queries.output import Format, dump
from tracewarehouse.queries.read_only import literal
from tracewarehouse.serve.rendering import page
from tracewarehouse.serve.requested import run_of, warehouses_of
from tracewarehouse.serve.tables import Table, address, question, table_of, viewer_address
from tracewarehouse.warehouse import Warehouse

_STEPS = """SELECT run_id, step, phase, start_ps, until_ps, start_ps / 1e9 AS start_ms,
       (until_ps - start_ps) / 1e9 AS step_ms
FROM models.run_steps
WHERE run_id = {run}
ORDER BY start_ps
LIMIT 100"""

_COLLECTIVES = """SELECT run_id, kind, axis, phase, step, ranks, message_bytes, first_start_ps, end_ps,
       first_start_ps / 1e9 AS start_ms, transfer_ps / 1e6 AS transfer_us, wait_ps / 1e6 AS wait_us
FROM models.collective_instances
WHERE run_id = {run}
ORDER BY wait_ps + transfer_ps DESC
LIMIT 20"""

_HIDDEN = ("run_id", "start_ps", "until_ps", "first_start_ps", "end_ps")
"""Columns for the links to the trace viewer; the page shows their times in ms."""

_QUESTIONS = {
    "All stored values": """SELECT run_id, metric, version, dimensions, value, unit
FROM main.metric_values
WHERE run_id = {run}
ORDER BY metric, version, dimensions""",
    "Ops by time": """SELECT run_id, name, part, category, count(*) AS n, sum(busy_ps) / 1e9 AS busy_ms
FROM models.leaf_ops
WHERE run_id = {run}
GROUP BY ALL
ORDER BY busy_ms DESC
LIMIT 100""",
    "Collectives by kind, axis and phase": """SELECT run_id, kind, axis, phase, count(*) AS n,
       sum(message_bytes) AS bytes, sum(exposed_ps) / 1e9 AS exposed_ms
FROM main.collectives
WHERE run_id = {run}
GROUP BY ALL
ORDER BY exposed_ms DESC""",
    "Flags": """SELECT run_id, flag, host, detail
FROM main.quality_flags
WHERE run_id = {run}""",
}


def run_page(request: Request, warehouse: Warehouse) -> Response:
    """The page of a run."""
    run = run_of(warehouse, request.path_params["run"])
    if request.path_params["run"] != run.run_id:
        return RedirectResponse(f"/runs/{run.run_id}")
    kept = warehouses_of(request).kept
    section = kept(warehouse, ("run", run.run_id), lambda: run_in_short(warehouse, run.run_id))
    runs = warehouse.lake.runs()
    listed = {r.run_id for r in runs}

    def table(name: str, sql: str) -> Table:
        asked = sql.format(run=literal(run.run_id))
        result = kept(warehouse, asked, lambda: warehouse.query(asked))
        return table_of(result, name, parameters={"sql": asked}, runs=listed, sql=asked, hidden=_HIDDEN)

    return page(
        request,
        "run",
        s=section,
        run=run,
        charts=[(n, _title(n), f"/runs/{run.run_id}/charts/{n}") for n in RUN_CHARTS],
        tables=[table("Steps", _STEPS), table("Slowest collectives", _COLLECTIVES)],
        questions=[(label, question(sql.format(run=literal(run.run_id)))) for label, sql in _QUESTIONS.items()],
        viewer=viewer_address(run.run_id),
        others=sorted((r.name, r.run_id) for r in runs if r.run_id != run.run_id),
    )


def _title(chart: str) -> str:
    """The title of a chart until it is drawn."""
    return "Time per output token" if chart == "tpot" else chart.replace("-", " ").capitalize()


def run_file(request: Request, warehouse: Warehouse, form: Format) -> Response:
    """The output of `tw show --json`."""
    if form != "json":
        raise HTTPException(404, "Besides its page, a run has only a .json; its tables have files of their own.")
    summary = warehouse.summary(run_of(warehouse, request.path_params["run"]).run_id)
    return Response(dump(summary.to_dict()), media_type="application/json")


def run_chart(request: Request, warehouse: Warehouse) -> Response:
    """A chart of a run, for the page's script."""
    run = run_of(warehouse, request.path_params["run"])
    draw = RUN_CHARTS.get(request.path_params["chart"])
    if draw is None:
        raise HTTPException(404, f"There is no chart {request.path_params['chart']}.")
    return chart_of(lambda: draw(warehouse, run.run_id))


def chart_of(draw: Callable[[], Figure]) -> Response:
    """A figure as JSON, or the reason why there is nothing to draw."""
    try:
        figure = draw()
    except NothingToDraw as absence:
        return JSONResponse({"absent": str(absence)})
    links: Sequence[tuple[str, str]] = [
        ("rows", question(figure.sql)),
        *((form, address(f"/sql.{form}", {"sql": figure.sql})) for form in ("json", "csv")),
        *((metric, f"/metrics/{metric}") for metric in figure.metrics),
    ]
    said: dict[str, Any] = {
        "title": figure.title,
        "subtitle": figure.subtitle,
        "description": figure.description,
        "sql": figure.sql,
        "links": links,
        "specification": figure.specification(),
    }
    return Response(dump(said), media_type="application/json")
