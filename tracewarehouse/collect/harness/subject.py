"""Prepares what a run records: its model, its prompt, and the reference for its result."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tracewarehouse.collect.checks.reference import reference_logits
from tracewarehouse.collect.checks.reference_cache import computed_once, kept, reference_file, weight_files
from tracewarehouse.collect.errors import ExperimentError
from tracewarehouse.collect.harness.prompt import Prompt, run_prompt
from tracewarehouse.collect.harness.tiny_model import build_model, config_values
from tracewarehouse.collect.harness.workload_card import model_facts
from tracewarehouse.collect.host_memory import available_memory, installed_memory
from tracewarehouse.collect.memory import USABLE, reference_bytes
from tracewarehouse.collect.models.architectures import architecture_of
from tracewarehouse.collect.models.model_folder import model_folder
from tracewarehouse.collect.models.pretrained import CONFIG, known_models, pretrained_model
from tracewarehouse.collect.parallel.published import PublishedWeights, ZeroWeights, skeleton

if TYPE_CHECKING:
    from tracewarehouse.collect.run_spec import RunSpec
    from tracewarehouse.ingest.capture.manifest import ModelFacts

FIRST_LAYERS_STEPS = 4
"""Steps that a part of a model generates to be compared."""

Kind = Literal["full", "first_layers", "finite_logits"]


@dataclass(frozen=True)
class Reference:
    """The result with which the generation on the devices is compared.

    `full`: the same generation in plain torch. `first_layers`: the whole model does not fit into the host; its first
    layers generate on the devices and in plain torch, and the whole must give finite logits. `finite_logits`: not even
    the first layers fit, or the run may not compute a reference and none is kept; finite logits are all that is
    required.
    """

    kind: Kind
    layers: int = 0
    """Layers that are compared."""
    expected: Any = None
    """Logits [batch, steps, vocabulary] of plain torch."""


@dataclass(frozen=True)
class Subject:
    """A model before it is on the devices, with the prompt of its run."""

    spec: RunSpec
    facts: ModelFacts
    prompt: Prompt
    reference: Reference
    model: Any = None
    """A tiny model on the host, with its weights; None for a published one."""
    weights: PublishedWeights | None = None


def tiny_subject(spec: RunSpec) -> Subject:
    """Return a tiny model with random weights, and the generation that it must agree with."""
    model = build_model(spec)
    prompt = run_prompt(spec, model.config.vocab_size)
    expected = _expected(spec, prompt, _tiny_weights(spec), lambda: model)
    reference = Reference("finite_logits") if expected is None else Reference("full", spec.layers, expected)
    return Subject(spec, model_facts(spec, model), prompt, reference, model)


def compute_reference(spec: RunSpec) -> Path:
    """Compute and keep the reference of a run, whatever its mesh and device.

    Returns:
        The file that keeps it.

    Raises:
        CheckpointError: a published model's files are not there, damaged, or of another model.
        ExperimentError: the model does not fit into the memory of this host.
    """
    spec = spec.model_copy(update={"reference": "compute"})
    if not spec.is_published:
        model = build_model(spec)
        prompt = run_prompt(spec, model.config.vocab_size)
        _expected(spec, prompt, _tiny_weights(spec), lambda: model)
        return _file(spec, prompt, _tiny_weights(spec))
    folder = model_folder(spec.model)
    prompt = run_prompt(spec, architecture_of(spec.model).config["vocab_size"], folder)
    file = _file(spec, prompt, weight_files(folder))
    need, available = reference_bytes(pretrained_model(spec.model), spec, spec.layers), available_memory()
    if kept(file) is None and need > USABLE * available:
        raise ExperimentError(
            f"{spec.name}: its reference needs {need / 1e9:.1f} GB, and this host can give {available / 1e9:.1f} GB; "
            "compute it on a larger one"
        )
    _expected(spec, prompt, weight_files(folder), lambda: PublishedWeights(spec, folder).on_host(spec))
    return file


def _tiny_weights(spec: RunSpec) -> list[Any]:
    return [config_values(spec), spec.seed]


def _file(spec: RunSpec, prompt: Prompt, weights: list[Any]) -> Path:
    return reference_file(spec, prompt.tokens, weights)


def _expected(spec: RunSpec, prompt: Prompt, weights: list[Any], model: Callable[[], Any]) -> Any:
    """Return the logits of plain torch, computed or kept as the run allows; None if there are none."""
    if spec.reference_mode == "off":
        return None
    file = _file(spec, prompt, weights)
    if spec.reference_mode == "kept":
        return kept(file)
    return computed_once(file, lambda: reference_logits(model(), prompt.tokens, spec.output_length))


def published_subject(spec: RunSpec, layers: int | None = None) -> Subject:
    """Return a published model; only its reference is in the host's memory.

    Args:
        spec: The run.
        layers: Layers to compare in plain torch; by default as many as the host's memory allows, if the run may compute
            the reference. A kept reference has all layers.

    Raises:
        CheckpointError: its files are not there, damaged, or of another model.
    """
    folder = model_folder(spec.model)
    weights = PublishedWeights(spec, folder)
    prompt = run_prompt(spec, architecture_of(spec.model).config["vocab_size"], folder)
    if spec.reference_mode != "compute":
        layers = spec.layers
    elif layers is None:
        # All hosts of a TPU slice must choose the same, because the first layers are a program over all of them.
        layers = reference_layers(spec, available_memory() if spec.device == "cpu" else installed_memory())
    expected = None
    if layers == spec.layers:
        expected = _expected(spec, prompt, weight_files(folder), lambda: weights.on_host(spec))
        layers = layers if expected is not None else 0
    kind: Kind = "full" if expected is not None else "first_layers" if layers else "finite_logits"
    facts = model_facts(spec, skeleton(spec, folder))
    return Subject(spec, facts, prompt, Reference(kind, layers, expected), weights=weights)


def traced_subject(spec: RunSpec, folder: Path) -> Subject:
    """Return a model whose steps are traced, not run; a published one is made of zeros, without its files.

    Args:
        spec: The run.
        folder: Gets the configuration of a model from the table; a model in a local folder has its own.
    """
    spec = spec.model_copy(update={"reference": "off", "prompt": None})
    if not spec.is_published:
        return tiny_subject(spec)
    config = architecture_of(spec.model).config
    if spec.model in known_models():
        longest = spec.input_length + spec.output_length
        values = {**config, "max_position_embeddings": longest}
        (folder / CONFIG).write_text(json.dumps(values), encoding="utf-8")
    else:
        folder = model_folder(spec.model)
    prompt = run_prompt(spec, config["vocab_size"])
    weights = ZeroWeights(spec, folder)
    facts = model_facts(spec, skeleton(spec, folder))
    return Subject(spec, facts, prompt, Reference("finite_logits"), weights=weights)


def first_layers_subject(subject: Subject) -> Subject:
    """Return the first layers of a model as a run of its own, for the reference `first_layers`."""
    layers = subject.reference.layers
    steps = min(subject.spec.output_length, FIRST_LAYERS_STEPS)
    part = subject.spec.model_copy(update={"layers": layers, "output_length": steps})
    return published_subject(part, layers)


def reference_layers(spec: RunSpec, available: int) -> int:
    """Return how many layers plain torch can compute here: all, the fewest with every kind of layer, or none.

    Args:
        spec: A run of a published model.
        available: Bytes that the host can give.
    """
    model = pretrained_model(spec.model)
    dense, stages = model.first_dense_layers, spec.axis("pp")
    fewest = dense + max(1, stages - 1 if dense else stages)
    for layers in (spec.layers, min(fewest, spec.layers)):
        if reference_bytes(model, spec, layers) <= USABLE * available:
            return layers
    return 0
