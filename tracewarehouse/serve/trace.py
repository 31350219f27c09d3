"""Shows a run, or a window of it, in a trace viewer: the Perfetto UI, as `tw open` serves it."""

from __future__ import annotations

import re

from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from tracewarehouse.database.temporary import TemporaryFolder
from tracewarehouse.exports.perfetto.export import export_perfetto
from tracewarehouse.exports.perfetto.selected_run import Selection
from tracewarehouse.serve.requested import run_of
from tracewarehouse.viewer.perfetto import HANDOVER_POLICY, TRACE, UI_POLICY, bundled_ui, handover_page, handover_script
from tracewarehouse.warehouse import Warehouse


def viewer(request: Request, warehouse: Warehouse) -> Response:
    """Redirect to the Perfetto UI; without the extra `viewer`, answer with a page that hands over to the public UI."""
    run = run_of(warehouse, request.path_params["run"])
    _selection(request.path_params["window"])
    if "clock_unaligned" in run.flags:
        raise HTTPException(
            409,
            f"The clocks of the hosts of {run.name} are not aligned, so events of the same moment would be drawn at "
            "different times; `tw open --force` shows the trace anyway.",
        )
    if bundled_ui() is None:
        page = handover_page(run.name)
        return HTMLResponse(page, headers={"Content-Security-Policy": HANDOVER_POLICY})
    trace = f"{str(request.base_url).rstrip('/')}{request.url.path}{TRACE}"
    return RedirectResponse(f"/perfetto/index.html#!/?url={trace}")


def script(_: Request, __: Warehouse) -> Response:
    """The script of the page that hands the trace over."""
    return Response(handover_script(), media_type="text/javascript")


def trace(request: Request, warehouse: Warehouse) -> Response:
    """The trace itself."""
    run = run_of(warehouse, request.path_params["run"])
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
    """The selection for the window `all`, or for a window from one time to another in ps, such as 0-1000000.

    Raises:
        HTTPException: it is neither.
    """
    if window == "all":
        return Selection()
    match = re.fullmatch(r"(\d{1,18})-(\d{1,18})", window, re.ASCII)
    if match is None or int(match[1]) >= int(match[2]):
        raise HTTPException(404, f"{window[:60]} is not a window of a trace: write all, or START-END in ps.")
    return Selection(start_ps=int(match[1]), end_ps=int(match[2]))
