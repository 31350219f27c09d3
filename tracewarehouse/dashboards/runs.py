"""Draws several runs, for studies of many configurations. The charts read only stored values, so they are fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import altair as alt

from tracewarehouse.comparison.compare import run_ids_of
from tracewarehouse.dashboards.figure import Drawn, Figure, NothingToDraw, largest, read
from tracewarehouse.dashboards.steps import NO_FIT
from tracewarehouse.dashboards.theme import ALARM, HEAT, QUIET, SERIES, WIDTH, axis, number, series_color, tooltips
from tracewarehouse.dashboards.units import quantity

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

_UNKNOWN = (
    "No run has both: throughput needs a batch size (manifest or card) and a prefill, TPOT two decode steps in a row."
)


def pareto(warehouse: Warehouse, runs: str | Sequence[str]) -> Figure:
    """Tokens/s per user against tokens/s per chip; a line joins the runs that no other run beats in both.

    Raises:
        NothingToDraw: no run has a throughput and a time per output token.
    """
    drawn = read(
        warehouse,
        """SELECT name, model, mesh, batch_size, chips, tokens_per_s_per_user, tokens_per_s_per_chip, is_on_front
           FROM macros.run_points($runs)
           WHERE is_on_front IS NOT NULL
           ORDER BY model, tokens_per_s_per_user, name""",
        runs=run_ids_of(warehouse, runs),
    )
    if not drawn:
        raise NothingToDraw(_UNKNOWN)
    x = alt.X(
        "tokens_per_s_per_user:Q", title="tokens/s per user", axis=alt.Axis(format="~s"), scale=alt.Scale(padding=14)
    )
    y = alt.Y("tokens_per_s_per_chip:Q", title="tokens/s per chip", axis=alt.Axis(format="~s"))
    models = drawn.values("model")
    color = series_color("model", models)
    base = alt.Chart(drawn.data)
    chart = alt.layer(
        base.transform_filter("datum.is_on_front").mark_line(strokeDash=[4, 3]).encode(x=x, y=y, color=color),
        base.mark_point(filled=True, size=80).encode(
            x=x, y=y, color=color, shape=alt.Shape("model:N", sort=models, legend=None),
            opacity=alt.condition("datum.is_on_front", alt.value(1), alt.value(0.5)),
            tooltip=tooltips("name:N", "model:N", "mesh:N", "batch_size:Q", "chips:Q",
                             number("tokens_per_s_per_user", "tokens/s per user"),
                     number("tokens_per_s_per_chip", "tokens/s per chip"), "is_on_front:N"),
        ),
    ).properties(width=WIDTH, height=300)  # fmt: skip
    front = [r["name"] for r in drawn.rows if r["is_on_front"]]
    return Figure(
        name="pareto",
        title="Throughput against speed for a user",
        subtitle="A line joins the runs that no other run of their model beats in both.",
        description=f"{len(front)} of {len(drawn.rows)} runs are on the front: {', '.join(front)}.",
        drawn=drawn,
        metrics=("tpot", "throughput"),
        chart=chart,
    )


def sweep_heat_map(warehouse: Warehouse, runs: str | Sequence[str], value: str = "tpot_ms") -> Figure:
    """A value of each configuration by batch and prompt length; a panel per model and mesh. Repeats are averaged.

    Args:
        warehouse: the warehouse.
        runs: the runs.
        value: tpot_ms, ttft_ms, tokens_per_s, tokens_per_s_per_user or tokens_per_s_per_chip.

    Raises:
        NothingToDraw: no run has the value, its batch size and its prompt length.
    """
    if value not in _POINTS:
        raise NothingToDraw(f"No column {value!r} to draw; there are {', '.join(_POINTS)}.")
    drawn = read(
        warehouse,
        f"""SELECT model || ', ' || mesh AS configuration, batch_size, input_length, avg({value}) AS value,
                   count(*) AS runs
            FROM macros.run_points($runs)
            WHERE {value} IS NOT NULL AND batch_size IS NOT NULL AND input_length IS NOT NULL
            GROUP BY ALL
            ORDER BY configuration, batch_size, input_length""",
        runs=run_ids_of(warehouse, runs),
    )
    if not drawn:
        raise NothingToDraw("No run has the value, a batch size and a prompt length (manifest or card).")
    label, unit = _POINTS[value]
    named = drawn.values("configuration")
    legend = alt.Legend(labelExpr=axis(unit).labelExpr) if unit == "ms" else alt.Legend(format="~s")
    chart = (
        alt.Chart(drawn.data)
        .mark_rect()
        .encode(
            x=alt.X("input_length:O", title="prompt, tokens", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("batch_size:O", title="batch", sort="descending"),
            color=alt.Color("value:Q", title=label, scale=alt.Scale(scheme=HEAT), legend=legend),
            tooltip=tooltips("configuration:N", "batch_size:O", "input_length:O", number("value", label), "runs:Q"),
        )
        .properties(width=200, height=max(50, 26 * len(drawn.values("batch_size"))))
        .facet(facet=alt.Facet("configuration:N", sort=named, title=None), columns=3)
    )
    return Figure(
        name="sweep",
        title=f"Sweep: {label} by batch, prompt length and mesh",
        subtitle="A panel per model and mesh; where several runs have one configuration, their mean.",
        description=largest(
            [r | {"at": f"batch {r['batch_size']}, prompt {r['input_length']}"} for r in drawn.rows],
            "value", unit, "configuration", "at",
        ),
        drawn=drawn,
        metrics=("tpot",) if value == "tpot_ms" else ("ttft",) if value == "ttft_ms" else ("throughput",),
        chart=chart,
    )  # fmt: skip


def scaling(warehouse: Warehouse, runs: str | Sequence[str]) -> Figure:
    """Throughput against the number of chips, beside perfect scaling; a line per model, batch and lengths.

    Raises:
        NothingToDraw: no workload ran on two different numbers of chips.
    """
    drawn = read(
        warehouse,
        """WITH points AS (
             SELECT model || ', batch ' || batch_size || ', ' || input_length || ' in, ' || output_length || ' out'
                      AS workload,
                    device_kind, chips, max(tokens_per_s) AS tokens_per_s, arg_max(mesh, tokens_per_s) AS mesh
             FROM macros.run_points($runs)
             WHERE tokens_per_s IS NOT NULL AND chips IS NOT NULL
             GROUP BY ALL
           )
           SELECT workload, chips, tokens_per_s, mesh,
                  first_value(tokens_per_s / chips) OVER (PARTITION BY workload, device_kind ORDER BY chips) * chips
                    AS linear
           FROM points
           QUALIFY count(*) OVER (PARTITION BY workload, device_kind) > 1
           ORDER BY workload, chips""",
        runs=run_ids_of(warehouse, runs),
    )
    if not drawn:
        raise NothingToDraw("No workload was run on two numbers of chips: model, batch and lengths must be the same.")
    workloads = drawn.values("workload")
    x = alt.X(
        "chips:Q", title="chips", scale=alt.Scale(type="log", base=2), axis=alt.Axis(format="d", labelOverlap=True)
    )
    y = alt.Y("tokens_per_s:Q", title="output tokens/s", axis=alt.Axis(format="~s"))
    base = alt.Chart(drawn.data)
    color = series_color("workload", workloads)
    chart = alt.layer(
        base.mark_line(strokeDash=[2, 3], opacity=0.7).encode(
            x=x, y=alt.Y("linear:Q", title="output tokens/s"), color=color),
        base.mark_line(point={"filled": True, "size": 70}).encode(
            x=x, y=y, color=color,
            tooltip=tooltips("workload:N", "mesh:N", "chips:Q", number("tokens_per_s", "tokens/s"),
                             number("linear", "linear")),
        ),
    ).properties(width=WIDTH, height=280)  # fmt: skip
    return Figure(
        name="scaling",
        title="Scaling over chips",
        subtitle="The best run for each number of chips; dotted is perfect scaling from the fewest chips.",
        description=largest(drawn.rows, "tokens_per_s", "tokens/s", "workload", "mesh"),
        drawn=drawn,
        metrics=("scaling_efficiency", "throughput"),
        chart=chart,
    )


def metric_against_metric(
    warehouse: Warehouse, runs: str | Sequence[str], x: str = "overlap_ratio", y: str = "step_time"
) -> Figure:
    """Two metrics of each run and phase against each other, each averaged over its other dimensions.

    Args:
        warehouse: the warehouse.
        runs: the runs.
        x: a metric, such as overlap_ratio.
        y: another one, such as step_time.

    Raises:
        NothingToDraw: no run has both metrics in a phase.
        MetricError: a metric does not exist.
    """
    units = [warehouse.definitions.metric(m).header.unit for m in (x, y)]
    drawn = read(
        warehouse,
        """WITH means AS (
             SELECT run_id, metric, coalesce(dimensions ->> '$.phase', 'whole run') AS phase, avg(value) AS value
             FROM main.metric_values
             WHERE metric IN ($x, $y) AND list_contains($runs, run_id)
             GROUP BY ALL
           )
           SELECT r.name, coalesce(r.model, r.model_family, 'unknown') AS model, r.mesh, r.batch_size, a.phase,
                  a.value AS x, b.value AS y
           FROM means AS a
           JOIN means AS b USING (run_id, phase)
           JOIN main.runs AS r USING (run_id)
           WHERE a.metric = $x AND b.metric = $y
           ORDER BY model, r.name, a.phase DESC""",
        x=x,
        y=y,
        runs=run_ids_of(warehouse, runs),
    )
    if not drawn:
        raise NothingToDraw(f"No run has both {x} and {y} in a phase.")
    models = drawn.values("model")
    pick = alt.selection_point(fields=["model"], bind="legend")
    chart = (
        alt.Chart(drawn.data)
        .mark_point(filled=True, size=80)
        .encode(
            x=alt.X("x:Q", title=x, axis=axis(units[0]), scale=alt.Scale(zero=False, padding=14)),
            y=alt.Y("y:Q", title=y, axis=axis(units[1])),
            color=series_color("model", models),
            shape=alt.Shape("phase:N", title=None, legend=alt.Legend(orient="top")),
            opacity=alt.condition(pick, alt.value(1), alt.value(0.15)),
            tooltip=tooltips("name:N", "model:N", "mesh:N", "batch_size:Q", "phase:N", number("x", x), number("y", y)),
        )
        .add_params(pick)
        .properties(width=WIDTH, height=300)
    )
    return Figure(
        name=f"{x}-against-{y}".replace("_", "-"),
        title=f"{y} against {x}",
        subtitle="A point per run and phase, with the mean of each metric over its other dimensions. Click a model to "
        "single it out.",
        description=f"{len(drawn.rows)} points of {len(drawn.values('name'))} runs; {y} from "
        f"{quantity(min(drawn.values('y')), units[1])} to {quantity(max(drawn.values('y')), units[1])}.",
        drawn=drawn,
        metrics=(x, y),
        chart=chart,
    )


def value_over_time(warehouse: Warehouse, runs: str | Sequence[str], metric: str = "tpot") -> Figure:
    """A metric over the time of the captures, with a mark where the framework's version changes.

    Raises:
        NothingToDraw: no run has the metric and the time of its capture.
        MetricError: the metric does not exist.
    """
    unit = warehouse.definitions.metric(metric).header.unit
    drawn = read(
        warehouse,
        """WITH means AS (
             SELECT run_id, coalesce(dimensions ->> '$.phase', dimensions ->> '$.clock', 'whole run') AS of,
                    avg(value) AS value
             FROM main.metric_values
             WHERE metric = $metric AND list_contains($runs, run_id) AND value IS NOT NULL
             GROUP BY ALL
           )
           SELECT r.name, coalesce(r.model, r.model_family, 'unknown') AS model,
                  coalesce(r.framework, 'unknown') AS framework,
                  strftime(make_timestamp(r.profile_start_ns // 1000), '%Y-%m-%dT%H:%M:%SZ') AS captured, m.of, m.value,
                  lag(coalesce(r.framework, 'unknown')) OVER (PARTITION BY m.of ORDER BY r.profile_start_ns, r.run_id)
                    <> coalesce(r.framework, 'unknown') AS is_new_version
           FROM means AS m JOIN main.runs AS r USING (run_id)
           WHERE r.profile_start_ns > 0
           ORDER BY r.profile_start_ns, r.name, m.of""",
        metric=metric,
        runs=run_ids_of(warehouse, runs),
    )
    if not drawn:
        raise NothingToDraw(f"No run has {metric} and the time of its capture.")
    base = alt.Chart(drawn.data)
    x = alt.X("captured:T", title="capture")
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        x=x,
        y=alt.Y("value:Q", title=metric, axis=axis(unit)),
        color=series_color("model", drawn.values("model")),
        shape=alt.Shape("of:N", title=None, legend=alt.Legend(orient="top")),
        tooltip=tooltips("name:N", "model:N", "framework:N", "captured:T", "of:N", number("value", unit)),
    )
    layers = [points]
    if True in drawn.values("is_new_version"):
        changed = base.transform_filter("datum.is_new_version").mark_rule(color=ALARM, strokeDash=[3, 3])
        layers.insert(0, changed.encode(x=x, tooltip=tooltips("framework:N", "captured:T")))
    chart = alt.layer(*layers).properties(width=WIDTH, height=260)
    changes = len({r["captured"] for r in drawn.rows if r["is_new_version"]})
    return Figure(
        name=f"{metric}-over-time".replace("_", "-"),
        title=f"{metric} over time",
        subtitle="By the time of the capture; a dashed line where the version of the framework changes.",
        description=f"{len(drawn.values('name'))} runs from {drawn.rows[0]['captured'][:10]} to "
        f"{drawn.rows[-1]['captured'][:10]}, {changes} {'change' if changes == 1 else 'changes'} of version.",
        drawn=drawn,
        metrics=(metric,),
        chart=chart,
    )


def what_if_curves(warehouse: Warehouse, runs: str | Sequence[str]) -> Figure:
    """The share of time that each run would save with faster links; a line per run and phase.

    Raises:
        NothingToDraw: latency and bandwidth cannot be fitted to the collectives of any run.
    """
    drawn = read(
        warehouse,
        """SELECT r.name, coalesce(r.model, r.model_family, 'unknown') AS model,
                  coalesce(v.dimensions ->> '$.phase', 'no phase') AS phase,
                  v.dimensions ->> '$.factor' AS factor,
                  v.value / 100 AS saved
           FROM main.metric_values AS v JOIN main.runs AS r USING (run_id)
           WHERE v.metric = 'ici_bandwidth_utility' AND list_contains($runs, run_id)
           UNION ALL
           SELECT DISTINCT r.name, coalesce(r.model, r.model_family, 'unknown') AS model,
                  coalesce(v.dimensions ->> '$.phase', 'no phase') AS phase, '1', 0
           FROM main.metric_values AS v JOIN main.runs AS r USING (run_id)
           WHERE v.metric = 'ici_bandwidth_utility' AND list_contains($runs, run_id)
           ORDER BY name, phase DESC, factor""",
        runs=run_ids_of(warehouse, runs),
    )
    if not drawn:
        raise NothingToDraw(NO_FIT)
    series = "name" if len(drawn.values("name")) <= len(SERIES) else "model"
    chart = (
        alt.Chart(drawn.data)
        .mark_line(point={"filled": True, "size": 60})
        .encode(
            x=alt.X("factor:O", title="bandwidth of the links, times today's", sort=["1", "2", "4", "infinite"],
                    axis=alt.Axis(labelAngle=0)),
            y=alt.Y("saved:Q", title="share of the time that is saved", axis=axis("ratio")),
            color=series_color(series, drawn.values(series)),
            detail="name:N",
            strokeDash=alt.StrokeDash("phase:N", title=None, legend=alt.Legend(orient="top")),
            tooltip=tooltips("name:N", "phase:N", "factor:O", alt.Tooltip("saved:Q", format=".2%")),
        )
        .properties(width=WIDTH, height=280)
    )  # fmt: skip
    return Figure(
        name="what-if-curves",
        title="What faster links would save",
        subtitle="Share of each phase's time; exposed transfers shrink, waiting stays.",
        description=largest(drawn.rows, "saved", "ratio", "name", "phase"),
        drawn=drawn,
        metrics=("ici_bandwidth_utility",),
        chart=chart,
    )


def step_waterfall(
    warehouse: Warehouse,
    runs: str | Sequence[str],
    against: str | Sequence[str],
    split: str = "category",
    most: int = 12,
) -> Figure:
    """The differences that lead from the baseline's step to that of the runs; a panel per phase.

    Args:
        warehouse: the warehouse.
        runs: the runs.
        against: the runs that they are compared with.
        split: layer, category or collective.
        most: number of differences to draw per phase, the largest first; the others are added up.

    Raises:
        NothingToDraw: the two sides have no phase with steps in common.
    """
    drawn = read(
        warehouse,
        """WITH parts AS (
             SELECT phase, name, baseline_us, value_us, difference_us,
                    row_number() OVER (PARTITION BY phase ORDER BY abs(difference_us) DESC, name) AS place
             FROM macros.compare_steps($runs, $against)
             WHERE split = $split AND difference_us IS NOT NULL
           ), largest AS (
             SELECT phase, CASE WHEN place <= $most THEN name ELSE 'others' END AS name, min(place) AS place,
                    sum(difference_us) AS difference_us, sum(baseline_us) AS baseline_us
             FROM parts
             GROUP BY ALL
           ), totals AS (
             SELECT phase, sum(baseline_us) AS baseline_us, sum(value_us) AS value_us FROM parts GROUP BY phase
           ), bars AS (
             SELECT l.phase, l.name, l.place, l.difference_us,
                    t.baseline_us + coalesce(sum(l.difference_us) OVER (PARTITION BY l.phase ORDER BY l.place
                      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS from_us,
                    CASE WHEN l.difference_us > 0 THEN 'longer' ELSE 'shorter' END AS what
             FROM largest AS l JOIN totals AS t ON l.phase IS NOT DISTINCT FROM t.phase
             UNION ALL
             SELECT phase, 'baseline', 0, baseline_us, 0, 'step' FROM totals
             UNION ALL
             SELECT phase, 'run', 1000000, value_us, 0, 'step' FROM totals
           )
           SELECT coalesce(phase, 'no phase') AS phase, name, what, difference_us, from_us,
                  from_us + difference_us AS until_us
           FROM bars
           ORDER BY phase DESC, place""",
        runs=run_ids_of(warehouse, runs),
        against=run_ids_of(warehouse, against),
        split=split,
        most=most,
    )
    if not drawn:
        raise NothingToDraw("The two sides have no phase with steps on devices in common.")
    return Figure(
        name=f"waterfall-{split}",
        title=f"What changed a step, by {split}",
        subtitle="From the mean step of the baseline to that of the run, mean over devices; the differences add up.",
        description=_changes(drawn),
        drawn=drawn,
        metrics=("step_time",),
        chart=_waterfall(drawn),
    )


_POINTS = {
    "tpot_ms": ("TPOT", "ms"),
    "ttft_ms": ("TTFT", "ms"),
    "tokens_per_s": ("tokens/s", "tokens/s"),
    "tokens_per_s_per_user": ("tokens/s per user", "tokens/s"),
    "tokens_per_s_per_chip": ("tokens/s per chip", "tokens/s"),
}


def _waterfall(drawn: Drawn) -> alt.FacetChart:
    colors = alt.Scale(domain=["step", "longer", "shorter"], range=[QUIET, ALARM, "#4d9440"])
    chart: alt.FacetChart = (
        alt.Chart()
        .mark_bar()
        .encode(
            x=alt.X("from_us:Q", title="time of a step", axis=axis("us")),
            x2="until_us:Q",
            y=alt.Y("name:N", sort=None, title=None),
            color=alt.Color("what:N", scale=colors, title=None, legend=alt.Legend(orient="top")),
            tooltip=tooltips(
                "name:N", "what:N", number("difference_us", "difference, µs"), number("until_us", "then, µs")
            ),
        )
        .properties(width=WIDTH, height=alt.Step(20), data=drawn.data)
        .facet(facet=alt.Facet("phase:N", sort=drawn.values("phase"), title=None), columns=1)
        .resolve_scale(x="independent", y="independent")
    )
    return chart


def _changes(drawn: Drawn) -> str:
    words = []
    for phase in drawn.values("phase"):
        own = [r for r in drawn.rows if r["phase"] == phase]
        before, after = (next(r["difference_us"] for r in own if r["name"] == n and r["what"] == "step")
                         for n in ("baseline", "run"))  # fmt: skip
        parts = [r for r in own if r["what"] != "step"][:3]
        said = ", ".join(
            f"{r['name']} {'+' if r['difference_us'] > 0 else '-'}{quantity(abs(r['difference_us']), 'us')}"
            for r in parts
        )
        words.append(f"{phase}: {quantity(before, 'us')} became {quantity(after, 'us')} ({said})")
    return "; ".join(words) + "."
