"""Draws what devices spend their op time on: categories, layers, single ops, and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from tracewarehouse.dashboards.figure import Figure, NothingToDraw, largest, read
from tracewarehouse.dashboards.theme import (
    HEAT,
    PHASE_COLORS,
    QUIET,
    SERIES,
    WIDTH,
    axis,
    bar_height,
    by_phase,
    class_color,
    named_color,
    number,
    tooltips,
)

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

NO_OPS = "The capture holds no op of a device: only the host was profiled, or its op events were lost."

# SQL for the colour of an op, over main.instructions as i: its op_class, with communication and compute divided
CHART_CLASS = """CASE
    WHEN i.op_class = 'communication' AND i.collective IN ('all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all',
                                                           'collective-permute') THEN i.collective
    WHEN i.op_class = 'communication' THEN 'other collective'
    WHEN i.op_class = 'copy' THEN 'copy'
    WHEN i.opcode IN ('dot', 'convolution') OR i.category LIKE 'convolution%' THEN 'matrix'
    WHEN i.opcode = 'fusion' THEN 'fusion'
    ELSE 'other' END"""


def op_time_share(warehouse: Warehouse, run: str, most: int = 12) -> Figure:
    """The categories of ops with the largest shares of self time, the phases side by side.

    Args:
        warehouse: the warehouse.
        run: the run, by id or name.
        most: number of categories to draw.

    Raises:
        NothingToDraw: the run has no ops.
    """
    drawn = read(
        warehouse,
        """WITH shares AS (
             SELECT coalesce(phase, 'no phase') AS phase, coalesce(category, 'unnamed') AS category, share, ops
             FROM metrics.op_time_share
             WHERE run_id = $run
           ), largest AS (
             SELECT category, max(share) AS top FROM shares GROUP BY category ORDER BY top DESC, category LIMIT $most)
           SELECT phase, category, share, ops
           FROM shares JOIN largest USING (category)
           ORDER BY top DESC, category, phase DESC""",
        run=warehouse.run(run).run_id,
        most=most,
    )
    if not drawn:
        raise NothingToDraw(NO_OPS)
    phases = sorted(drawn.values("phase"), reverse=True)
    chart = (
        alt.Chart(drawn.data)
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="share of op time", axis=axis("ratio")),
            y=alt.Y("category:N", sort=drawn.values("category"), title=None),
            yOffset=alt.YOffset("phase:N", sort=phases),
            color=named_color("phase", {p: PHASE_COLORS.get(p, QUIET) for p in phases}),
            tooltip=tooltips("phase:N", "category:N", alt.Tooltip("share:Q", format=".2%"), "ops:Q"),
        )
        .properties(width=WIDTH, height=bar_height(len(drawn.values("category"))))
    )
    return Figure(
        name="op-time",
        title="Op time by category",
        subtitle=f"Self time of leaf ops, all devices together; the {most} largest categories.",
        description=largest(drawn.rows, "share", "ratio", "phase", "category"),
        drawn=drawn,
        metrics=("op_time_share",),
        chart=chart,
    )


def top_ops(warehouse: Warehouse, run: str, most: int = 12) -> Figure:
    """The ops that take most time; a panel per phase. Names that differ only in their number count as one.

    Args:
        warehouse: the warehouse.
        run: the run, by id or name.
        most: number of ops to draw per phase.

    Raises:
        NothingToDraw: the run has no ops.
    """
    drawn = read(
        warehouse,
        f"""WITH named AS (
              SELECT coalesce(t.phase, 'no phase') AS phase, regexp_replace(i.name, '(\\.[0-9]+)+$', '') AS op,
                     {CHART_CLASS} AS class, i.category, i.part, i.layer, i.source, t.instruction_id, t.ops, t.self_ps
              FROM models.instruction_time AS t JOIN main.instructions AS i USING (run_id, instruction_id)
              WHERE run_id = $run
            ), summed AS (
              SELECT phase, op, class, any_value(category) AS category,
                     string_agg(DISTINCT part, ', ' ORDER BY part) AS parts,
                     CASE WHEN min(layer) < max(layer) THEN min(layer) || ' to ' || max(layer)
                          ELSE CAST(min(layer) AS VARCHAR) END AS layers,
                     min(source) AS source, count(DISTINCT instruction_id) AS instructions,
                     CAST(sum(ops) AS BIGINT) AS executions, sum(self_ps) / 1e9 AS self_ms
              FROM named
              GROUP BY phase, op, class)
            SELECT *, self_ms / sum(self_ms) OVER (PARTITION BY phase) AS share
            FROM summed
            QUALIFY row_number() OVER (PARTITION BY phase ORDER BY self_ms DESC, op) <= $most
            ORDER BY phase DESC, self_ms DESC, op""",
        run=warehouse.run(run).run_id,
        most=most,
    )  # fmt: skip
    if not drawn:
        raise NothingToDraw(NO_OPS)
    phases = drawn.values("phase")
    order = alt.EncodingSortField("self_ms", order="descending")
    base = (
        alt.Chart()
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="share of the phase's op time", axis=axis("ratio")),
            y=alt.Y("op:N", sort=order, title=None),
            color=class_color("class", drawn.values("class")),
            tooltip=tooltips(
                "op:N", "category:N", "layers:N", "parts:N", "source:N", alt.Tooltip("share:Q", format=".2%"),
                number("self_ms", "ms, all devices"), "instructions:Q", "executions:Q",
            ),
        )
        .properties(width=WIDTH, height=alt.Step(18))
    )  # fmt: skip
    chart = (
        base.properties(data=drawn.data)
        .facet(facet=alt.Facet("phase:N", sort=phases, title=None), columns=1)
        .resolve_scale(y="independent", x="independent")
    )
    return Figure(
        name="top-ops",
        title="Top ops",
        subtitle="Self time by name without its number, all devices together. The table has layers, parts and source "
        "lines.",
        description=largest(drawn.rows, "share", "ratio", "phase", "op"),
        drawn=drawn,
        metrics=("op_time_share",),
        chart=chart,
    )


def layer_heat_map(warehouse: Warehouse, run: str) -> Figure:
    """Time of each layer and part of the model per step; a panel per phase.

    Raises:
        NothingToDraw: the layers of the run's ops are unknown: neither names nor repetition show them.
    """
    drawn = read(
        warehouse,
        """SELECT coalesce(phase, 'no phase') AS phase, coalesce(CAST(layer AS VARCHAR), 'none') AS layer,
                  coalesce(part, 'no part') AS part, self_us, compute_us, communication_us, devices
           FROM metrics.layer_time
           WHERE run_id = $run
           ORDER BY phase DESC, layer_time.layer NULLS LAST, part""",
        run=warehouse.run(run).run_id,
    )
    if not drawn:
        raise NothingToDraw(
            "Neither the names of ops nor repetition in the programs shows layers or parts of the model."
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
    return Figure(
        name="layers",
        title="Layers and parts of the model",
        subtitle="Self time per device and step. Ops that belong to no layer are in the column none.",
        description=largest(
            [r | {"of": f"layer {r['layer']}"} for r in drawn.rows], "self_us", "us", "phase", "of", "part"
        ),
        drawn=drawn,
        metrics=("layer_time",),
        chart=by_phase(chart, drawn.values("phase"), height=bar_height(len(drawn.values("part")))).resolve_scale(
            x="shared", color="independent"
        ),
    )


def op_icicle(warehouse: Warehouse, run: str) -> Figure:
    """Self time as nested bars: programs, their layers, the parts of a layer, and ops.

    Raises:
        NothingToDraw: the run has no ops.
    """
    drawn = read(
        warehouse,
        """WITH named AS (
             SELECT coalesce(i.module, 'no program') AS program, l.layer, coalesce(l.part, 'no part') AS part,
                    regexp_replace(i.name, '(\\.[0-9]+)+$', '') AS op, t.self_ps
             FROM models.instruction_time AS t
             JOIN main.instructions AS i USING (run_id, instruction_id)
             JOIN models.instruction_layers AS l USING (run_id, instruction_id, device_id)
             WHERE run_id = $run
           ), summed AS (
             SELECT program, layer, part, op, sum(self_ps) AS self_ps FROM named GROUP BY ALL
           ), kept AS (
             SELECT program, layer, part,
                    CASE WHEN self_ps * 1000 >= sum(self_ps) OVER () THEN op ELSE 'other ops' END AS op, self_ps
             FROM summed
           ), merged AS (
             SELECT program, layer, part, op, sum(self_ps) AS self_ps FROM kept GROUP BY ALL
           ), ordered AS (
             SELECT program, coalesce('layer ' || layer, 'no layer') AS layer, part, op, self_ps,
                    sum(self_ps) OVER (PARTITION BY program) AS program_ps,
                    sum(self_ps) OVER () AS all_ps, layer AS layer_number
             FROM merged
           ), placed AS (
             SELECT program, layer, part, op, self_ps, all_ps,
                    sum(self_ps) OVER (ORDER BY program_ps DESC, program, layer_number NULLS LAST, part,
                      op = 'other ops', self_ps DESC, op ROWS UNBOUNDED PRECEDING) AS until_ps
             FROM ordered
           ), bars AS (
             SELECT 0 AS depth, program AS name, program AS path, min(until_ps - self_ps) AS from_ps,
                    max(until_ps) AS until_ps, any_value(all_ps) AS all_ps
             FROM placed GROUP BY program
             UNION ALL
             SELECT 1, layer, program || ' > ' || layer, min(until_ps - self_ps), max(until_ps), any_value(all_ps)
             FROM placed GROUP BY program, layer
             UNION ALL
             SELECT 2, part, program || ' > ' || layer || ' > ' || part, min(until_ps - self_ps), max(until_ps),
                    any_value(all_ps)
             FROM placed GROUP BY program, layer, part
             UNION ALL
             SELECT 3, op, program || ' > ' || layer || ' > ' || part || ' > ' || op, until_ps - self_ps,
                    until_ps, all_ps
             FROM placed
           )
           SELECT depth, name, path, from_ps / all_ps AS begins, until_ps / all_ps AS ends,
                  (until_ps - from_ps) / all_ps AS share, (until_ps - from_ps) / 1e9 AS self_ms
           FROM bars
           WHERE (until_ps - from_ps) * 2000 >= all_ps
           ORDER BY depth, begins""",
        run=warehouse.run(run).run_id,
    )
    if not drawn:
        raise NothingToDraw(NO_OPS)
    names = [n for n in drawn.values("name") if n != "other ops"]
    pick = alt.selection_point(fields=["name"], on="click", empty=True)
    base = alt.Chart(drawn.data)
    y = alt.Y("depth:O", title=None, axis=alt.Axis(labelExpr="['program', 'layer', 'part', 'op'][datum.value]"))
    bars = base.mark_bar(stroke="#ffffff", strokeWidth=0.4, height={"band": 0.94}).encode(
        x=alt.X("begins:Q", title="share of op time", axis=axis("ratio"), scale=alt.Scale(domain=[0, 1])),
        x2="ends:Q",
        y=y,
        color=alt.Color(
            "name:N",
            legend=None,
            scale=alt.Scale(domain=names, range=[SERIES[i % len(SERIES)] for i in range(len(names))]),
        ),
        opacity=alt.condition(pick, alt.value(1), alt.value(0.25)),
        tooltip=tooltips("path:N", alt.Tooltip("share:Q", format=".2%"), number("self_ms", "ms, all devices")),
    )
    return Figure(
        name="icicle",
        title="Programs, layers, parts and ops",
        subtitle="Self time of all devices. Click a bar to highlight its name. Ops below a thousandth of the time are "
        "merged.",
        description=largest([r for r in drawn.rows if r["depth"] == 0], "share", "ratio", "name")
        + " Parts of the model. "
        + largest([r for r in drawn.rows if r["depth"] == 2], "share", "ratio", "path"),
        drawn=drawn,
        metrics=("layer_time", "op_time_share"),
        chart=bars.add_params(pick).properties(width=WIDTH, height=160),
    )
