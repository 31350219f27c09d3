"""What a run records: its model, its prompt, and what the result is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tracewarehouse.collect.host_memory import available_memory, installed_memory
from tracewarehouse.collect.memory import USABLE, reference_bytes
from tracewarehouse.collect.model_folder import model_folder
from tracewarehouse.collect.models import architecture_of
from tracewarehouse.collect.parallel.published import PublishedWeights, skeleton
from tracewarehouse.collect.pretrained import pretrained_model
from tracewarehouse.collect.prompt import Prompt, run_prompt
from tracewarehouse.collect.reference import reference_logits
from tracewarehouse.collect.tiny_model import build_model
from tracewarehouse.collect.workload_card import model_facts

if TYPE_CHECKING:
    from tracewarehouse.collect.parallel.device_mesh import DeviceMesh
    from tracewarehouse.collect.run_spec import RunSpec
    from tracewarehouse.ingest.capture.manifest import ModelFacts

FIRST_LAYERS_STEPS = 4
"""Steps that a part of a model generates to be compared."""

Kind = Literal["full", "first_layers", "finite_logits"]


@dataclass(frozen=True)
class Reference:
    """What the generation on the devices is compared with.

    `full`: the same generation in plain torch. `first_layers`: where the whole does not fit into the host, the same
    generation by the first layers alone, on the devices and in plain torch; the whole then must give finite logits.
    `finite_logits`: where not even these fit, only that.
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

    def on_devices(self, mesh: DeviceMesh) -> Any:
        """The transformers model to run; a published one has its weights on the devices already."""
        return self.model if self.weights is None else self.weights.on_devices(self.spec, mesh)


def tiny_subject(spec: RunSpec) -> Subject:
    """A tiny model with random weights, and the generation that it must agree with."""
    model = build_model(spec)
    prompt = run_prompt(spec, model.config.vocab_size)
    expected = reference_logits(model, prompt.tokens, spec.output_length)
    return Subject(spec, model_facts(spec, model), prompt, Reference("full", spec.layers, expected), model)


def published_subject(spec: RunSpec, layers: int | None = None) -> Subject:
    """A published model, of which nothing but the reference is in the host's memory.

    Args:
        spec: The run.
        layers: Layers to compare in plain torch; by default as many as the host's memory allows.

    Raises:
        CheckpointError: its files are not there, damaged, or of another model.
    """
    folder = model_folder(spec.model)
    weights = PublishedWeights(spec, folder)
    prompt = run_prompt(spec, architecture_of(spec.model).config["vocab_size"], folder)
    if layers is None:
        # All hosts of a TPU slice must choose the same, because the first layers are a program over all of them.
        layers = reference_layers(spec, available_memory() if spec.device == "cpu" else installed_memory())
    expected = None
    if layers == spec.layers:
        expected = reference_logits(weights.on_host(spec), prompt.tokens, spec.output_length)
    kind: Kind = "full" if layers == spec.layers else "first_layers" if layers else "finite_logits"
    facts = model_facts(spec, skeleton(spec, folder))
    return Subject(spec, facts, prompt, Reference(kind, layers, expected), weights=weights)


def first_layers_subject(subject: Subject) -> Subject:
    """The first layers of a model as a run of its own, for the reference `first_layers`."""
    layers = subject.reference.layers
    steps = min(subject.spec.output_length, FIRST_LAYERS_STEPS)
    part = subject.spec.model_copy(update={"layers": layers, "output_length": steps})
    return published_subject(part, layers)


def reference_layers(spec: RunSpec, available: int) -> int:
    """How many layers plain torch can compute on the host: all, the fewest that show every kind of layer, or none.

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
