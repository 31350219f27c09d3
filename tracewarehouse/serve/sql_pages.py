"""Shows what can be asked: the box for SQL with a chart of the rows, the metrics, and everything that SQL can read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tracewarehouse.dashboards.runs import value_over_time
from tracewarehouse.dashboards.vega import script_json
from tracewarehouse.definitions.definition import UNSTORED, Metric
from tracewarehouse.ingest.errors import MetricError, QueryError, SlowQueryError, StuckQueryError
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.queries.output import Format
from tracewarehouse.queries.read_only import literal
from tracewarehouse.queries.result import QueryResult, note
from tracewarehouse.serve.quick_chart import MARKS, quick_chart
from tracewarehouse.serve.rendering import Table, chart, file, page, question, result_table
from tracewarehouse.serve.warehouses import first_row, served_warehouses
from tracewarehouse.viewer.perfetto import is_foreign
from tracewarehouse.warehouse import Warehouse

_FLAGS = """SELECT run_id, r.name, f.flag, f.host, f.detail
FROM quality_flags AS f JOIN runs AS r USING (run_id)
ORDER BY r.name, run_id, f."index\""""

_CHOSEN = ("x", "y", "color", "mark")

EXAMPLES = {
    "Time per output token of each run": """SELECT name, model, mesh, batch_size, tpot_ms
FROM macros.run_points((SELECT list(run_id) FROM runs))
WHERE tpot_ms IS NOT NULL
ORDER BY tpot_ms""",
    "Where the time of ops goes": """SELECT run_id, category, sum(busy_ps) / 1e9 AS busy_ms
FROM models.leaf_ops
GROUP BY ALL
ORDER BY busy_ms DESC
LIMIT 30""",
    "Bytes by kind and mesh axis": """SELECT run_id, kind, axis, count(*) AS n, sum(message_bytes) AS bytes
FROM collectives
WHERE rank_in_group = 0
GROUP BY ALL
ORDER BY bytes DESC""",
    "The collectives with most waiting": """SELECT run_id, kind, axis, phase, step, first_start_ps, end_ps,
       wait_ps / 1e6 AS wait_us
FROM models.collective_instances
ORDER BY wait_us DESC
LIMIT 50""",
    "Why metrics are missing": """SELECT reason, count(DISTINCT run_id) AS runs, list(DISTINCT metric) AS metrics
FROM metrics.missing
GROUP BY reason
ORDER BY runs DESC""",
}

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


def sql_page(request: Request, warehouse: Warehouse) -> Response:
    """The box, and the result of the query in the address."""
    sql = request.query_params.get("sql", "").strip()
    chosen = {k: v for k in _CHOSEN if (v := request.query_params.get(k, ""))}
    box: dict[str, Any] = {
        "sql": sql,
        "marks": MARKS,
        "examples": [(label, question(example)) for label, example in EXAMPLES.items()],
        "limits": served_warehouses(request).limits,
    }
    if not sql or is_foreign(request.headers):
        return page(request, "sql", is_asked_elsewhere=bool(sql), **box)
    try:
        result = ask(request, warehouse, sql)
    except StuckQueryError:
        raise
    except QueryError as error:
        return page(request, "sql", status=400, error=str(error), **box)
    listed = {r.run_id for r in warehouse.lake.runs()}
    drawn = quick_chart(result, chosen)
    return page(
        request,
        "sql",
        table=result_table(result, "Rows", parameters={"sql": sql} | chosen, first=first_row(request), runs=listed),
        chart=drawn,
        specification=script_json(drawn.specification) if drawn.specification else None,
        note=note(result.flagged_runs),
        flags=question(_FLAGS),
        chosen=chosen,
        **box,
    )


def sql_file(request: Request, warehouse: Warehouse, form: Format) -> Response:
    """All rows of the query in a format."""
    if is_foreign(request.headers):
        raise HTTPException(403, "This server runs only queries of its own pages.")
    result = ask(request, warehouse, request.query_params.get("sql", ""))
    if result.is_cut:
        raise QueryError(
            f"the query gives more than {len(result):,} rows, the most that this server hands out; add a LIMIT, start "
            "it with a larger --row-limit, or write them with `tw query -o FILE`"
        )
    return file(result, form, "rows")


def ask(request: Request, warehouse: Warehouse, sql: str) -> QueryResult:
    """Run a query that a person wrote, under all limits of the server and that of its place.

    Raises:
        QueryError: the query was refused or failed; `request.state.is_slow` says whether it took too long.
    """
    limits = replace(served_warehouses(request).limits, unwanted=request.state.unwanted)
    with warehouse.limited(replace(limits, seconds=request.state.seconds or limits.seconds)):
        try:
            return warehouse.query(sql)
        except SlowQueryError:
            request.state.is_slow = True
            raise


def catalogue_page(request: Request, warehouse: Warehouse) -> Response:
    """Everything that SQL can read: each table, model and metric with its sentence and its columns."""
    relations = [(t.name, t.doc, [(c.name, f"{c.type}: {c.doc}") for c in t.columns]) for t in TABLES.values()]
    views = sorted(warehouse.definitions.ordered, key=lambda v: v.qualified)
    relations += [(v.qualified, v.header.about, list(v.header.columns.items())) for v in views]
    listed = [(n, sentence, columns, question(f"SELECT * FROM {n} LIMIT 100")) for n, sentence, columns in relations]
    return page(request, "catalogue", catalogue=listed)


def metrics_page(request: Request, warehouse: Warehouse) -> Response:
    """All metrics, with their meanings."""
    latest = warehouse.definitions.aliases
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
        asked = served_warehouses(request).kept(warehouse, sql, lambda: warehouse.query(sql))
        return result_table(asked, name, parameters={"sql": sql}, runs=listed, sql=sql)

    drawn = None
    tables = []
    if header.is_stored:
        means = _MEANS.format(**given)
        result = served_warehouses(request).kept(warehouse, means, lambda: warehouse.query(means))
        value = result.columns[5]
        drawn = quick_chart(result, {"x": value, "y": "name", "color": "of", "mark": "point"})
        tables = [table("Mean of each run", _MEANS)]
    return page(
        request,
        "metric",
        metric=metric,
        header=header,
        versions=[m for m in warehouse.definitions.metrics if m.name == metric.name],
        chart=drawn,
        specification=script_json(drawn.specification) if drawn and drawn.specification else None,
        tables=tables,
        questions=[
            ("All values", question(_VALUES.format(**given) if header.is_stored else _rows_sql(metric))),
            ("All columns", question(_rows_sql(metric))),
            ("Runs without it, and why", question(_MISSING.format(**given))),
        ],
        over_time=f"/metrics/{metric.name}/charts/over-time",
    )


def metric_chart(request: Request, warehouse: Warehouse) -> Response:
    """A chart of the metric over the time of the captures."""
    metric = _metric(request, warehouse)
    runs = [r.run_id for r in warehouse.lake.runs()]
    return chart(lambda: value_over_time(warehouse, runs, metric.name))


def _rows_sql(metric: Metric) -> str:
    return f"SELECT *\nFROM {metric.view.qualified}\nORDER BY ALL\nLIMIT 1000"


def _metric(request: Request, warehouse: Warehouse) -> Metric:
    version = request.query_params.get("version") or None
    if version is not None and not (version.isascii() and version.isdigit()):
        raise HTTPException(400, f"version={version[:40]} in the address is not a number.")
    try:
        return warehouse.definitions.metric(request.path_params["metric"], int(version) if version else None)
    except MetricError as error:
        raise HTTPException(404, str(error)) from None
