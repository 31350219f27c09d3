"""Writes the folder of a row: card, trace, tables, values, and how to repeat the run and ask its files."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tracewarehouse.database.checked_files import CheckedFiles
from tracewarehouse.exports.ccl_bench.card import FilledCard, filled_card
from tracewarehouse.exports.ccl_bench.values import (
    PublishedDefinition,
    published_definitions,
    row_numbers,
    row_values,
    write_values,
)
from tracewarehouse.exports.chrome import chrome_text, host_names
from tracewarehouse.exports.files import naming_the_unwritable
from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.ingest.lake.durable_files import file_digest
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.ingest.lake.manifest import RunVersion
    from tracewarehouse.warehouse import Warehouse

TABLES = ("ops", "instructions", "collectives", "phases", "runs", "devices", "mesh_axes", "quality_flags")
"""Tables that lie beside the trace."""
VALUES = "metric_values.parquet"
MOST_VALUES_BYTES = 100_000
"""Size in bytes up to which the file of values belongs in git."""
LEAST_DECODE_STEPS = 128
"""Decode steps that CCL-Bench's rules for traces ask for."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LEADERBOARD = {"qwen34b", "llama3.18b", "deepseekmoe16b"}
_LEADERBOARD_INPUT = 1024
_FLAGS = {
    "model": "model", "sequence_parallelism": "sequence-parallelism", "microbatches": "microbatches", "batch": "batch",
    "input_length": "input-length", "output_length": "output-length", "layers": "layers", "hosts": "hosts",
    "dtype": "dtype", "capacity_factor": "capacity-factor", "routing_skew": "routing-skew",
    "seed": "seed", "prompt": "prompt", "device": "device", "backend": "backend",
}  # fmt: skip
_PLANNED = (
    "sequence_parallelism", "microbatches", "input_length", "output_length", "layers", "dtype", "capacity_factor",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A row that has been written.

    Attributes:
        name: name of the row and of its folder.
        folder: the folder.
        card: the card, as CCL-Bench reads it.
        values: the metrics by CCL-Bench's names.
        warnings: what limits the use of the row, one sentence each.
    """

    name: str
    folder: Path
    card: dict[str, Any]
    values: dict[str, float]
    warnings: tuple[str, ...]


def row_name(run: RunVersion) -> str:
    """The name of a run's row: the run's own, in letters that paths may have, and with "tpu" in it."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-.") or run.run_id
    name += "-predicted" * ("predicted" in run.flags and "predicted" not in name)
    return name if "tpu" in name.lower() else f"{name}-tpu"


def write_row(
    warehouse: Warehouse, run: RunVersion, folder: Path, *, trace_url: str = "", archive: bool = False
) -> Row:
    """Write the row of a run as a folder of this name; files of an earlier export are replaced.

    Args:
        warehouse: the warehouse.
        run: the run.
        folder: the folder; its name is that of the row.
        trace_url: the public address of the folder.
        archive: also write `<folder>.tar.gz` of all its files.

    Raises:
        TracewarehouseError: CCL-Bench's tools do not accept the name, other JSON or YAML files lie in the folder, or it
            cannot be written.
        WarehouseError: the run cannot be read.
    """
    name = folder.name
    if not _NAME.fullmatch(name) or "tpu" not in name.lower():
        raise TracewarehouseError(
            f"{name}: not a name for a row: CCL-Bench's tools look for 'tpu' in it, and for letters, digits, '.', '_' "
            "and '-'; name another with --name"
        )
    numbers = row_numbers(warehouse, run.run_id)
    sql = f"SELECT * FROM models.caveats WHERE run_id = {literal(run.run_id)} ORDER BY kind, name"
    caveats = warehouse.query(sql).dicts()
    card = filled_card(warehouse, run.run_id, numbers, trace_url, caveats)
    hosts = host_names(warehouse, run.run_id)
    trace = re.sub(r"[^\w.-]", "_", hosts[0]) + ".trace.json"
    with naming_the_unwritable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        own = {trace, f"{name}.yaml"}
        others = sorted(p.name for p in folder.iterdir() if p.suffix in (".json", ".yaml") and p.name not in own)
        if others:
            raise TracewarehouseError(
                f"{folder}: CCL-Bench's tools take one .json and one .yaml, and {', '.join(others)} would be another; "
                "remove it, or export to another folder"
            )
        (folder / f"{name}.yaml").write_text(_comment(caveats) + _yaml(card.content), encoding="utf-8")
        with (folder / trace).open("wb") as file:
            file.writelines(chrome_text(warehouse, run.run_id, hosts, is_for_viewers=False))
        write_values(warehouse, run.run_id, numbers, folder / VALUES)
        _write_tables(warehouse, run, folder / "tables")
        (folder / "run.sh").write_text(_script(warehouse, run, folder / trace, trace_url), encoding="utf-8")
        (folder / "run.sh").chmod(0o755)
        values = row_values(warehouse, run.run_id, numbers)
        warnings = _warnings(warehouse, run, folder, card, values, numbers["decode_steps"])
        evidence = published_definitions(warehouse, values, TABLES)
        (folder / "README.md").write_text(_readme(folder, run, card, warnings, caveats, evidence), encoding="utf-8")
        if archive:
            _archive(folder)
    return Row(name, folder, card.content, values, warnings)


def _yaml(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


def _comment(caveats: Sequence[Mapping[str, Any]]) -> str:
    """Lines of comment for the head of a card: what its reader must know."""
    return "".join(f"# {line}\n" for line in ["Read with care:", *map(_caveat, caveats)]) if caveats else ""


def _caveat(row: Mapping[str, Any]) -> str:
    detail = " ".join((row["detail"] or "").split())
    if row["kind"] == "flag":
        return f"{row['name']} ({row['host']}): {detail}" if row["host"] else f"{row['name']}: {detail}"
    what = f"{row['name'] or 'an axis without a name'}={row['value']}"
    return f"{what} is inferred, {row['confidence']:.0%} sure{f': {detail}' if detail else ''}"


def _write_tables(warehouse: Warehouse, run: RunVersion, folder: Path) -> None:
    """Write one Parquet file per table, with the rows of the run alone; each row names its run."""
    import pyarrow.parquet as pq

    CheckedFiles(warehouse.lake).check([run])
    folder.mkdir(exist_ok=True)
    for table in TABLES:
        files = [warehouse.lake.warehouse / f for f in run.files.get(table, ())]
        target = folder / f"{table}.parquet"
        if not files or warehouse.lake.filesystem is not None:  # nothing, or not on this machine
            rows = warehouse.query(f"SELECT * FROM main.{table} WHERE run_id = {literal(run.run_id)}").arrow()
            pq.write_table(rows, target, compression="zstd")
        elif len(files) == 1:
            shutil.copyfile(files[0], target)
        else:
            with pq.ParquetWriter(target, pq.read_schema(files[0]), compression="zstd") as writer:
                for file in files:
                    for batch in pq.ParquetFile(file).iter_batches():
                        writer.write_batch(batch)


def _script(warehouse: Warehouse, run: RunVersion, trace: Path, trace_url: str) -> str:
    """A shell script that repeats the run; if no manifest says how, it reads the trace again or prints the values."""
    name = trace.parent.name
    [[manifest]] = warehouse.query(f"SELECT manifest FROM main.runs WHERE run_id = {literal(run.run_id)}").rows()
    spec = (json.loads(manifest) if manifest else {}).get("spec") or {}
    lines = ["#!/bin/sh", f"# Records {name} again and prints its metrics.", "set -eu"]
    if spec:
        axes = ",".join(f"{axis}={size}" for axis, size in ((spec.get("mesh") or {}).get("axes") or {}).items())
        if "predicted" in run.flags:
            return _planned(warehouse, run, name, spec, axes)
        options = [("mesh", axes)] if axes else []
        options += [(flag, spec[key]) for key, flag in _FLAGS.items() if spec.get(key) is not None]
        command = " ".join(f"--{flag} {shlex.quote(str(value))}" for flag, value in options)
        lines += [f"tw collect {command} -o captures", "tw ingest captures"]
    else:
        lines[1] = f"# Prints the metrics of {name}; the capture does not say how it was recorded."
        if run.rows.get("hosts", 1) > 1:  # ingest finds no devices in one trace of several hosts
            lines += [
                'cd "$(dirname "$0")"',
                f"""duckdb -csv -c "SELECT metric, dimensions, value, unit FROM '{VALUES}'\"""",
            ]
            return "\n".join([*lines, ""])
        lines += _reading(trace, trace_url)
        return "\n".join([*lines, 'tw -w "$work/warehouse" metrics values', ""])
    return "\n".join([*lines, "tw metrics values", ""])


def _reading(trace: Path, url: str) -> list[str]:
    """Lines of a script that read the trace of a row, and fetch it where it does not lie beside the script."""
    name, file = trace.parent.name, trace.name
    packed, address = f"{name}/{file}", url or "the row's trace_url"
    return [
        'here=$(cd "$(dirname "$0")" && pwd)',
        "work=$(mktemp -d)",
        f'mkdir "$work/{name}"',
        f'cp "$here/{name}.yaml" "$work/{name}"',
        f'if [ -f "$here/{file}" ]; then',
        f'  cp "$here/{file}" "$work/{name}"',
        "else",
        *(
            [f'  curl -fsSL {shlex.quote(url)} | tar xzf - -C "$work" {shlex.quote(packed)}']
            if url.endswith((".tar.gz", ".tgz"))
            else [
                f"  echo {shlex.quote(f'put {file} of {address} beside this script, and run it again')} >&2",
                "  exit 1",
            ]
        ),
        "fi",
        f'echo "{file_digest(trace)}  $work/{packed}" | sha256sum -c - >&2',
        f'tw -w "$work/warehouse" import ccl-bench "$work/{name}" >&2',
    ]


def _planned(warehouse: Warehouse, run: RunVersion, name: str, spec: Mapping[str, Any], axes: str) -> str:
    """A shell script that predicts the run again."""
    [[topology, ici, hbm, host_ms, kernels]] = warehouse.query(
        "SELECT DISTINCT topology, ici_factor, hbm_factor, host_ps / 1e9, kernels FROM main.predictions "
        f"WHERE run_id = {literal(run.run_id)}"
    ).rows()
    options = [("slices", topology), ("meshes", axes), ("batches", spec.get("batch"))]
    options += [(_FLAGS[key], spec.get(key)) for key in _PLANNED]
    options += [("ici-factor", ici), ("hbm-factor", hbm), ("host-ms", host_ms)]
    options += [("kernel", f"{kernel}={us}") for kernel, us in json.loads(kernels or "{}").items()]
    flags = " ".join(f"--{flag} {shlex.quote(str(value))}" for flag, value in options if value is not None)
    command = f"tw plan {shlex.quote(str(spec.get('model')))} {flags}"
    return "\n".join(["#!/bin/sh", f"# Predicts {name} again; it records nothing.", "set -eu", command, ""])


def _warnings(
    warehouse: Warehouse, run: RunVersion, folder: Path, card: FilledCard, values: dict[str, float], decodes: int
) -> tuple[str, ...]:
    backend = warehouse.query(f"SELECT backend FROM main.runs WHERE run_id = {literal(run.run_id)}").scalar()
    content = card.content
    model, data = content["workload"]["model"], content["workload"]["data"]
    warnings = []
    if "predicted" in run.flags:
        warnings.append("its times are predicted, not measured; do not publish it beside rows of measured ones")
    if backend != "tpu":
        warnings.append(f"it was recorded on {backend} devices, and CCL-Bench's tools take it for a TPU's by its name")
    if model["phase"] == "inference" and decodes < LEAST_DECODE_STEPS:
        warnings.append(f"it has {decodes} decode steps, and CCL-Bench asks for {LEAST_DECODE_STEPS}")
    if not re.match(r"https?://", content["trace_url"]):
        warnings.append("no public trace_url; upload the folder and name its address with --trace-url")
    family = re.sub(r"[-_]", "", model["model_family"].lower())
    if family not in _LEADERBOARD or data["input_len"] != _LEADERBOARD_INPUT:
        warnings.append(
            f"the leaderboard has no workload of model {model['model_family'] or 'not known'} with input "
            f"{data['input_len'] or 'not known'}; the row appears only in the table"
        )
    if values.get("mfu") is None:
        warnings.append("no mfu: CCL-Bench knows only the peak of tpu_v6e, and needs operations in the trace")
    size = (folder / VALUES).stat().st_size
    if size > MOST_VALUES_BYTES:
        warnings.append(f"{VALUES} has {size:,} bytes, more than the {MOST_VALUES_BYTES:,} that belong in git")
    return tuple(warnings)


def _readme(
    folder: Path,
    run: RunVersion,
    card: FilledCard,
    warnings: tuple[str, ...],
    caveats: Sequence[Mapping[str, Any]],
    published: Sequence[PublishedDefinition],
) -> str:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "README.md")
    digests = "\n".join(f"{file_digest(p)}  {p.relative_to(folder)}" for p in files)
    url = card.content["trace_url"] or "not published yet"
    care = "\n".join(f"- {_caveat(row)}" for row in caveats) or "Nothing: no flag, and nothing was inferred."
    ways = "\n".join(
        f"| {p.name} | {p.value} | `{p.definition}` | {', '.join(f'`tables/{t}.parquet`' for t in p.tables)} |"
        for p in published
    )
    return f"""# {folder.name}

{card.content["description"]}. Run {run.run_id}, exported by tracewarehouse.

Trace and tables, which are not in git: {url}

| file | what it is |
|---|---|
| `{folder.name}.yaml` | workload card |
| `*.trace.json` | Chrome trace of all hosts, whole: asynchronous ops are async events |
| `{VALUES}` | every metric with version, dimensions, unit, polarity and description |
| `tables/*.parquet` | ops, instructions, collectives, phases, devices, axes, flags and the run; times in ps |
| `run.sh` | repeats the run |

## Read with care

{care}

## From a published value to its evidence

| published | value | definition | evidence |
|---|---|---|---|
{ways}

The definition is a view or macro of tracewarehouse. `tw metrics show NAME` prints it, and so does the column `sql`:

    duckdb -c "SELECT metric, dimensions, value, unit, sql FROM '{VALUES}' WHERE published_as = 'NAME'"

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


def _archive(folder: Path) -> None:
    with tarfile.open(folder.with_name(f"{folder.name}.tar.gz"), "w:gz", compresslevel=3) as archive:
        archive.add(folder, folder.name)
