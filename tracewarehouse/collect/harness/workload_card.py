"""Makes the workload card and the model facts of a run from what really ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracewarehouse.collect.harness.backend import Recording
from tracewarehouse.collect.models.architectures import model_architecture
from tracewarehouse.collect.parallel.attention_forms import decode_form, prefill_form
from tracewarehouse.collect.parallel.partition import MODES
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.quota import load_quota
from tracewarehouse.ingest.capture.card import WorkloadCard
from tracewarehouse.ingest.capture.hardware import chip_named

FRAMEWORKS = {"torch_xla": "torchxla"}
"""Names that CCL-Bench gives to backends, where they differ from ours."""
XLA_VARIABLES = ("PJRT_DEVICE", "XLA_FLAGS", "LIBTPU_INIT_ARGS", "XLA_HLO_DEBUG", "XLA_USE_SPMD", "JAX_PLATFORMS")
PRECISION = {"float32": "fp32", "bfloat16": "bf16"}


def workload_card(
    spec: RunSpec,
    recording: Recording,
    backend: str,
    versions: dict[str, str],
    environment: Mapping[str, str] | None = None,
) -> WorkloadCard:
    """Return the card of a run in the terms of CCL-Bench; unknown fields stay blank.

    Of the process's `environment` the card gets the variables that change what XLA does.
    """
    architecture, facts = model_architecture(spec.model), recording.model
    assert facts is not None  # noqa: S101  microbenchmarks get no card
    count, is_virtual = spec.mesh.size, spec.device == "cpu" and recording.chip is None  # a backend may have others
    # With Ulysses and ring, every device of tp holds whole layers: tp splits the context.
    context = spec.axis("tp") if spec.sequence_parallelism in MODES else 1
    mode = f" with {spec.sequence_parallelism} sequence parallelism" if spec.sequence_parallelism else ""
    return WorkloadCard.model_validate(
        {
            "version": 1,
            "description": f"{facts.name}, {spec.mesh}{mode}, prefill of {spec.input_length} tokens and "
            f"{spec.output_length - 1} decode steps, batch {spec.batch}; "
            f"{'published' if spec.is_published else 'random'} weights{_experts(spec)}{_kernels(spec)}",
            "hf_url": facts.hf_url,
            "workload": {
                "model": {
                    "phase": "inference",
                    "moe": architecture.is_moe,
                    "granularity": "model_fwd",
                    "model_family": facts.name.lower(),
                    "precision": PRECISION[spec.dtype],
                    "iteration": spec.output_length,
                    "model_arch": {
                        "num_params": facts.num_params,
                        "num_params_active": facts.num_params_active,
                        "num_params_embedding": facts.num_params_embedding,
                        "num_layers": facts.num_layers,
                        "num_heads": facts.num_heads,
                        "head_dim": facts.head_dim,
                        "hidden_size": facts.hidden_size,
                        "vocab_size": facts.vocab_size,
                        "tie_word_embeddings": facts.tie_word_embeddings,
                    },
                },
                "data": {
                    "batch_size": spec.batch,
                    "seq_len": spec.input_length + spec.output_length,
                    "input_len": spec.input_length,
                    "output_len": spec.output_length,
                    "dataset": recording.prompt_source,
                },
                "hardware": {
                    "network_topo": _network(recording.chip, count),
                    "xpu_spec": {
                        "type": spec.device.upper() if is_virtual or spec.device == "tpu" else None,
                        # CCL-Bench's name, such as `tpu_v6e`.
                        "model": "virtual devices of one machine"
                        if is_virtual
                        else (recording.chip or "").lower().replace(" ", "_") or None,
                        "total_count": count,
                        "count_per_node": recording.devices_per_host,
                    },
                    # Virtual devices have none, even if libtpu is installed.
                    "driver_version": f"libtpu_{versions['libtpu']}"
                    if spec.device == "tpu" and "libtpu" in versions
                    else None,
                },
            },
            "Model-executor": {
                "framework": {"name": FRAMEWORKS.get(backend, backend), "compiler_tool_selection": "xla"},
                "model_plan_parallelization": {
                    "dp_replicate": spec.axis("dp"),
                    "dp_shard": 1,
                    "tp": spec.axis("tp") // context,
                    "pp": spec.axis("pp"),
                    "cp": context,
                    "ep": spec.axis("ep"),
                    "pp_mb": _microbatch_size(spec),
                },
                "communication_library": {
                    "name": "xla",
                    "version": versions.get(backend),
                    "env": {name: environment[name] for name in XLA_VARIABLES if name in environment}
                    if environment
                    else None,
                },
                "protocol_selection": ["xla_collectives", "ici"] if spec.device == "tpu" else [],
            },
            "metric_source": {"traces": ["xplane"]},
        }
    )


def _experts(spec: RunSpec) -> str:
    if not model_architecture(spec.model).is_moe:
        return ""
    if spec.capacity_factor is None:
        return ", experts as served"
    return ", dropless experts" if spec.capacity_factor == "inf" else f", experts of capacity {spec.capacity_factor}"


def _kernels(spec: RunSpec) -> str:
    kernels = [
        f"{form} attention in {phase}"
        for phase, form in (("prefill", prefill_form(spec)), ("decode", decode_form(spec)))
        if form != "einsum"
    ]
    return "".join(f", {kernel}" for kernel in kernels)


def _microbatch_size(spec: RunSpec) -> int:
    """Return the sequences of a microbatch on a data-parallel rank; 1 without a pipeline, as in CCL-Bench."""
    if spec.axis("pp") == 1:
        return 1
    return spec.batch // (spec.axis("dp") * spec.axis("ep")) // spec.microbatch_count


def _network(chip: str | None, count: int) -> dict[str, Any]:
    """Return the topology of a slice's links, and a chip's Gbit/s in both directions between and within slices."""
    entry = chip_named(chip)
    if entry is None:
        return {}
    bandwidth = ["", int(entry["link_gbps"] * 8 * 2)]
    return {"topology": load_quota().network(entry["kind"], count), "bandwidth_gbps": bandwidth}
