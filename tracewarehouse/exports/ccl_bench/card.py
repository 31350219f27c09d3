"""Fills the workload card of a run to publish: the run's own card, completed from the capture."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracewarehouse.ingest.capture.card import WorkloadCard
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

OURS = "tracewarehouse"
"""The kind of trace that selects our metrics; no other row has it."""
OF_TPU = "json_tpu"
KINDS = {"kineto": "json", "nsys": "nsys"}
"""The kind of trace that selects CCL-Bench's metrics, by the format of the capture; elsewhere `OF_TPU`.

These are GPU traces that its tools read as they were recorded. They do not tell what compiled the programs.
"""
_PRECISION = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16", "bf16": "bf16", "f32": "fp32", "f16": "fp16"}
_ARCHITECTURE = (
    "num_params", "num_params_active", "num_params_embedding", "num_layers", "num_heads", "head_dim",
)  # fmt: skip
_AXES = {"dp_replicate": "dp", "tp": "tp", "pp": "pp", "ep": "ep"}
_INFERRED = {axis: f"Model-executor.model_plan_parallelization.{field}" for field, axis in _AXES.items()} | {
    "layers": "workload.model.model_arch.num_layers"
}
"""The field of a card for what ingest infers, by its name in models.caveats."""

_ON_WEBSITE = {
    **{name: name for name in ("description", "hf_url", "trace_url")},
    **{
        name: f"workload.model.{name}"
        for name in ("model_family", "phase", "precision", "moe", "granularity", "epochs", "iteration")
    },
    **{name: f"workload.data.{name}" for name in ("batch_size", "seq_len", "input_len", "output_len", "dataset")},
    "hardware_type": "workload.hardware.xpu_spec.type",
    "hardware_model": "workload.hardware.xpu_spec.model",
    "total_count": "workload.hardware.xpu_spec.total_count",
    "count_per_node": "workload.hardware.xpu_spec.count_per_node",
    "network_topology": "workload.hardware.network_topo.topology",
    "bandwidth_scaleout": "workload.hardware.network_topo.bandwidth_gbps.0",
    "bandwidth_scaleup": "workload.hardware.network_topo.bandwidth_gbps.1",
    "driver_version": "workload.hardware.driver_version",
    "framework": "Model-executor.framework.name",
    "compiler": "Model-executor.framework.compiler_tool_selection",
    **{
        name: f"Model-executor.model_plan_parallelization.{name}"
        for name in ("tp", "pp", "pp_mb", "dp_replicate", "dp_shard", "ep", "cp")
    },
    "comm_library": "Model-executor.communication_library.name",
    "comm_library_ver": "Model-executor.communication_library.version",
    "comm_env": "Model-executor.communication_library.env",
    "protocol_selection": "Model-executor.protocol_selection",
    "trace_types": "metric_source.traces",
    "metric_traces": "metric_source.metrics_specific_trace",
}
"""Where the card has each field that CCL-Bench's website shows."""
_UNKNOWN: dict[str, Any] = {"comm_env": {}, "protocol_selection": [], "metric_traces": []}
"""How the website shows a field without a value, where not as the empty text."""


@dataclass(frozen=True)
class FilledCard:
    """A card for CCL-Bench.

    Attributes:
        content: the card as CCL-Bench reads it.
        filled: dotted names of the fields that the run's own card lacks and the capture has.
        missing: dotted names of the fields that neither has.
        inferred: values of `filled` that nothing states, each with how sure it is.
    """

    content: dict[str, Any]
    filled: tuple[str, ...]
    missing: tuple[str, ...]
    inferred: tuple[str, ...] = ()


def is_of_gpu(warehouse: Warehouse, run_id: str) -> bool:
    """Return whether CCL-Bench's tools read the trace of a run as it was recorded."""
    return warehouse.query(f"SELECT format FROM main.runs WHERE run_id = {literal(run_id)}").scalar() in KINDS


def filled_card(
    warehouse: Warehouse,
    run_id: str,
    numbers: Mapping[str, Any],
    trace_url: str,
    caveats: Sequence[Mapping[str, Any]] = (),
) -> FilledCard:
    """The card of a run, as complete as the run's own card and its capture allow; see `row_numbers` for the numbers.

    `caveats` are the run's rows of models.caveats. What ingest inferred stands where nothing is stated, and the
    description says so.
    """
    [run] = warehouse.query(f"SELECT * FROM main.runs WHERE run_id = {literal(run_id)}").dicts()
    [read] = warehouse.query(f"SELECT * FROM models.ccl_card WHERE run_id = {literal(run_id)}").dicts()
    card = WorkloadCard.model_validate(json.loads(run["card"]) if run["card"] else {})
    content: dict[str, Any] = card.model_dump(mode="json", by_alias=True)
    own = _leaves(content)
    library = _communication_library(warehouse, run, read["hardware"] or "")
    for field, value in _facts(run, read, numbers, library).items():
        _fill(content, field, value)
    inferred = _fill_inferred(content, caveats)
    if trace_url:
        content["trace_url"] = trace_url
    filled = [f for f, v in _leaves(content).items() if v not in ("", []) and own.get(f, "") in ("", [])]
    kinds = [KINDS.get(run["format"], OF_TPU), OURS]
    others = [kind for kind in content["metric_source"]["traces"] or [] if kind not in (OF_TPU, OURS, *KINDS.values())]
    content["metric_source"]["traces"] = [*kinds, *others]
    _add_other_spellings(content, json.loads(run["manifest"]) if run["manifest"] else {})
    missing = [f for f, v in _leaves(content).items() if v in ("", [])]
    return FilledCard(content, tuple(filled), tuple(missing), inferred)


def metadata(name: str, card: dict[str, Any]) -> dict[str, Any]:
    """The fields of the card of a row that CCL-Bench's website shows; an unknown value is the empty text."""
    fields: dict[str, Any] = {"workload_name": name}
    for field, path in _ON_WEBSITE.items():
        value = _reached(card, path.split("."))
        value = value.strip() if field == "description" else value
        fields[field] = value if value or value is False else _UNKNOWN.get(field, "")
    return fields


def card_of(shown: Mapping[str, Any]) -> WorkloadCard:
    """The inverse of `metadata`: the card of a row, as far as CCL-Bench's website shows it."""
    content = WorkloadCard().model_dump(mode="json", by_alias=True)
    content["workload"]["hardware"]["network_topo"]["bandwidth_gbps"] = ["", ""]
    for field, path in _ON_WEBSITE.items():
        *to, last = path.split(".")
        place = _reached(content, to)
        place[int(last) if last.isdigit() else last] = shown.get(field, "")
    return WorkloadCard.model_validate(content)


def _reached(content: Any, path: Sequence[str]) -> Any:
    for name in path:
        content = [*(content or []), "", ""][int(name)] if name.isdigit() else content[name]
    return content


def sureness(confidence: float) -> str:
    """How sure something inferred is, in words; only what is certain is 100 % sure."""
    return "over 99% sure" if 0.995 <= confidence < 1 else f"{confidence:.0%} sure"


def _communication_library(warehouse: Warehouse, run: dict[str, Any], hardware: str) -> str | None:
    """The library that executes the run's collectives; None for unknown. RCCL's kernels have the names of NCCL's."""
    if run["format"] not in KINDS:
        return "xla"
    sql = "SELECT count(*) FROM main.instructions WHERE name LIKE 'nccl%' AND "
    if not warehouse.query(f"{sql}run_id = {literal(run['run_id'])}").scalar():
        return None
    return "RCCL" if re.search(r"AMD|Instinct|\bMI\d", hardware) else "NCCL"


def _facts(
    run: dict[str, Any], read: dict[str, Any], numbers: Mapping[str, Any], library: str | None
) -> dict[str, Any]:
    """Values of card fields from the capture, or from the manifest beside it; None for unknown."""
    known = [n for n in (run["input_length"], run["output_length"]) if n is not None]
    axes = {
        field: run[axis] if run[axis] is not None else (1 if run["mesh"] else None) for field, axis in _AXES.items()
    }
    framework = re.sub(r"[\s_].*", "", run["framework"] or "") or None
    return {
        "description": f"{'predicted, not measured: ' * (run['origin'] == 'predicted')}"
        f"{run['model'] or run['name']}, {run['mesh'] or 'mesh not known'}",
        "workload.model.phase": read["phase"],
        "workload.model.moe": None if run["num_params"] is None else run["num_params_active"] != run["num_params"],
        "workload.model.granularity": "model_fwd" if read["phase"] == "inference" else None,
        "workload.model.model_family": (run["model"] or "").lower() or None,
        "workload.model.precision": _PRECISION.get(run["dtype"] or "", run["dtype"]),
        "workload.model.iteration": read["iterations"],
        **{f"workload.model.model_arch.{name}": run[name] for name in _ARCHITECTURE},
        "workload.data.batch_size": run["batch_size"],
        "workload.data.seq_len": sum(known) if len(known) == 2 else None,
        "workload.data.input_len": run["input_length"],
        "workload.data.output_len": read["output_length"],
        "workload.hardware.xpu_spec.type": run["backend"].upper() if run["backend"] != "unknown" else None,
        "workload.hardware.xpu_spec.model": read["hardware"],
        "workload.hardware.xpu_spec.total_count": read["chips"],
        "workload.hardware.xpu_spec.count_per_node": numbers["devices_per_host"],
        # Gbit/s of a chip in both directions: between slices, which no capture has, and within one
        "workload.hardware.network_topo.bandwidth_gbps": ["", int(numbers["chip_ici_gbps"] * 16)]
        if numbers["chip_ici_gbps"]
        else None,
        "Model-executor.framework.name": framework,
        "Model-executor.framework.compiler_tool_selection": None if run["format"] in KINDS else "xla",
        **{f"Model-executor.model_plan_parallelization.{field}": size for field, size in axes.items()},
        "Model-executor.communication_library.name": library,
        "Model-executor.protocol_selection": ["xla_collectives", "ici"] if run["backend"] == "tpu" else None,
    }


def _fill_inferred(content: dict[str, Any], caveats: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Fill blank fields by what was inferred; return each with how sure it is, as the description says it."""
    said = []
    for row in caveats:
        field = _INFERRED.get(row["name"] or "") if row["kind"] == "inferred" else None
        if field is not None and _leaves(content).get(field, "") in ("", []):
            _fill(content, field, row["value"])
            said.append(f"{field.rpartition('.')[2]}={row['value']} ({sureness(row['confidence'])})")
    if said:
        content["description"] = f"{content['description'].strip()} [inferred from the trace: {', '.join(said)}]"
    return tuple(said)


def _fill(content: dict[str, Any], field: str, value: Any) -> None:
    *path, last = field.split(".")
    for name in path:
        content = content[name]
    if value is not None and content.get(last, "") in ("", []):
        content[last] = value


def _add_other_spellings(content: dict[str, Any], manifest: dict[str, Any]) -> None:
    """Add the fields of model_arch that have other names in CCL-Bench's workload suite than in its template."""
    arch = content["workload"]["model"]["model_arch"]
    model = manifest.get("model") or {}
    facts = {name: model.get(name) for name in ("num_kv_heads", "hidden_size", "vocab_size", "num_experts")}
    for name, value in {"num_active_params": arch["num_params_active"], **facts}.items():
        if value != "":
            _fill(arch, name, value)


def _leaves(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, dict) and value:
            leaves |= _leaves(value, f"{prefix}{name}.")
        else:
            leaves[f"{prefix}{name}"] = "" if value == {} else value
    return leaves
