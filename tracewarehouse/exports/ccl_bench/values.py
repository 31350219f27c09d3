"""Computes the values of a row, and compares the published values of rows with ours.

The values are CCL-Bench's metrics as it defines them, and three of ours under other names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from tracewarehouse.exports.ccl_bench.card import KINDS, OF_TPU, OURS, filled_card, metadata
from tracewarehouse.ingest.errors import TracewarehouseError, WarehouseError
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.definitions.definition import View
    from tracewarehouse.definitions.reading import Definitions
    from tracewarehouse.ingest.lake.manifest import RunVersion
    from tracewarehouse.warehouse import Warehouse

COMPATIBLE = (
    "avg_step_time", "ttft", "tpot", "mfu", "dominant_kernel_concentration", "average_memory_bandwidth",
    "memory_transfer_overhead", "communication_fraction", "total_communication_time", "compute_comm_overlap",
    "bandwidth_utilization", "collective_vol", "mean_sm_coverage", "moe_fraction", "load_imbalance_ratio",
    "coll_call_num", "straggler",
)  # fmt: skip
"""Names of CCL-Bench's metrics, each a `ccl_` metric of ours."""
VALUES = "metric_values.parquet"
"""The file of the values of a row."""
_COLLECTIVES = {
    "all-reduce": "allreduce",
    "all-gather": "allgather",
    "reduce-scatter": "reducescatter",
    "all-to-all": "alltoall",
    "total": "total",
}
_SUFFIXES = {"bandwidth_utilization": "_group_6", "collective_vol": "_gb"}
"""What CCL-Bench appends to the name of a metric after the kind of collective."""
_REASON = re.compile(r"use (\w+) instead\.\s*(.*)")
_OF_GPUS = re.compile(r"\s(?:In|For) Kineto traces\b")
_COLUMNS = {"collective_transfer": ("bus_gbps", "GB/s")}
"""By metric, the column and unit to compare instead of a value that answers another question."""
_REDUCED: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "op_time_share": ("largest", max),
    "communication_time": ("sum", sum),
    "traffic_volume": ("sum", sum),
}
"""How to reduce rows to one value where CCL-Bench adds devices up or takes the largest; elsewhere, take the mean."""
_WORKLOAD = ("model_family", "hardware_model", "tp", "batch_size", "input_len", "output_len")
"""The fields of CCL-Bench's website that make two rows comparable."""
_COLUMNS_OF_VALUES = (
    "run_id", "name", "metric", "version", "dimensions", "value", "unit", "polarity", "status", "published_as",
    "description", "notes", "sql",
)  # fmt: skip
_IS_BETTER = {"higher_is_better": True, "lower_is_better": False}


def _information(label: str, unit: str, is_better: bool, high: float, mid: float, description: str) -> dict[str, Any]:
    return {
        "label": f"{label} ({unit})",
        "description": description,
        "higher_is_better": is_better,
        "unit": unit,
        "category": "communication",
        "trace_types": [OURS],  # it keeps them out of others' rows
        "thresholds": {"high": high, "mid": mid},
        "required_update": False,
    }


METRIC_INFO = {
    "exposed_communication_share": _information(
        "Exposed Communication",
        "%",
        False,
        40,
        15,
        "Share of a decode step, or else of a mixed or prefill step, in which a device communicates and computes "
        "nothing, mean over the devices. Each device counts for itself, and no op counts twice.",
    ),
    "collective_bus_bandwidth": _information(
        "Collective Bus Bandwidth",
        "GB/s",
        True,
        100,
        20,
        "Bytes over time of the collectives of decode steps, or else of mixed or prefill steps. The bytes are the "
        "message times 2 (n-1)/n for all-reduce and (n-1)/n for all-gather, reduce-scatter and all-to-all, n the size "
        "of the group. The time of a collective is its shortest duration over the ranks.",
    ),
    "collective_sync_wait": _information(
        "Collective Sync Wait",
        "ms",
        False,
        5,
        0.5,
        "Time per decode step, or else per mixed or prefill step, that a device waits in collectives for slower ranks, "
        "mean over devices. In each collective this is its own time beyond the shortest over the ranks, at most the "
        "exposed time.",
    ),
}
"""The entries of our metrics in CCL-Bench's configuration."""


def row_numbers(warehouse: Warehouse, run_id: str) -> dict[str, Any]:
    """The columns of the macro ccl_row for a run."""
    [numbers] = warehouse.query(f"SELECT * FROM macros.ccl_row({literal(run_id)})").dicts()
    return numbers


def row_values(warehouse: Warehouse, run_id: str, numbers: Mapping[str, Any]) -> dict[str, float]:
    """The values of a run by CCL-Bench's names, with six significant digits; a metric without a value has no entry."""
    by_name: dict[str, float] = {}
    for row in warehouse.values(run_id, metrics=[f"ccl_{name}" for name in COMPATIBLE]).dicts():
        kind = json.loads(row["dimensions"]).get("kind", "")
        by_name[ccl_bench_name(row["metric"].removeprefix("ccl_"), kind)] = row["value"]
    by_name |= {name: numbers[name] for name in METRIC_INFO if numbers[name] is not None}
    return {name: float(f"{value:.6g}") for name, value in by_name.items()}


@dataclass(frozen=True)
class PublishedDefinition:
    """A value of a row, and where it comes from.

    Attributes:
        value: the published value, and its unit.
        definition: the view or macro that gives it, with its schema.
        tables: the tables that the definition reads.
        about: what it is, and by which rules.
    """

    name: str
    value: float
    unit: str
    definition: str
    tables: tuple[str, ...]
    about: str


def published_definitions(
    warehouse: Warehouse, values: Mapping[str, float], phase: str | None, *, with_gpus: bool
) -> list[PublishedDefinition]:
    """Say of each published value which definition it has, by which rules, and which tables it reads.

    `phase` is that of the steps of our metrics. The rules of CCL-Bench's metrics for GPUs, which are the last ones of a
    definition, are left out unless `with_gpus`.
    """
    found, definitions = [], warehouse.definitions
    aliases = definitions.aliases
    for name, value in sorted(values.items()):
        view = definition_of(definitions, name)
        assert view is not None  # noqa: S101  it was just computed
        named = (n.removeprefix("metrics.") for n in view.depends_on if n.startswith("metrics."))
        views = [view, *(definitions.metric(n).view for n in named if n in aliases)]
        read = {table for v in views for each in (v, *definitions.upstream(v)) for table in each.depends_on}
        metric = view.name.removesuffix("_v1")
        if name in METRIC_INFO:
            unit = METRIC_INFO[name]["unit"]
            about = f"{METRIC_INFO[name]['description']} Here it is of {phase or 'all'} steps."
        else:
            header = definitions.metric(metric, 1).header
            ours, rules = metric_of_ours(header.about)
            unit, rules = header.unit, rules if with_gpus else _OF_GPUS.split(rules)[0]
            about = f"As CCL-Bench defines it; ours is `metrics.{ours}`. {rules}" if ours else rules
        tables = tuple(table for table in TABLES if f"main.{table}" in read)
        found.append(PublishedDefinition(name, value, unit, f"{view.schema}.{metric}", tables, about))
    return found


def definition_of(definitions: Definitions, published: str) -> View | None:
    """Return the metric or macro that gives a published value its meaning; None if we publish none of that name."""
    metric, _ = _metric_and_kind(published)
    if metric is not None:
        return definitions.metric(f"ccl_{metric}", 1).view
    return definitions["macros.ccl_row"] if published in METRIC_INFO else None


def write_values(
    warehouse: Warehouse, run_id: str, numbers: Mapping[str, Any], care: Mapping[str, str], path: Path
) -> None:
    """Write all values of a run: its stored ones, and those that are published, under both names and with their SQL.

    Each has its version, dimensions, unit, polarity, description and notes. `published_as` is CCL-Bench's name of the
    value, whose notes begin with what `care` says of it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"version": pa.int32(), "value": pa.float64()}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in _COLUMNS_OF_VALUES])
    definitions = warehouse.definitions
    rows = warehouse.values(run_id).dicts()
    for row in warehouse.values(run_id, metrics=[f"ccl_{name}" for name in COMPATIBLE]).dicts():
        kind = json.loads(row["dimensions"]).get("kind", "")
        rows.append(row | {"published_as": ccl_bench_name(row["metric"].removeprefix("ccl_"), kind)})
    own = {"run_id": run_id, "name": warehouse.run(run_id).name, "version": 1, "dimensions": "{}"}
    for name, info in METRIC_INFO.items():
        if numbers[name] is not None:
            meaning = {"unit": info["unit"], "description": info["description"], "status": "published"}
            meaning["polarity"] = "higher_is_better" if info["higher_is_better"] else "lower_is_better"
            meaning["notes"] = f"Of {numbers['phase'] or 'all'} steps."
            rows.append(own | meaning | {"metric": name, "value": numbers[name], "published_as": name})
    for row in rows:
        if "description" not in row:
            about = definitions.metric(row["metric"], row["version"]).header
            row |= {"polarity": about.polarity, "description": " ".join(about.description.split())}
            row["notes"] = " ".join((about.notes or "").split()) or None
        if said := care.get(row.get("published_as", "")):
            row["notes"] = f"In this row: {said}. {row['notes'] or ''}".strip()
        view = definition_of(definitions, row["published_as"]) if "published_as" in row else None
        row["sql"] = view and view.sql
    table = pa.Table.from_pylist(rows, schema)
    pq.write_table(table, path, compression="zstd")


def compatible_info(definitions: Definitions) -> dict[str, dict[str, Any]]:
    """Our definitions of CCL-Bench's metrics, by its names and in the form of its configuration."""
    info = {}
    for metric in COMPATIBLE:
        header = definitions.metric(f"ccl_{metric}", 1).header
        for kind in _COLLECTIVES:
            name = ccl_bench_name(metric, kind)
            info[name] = {
                "label": name,
                "description": header.about,
                "higher_is_better": _IS_BETTER.get(header.polarity),
                "unit": header.unit,
                "trace_types": [OF_TPU, *KINDS.values()],
            }
    return info


def ccl_bench_name(metric: str, kind: str) -> str:
    """CCL-Bench's name of one of its metrics, by ours without `ccl_` and the kind of collective, if it has one."""
    return f"{metric}_{_COLLECTIVES[kind]}{_SUFFIXES[metric]}" if metric in _SUFFIXES else metric


def metric_of_ours(about: str) -> tuple[str, str]:
    """From what is said about a `ccl_` metric: ours that asks the same, empty if there is none, and what differs."""
    match = _REASON.search(about)
    return (match[1], match[2]) if match else ("", about)


class _Right(NamedTuple):
    value: float | None = None
    taken: str | None = None
    rows: int = 0
    unit: str | None = None


@dataclass(frozen=True)
class PublishedValue:
    """One published value beside ours.

    Attributes:
        row: name of the published row: the run's, or one of the same workload.
        metric: CCL-Bench's name of the metric.
        published: the published value; None if the row has none.
        published_unit: its unit, and that of `reproduced`.
        reproduced: the value that the same definition gives for the run.
        metric_of_ours: our metric that asks the same question.
        right: the value of that metric over its rows of the kind of collective, only those of decode if it has phases.
        taken: how the rows became one value: mean, sum or largest.
        rows: the number of these rows.
        unit: unit of `right`.
        relation: whether the published value follows from this run.
        why: what CCL-Bench's definition does differently.
    """

    run: str
    row: str
    metric: str
    published: float | None
    published_unit: str
    reproduced: float | None
    metric_of_ours: str
    right: float | None
    taken: str | None
    rows: int
    unit: str | None
    relation: str
    why: str


def published_values(warehouse: Warehouse, runs: Sequence[RunVersion], file: Path) -> list[PublishedValue]:
    """Compare runs with the published rows of the same names, or else of the same workloads.

    A workload is a model, a chip, tp, a batch, and the lengths of input and output, all of which must be known.

    Args:
        file: website/benchmark_data.json of CCL-Bench.
    """
    rows = published_rows(file)
    values: list[PublishedValue] = []
    for run in runs:
        for name in [run.name] if run.name in rows else _same_workload(warehouse, run, rows):
            values += _compared(warehouse, run, name, rows[name]["metrics"])
    if not values:
        names = ", ".join(run.name for run in list(runs)[:10]) or "none"
        raise WarehouseError(
            f"{file}: no published row has the name of a run, or its model, chip, tp, batch and lengths; looked for "
            f"{names}; `tw import ccl-bench DIR` names runs after their folders"
        )
    return values


def published_rows(file: Path) -> dict[str, dict[str, Any]]:
    """The published rows by their names."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {trace_row(row["trace"]): row | {"metrics": dict(row["metrics"])} for row in content["rows"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TracewarehouseError(
            f"{file}: not CCL-Bench's published data: looked for the JSON of website/benchmark_data.json ({error})"
        ) from None


def trace_row(trace: object) -> str:
    """The name of the row whose trace lies at a path."""
    return str(trace).rstrip("/").rpartition("/")[2]


def _same_workload(warehouse: Warehouse, run: RunVersion, rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The names of the published rows that ran what a run ran; none if a part of that is not known."""
    card = filled_card(warehouse, run.run_id, row_numbers(warehouse, run.run_id), "").content
    own = _workload(metadata(run.name, card))
    return [] if own is None else [name for name, row in rows.items() if _workload(row.get("metadata") or {}) == own]


def _workload(facts: Mapping[str, Any]) -> tuple[str, ...] | None:
    parts = [re.sub(r"[-_.\s]", "", str(facts.get(name) or "")).lower() for name in _WORKLOAD]
    return tuple(parts) if all(parts) else None


def _compared(warehouse: Warehouse, run: RunVersion, row: str, published: dict[str, Any]) -> list[PublishedValue]:
    reproduced = row_values(warehouse, run.run_id, row_numbers(warehouse, run.run_id))
    compared = []
    for name, value in published.items():
        metric, kind = _metric_and_kind(name)
        if metric is None:  # it needs what no trace has
            continue
        header = warehouse.definitions.metric(f"ccl_{metric}", 1).header
        ours, why = metric_of_ours(header.about)
        right = _right(warehouse, run.run_id, ours, kind)
        number = value if isinstance(value, int | float) else None
        relation = _relation(number, reproduced.get(name))
        values = (number, header.unit, reproduced.get(name), ours, *right)
        compared.append(PublishedValue(run.name, row, name, *values, relation, why))
    return compared


def _metric_and_kind(name: str) -> tuple[str | None, str | None]:
    """The inverse of `ccl_bench_name`; no kind stands for all kinds."""
    if name in COMPATIBLE:
        return name, None
    match = re.fullmatch(r"(bandwidth_utilization|collective_vol)_(\w+?)(?:_group_6|_gb)", name)
    kinds = {text: kind for kind, text in _COLLECTIVES.items() if kind != "total"}
    return (match[1], kinds.get(match[2])) if match else (None, None)


def _right(warehouse: Warehouse, run_id: str, metric: str, kind: str | None) -> _Right:
    if not metric:
        return _Right()
    rows = warehouse.metric(metric, run_id).dicts()
    header = warehouse.definitions.metric(metric).header
    column, unit = _COLUMNS.get(metric, (header.value, header.unit))
    rows = [row for row in rows if row[column] is not None and (kind is None or row.get("kind") == kind)]
    if any(row.get("phase") == "decode" for row in rows):
        rows = [row for row in rows if row.get("phase") == "decode"]
    if not rows:
        return _Right()
    how, reduced = _REDUCED.get(metric, ("mean", fmean))
    return _Right(float(reduced([float(row[column]) for row in rows])), how, len(rows), unit)


def _relation(published: float | None, reproduced: float | None) -> str:
    if published is None:
        return "no value on either side" if reproduced is None else "only here"
    if reproduced is None:
        return "only published"
    if float(f"{published:.6g}") == float(f"{reproduced:.6g}"):
        return "follows from this run"
    return "of another trace, card, or version of its tools"
