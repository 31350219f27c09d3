"""Draws communication: what it costs each device, how many bytes move between which devices, and how fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from tracewarehouse.dashboards.figure import Drawn, Figure, NothingToDraw, largest, read
from tracewarehouse.dashboards.theme import (
    ALARM,
    HEAT,
    PRIMARY,
    QUIET,
    WIDTH,
    axis,
    bar_height,
    by_phase,
    class_color,
    number,
    part_bars,
    powers,
    series_color,
    tooltips,
)
from tracewarehouse.dashboards.units import quantity

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

NO_COLLECTIVES = "The capture holds no collective on a device."
NOT_WHOLE = "No execution of a collective has all of its ranks in the capture, so its transfer time is not known."

PEAK = "peak of the links"

_TIME_COLORS = {"transfer": PRIMARY, "waiting": "#b57a12", "rest of the window": QUIET, "exposed": ALARM}
_OVERLAP_COLORS = {"hidden": QUIET, "exposed": ALARM}


def exposed_communication(warehouse: Warehouse, run: str) -> Figure:
    """Exposed communication of each device per step, by kind and axis; a panel per phase.

    Raises:
        NothingToDraw: the run has no collectives.
    """
    drawn = read(
        warehouse,
        """SELECT coalesce(phase, 'no phase') AS phase, device_id, 'device ' || device_id AS device, kind, axis,
                  exposed_ms
           FROM metrics.exposed_communication
           WHERE run_id = $run
           ORDER BY phase DESC, device_id, kind, axis""",
        run=warehouse.run(run).run_id,
    )
    if not drawn:
        raise NothingToDraw(NO_COLLECTIVES)
    chart = (
        alt.Chart(drawn.data)
        .mark_bar()
        .encode(
            x=alt.X("exposed_ms:Q", title="time per step", axis=axis("ms")),
            y=alt.Y("device:N", sort=drawn.values("device"), title=None),
            color=class_color("kind", drawn.values("kind")),
            detail="axis:N",
            tooltip=tooltips("phase:N", "device:N", "kind:N", "axis:N", number("exposed_ms", "ms per step")),
        )
    )
    return Figure(
        name="exposed-communication",
        title="Exposed communication",
        subtitle="Time per step in which a device's op line only communicates.",
        description=largest(drawn.rows, "exposed_ms", "ms", "phase", "device", "kind", "axis"),
        drawn=drawn,
        metrics=("exposed_communication", "communication_fraction"),
        chart=by_phase(chart, drawn.values("phase"), height=bar_height(len(drawn.values("device")))),
    )


def collective_time(warehouse: Warehouse, run: str) -> Figure:
    """Time of collectives per step, split into transfer and waiting, with the exposed part beside it.

    Raises:
        NothingToDraw: the run has no collectives, or none whose ranks are all in the capture.
    """
    run_id = warehouse.run(run).run_id
    drawn = read(
        warehouse,
        """WITH summed AS (
             SELECT phase, kind, axis, sum(transfer_ps) AS transfer_ps, sum(wait_ps) AS wait_ps,
                    sum(rest_ps) AS rest_ps, sum(exposed_ps) AS exposed_ps, sum(executions) AS executions
             FROM models.collective_time
             WHERE run_id = $run
             GROUP BY ALL
           ), steps AS (
             SELECT phase, sum(steps) AS steps FROM models.phase_steps WHERE run_id = $run GROUP BY phase
           ), parts AS (
             SELECT phase, kind, axis, 'window' AS of, 'transfer' AS part, 0 AS position, transfer_ps AS time_ps
             FROM summed
             UNION ALL SELECT phase, kind, axis, 'window', 'waiting', 1, wait_ps FROM summed
             UNION ALL SELECT phase, kind, axis, 'window', 'rest of the window', 2, rest_ps FROM summed
             UNION ALL SELECT phase, kind, axis, 'op line', 'exposed', 3, exposed_ps FROM summed
           )
           SELECT coalesce(p.phase, 'no phase') AS phase, kind || ' over ' || axis || ', ' || p.of AS collective,
                  p.part, p.position, p.time_ps / (coalesce(s.steps, 1) * 1e9) AS ms
           FROM parts AS p LEFT JOIN steps AS s ON p.phase IS NOT DISTINCT FROM s.phase
           ORDER BY phase DESC, kind, axis, position""",
        run=run_id,
    )
    if not drawn:
        raise NothingToDraw(_absence_of_ranks(warehouse, run_id))
    chart = part_bars(
        drawn.data,
        "collective",
        drawn.values("collective"),
        drawn.values("phase"),
        _TIME_COLORS,
        x=alt.X("ms:Q", title="time per step, mean over devices", axis=axis("ms")),
        tooltip=number("ms", "ms per step"),
    )
    return Figure(
        name="collective-time",
        title="Collectives: transfer, waiting, exposed",
        subtitle="Transfer is the shortest time over the ranks, waiting what a rank takes beyond it. Below each window "
        "is the part of it in which the op line computes nothing.",
        description=largest(drawn.rows, "ms", "ms", "phase", "collective", "part"),
        drawn=drawn,
        metrics=("collective_transfer", "sync_wait", "exposed_communication"),
        chart=chart,
    )


def overlap(warehouse: Warehouse, run: str) -> Figure:
    """The share of the collectives' windows that computation hides, by kind and axis; a panel per phase.

    Raises:
        NothingToDraw: the run has no collectives.
    """
    drawn = read(
        warehouse,
        """WITH ratios AS (
             SELECT coalesce(phase, 'no phase') AS phase, kind || ' over ' || axis AS collective, overlap_ratio
             FROM metrics.overlap_ratio
             WHERE run_id = $run AND overlap_ratio IS NOT NULL)
           SELECT phase, collective, 'hidden' AS part, 0 AS position, overlap_ratio AS share FROM ratios
           UNION ALL
           SELECT phase, collective, 'exposed' AS part, 1 AS position, 1 - overlap_ratio AS share FROM ratios
           ORDER BY phase DESC, collective, position""",
        run=warehouse.run(run).run_id,
    )
    if not drawn:
        raise NothingToDraw(NO_COLLECTIVES)
    chart = part_bars(
        drawn.data,
        "collective",
        drawn.values("collective"),
        drawn.values("phase"),
        _OVERLAP_COLORS,
        x=alt.X("share:Q", title="share of the windows", axis=axis("ratio"), scale=alt.Scale(domain=[0, 1])),
        tooltip=alt.Tooltip("share:Q", format=".2%"),
    )
    return Figure(
        name="overlap",
        title="Overlap",
        subtitle="The part of the collectives' windows in which the device computes is hidden.",
        description=largest([r for r in drawn.rows if r["part"] == "hidden"], "share", "ratio", "phase", "collective"),
        drawn=drawn,
        metrics=("overlap_ratio",),
        chart=chart,
    )


def traffic_volume(warehouse: Warehouse, run: str) -> Figure:
    """Message bytes per device and step, by kind and mesh axis; a panel per phase.

    Raises:
        NothingToDraw: the run has no collectives whose sizes are known.
    """
    drawn = read(
        warehouse,
        """SELECT coalesce(phase, 'no phase') AS phase, kind, axis, message_bytes_per_step, devices
           FROM metrics.traffic_volume
           WHERE run_id = $run
           ORDER BY phase DESC, axis, kind""",
        run=warehouse.run(run).run_id,
    )
    if not drawn:
        raise NothingToDraw(f"{NO_COLLECTIVES[:-1]} whose message size is known.")
    chart = (
        alt.Chart(drawn.data)
        .mark_bar()
        .encode(
            x=alt.X("message_bytes_per_step:Q", title="message bytes per device and step", axis=axis("bytes")),
            y=alt.Y("axis:N", title="mesh axis", sort=sorted(drawn.values("axis"))),
            color=class_color("kind", drawn.values("kind")),
            tooltip=tooltips(
                "phase:N", "kind:N", "axis:N", number("message_bytes_per_step", "bytes", ",.0f"), "devices:Q"
            ),
        )
    )
    return Figure(
        name="traffic",
        title="Traffic by parallelism",
        subtitle="Operand bytes of the collectives on each mesh axis; for an all-gather the full buffer.",
        description=largest(drawn.rows, "message_bytes_per_step", "bytes", "phase", "kind", "axis"),
        drawn=drawn,
        metrics=("traffic_volume", "traffic_by_parallelism"),
        chart=by_phase(chart, drawn.values("phase"), height=bar_height(len(drawn.values("axis")))),
    )


def traffic_matrix(warehouse: Warehouse, run: str) -> Figure:
    """Bytes that each device sends to each other one over the whole capture, by the algorithm of main.traffic.

    Raises:
        NothingToDraw: the capture lacks some device of every collective.
    """
    run_id = warehouse.run(run).run_id
    drawn = read(
        warehouse,
        """SELECT source_device_id AS source, target_device_id AS target, CAST(sum(sent_bytes) AS BIGINT) AS sent_bytes
           FROM metrics.traffic_matrix
           WHERE run_id = $run
           GROUP BY ALL
           ORDER BY source, target""",
        run=run_id,
    )
    if not drawn:
        raise NothingToDraw(_absence_of_ranks(warehouse, run_id))
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
    return Figure(
        name="traffic-matrix",
        title="Traffic matrix",
        subtitle="Bytes sent from device to device over the capture.",
        description=f"{len(drawn.rows)} pairs of {len(devices)} devices. "
        + largest([r | {"pair": f"{r['source']} to {r['target']}"} for r in drawn.rows], "sent_bytes", "bytes", "pair"),
        drawn=drawn,
        metrics=("traffic_matrix",),
        chart=chart,
    )


def traffic_intervals(warehouse: Warehouse, run: str) -> Figure:
    """Distribution of the time between collectives, within one parallelism and across two; a panel per phase.

    Raises:
        NothingToDraw: no collective follows another on a device.
    """
    drawn = read(
        warehouse,
        """WITH named AS (
             SELECT coalesce(phase, 'no phase') AS phase,
                    CASE WHEN axis_from = axis_to THEN 'within ' || axis_to
                         ELSE axis_from || ' to ' || axis_to END AS axes,
                    CASE WHEN axis_from = axis_to THEN 'within one parallelism' ELSE 'across two' END AS place,
                    interval_ps
             FROM models.traffic_intervals
             WHERE run_id = $run
           ), ranked AS (
             SELECT phase, axes, place, interval_ps,
                    cume_dist() OVER (PARTITION BY phase, axes ORDER BY interval_ps) AS share,
                    count(*) OVER (PARTITION BY phase, axes) AS intervals
             FROM named)
           SELECT phase, axes, place, max(share) AS share, max(interval_ps) / 1e6 AS interval_us,
                  greatest(max(interval_ps) / 1e6, 0.1) AS at_least_us, any_value(intervals) AS intervals
           FROM ranked
           GROUP BY phase, axes, place, ceil(100 * share)
           ORDER BY phase DESC, place DESC, axes, share""",
        run=warehouse.run(run).run_id,
    )
    if not drawn:
        raise NothingToDraw("No collective follows another on a device in a phase.")
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
            tooltip=tooltips("phase:N", "axes:N", alt.Tooltip("share:Q", format=".0%"), number("interval_us", "µs"),
                     "intervals:Q"),
        )
    )  # fmt: skip
    halves = [r for r in _medians(drawn) if r["interval_us"] is not None]
    return Figure(
        name="traffic-intervals",
        title="Time between collectives",
        subtitle="Share of the intervals on a device that are at most this long; times below 0.1 µs are drawn as 0.1.",
        description="Medians. " + largest(halves, "interval_us", "us", "phase", "axes"),
        drawn=drawn,
        metrics=("traffic_interval", "traffic_interval_histogram"),
        chart=by_phase(chart, drawn.values("phase"), height=200),
    )


def bandwidth_by_size(warehouse: Warehouse, run: str) -> Figure:
    """Bandwidth of collectives against the bytes that a device sends, with Hockney's fit and the links' peak.

    Raises:
        NothingToDraw: the run has no collectives, or none whose ranks are all in the capture and whose size is known.
    """
    run_id = warehouse.run(run).run_id
    drawn = read(
        warehouse,
        """WITH instances AS (
             SELECT kind, axis, bus_bytes, transfer_ps,
                    cume_dist() OVER (PARTITION BY kind, axis, bus_bytes ORDER BY transfer_ps) AS quantile
             FROM models.collective_instances
             WHERE run_id = $run AND NOT is_partial AND bus_bytes > 0 AND transfer_ps > 0
           ), measured AS (
             SELECT kind, axis, bus_bytes, count(*) AS executions,
                    min(transfer_ps) FILTER (WHERE quantile >= 0.5) AS median_ps,
                    min(transfer_ps) FILTER (WHERE quantile >= 0.1) AS fast_ps,
                    min(transfer_ps) FILTER (WHERE quantile >= 0.9) AS slow_ps
             FROM instances
             GROUP BY kind, axis, bus_bytes
           ), ranges AS (
             SELECT kind, axis, min(bus_bytes) AS smallest, max(bus_bytes) AS most FROM measured GROUP BY kind, axis
           ), sizes AS (
             SELECT kind, axis, smallest * pow(most / smallest, unnest(range(0, 25)) / 24.0) AS bus_bytes FROM ranges
           ), fitted AS (
             SELECT s.kind, s.axis, s.bus_bytes,
                    s.bus_bytes / (1e3 * (h.latency_us + s.bus_bytes / (1e3 * h.bandwidth_gbps))) AS gbps
             FROM sizes AS s JOIN metrics.hockney AS h USING (kind, axis)
             WHERE h.run_id = $run AND h.latency_us + s.bus_bytes / (1e3 * h.bandwidth_gbps) > 0
           )
           SELECT 'measured' AS what, kind || ' over ' || axis AS collective, CAST(bus_bytes AS DOUBLE) AS bus_bytes,
                  bus_bytes * 1e3 / median_ps AS gbps, bus_bytes * 1e3 / slow_ps AS slow_gbps,
                  bus_bytes * 1e3 / fast_ps AS fast_gbps, executions
           FROM measured
           UNION ALL
           SELECT 'fit', kind || ' over ' || axis, bus_bytes, gbps, NULL, NULL, NULL FROM fitted
           UNION ALL
           SELECT 'peak of the links', 'peak', unnest([min(bus_bytes), max(bus_bytes)]),
                  (SELECT min(peak_ici_gbps) FROM main.devices WHERE run_id = $run), NULL, NULL, NULL
           FROM measured
           HAVING (SELECT min(peak_ici_gbps) FROM main.devices WHERE run_id = $run) IS NOT NULL
           ORDER BY what, collective, bus_bytes""",
        run=run_id,
    )
    measured = [r for r in drawn.rows if r["what"] == "measured"]
    if not measured:
        raise NothingToDraw(_absence_of_ranks(warehouse, run_id))
    names = list(dict.fromkeys(r["collective"] for r in measured))
    rates = [r[c] for r in drawn.rows for c in ("gbps", "slow_gbps", "fast_gbps") if r[c] is not None]
    x = alt.X("bus_bytes:Q", title="bytes that a device sends",
              axis=axis("bytes", values=powers(drawn.values("bus_bytes"))),
              scale=alt.Scale(type="log"))  # fmt: skip
    y = alt.Y("gbps:Q", title="bandwidth", axis=axis("GB/s", values=powers(rates)), scale=alt.Scale(type="log"))
    color = series_color("collective", names)
    tip = tooltips("collective:N", number("bus_bytes", "bytes", ",.0f"), number("gbps", "GB/s, median"), "executions:Q")
    base = alt.Chart(drawn.data)
    points = base.transform_filter("datum.what == 'measured'")
    layers = [
        points.mark_rule().encode(x=x, y=alt.Y("slow_gbps:Q", title="bandwidth"), y2="fast_gbps:Q", color=color),
        points.mark_point(filled=True, size=60, opacity=1).encode(
            x=x, y=y, color=color, shape=alt.Shape("collective:N", sort=names, legend=None), tooltip=tip
        ),
    ]
    if "fit" in drawn.values("what"):
        fit = base.transform_filter("datum.what == 'fit'")
        layers.insert(0, fit.mark_line(strokeDash=[6, 3]).encode(x=x, y=y, color=color))
    if PEAK in drawn.values("what"):
        line = base.transform_filter(f"datum.what == '{PEAK}'").mark_line(color=QUIET, strokeDash=[2, 3], strokeWidth=2)
        layers.insert(0, line.encode(x=x, y=y, tooltip=tooltips("what:N", number("gbps", "GB/s"))))
    chart = alt.layer(*layers).properties(width=WIDTH, height=280)
    peak = next((r["gbps"] for r in drawn.rows if r["what"] == PEAK), None)
    return Figure(
        name="bandwidth",
        title="Bandwidth by message size",
        subtitle="Bus bandwidth of each size: the median execution, and a line from the 90th to the 10th percentile of "
        "its time. Dashed is the fit of latency and bandwidth, dotted the peak of the links where it is known.",
        description=largest(measured, "gbps", "GB/s", "collective")
        + (f" The peak of the links is {quantity(peak, 'GB/s')}." if peak else " The peak of the links is not known."),
        drawn=drawn,
        metrics=("hockney", "collective_transfer", "ici_utilization"),
        chart=chart,
    )


def in_flight(warehouse: Warehouse, run: str) -> Figure:
    """Collectives and bytes under way on all devices: the maximum in each of 300 stretches of time.

    Raises:
        NothingToDraw: the run has no collectives.
    """
    drawn = read(
        warehouse,
        """WITH windows AS (
             SELECT event_id, start_ps, end_ps, coalesce(message_bytes, 0) AS message_bytes
             FROM main.collectives
             WHERE run_id = $run AND end_ps > start_ps
           ), marks AS (
             SELECT start_ps AS at_ps, 1 AS begun, message_bytes AS bytes, event_id FROM windows
             UNION ALL
             SELECT end_ps, -1, -message_bytes, event_id FROM windows
           ), counted AS (
             SELECT at_ps, sum(begun) OVER so_far AS collectives, sum(bytes) OVER so_far AS bytes
             FROM marks
             WINDOW so_far AS (ORDER BY at_ps, begun, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
           ), bounds AS (
             SELECT min(start_ps) AS first_ps, (max(end_ps) - min(start_ps)) // 300 + 1 AS stretch_ps FROM windows
           ), stretches AS (
             SELECT (at_ps - first_ps) // stretch_ps * stretch_ps / 1e9 AS start_ms,
                    max(collectives) AS collectives, max(bytes) AS bytes
             FROM counted CROSS JOIN bounds
             GROUP BY start_ms
           )
           SELECT start_ms, 'collectives' AS what, CAST(collectives AS DOUBLE) AS most FROM stretches
           UNION ALL
           SELECT start_ms, 'message bytes' AS what, CAST(bytes AS DOUBLE) AS most FROM stretches
           ORDER BY what, start_ms""",
        run=warehouse.run(run).run_id,
    )
    if not drawn:
        raise NothingToDraw(NO_COLLECTIVES)
    # one definition serves the axes of both panels; `parent` is Vega's name for the panel's own value
    whole = "datum.value % 1 ? '' : format(datum.value, '~s')"
    labels = f"parent.what === 'message bytes' ? {axis('bytes').labelExpr} : {whole}"
    chart = (
        alt.Chart(drawn.data)
        .mark_rule(color=PRIMARY, strokeWidth=2)
        .encode(
            x=alt.X(
                "start_ms:Q", title="time since the first collective", axis=axis("ms"), scale=alt.Scale(nice=False)
            ),
            y=alt.Y("most:Q", title=None, axis=alt.Axis(labelExpr=labels, tickCount=4)),
            y2=alt.datum(0),
            tooltip=tooltips("what:N", number("start_ms", "at, ms"), number("most", "most", ",.0f")),
        )
        .properties(width=WIDTH, height=110)
        .facet(facet=alt.Facet("what:N", title=None, sort=["collectives", "message bytes"]), columns=1)
        .resolve_scale(y="independent")
    )
    most = {w: max(r["most"] for r in drawn.rows if r["what"] == w) for w in drawn.values("what")}
    return Figure(
        name="in-flight",
        title="Collectives and bytes in flight",
        subtitle="How many ranks of collectives are under way on all devices together, and their message bytes; the "
        "most in each three-hundredth of the time.",
        description=f"At most {most['collectives']:.0f} ranks of collectives and "
        f"{quantity(most['message bytes'], 'bytes')} are under way at once.",
        drawn=drawn,
        metrics=("communication_time",),
        chart=chart,
    )


def _medians(drawn: Drawn) -> list[dict[str, Any]]:
    """The first row of each distribution whose share is at least a half."""
    medians: dict[tuple[str, str], dict[str, Any]] = {}
    for row in drawn.rows:
        if row["share"] >= 0.5:
            medians.setdefault((row["phase"], row["axes"]), row)
    return list(medians.values())


def _absence_of_ranks(warehouse: Warehouse, run_id: str) -> str:
    has_collectives = warehouse.query(
        "SELECT count(*) > 0 FROM main.collectives WHERE run_id = $run_id", run_id=run_id
    ).scalar()
    return NOT_WHOLE if has_collectives else NO_COLLECTIVES
