"""Draws communication: what it costs each device, how many bytes move between which devices, and how fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from tracewarehouse.dashboards.figure import Drawn, Figure, NothingToDraw, ask
from tracewarehouse.dashboards.registry import NO_COLLECTIVES
from tracewarehouse.dashboards.theme import (
    ALARM,
    HEAT,
    PRIMARY,
    QUIET,
    WIDTH,
    axis,
    bar_height,
    by_phase,
    kind_color,
    named_color,
    number,
    percent,
    powers,
    series_color,
    tooltips,
)  # fmt: skip
from tracewarehouse.dashboards.words import largest, quantity

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

_TIME_COLORS = {"transfer": PRIMARY, "waiting": "#b57a12", "rest of the window": QUIET, "exposed": ALARM}
_OVERLAP_COLORS = {"hidden": QUIET, "exposed": ALARM, "idle": "#b57a12"}
_PEAK = "peak of the links"


def exposed_communication(warehouse: Warehouse, run: str) -> Figure:
    """Time per step in which a device only communicates, by kind and axis; a panel per phase."""
    drawn = ask(
        warehouse,
        "exposed-communication",
        """SELECT coalesce(phase, 'no phase') AS phase, device_id, 'device ' || device_id AS device, kind, axis,
                  exposed_ms
           FROM metrics.exposed_communication
           WHERE run_id = $run
           ORDER BY phase DESC, device_id, kind, axis""",
        run=run,
    )
    devices = drawn.values("device")
    chart = (
        alt.Chart(drawn.data)
        .mark_bar()
        .encode(
            x=alt.X("exposed_ms:Q", title="time per step", axis=axis("ms")),
            y=alt.Y("device:N", sort=devices, title=None),
            color=kind_color(drawn.values("kind")),
            detail="axis:N",
            tooltip=tooltips("phase:N", "device:N", "kind:N", "axis:N", number("exposed_ms", "ms per step")),
        )
    )
    return drawn.figure(
        by_phase(chart, drawn.values("phase"), height=bar_height(len(devices))),
        "Time per step in which a device's op line only communicates.",
        largest(drawn.rows, "exposed_ms", "ms", "phase", "device", "kind", "axis"),
    )


def collective_time(warehouse: Warehouse, run: str) -> Figure:
    """Time of collectives per step, split into transfer and waiting, with the exposed part beside it."""
    drawn = _ask_ranks(
        warehouse,
        "collective-time",
        """SELECT coalesce(phase, 'no phase') AS phase,
                  kind || ' over ' || axis || CASE part WHEN 'exposed' THEN ', op line' ELSE ', window' END
                    AS collective,
                  part, position, mean_ms AS ms
           FROM models.collective_parts
           WHERE run_id = $run
           ORDER BY phase DESC, kind, axis, position""",
        run,
    )
    return drawn.figure(
        drawn.part_bars(
            "collective",
            _TIME_COLORS,
            x=alt.X("ms:Q", title="time per step, mean over devices", axis=axis("ms")),
            tooltip=number("ms", "ms per step"),
        ),
        "Transfer is the shortest time over the ranks, waiting what a rank takes beyond it. Below each window is the "
        "part of it in which the op line computes nothing.",
        largest(drawn.rows, "ms", "ms", "phase", "collective", "part"),
    )


def overlap(warehouse: Warehouse, run: str) -> Figure:
    """The share of the collectives' windows that computation hides, by kind and axis; a panel per phase."""
    drawn = ask(
        warehouse,
        "overlap",
        """SELECT coalesce(phase, 'no phase') AS phase, kind || ' over ' || axis AS collective,
                  unnest(['hidden', 'exposed', 'idle']) AS part, unnest([0, 1, 2]) AS position,
                  unnest([overlap_ratio, exposed_ms / window_ms, idle_ms / window_ms]) AS share
           FROM metrics.overlap_ratio
           WHERE run_id = $run AND overlap_ratio IS NOT NULL
           ORDER BY phase DESC, collective, position""",
        run=run,
    )
    return drawn.figure(
        drawn.part_bars(
            "collective",
            _OVERLAP_COLORS,
            x=alt.X("share:Q", title="share of the windows", axis=axis("ratio"), scale=alt.Scale(domain=[0, 1])),
            tooltip=percent("share"),
        ),
        "The part of the collectives' windows in which the device runs other ops is hidden; idle, it runs nothing.",
        largest([r for r in drawn.rows if r["part"] == "hidden"], "share", "ratio", "phase", "collective"),
    )


def what_if(warehouse: Warehouse, run: str) -> Figure:
    """The share of each phase's time that faster links, memory or matrix units would save, by factor and mesh axis."""
    drawn = ask(
        warehouse,
        "what-if",
        """SELECT coalesce(phase, 'no phase') AS phase, concat_ws(' of ', resource, axis) AS faster,
                  CASE factor WHEN 'infinite' THEN factor ELSE factor || ' times' END AS factor, saved,
                  CASE WHEN is_upper_bound THEN 'at most' ELSE 'about' END AS what
           FROM macros.speedups([$run])
           ORDER BY phase DESC, metric DESC, faster, factor""",
        run=run,
    )
    chart = by_phase(
        alt.Chart(drawn.data)
        .mark_bar()
        .encode(
            x=alt.X("saved:Q", title="share of the time that is saved", axis=axis("ratio")),
            y=alt.Y("faster:N", title=None, sort=drawn.values("faster")),
            yOffset=alt.YOffset("factor:N", sort=list(_FACTORS)),
            color=named_color("factor", _FACTORS, "faster by"),
            opacity=alt.Opacity("what:O", title=None, legend=alt.Legend(orient="top"),
                                scale=alt.Scale(domain=["about", "at most"], range=[1, 0.55])),
            tooltip=tooltips("phase:N", "faster:N", "factor:N", "what:N", percent("saved")),
        ),
        drawn.values("phase"),
        bar_height(2 * len(drawn.values("faster"))),
    )  # fmt: skip
    said = {"at most": "; pale bars are at most that, as all exposed time or the whole op shrinks"}
    return drawn.figure(
        chart,
        f"Links shrink exposed transfers, memory and matrix units the ops that they bound"
        f"{''.join(said.get(what, '') for what in drawn.values('what'))}.",
        largest(drawn.rows, "saved", "ratio", "phase", "faster", "factor"),
    )


_FACTORS = {"2 times": PRIMARY, "4 times": "#0f8b9d", "infinite": QUIET}


def traffic_volume(warehouse: Warehouse, run: str) -> Figure:
    """Message bytes per device and step, by kind and mesh axis; a panel per phase."""
    drawn = ask(
        warehouse,
        "traffic",
        """SELECT coalesce(phase, 'no phase') AS phase, kind, axis, message_bytes_per_step, devices
           FROM metrics.traffic_volume
           WHERE run_id = $run
           ORDER BY phase DESC, axis, kind""",
        run=run,
    )
    bytes_ = number("message_bytes_per_step", "bytes", ",.0f")
    chart = (
        alt.Chart(drawn.data)
        .mark_bar()
        .encode(
            x=alt.X("message_bytes_per_step:Q", title="message bytes per device and step", axis=axis("bytes")),
            y=alt.Y("axis:N", title="mesh axis", sort=sorted(drawn.values("axis"))),
            color=kind_color(drawn.values("kind")),
            tooltip=tooltips("phase:N", "kind:N", "axis:N", bytes_, "devices:Q"),
        )
    )
    return drawn.figure(
        by_phase(chart, drawn.values("phase"), height=bar_height(len(drawn.values("axis")))),
        "Operand bytes of the collectives on each mesh axis; for an all-gather the full buffer.",
        largest(drawn.rows, "message_bytes_per_step", "bytes", "phase", "kind", "axis"),
    )


def traffic_matrix(warehouse: Warehouse, run: str) -> Figure:
    """Bytes that each device sends to each other one over the whole capture, by the algorithm of main.traffic."""
    drawn = _ask_ranks(
        warehouse,
        "traffic-matrix",
        """SELECT source_device_id AS source, target_device_id AS target, CAST(sum(sent_bytes) AS BIGINT) AS sent_bytes
           FROM metrics.traffic_matrix
           WHERE run_id = $run
           GROUP BY ALL
           ORDER BY source, target""",
        run,
    )
    devices = sorted({*drawn.values("source"), *drawn.values("target")})
    side = max(160, min(420, 40 * len(devices)))
    legend = alt.Legend(labelExpr=axis("bytes").labelExpr)
    chart = (
        alt.Chart(drawn.data)
        .mark_rect()
        .encode(
            x=alt.X("target:O", title="to device", sort=devices, axis=alt.Axis(orient="top", labelAngle=0)),
            y=alt.Y("source:O", title="from device", sort=devices),
            color=alt.Color("sent_bytes:Q", title="bytes", scale=alt.Scale(scheme=HEAT, zero=True), legend=legend),
            tooltip=tooltips("source:O", "target:O", number("sent_bytes", "bytes", ",.0f")),
        )
        .properties(width=side, height=side)
    )
    pairs = [r | {"pair": f"{r['source']} to {r['target']}"} for r in drawn.rows]
    return drawn.figure(
        chart,
        "Bytes sent from device to device over the capture.",
        f"{len(pairs)} pairs of {len(devices)} devices. " + largest(pairs, "sent_bytes", "bytes", "pair"),
    )


def traffic_intervals(warehouse: Warehouse, run: str) -> Figure:
    """Distribution of the time between collectives, within one parallelism and across two; a panel per phase."""
    drawn = ask(
        warehouse,
        "traffic-intervals",
        """SELECT coalesce(phase, 'no phase') AS phase,
                  CASE WHEN axis_from = axis_to THEN 'within ' || axis_to
                       ELSE axis_from || ' to ' || axis_to END AS axes,
                  CASE WHEN axis_from = axis_to THEN 'within one parallelism' ELSE 'across two' END AS place, share,
                  interval_ps / 1e6 AS interval_us, greatest(interval_ps / 1e6, 0.1) AS at_least_us, intervals
           FROM models.traffic_interval_shares
           WHERE run_id = $run
           ORDER BY phase DESC, place DESC, axes, share""",
        run=run,
    )
    chart = (
        alt.Chart(drawn.data)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("at_least_us:Q", title="time between", axis=axis("us", values=powers(drawn.values("at_least_us"))),
                    scale=alt.Scale(type="log")),
            y=alt.Y("share:Q", title="share of the intervals", axis=axis("ratio"), scale=alt.Scale(domain=[0, 1])),
            color=series_color("axes", drawn.values("axes")),
            strokeDash=alt.StrokeDash("place:N", title=None, sort=["within one parallelism", "across two"],
                                      legend=alt.Legend(orient="top") if len(drawn.values("place")) > 1 else None),
            tooltip=tooltips("phase:N", "axes:N", percent("share", ".0%"), number("interval_us", "µs"), "intervals:Q"),
        )
    )  # fmt: skip
    upper_halves = [r for r in drawn.rows if r["share"] >= 0.5]
    medians = list({(r["phase"], r["axes"]): r for r in reversed(upper_halves)}.values())[::-1]
    return drawn.figure(
        by_phase(chart, drawn.values("phase"), height=200),
        "Share of the intervals on a device that are at most this long; times below 0.1 µs are drawn as 0.1.",
        "Medians. " + largest(medians, "interval_us", "us", "phase", "axes"),
    )


def bandwidth_by_size(warehouse: Warehouse, run: str) -> Figure:
    """Bandwidth of collectives against the bytes that a device sends, with Hockney's fit and the links' peak."""
    drawn = _ask_ranks(
        warehouse,
        "bandwidth",
        """SELECT what, coalesce(kind || ' over ' || axis, 'peak') AS collective, bus_bytes, gbps, slow_gbps, fast_gbps,
                  executions, coalesce(link, 'not known') AS link
           FROM macros.bandwidth_by_size($run)
           ORDER BY what, collective, bus_bytes""",
        run,
    )
    measured = [r for r in drawn.rows if r["what"] == "measured"]
    names = list(dict.fromkeys(r["collective"] for r in measured))
    rates = [r[c] for r in drawn.rows for c in ("gbps", "slow_gbps", "fast_gbps") if r[c] is not None]
    x = alt.X("bus_bytes:Q", title="bytes that a device sends",
              axis=axis("bytes", values=powers(drawn.values("bus_bytes"))),
              scale=alt.Scale(type="log"))  # fmt: skip
    y = alt.Y("gbps:Q", title="bandwidth", axis=axis("GB/s", values=powers(rates)), scale=alt.Scale(type="log"))
    color = series_color("collective", names)
    tip = tooltips("collective:N", number("bus_bytes", "bytes", ",.0f"), number("gbps", "GB/s, median"), "executions:Q")
    base = alt.Chart(drawn.data)
    points, fit, line = (base.transform_filter(f"datum.what == '{what}'") for what in ("measured", "fit", _PEAK))
    layers = [
        points.mark_rule().encode(x=x, y=alt.Y("slow_gbps:Q", title="bandwidth"), y2="fast_gbps:Q", color=color),
        points.mark_point(filled=True, size=60, opacity=1).encode(
            x=x, y=y, color=color, shape=alt.Shape("collective:N", sort=names, legend=None), tooltip=tip
        ),
    ]
    if "fit" in drawn.values("what"):
        layers.insert(0, fit.mark_line(strokeDash=[6, 3]).encode(x=x, y=y, color=color))
    peak = next((r["gbps"] for r in drawn.rows if r["what"] == _PEAK), None)
    if peak is not None:
        dotted = line.mark_line(color=QUIET, strokeDash=[2, 3], strokeWidth=2)
        layers.insert(
            0, dotted.encode(x=x, y=y, detail="link:N", tooltip=tooltips("what:N", "link:N", number("gbps", "GB/s")))
        )
    return drawn.figure(
        alt.layer(*layers).properties(width=WIDTH, height=280),
        "Bus bandwidth of each size: the median execution, and a line from the 90th to the 10th percentile of its "
        "time. Dashed is the fit of latency and bandwidth, dotted the peak of the links where it is known.",
        largest(measured, "gbps", "GB/s", "collective")
        + (f" The peak of the links is {quantity(peak, 'GB/s')}." if peak else " The peak of the links is not known."),
    )


def _ask_ranks(warehouse: Warehouse, name: str, sql: str, run: str) -> Drawn:
    try:
        return ask(warehouse, name, sql, run=run)
    except NothingToDraw:
        given: Any = {"run": warehouse.run(run).run_id}
        if warehouse.query("SELECT count(*) FROM main.collectives WHERE run_id = $run", **given).scalar():
            raise
        raise NothingToDraw(NO_COLLECTIVES) from None
