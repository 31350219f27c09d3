"""Writes the README of a row: what to read with care, what each value means, and how to repeat and ask it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracewarehouse.exports.ccl_bench.card import FilledCard, is_of_gpu
from tracewarehouse.exports.ccl_bench.caveats import UNKNOWN, read_with_care, without_value
from tracewarehouse.exports.ccl_bench.values import VALUES, PublishedDefinition
from tracewarehouse.ingest.lake.durable_files import file_digest
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.ingest.lake.manifest import RunVersion
    from tracewarehouse.warehouse import Warehouse

DEFINITIONS = "definitions.sql"
"""The file beside the tables with all definitions, which makes DuckDB answer from them alone."""
_TRACES = (
    "`*.trace.json` | Chrome trace of all hosts, whole: asynchronous ops are async events",
    "`*.json` or `*.sqlite` | the traces as they were recorded, one per rank or host",
)


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
