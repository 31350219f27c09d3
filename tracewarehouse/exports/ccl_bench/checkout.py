"""Merges a row into a checkout of CCL-Bench's repository, and touches nothing else there.

A second merge of the same row changes nothing, not even the time of generation.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracewarehouse.exports.ccl_bench.parquet import write_parquet
from tracewarehouse.exports.ccl_bench.row import VALUES, Row
from tracewarehouse.exports.ccl_bench.values import METRIC_INFO
from tracewarehouse.ingest.errors import TracewarehouseError

TRACE_ROOT = "/data/ccl-bench_trace_collection"
"""The folder of the traces on CCL-Bench's own machine, as its configuration names it."""
_ASSIGNED = "const BENCHMARK_DATA = "


def merge(row: Row, checkout: Path) -> list[Path]:
    """Merge a row; returns the files that changed.

    Raises:
        TracewarehouseError: it is not a checkout of CCL-Bench, its .gitignore drops a file of the row, or a file cannot
            be written.
    """
    website = checkout / "website"
    config, data, script = (website / n for n in ("benchmark_config.json", "benchmark_data.json", "data.js"))
    try:
        texts = {p: p.read_text(encoding="utf-8") for p in (config, data, script)}
        settings, published = json.loads(texts[config]), json.loads(texts[data])
        assert isinstance(settings["pairs"], list) and isinstance(published["rows"], list)  # noqa: S101  caught below
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise TracewarehouseError(
            f"{checkout}: not a checkout of CCL-Bench: looked for website/benchmark_config.json with its pairs, "
            f"benchmark_data.json with its rows, and data.js ({error})"
        ) from None
    folder = checkout / "trace_collection" / row.name
    _refuse_ignored(checkout, folder)
    trace = f"{TRACE_ROOT}/{row.name}"
    _add(settings["pairs"], {"trace": trace, "metrics": "auto", "required_update": False})
    before = json.dumps(published)
    for name, info in METRIC_INFO.items():
        if name in row.values:
            settings["metric_info"].setdefault(name, info)
            published["metric_info"].setdefault(name, info)
    metrics = _metrics(settings["metric_info"], row)
    published["all_metrics"] = sorted({*published["all_metrics"], *metrics})
    _add(published["rows"], {"trace": trace, "metadata": metadata(row), "metrics": metrics})
    if json.dumps(published) != before:
        published["generated_at"] = datetime.now(UTC).isoformat()
    head = texts[script].partition(_ASSIGNED)[0]
    try:
        changed = [
            *_written(config, _dumped(settings, texts[config])),
            *_written(data, _dumped(published, texts[data])),
            *_written(script, f"{head}{_ASSIGNED}{json.dumps(published, indent=2)};\n"),
        ]
        folder.mkdir(parents=True, exist_ok=True)
        for name in (f"{row.name}.yaml", "README.md", "run.sh", VALUES):
            source, target = row.folder / name, folder / name
            if not target.exists() or target.read_bytes() != source.read_bytes():
                shutil.copy(source, target)
                changed.append(target)
        return [*changed, *write_parquet(published, website / "parquet")]
    except OSError as error:
        raise TracewarehouseError(f"{checkout}: cannot be written: {error.strerror or error}") from None


def metadata(row: Row) -> dict[str, Any]:
    """The fields of a row's card that CCL-Bench's website shows; an unknown value is the empty text."""
    card = row.card
    workload, executor = card["workload"], card["Model-executor"]
    model, data, hardware = workload["model"], workload["data"], workload["hardware"]
    chip, network = hardware["xpu_spec"], hardware["network_topo"]
    plan, library = executor["model_plan_parallelization"], executor["communication_library"]
    bandwidth = [*(network["bandwidth_gbps"] or []), "", ""]
    fields = {
        "workload_name": row.name,
        "description": card["description"].strip(),
        "hf_url": card["hf_url"],
        "trace_url": card["trace_url"],
        "model_family": model["model_family"],
        "phase": model["phase"],
        "precision": model["precision"],
        "moe": model["moe"],
        "granularity": model["granularity"],
        "epochs": model["epochs"],
        "iteration": model["iteration"],
        "batch_size": data["batch_size"],
        "seq_len": data["seq_len"],
        "input_len": data["input_len"],
        "output_len": data["output_len"],
        "dataset": data["dataset"],
        "hardware_type": chip["type"],
        "hardware_model": chip["model"],
        "total_count": chip["total_count"],
        "count_per_node": chip["count_per_node"],
        "network_topology": network["topology"],
        "bandwidth_scaleout": bandwidth[0],
        "bandwidth_scaleup": bandwidth[1],
        "driver_version": hardware["driver_version"],
        "framework": executor["framework"]["name"],
        "compiler": executor["framework"]["compiler_tool_selection"],
        "tp": plan["tp"],
        "pp": plan["pp"],
        "pp_mb": plan["pp_mb"],
        "dp_replicate": plan["dp_replicate"],
        "dp_shard": plan["dp_shard"],
        "ep": plan["ep"],
        "cp": plan["cp"],
        "comm_library": library["name"],
        "comm_library_ver": library["version"],
        "comm_env": library["env"] or {},
        "protocol_selection": executor["protocol_selection"] or [],
        "trace_types": card["metric_source"]["traces"],
        "metric_traces": card["metric_source"]["metrics_specific_trace"] or [],
    }
    empty = ("moe", "comm_env", "protocol_selection", "metric_traces")
    return {name: value if value or name in empty else "" for name, value in fields.items()}


def _metrics(metric_info: dict[str, Any], row: Row) -> dict[str, float | None]:
    """The metrics that CCL-Bench selects by the card's kinds of trace and its phase; null where there is no value."""
    traces, phase = {*row.card["metric_source"]["traces"]}, row.card["workload"]["model"]["phase"].lower()
    return {
        name: row.values.get(name)
        for name, info in metric_info.items()
        if traces & {*info.get("trace_types", [])}
        and (not info.get("phases") or phase in {str(p).lower() for p in info["phases"]})
    }


def _add(entries: list[dict[str, Any]], entry: dict[str, Any]) -> None:
    """Replace the entry of the same trace by an entry, or append it."""
    for i, other in enumerate(entries):
        if other.get("trace") == entry["trace"]:
            entries[i] = entry
            return
    entries.append(entry)


def _dumped(content: dict[str, Any], before: str) -> str:
    """JSON in the layout of CCL-Bench's generator, with the white space that ended the file before."""
    return json.dumps(content, indent=2) + before[len(before.rstrip()) :]


def _written(path: Path, text: str) -> Iterator[Path]:
    if path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
        yield path


def _refuse_ignored(checkout: Path, folder: Path) -> None:
    names = [folder / n for n in (f"{folder.name}.yaml", "README.md", "run.sh", VALUES)]
    command = ["git", "-C", str(checkout), "check-ignore", "--no-index", *map(str, names)]
    try:
        ignored = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  no shell, own words
    except FileNotFoundError:  # without git, nobody commits the files
        return
    if ignored.returncode == 0:
        raise TracewarehouseError(
            f"{folder.name}: the checkout's .gitignore drops {', '.join(ignored.stdout.split())}; "
            "name another row with --name"
        )
