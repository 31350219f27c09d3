"""Draws the device timeline: what each device ran when, op by op, or summed up in SQL if there are too many ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from tracewarehouse.dashboards.figure import Figure, NothingToDraw, read
from tracewarehouse.dashboards.ops import CHART_CLASS, NO_OPS
from tracewarehouse.dashboards.theme import WIDTH, axis, class_color, number, tooltips
from tracewarehouse.dashboards.units import quantity

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

MAX_BARS = 8000
"""The most bars that a page draws without lag."""

ZOOM = "wheel![event.ctrlKey]"
"""The wheel zooms only with Ctrl, so that a page scrolls over the chart."""

_OPS = f"""SELECT 'device ' || o.device_id AS device, (o.start_ps - $start) / 1e9 AS start_ms,
       (o.start_ps + o.duration_ps - $start) / 1e9 AS end_ms, {CHART_CLASS} AS class, i.name AS op,
       o.duration_ps / 1e6 AS duration_us, o.phase, o.step, i.layer, i.part
FROM main.ops AS o
JOIN main.instructions AS i USING (run_id, instruction_id)
WHERE run_id = $run AND o.is_leaf AND o.device_id IS NOT NULL
  AND o.start_ps < $end AND o.start_ps + o.duration_ps > $start
ORDER BY o.start_ps, o.device_id, o.event_id"""

# a bar for each run of stretches in which a device spends most time in one class of ops
_STRETCHES = f"""WITH timed AS (
  SELECT o.device_id, (o.start_ps - $start) // $stretch AS stretch, {CHART_CLASS} AS class,
         sum(o.duration_ps) AS time_ps
  FROM main.ops AS o
  JOIN main.instructions AS i USING (run_id, instruction_id)
  WHERE run_id = $run AND o.is_leaf AND o.device_id IS NOT NULL AND o.start_ps >= $start AND o.start_ps < $end
  GROUP BY ALL
), shared AS (
  SELECT *, CAST(sum(time_ps) OVER (PARTITION BY device_id, stretch) AS BIGINT) AS busy_ps
  FROM timed
  QUALIFY row_number() OVER (PARTITION BY device_id, stretch ORDER BY time_ps DESC, class) = 1
), numbered AS (
  SELECT *, stretch - row_number() OVER (PARTITION BY device_id, class ORDER BY stretch) AS series FROM shared
)
SELECT 'device ' || device_id AS device, min(stretch) * $stretch / 1e9 AS start_ms,
       (max(stretch) + 1) * $stretch / 1e9 AS end_ms, class, 'most of ' || count(*) || ' stretches' AS op,
       sum(time_ps) / 1e6 AS duration_us, NULL AS phase, NULL AS step, NULL AS layer, NULL AS part
FROM numbered
GROUP BY device_id, class, series
ORDER BY start_ms, device_id"""


def device_timeline(
    warehouse: Warehouse, run: str, window_ms: tuple[float, float] | None = None, max_bars: int = MAX_BARS
) -> Figure:
    """Ops of each device over time, coloured by class.

    If a window has more ops than can be drawn, it is divided into equal stretches, and each device shows the class of
    ops that takes most of each stretch.

    Args:
        warehouse: the warehouse.
        run: the run, by id or name.
        window_ms: the window to draw, in ms since the first op; None for the first steps whose ops can be drawn one by
            one, at least the first step.
        max_bars: maximum number of bars.

    Raises:
        NothingToDraw: the run has no ops, or none in the window.
    """
    run_id = warehouse.run(run).run_id
    start, end, ops, name, view = _window(warehouse, run_id, window_ms, max_bars)
    is_whole = ops <= max_bars
    devices = warehouse.query("SELECT count(*) FROM main.devices WHERE run_id = $run", run=run_id).scalar() or 1
    stretch = max(1, (end - start) * devices // max_bars + 1)
    drawn = read(warehouse, _OPS if is_whole else _STRETCHES, run=run_id, start=start, end=end, stretch=stretch)
    if not drawn:
        raise NothingToDraw(NO_OPS)
    places = sorted(drawn.values("device"), key=lambda d: int(d.split()[1]))
    pick = alt.selection_point(fields=["class"], bind="legend")
    zoom = alt.selection_interval(bind="scales", encodings=["x"], zoom=ZOOM)
    classes = drawn.values("class")
    chart = (
        alt.Chart(drawn.data)
        .mark_bar(height={"band": 0.78}, clip=True)
        .encode(
            x=alt.X("start_ms:Q", title="time since the first op drawn", axis=axis("ms"),
                    scale=alt.Scale(domain=[0, view / 1e9], nice=False)),
            x2="end_ms:Q",
            y=alt.Y("device:N", sort=places, title=None),
            color=class_color("class", classes),
            opacity=alt.condition(pick, alt.value(1), alt.value(0.08)),
            tooltip=tooltips("op:N", "class:N", number("duration_us", "µs"), "phase:N", "step:O", "layer:O", "part:N"),
        )
        .add_params(pick, zoom)
        .properties(width=WIDTH, height=max(70, min(30 * len(places), 480)))
    )  # fmt: skip
    what = f"{ops:,} ops" if is_whole else f"{ops:,} ops, the class that takes most of each {quantity(stretch, 'ps')}"
    times = {c: sum(r["duration_us"] for r in drawn.rows if r["class"] == c) for c in classes}
    ordered = sorted(times, key=lambda c: -times[c])
    return Figure(
        name="timeline",
        title="Device timeline",
        subtitle=f"{name}: {what}. Drag to move, Ctrl and the wheel to zoom, click a class to single it out.",
        description=f"{len(places)} devices; time by class over all of them: "
        + ", ".join(f"{c} {quantity(times[c], 'us')}" for c in ordered)
        + ".",
        drawn=drawn,
        metrics=("op_time_share",),
        chart=chart,
    )


def _window(
    warehouse: Warehouse, run_id: str, window_ms: tuple[float, float] | None, max_bars: int
) -> tuple[int, int, int, str, int]:
    """Start and end of the window in ps, the number of its ops, its name, and the length that the chart shows at first.

    Raises:
        NothingToDraw: the run has no ops, or none in the window.
    """
    rows = read(
        warehouse,
        """SELECT step, phase, min(first_start_ps) AS start_ps, max(last_end_ps) AS end_ps,
                  CAST(sum(ops) AS BIGINT) AS ops
           FROM models.execution_ops
           WHERE run_id = $run
           GROUP BY step, phase
           ORDER BY start_ps""",
        run=run_id,
    ).rows
    if not rows:
        raise NothingToDraw(NO_OPS)
    first = rows[0]["start_ps"]
    if window_ms is not None:
        start, end = (first + round(t * 1e9) for t in window_ms)
        ops = warehouse.query(
            """SELECT count(*) FROM main.ops
               WHERE run_id = $run AND is_leaf AND device_id IS NOT NULL
                 AND start_ps < $until AND start_ps + duration_ps > $start""",
            run=run_id,
            start=start,
            until=end,
        ).scalar()
        if not ops:
            raise NothingToDraw(f"No device runs an op from {window_ms[0]} to {window_ms[1]} ms after the first one.")
        return start, end, ops, f"{window_ms[0]:g} to {window_ms[1]:g} ms after the first op", end - start
    stepped = [r for r in rows if r["step"] is not None]
    if not stepped:
        end = max(r["end_ps"] for r in rows) + 1
        return first, end, sum(r["ops"] for r in rows), "The whole capture", end - first
    taken, ops = 1, stepped[0]["ops"]
    while taken < len(stepped) and ops + stepped[taken]["ops"] <= max_bars:
        ops += stepped[taken]["ops"]
        taken += 1
    begin, last = stepped[0], stepped[taken - 1]
    names = [f"{r['phase'] or 'step'} {r['step']}" for r in (begin, last)]
    name = (names[0] if taken == 1 else " to ".join(names)).capitalize()
    end = max(r["end_ps"] for r in stepped[:taken]) + 1
    view = (stepped[1]["start_ps"] if taken > 1 else end) - begin["start_ps"]
    return begin["start_ps"], end, ops, name + (f", {names[0]} in view at first" if taken > 1 else ""), view
