"""Draws several runs, for studies of many configurations.

All but the parts of steps and the ranges of predicted runs are stored values, so the charts are fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import altair as alt

from tracewarehouse.comparison.compare import SPLITS, referenced_run_ids
from tracewarehouse.dashboards.figure import Drawn, Figure, NothingToDraw, ask
from tracewarehouse.dashboards.kernel_names import short_label
from tracewarehouse.dashboards.theme import (
    ALARM,
    HEAT,
    PART_COLORS,
    WIDTH,
    axis,
    in_units,
    mesh_shape,
    named_color,
    number,
    percent,
    series_color,
    tooltips,
)
from tracewarehouse.dashboards.words import changes, communication_shares, largest, quantity
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

_POINTS = {
    "tpot_ms": ("TPOT", "ms", "tpot"),
    "ttft_ms": ("TTFT", "ms", "ttft"),
    "tokens_per_s": ("tokens/s", "tokens/s", "throughput"),
    "tokens_per_s_per_user": ("tokens/s per user", "tokens/s", "throughput"),
    "tokens_per_s_per_chip": ("tokens/s per chip", "tokens/s", "throughput"),
}
"""The values that a sweep draws, each with its label, its unit and its metric."""


def pareto(warehouse: Warehouse, runs: str | Sequence[str]) -> Figure:
    """Tokens/s per user against tokens/s per chip; a line joins the runs that no other run beats in both."""
    drawn = ask(
        warehouse,
        "pareto",
        """SELECT
             name, model, origin, workload, mesh, label,
             CASE WHEN configuration = name THEN mesh ELSE configuration END AS point,
             layers, batch_size, chips, tokens_per_s_per_user, user_low,
             user_high, tokens_per_s_per_chip, chip_low, chip_high, is_on_front
           FROM macros.study_points($runs)
           WHERE is_on_front IS NOT NULL
           ORDER BY workload, tokens_per_s_per_user, name""",
        runs=runs,
    )
    front = [r["label"] for r in drawn.rows if r["is_on_front"]]
    return drawn.figure(
        pareto_chart(drawn, *_all_of_study(warehouse, runs)),
        "A line joins the runs that no other run of their workload beats in both.",
        f"{len(front)} of {len(drawn.rows)} runs are on the front: {', '.join(front)}.",
        marks="Hollow points are predicted, and bars are their ranges.",
    )


def pareto_chart(drawn: Drawn, models: Sequence[str], meshes: Sequence[str]) -> Any:
    """The chart of rows of macros.study_points: points with labels, hollow and with range bars where predicted.

    Args:
        models: all models of the page.
        meshes: all meshes of the page.
    """
    rate = alt.Axis(format="~s")
    x = alt.X("tokens_per_s_per_user:Q", title="tokens/s per user", axis=rate, scale=alt.Scale(zero=False))
    y = alt.Y("tokens_per_s_per_chip:Q", title="tokens/s per chip", axis=rate)
    color = series_color("model", drawn.values("model"), among=models)
    base = alt.Chart(drawn.data)
    faint = alt.condition("datum.is_on_front", alt.value(1), alt.value(0.5))
    ranged = base.transform_filter("isValid(datum.user_low)")
    layers = [
        base.transform_filter("datum.is_on_front").mark_line(strokeDash=[4, 3]).encode(
            x=x, y=y, color=color, detail="workload:N"),
        base.mark_point(size=90, strokeWidth=2).encode(
            x=x, y=y, color=color, shape=mesh_shape(drawn.values("mesh"), meshes), opacity=faint,
            fill=alt.condition("datum.origin == 'predicted'", alt.value("transparent"), color),
            tooltip=tooltips("name:N", "model:N", "origin:N", "layers:Q", "mesh:N", "batch_size:Q", "chips:Q",
                             number("tokens_per_s_per_user", "tokens/s per user"),
                             number("tokens_per_s_per_chip", "tokens/s per chip"), "is_on_front:N"),
        ),
        base.transform_filter(alt.FieldOneOfPredicate(field="name", oneOf=_apart(drawn.rows)))
        .mark_text(align="left", dx=9, dy=-9).encode(x=x, y=y, text="point:N"),
    ]  # fmt: skip
    if "predicted" in drawn.values("origin"):
        layers[:0] = [
            ranged.mark_rule(strokeWidth=1.5, opacity=0.7).encode(
                x=alt.X("user_low:Q"), x2="user_high:Q", y=y, color=color
            ),
            ranged.mark_rule(strokeWidth=1.5, opacity=0.7).encode(
                x=x, y=alt.Y("chip_low:Q"), y2="chip_high:Q", color=color
            ),
        ]
    return alt.layer(*layers).properties(width=WIDTH, height=340)


def _apart(rows: Sequence[dict[str, Any]]) -> list[str]:
    x, y = "tokens_per_s_per_user", "tokens_per_s_per_chip"
    width = max(r["user_high"] or r[x] for r in rows) - min(r["user_low"] or r[x] for r in rows) or 1.0
    height = max(r["chip_high"] or r[y] for r in rows)
    placed: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda r: (not r["is_on_front"], -r[y])):
        over = (
            p
            for p in placed
            if abs(p[y] - row[y]) < _LABEL_HEIGHT * height
            and -_LETTER_WIDTH * len(row["point"]) < (row[x] - p[x]) / width < _LETTER_WIDTH * len(p["point"])
        )
        if next(over, None) is None:
            placed.append(row)
    return [r["name"] for r in placed]


_LETTER_WIDTH, _LABEL_HEIGHT = 0.015, 0.06
"""Size of a label as a share of the chart, also where the page is narrow."""


def study_parts(warehouse: Warehouse, runs: str | Sequence[str], most: int = 24) -> Figure:
    """Where a step's time goes in each configuration, side by side; a panel per phase.

    Args:
        most: number of configurations to draw, as many of each workload: those with most throughput per chip.
    """
    drawn = ask(
        warehouse,
        "study-parts",
        """SELECT
             workload, configuration, label AS run, coalesce(nullif(phase, ''), 'no phase') AS phase, part, position,
             mean_ms, share, communication, low_ms, high_ms, weights_ms, place
           FROM macros.study_parts($runs)
           WHERE place <= $most
           ORDER BY phase DESC, workload, place, position""",
        runs=runs,
        most=most,
    )
    has_ranges = any(r["low_ms"] is not None for r in drawn.rows)
    of_each = max(1, most // len(drawn.values("workload")))
    chart = replace(drawn, rows=[r for r in drawn.rows if r["place"] <= of_each]).part_bars(
        "run",
        {p: c for p, c in PART_COLORS.items() if p in drawn.values("part")},
        x=alt.X("mean_ms:Q", title="time of a step, mean over devices", axis=axis("ms")),
        tooltip=number("mean_ms", "ms"),
        has_ranges=has_ranges,
    )
    return drawn.figure(
        chart.transform_filter(f"datum.place <= {of_each}"),
        f"Mean step of each configuration, most throughput per chip first, at most {of_each} of a workload.",
        " ".join(communication_shares(drawn.rows))
        or "No two configurations of a workload differ in exposed communication.",
        marks="Lines are the ranges of predicted steps." if has_ranges else "",
    )


def parallelisms(warehouse: Warehouse, runs: str | Sequence[str]) -> Figure:
    """What TP, DP, EP, SP, PP and their combinations reach: rates, exposed communication, and traffic of a token."""
    drawn = ask(
        warehouse,
        "parallelisms",
        """SELECT parallelism, measure, value, is_best, label, workload, model, mesh, origin
           FROM macros.study_parallelisms($runs)
           ORDER BY position, parallelism, workload, label""",
        runs=runs,
    )
    ways = drawn.values("parallelism")
    if len(ways) < 2:
        raise NothingToDraw(f"All runs with a known mesh split their model alike, {drawn.rows[0]['parallelism']}.")
    measured = [m for m in drawn.values("measure") if any(r["value"] for r in drawn.rows if r["measure"] == m)]
    models, meshes = _all_of_study(warehouse, runs)
    color = series_color("model", drawn.values("model"), among=models)
    base = alt.Chart().encode(
        x=alt.X("value:Q", title=None, axis=alt.Axis(format="~s")),
        y=alt.Y("parallelism:N", title=None, sort=ways),
    )
    layers = [
        base.mark_point(size=80, strokeWidth=2).encode(
            color=color,
            shape=mesh_shape(drawn.values("mesh"), meshes),
            fill=alt.condition("datum.origin == 'predicted'", alt.value("transparent"), color),
            opacity=alt.condition("datum.is_best", alt.value(1), alt.value(0.4)),
            tooltip=tooltips("label:N", "origin:N", "parallelism:N", "measure:N", number("value", "value")),
        )
    ]
    if len(drawn.values("workload")) == 1:  # the best of a row has room for its label, of several they overlap
        side = "datum.value > datum.most / 2"
        texts = base.transform_filter("datum.is_best").mark_text(
            align=alt.ExprRef(f"{side} ? 'right' : 'left'"), dx=alt.ExprRef(f"{side} ? -9 : 9"), dy=-8
        )
        layers.append(texts.encode(text="label:N"))
    chart = (
        alt.layer(*layers, data=drawn.data)
        .transform_filter(alt.FieldOneOfPredicate(field="measure", oneOf=measured))
        .transform_joinaggregate(most="max(value)", groupby=["measure"])
        .properties(width=WIDTH, height=alt.Step(26))
        .facet(facet=alt.Facet("measure:N", title=None, sort=measured), columns=1)
        .resolve_scale(x="independent")
    )
    first = [r for r in drawn.rows if r["measure"] == measured[0]]
    return drawn.figure(
        chart,
        "A point per configuration. Strong colour: the best of its workload in each way; pale: the others.",
        f"{measured[0]}: {largest(first, 'value', '', 'parallelism', 'label')}",
        marks="Points without filling are predicted.",
        title=f"{', '.join(ways[:-1])} and {ways[-1]} beside each other",
    )


def _all_of_study(warehouse: Warehouse, runs: str | Sequence[str]) -> tuple[list[str], list[str]]:
    """The models and the meshes of all the runs, so that each has one colour and one shape in all charts."""
    ids = literal(referenced_run_ids(warehouse, runs))
    found = warehouse.query(f"SELECT DISTINCT model, mesh FROM macros.run_points({ids}) ORDER BY model, mesh").rows()
    return list(dict.fromkeys(model for model, _ in found)), sorted({mesh for _, mesh in found})


def sweep_heat_map(warehouse: Warehouse, runs: str | Sequence[str], value: str = "tpot_ms") -> Figure:
    """A value of each configuration by batch and prompt; a panel per model, mesh and chip. Repeats are averaged.

    Args:
        value: tpot_ms, ttft_ms, tokens_per_s, tokens_per_s_per_user or tokens_per_s_per_chip.
    """
    if value not in _POINTS:
        raise NothingToDraw(f"No column {value!r} to draw; there are {', '.join(_POINTS)}.")
    drawn = ask(
        warehouse,
        "sweep",
        f"""WITH points AS (
              SELECT *, coalesce(device_kind, 'unknown chip') AS chip, min(chip) OVER () < max(chip) OVER () AS is_mixed
              FROM macros.run_points($runs)
              WHERE {value} IS NOT NULL AND batch_size IS NOT NULL AND input_length IS NOT NULL
            )
            SELECT series || ', ' || mesh || if(is_mixed, ', ' || chip, '') AS configuration,
                   batch_size, input_length, avg({value}) AS value, count(*) AS runs
            FROM points
            GROUP BY ALL
            ORDER BY configuration, batch_size, input_length""",
        runs=runs,
    )
    if len(drawn.values("batch_size")) == len(drawn.values("input_length")) == 1:
        raise NothingToDraw("All runs have one batch size and one prompt length, so there is no sweep over them.")
    label, unit, metric = _POINTS[value]
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
        .facet(facet=alt.Facet("configuration:N", sort=drawn.values("configuration"), title=None), columns=3)
    )
    named = [r | {"at": f"batch {r['batch_size']}, prompt {r['input_length']}"} for r in drawn.rows]
    return drawn.figure(
        chart,
        "A panel per model, mesh and kind of chip; where several runs have one configuration, their mean.",
        largest(named, "value", unit, "configuration", "at"),
        title=f"Sweep: {label} by batch, prompt length and mesh",
        metrics=(metric,),
    )


def scaling(warehouse: Warehouse, runs: str | Sequence[str]) -> Figure:
    """Throughput against the number of chips, beside perfect scaling; a line per model, batch and lengths."""
    drawn = ask(
        warehouse,
        "scaling",
        """SELECT workload, chips, tokens_per_s, mesh, linear_tokens_per_s AS linear
           FROM macros.scaling_points($runs)
           ORDER BY workload, chips""",
        runs=runs,
    )
    x = alt.X(
        "chips:Q", title="chips", scale=alt.Scale(type="log", base=2), axis=alt.Axis(format="d", labelOverlap=True)
    )
    y = alt.Y("tokens_per_s:Q", title="output tokens/s", axis=alt.Axis(format="~s"))
    base = alt.Chart(drawn.data)
    color = series_color("workload", drawn.values("workload"))
    chart = alt.layer(
        base.mark_line(strokeDash=[2, 3], opacity=0.7).encode(
            x=x, y=alt.Y("linear:Q", title="output tokens/s"), color=color),
        base.mark_line(point={"filled": True, "size": 70}).encode(
            x=x, y=y, color=color,
            tooltip=tooltips("workload:N", "mesh:N", "chips:Q", number("tokens_per_s", "tokens/s"),
                             number("linear", "linear")),
        ),
    ).properties(width=WIDTH, height=280)  # fmt: skip
    return drawn.figure(
        chart,
        "The best run for each number of chips; dotted is perfect scaling from the fewest chips.",
        largest(drawn.rows, "tokens_per_s", "tokens/s", "workload", "mesh"),
    )


def metric_against_metric(
    warehouse: Warehouse, runs: str | Sequence[str], x: str = "overlap_ratio", y: str = "step_time"
) -> Figure:
    """Two metrics of each run and phase against each other, each averaged over its other dimensions.

    Args:
        x: a metric, such as overlap_ratio.
        y: another one, such as step_time.
    """
    units = [warehouse.definitions.metric(m).header.unit for m in (x, y)]
    drawn = ask(
        warehouse,
        "overlap-ratio-against-step-time",
        """SELECT name, model, mesh, batch_size, coalesce(phase, 'whole run') AS phase,
                  avg(value) FILTER (WHERE metric = $x) AS x, avg(value) FILTER (WHERE metric = $y) AS y
           FROM macros.run_values($runs)
           WHERE metric IN ($x, $y)
           GROUP BY run_id, name, model, mesh, batch_size, phase
           HAVING x IS NOT NULL AND y IS NOT NULL
           ORDER BY model, name, phase DESC, run_id, run_id""",
        needs=f"No run has both {x} and {y} in a phase.",
        x=x,
        y=y,
        runs=runs,
    )
    if len(same := drawn.values("x")) == 1:
        raise NothingToDraw(f"{x} is {quantity(same[0], units[0])} in every run, so {y} does not depend on it.")
    pick = alt.selection_point(fields=["model"], bind="legend")
    chart = (
        alt.Chart(drawn.data)
        .mark_point(filled=True, size=80)
        .encode(
            x=alt.X("x:Q", title=x, axis=axis(units[0]), scale=alt.Scale(zero=False, padding=14)),
            y=alt.Y("y:Q", title=y, axis=axis(units[1])),
            color=series_color("model", drawn.values("model"), among=_all_of_study(warehouse, runs)[0]),
            shape=alt.Shape("phase:N", title=None, legend=alt.Legend(orient="top")),
            opacity=alt.condition(pick, alt.value(1), alt.value(0.15)),
            tooltip=tooltips("name:N", "model:N", "mesh:N", "batch_size:Q", "phase:N", number("x", x), number("y", y)),
        )
        .add_params(pick)
        .properties(width=WIDTH, height=300)
    )
    return drawn.figure(
        chart,
        "A point per run and phase, with the mean of each metric over its other dimensions. Click a model to single it "
        "out.",
        f"{len(drawn.rows)} points of {len(drawn.values('name'))} runs; {y} from "
        f"{quantity(min(drawn.values('y')), units[1])} to {quantity(max(drawn.values('y')), units[1])}.",
        name=f"{x}-against-{y}".replace("_", "-"),
        title=f"{y} against {x}",
        metrics=(x, y),
    )


def value_over_time(warehouse: Warehouse, runs: str | Sequence[str], metric: str = "tpot") -> Figure:
    """A metric over the time of the captures; marks show where the framework's version changes."""
    unit = warehouse.definitions.metric(metric).header.unit
    drawn = ask(
        warehouse,
        "tpot-over-time",
        """SELECT name, model, framework,
                  strftime(make_timestamp(profile_start_ns // 1000), '%Y-%m-%dT%H:%M:%SZ') AS captured,
                  coalesce(phase, clock, 'whole run') AS of, avg(value) AS value,
                  lag(framework) OVER (PARTITION BY of ORDER BY profile_start_ns, run_id) <> framework AS is_new_version
           FROM macros.run_values($runs)
           WHERE metric = $metric AND value IS NOT NULL AND profile_start_ns > 0
           GROUP BY run_id, name, model, framework, profile_start_ns, of
           ORDER BY profile_start_ns, name, of""",
        needs=f"No run has {metric} and the time of its capture.",
        metric=metric,
        runs=runs,
    )
    base = alt.Chart(drawn.data)
    x = alt.X("captured:T", title="capture")
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        x=x,
        y=alt.Y("value:Q", title=metric, axis=axis(unit)),
        color=series_color("model", drawn.values("model"), among=_all_of_study(warehouse, runs)[0]),
        shape=alt.Shape("of:N", title=None, legend=alt.Legend(orient="top")),
        tooltip=tooltips("name:N", "model:N", "framework:N", "captured:T", "of:N", number("value", unit)),
    )
    layers = [points]
    if True in drawn.values("is_new_version"):
        changed = base.transform_filter("datum.is_new_version").mark_rule(color=ALARM, strokeDash=[3, 3])
        layers.insert(0, changed.encode(x=x, tooltip=tooltips("framework:N", "captured:T")))
    changes = len({r["captured"] for r in drawn.rows if r["is_new_version"]})
    return drawn.figure(
        alt.layer(*layers).properties(width=WIDTH, height=260),
        "By the time of the capture; a dashed line where the version of the framework changes.",
        f"{len(drawn.values('name'))} runs from {drawn.rows[0]['captured'][:10]} to "
        f"{drawn.rows[-1]['captured'][:10]}, {changes} {'change' if changes == 1 else 'changes'} of version.",
        name=f"{metric}-over-time".replace("_", "-"),
        title=f"{metric} over time",
        metrics=(metric,),
    )


def faster_links(warehouse: Warehouse, runs: str | Sequence[str]) -> Figure:
    """The share of a step that links twice as fast would save in each configuration, TPUs beside GPUs."""
    drawn = ask(
        warehouse,
        "faster-links",
        """SELECT
             p.label, p.model, p.mesh, p.origin,
             concat_ws(', ', upper(p.backend), s.phase) AS panel,
             if(s.factor = '2', 'twice as fast', 'without cost') AS links,
             sum(s.saved ORDER BY s.saved) AS saved,
             if(bool_or(s.is_upper_bound), 'at most', 'about') AS what
           FROM macros.speedups($runs) AS s
           JOIN macros.study_points($runs) AS p ON s.run_id = p.run_id
           WHERE s.metric = 'faster_links' AND s.factor IN ('2', 'infinite') AND coalesce(s.phase, '') <> 'outside'
             AND p.backend <> 'cpu'  -- virtual devices have no links
           GROUP BY ALL
           HAVING sum(s.saved) > 0
           ORDER BY panel, links, saved DESC, label""",
        runs=runs,
    )
    models, meshes = _all_of_study(warehouse, runs)
    color = series_color("model", drawn.values("model"), among=models)
    links = alt.Scale(domain=["twice as fast", "without cost"], range=[1, 0.3])
    chart = (
        alt.Chart(drawn.data)
        .mark_point(size=80, strokeWidth=2)
        .encode(
            x=alt.X("saved:Q", title="share of the step that is saved", axis=axis("ratio")),
            y=alt.Y("label:N", title=None, sort=drawn.values("label")),
            color=color,
            shape=mesh_shape(drawn.values("mesh"), meshes),
            fill=alt.condition("datum.origin == 'predicted'", alt.value("transparent"), color),
            opacity=alt.Opacity("links:O", title=None, scale=links, legend=alt.Legend(orient="top")),
            tooltip=tooltips("label:N", "origin:N", "panel:N", "links:N", "what:N", percent("saved")),
        )
        .properties(width=WIDTH, height=alt.Step(18))
        .facet(facet=alt.Facet("panel:N", title=None, sort=drawn.values("panel")), columns=1)
        .resolve_scale(y="independent")
    )
    return drawn.figure(
        chart,
        "Links twice as fast, and pale links without cost. Where neither a fit nor a prediction tells the latency, the "
        "share is an upper bound.",
        largest([r for r in drawn.rows if r["links"] == "twice as fast"], "saved", "ratio", "panel", "label"),
        marks="Hollow points are predicted.",
    )


def step_differences(
    warehouse: Warehouse,
    runs: str | Sequence[str],
    against: str | Sequence[str],
    split: str = "part",
    most: int = 12,
) -> Figure:
    """What made a step longer or shorter than the baseline's, by part, layer, category, collective or operation.

    Args:
        against: the runs that they are compared with.
        split: part, layer, category, collective or operation.
        most: number of differences to draw per phase, the largest first; the others are added up.
    """
    drawn = ask(
        warehouse,
        "differences",
        """SELECT coalesce(phase, 'no phase') AS phase, name, baseline_us, value_us, difference_us,
                  CASE WHEN difference_us > 0 THEN 'longer' ELSE 'shorter' END AS what
           FROM macros.step_changes($runs, $against, $split, $most)
           ORDER BY phase DESC, place""",
        runs=runs,
        against=against,
        split=split,
        most=most,
    )
    colors = {"longer": ALARM, "shorter": "#4d9440"}
    name = short_label(drawn.values("name"), "datum.name")
    change = in_units("datum.difference_us", "us", 4)
    said = f"{name} + '  ' + (datum.difference_us > 0 ? '+' : '') + {change}"
    chart = (
        alt.Chart()
        .transform_calculate(said=said)
        .mark_bar()
        .encode(
            x=alt.X("difference_us:Q", title="change of a step", axis=axis("us")),
            y=alt.Y("said:N", sort=None, title=None, axis=alt.Axis(labelLimit=420)),
            color=named_color("what", {what: colors[what] for what in colors if what in drawn.values("what")}),
            tooltip=tooltips(
                "name:N",
                number("difference_us", "change, µs"),
                number("baseline_us", "baseline, µs"),
                number("value_us", "run, µs"),
            ),
        )
        .properties(width=WIDTH, height=alt.Step(20), data=drawn.data)
        .facet(facet=alt.Facet("phase:N", sort=drawn.values("phase"), title=None), columns=1)
        .resolve_scale(x="independent", y="independent")
    )
    return drawn.figure(
        chart,
        "Time in the mean step of the run less that in the baseline's, mean over devices; the differences add up to "
        "that of the steps.",
        " ".join(changes(drawn.rows)),
        name=f"differences-{split}",
        title=f"What changed a step, by {split}",
        is_folded=split != SPLITS[0],
    )
