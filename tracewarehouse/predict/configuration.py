"""Predicts a run on a slice from its compiled steps: times, the memory of the whole model, and a capture of both."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tracewarehouse.collect.ahead_of_time import PHASES, CompiledRun, CompiledStep, Configuration
from tracewarehouse.collect.capture import MANIFEST
from tracewarehouse.collect.checks.promises import busiest_load
from tracewarehouse.collect.memory import MemoryNeed, chip_memory, memory_need
from tracewarehouse.collect.models.architectures import model_architecture
from tracewarehouse.collect.models.pretrained import pretrained_model
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.compile_ahead import Topology
from tracewarehouse.ingest.capture.hardware import known_kind
from tracewarehouse.ingest.capture.manifest import load_manifest
from tracewarehouse.ingest.capture.prediction import MeasuredKernel, PredictedPhase, Prediction
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.opcodes import kernel_name
from tracewarehouse.predict.calibrations import Calibration, described, of_chip
from tracewarehouse.predict.capture import PredictedStep, write_capture
from tracewarehouse.predict.machine import Machine
from tracewarehouse.predict.rules import RULES_VERSION
from tracewarehouse.predict.timeline import predict_program
from tracewarehouse.predict.whole_model import STEADY_LAYERS, UnsteadyLayersError, whole_model

_PS_PER_US = 1_000_000
_LARGER_PREFILL = 1.05
"""The temporaries of a prefill with all layers against those of 8: 0.284 to 0.275 GB for Llama-3.1-8B on eight v6e."""
NEAR = 0.05
"""A model whose memory is so near to that of a chip is compiled whole before it is said to fit."""


@dataclass(frozen=True)
class WhatIf:
    """What is changed about the real slice, without compiling anew.

    Attributes:
        ici_factor: how much faster its links are.
        hbm_factor: how much faster its HBM is.
        host_ms: milliseconds that the host adds to each step; None for what a calibration measured, or else none.
        kernels: microseconds that one execution of a kernel takes, by its name.
        chip_price: dollars for an hour of a chip; None for the list price.
    """

    ici_factor: float = 1.0
    hbm_factor: float = 1.0
    host_ms: float | None = None
    kernels: Mapping[str, float] = field(default_factory=dict)
    chip_price: float | None = None

    @property
    def tag(self) -> str:
        """What the name of a run says of it."""
        parts = [
            f"-{name}{value:g}"
            for name, value, real in (
                ("ici", self.ici_factor, 1.0),
                ("hbm", self.hbm_factor, 1.0),
                ("host", self.host_ms, None),
                *((f"{kernel}-", us, None) for kernel, us in sorted(self.kernels.items())),
                ("usd", self.chip_price, None),
            )
            if value is not None and value != real
        ]
        return "".join(parts)


def configuration(
    spec: RunSpec, topology: str, *, is_whole: bool = False, phases: tuple[str, ...] = PHASES
) -> Configuration:
    """Return a run on a slice, of which as few layers are compiled as tell the others; all if `is_whole`."""
    count = model_architecture(spec.model).first_dense_layers + STEADY_LAYERS * spec.axis("pp")
    is_part = not is_whole and spec.is_published and spec.backend == "jax" and count < spec.layers
    return Configuration(spec, topology, count if is_part else None, phases)


def whole_memory(step: CompiledStep, run: Configuration) -> dict[str, int]:
    """Return the memory of a step with all layers, in bytes by kind, from that of its first ones.

    Weights and cache are counted. The program grows with the layers, and so do the temporaries of a decode step; those
    of a prefill hardly do.
    """
    memory, part, whole = dict(step.memory), _part(step, run), run.spec
    if part.layers == whole.layers:
        return memory
    first, every = _need(part), _need(whole)
    growth = len(whole.stage_layout.layer_kinds()) / len(part.stage_layout.layer_kinds())
    cache = every.cache - first.cache
    memory["arguments"] += every.weights - first.weights + cache
    memory["outputs"] += cache
    memory["aliased"] += cache
    memory["program"] = round(memory["program"] * growth)
    memory["temporaries"] = round(memory["temporaries"] * (_LARGER_PREFILL if step.phase == "prefill" else growth))
    return memory


def _part(step: CompiledStep, run: Configuration) -> RunSpec:
    """Return the run with the layers that are compiled of a step."""
    return run.part.model_copy(update={"layers": step.compiled_layers}) if step.compiled_layers else run.part


def device_bytes(memory: Mapping[str, int]) -> int:
    """Return the bytes that a device holds while a step runs."""
    m = memory
    return m["arguments"] + m["outputs"] - m["aliased"] + m["temporaries"] + m["program"]


def model_layers(spec: RunSpec) -> int:
    """Return the layers of the whole model, of which a run may have a part."""
    return int(model_architecture(spec.model).config["num_hidden_layers"]) if spec.is_published else spec.layers


def room_refusal(spec: RunSpec, topology: str) -> str | None:
    """Return why a run cannot be on a slice, whatever the compiler makes of it; None if it may."""
    if not spec.has_model:
        return (
            "microbenchmarks measure what predictions start from, so nothing is predicted of them; record them on the "
            "slice (tw tpu run NAME calibrate) and give the run to `tw plan --calibrate`"
        )
    if not spec.is_published:
        return None
    need, kind = _need(spec), known_kind(Topology.parse(topology).generation)[1]
    if need.weights + need.cache <= chip_memory(kind):
        return None
    return (
        f"does not fit: weights {_gb(need.weights)} GB and cache {_gb(need.cache)} GB a device, and a {kind} has "
        f"{_gb(chip_memory(kind))}"
    )


def memory_refusal(run: CompiledRun) -> str | None:
    """Return why a compiled model does not fit its slice; None if it does."""
    chip, place = chip_memory(run.steps[0].chip), run.configuration
    most = max(device_bytes(whole_memory(step, place)) for step in run.steps)
    is_part = any(_part(step, place).layers != place.spec.layers for step in run.steps)
    if is_part and abs(most / chip - 1) < NEAR:
        raise UnsteadyLayersError(f"{place.spec.name}: {_gb(most)} GB are too near to the {_gb(chip)} GB of a chip")
    return f"does not fit: needs {_gb(most)} GB a device of {_gb(chip)}" if most > chip else None


def _need(spec: RunSpec) -> MemoryNeed:
    return memory_need(pretrained_model(spec.model), spec.model_copy(update={"device": "tpu"}))


def _gb(size: int) -> str:
    return f"{size / 1e9:.3g}"


def predicted_capture(
    run: CompiledRun,
    what_if: WhatIf,
    output: Path,
    calibrations: Iterable[Calibration] = (),
    recorded: Callable[[str, str], MeasuredKernel | None] = lambda chip, signature: None,
) -> Path:
    """Write the capture of a predicted run, with one execution of each of its steps, and return its folder.

    A decode step has the context of the middle of the generation. `recorded` gives what a recorded run says of a kernel
    by chip and signature. The run's name says which kernels are measured, and which own rates are used.

    Raises:
        UnsteadyLayersError: the layers of these steps do not tell those that were not compiled.
        CaptureError: a step cannot be predicted, or a time is given for a kernel that its steps lack.
    """
    place, chip = run.configuration, run.steps[0].chip
    own = of_chip(calibrations, Topology.parse(place.topology).generation)
    said = described(own)
    factors = {"ici_factor": what_if.ici_factor, "hbm_factor": what_if.hbm_factor}
    machine = Machine.named(place.topology, own, **factors)
    host = machine.rates.get(("host_step", "ms"))
    host_ms = what_if.host_ms if what_if.host_ms is not None else host.value if host else 0.0
    measured: dict[str, MeasuredKernel] = {}

    def known(signature: str) -> MeasuredKernel | None:
        kernel = recorded(chip, signature)
        if kernel is None or kernel.kernel in what_if.kernels:
            return None
        return measured.setdefault(signature, kernel)

    steps, unsteady = [], {}
    for step in run.steps:
        try:
            steps.append(_predicted_step(step, place, machine, what_if, known))
        except UnsteadyLayersError as error:
            unsteady[step.phase] = str(error)
    if unsteady:
        raise UnsteadyLayersError("; ".join(unsteady.values()), tuple(unsteady))
    found = {kernel_name(op.instruction) for step in steps for op in step.ops if op.basis.startswith("kernel_")}
    if missing := sorted(set(what_if.kernels) - found):
        raise CaptureError(
            f"its programs have no kernel {', '.join(missing)}, for which a time is given; they have "
            f"{', '.join(sorted(found)) or 'none'}"
        )
    manifest = load_manifest(run.steps[0].file.parent / MANIFEST)
    parts = [place.spec.name, place.topology.replace(":", "-")]
    parts += [] if len(place.phases) > 1 else list(place.phases)
    is_usual = place.compiled_layers == configuration(place.spec, place.topology).compiled_layers
    parts += [] if is_usual else ["whole"]
    parts += [f"rates-{said.rpartition(' ')[2][:6]}"] if said else []
    parts += [f"{kernel}-measured" for kernel in sorted({each.kernel for each in measured.values()})]
    name = "-".join(parts) + what_if.tag
    prediction = Prediction(
        topology=place.topology,
        chip=chip,
        rules_version=RULES_VERSION,
        compiler=manifest.versions.get("libtpu"),
        clock_hz=machine.rate("clock", "hz"),
        hbm_gbps=machine.hbm_bytes_per_ps * 1e3,
        product_factor=machine.rate("product", "factor"),
        link_gbps=machine.rate("ici", "gbps") * machine.ici_factor,
        kernels=dict(what_if.kernels) or None,
        measured_kernels=[measured[each] for each in sorted(measured)] or None,
        chip_price_usd_per_h=what_if.chip_price,
        capacity_bytes=chip_memory(chip),
        calibration=said,
        phases=[step.facts for step in steps],
        host_ms=host_ms,
        **factors,
    )
    promised = [each for each in manifest.promised_collectives or () if each.phase in place.phases]
    changed = manifest.model_copy(update={"name": name, "promised_collectives": promised})
    return write_capture(output, changed, prediction, steps)


def _predicted_step(
    step: CompiledStep,
    place: Configuration,
    machine: Machine,
    what_if: WhatIf,
    recorded: Callable[[str], MeasuredKernel | None],
) -> PredictedStep:
    raw = gzip.decompress(step.file.read_bytes())
    module = HloModule(f"jit_{step.phase}", raw, [])
    spec, part = place.spec, _part(step, place)
    context = spec.input_length + (spec.output_length // 2 if step.phase == "decode" else 0)
    kernels = {name: round(us * _PS_PER_US) for name, us in what_if.kernels.items()}
    ops = predict_program(module, machine, kernels, float(context), busiest_load(spec) or 1.0, recorded)
    added = len(spec.stage_layout.layer_kinds()) - len(part.stage_layout.layer_kinds())
    whole = whole_model(module, ops, added, model_architecture(spec.model).first_dense_layers)
    memory = whole_memory(step, place)
    facts = PredictedPhase(
        phase=step.phase,
        program_digest=hashlib.sha256(raw).hexdigest(),
        layers=spec.layers,
        compiled_layers=part.layers,
        steady_spread=whole.spread if added else None,
        context_tokens=context,
        argument_bytes=memory["arguments"],
        output_bytes=memory["outputs"] - memory["aliased"],
        temporary_bytes=memory["temporaries"],
        program_bytes=memory["program"],
    )
    return PredictedStep(facts, module, whole.ops)
