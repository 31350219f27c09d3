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
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import yaml

from tracewarehouse.database.checked_files import CheckedFiles
from tracewarehouse.database.lens import lens_text
from tracewarehouse.exports.ccl_bench.card import FilledCard, filled_card, is_of_gpu
from tracewarehouse.exports.ccl_bench.readme import DEFINITIONS, cautions, comment, is_readable, readme
from tracewarehouse.exports.ccl_bench.values import VALUES, published_definitions, row_numbers, row_values, write_values
from tracewarehouse.exports.chrome import chrome_text, host_names
from tracewarehouse.exports.files import copy_plain, naming_the_unwritable, recorded_files
from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.ingest.lake.durable_files import file_digest, placed_whole
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.ingest.lake.manifest import RunVersion
    from tracewarehouse.warehouse import Warehouse

RUN_TABLES = tuple(table for table in TABLES if table != "metric_values")
"""The tables that lie beside the trace; the values of metrics have a file of their own."""
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
    "routing_skew", "backend",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A row that has been written.

    Attributes:
        name: name of the row and of its folder.
        card: the card, as CCL-Bench reads it.
        values: the metrics by CCL-Bench's names.
        warnings: what limits the use of the row, one sentence each.
    """

    name: str
    folder: Path
    card: dict[str, Any]
    values: dict[str, float]
    warnings: tuple[str, ...]


def row_name(warehouse: Warehouse, run: RunVersion) -> str:
    """The name of a run's row: the run's own, in letters that paths may have.

    It has "tpu" in it if CCL-Bench's tools are to read the trace as that of a TPU.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-.") or run.run_id
    name += "-predicted" * ("predicted" in run.flags and "predicted" not in name)
    return name if is_of_gpu(warehouse, run.run_id) or "tpu" in name.lower() else f"{name}-tpu"


def write_row(
    warehouse: Warehouse,
    run: RunVersion,
    folder: Path,
    *,
    trace_url: str = "",
    archive: bool = False,
    capture: Path | None = None,
) -> Row:
    """Write the row of a run as a folder of this name, whole or not at all; files of an earlier export are replaced.

    Args:
        folder: the folder; its name is that of the row.
        trace_url: the public address of the folder.
        archive: also write `<folder>.tar.gz` of all its files.
        capture: the files of a GPU run, or a folder with them: CCL-Bench's tools read GPU traces as they were recorded.
    """
    name, on_gpu = folder.name, is_of_gpu(warehouse, run.run_id)
    if not _NAME.fullmatch(name) or ("tpu" in name.lower()) == on_gpu:
        raise TracewarehouseError(
            f"{name}: not a name for this row: CCL-Bench's tools take a trace for that of a TPU if 'tpu' is in it, and "
            f"this one is of a {'GPU' if on_gpu else 'TPU'}; it has letters, digits, '.', '_' and '-'; name another "
            "with --name"
        )
    numbers = row_numbers(warehouse, run.run_id)
    sql = f"SELECT * FROM models.caveats WHERE run_id = {literal(run.run_id)} ORDER BY kind, name"
    caveats = warehouse.query(sql).dicts()
    card = filled_card(warehouse, run.run_id, numbers, trace_url, caveats)
    values = row_values(warehouse, run.run_id, numbers)
    care = cautions(warehouse, run.run_id, values)
    hosts = host_names(warehouse, run.run_id)
    recorded: list[Path] = []
    if not on_gpu:
        traces = [re.sub(r"[^\w.-]", "_", hosts[0]) + ".trace.json"]
    else:
        recorded = [path for _, path in recorded_files(warehouse, run.run_id, capture)] if capture else []
        traces = [path.name.removesuffix(".gz") for path in recorded]
    with naming_the_unwritable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        own = {*traces, f"{name}.yaml"}
        others = sorted(p.name for p in folder.iterdir() if p.suffix in (".json", ".yaml") and p.name not in own)
        if others:
            raise TracewarehouseError(
                f"{folder}: CCL-Bench's tools read every .json and .yaml, and {', '.join(others)} would be another; "
                "remove it, or export to another folder"
            )
        with TemporaryDirectory(prefix=".row-", dir=folder.parent) as staging:
            made = Path(staging) / name
            made.mkdir()
            (made / f"{name}.yaml").write_text(comment(caveats, care) + _yaml(card.content), encoding="utf-8")
            for source, trace in zip(recorded, traces, strict=False):
                copy_plain(source, made / trace)
            if not on_gpu:
                with (made / traces[0]).open("wb") as file:
                    file.writelines(chrome_text(warehouse, run.run_id, hosts, is_for_viewers=False))
            write_values(warehouse, run.run_id, numbers, care, made / VALUES)
            _write_tables(warehouse, run, made / "tables")
            (made / "run.sh").write_text(_script(warehouse, run, made, traces, trace_url), encoding="utf-8")
            (made / "run.sh").chmod(0o755)
            warnings = _warnings(warehouse, run, made, card, values, numbers["decode_steps"])
            published = published_definitions(warehouse, values, numbers["phase"], with_gpus=on_gpu)
            about = readme(
                warehouse, made, run, card, published, warnings=warnings, caveats=caveats, care=care, traces=traces
            )
            (made / "README.md").write_text(about, encoding="utf-8")
            for path in sorted(made.rglob("*"), key=Path.is_file):  # folders first
                target = folder / path.relative_to(made)
                path.replace(target) if path.is_file() else target.mkdir(exist_ok=True)
        if archive:
            _archive(folder)
    return Row(name, folder, card.content, values, warnings)


def _yaml(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


def _write_tables(warehouse: Warehouse, run: RunVersion, folder: Path) -> None:
    import pyarrow.parquet as pq

    CheckedFiles(warehouse.lake).check([run])
    folder.mkdir(exist_ok=True)
    for table in RUN_TABLES:
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
    sources = {table: f"read_parquet('{table}.parquet', hive_partitioning = false)" for table in RUN_TABLES}
    sources["metric_values"] = f"(SELECT *, NULL AS fingerprint FROM '../{VALUES}' WHERE published_as IS NULL)"
    (folder / DEFINITIONS).write_text(lens_text(sources, warehouse.definitions), encoding="utf-8")


def _script(warehouse: Warehouse, run: RunVersion, folder: Path, traces: Sequence[str], trace_url: str) -> str:
    """A shell script that repeats the run; if no manifest says how, it reads the trace again or prints the values."""
    [[manifest]] = warehouse.query(f"SELECT manifest FROM main.runs WHERE run_id = {literal(run.run_id)}").rows()
    spec = (json.loads(manifest) if manifest else {}).get("spec") or {}
    lines = ["#!/bin/sh", f"# Records {folder.name} again and prints its metrics.", "set -eu"]
    if spec:
        axes = ",".join(f"{axis}={size}" for axis, size in ((spec.get("mesh") or {}).get("axes") or {}).items())
        if "predicted" in run.flags:
            return _planned(warehouse, run, folder.name, spec, axes)
        options = [("mesh", axes)] if axes else []
        options += [(flag, spec[key]) for key, flag in _FLAGS.items() if spec.get(key) is not None]
        command = " ".join(f"--{flag} {shlex.quote(str(value))}" for flag, value in options)
        return "\n".join([*lines, f"tw collect {command} -o captures", "tw ingest captures", "tw metrics values", ""])
    lines[1] = f"# Prints the metrics of {folder.name}; the capture does not say how it was recorded."
    if is_readable(run, traces):
        return "\n".join([*lines, *_reading(folder, traces, trace_url), 'tw -w "$work/warehouse" metrics values', ""])
    asked = f"""duckdb -csv -c "SELECT metric, dimensions, value, unit FROM '{VALUES}'\""""
    return "\n".join([*lines, 'cd "$(dirname "$0")"', asked, ""])


def _reading(folder: Path, traces: Sequence[str], url: str) -> list[str]:
    """Lines of a script that read the traces of a row, and fetch them where they do not lie beside the script."""
    name, address = folder.name, url or "the row's trace_url"
    files = " ".join(map(shlex.quote, traces))
    packed = " ".join(shlex.quote(f"{name}/{trace}") for trace in traces)
    return [
        'here=$(cd "$(dirname "$0")" && pwd)',
        "work=$(mktemp -d)",
        f'mkdir "$work/{name}"',
        f'cd "$here" && cp {name}.yaml "$work/{name}"',
        f"if [ -f {shlex.quote(traces[0])} ]; then",
        f'  cp {files} "$work/{name}"',
        "else",
        *(
            [f'  curl -fsSL {shlex.quote(url)} | tar xzf - -C "$work" {packed}']
            if url.endswith((".tar.gz", ".tgz"))
            else [
                f"  echo {shlex.quote(f'put {files} of {address} beside this script, and run it again')} >&2",
                "  exit 1",
            ]
        ),
        "fi",
        'cd "$work" && sha256sum -c - >&2 <<"END"',
        *(f"{file_digest(folder / trace)}  {name}/{trace}" for trace in traces),
        "END",
        f'tw -w "$work/warehouse" import ccl-bench "$work/{name}" >&2',
    ]


def _planned(warehouse: Warehouse, run: RunVersion, name: str, spec: Mapping[str, Any], axes: str) -> str:
    """A shell script that predicts the run again."""
    [[topology, ici, hbm, host_ms, kernels, measured, price, is_decode]] = warehouse.query(
        "SELECT ANY_VALUE(topology), MIN(ici_factor), MIN(hbm_factor), "
        "MIN(CASE WHEN host_ps > 0 OR calibration IS NOT NULL THEN host_ps / 1e9 END), MIN(kernels), "
        "MIN(measured_kernels), MIN(chip_price_usd_per_h), MIN(phase) = MAX(phase) AND MIN(phase) = 'decode' "
        f"FROM main.predictions WHERE run_id = {literal(run.run_id)}"
    ).rows()
    options = [("slices", topology), ("meshes", axes), ("batches", spec.get("batch"))]
    options += [(_FLAGS[key], spec.get(key) or None) for key in _PLANNED]
    options += [("ici-factor", ici), ("hbm-factor", hbm), ("host-ms", host_ms), ("chip-price", price)]
    times = {each["kernel"]: each["us"] for each in json.loads(measured or "[]")} | json.loads(kernels or "{}")
    options += [("kernel", f"{kernel}={us}") for kernel, us in times.items()]
    flags = " ".join(f"--{flag} {shlex.quote(str(value))}" for flag, value in options if value is not None)
    flags += " --decode-only" * is_decode + " --whole" * ("-whole-" in run.name)
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
    on_gpu = is_of_gpu(warehouse, run.run_id)
    if backend != "tpu" and not on_gpu:
        warnings.append(f"it was recorded on {backend} devices, and CCL-Bench's tools take it for a TPU's by its name")
    if model["phase"] == "inference" and decodes < LEAST_DECODE_STEPS:
        warnings.append(f"it has {decodes} decode steps, and CCL-Bench asks for {LEAST_DECODE_STEPS}")
    if not re.match(r"https?://", content["trace_url"]):
        warnings.append("no public trace_url; upload the folder and name its address with --trace-url")
    family = re.sub(r"[-_]", "", model["model_family"].lower())
    if family not in _LEADERBOARD or data["input_len"] != _LEADERBOARD_INPUT:
        known = f"model {model['model_family']}" if model["model_family"] else "no known model"
        length = f"an input of {data['input_len']} tokens" if data["input_len"] else "no known length of input"
        warnings.append(
            f"it appears in the website's table alone: the leaderboard compares Qwen3 4B, Llama 3.1 8B and DeepSeek "
            f"MoE 16B with an input of {_LEADERBOARD_INPUT} tokens, and this row has {known} and {length}"
        )
    if on_gpu and len([*folder.glob("*.json"), *folder.glob("*.sqlite")]) < run.rows.get("hosts", 1):
        warnings.append(
            "its trace is not here, and the warehouse does not hold it; name the recorded files by --capture"
        )
    if values.get("mfu") is None and not on_gpu:
        warnings.append("no mfu: CCL-Bench computes it for the chip tpu_v6e alone, of events that state operations")
    size = (folder / VALUES).stat().st_size
    if size > MOST_VALUES_BYTES:
        warnings.append(f"{VALUES} has {size:,} bytes, more than the {MOST_VALUES_BYTES:,} that belong in git")
    return tuple(warnings)


def _archive(folder: Path) -> None:
    with (
        placed_whole(folder.with_name(f"{folder.name}.tar.gz")) as part,
        tarfile.open(part, "w:gz", compresslevel=3) as archive,
    ):
        archive.add(folder, folder.name)
