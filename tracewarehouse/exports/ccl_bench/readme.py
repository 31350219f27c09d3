"""Writes the README of a row: what to read with care, what each value means, and how to repeat and ask it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracewarehouse.exports.ccl_bench.card import FilledCard, is_of_gpu, sureness
from tracewarehouse.exports.ccl_bench.values import (
    COMPATIBLE,
    VALUES,
    PublishedDefinition,
    ccl_bench_name,
    metric_of_ours,
)
from tracewarehouse.ingest.lake.durable_files import file_digest
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.ingest.lake.manifest import RunVersion
    from tracewarehouse.warehouse import Warehouse

UNKNOWN = "0 stands for unknown"
"""How what is said of a value begins that CCL-Bench's definition gives as 0 and no trace tells."""
_COUNTING = ("coll_call_num", "straggler", "communication_fraction", "total_communication_time")
"""CCL-Bench's metrics that are 0 if their definitions overlook the collectives of a trace."""
_MARKS = "events of the host named $core.py:331 step, of one version of vLLM"
_SERVERS = "marks of vLLM or SGLang in a Kineto trace"
_SOUGHT = {
    "avg_step_time": (f"{_MARKS}, or iterations in the card", "marks of PyTorch, vLLM or SGLang in a Kineto trace"),
    "ttft": (_MARKS, _SERVERS),
    "tpot": (f"more than one of the {_MARKS}", f"more than one of the {_SERVERS}"),
    "mfu": ("operations that events state, on the chip tpu_v6e", "PyTorch's marks, an A100 or H100, and model sizes"),
    "dominant_kernel_concentration": ("categories that the profiler gives events", "kernels"),
    "average_memory_bandwidth": ("copies in two numbered halves that state bytes", "copies that state bytes"),
    "memory_transfer_overhead": (f"copies in two numbered halves, and {_MARKS}", "copies"),
    "communication_fraction": ("events with a duration", "kernels"),
    "total_communication_time": ("events", "kernels"),
    "compute_comm_overlap": (f"communication during {_MARKS}, or StepMarker", "communication during the host's marks"),
    "bandwidth_utilization": ("collectives that state bytes_accessed", "collectives with sizes in a Kineto trace"),
    "collective_vol": ("events", "a Kineto trace"),
    "mean_sm_coverage": ("kernels of GPUs", "blocks per multiprocessor in a Kineto trace"),
    "moe_fraction": ("kernels of GPUs", "kernels"),
    "load_imbalance_ratio": ("kernels of GPUs", "kernels of several GPUs"),
    "coll_call_num": ("kernels of GPUs", "a Kineto trace"),
    "straggler": ("kernels of GPUs", "Kineto traces of ranks"),
}
"""By metric, what CCL-Bench's definition looks for in the trace of a TPU and in that of a GPU."""
DEFINITIONS = "definitions.sql"
"""The file beside the tables with all definitions, which makes DuckDB answer from them alone."""
_TRACES = (
    "`*.trace.json` | Chrome trace of all hosts, whole: asynchronous ops are async events",
    "`*.json` or `*.sqlite` | the traces as they were recorded, one per rank or host",
)


def comment(caveats: Sequence[Mapping[str, Any]], care: Mapping[str, str]) -> str:
    """Lines of comment for the head of a card: what its reader must know."""
    lines = read_with_care(caveats, care)
    return "".join(f"# {line}\n" for line in ["Read with care:", *lines]) if lines else ""


def read_with_care(caveats: Sequence[Mapping[str, Any]], care: Mapping[str, str]) -> list[str]:
    """Lines on what the reader of a row must know: of the run, and one for all values of which the same is said."""
    said = dict.fromkeys(care.values())
    return [*map(_caveat, caveats), *(f"{', '.join(n for n in care if care[n] == s)}: {s}" for s in said)]


def _caveat(row: Mapping[str, Any]) -> str:
    detail = " ".join((row["detail"] or "").split())
    if row["kind"] == "flag":
        return f"{row['name']} ({row['host']}): {detail}" if row["host"] else f"{row['name']}: {detail}"
    what = f"{row['name'] or 'an axis without a name'}={row['value']}"
    return f"{what} is inferred, {sureness(row['confidence'])}{f': {detail}' if detail else ''}"


def cautions(warehouse: Warehouse, run_id: str, values: Mapping[str, float]) -> dict[str, str]:
    """What a reader of a run's published values must know, by published name; most values have nothing special."""
    of_run = f"run_id = {literal(run_id)}"
    counted = f"SELECT count(*) FROM main.collectives WHERE {of_run}"
    facts = f"SELECT device_count, ({counted}) FROM main.runs WHERE {of_run}"
    on_gpu = is_of_gpu(warehouse, run_id)
    [[devices, collectives]] = warehouse.query(facts).rows()
    said = {}
    spans = f"SELECT steps FROM metrics.ccl_avg_step_time WHERE NOT has_marks AND {of_run}"
    for (steps,) in warehouse.query(spans).rows():
        own = _values_of_ours(warehouse, run_id, ("ttft", "tpot"))
        said["avg_step_time"] = (
            "the whole span of the trace, with what the host does before and after the steps, divided by "
            f"{steps} (the iterations of the card, or else the steps), as no event of the host marks a step"
            + "".join(f"; our `{name}` is {text}" for name, text in own.items())
        )
    if not on_gpu and devices > 1:
        said["total_communication_time"] = (
            f"the sum over the {devices} devices, per iteration, so it may be longer than a step; "
            "our `communication_time` is that of each device"
        )
    for name in values:
        if name in _COUNTING and values[name] == 0 and collectives:
            said[name] = f"{UNKNOWN}: there are collectives, and none where CCL-Bench looks"
        if name.startswith("bandwidth_utilization"):
            moved = "elements that go in" if on_gpu else "traffic of the memory, not of links,"
            said[name] = (
                f"{moved} over time, and in GiB/s, though CCL-Bench calls it GB/s; `group_6` is a part of CCL-Bench's "
                "name and no group of devices; our `collective_transfer` has that of the messages"
            )
    unsized = f"""SELECT v.kind FROM metrics.ccl_collective_vol AS v WHERE v.events = 0 AND v.{of_run}
                  AND v.kind IN (SELECT c.kind FROM main.collectives AS c WHERE c.{of_run}) ORDER BY ALL"""
    kinds = [kind for (kind,) in warehouse.query(unsized).rows()]
    for kind in kinds:
        said[ccl_bench_name("collective_vol", kind)] = (
            f"{UNKNOWN}: there are {kind}s, and no bytes where CCL-Bench looks"
        )
    if kinds:
        total = ccl_bench_name("collective_vol", "total")
        what = "it leaves out" if values.get(total) else f"{UNKNOWN}: no bytes are known of"
        said[total] = f"{what} the {' and '.join(f'{kind}s' for kind in kinds)}"
    return {name: sentence for name, sentence in said.items() if name in values}


def _values_of_ours(warehouse: Warehouse, run_id: str, metrics: Sequence[str]) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    rows = warehouse.values(run_id, metrics=metrics).dicts() if metrics else []
    for row in sorted(rows, key=lambda row: (row["metric"], row["dimensions"])):  # they come in any order
        of = ", ".join(f"{name} {value}" for name, value in json.loads(row["dimensions"]).items())
        texts.setdefault(row["metric"], []).append(f"{row['value']:.6g} {row['unit']}{f' ({of})' if of else ''}")
    return {n: ", ".join(t) if len(t) <= 2 else f"{len(t)} values, in `{VALUES}`" for n, t in texts.items()}


def without_value(warehouse: Warehouse, run_id: str, known: Collection[str]) -> list[tuple[str, str]]:
    """Names of CCL-Bench's metrics that are not known, each with what its definition looks for and our value."""
    on_gpu = is_of_gpu(warehouse, run_id)
    lacking = [name for name in COMPATIBLE if name not in known]
    ours = {name: metric_of_ours(warehouse.definitions.metric(f"ccl_{name}", 1).header.about)[0] for name in lacking}
    values = _values_of_ours(warehouse, run_id, [*dict.fromkeys(filter(None, ours.values()))])
    said = []
    for name in lacking:
        own = f"; ours, `metrics.{ours[name]}`, has {values.get(ours[name], 'none either')}" if ours[name] else ""
        said.append((name, f"CCL-Bench looks for {_SOUGHT[name][on_gpu]}{own}."))
    return said


def is_readable(run: RunVersion, traces: Sequence[str]) -> bool:
    """Whether the traces of a row can be read again: ingest finds no devices in one trace of several hosts."""
    return bool(traces) and len(traces) == run.rows.get("hosts", 1)


def readme(
    warehouse: Warehouse,
    folder: Path,
    run: RunVersion,
    card: FilledCard,
    published: Sequence[PublishedDefinition],
    *,
    warnings: Sequence[str],
    caveats: Sequence[Mapping[str, Any]],
    care: Mapping[str, str],
    traces: Sequence[str],
) -> str:
    """The text of the README of a row whose other files lie in a folder, which has the name of the row.

    `warnings` are sentences on what limits the use of the row, `caveats` the run's rows of models.caveats, `care` what
    is special about published values, by their names, and `traces` the names of the trace's files.
    """
    facts = f"SELECT backend, manifest FROM main.runs WHERE run_id = {literal(run.run_id)}"
    [[backend, manifest]] = warehouse.query(facts).rows()
    on_gpu = is_of_gpu(warehouse, run.run_id)
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "README.md")
    digests = "\n".join(f"{file_digest(p)}  {p.relative_to(folder)}" for p in files)
    url = card.content["trace_url"]
    public = f"Their public address: {url}" if url else "They have no public address yet."
    lines = "\n".join(f"- {line}" for line in read_with_care(caveats, care))
    ways = "\n".join(
        f"| {p.name} | {p.value}{_mark(care.get(p.name))} | {p.unit} | `{p.definition}` | {', '.join(p.tables)} |"
        for p in published
    )
    meanings = "\n".join(f"- {', '.join(names)}: {about}" for about, names in _meanings(published))
    known = {p.definition.rpartition(".")[2].removeprefix("ccl_") for p in published}
    theirs = "\n".join(f"- `{name}`: {why}" for name, why in without_value(warehouse, run.run_id, known))
    ours = "\n".join(f"- {', '.join(names)}: {why}" for why, names in _missing(warehouse, run))
    example = next((p.definition for p in published if p.definition.startswith("metrics.")), "metrics.all_values")
    has_spec = bool(json.loads(manifest or "{}").get("spec"))
    script = _script(run, has_spec, is_readable(run, traces))
    return f"""# {folder.name}

{card.content["description"]}.
{_device(backend, on_gpu=on_gpu)}
Run {run.run_id}, exported by tracewarehouse {version("tracewarehouse")} (Apache-2.0).

| file | what it is |
|---|---|
| `{folder.name}.yaml` | workload card |
| {_TRACES[on_gpu]} |
| `{VALUES}` | every value of a metric, with version, dimensions, unit, polarity, description and notes |
| `tables/*.parquet` | all tables of the run, from which every value follows; times in ps |
| `tables/{DEFINITIONS}` | every model and metric, as views over these tables |
| `run.sh` | {script} |

The trace and `tables/` are not for git: they lie in the folder that was exported. {public}

## Read with care

{lines or "Nothing: no flag, and nothing was inferred."}

## From a published value to its evidence

| published | value | unit | definition | tables that it reads |
|---|---|---|---|---|
{ways}

Published values have six digits. What each means:

{meanings}

Its SQL, and all digits:

    duckdb -c "SELECT metric, dimensions, value, unit, description, notes, sql FROM '{VALUES}' \
WHERE published_as = 'NAME'"

Compute one again from the tables, with its definition; `macros.ccl_row` has a column for each of its values.
DuckDB takes some seconds to load the definitions:

    cd tables && duckdb -init {DEFINITIONS} -c "FROM {example}"
    cd tables && duckdb -init {DEFINITIONS} -c "FROM macros.ccl_row('{run.run_id}')"

## Repeat

`duckdb` is DuckDB's command line, 1.5.1 or later: `pip install duckdb-cli`. It answers all questions of this file.

`tw` is the command of tracewarehouse {version("tracewarehouse")}. It is not on PyPI:
`pip install .` in a checkout of its repository.
{_repetition(script, is_readable(run, traces))}
## Without a value

CCL-Bench's metrics, for which the trace lacks what their definitions need:

{theirs or "None."}

Metrics of ours:

{ours or "None."}

## The card

Filled from the capture: {", ".join(card.filled) or "nothing"}.
Not known: {", ".join(card.missing) or "nothing"}.
{"".join(f"Note: {w}.{chr(10)}" for w in warnings)}
## Ask

Where do collectives wait, and what takes the time?

    duckdb -c "SELECT dimensions, value, unit FROM '{VALUES}' WHERE metric = 'sync_wait'"
    duckdb -c "SELECT kind, count(*), sum(end_ps - start_ps) / 1e9 AS ms FROM 'tables/collectives.parquet' \
GROUP BY kind"
    duckdb -c "SELECT category, sum(self_ps) / 1e9 AS ms FROM 'tables/ops.parquet' JOIN 'tables/instructions.parquet' \
USING (run_id, instruction_id) WHERE is_leaf GROUP BY category ORDER BY ms DESC"

SHA-256:

```
{digests}
```
"""


def _mark(said: str | None) -> str:
    return "" if said is None else ", unknown" if said.startswith(UNKNOWN) else ", with care"


def _device(backend: str, *, on_gpu: bool) -> str:
    if backend == "tpu" or on_gpu:
        return ""
    what = f"{backend.upper()} devices, not on TPUs" if backend != "unknown" else "devices that the trace does not name"
    return (
        f'\nRecorded on {what}. Its name has "tpu" all the same, as CCL-Bench\'s tools choose by it how to read a '
        "trace.\n"
    )


def _script(run: RunVersion, has_spec: bool, is_read: bool) -> str:
    if has_spec:
        return "predicts the run again" if "predicted" in run.flags else "records the run again"
    if is_read:
        return "repeats the analysis of the trace; how to record it, the capture does not say"
    return "prints the values that lie beside it"


def _repetition(script: str, is_read: bool) -> str:
    """Lines of Markdown on how to use the script, and how to read the recording again."""
    command = "    tw -w /tmp/again import ccl-bench . && tw -w /tmp/again metrics values\n"
    again = "Where the recording lies in this folder, this analyses it again, into a warehouse of its own:\n\n"
    return f"`./run.sh` {script}.\n{(again + command) * is_read}"


def _meanings(published: Sequence[PublishedDefinition]) -> Iterator[tuple[str, list[str]]]:
    for about in dict.fromkeys(p.about for p in published):
        yield about, [f"`{p.name}`" for p in published if p.about == about]


def _missing(warehouse: Warehouse, run: RunVersion) -> Iterator[tuple[str, list[str]]]:
    sql = f"SELECT reason, metric FROM metrics.missing WHERE run_id = {literal(run.run_id)} ORDER BY ALL"
    for reason, rows in groupby(warehouse.query(sql).rows(), lambda row: str(row[0])):
        yield reason, [f"`metrics.{metric}`" for _, metric in rows]
