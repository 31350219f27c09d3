"""Charts of communication: how much time it costs each device, how many bytes move, and between which devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from tracewarehouse.dashboards.theme import WIDTH, class_color, styled

if TYPE_CHECKING:
    import pyarrow as pa

    from tracewarehouse.warehouse import Warehouse

_PHASE = "coalesce(phase, 'whole capture')"


def exposed_communication(warehouse: Warehouse, run_id: str) -> Any | None:
    """Exposed communication per step of each device by kind and axis, a panel per phase.

    None for a run without collectives.
    """
    rows = warehouse.query(
        f"""SELECT {_PHASE} AS phase, 'device ' || device_id AS device, device_id, kind, axis, exposed_ms
            FROM metrics.exposed_communication WHERE run_id = $run_id ORDER BY device_id, kind""",
        run_id=run_id,
    ).arrow()
    if not len(rows):
        return None
    devices = [f"device {d}" for d in sorted(set(rows.column("device_id").to_pylist()))]
    chart = (
        alt.Chart(rows)
        .mark_bar()
        .encode(
            x=alt.X("exposed_ms:Q", title="ms per step"),
            y=alt.Y("device:N", sort=devices, title=None),
            color=class_color("kind", _distinct(rows, "kind")),
            detail="axis:N",
            tooltip=["phase:N", "device:N", "kind:N", "axis:N", alt.Tooltip("exposed_ms:Q", format=".4f")],
        )
    )
    facets = _by_phase(chart, rows, max(80, 24 * len(devices)))
    return styled(facets, "Exposed communication", "Time per step in which a device's op line only communicates.")


def traffic_volume(warehouse: Warehouse, run_id: str) -> Any | None:
    """Message bytes per device and step by kind and mesh axis, a panel per phase.

    None for a run whose collectives have no sizes.
    """
    rows = warehouse.query(
        f"""SELECT {_PHASE} AS phase, kind, axis, message_bytes_per_step / 1e3 AS kb, devices
            FROM metrics.traffic_volume WHERE run_id = $run_id ORDER BY kind, axis""",
        run_id=run_id,
    ).arrow()
    if not len(rows):
        return None
    chart = (
        alt.Chart(rows)
        .mark_bar()
        .encode(
            x=alt.X("kb:Q", title="message kB per device and step"),
            y=alt.Y("axis:N", title="mesh axis"),
            color=class_color("kind", _distinct(rows, "kind")),
            tooltip=["phase:N", "kind:N", "axis:N", alt.Tooltip("kb:Q", format=",.3f"), "devices:Q"],
        )
    )
    facets = _by_phase(chart, rows, max(50, 34 * len(_distinct(rows, "axis"))))
    return styled(facets, "Traffic by parallelism", "Operand bytes, for an all-gather the full buffer.")


def traffic_matrix(warehouse: Warehouse, run_id: str) -> Any | None:
    """Bytes from device to device over the whole run, for the algorithm of main.traffic.

    None where no group is wholly in the capture.
    """
    rows = warehouse.query(
        """SELECT source_device_id AS source, target_device_id AS target, CAST(sum(sent_bytes) AS DOUBLE) / 1e6 AS mb
           FROM metrics.traffic_matrix WHERE run_id = $run_id GROUP BY ALL ORDER BY ALL""",
        run_id=run_id,
    ).arrow()
    if not len(rows):
        return None
    devices = sorted({*rows.column("source").to_pylist(), *rows.column("target").to_pylist()})
    side = max(160, min(420, 40 * len(devices)))
    chart = (
        alt.Chart(rows)
        .mark_rect()
        .encode(
            x=alt.X("target:O", title="to device", sort=devices, axis=alt.Axis(orient="top", labelAngle=0)),
            y=alt.Y("source:O", title="from device", sort=devices),
            color=alt.Color("mb:Q", title="MB", scale=alt.Scale(scheme="tealblues", zero=True)),
            tooltip=["source:O", "target:O", alt.Tooltip("mb:Q", format=",.4f", title="MB")],
        )
        .properties(width=side, height=side)
    )
    return styled(chart, "Traffic matrix", "MB sent from device to device over the capture.")


def _by_phase(chart: Any, rows: pa.Table, height: int) -> Any:
    phases = sorted(_distinct(rows, "phase"), reverse=True)
    width = (WIDTH - 70 * len(phases)) // len(phases)
    header = alt.Header(labelFontSize=13, labelAnchor="start")
    return (
        chart.properties(width=width, height=height)
        .facet(column=alt.Column("phase:N", sort=phases, title=None, header=header))
        .resolve_scale(x="independent")
    )


def _distinct(rows: pa.Table, column: str) -> list[str]:
    return sorted(set(rows.column(column).to_pylist()))
