"""Shows runs: their list, with filters that are part of the address, a run with its charts, its trace in a viewer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from tracewarehouse.dashboards.registry import FIRST, RUN_CHARTS, STUDY_CHARTS, Chart
from tracewarehouse.dashboards.report import run_in_short, step_in_short
from tracewarehouse.database.temporary import TemporaryFolder
from tracewarehouse.exports.perfetto.export import export_perfetto, opening_window
from tracewarehouse.exports.perfetto.selected_run import Selection
from tracewarehouse.ingest.devices.flags import FLAGS
from tracewarehouse.queries.output import Format, dump
from tracewarehouse.queries.read_only import literal
from tracewarehouse.queries.result import QueryResult
from tracewarehouse.serve.rendering import Table, address, chart, file, page, question, result_table, viewer_address
from tracewarehouse.serve.warehouses import first_row, requested_run, served_warehouses
from tracewarehouse.viewer.perfetto import (
    HANDOVER_POLICY,
    TRACE,
    UI_POLICY,
    bundled_ui,
    handover_page,
    handover_script,
    opening,
)
from tracewarehouse.warehouse import Warehouse

_CHOICES = {
    "model": "model",
    "origin": "origin",
    "mesh": "mesh",
    "device_kind": "device kind",
    "hosts": "hosts",
    "flag": "flag",
}
"""The filters that offer a list of values, with their labels."""

_RUNS = """SELECT * FROM (
  SELECT run_id, name, origin, model, axes AS mesh, coalesce(device_kind, backend) AS device_kind, chips, hosts, flags,
         ttft_ms, tpot_ms, tokens_per_s, batch_size, input_length, output_length,
         CASE WHEN profile_start_ns > 0
              THEN strftime(make_timestamp(profile_start_ns // 1000), '%Y-%m-%d %H:%M') END AS captured
  FROM macros.run_points((SELECT list(run_id) FROM main.runs))
)"""

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


def runs_page(request: Request, warehouse: Warehouse) -> Response:
    """A page of the runs that match the filters."""
    sql, said = _query(request.query_params)
    result = _ask(request, warehouse, sql)
    everything = _ask(request, warehouse, _RUNS)
    listed = {r.run_id for r in warehouse.lake.runs()}
    return page(
        request,
        "runs",
        table=result_table(
            result, "Runs", path="/runs", parameters=said, first=first_row(request), runs=listed, sql=sql
        ),
        said=said,
        choices=[(name, label, _values(everything, name)) for name, label in _CHOICES.items()],
        count=len(everything),
        charts=[(name, c.title, address(f"/charts/{name}", said)) for name, c in STUDY_CHARTS.items()],
        flags={row["run_id"]: row["flags"] for row in result.dicts()},
        meanings=FLAGS,
        unread=[str(u) for u in warehouse.unread_runs()],
    )


def runs_file(request: Request, warehouse: Warehouse, form: Format) -> Response:
    """All runs that match the filters, in a format."""
    return file(_ask(request, warehouse, _query(request.query_params)[0]), form, "runs")


def runs_chart(request: Request, warehouse: Warehouse) -> Response:
    """A chart over the runs that match the filters, for the page's script."""
    drawn = _chart(request, STUDY_CHARTS)
    result = _ask(request, warehouse, _query(request.query_params)[0])
    return chart(lambda: drawn(warehouse, [row["run_id"] for row in result.dicts()]))


def _ask(request: Request, warehouse: Warehouse, sql: str) -> QueryResult:
    return served_warehouses(request).kept(warehouse, sql, lambda: warehouse.query(sql))


def _query(parameters: Mapping[str, str]) -> tuple[str, dict[str, str]]:
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


def run_page(request: Request, warehouse: Warehouse) -> Response:
    """The page of a run."""
    run = requested_run(warehouse, request.path_params["run"])
    if request.path_params["run"] != run.run_id:
        return RedirectResponse(f"/runs/{run.run_id}")
    kept = served_warehouses(request).kept
    section = kept(warehouse, ("run", run.run_id), lambda: run_in_short(warehouse, run.run_id))
    runs = warehouse.lake.runs()
    listed = {r.run_id for r in runs}

    def table(name: str, sql: str) -> Table:
        asked = sql.format(run=literal(run.run_id))
        result = kept(warehouse, asked, lambda: warehouse.query(asked))
        return result_table(result, name, parameters={"sql": asked}, runs=listed, sql=asked, hidden=_HIDDEN)

    return page(
        request,
        "run",
        s=section,
        run=run,
        charts=[(name, c.title, f"/runs/{run.run_id}/charts/{name}") for name, c in RUN_CHARTS.items()],
        titles=[(name, c.title) for name, c in RUN_CHARTS.items()],
        first=FIRST,
        tables=[table("Steps", _STEPS), table("Slowest collectives", _COLLECTIVES)],
        questions=[(label, question(sql.format(run=literal(run.run_id)))) for label, sql in _QUESTIONS.items()],
        viewer=viewer_address(run.run_id),
        others=sorted((r.name, r.run_id) for r in runs if r.run_id != run.run_id),
    )


def run_step(request: Request, warehouse: Warehouse) -> Response:
    """Where a step of a run goes, as a cell of the list of runs: its bar in miniature and one sentence."""
    run = requested_run(warehouse, request.path_params["run"])
    kept = served_warehouses(request).kept
    section = kept(warehouse, ("step", run.run_id), lambda: step_in_short(warehouse, run.run_id))
    return page(request, "step", s=section)


def run_file(request: Request, warehouse: Warehouse, form: Format) -> Response:
    """The output of `tw show --json`."""
    if form != "json":
        raise HTTPException(404, "Besides its page, a run has only a .json; its tables have files of their own.")
    summary = warehouse.summary(requested_run(warehouse, request.path_params["run"]).run_id)
    return Response(dump(summary.to_dict()), media_type="application/json")


def run_chart(request: Request, warehouse: Warehouse) -> Response:
    """A chart of a run, for the page's script."""
    run = requested_run(warehouse, request.path_params["run"])
    drawn = _chart(request, RUN_CHARTS)
    return chart(lambda: drawn(warehouse, run.run_id))


def _chart(request: Request, charts: Mapping[str, Chart]) -> Chart:
    name = request.path_params["chart"]
    if name not in charts:
        raise HTTPException(404, f"There is no chart {name}.")
    return charts[name]


def viewer(request: Request, warehouse: Warehouse) -> Response:
    """Redirect to the Perfetto UI; without the extra `viewer`, answer with a page that hands over to the public UI."""
    run = requested_run(warehouse, request.path_params["run"])
    selection = _selection(request.path_params["window"])
    if "clock_unaligned" in run.flags:
        raise HTTPException(
            409,
            f"The clocks of the hosts of {run.name} are not aligned, so events of the same moment would be drawn at "
            "different times; `tw open --force` shows the trace anyway.",
        )
    if bundled_ui() is None:
        return HTMLResponse(handover_page(run.name), headers={"Content-Security-Policy": HANDOVER_POLICY})
    trace = f"{str(request.base_url).rstrip('/')}{request.url.path}{TRACE}"
    window = opening_window(warehouse, run.run_id) if selection.is_whole else None
    return RedirectResponse(f"/perfetto/index.html{opening(trace, window)}")


def script(_: Request, __: Warehouse) -> Response:
    """The script of the page that hands the trace over."""
    return Response(handover_script(), media_type="text/javascript")


def trace(request: Request, warehouse: Warehouse) -> Response:
    """The trace itself."""
    run = requested_run(warehouse, request.path_params["run"])
    selection = _selection(request.path_params["window"])
    folder = TemporaryFolder()
    try:
        written = export_perfetto(warehouse, [run.run_id], folder.path / TRACE, selection)
    except BaseException:
        folder.close()
        raise
    return FileResponse(written, media_type="application/octet-stream", background=BackgroundTask(_remove, folder))


def _remove(folder: TemporaryFolder) -> None:
    folder.close()


class PerfettoUI(StaticFiles):
    """The files of the Perfetto UI."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, with the policy of the UI."""
        response = await super().get_response(path, scope)
        response.headers["Content-Security-Policy"] = UI_POLICY
        return response


def _selection(window: str) -> Selection:
    """The selection for the window `all`, or for a window from one time to another in ps, such as 0-1000000."""
    if window == "all":
        return Selection()
    match = re.fullmatch(r"(\d{1,18})-(\d{1,18})", window, re.ASCII)
    if match is None or int(match[1]) >= int(match[2]):
        raise HTTPException(404, f"{window[:60]} is not a window of a trace: write all, or START-END in ps.")
    return Selection(start_ps=int(match[1]), end_ps=int(match[2]))
