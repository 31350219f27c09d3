"""Draws ops: when each device ran which, what takes their time, how fast they are, and the memory that they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import altair as alt

from tracewarehouse.dashboards.figure import Figure, NothingToDraw, ask
from tracewarehouse.dashboards.theme import (
    HEAT,
    QUIET,
    SERIES,
    WIDTH,
    axis,
    bar_height,
    by_phase,
    class_color,
    number,
    percent,
    phase_bars,
    powers,
    series_color,
    tooltips,
)
from tracewarehouse.dashboards.words import largest, quantity

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

MAX_BARS = 8000
"""The most bars that a page draws without lag."""

_ZOOM = "wheel![event.ctrlKey]"
"""The wheel zooms only with Ctrl, so that a page scrolls over the chart."""

_OPS = """SELECT 'device ' || o.device_id AS device, (o.start_ps - $start) / 1e9 AS start_ms,
       (o.start_ps + o.duration_ps - $start) / 1e9 AS end_ms, c.class, i.name AS op,
       o.duration_ps / 1e6 AS duration_us, o.phase, o.step, l.layer, i.part
FROM main.ops AS o
JOIN models.op_layers AS l USING (run_id, event_id)
JOIN main.instructions AS i USING (run_id, instruction_id)
JOIN models.instruction_classes AS c USING (run_id, instruction_id)
WHERE run_id = $run AND o.is_leaf AND o.device_id IS NOT NULL
  AND o.start_ps < $until AND o.start_ps + o.duration_ps > $start
ORDER BY o.start_ps, o.device_id, o.event_id"""

_STRETCHES = """SELECT 'device ' || device_id AS device, start_ms, end_ms, class,
       'most of ' || stretches || ' stretches' AS op, duration_us,
       NULL AS phase, NULL AS step, NULL AS layer, NULL AS part
FROM macros.timeline_stretches($run, $start, $until, $stretch)
ORDER BY start_ms, device_id"""


@dataclass(frozen=True)
class _Window:
    """The part of a run that the timeline draws, in ps; the chart shows the first `view` of it at first."""

    start: int
    until: int
    ops: int
    name: str
    view: int


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
    """
    window = _window(warehouse, run, window_ms, max_bars)
    is_whole = window.ops <= max_bars
    devices = warehouse.query(
        "SELECT count(*) FROM main.devices WHERE run_id = $run", run=warehouse.run(run).run_id
    ).scalar()
    stretch = max(1, (window.until - window.start) * (devices or 1) // max_bars + 1)
    drawn = ask(
        warehouse,
        "timeline",
        _OPS if is_whole else _STRETCHES,
        run=run,
        start=window.start,
        until=window.until,
        stretch=stretch,
    )
    places = sorted(drawn.values("device"), key=lambda d: int(d.split()[1]))
    pick = alt.selection_point(fields=["class"], bind="legend")
    zoom = alt.selection_interval(bind="scales", encodings=["x"], zoom=_ZOOM)
    classes = drawn.values("class")
    chart = (
        alt.Chart(drawn.data)
        .mark_bar(height={"band": 0.78}, clip=True)
        .encode(
            x=alt.X("start_ms:Q", title="time since the first op drawn", axis=axis("ms"),
                    scale=alt.Scale(domain=[0, window.view / 1e9], nice=False)),
            x2="end_ms:Q",
            y=alt.Y("device:N", sort=places, title=None),
            color=class_color("class", classes),
            opacity=alt.condition(pick, alt.value(1), alt.value(0.08)),
            tooltip=tooltips("op:N", "class:N", number("duration_us", "µs"), "phase:N", "step:O", "layer:O", "part:N"),
        )
        .add_params(pick, zoom)
        .properties(width=WIDTH, height=max(70, min(30 * len(places), 480)))
    )  # fmt: skip
    summed = "" if is_whole else f", the class that takes most of each {quantity(stretch, 'ps')}"
    times = {c: sum(r["duration_us"] for r in drawn.rows if r["class"] == c) for c in classes}
    ordered = sorted(times, key=lambda c: -times[c])
    return drawn.figure(
        chart,
        f"{window.name}: {window.ops:,} ops{summed}. Drag to move, Ctrl and the wheel to zoom, click a class to single "
        "it out.",
        f"{len(places)} devices; time by class over all of them: "
        + ", ".join(f"{c} {quantity(times[c], 'us')}" for c in ordered)
        + ".",
    )


def _window(warehouse: Warehouse, run: str, window_ms: tuple[float, float] | None, max_bars: int) -> _Window:
    asked = ask(
        warehouse,
        "timeline",
        """SELECT step, phase, min(first_start_ps) AS start_ps, max(last_end_ps) AS end_ps,
                  CAST(sum(ops) AS BIGINT) AS ops
           FROM models.execution_ops
           WHERE run_id = $run
           GROUP BY step, phase
           ORDER BY start_ps""",
        run=run,
    )
    first = asked.rows[0]["start_ps"]
    if window_ms is not None:
        start, until = (first + round(t * 1e9) for t in window_ms)
        counted = ask(
            warehouse,
            "timeline",
            """SELECT count(*) AS ops FROM main.ops
               WHERE run_id = $run AND is_leaf AND device_id IS NOT NULL
                 AND start_ps < $until AND start_ps + duration_ps > $start""",
            run=run,
            start=start,
            until=until,
        )
        [row] = counted.rows
        if not row["ops"]:
            raise NothingToDraw(f"No device runs an op from {window_ms[0]} to {window_ms[1]} ms after the first one.")
        name = f"{window_ms[0]:g} to {window_ms[1]:g} ms after the first op"
        return _Window(start, until, row["ops"], name, until - start)
    stepped = [r for r in asked.rows if r["step"] is not None]
    if not stepped:
        until = max(r["end_ps"] for r in asked.rows) + 1
        return _Window(first, until, sum(r["ops"] for r in asked.rows), "The whole capture", until - first)
    taken, ops = 1, stepped[0]["ops"]
    while taken < len(stepped) and ops + stepped[taken]["ops"] <= max_bars:
        ops += stepped[taken]["ops"]
        taken += 1
    start, until = stepped[0]["start_ps"], max(r["end_ps"] for r in stepped[:taken]) + 1
    begin, last = (f"{r['phase'] or 'step'} {r['step']}" for r in (stepped[0], stepped[taken - 1]))
    if taken == 1:
        return _Window(start, until, ops, begin.capitalize(), until - start)
    name = f"{begin} to {last}".capitalize() + f", {begin} in view at first"
    return _Window(start, until, ops, name, stepped[1]["start_ps"] - start)


def op_time_share(warehouse: Warehouse, run: str, most: int = 12) -> Figure:
    """The categories of ops with the largest shares of self time, the phases side by side.

    Args:
        warehouse: the warehouse.
        run: the run, by id or name.
        most: number of categories to draw.
    """
    drawn = ask(
        warehouse,
        "op-time",
        """SELECT coalesce(phase, 'no phase') AS phase, category, share, ops
           FROM macros.top_categories($run, $most)
           ORDER BY top_share DESC, category, phase DESC""",
        run=run,
        most=most,
    )
    categories = drawn.values("category")
    chart = phase_bars(
        drawn.data,
        sorted(drawn.values("phase"), reverse=True),
        x=alt.X("share:Q", title="share of op time", axis=axis("ratio")),
        y=alt.Y("category:N", sort=categories, title=None),
        height=bar_height(len(categories)),
        tooltip=tooltips("phase:N", "category:N", percent("share"), "ops:Q"),
    )
    return drawn.figure(
        chart,
        f"Self time of leaf ops, all devices together; the {most} largest categories.",
        largest(drawn.rows, "share", "ratio", "phase", "category"),
    )


def top_ops(warehouse: Warehouse, run: str, most: int = 12) -> Figure:
    """The ops that take most time; a panel per phase. Names that differ only in their number count as one.

    Args:
        warehouse: the warehouse.
        run: the run, by id or name.
        most: number of ops to draw per phase.
    """
    drawn = ask(
        warehouse,
        "top-ops",
        """SELECT * REPLACE (coalesce(phase, 'no phase') AS phase)
           FROM macros.top_ops($run, $most)
           ORDER BY phase DESC, self_ms DESC, op""",
        run=run,
        most=most,
    )
    base = (
        alt.Chart()
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="share of the phase's op time", axis=axis("ratio")),
            y=alt.Y("op:N", sort=alt.EncodingSortField("self_ms", order="descending"), title=None),
            color=class_color("class", drawn.values("class")),
            tooltip=tooltips(
                "op:N", "category:N", "layers:N", "parts:N", "source:N", percent("share"),
                number("self_ms", "ms, all devices"), "instructions:Q", "executions:Q",
            ),
        )
        .properties(width=WIDTH, height=alt.Step(18), data=drawn.data)
    )  # fmt: skip
    return drawn.figure(
        base.facet(facet=alt.Facet("phase:N", sort=drawn.values("phase"), title=None), columns=1).resolve_scale(
            y="independent", x="independent"
        ),
        "Self time by name without its number, all devices together. The table has layers, parts and source lines.",
        largest(drawn.rows, "share", "ratio", "phase", "op"),
    )


def layer_heat_map(warehouse: Warehouse, run: str) -> Figure:
    """Time of each layer and part of the model per step; a panel per phase."""
    drawn = ask(
        warehouse,
        "layers",
        """SELECT coalesce(phase, 'no phase') AS phase, coalesce(CAST(layer AS VARCHAR), 'none') AS layer,
                  coalesce(part, 'no part') AS part, self_us, compute_us, communication_us, devices
           FROM metrics.layer_time
           WHERE run_id = $run
           ORDER BY phase DESC, layer_time.layer NULLS LAST, part""",
        run=run,
    )
    legend = alt.Legend(labelExpr=axis("us").labelExpr)
    chart = (
        alt.Chart(drawn.data)
        .mark_rect()
        .encode(
            x=alt.X("layer:O", title="layer", sort=drawn.values("layer"),
                    axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=alt.Y("part:N", title=None, sort=sorted(drawn.values("part"))),
            color=alt.Color("self_us:Q", title="per step", scale=alt.Scale(scheme=HEAT), legend=legend),
            tooltip=tooltips("phase:N", "layer:O", "part:N", number("self_us", "µs per step"),
                     number("compute_us", "compute, µs"),
                     number("communication_us", "communication, µs"), "devices:Q"),
        )
    )  # fmt: skip
    panels = by_phase(chart, drawn.values("phase"), height=bar_height(len(drawn.values("part"))))
    named = [r | {"of": f"layer {r['layer']}"} for r in drawn.rows]
    return drawn.figure(
        panels.resolve_scale(x="shared", color="independent"),
        "Self time per device and step. Ops that belong to no layer are in the column none.",
        largest(named, "self_us", "us", "phase", "of", "part"),
    )


def op_icicle(warehouse: Warehouse, run: str) -> Figure:
    """Self time as nested bars: programs, their layers, the parts of a layer, and ops."""
    drawn = ask(
        warehouse,
        "icicle",
        """SELECT depth, [program, layer, part, op][depth + 1] AS name,
                  concat_ws(' > ', program, layer, part, op) AS path, begins, ends, share, self_ms
           FROM macros.op_icicle($run)
           ORDER BY depth, begins""",
        run=run,
    )
    names = [n for n in drawn.values("name") if n != "other ops"]
    pick = alt.selection_point(fields=["name"], on="click", empty=True)
    y = alt.Y("depth:O", title=None, axis=alt.Axis(labelExpr="['program', 'layer', 'part', 'op'][datum.value]"))
    colors = alt.Scale(domain=names, range=[SERIES[i % len(SERIES)] for i in range(len(names))])
    chart = (
        alt.Chart(drawn.data)
        .mark_bar(stroke="#ffffff", strokeWidth=0.4, height={"band": 0.94})
        .encode(
            x=alt.X("begins:Q", title="share of op time", axis=axis("ratio"), scale=alt.Scale(domain=[0, 1])),
            x2="ends:Q",
            y=y,
            color=alt.Color("name:N", legend=None, scale=colors),
            opacity=alt.condition(pick, alt.value(1), alt.value(0.25)),
            tooltip=tooltips("path:N", percent("share"), number("self_ms", "ms, all devices")),
        )
        .add_params(pick)
        .properties(width=WIDTH, height=160)
    )
    programs, parts = ([r for r in drawn.rows if r["depth"] == depth] for depth in (0, 2))
    return drawn.figure(
        chart,
        "Self time of all devices. Click a bar to highlight its name. Ops below a thousandth of the time are merged.",
        f"{largest(programs, 'share', 'ratio', 'name')} Parts of the model. {largest(parts, 'share', 'ratio', 'path')}",
    )


def roofline(warehouse: Warehouse, run: str, most: int = 300) -> Figure:
    """Instructions below the roofline of their device: rate against operations per byte; time is the size of a point.

    Args:
        warehouse: the warehouse.
        run: the run, by id or name.
        most: number of instructions to draw; those with most time come first.
    """
    drawn = ask(
        warehouse,
        "roofline",
        """SELECT what, name, category, coalesce(bound, 'peak not known') AS bound, intensity, flops_per_s, self_ms,
                  attained
           FROM macros.roofline_points($run, $most)
           ORDER BY what, self_ms DESC, name, intensity""",
        run=run,
        most=most,
    )
    ops = [r for r in drawn.rows if r["what"] == "op"]
    bounds = [
        b
        for b in ("compute", "memory", "ici", "die", "nvlink", "fabric", "peak not known")
        if any(r["bound"] == b for r in ops)
    ]
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
                     number("flops_per_s", "FLOP/s", ".3s"), percent("attained", ".1%", "of the bound"),
                     number("self_ms", "ms, all devices")),
        ),
    ).properties(width=WIDTH, height=320)  # fmt: skip
    known = [r for r in ops if r["attained"] is not None]
    return drawn.figure(
        chart,
        f"The {len(ops)} instructions with most time, of those whose operations and bytes the profiler states; the "
        "line is the peak of the memory and of the matrix units.",
        largest(known, "self_ms", "ms", "name", "bound")
        if known
        else "The peaks of the devices are not known. " + largest(ops, "self_ms", "ms", "name"),
    )


def memory_in_use(warehouse: Warehouse, run: str) -> Figure:
    """Bytes in use of each allocator over time: the most in each of 400 stretches."""
    drawn = ask(
        warehouse,
        "memory",
        """SELECT allocator, at_ps / 1e9 AS at_ms, used_bytes, capacity_bytes, changes
           FROM macros.memory_over_time($run)
           ORDER BY allocator, at_ms""",
        run=run,
    )
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
                "allocator:N", number("at_ms", "at, ms"), number("used_bytes", "bytes in use", ",.0f"),
                number("capacity_bytes", "bytes of the allocator", ",.0f"), "changes:Q",
            ),
        )
        .properties(width=WIDTH, height=220)
    )  # fmt: skip
    most = [max((r for r in drawn.rows if r["allocator"] == a), key=lambda r: r["used_bytes"]) for a in allocators]
    return drawn.figure(
        chart,
        "Allocated, and reserved for the stacks of programs, as the profiler states it at each allocation and release; "
        "the most in each stretch of time.",
        "The most in use. " + largest(most, "used_bytes", "bytes", "allocator"),
    )
