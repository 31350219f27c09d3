"""Where the time of each step goes: computing, communicating, or idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from dashboards.theme import WIDTH, styled

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

PART_COLORS = {"compute and copies": "#86a5bf", "exposed communication": "#d1495b", "idle": "#e4e7ea"}

STEP_PARTS = """
WITH exposed AS (
  SELECT device_id, step, CAST(sum(exposed_ps) AS BIGINT) AS exposed_ps
  FROM models.communication_ops WHERE run_id = $run_id GROUP BY device_id, step
), parts AS (
  SELECT s.step, s.phase, s.step_ps, coalesce(b.busy_ps, 0) AS busy_ps,
         least(coalesce(e.exposed_ps, 0), coalesce(b.busy_ps, 0)) AS exposed_ps
  FROM models.steps AS s
  LEFT JOIN models.device_busy AS b
    ON b.run_id = s.run_id AND b.device_id = s.device_id AND b.step = s.step
  LEFT JOIN exposed AS e ON e.device_id = s.device_id AND e.step = s.step
  WHERE s.run_id = $run_id AND s.clock = 'device'
), means AS (
  SELECT step, phase, count(*) AS devices, sum(busy_ps - exposed_ps) / count(*) / 1e9 AS compute_ms,
         sum(exposed_ps) / count(*) / 1e9 AS exposed_ms,
         greatest(sum(step_ps - busy_ps), 0) / count(*) / 1e9 AS idle_ms
  FROM parts GROUP BY step, phase
)
SELECT step, coalesce(phase, '') AS phase, part, position, ms FROM (
  SELECT step, phase, 'compute and copies' AS part, 0 AS position, compute_ms AS ms FROM means
  UNION ALL SELECT step, phase, 'exposed communication', 1, exposed_ms FROM means
  UNION ALL SELECT step, phase, 'idle', 2, idle_ms FROM means)
ORDER BY step, position LIMIT $most
"""


def step_parts(warehouse: Warehouse, run_id: str, most: int = 200) -> Any | None:
    """Time of each step, mean over devices, split in three; None for a run without steps on a device.

    Args:
        warehouse: the warehouse.
        run_id: the run.
        most: steps to draw, from the first on.
    """
    rows = warehouse.query(STEP_PARTS, run_id=run_id, most=3 * most).arrow()
    if not len(rows):
        return None
    scale = alt.Scale(domain=list(PART_COLORS), range=list(PART_COLORS.values()))
    steps = len(rows) // 3
    chart = (
        alt.Chart(rows)
        .mark_bar()
        .encode(
            x=alt.X("step:O", title="step", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=alt.Y("ms:Q", title="ms, mean over devices"),
            color=alt.Color("part:N", scale=scale, title=None, legend=alt.Legend(orient="top")),
            order=alt.Order("position:Q"),
            tooltip=["step:O", "phase:N", "part:N", alt.Tooltip("ms:Q", format=".4f")],
        )
        .properties(width=WIDTH, height=240)
    )
    what = "From each step's start to the next one's, so that waiting for the host counts as idle."
    return styled(chart, "Where each step's time goes", what if steps < most else f"{what} The first {most} steps.")
