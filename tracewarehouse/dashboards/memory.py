"""Draws memory: how much of each allocator's memory is in use over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from tracewarehouse.dashboards.figure import Figure, NothingToDraw, largest, read
from tracewarehouse.dashboards.theme import WIDTH, axis, number, series_color, tooltips

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse


def memory_in_use(warehouse: Warehouse, run: str) -> Figure:
    """Bytes in use of each allocator over time: the most in each of 400 stretches.

    Args:
        warehouse: the warehouse.
        run: the run, by id or name.

    Raises:
        NothingToDraw: the capture states no memory in use.
    """
    run_id = warehouse.run(run).run_id
    drawn = read(
        warehouse,
        """WITH bounds AS (
             SELECT min(at_ps) AS first_ps, (max(at_ps) - min(at_ps)) // 400 + 1 AS stretch_ps
             FROM models.memory_states
             WHERE run_id = $run
           ), named AS (
             SELECT coalesce(allocator, 'unnamed') AS allocator, at_ps, used_bytes, capacity_bytes,
                    count(DISTINCT host) OVER () AS hosts, host
             FROM models.memory_states
             WHERE run_id = $run)
           SELECT CASE WHEN hosts > 1 THEN host || ' ' ELSE '' END
                  || CASE WHEN try_cast(allocator AS INTEGER) IS NULL THEN '' ELSE 'device ' END
                  || allocator AS allocator,
                  (at_ps - first_ps) // stretch_ps * stretch_ps / 1e9 AS at_ms, max(used_bytes) AS used_bytes,
                  max(capacity_bytes) AS capacity_bytes, count(*) AS changes
           FROM named CROSS JOIN bounds
           GROUP BY ALL
           ORDER BY allocator, at_ms""",
        run=run_id,
    )
    if not drawn:
        raise NothingToDraw("The capture has no allocations of memory with the bytes in use.")
    allocators = drawn.values("allocator")
    chart = (
        alt.Chart(drawn.data)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("at_ms:Q", title="time since the first allocation", axis=axis("ms"), scale=alt.Scale(nice=False)),
            y=alt.Y("used_bytes:Q", title="in use", axis=axis("bytes")),
            color=series_color("allocator", allocators),
            strokeDash=alt.StrokeDash("allocator:N", sort=allocators, legend=None),
            tooltip=tooltips(
                "allocator:N",
                number("at_ms", "at, ms"),
                number("used_bytes", "bytes in use", ",.0f"),
                number("capacity_bytes", "bytes of the allocator", ",.0f"),
                "changes:Q",
            ),
        )
        .properties(width=WIDTH, height=220)
    )
    most = {a: max((r for r in drawn.rows if r["allocator"] == a), key=lambda r: r["used_bytes"]) for a in allocators}
    return Figure(
        name="memory",
        title="Memory in use",
        subtitle="Allocated, and reserved for the stacks of programs, as the profiler states it at each allocation and "
        "release; the most in each stretch of time.",
        description="The most in use. " + largest(list(most.values()), "used_bytes", "bytes", "allocator"),
        drawn=drawn,
        metrics=("memory_in_use",),
        chart=chart,
    )
