"""Draws the roofline chart: how close instructions come to the peaks of memory and matrix units."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from tracewarehouse.dashboards.figure import Figure, NothingToDraw, largest, read
from tracewarehouse.dashboards.theme import QUIET, WIDTH, axis, number, powers, series_color, tooltips

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse


def roofline(warehouse: Warehouse, run: str, most: int = 300) -> Figure:
    """Instructions below the roofline of their device: rate against operations per byte; time is the size of a point.

    Args:
        warehouse: the warehouse.
        run: the run, by id or name.
        most: number of instructions to draw; those with most time come first.

    Raises:
        NothingToDraw: the capture does not say how many operations and bytes an instruction has.
    """
    drawn = read(
        warehouse,
        """WITH ops AS (
             SELECT name, category, coalesce(bound, 'peak not known') AS bound, intensity, flops_per_s,
                    self_us * executions / 1e3 AS self_ms, attained
             FROM metrics.roofline
             WHERE run_id = $run AND flops_per_s > 0 AND intensity > 0
             QUALIFY row_number() OVER (ORDER BY self_us * executions DESC, instruction_id) <= $most
           ), ends AS (
             SELECT least(min(intensity), 1) AS low, greatest(max(intensity), 1000) AS high FROM ops
           ), peaks AS (
             SELECT min(peak_flops_per_s) AS flops, min(peak_hbm_gbps) * 1e9 AS bytes
             FROM main.devices
             WHERE run_id = $run
           ), roof AS (
             SELECT unnest([low, flops / bytes, greatest(high, 2 * flops / bytes)]) AS intensity, flops, bytes
             FROM ends CROSS JOIN peaks
             WHERE flops > 0 AND bytes > 0)
           SELECT 'op' AS what, * FROM ops
           UNION ALL
           SELECT 'roof', 'roof', NULL, 'roof', intensity, least(flops, intensity * bytes), NULL, NULL FROM roof
           ORDER BY what, self_ms DESC, name, intensity""",
        run=warehouse.run(run).run_id,
        most=most,
    )
    ops = [r for r in drawn.rows if r["what"] == "op"]
    if not ops:
        raise NothingToDraw("The capture states no floating-point operations and bytes of instructions.")
    bounds = [b for b in ("compute", "memory", "ici", "peak not known") if any(r["bound"] == b for r in ops)]
    x = alt.X("intensity:Q", title="FLOP per byte of memory traffic", scale=alt.Scale(type="log"),
              axis=alt.Axis(format="~g", values=powers(drawn.values("intensity"))))  # fmt: skip
    y = alt.Y(
        "flops_per_s:Q",
        title="rate of a device",
        axis=axis("FLOP/s", values=powers(drawn.values("flops_per_s"))),
        scale=alt.Scale(type="log"),
    )
    base = alt.Chart(drawn.data)
    chart = alt.layer(
        base.transform_filter("datum.what == 'roof'").mark_line(color=QUIET, strokeWidth=2).encode(x=x, y=y),
        base.transform_filter("datum.what == 'op'")
        .mark_point(filled=True, opacity=0.75)
        .encode(
            x=x,
            y=y,
            size=alt.Size("self_ms:Q", title="time of all devices",
                          legend=alt.Legend(labelExpr=axis("ms").labelExpr, orient="top", tickCount=3)),
            color=series_color("bound", bounds, "bound by"),
            shape=alt.Shape("bound:N", sort=bounds, legend=None),
            tooltip=tooltips("name:N", "category:N", "bound:N", number("intensity", "FLOP/byte"),
                     number("flops_per_s", "FLOP/s", ".3s"),
                     alt.Tooltip("attained:Q", format=".1%", title="of the bound"),
                     number("self_ms", "ms, all devices")),
        ),
    ).properties(width=WIDTH, height=320)  # fmt: skip
    known = [r for r in ops if r["attained"] is not None]
    return Figure(
        name="roofline",
        title="Roofline",
        subtitle=f"The {len(ops)} instructions with most time, of those whose operations and bytes the profiler "
        "states; the line is the peak of the memory and of the matrix units.",
        description=largest(known, "self_ms", "ms", "name", "bound")
        if known
        else "The peaks of the devices are not known. " + largest(ops, "self_ms", "ms", "name"),
        drawn=drawn,
        metrics=("roofline",),
        chart=chart,
    )
