"""Publishes rows for CCL-Bench's website: merges them into a checkout of its repository, or writes its tables alone.

The same rows again change nothing, not even the time of generation.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracewarehouse.exports.ccl_bench.card import metadata
from tracewarehouse.exports.ccl_bench.row import Row
from tracewarehouse.exports.ccl_bench.values import METRIC_INFO, VALUES, trace_row
from tracewarehouse.exports.files import naming_the_unwritable
from tracewarehouse.ingest.errors import TracewarehouseError

if TYPE_CHECKING:
    import pyarrow as pa

TRACE_ROOT = "/data/ccl-bench_trace_collection"
"""The folder of the traces on CCL-Bench's own machine, as its configuration names it."""
_WEBSITE = ("benchmark_config.json", "benchmark_data.json", "data.js")
_ASSIGNED = "const BENCHMARK_DATA = "
_LISTS = ("comm_env", "protocol_selection", "trace_types", "metric_traces")
_COUNTS = frozenset(
    {
        "epochs", "iteration", "batch_size", "seq_len", "input_len", "output_len", "total_count", "count_per_node",
        "tp", "pp", "pp_mb", "dp_replicate", "dp_shard", "ep", "cp",
    }
)  # fmt: skip


def require_checkout(checkout: Path, name: str) -> tuple[str, str, str]:
    """Return the texts of the website's configuration, data and script, if a row can be merged into a checkout."""
    config, data, script = (checkout / "website" / n for n in _WEBSITE)
    try:
        first, second, third = (p.read_text(encoding="utf-8") for p in (config, data, script))
        settings, published = json.loads(first), json.loads(second)
        assert isinstance(settings["pairs"], list) and isinstance(published["rows"], list)  # noqa: S101  caught below
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise TracewarehouseError(
            f"{checkout}: not a checkout of CCL-Bench: looked for website/benchmark_config.json with its pairs, "
            f"benchmark_data.json with its rows, and data.js ({error})"
        ) from None
    _refuse_ignored(checkout, checkout / "trace_collection" / name)
    return first, second, third


def merge(row: Row, checkout: Path) -> list[Path]:
    """Merge a row; returns the files that changed."""
    website, folder = checkout / "website", checkout / "trace_collection" / row.name
    config, data, script = (website / n for n in _WEBSITE)
    texts = dict(zip((config, data, script), require_checkout(checkout, row.name), strict=True))
    settings, published = json.loads(texts[config]), json.loads(texts[data])
    trace = f"{TRACE_ROOT}/{row.name}"
    _add(settings["pairs"], {"trace": trace, "metrics": "auto", "required_update": False})
    before = json.dumps(published)
    for name, info in METRIC_INFO.items():
        if name in row.values:
            settings["metric_info"].setdefault(name, info)
            published["metric_info"].setdefault(name, info)
    metrics = _selected_metrics(settings["metric_info"], row)
    published["all_metrics"] = sorted({*published["all_metrics"], *metrics})
    _add(published["rows"], {"trace": trace, "metadata": metadata(row.name, row.card), "metrics": metrics})
    if json.dumps(published) != before:
        published["generated_at"] = datetime.now(UTC).isoformat()
    head = texts[script].partition(_ASSIGNED)[0]
    with naming_the_unwritable(checkout):
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
        return [*changed, *_write_parquet(published, website / "parquet")]


def _selected_metrics(metric_info: dict[str, Any], row: Row) -> dict[str, float | None]:
    """The metrics that CCL-Bench selects by the card's kinds of trace and its phase; null where there is no value."""
    traces, phase = {*row.card["metric_source"]["traces"]}, row.card["workload"]["model"]["phase"].lower()
    return {
        name: row.values.get(name)
        for name, info in metric_info.items()
        if traces & {*info.get("trace_types", [])}
        and (not info.get("phases") or phase in {str(p).lower() for p in info["phases"]})
    }


def _add(entries: list[dict[str, Any]], entry: dict[str, Any]) -> None:
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


def write_website(rows: Sequence[Row], folder: Path, compatible: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write `website/benchmark_data.json` and `website/parquet` over the rows whose folders lie in a folder.

    Rows of earlier exports are kept from the file that is there, as long as their folders exist. Nothing changes if the
    rows have not changed.

    Args:
        rows: the rows that have just been written.
        folder: the folder that holds their folders.
        compatible: the entries of CCL-Bench's metrics, by name.

    Returns:
        The folder of the Parquet tables.
    """
    data = folder / "website" / "benchmark_data.json"
    try:
        before = json.loads(data.read_text(encoding="utf-8")) if data.exists() else {"rows": []}
        entries = {row["trace"]: row for row in before["rows"] if (folder / trace_row(row["trace"])).is_dir()}
        for row in rows:
            trace = f"{TRACE_ROOT}/{row.name}"
            entries[trace] = {"trace": trace, "metadata": metadata(row.name, row.card), "metrics": row.values}
        metrics = sorted({name for entry in entries.values() for name in entry["metrics"]})
        published = {
            "generated_at": before.get("generated_at"),
            "all_metrics": metrics,
            "metric_categories": [{"id": "communication", "label": "Communication"}],
            "metric_info": {name: METRIC_INFO.get(name) or dict(compatible[name]) for name in metrics},
            "rows": [
                entry | {"metrics": {name: entry["metrics"].get(name) for name in metrics}}
                for entry in entries.values()
            ],
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TracewarehouseError(
            f"{data}: not the published data of an earlier export ({error!r}); remove it, or export to another folder"
        ) from None
    except OSError as error:
        raise TracewarehouseError(f"{data}: cannot be read: {error.strerror or error}") from None
    with naming_the_unwritable(data.parent):
        if published != before:
            published["generated_at"] = datetime.now(UTC).isoformat()
            data.parent.mkdir(parents=True, exist_ok=True)
            data.write_text(json.dumps(published, indent=2), encoding="utf-8")
        _write_parquet(published, data.parent / "parquet")
    return data.parent / "parquet"


def _write_parquet(published: dict[str, Any], folder: Path) -> list[Path]:
    """Write the content of benchmark_data.json as Parquet; returns the files whose rows changed.

    The tables and columns are those that CCL-Bench's pull request 51 proposes for SQL.
    """
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    changed = []
    for name, table in _tables(published).items():
        path = folder / f"{name}.parquet"
        if not path.exists() or not pq.read_table(path).equals(table):
            pq.write_table(table, path, compression="zstd")
            changed.append(path)
    return changed


def _tables(published: dict[str, Any]) -> dict[str, pa.Table]:
    import pyarrow as pa

    def texts(values: Iterable[Any]) -> pa.Array:
        return pa.array([None if v in (None, "") else str(v) for v in values], pa.string())

    def only(kinds: Collection[type], values: Iterable[Any], type_: pa.DataType) -> pa.Array:
        """The values, with NULL for those that are not of these kinds, such as N/A or several batch sizes."""
        return pa.array([v if type(v) in kinds else None for v in values], type_)

    rows = published["rows"]
    metadata: dict[str, pa.Array] = {
        "row_id": pa.array(range(1, len(rows) + 1), pa.int64()),
        "trace": pa.array([r["trace"] for r in rows], pa.string()),
    }
    for name in dict.fromkeys(name for row in rows for name in row["metadata"]):
        values = [row["metadata"].get(name) for row in rows]
        if name in _LISTS:
            metadata[f"{name}_json"] = pa.array(map(json.dumps, values), pa.string())
        elif name in _COUNTS:
            metadata[name] = only({int}, values, pa.int64())
        elif name.startswith("bandwidth_"):
            metadata[name] = only({int, float}, values, pa.float64())
        elif name == "moe":
            metadata[name] = only({bool}, values, pa.bool_())
        else:
            metadata[name] = texts(values)
    measured = [(i, name, value) for i, row in enumerate(rows, 1) for name, value in row["metrics"].items()]
    numbers = [v if isinstance(v, int | float) and not isinstance(v, bool) else None for _, _, v in measured]
    others = [v if n is None else None for (_, _, v), n in zip(measured, numbers, strict=True)]
    info, categories = published["metric_info"], published["metric_categories"]
    about = {k: [i.get(k) for i in info.values()] for k in ("label", "category", "unit", "description")}
    return {
        "metadata": pa.table(metadata),
        "metrics": pa.table(
            {
                "row_id": pa.array([i for i, _, _ in measured], pa.int64()),
                "metric_name": pa.array([n for _, n, _ in measured], pa.string()),
                "metric_value_num": pa.array(numbers, pa.float64()),
                "metric_value_text": pa.array([None if v is None else str(v) for v in others], pa.string()),
            }
        ),
        "metric_info": pa.table(
            {
                "metric_name": pa.array(info, pa.string()),
                **{k: pa.array(about[k], pa.string()) for k in ("label", "category", "unit")},
                "higher_is_better": pa.array([i.get("higher_is_better") for i in info.values()], pa.bool_()),
                "description": pa.array(about["description"], pa.string()),
                **{
                    f"{k}_json": pa.array([json.dumps(i.get(k, [])) for i in info.values()], pa.string())
                    for k in ("trace_types", "phases")
                },
            }
        ),
        "metric_categories": pa.table(
            {
                "category_id": pa.array([c["id"] for c in categories], pa.string()),
                "label": pa.array([c["label"] for c in categories], pa.string()),
                "sort_order": pa.array(range(len(categories)), pa.int64()),
            }
        ),
        "run_info": pa.table(
            {"key": ["generated_at", "row_count"], "value": [str(published["generated_at"]), str(len(rows))]}
        ),
    }
