"""Draws ops: when each device ran which, what takes their time, how fast they are, and the memory that they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt

from tracewarehouse.comparison.compare import referenced_run_ids
from tracewarehouse.dashboards.figure import Drawn, Figure, NothingToDraw, ask
from tracewarehouse.dashboards.kernel_names import short_label, short_name
from tracewarehouse.dashboards.theme import (
    ALARM,
    CLASS_COLORS,
    HEAT,
    ON_BARS,
    PRIMARY,
    QUIET,
    WIDTH,
    axis,
    bar_height,
    by_phase,
    class_color,
    in_units,
    number,
    percent,
    phase_bars,
    phase_color,
    powers,
    series_color,
    tooltips,
)
from tracewarehouse.dashboards.words import ODD, largest, quantity, signed

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

MAX_BARS = 3000
"""The most bars that a page draws without lag."""
MOST_DEVICES = 4
"""The most devices of a timeline."""

_WORTHY = 0.01
"""A step whose idle time outside of the window is a larger share says so."""

_ZOOM = "wheel![event.ctrlKey]"
"""The wheel zooms only with Ctrl, so that a page scrolls over the chart."""

_BARS = """SELECT device_id, lane, class, op, layer, part, start_ms, end_ms, duration_us,
       CASE lane WHEN 'layer' THEN lane ELSE 'device ' || device_id || if(lane = 'core', '', ' communication') END
         AS place
FROM macros.timeline_bars($run, $start, $until, $devices)
ORDER BY lane <> 'layer', device_id, lane DESC, start_ms, end_ms, op"""

_STRETCHES = """SELECT device_id, lane, class, 'most of ' || stretches || ' stretches' AS op, NULL AS layer,
       NULL AS part, start_ms, end_ms, duration_us,
       'device ' || device_id || if(lane = 'core', '', ' communication') AS place
FROM macros.timeline_stretches($run, $start, $until, $stretch)
WHERE device_id IN (SELECT device_id FROM main.devices WHERE run_id = $run ORDER BY device_id LIMIT $devices)
ORDER BY device_id, lane DESC, start_ms"""


def device_timeline(
    warehouse: Warehouse, run: str, window_ms: tuple[float, float] | None = None, max_bars: int = MAX_BARS
) -> Figure:
    """Ops of devices over time, with a lane of its own for communication.

    A window with more ops than can be drawn is divided into equal stretches. Each lane then shows the class of ops that
    takes most of each stretch.

    Args:
        run: the run, by id or name.
        window_ms: the window to draw, in ms since the first op; None for the one of macros.timeline_window: two layers,
            or two steps without layers.
        max_bars: maximum number of bars.
    """
    start, until, name, shown = _window(warehouse, run, window_ms)
    counted = ask(
        warehouse,
        "timeline",
        """SELECT count(*) AS ops, count(DISTINCT device_id) AS devices FROM main.ops
           WHERE run_id = $run AND is_leaf AND device_id IS NOT NULL
             AND start_ps < $until AND start_ps + duration_ps > $start""",
        run=run,
        start=start,
        until=until,
    )
    [found] = counted.rows
    if not found["ops"]:
        raise NothingToDraw(f"No device runs an op from {name}.")
    devices = min(found["devices"], MOST_DEVICES)
    is_whole = found["ops"] * devices <= max_bars * found["devices"]
    stretch = max(1, 2 * (until - start) * devices // max_bars + 1)
    drawn = ask(
        warehouse,
        "timeline",
        _BARS if is_whole else _STRETCHES,
        run=run,
        start=start,
        until=until,
        stretch=stretch,
        devices=devices,
    )
    places = drawn.values("place")
    pick = alt.selection_point(fields=["class"], bind="legend")
    zoom = alt.selection_interval(bind="scales", encodings=["x"], zoom=_ZOOM)
    classes = [c for c in drawn.values("class") if c in CLASS_COLORS]
    x = alt.X("start_ms:Q", title="time", axis=axis("ms"),
              scale=alt.Scale(domain=[0, (until - start) / 1e9], nice=False))  # fmt: skip
    y = alt.Y("place:N", sort=places, title=None)
    tip = tooltips("op:N", "class:N", number("duration_us", "µs"), "layer:O", "part:N")
    placed = alt.Chart(drawn.data).encode(x=x, y=y, tooltip=tip)
    base = placed.encode(x2="end_ms:Q")
    bars = (
        base.transform_filter("datum.lane !== 'layer' && datum.class !== 'window'")
        .mark_bar(height={"band": 0.82}, clip=True)
        .encode(color=class_color(classes), opacity=alt.condition(pick, alt.value(1), alt.value(0.08)))
        .add_params(pick, zoom)
    )
    layers, narrow = [bars], 0.08 * (until - start) / 1e9
    if "window" in drawn.values("class"):
        windows = base.transform_filter("datum.class === 'window'")
        layers.append(windows.mark_bar(height={"band": 0.25}, clip=True, color=ALARM))
    if "layer" in drawn.values("lane"):
        band = base.transform_filter("datum.lane === 'layer'")
        layers.append(band.mark_bar(height={"band": 0.82}, clip=True, fillOpacity=0, stroke=QUIET))
        is_wide = f"datum.lane === 'layer' && datum.end_ms - datum.start_ms > {narrow}"
        texts = placed.transform_filter(is_wide).transform_calculate(middle="(datum.start_ms + datum.end_ms) / 2")
        layers.append(texts.mark_text(clip=True).encode(x="middle:Q", text="op:N"))
    chart = alt.layer(*layers).properties(width=WIDTH, height=17 * len(places))
    summed = "" if is_whole else f"; each stretch of {quantity(stretch, 'ps')} shows the class that takes most of it"
    of_devices = f"the first {devices} of {found['devices']} devices" if devices < found["devices"] else ""
    of_one = " The layers are those of the first device." if devices > 1 and "layer" in drawn.values("lane") else ""
    times = {c: sum(r["end_ms"] - r["start_ms"] for r in drawn.rows if r["class"] == c) for c in classes}
    ordered = sorted(times, key=lambda c: -times[c])
    return drawn.figure(
        chart,
        ", ".join(t for t in (name, of_devices) if t)
        + f"{summed}.{of_one}{_unnamed(drawn.rows, narrow, shown)} Drag to move, Ctrl and the wheel to zoom, "
        "click a class to single it out.",
        f"{devices} devices; time by class over all of them: "
        + ", ".join(f"{c} {quantity(times[c], 'ms')}" for c in ordered)
        + ".",
    )


def _unnamed(rows: Sequence[Mapping[str, Any]], narrow: float, layers: Sequence[int]) -> str:
    """Name those of some layers all of whose boxes are too narrow for a name."""
    named = {r["layer"] for r in rows if r["lane"] == "layer" and r["end_ms"] - r["start_ms"] > narrow}
    unnamed = [str(layer) for layer in layers if layer not in named]
    if not unnamed:
        return ""
    which = f"Layer {unnamed[0]} is" if len(unnamed) == 1 else f"Layers {' and '.join(unnamed)} are"
    return f" {which} too narrow for a name; hover over the lane of layers for it."


def _window(
    warehouse: Warehouse, run: str, window_ms: tuple[float, float] | None
) -> tuple[int, int, str, tuple[int, ...]]:
    """The part of a run that a timeline draws: its start and end in ps, its name, and the layers in it."""
    if window_ms is not None:
        first = ask(
            warehouse,
            "timeline",
            "SELECT min(first_start_ps) AS start_ps FROM models.execution_ops WHERE run_id = $run HAVING count(*) > 0",
            run=run,
        ).rows[0]["start_ps"]
        start, until = (first + round(t * 1e9) for t in window_ms)
        length = quantity(until - start, "ps")
        return start, until, f"{window_ms[0]:g} to {window_ms[1]:g} ms after the first op, {length}", ()
    [row] = ask(warehouse, "timeline", "SELECT * FROM macros.timeline_window($run)", run=run).rows
    step = f"{row['phase'] or ''} step {row['step']}".strip()
    near = ", by length and idle time nearest to the medians" if (row["steps"] or 0) > 1 else ""
    length, whole = (quantity(t, "ps", 4) for t in (row["finish_ps"] - row["begin_ps"], row["step_ps"]))
    if row["step"] is None:
        name = f"The whole capture, {length}"
    elif row["layer"] is not None:
        name = f"Layers {row['layer']} and {row['layer'] + 1} of {step}{near}: {length} of {whole}"
        if row["idle_outside_ps"] >= _WORTHY * row["step_ps"]:
            name += f"; before or after these layers it is idle for {quantity(row['idle_outside_ps'], 'ps')}"
    elif row["next_step"] is None:
        name = f"{step[:1].upper()}{step[1:]}{near}, {length}"
    else:
        name = f"{step[:1].upper()}{step[1:]} of {whole}{near}, and the next: {length} together"
    layers = () if row["layer"] is None else (row["layer"], row["layer"] + 1)
    return row["begin_ps"], row["finish_ps"], name, layers


def op_time_share(warehouse: Warehouse, run: str, most: int = 12) -> Figure:
    """The categories of ops with the largest shares of self time, the phases side by side.

    Args:
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
            y=alt.Y("op:N", sort=alt.EncodingSortField("self_ms", order="descending"), title=None,
                    axis=alt.Axis(labelExpr=short_label(drawn.values("op"), "datum.value"))),
            color=class_color(drawn.values("class")),
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
        largest([r | {"op": short_name(r["op"])} for r in drawn.rows], "share", "ratio", "phase", "op"),
    )


def layers(warehouse: Warehouse, run: str) -> Figure:
    """One mean layer in order, and how far each layer is from the median; a heat map of layers that are not alike."""
    try:
        drawn = _mean_layers(warehouse, "layers", [run])
    except NothingToDraw:  # a model may have parts without layers
        return _layer_heat_map(warehouse, run)
    if not all(r["is_alike"] for r in drawn.rows):
        return _layer_heat_map(warehouse, run)
    phases = drawn.values("phase")
    totals = alt.Chart(drawn.data).transform_filter("datum.what === 'layer'")
    strip = (
        totals.mark_bar(color=PRIMARY)
        .encode(
            x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=alt.Y("difference_us:Q", title="to the median", axis=axis("us", tickCount=3)),
            xOffset=alt.XOffset("phase:N", sort=phases),
            color=phase_color(phases) if len(phases) > 1 else alt.Undefined,
            tooltip=tooltips(
                "phase:N", "layer:O", number("self_us", "µs"), number("difference_us", "µs to the median")
            ),
        )
        .properties(width=WIDTH, height=50)
    )
    said = {phase: _layers_in_words([r for r in drawn.rows if r["phase"] == phase]) for phase in phases}
    return drawn.figure(
        alt.vconcat(_layer_stacks(drawn, "phase"), strip).resolve_scale(color="independent"),
        f"{_in_order(drawn.rows)} Below it is how far each layer is from the median. Self time per step and device.",
        largest([r for r in drawn.rows if r["what"] == "mean layer"], "self_us", "us", "phase", "name", "op"),
        title="; ".join(f"{phase}: {text}" if len(phases) > 1 else text for phase, text in said.items()),
    )


def mean_layers(warehouse: Warehouse, runs: str | Sequence[str], most: int = 8) -> Figure:
    """One mean layer of several runs, one below the other; a panel per phase.

    Args:
        most: number of runs to draw, since their ops are read.
    """
    ids = referenced_run_ids(warehouse, runs)
    drawn = _mean_layers(warehouse, "mean-layers", ids[:most])
    medians = {(r["run"], r["phase"]): r["median_us"] for r in drawn.rows}
    cut = f" The first {most} of {len(ids)} runs." if len(ids) > most else ""
    return drawn.figure(
        _layer_stacks(drawn, "run"),
        f"In the order of execution; self time per step and device.{cut}",
        "Median time of a layer: "
        + "; ".join(f"{run} {phase} {quantity(us, 'us')}" for (run, phase), us in medians.items())
        + ".",
    )


def _mean_layers(warehouse: Warehouse, name: str, runs: Sequence[str]) -> Drawn:
    return ask(
        warehouse,
        name,
        """SELECT r.name AS run, coalesce(l.phase, 'no phase') AS phase, l.what, l.layer, l.class, l.part, l.name, l.op,
                  l.ops, l.place, l.self_us, l.begin_us, l.until_us, l.layers, l.median_us, l.difference_us, l.is_alike
           FROM macros.mean_layers($runs) AS l JOIN main.runs AS r USING (run_id)
           ORDER BY l.phase DESC, r.name, l.what DESC, l.place""",
        runs=runs,
    )


def _layer_stacks(drawn: Drawn, row: str) -> Any:
    bars = [r for r in drawn.rows if r["what"] == "mean layer"]
    rows, phases = drawn.values(row), drawn.values("phase")
    y = alt.Y(f"{row}:N", sort=rows, title=None)
    x = alt.X("begin_us:Q", title="time of a mean layer", axis=axis("us"), scale=alt.Scale(nice=False))
    base = alt.Chart(drawn.data).transform_filter("datum.what === 'mean layer'")
    label = f"{short_label((r['name'] for r in bars), 'datum.name')} + ' ' + {in_units('datum.self_us', 'us')}"
    stack = base.mark_bar(stroke="#ffffff", strokeWidth=0.5, height={"band": 0.9}).encode(
        x=x,
        x2="until_us:Q",
        y=y,
        color=class_color(list(dict.fromkeys(r["class"] for r in bars))),
        tooltip=tooltips("name:N", "op:N", "ops:Q", number("self_us", "µs"), "class:N", "part:N"),
    )
    wide = base.properties(name=ON_BARS).transform_filter(f"datum.self_us > {0.07 * max(r['until_us'] for r in bars)}")
    named = wide.transform_calculate(middle="(datum.begin_us + datum.until_us) / 2", label=label)
    texts = named.mark_text(color="#ffffff", clip=True).encode(x="middle:Q", y=y, text="label:N")
    chart = alt.layer(stack, texts)
    if row == "phase" or len(phases) == 1:
        return chart.properties(width=WIDTH, height=34 * len(rows))
    return by_phase(chart, phases, height=34 * len(rows))


def _in_order(rows: list[dict[str, Any]]) -> str:
    bars = [r for r in rows if r["what"] == "mean layer"]
    phase = max(bars, key=lambda r: r["until_us"])["phase"]
    named = ", ".join(f"{short_name(r['name'])} {quantity(r['self_us'], 'us')}" for r in bars if r["phase"] == phase)
    of_phase = "" if phase == "no phase" else f" of {phase}"
    return f"A mean layer{of_phase} in the order of execution: {named}."


def _layers_in_words(rows: list[dict[str, Any]]) -> str:
    layers = [r for r in rows if r["what"] == "layer"]
    median = layers[0]["median_us"]
    far = sorted((r for r in layers if abs(r["difference_us"]) > ODD * median), key=lambda r: -abs(r["difference_us"]))
    named = [f"layer {r['layer']} {signed(r['difference_us'], 'us')}" for r in far[:3]]
    rest = f" and {len(far) - 3} more" if len(far) > 3 else ""
    alike = "equal layers" if len(far) <= 0.1 * len(layers) else "layers of the same ops"
    return f"{len(layers)} {alike}, median {quantity(median, 'us', 4)}" + "".join(f"; {n}" for n in named) + rest


def _layer_heat_map(warehouse: Warehouse, run: str) -> Figure:
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


def roofline(warehouse: Warehouse, run: str, most: int = 300) -> Figure:
    """Instructions below the roofline of their device: rate against operations per byte; time is the size of a point.

    Args:
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
    ops = [r | {"name": short_name(r["name"])} for r in drawn.rows if r["what"] == "op"]
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
