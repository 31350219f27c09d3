"""Compares runs with a baseline: what changed in each metric, and what made steps longer or shorter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tracewarehouse.comparison.compare import SPLITS, VERDICTS, comparing
from tracewarehouse.dashboards.runs import step_differences
from tracewarehouse.dashboards.words import changes, plain, quantity
from tracewarehouse.ingest.errors import MetricError
from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.queries.output import Format
from tracewarehouse.queries.result import QueryResult
from tracewarehouse.serve.rendering import FILES, PAGE_ROWS, address, chart, file, page
from tracewarehouse.serve.warehouses import first_row, requested_run, served_warehouses
from tracewarehouse.warehouse import Warehouse

_MOST_RUNS = 8


@dataclass(frozen=True)
class _Asked:
    baseline: RunVersion
    others: list[RunVersion]
    unlike: bool
    split: str
    said: dict[str, str | Sequence[str] | None]


def compare_page(request: Request, warehouse: Warehouse) -> Response:
    """The comparison that the address names, or a form to choose runs."""
    runs = sorted((r.name, r.run_id) for r in warehouse.lake.runs())
    asked = _asked(request, warehouse)
    if asked is None:
        return page(request, "compare_choice", runs=runs, chosen=request.query_params.getlist("run"))
    shared: dict[str, Any] = {
        "asked": asked,
        "runs": runs,
        "splits": SPLITS,
        "chosen": [r.run_id for r in asked.others],
    }
    try:
        rows, notes, sentences = _compared(request, warehouse, asked)
    except MetricError as unlike:
        anyway = address("/compare", asked.said | {"unlike": "1"})
        return page(request, "compare_choice", **shared, sentence=str(unlike), anyway=anyway)
    verdict, metric = (request.query_params.get(k, "").strip() for k in ("verdict", "metric"))
    grouped = _grouped(rows, asked)
    fitting = [
        g for g in grouped if (not verdict or verdict in g["verdicts"]) and (not metric or metric in g["metric"])
    ]
    first = first_row(request)
    last = min(first + PAGE_ROWS, len(fitting))
    said = asked.said | {"verdict": verdict, "metric": metric}
    return page(
        request,
        "compare",
        **shared,
        notes=notes,
        rows=fitting[first:last],
        counts=[(name, " ".join([*sentences[name], counts])) for name, counts in _counts(rows)],
        verdict=verdict,
        metric=metric,
        verdicts=sorted({r["verdict"] for r in rows}),
        said=f"Rows {first + 1:,} to {last:,} of {len(fitting):,}" if fitting else "No row matches.",
        earlier=address("/compare", said | {"from": str(max(0, first - PAGE_ROWS))}) if first else None,
        later=address("/compare", said | {"from": str(last)}) if last < len(fitting) else None,
        files=[(form, address(f"/compare.{form}", asked.said)) for form in FILES],
        charts=[
            (r.name, address("/compare/charts/differences", asked.said | {"run": [asked.baseline.run_id, r.run_id]}))
            for r in asked.others
        ],
        all_splits=[(s, address("/compare", asked.said | {"split": s})) for s in SPLITS],
    )


def compare_file(request: Request, warehouse: Warehouse, form: Format) -> Response:
    """All compared values, a row per run and value."""
    asked = _asked(request, warehouse)
    if asked is None:
        raise HTTPException(400, "A comparison needs two runs: /compare?run=BASELINE&run=RUN.")
    rows, *_ = _compared(request, warehouse, asked)
    return file(QueryResult(pa.Table.from_pylist(rows)), form, "comparison")


def compare_chart(request: Request, warehouse: Warehouse) -> Response:
    """A chart of what made the steps of the second run longer or shorter than the first one's."""
    asked = _asked(request, warehouse)
    if asked is None:
        raise HTTPException(400, "A comparison needs two runs.")
    run, baseline = asked.others[0].run_id, asked.baseline.run_id
    return chart(lambda: step_differences(warehouse, [run], [baseline], asked.split))


def _asked(request: Request, warehouse: Warehouse) -> _Asked | None:
    """The comparison that the address asks for; None if it names fewer than two runs."""
    parameters = request.query_params
    chosen = {r.run_id: r for r in (requested_run(warehouse, reference) for reference in parameters.getlist("run"))}
    if reference := parameters.get("baseline", ""):
        baseline = requested_run(warehouse, reference)
        chosen = {baseline.run_id: baseline} | chosen
    if len(chosen) < 2:
        return None
    if len(chosen) > _MOST_RUNS:
        raise HTTPException(400, f"{len(chosen)} runs are too many for one page; compare at most {_MOST_RUNS}.")
    split = parameters.get("split", "") or "part"
    if split not in SPLITS:
        raise HTTPException(400, f"A step is split by {', '.join(SPLITS)}, not by {split[:40]}.")
    unlike = parameters.get("unlike", "") == "1"
    said: dict[str, str | Sequence[str] | None] = {
        "run": list(chosen),
        "unlike": "1" if unlike else "",
        "split": split if split != "part" else "",
    }
    first, *others = chosen.values()
    return _Asked(first, others, unlike, split, said)


def _compared(
    request: Request, warehouse: Warehouse, asked: _Asked
) -> tuple[list[dict[str, Any]], list[str], dict[str, list[str]]]:
    """Rows, one per run and value; notes on the comparison; and by run, why its steps differ.

    Raises:
        MetricError: the workloads differ, and the request does not allow that.
    """

    def make() -> tuple[list[dict[str, Any]], list[str], dict[str, list[str]]]:
        rows, notes, sentences = [], [], {}
        for run in asked.others:
            with comparing(
                warehouse, [run.run_id], [asked.baseline.run_id], is_unlike_allowed=asked.unlike
            ) as comparison:
                rows += [{"run_id": run.run_id, "name": run.name} | row for row in comparison.values().dicts()]
                sentences[run.name] = changes(comparison.steps("part").dicts())
                if comparison.unknown:
                    known = ", ".join(map(plain, comparison.unknown))
                    notes.append(f"{run.name}: not known for both runs, so the workloads may differ: {known}.")
        return rows, notes, sentences

    key = ("compare", tuple(cast("Sequence[str]", asked.said["run"])), asked.unlike)
    return served_warehouses(request).kept(warehouse, key, make)


def _grouped(rows: list[dict[str, Any]], asked: _Asked) -> list[dict[str, Any]]:
    """A row per value, with a cell per run; what became worse or better comes first."""
    grouped: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        of = ", ".join(f"{k} {v}" for k, v in json.loads(row["dimensions"]).items() if v is not None)
        unit = row["unit"] or ""
        known = grouped.setdefault(
            (row["metric"], row["dimensions"]),
            {"metric": row["metric"], "of": of, "baseline": "", "cells": {}, "verdicts": set(), "weight": 0.0},
        )
        relative = row["relative"]
        known["baseline"] = quantity(row["baseline"], unit) or known["baseline"]
        known["cells"][row["run_id"]] = {
            "value": quantity(row["value"], unit),
            "change": "" if relative is None else f"{100 * relative:+.1f} %",
            "verdict": row["verdict"],
        }
        known["verdicts"].add(row["verdict"])
        known["weight"] = max(known["weight"], abs(relative or 0.0))
    for known in grouped.values():
        known["cells"] = [known["cells"].get(r.run_id) for r in asked.others]

    def order(known: dict[str, Any]) -> tuple[int, float, str, str]:
        place = min(map(VERDICTS.index, known["verdicts"]))
        return place, -known["weight"], known["metric"], known["of"]

    return sorted(grouped.values(), key=order)


def _counts(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """For each run, a sentence with the number of its values per verdict."""
    said = []
    for name in dict.fromkeys(r["name"] for r in rows):
        own = [r["verdict"] for r in rows if r["name"] == name]
        counts = sorted(((own.count(v), v) for v in set(own)), reverse=True)
        said.append((name, f"{len(own)} values: " + ", ".join(f"{n} {v}" for n, v in counts) + "."))
    return said
