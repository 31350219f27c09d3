"""The device timeline: what each device ran when, for a stretch of steps that can be drawn op by op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import altair as alt

from tracewarehouse.dashboards.theme import KIND_COLORS, WIDTH, class_color, styled

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

MAX_BARS = 8000
"""Bars that a page draws without lag; a longer stretch is cut at a step's end."""

_COLLECTIVES = ", ".join(f"'{k}'" for k in KIND_COLORS if "-" in k)
CHART_CLASS = f"""CASE
    WHEN i.op_class = 'communication' AND i.collective IN ({_COLLECTIVES}) THEN i.collective
    WHEN i.op_class = 'communication' THEN 'other collective'
    WHEN i.op_class = 'copy' THEN 'copy'
    WHEN i.opcode IN ('dot', 'convolution') OR i.category LIKE 'convolution%' THEN 'matrix'
    WHEN i.opcode = 'fusion' THEN 'fusion'
    ELSE 'other' END"""
"""SQL for the colour of an op, over main.instructions as i: its op_class; what communicates or computes is divided."""


def device_timeline(warehouse: Warehouse, run_id: str, max_bars: int = MAX_BARS) -> Any | None:
    """Ops of each device over time, coloured by class, from the run's first steps on.

    Drag to move along the time axis, scroll to zoom, click a class in the legend to single it out. None for a
    run without ops.
    """
    stretch = _stretch(warehouse, run_id, max_bars)
    if stretch is None:
        return None
    start, end = stretch.start_ps, stretch.end_ps
    ops = warehouse.query(
        f"""SELECT 'device ' || o.device_id AS device, (o.start_ps - $start) / 1e9 AS start_ms,
                   (o.start_ps + o.duration_ps - $start) / 1e9 AS end_ms, o.duration_ps / 1e6 AS duration_us,
                   i.name AS op, {CHART_CLASS} AS class, coalesce(o.phase, '') AS phase, o.step, i.layer, i.part
            FROM main.ops AS o
            JOIN main.instructions AS i ON i.run_id = o.run_id AND i.instruction_id = o.instruction_id
            WHERE o.run_id = $run_id AND o.is_leaf AND o.start_ps >= $start AND o.start_ps < $end
            ORDER BY o.start_ps, o.device_id LIMIT $most""",
        run_id=run_id,
        start=start,
        end=end,
        most=max_bars,
    ).arrow()
    devices = sorted(set(ops.column("device").to_pylist()), key=lambda d: int(d.split()[1]))
    present = sorted(set(ops.column("class").to_pylist()))
    pick = alt.selection_point(fields=["class"], bind="legend")
    zoom = alt.selection_interval(bind="scales", encodings=["x"])
    chart = (
        alt.Chart(alt.InlineData(values=ops.to_pylist()))  # inline data has no limit of 5,000 rows
        .mark_bar(height={"band": 0.78}, clip=True)
        .encode(
            x=alt.X("start_ms:Q", title="ms", scale=alt.Scale(domain=[0, stretch.view_ps / 1e9], nice=False)),
            x2="end_ms:Q",
            y=alt.Y("device:N", sort=devices, title=None),
            color=class_color("class", present),
            opacity=alt.condition(pick, alt.value(1), alt.value(0.08)),
            tooltip=[
                alt.Tooltip("op:N"),
                alt.Tooltip("class:N"),
                alt.Tooltip("duration_us:Q", format=".2f", title="µs"),
                "phase:N",
                "step:O",
                "layer:O",
                "part:N",
            ],
        )
        .add_params(pick, zoom)
        .properties(width=WIDTH, height=max(120, 30 * len(devices)))
    )
    what = (
        f"{stretch.drawn:,} of {stretch.total:,} ops" if stretch.drawn < stretch.total else f"all {stretch.total:,} ops"
    )
    how = "Scroll to zoom in and out, drag to move, click a class to single it out."
    return styled(chart, "Device timeline", [f"{stretch.name}: {what}.{stretch.view}", how])


@dataclass(frozen=True)
class _Stretch:
    """The part of a run that is drawn: its name, times, and how many of the run's ops it holds."""

    name: str
    start_ps: int
    end_ps: int
    view_ps: int
    """Length of what is in view at first: the first step."""
    drawn: int
    total: int
    view: str = ""
    """A sentence on that, where more is drawn."""


def _stretch(warehouse: Warehouse, run_id: str, max_bars: int) -> _Stretch | None:
    """The first steps that fit; without steps the first ops."""
    rows = warehouse.query(
        """SELECT step, min(start_ps), max(start_ps + duration_ps), count(*), any_value(phase)
           FROM main.ops WHERE run_id = $run_id AND is_leaf GROUP BY step ORDER BY min(start_ps)""",
        run_id=run_id,
    ).rows()
    if not rows:
        return None
    total = sum(r[3] for r in rows)
    stepped = [r for r in rows if r[0] is not None]
    if not stepped:
        start, end = rows[0][1], rows[0][2] + 1
        return _Stretch("The whole capture", start, end, end - start, min(total, max_bars), total)
    taken = 1
    drawn = stepped[0][3]
    while taken < len(stepped) and drawn + stepped[taken][3] <= max_bars:
        drawn += stepped[taken][3]
        taken += 1
    first, last = stepped[0], stepped[taken - 1]
    names = [f"{r[4] or 'step'} {r[0]}" for r in (first, last)]
    name, view = (names[0], "") if taken == 1 else (" to ".join(names), f" In view at first is {names[0]}.")
    end = max(r[2] for r in stepped[:taken]) + 1
    return _Stretch(name.capitalize(), first[1], end, first[2] - first[1], min(drawn, max_bars), total, view)
