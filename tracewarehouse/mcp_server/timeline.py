"""Sums up a window of one device: its steps, its time in equal slices by class of op, and its largest ops."""

from __future__ import annotations

from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.mcp_server.answer import Table, table
from tracewarehouse.warehouse import Warehouse

_EXTENT = """
SELECT MIN(start_ps) AS start_ps, MAX(end_ps) AS end_ps
FROM models.leaf_ops
WHERE run_id = $run AND device_id = $device
"""

_STEPS = """
SELECT
    step, phase, start_ps / 1e9 AS start_ms, until_ps / 1e9 AS until_ms, step_ps / 1e9 AS step_ms, is_last, source
FROM models.steps
WHERE run_id = $run AND clock = 'device' AND device_id = $device AND start_ps < $until AND until_ps > $start
ORDER BY start_ps
"""

# the time that an op adds to earlier ones is the end of its duration, so these stretches do not overlap
_IN_WINDOW = """
WITH inside AS (
    SELECT
        name, op_class, category, start_ps >= $start AS begins_inside,
        GREATEST(end_ps - busy_ps, $start) AS begin_ps, LEAST(end_ps, $until) AS end_ps
    FROM models.leaf_ops
    WHERE run_id = $run AND device_id = $device AND start_ps < $until AND end_ps > $start
)
"""

_SLICES = f"""{_IN_WINDOW}, sliced AS (
    SELECT
        name, op_class, begin_ps, end_ps,
        UNNEST(RANGE((begin_ps - $start) // $width, (end_ps - 1 - $start) // $width + 1)) AS slice
    FROM inside
    WHERE end_ps > begin_ps
), timed AS (
    SELECT
        slice, name, op_class,
        SUM(LEAST(end_ps, $start + (slice + 1) * $width) - GREATEST(begin_ps, $start + slice * $width)) AS time_ps
    FROM sliced
    GROUP BY ALL
), summed AS (
    SELECT
        slice, SUM(time_ps) AS busy_ps,
        COALESCE(SUM(time_ps) FILTER (WHERE op_class = 'compute'), 0) AS compute_ps,
        COALESCE(SUM(time_ps) FILTER (WHERE op_class = 'communication'), 0) AS communication_ps,
        COALESCE(SUM(time_ps) FILTER (WHERE op_class = 'copy'), 0) AS copy_ps,
        ARG_MAX(name, (time_ps, name)) AS largest_op
    FROM timed
    GROUP BY slice
), slices AS (
    SELECT
        slice, $start + slice * $width AS start_ps, LEAST($start + (slice + 1) * $width, $until) AS until_ps
    FROM (SELECT UNNEST(RANGE(0, ($until - $start + $width - 1) // $width)) AS slice)
)
SELECT
    start_ps / 1e9 AS start_ms, until_ps / 1e9 AS until_ms,
    COALESCE(compute_ps, 0) / 1e6 AS compute_us, COALESCE(communication_ps, 0) / 1e6 AS communication_us,
    COALESCE(copy_ps, 0) / 1e6 AS copy_us, (until_ps - start_ps - COALESCE(busy_ps, 0)) / 1e6 AS idle_us, largest_op
FROM slices LEFT JOIN summed USING (slice)
ORDER BY slice
"""

_OPS = f"""{_IN_WINDOW}
SELECT
    name AS op, op_class, category, COUNT(*) AS executions, SUM(end_ps - begin_ps) / 1e6 AS time_us,
    SUM(end_ps - begin_ps) / ($until - $start) AS share_of_window
FROM inside
GROUP BY name, op_class, category
ORDER BY time_us DESC, op, category
"""

_COLLECTIVES = """
SELECT
    kind, axis, COUNT(*) AS executions, SUM(message_bytes) AS message_bytes,
    SUM(LEAST(end_ps, $until) - GREATEST(start_ps, $start)) / 1e6 AS time_us
FROM main.collectives
WHERE run_id = $run AND device_id = $device AND start_ps < $until AND end_ps > $start
GROUP BY kind, axis
ORDER BY time_us DESC, kind, axis
"""


def window(
    warehouse: Warehouse, run_id: str, device: int | None, start_ms: float | None, end_ms: float | None, slices: int
) -> tuple[list[Table], list[str]]:
    """Tables of what a device did in a window, and notes.

    Args:
        warehouse: the warehouse.
        run_id: the run.
        device: the device; None for the first one.
        start_ms: start of the window on the clock of the tables, ms since the profile start; None for the first op.
        end_ms: its end; None for the last op.
        slices: how many equal slices the window has.

    Raises:
        WarehouseError: the run has no such device, the device has no op, or the window is empty.
    """

    def ask(sql: str, **parameters: int) -> Table:
        return table("", warehouse.query_of([run_id], sql, run=run_id, **parameters))

    devices = [d for [d] in ask("SELECT device_id FROM main.devices WHERE run_id = $run ORDER BY device_id").rows]
    if not devices:
        raise WarehouseError("the run has no device: only the host was profiled")
    if device is None:
        device = devices[0]
    elif device not in devices:
        raise WarehouseError(f"the run has no device {device}; it has {', '.join(map(str, devices))}")
    [(first, last)] = ask(_EXTENT, device=device).rows
    if first is None:
        raise WarehouseError(f"device {device} has no op; flags says what the capture lacks")
    start = first if start_ms is None else round(start_ms * 1e9)
    until = last if end_ms is None else round(end_ms * 1e9)
    if start >= until:
        raise WarehouseError(
            f"the window from {start / 1e9:g} to {until / 1e9:g} ms is empty; the ops of device {device} run from "
            f"{first / 1e9:g} to {last / 1e9:g} ms"
        )
    width = -(-(until - start) // slices)
    tables = []
    for name, sql in (("slices", _SLICES), ("ops", _OPS), ("collectives", _COLLECTIVES), ("steps", _STEPS)):
        bounds = {"start": start, "until": until} | ({"width": width} if sql is _SLICES else {})
        tables.append(ask(sql, device=device, **bounds).model_copy(update={"name": name}))
    notes = [
        f"device {device} of {', '.join(map(str, devices))}, from {start / 1e9:g} to {until / 1e9:g} ms since the "
        f"profile start; its ops run from {first / 1e9:g} to {last / 1e9:g} ms",
        "Each moment counts once, for the op that covers it first; compute, communication, copy and idle add up to the "
        "slice. Collectives may run beside compute; the metric exposed_communication is the time in which they do not.",
    ]
    return tables, notes
