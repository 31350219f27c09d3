"""Lists the runs, with filters that are part of the address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tracewarehouse.dashboards.report import STUDY_CHARTS
from tracewarehouse.queries.output import Format
from tracewarehouse.queries.read_only import literal
from tracewarehouse.queries.result import QueryResult
from tracewarehouse.serve.rendering import file, page
from tracewarehouse.serve.requested import first_row, warehouses_of
from tracewarehouse.serve.run_page import chart_of
from tracewarehouse.serve.tables import address, table_of
from tracewarehouse.warehouse import Warehouse

_CHOICES = {"model": "model", "mesh": "mesh", "device_kind": "device kind", "hosts": "hosts", "flag": "flag"}
"""The filters that offer a list of values, with their labels."""

_RUNS = """WITH flagged AS (
  SELECT run_id, list_sort(list_distinct(list(flag))) AS flags FROM main.quality_flags GROUP BY run_id
), axes AS (
  SELECT run_id, string_agg(coalesce(axis, '?') || '=' || size, ',' ORDER BY "position") AS mesh
  FROM main.mesh_axes GROUP BY run_id
), listed AS (
  SELECT run_id, r.name, p.model, coalesce(r.mesh, a.mesh) AS mesh, coalesce(p.device_kind, r.backend) AS device_kind,
         p.chips, r.host_count AS hosts, coalesce(f.flags, []) AS flags, p.ttft_ms, p.tpot_ms, p.tokens_per_s,
         r.batch_size, r.input_length, r.output_length,
         CASE WHEN r.profile_start_ns > 0
              THEN strftime(make_timestamp(r.profile_start_ns // 1000), '%Y-%m-%d %H:%M') END AS captured
  FROM main.runs AS r
  JOIN macros.run_points((SELECT list(run_id) FROM main.runs)) AS p USING (run_id)
  LEFT JOIN axes AS a USING (run_id)
  LEFT JOIN flagged AS f USING (run_id)
)
SELECT * FROM listed"""


def runs_page(request: Request, warehouse: Warehouse) -> Response:
    """A page of the runs that match the filters."""
    sql, said = _query(request.query_params)
    result = _ask(request, warehouse, sql)
    everything = _ask(request, warehouse, _RUNS)
    listed = {r.run_id for r in warehouse.lake.runs()}
    table = table_of(
        result, "Runs", path="/runs", parameters=said, first=first_row(request), runs=listed, sql=sql
    )  # fmt: skip
    return page(
        request,
        "runs",
        table=table,
        said=said,
        choices=[(name, label, _values(everything, name)) for name, label in _CHOICES.items()],
        count=len(everything),
        charts=[(n, n.replace("-", " ").capitalize(), address(f"/charts/{n}", said)) for n in STUDY_CHARTS],
        unread=[str(u) for u in warehouse.unread_runs()],
    )


def runs_file(request: Request, warehouse: Warehouse, form: Format) -> Response:
    """All runs that match the filters, in a format."""
    return file(_ask(request, warehouse, _query(request.query_params)[0]), form, "runs")


def runs_chart(request: Request, warehouse: Warehouse) -> Response:
    """A chart over the runs that match the filters, for the page's script."""
    draw = STUDY_CHARTS.get(request.path_params["chart"])
    if draw is None:
        raise HTTPException(404, f"There is no chart {request.path_params['chart']}.")
    result = _ask(request, warehouse, _query(request.query_params)[0])
    return chart_of(lambda: draw(warehouse, [row["run_id"] for row in result.dicts()]))


def _ask(request: Request, warehouse: Warehouse, sql: str) -> QueryResult:
    return warehouses_of(request).kept(warehouse, sql, lambda: warehouse.query(sql))


def _query(parameters: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The query for the runs that match the filters, and the filters that are set."""
    said = {k: v for k in ("name", *_CHOICES, "since", "until") if (v := parameters.get(k, "").strip())}
    conditions = []
    for name, value in said.items():
        if name == "name":
            conditions.append(f"contains(lower(name), lower({literal(value)}))")
        elif name == "flag":
            conditions.append("len(flags) = 0" if value == "none" else f"list_contains(flags, {literal(value)})")
        elif name in ("since", "until"):
            day = value if re.fullmatch(r"\d{4}(-\d\d){0,2}", value) else "9999"
            conditions.append(f"captured >= {literal(day)}" if name == "since" else f"captured < {literal(day + '~')}")
        else:
            conditions.append(f"CAST({name} AS VARCHAR) = {literal(value)}")
    where = f"\nWHERE {' AND '.join(conditions)}" if conditions else ""
    return f"{_RUNS}{where}\nORDER BY name, run_id", said


def _values(result: QueryResult, name: str) -> list[str]:
    if name == "flag":
        return ["none", *sorted({f for row in result.dicts() for f in row["flags"]})]
    values: set[Any] = {row[name] for row in result.dicts()} - {None}
    return [str(v) for v in sorted(values)]
