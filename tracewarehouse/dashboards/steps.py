"""Draws steps: how long they take, and where their time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from tracewarehouse.dashboards.figure import Figure, NothingToDraw, largest, read
from tracewarehouse.dashboards.theme import (
    ALARM,
    PHASE_COLORS,
    PRIMARY,
    QUIET,
    WIDTH,
    axis,
    bar_height,
    named_color,
    number,
    part_bars,
    series_color,
    tooltips,
)
from tracewarehouse.dashboards.units import quantity

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

PART_COLORS = {"compute and copies": PRIMARY, "exposed communication": ALARM, "idle": QUIET}
NO_FIT = "No kind of collective was run in enough sizes for a fit of latency and bandwidth, so none can be predicted."
NO_STEPS = "The capture marks no steps on a device, and none could be inferred; `tw ingest --step` names the program."

_IDLE_COLORS = {
    "before a launch": "#4a7fb0",
    "before a pipeline's tick": "#4d9440",
    "before another collective": "#d1495b",
    "before another op": "#b57a12",
    "between steps": "#8a949e",
}


def step_parts(warehouse: Warehouse, run: str, most: int = 200) -> Figure:
    """Time of each step, as the mean over devices, split into compute, exposed communication and idle time.

    Args:
        warehouse: the warehouse.
        run: the run, by id or name.
        most: number of steps to draw, beginning with the first.

    Raises:
        NothingToDraw: the run has no steps on a device.
    """
    run_id = warehouse.run(run).run_id
    drawn = read(
        warehouse,
        """SELECT step, coalesce(phase, 'no phase') AS phase, part, position, mean_ms
           FROM models.step_parts
           WHERE run_id = $run
           ORDER BY step, position
           LIMIT $most""",
        run=run_id,
        most=3 * most,
    )
    if not drawn:
        raise NothingToDraw(NO_STEPS)
    drawn_steps = len(drawn.values("step"))
    chart = (
        alt.Chart(drawn.data)
        .mark_bar(width=alt.RelativeBandSize(0.9 if drawn_steps >= 8 else 0.4))
        .encode(
            x=alt.X("step:O", title="step", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=alt.Y("mean_ms:Q", title="time, mean over devices", axis=axis("ms")),
            color=named_color("part", PART_COLORS),
            order=alt.Order("position:Q"),
            tooltip=tooltips("step:O", "phase:N", "part:N", number("mean_ms", "ms")),
        )
        .properties(width=WIDTH, height=240)
    )
    limit = f" The first {most} steps." if drawn_steps == most else ""
    totals = {p: sum(r["mean_ms"] for r in drawn.rows if r["part"] == p) for p in PART_COLORS}
    said = ", ".join(f"{p} {quantity(ms, 'ms')}" for p, ms in totals.items())
    return Figure(
        name="steps",
        title="Where each step's time goes",
        subtitle="From each step's start to the next one's, so that waiting for the host counts as idle; a last step, "
        f"which no step follows, is left out if its phase has others.{limit}",
        description=f"All {drawn_steps} drawn steps together: {said}.",
        drawn=drawn,
        metrics=("step_time", "exposed_communication", "device_idle"),
        chart=chart,
    )


def step_times(warehouse: Warehouse, run: str) -> Figure:
    """Distribution of step times, a line per phase.

    Raises:
        NothingToDraw: the run has no step that is followed by another.
    """
    drawn = read(
        warehouse,
        """WITH ranked AS (
             SELECT coalesce(phase, 'no phase') AS phase, step_time_ms,
                    cume_dist() OVER (PARTITION BY phase ORDER BY step_time_ms) AS share
             FROM metrics.step_time
             WHERE run_id = $run AND step_time_ms IS NOT NULL)
           SELECT phase, max(share) AS share, max(step_time_ms) AS step_time_ms
           FROM ranked
           GROUP BY phase, ceil(200 * share)
           ORDER BY phase DESC, share""",
        run=warehouse.run(run).run_id,
    )
    if not drawn:
        raise NothingToDraw("In the capture, no step follows another, so no step's time is known.")
    phases = drawn.values("phase")
    return Figure(
        name="step-times",
        title="Step times",
        subtitle="Share of a phase's steps that take at most this long, on the slowest device; the last step, which no "
        "step follows, is left out.",
        description=_percentiles(drawn.rows, "phase", "step_time_ms"),
        drawn=drawn,
        metrics=("step_time",),
        chart=_distribution(drawn.data, "phase", "step_time_ms", "time of a step").encode(
            color=named_color("phase", {p: PHASE_COLORS.get(p, QUIET) for p in phases})
        ),
    )


def tpot_distribution(warehouse: Warehouse, run: str) -> Figure:
    """Distribution of the time per output token; a line for the hosts' clock and one for the devices'.

    Raises:
        NothingToDraw: the run has no two decode steps in a row.
    """
    drawn = read(
        warehouse,
        """WITH tokens AS (
             SELECT clock, step, max(step_ps) AS token_ps
             FROM models.steps
             WHERE run_id = $run AND phase = 'decode' AND NOT is_last_of_phase
             GROUP BY clock, step
           ), ranked AS (
             SELECT clock, token_ps, cume_dist() OVER (PARTITION BY clock ORDER BY token_ps) AS share FROM tokens)
           SELECT clock, max(share) AS share, max(token_ps) / 1e9 AS token_ms
           FROM ranked
           GROUP BY clock, ceil(200 * share)
           ORDER BY clock, share""",
        run=warehouse.run(run).run_id,
    )
    if not drawn:
        raise NothingToDraw("No decode step follows another in the capture, so the time per output token is not known.")
    return Figure(
        name="tpot",
        title="Time per output token",
        subtitle="Share of decode steps that take at most this long, start to start, on the slowest host or device.",
        description=_percentiles(drawn.rows, "clock", "token_ms"),
        drawn=drawn,
        metrics=("tpot",),
        chart=_distribution(drawn.data, "clock", "token_ms", "time per output token").encode(
            color=series_color("clock", drawn.values("clock"), "clock")
        ),
    )


def decode_by_context(warehouse: Warehouse, run: str) -> Figure:
    """Time of each decode step against the number of tokens that it attends to.

    Raises:
        NothingToDraw: the run's input length is not known, or no decode step has a time.
    """
    drawn = read(
        warehouse,
        """SELECT r.input_length + t.step AS context_tokens, t.step, t.step_time_ms
           FROM metrics.step_time AS t JOIN main.runs AS r USING (run_id)
           WHERE run_id = $run AND t.phase = 'decode' AND t.step_time_ms IS NOT NULL AND r.input_length IS NOT NULL
           ORDER BY context_tokens
           LIMIT 4000""",
        run=warehouse.run(run).run_id,
    )
    if not drawn:
        raise NothingToDraw(
            "The length of the prompt is not known (no manifest or card), or no decode step has a time."
        )
    first, last = drawn.rows[0], drawn.rows[-1]
    chart = (
        alt.Chart(drawn.data)
        .mark_point(filled=True, color=PRIMARY, size=60, opacity=1)
        .encode(
            x=alt.X("context_tokens:Q", title="context, tokens of a sequence", scale=alt.Scale(zero=False),
                    axis=alt.Axis(format="d", tickMinStep=1)),
            y=alt.Y("step_time_ms:Q", title="time of the decode step", axis=axis("ms")),
            tooltip=tooltips("context_tokens:Q", "step:O", number("step_time_ms", "ms")),
        )
        .properties(width=WIDTH, height=220)
    )  # fmt: skip
    return Figure(
        name="decode-by-context",
        title="Decode time against context length",
        subtitle="A decode step attends to the prompt and to every token that was produced before it.",
        description=f"{quantity(first['step_time_ms'], 'ms')} at {first['context_tokens']} tokens, "
        f"{quantity(last['step_time_ms'], 'ms')} at {last['context_tokens']}.",
        drawn=drawn,
        metrics=("step_time", "tpot"),
        chart=chart,
    )


def idle_parts(warehouse: Warehouse, run: str) -> Figure:
    """Idle time of each device per step, split by what the device waits for; a panel per phase.

    Raises:
        NothingToDraw: the run has no steps on a device.
    """
    drawn = read(
        warehouse,
        """SELECT coalesce(phase, 'no phase') AS phase, 'device ' || device_id AS device, part, position,
                  mean_ms AS ms
           FROM models.idle_parts
           WHERE run_id = $run
           ORDER BY phase DESC, device_id, position""",
        run=warehouse.run(run).run_id,
    )
    if not drawn:
        raise NothingToDraw(NO_STEPS)
    chart = part_bars(
        drawn.data,
        "device",
        drawn.values("device"),
        drawn.values("phase"),
        _IDLE_COLORS,
        x=alt.X("ms:Q", title="idle time per step", axis=axis("ms")),
        tooltip=number("ms", "ms per step"),
    )
    return Figure(
        name="idle",
        title="Idle time, by what ends it",
        subtitle="Gaps inside a step by what comes after them; the time between the last op of a step and the first of "
        "the next, in which the host prepares it, with gaps of up to 1 µs.",
        description=largest(drawn.rows, "ms", "ms", "phase", "device", "part"),
        drawn=drawn,
        metrics=("device_idle", "bubble", "launch_overhead", "host_gap"),
        chart=chart,
    )


def what_if(warehouse: Warehouse, run: str) -> Figure:
    """The share of each phase's time that faster links would save.

    Raises:
        NothingToDraw: latency and bandwidth cannot be fitted to the run's collectives.
    """
    drawn = read(
        warehouse,
        """SELECT coalesce(phase, 'no phase') AS phase,
                  CASE factor WHEN 'infinite' THEN factor ELSE factor || ' times' END AS links,
                  saved_percent / 100 AS saved,
                  fitted_executions, executions
           FROM metrics.ici_bandwidth_utility
           WHERE run_id = $run
           ORDER BY phase DESC, factor""",
        run=warehouse.run(run).run_id,
    )
    if not drawn:
        raise NothingToDraw(NO_FIT)
    phases = drawn.values("phase")
    chart = (
        alt.Chart(drawn.data)
        .mark_bar()
        .encode(
            x=alt.X("saved:Q", title="share of the time that is saved", axis=axis("ratio")),
            y=alt.Y("links:N", title="bandwidth of the links", sort=["2 times", "4 times", "infinite"]),
            yOffset=alt.YOffset("phase:N", sort=phases),
            color=named_color("phase", {p: PHASE_COLORS.get(p, QUIET) for p in phases}),
            tooltip=tooltips("phase:N", "links:N", alt.Tooltip("saved:Q", format=".2%"), "fitted_executions:Q",
                             "executions:Q"),
        )
        .properties(width=WIDTH, height=bar_height(3 * len(phases)))
    )  # fmt: skip
    return Figure(
        name="what-if",
        title="What faster links would save",
        subtitle="Exposed transfers without a part of their bandwidth term. Collectives whose sizes do not allow a fit "
        "stay as they are, so faster links save at least this.",
        description=largest(drawn.rows, "saved", "ratio", "phase", "links"),
        drawn=drawn,
        metrics=("ici_bandwidth_utility",),
        chart=chart,
    )


def _distribution(data: alt.NamedData, series: str, column: str, title: str) -> Any:
    """A step line of shares against values, with a point per observation."""
    return (
        alt.Chart(data)
        .mark_line(interpolate="step-after", point=True)
        .encode(
            x=alt.X(f"{column}:Q", title=title, axis=axis("ms"), scale=alt.Scale(zero=False, padding=12)),
            y=alt.Y("share:Q", title="share of the steps", axis=axis("ratio"), scale=alt.Scale(domain=[0, 1])),
            shape=alt.Shape(f"{series}:N", legend=None),
            tooltip=tooltips(f"{series}:N", alt.Tooltip("share:Q", format=".0%"), number(column, "ms")),
        )
        .properties(width=WIDTH, height=220)
    )


def _percentiles(rows: list[dict[str, object]], series: str, column: str) -> str:
    """Describe the median and 90th percentile of each series in words."""
    words = []
    for name in dict.fromkeys(str(r[series]) for r in rows):
        own = [r for r in rows if r[series] == name]
        half, tail = (next(r[column] for r in own if float(str(r["share"])) >= q) for q in (0.5, 0.9))
        words.append(
            f"{name}: median {quantity(float(str(half)), 'ms')}, 90th percentile {quantity(float(str(tail)), 'ms')}"
        )
    return "; ".join(words) + "."
