"""Draws steps: how long they take, and where their time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from tracewarehouse.dashboards.figure import Figure, ask
from tracewarehouse.dashboards.theme import (
    PART_COLORS,
    PRIMARY,
    WIDTH,
    axis,
    named_color,
    number,
    percent,
    series_color,
    tooltips,
)
from tracewarehouse.dashboards.words import largest, quantity

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

_IDLE_COLORS = {
    "before a launch": "#4a7fb0",
    "before a pipeline's tick": "#4d9440",
    "before another collective": "#d1495b",
    "before another op": "#b57a12",
    "between steps": "#8a949e",
}


def step_parts(warehouse: Warehouse, run: str, most: int = 200) -> Figure:
    """Each step's time, as the mean over devices: products, attention, other computing, copies, communication, idle.

    Args:
        most: number of steps to draw, beginning with the first.
    """
    drawn = ask(
        warehouse,
        "steps",
        """SELECT step, coalesce(phase, 'no phase') AS phase, part, position, mean_ms
           FROM models.step_parts
           WHERE run_id = $run
           ORDER BY step, position
           LIMIT $most""",
        run=run,
        most=len(PART_COLORS) * most,
    )
    steps = len(drawn.values("step"))
    chart = (
        alt.Chart(drawn.data)
        .mark_bar(width=alt.RelativeBandSize(0.9 if steps >= 8 else 0.4))
        .encode(
            x=alt.X("step:O", title="step", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=alt.Y("mean_ms:Q", title="time, mean over devices", axis=axis("ms")),
            color=named_color("part", PART_COLORS),
            order=alt.Order("position:Q"),
            tooltip=tooltips("step:O", "phase:N", "part:N", number("mean_ms", "ms")),
        )
        .properties(width=WIDTH, height=240)
    )
    totals = {p: sum(r["mean_ms"] for r in drawn.rows if r["part"] == p) for p in PART_COLORS}
    said = ", ".join(f"{p} {quantity(ms, 'ms')}" for p, ms in totals.items())
    return drawn.figure(
        chart,
        "From each step's start to the next one's, so that waiting for the host counts as idle. Nothing ends the last "
        "step, so it is left out if its phase has others." + (f" The first {most} steps." if steps == most else ""),
        f"All {steps} drawn steps together: {said}.",
    )


def idle_parts(warehouse: Warehouse, run: str) -> Figure:
    """Idle time of each device per step, split by what the device waits for; a panel per phase."""
    drawn = ask(
        warehouse,
        "idle",
        """SELECT coalesce(phase, 'no phase') AS phase, 'device ' || device_id AS device, part, position,
                  mean_ms AS ms
           FROM models.idle_parts
           WHERE run_id = $run
           ORDER BY phase DESC, device_id, position""",
        run=run,
    )
    return drawn.figure(
        drawn.part_bars(
            "device",
            _IDLE_COLORS,
            x=alt.X("ms:Q", title="idle time per step", axis=axis("ms")),
            tooltip=number("ms", "ms per step"),
        ),
        "A gap inside a step is named by what ends it. Between steps is the time from a step's last op to the first op "
        "of the next one, and gaps of up to 1 µs.",
        largest(drawn.rows, "ms", "ms", "phase", "device", "part"),
    )


def step_times(warehouse: Warehouse, run: str) -> Figure:
    """Distribution of step times, a line per phase, and of the time per output token, a line per clock."""
    drawn = ask(
        warehouse,
        "step-times",
        """SELECT CASE metric WHEN 'tpot' THEN 'output token, ' || part || ' clock'
                              ELSE concat_ws(' ', part, 'step') END AS what,
                  share, time_ms
           FROM models.step_time_shares
           WHERE run_id = $run
           ORDER BY metric, part DESC, share""",
        run=run,
    )
    series = drawn.values("what")
    chart = (
        alt.Chart(drawn.data)
        .mark_line(interpolate="step-after", point=True)
        .encode(
            x=alt.X("time_ms:Q", title="time", axis=axis("ms"), scale=alt.Scale(zero=False, padding=12)),
            y=alt.Y("share:Q", title="share of the steps", axis=axis("ratio"), scale=alt.Scale(domain=[0, 1])),
            shape=alt.Shape("what:N", legend=None),
            color=series_color("what", series),
            tooltip=tooltips("what:N", percent("share", ".0%"), number("time_ms", "ms")),
        )
        .properties(width=WIDTH, height=220)
    )
    said = []
    for name in series:
        own = [r for r in drawn.rows if r["what"] == name]
        half, tail = (quantity(next(r["time_ms"] for r in own if r["share"] >= q), "ms") for q in (0.5, 0.9))
        said.append(f"{name}: median {half}, 90th percentile {tail}")
    return drawn.figure(
        chart,
        "Share of the steps that take at most this long, start to start, on the slowest device or host. Nothing ends "
        "the last step, so it is left out.",
        "; ".join(said) + ".",
    )


def decode_by_context(warehouse: Warehouse, run: str) -> Figure:
    """Time of each decode step against the number of tokens that it attends to."""
    drawn = ask(
        warehouse,
        "decode-by-context",
        """SELECT context_tokens, step, step_time_ms
           FROM models.decode_times
           WHERE run_id = $run
           ORDER BY context_tokens, step
           LIMIT 4000""",
        run=run,
    )
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
    ends = (f"{quantity(r['step_time_ms'], 'ms')} at {r['context_tokens']}" for r in (drawn.rows[0], drawn.rows[-1]))
    return drawn.figure(
        chart,
        "A decode step attends to the prompt and to every token that was produced before it. Where a server states "
        "its batches, this is the shortest context among the requests.",
        " tokens, ".join(ends) + ".",
    )
