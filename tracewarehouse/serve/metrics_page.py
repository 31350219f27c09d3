"""Shows the metrics, and one metric across runs."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tracewarehouse.dashboards.page import script_json
from tracewarehouse.dashboards.runs import value_over_time
from tracewarehouse.definitions.definition import UNSTORED, Metric
from tracewarehouse.ingest.errors import MetricError
from tracewarehouse.queries.read_only import literal
from tracewarehouse.serve.quick_chart import quick_chart
from tracewarehouse.serve.rendering import page
from tracewarehouse.serve.requested import warehouses_of
from tracewarehouse.serve.run_page import chart_of
from tracewarehouse.serve.tables import Table, question, table_of
from tracewarehouse.warehouse import Warehouse

_MEANS = """SELECT v.run_id, r.name, r.model, r.mesh,
       coalesce(v.dimensions ->> '$.phase', v.dimensions ->> '$.clock', 'whole run') AS of,
       avg(v.value) AS "{name} ({unit})", count(*) AS n
FROM metrics.all_values AS v JOIN main.runs AS r ON r.run_id = v.run_id
WHERE v.metric = {metric} AND v.version = {version} AND v.value IS NOT NULL
GROUP BY ALL
ORDER BY r.name, v.run_id, of"""

_VALUES = """SELECT v.run_id, r.name, v.dimensions, v.value, v.unit
FROM metrics.all_values AS v JOIN main.runs AS r ON r.run_id = v.run_id
WHERE v.metric = {metric} AND v.version = {version}
ORDER BY r.name, v.run_id, v.dimensions"""

_MISSING = """SELECT run_id, r.name, m.reason
FROM metrics.missing AS m JOIN main.runs AS r USING (run_id)
WHERE m.metric = {metric} AND m.version = {version}
ORDER BY r.name, run_id"""


def metrics_page(request: Request, warehouse: Warehouse) -> Response:
    """All metrics, with their meanings."""
    latest = warehouse.definitions.aliases()
    names = sorted(latest, key=lambda n: (latest[n].header.status in UNSTORED, n))  # unstored metrics come last
    return page(request, "metrics", metrics=[(n, latest[n].version, latest[n].header) for n in names])


def metric_page(request: Request, warehouse: Warehouse) -> Response:
    """One metric: its mean for each run and phase, its values, and why some runs have none."""
    metric = _metric(request, warehouse)
    header = metric.header
    given = {
        "name": metric.name.replace('"', ""),
        "unit": header.unit.replace('"', ""),
        "metric": literal(metric.name),
        "version": metric.version,
    }
    listed = {r.run_id for r in warehouse.lake.runs()}

    def table(name: str, text: str) -> Table:
        sql = text.format(**given)
        asked = warehouses_of(request).kept(warehouse, sql, lambda: warehouse.query(sql))
        return table_of(asked, name, parameters={"sql": sql}, runs=listed, sql=sql)

    chart = None
    tables = []
    if header.is_stored:
        means = _MEANS.format(**given)
        result = warehouses_of(request).kept(warehouse, means, lambda: warehouse.query(means))
        value = result.columns[5]
        chart = quick_chart(result, {"x": value, "y": "name", "color": "of", "mark": "point"})
        tables = [table("Mean of each run", _MEANS)]
    return page(
        request,
        "metric",
        metric=metric,
        header=header,
        versions=[m for m in warehouse.definitions.metrics if m.name == metric.name],
        chart=chart,
        specification=script_json(chart.specification) if chart and chart.specification else None,
        tables=tables,
        questions=[
            ("All values", question(_VALUES.format(**given) if header.is_stored else _rows_of(metric))),
            ("All columns", question(_rows_of(metric))),
            ("Runs without it, and why", question(_MISSING.format(**given))),
        ],
        over_time=f"/metrics/{metric.name}/charts/over-time",
    )


def metric_chart(request: Request, warehouse: Warehouse) -> Response:
    """A chart of the metric over the time of the captures."""
    metric = _metric(request, warehouse)
    runs = [r.run_id for r in warehouse.lake.runs()]
    return chart_of(lambda: value_over_time(warehouse, runs, metric.name))


def _rows_of(metric: Metric) -> str:
    return f"SELECT *\nFROM {metric.view.qualified}\nORDER BY ALL\nLIMIT 1000"


def _metric(request: Request, warehouse: Warehouse) -> Metric:
    version = request.query_params.get("version") or None
    if version is not None and not (version.isascii() and version.isdigit()):
        raise HTTPException(400, f"version={version[:40]} in the address is not a number.")
    try:
        return warehouse.definitions.metric(request.path_params["metric"], int(version) if version else None)
    except MetricError as error:
        raise HTTPException(404, str(error)) from None
