"""Where the time of each step goes: computing, communicating, or idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from tracewarehouse.dashboards.theme import WIDTH, styled

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

PART_COLORS = {"compute and copies": "#86a5bf", "exposed communication": "#d1495b", "idle": "#e4e7ea"}


def step_parts(warehouse: Warehouse, run_id: str, most: int = 200) -> Any | None:
    """Time of each step, mean over devices, split in three; None for a run without steps on a device.

    Args:
        warehouse: the warehouse.
        run_id: the run.
        most: steps to draw, from the first on.
    """
    rows = warehouse.query(
        """SELECT step, coalesce(phase, '') AS phase, part, position, mean_ms AS ms
           FROM models.step_parts WHERE run_id = $run_id ORDER BY step, position LIMIT $most""",
        run_id=run_id,
        most=3 * most,
    ).arrow()
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
