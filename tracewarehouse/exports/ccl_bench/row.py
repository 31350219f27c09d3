"""Writes the folder of a row: card, trace, tables, values, and how to repeat the run and ask its files."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tracewarehouse.database.checked_files import CheckedFiles
from tracewarehouse.exports.ccl_bench.card import FilledCard, filled_card
from tracewarehouse.exports.ccl_bench.values import COMPATIBLE, row_numbers, row_values
from tracewarehouse.exports.chrome import chrome_text, host_names
from tracewarehouse.exports.files import naming_the_unwritable
from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.ingest.lake.durable_files import file_digest
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.ingest.lake.manifest import RunVersion
    from tracewarehouse.warehouse import Warehouse

TABLES = ("ops", "instructions", "collectives", "phases", "runs", "devices")
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
    "dtype": "dtype", "capacity_factor": "capacity-factor", "seed": "seed", "prompt": "prompt", "device": "device",
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
    card = filled_card(warehouse, run.run_id, numbers, trace_url)
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
        (folder / f"{name}.yaml").write_text(_yaml(card.content), encoding="utf-8")
        with (folder / trace).open("wb") as file:
            file.writelines(chrome_text(warehouse, run.run_id, hosts, is_for_viewers=False))
        _write_values(warehouse, run.run_id, folder / VALUES)
        _write_tables(warehouse, run, folder / "tables")
        (folder / "run.sh").write_text(_script(warehouse, run, name, trace), encoding="utf-8")
        (folder / "run.sh").chmod(0o755)
        values = row_values(warehouse, run.run_id, numbers)
        warnings = _warnings(warehouse, run, folder, card, values, numbers["decode_steps"])
        (folder / "README.md").write_text(_readme(folder, run, card, warnings), encoding="utf-8")
        if archive:
            _archive(folder)
    return Row(name, folder, card.content, values, warnings)


def _yaml(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


def _write_values(warehouse: Warehouse, run_id: str, path: Path) -> None:
    """Write the run's stored values and those of compatibility metrics, with versions, dimensions and units."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    stored = warehouse.values(run_id).arrow()
    compatible = warehouse.values(run_id, metrics=[f"ccl_{name}" for name in COMPATIBLE]).arrow()
    pq.write_table(pa.concat_tables([stored, compatible]), path, compression="zstd")


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


def _script(warehouse: Warehouse, run: RunVersion, name: str, trace: str) -> str:
    """A shell script that repeats the run; if no manifest says how, it ingests the trace or prints the values."""
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
        lines += [f'tw ingest "$(dirname "$0")/{trace}"']
    return "\n".join([*lines, "tw metrics values", ""])


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


def _readme(folder: Path, run: RunVersion, card: FilledCard, warnings: tuple[str, ...]) -> str:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "README.md")
    digests = "\n".join(f"{file_digest(p)}  {p.relative_to(folder)}" for p in files)
    url = card.content["trace_url"] or "not published yet"
    return f"""# {folder.name}

{card.content["description"]}. Run {run.run_id}, exported by tracewarehouse.

Trace and tables, which are not in git: {url}

| file | what it is |
|---|---|
| `{folder.name}.yaml` | workload card |
| `*.trace.json` | Chrome trace of all hosts, whole: asynchronous ops are async events |
| `{VALUES}` | every metric with version, dimensions and unit |
| `tables/*.parquet` | ops, instructions, collectives, phases, devices and the run; times in ps |
| `run.sh` | repeats the run |

Filled from the capture: {", ".join(card.filled) or "nothing"}.
Not known: {", ".join(card.missing) or "nothing"}.
{"".join(f"Note: {w}.{chr(10)}" for w in warnings)}
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
