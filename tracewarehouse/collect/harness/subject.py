"""Prepares what a run records: its model, its prompt, and the reference for its result."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tracewarehouse.collect.checks.reference import computed_once, kept, reference_file, reference_logits, weight_files
from tracewarehouse.collect.errors import CollectError, ExperimentError
from tracewarehouse.collect.memory import USABLE, available_memory, installed_memory, reference_bytes
from tracewarehouse.collect.models.architectures import ARCHITECTURES, model_architecture, model_facts
from tracewarehouse.collect.models.checkpoint import model_folder
from tracewarehouse.collect.models.pretrained import CONFIG, known_models, pretrained_model
from tracewarehouse.collect.parallel.weights import PublishedWeights, ZeroWeights, skeleton
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.ingest.capture.manifest import ModelFacts

FIRST_LAYERS_STEPS = 4
"""Steps that a part of a model generates to be compared."""

Kind = Literal["full", "first_layers", "finite_logits"]

TOKENIZER = "tokenizer.json"
TEXT = (
    "A program for several chips spends part of its time computing and part of it waiting for numbers that another "
    "chip has. The profiler writes down both, and it is for the reader to find out which of the two was the longer."
)
"""The prompt of runs that give none; written for this purpose."""
FIRST_ORDINARY = 3
"""The first token id that is ordinary in the tiny models; those below are special."""


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
    return Subject(spec, model_facts(spec.model, model), prompt, reference, model)


def compute_reference(spec: RunSpec) -> Path:
    """Compute and keep the reference of a run, whatever its mesh and device; return the file that keeps it."""
    spec = spec.model_copy(update={"reference": "compute"})
    if not spec.is_published:
        return reference_file(spec, tiny_subject(spec).prompt.tokens, _tiny_weights(spec))
    folder = model_folder(spec.model)
    prompt = run_prompt(spec, model_architecture(spec.model).config["vocab_size"], folder)
    file = reference_file(spec, prompt.tokens, weight_files(folder))
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


def _expected(spec: RunSpec, prompt: Prompt, weights: list[Any], model: Callable[[], Any]) -> Any:
    """Return the logits of plain torch, computed or kept as the run allows; None if there are none."""
    if spec.reference_mode == "off":
        return None
    file = reference_file(spec, prompt.tokens, weights)
    if spec.reference_mode == "kept":
        return kept(file)
    return computed_once(file, lambda: reference_logits(model(), prompt.tokens, spec.output_length))


def published_subject(spec: RunSpec, layers: int | None = None) -> Subject:
    """Return a published model; only its reference is in the host's memory.

    `layers` are compared in plain torch; by default as many as the host's memory allows, if the run may compute the
    reference. A kept reference has all layers.
    """
    folder = model_folder(spec.model)
    weights = PublishedWeights(spec, folder)
    prompt = run_prompt(spec, model_architecture(spec.model).config["vocab_size"], folder)
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
    facts = model_facts(spec.model, skeleton(spec, folder))
    return Subject(spec, facts, prompt, Reference(kind, layers, expected), weights=weights)


def traced_subject(spec: RunSpec, folder: Path) -> Subject:
    """Return a model whose steps are traced, not run; a published one is made of zeros, without its files.

    `folder` gets the configuration of a model from the table; a model in a local folder has its own.
    """
    spec = spec.model_copy(update={"reference": "off", "prompt": None})
    if not spec.is_published:
        return tiny_subject(spec)
    config = model_architecture(spec.model).config
    if spec.model in known_models():
        longest = spec.input_length + spec.output_length
        values = {**config, "max_position_embeddings": longest}
        (folder / CONFIG).write_text(json.dumps(values), encoding="utf-8")
    else:
        folder = model_folder(spec.model)
    prompt = run_prompt(spec, config["vocab_size"])
    weights = ZeroWeights(spec, folder)
    facts = model_facts(spec.model, skeleton(spec, folder))
    return Subject(spec, facts, prompt, Reference("finite_logits"), weights=weights)


def first_layers_subject(subject: Subject) -> Subject:
    """Return the first layers of a model as a run of its own, for the reference `first_layers`."""
    layers = subject.reference.layers
    steps = min(subject.spec.output_length, FIRST_LAYERS_STEPS)
    part = subject.spec.model_copy(update={"layers": layers, "output_length": steps})
    return published_subject(part, layers)


def reference_layers(spec: RunSpec, available: int) -> int:
    """Return how many layers plain torch can compute here: all, the fewest with every kind of layer, or none."""
    model = pretrained_model(spec.model)
    dense, stages = model.first_dense_layers, spec.axis("pp")
    fewest = dense + max(1, stages - 1 if dense else stages)
    for layers in (spec.layers, min(fewest, spec.layers)):
        if reference_bytes(model, spec, layers) <= USABLE * available:
            return layers
    return 0


@dataclass(frozen=True)
class Prompt:
    """Prompt tokens and where they come from."""

    tokens: Any
    """[batch, input_length] of int64, on the host."""
    source: str
    """`text` (tokenised) or `random tokens`."""


def run_prompt(spec: RunSpec, vocabulary: int, folder: Path | None = None) -> Prompt:
    """Return the prompt of a run, by the tokenizer of a published model's folder if it has one.

    It is the same in every process with the same files.
    """
    import torch

    if folder is not None and (folder / TOKENIZER).is_file():
        rows = _tokenised(folder / TOKENIZER, spec.prompt or TEXT, spec.batch, spec.input_length)
        tokens = torch.tensor(rows)
        if int(tokens.max()) >= vocabulary:
            raise CollectError(
                f"{folder / TOKENIZER}: gives token {int(tokens.max())}, but the model has {vocabulary}; is it another "
                "model's?"
            )
        return Prompt(tokens, "text")
    if spec.prompt is not None:
        raise CollectError(f"{folder}: a prompt needs {TOKENIZER}, which is not there; add it or leave out the prompt")
    generator = torch.Generator().manual_seed(spec.seed + 1)
    shape = (spec.batch, spec.input_length)
    return Prompt(torch.randint(FIRST_ORDINARY, vocabulary, shape, generator=generator), "random tokens")


def _tokenised(file: Path, text: str, batch: int, length: int) -> list[list[int]]:
    """Return [batch][length]: the tokenizer's first tokens, then the text over and over, each row one token on."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more special
        raise CollectError(f"{file}: cannot be read as a tokenizer: {error}") from None
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if not ids:
        raise CollectError(f"{file}: gives no token for the prompt {text!r}")
    complete = tokenizer.encode(text).ids
    start = next((i for i in range(len(complete)) if complete[i : i + len(ids)] == ids), 0)
    return [[*complete[:start], *(ids[(row + i) % len(ids)] for i in range(length))][:length] for row in range(batch)]


def config_values(spec: RunSpec) -> dict[str, Any]:
    """Return the keyword arguments of the configuration."""
    return {
        **ARCHITECTURES[spec.model].config,
        "num_hidden_layers": spec.layers,
        "max_position_embeddings": max(256, spec.input_length + spec.output_length),
    }


def build_model(spec: RunSpec) -> Any:
    """Build a tiny transformers model on the host: weights from the seed, in the run's dtype, for inference."""
    import torch
    import transformers

    architecture = ARCHITECTURES[spec.model]
    config = getattr(transformers, architecture.config_class)(**config_values(spec))
    # Plain implementations: they are the reference. The device run switches to its own after the reference ran.
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    torch.manual_seed(spec.seed)
    model = getattr(transformers, architecture.model_class)(config).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model.to(getattr(torch, spec.dtype))
