"""Shows the SQL box: a query, its rows and a chart of them, all given by the address."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tracewarehouse.dashboards.page import script_json
from tracewarehouse.ingest.errors import QueryError
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.queries.output import Format
from tracewarehouse.queries.quality import note
from tracewarehouse.queries.result import QueryResult
from tracewarehouse.serve.quick_chart import MARKS, quick_chart
from tracewarehouse.serve.rendering import file, page
from tracewarehouse.serve.requested import first_row, warehouses_of
from tracewarehouse.serve.tables import question, table_of
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


def sql_page(request: Request, warehouse: Warehouse) -> Response:
    """The box, and the result of the query in the address."""
    sql = request.query_params.get("sql", "").strip()
    chosen = {k: v for k in _CHOSEN if (v := request.query_params.get(k, ""))}
    box: dict[str, Any] = {
        "sql": sql,
        "marks": MARKS,
        "examples": [(label, question(example)) for label, example in EXAMPLES.items()],
        "limits": warehouses_of(request).limits,
    }
    if not sql:
        return page(request, "sql", **box)
    try:
        result = ask(request, warehouse, sql)
    except QueryError as error:
        return page(request, "sql", status=400, error=str(error), **box)
    listed = {r.run_id for r in warehouse.lake.runs()}
    table = table_of(
        result, "Rows", parameters={"sql": sql} | chosen, first=first_row(request), runs=listed
    )  # fmt: skip
    chart = quick_chart(result, chosen)
    return page(
        request,
        "sql",
        table=table,
        chart=chart,
        specification=script_json(chart.specification) if chart.specification else None,
        note=note(result.flagged_runs),
        flags=question(_FLAGS),
        chosen=chosen,
        **box,
    )


def sql_file(request: Request, warehouse: Warehouse, form: Format) -> Response:
    """All rows of the query in a format.

    Raises:
        QueryError: the query was refused or failed, or gives more rows than the server hands out.
    """
    result = ask(request, warehouse, request.query_params.get("sql", ""))
    if result.is_cut:
        raise QueryError(
            f"the query gives more than {len(result):,} rows, the most that this server hands out; add a LIMIT, start "
            "it with a larger --row-limit, or write them with `tw query -o FILE`"
        )
    return file(result, form, "rows")


def ask(request: Request, warehouse: Warehouse, sql: str) -> QueryResult:
    """Run a query that a person wrote, under all limits of the server.

    Raises:
        QueryError: the query was refused or failed.
    """
    with warehouse.limited(warehouses_of(request).limits):
        return warehouse.query(sql)


def catalogue_page(request: Request, warehouse: Warehouse) -> Response:
    """Everything that SQL can read: each table, model and metric with its sentence and its columns."""
    relations = [(t.name, t.doc, [(c.name, f"{c.type}: {c.doc}") for c in t.columns]) for t in TABLES.values()]
    views = sorted(warehouse.definitions.ordered, key=lambda v: v.qualified)
    relations += [(v.qualified, v.header.description, list(v.header.columns.items())) for v in views]
    listed = [(n, sentence, columns, question(f"SELECT * FROM {n} LIMIT 100")) for n, sentence, columns in relations]
    return page(request, "catalogue", catalogue=listed)
