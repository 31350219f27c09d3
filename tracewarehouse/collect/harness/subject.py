"""Prepares what a run records: its model, its prompt, and the reference for its result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tracewarehouse.collect.checks.plain_model import PlainModel
from tracewarehouse.collect.checks.reference import Expected, computed_once, kept, reference_file, weight_files
from tracewarehouse.collect.errors import CollectError, ExperimentError, require_packages
from tracewarehouse.collect.memory import USABLE, available_memory, installed_memory, reference_bytes
from tracewarehouse.collect.models.architectures import model_facts, tiny_model
from tracewarehouse.collect.models.checkpoint import model_folder
from tracewarehouse.collect.models.form import ModelForm, model_form
from tracewarehouse.collect.models.pretrained import PretrainedModel, pretrained_model
from tracewarehouse.collect.parallel.weights import ModelWeights, PublishedWeights, RandomWeights, ZeroWeights
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

    `full`: the same generation by the unsplit model in numpy. `first_layers`: the whole model does not fit into the
    host; its first layers generate on the devices and in numpy, and the whole must give finite logits. `finite_logits`:
    not even the first layers fit, or the run may not compute a reference and none is kept; finite logits are all that
    is required.
    """

    kind: Kind
    layers: int = 0
    """Layers that are compared."""
    expected: Expected | None = None
    """What the unsplit model generates with these layers."""


@dataclass(frozen=True)
class Subject:
    """A model before it is on the devices, with the prompt of its run."""

    spec: RunSpec
    facts: ModelFacts
    prompt: Prompt
    reference: Reference
    weights: ModelWeights
    form: ModelForm


def tiny_subject(spec: RunSpec) -> Subject:
    """Return a tiny model with random weights, and the generation that it must agree with."""
    model = tiny_model(spec.model, spec.layers)
    weights = RandomWeights(model, spec.layers, spec.seed)
    prompt = run_prompt(spec, model.config["vocab_size"])
    expected = _expected(spec, prompt, _tiny_weights(spec), weights)
    reference = Reference("finite_logits") if expected is None else Reference("full", spec.layers, expected)
    return _subject(spec, model, prompt, reference, weights)


def _subject(
    spec: RunSpec, model: PretrainedModel, prompt: Prompt, reference: Reference, weights: ModelWeights
) -> Subject:
    facts = model_facts(spec.model, model, spec.layers)
    return Subject(spec, facts, prompt, reference, weights, model_form(model, spec.layers))


def compute_reference(spec: RunSpec) -> Path:
    """Compute the reference of a run on this host, unless it is kept already; return its file.

    All runs of the model with the same prompt, lengths and dtype share it.
    """
    if spec.dtype == "bfloat16":
        require_packages(("ml_dtypes",), "computing a reference", "jax")
    spec = spec.model_copy(update={"reference": "compute"})
    if not spec.is_published:
        return reference_file(spec, tiny_subject(spec).prompt.tokens, _tiny_weights(spec))
    folder = model_folder(spec.model)
    prompt = run_prompt(spec, pretrained_model(spec.model).config["vocab_size"], folder)
    file = reference_file(spec, prompt.tokens, weight_files(folder))
    need, available = reference_bytes(pretrained_model(spec.model), spec, spec.layers), available_memory()
    if kept(file) is None and need > USABLE * available:
        raise ExperimentError(
            f"{spec.name}: its reference needs {need / 1e9:.1f} GB, and this host can give {available / 1e9:.1f} GB; "
            "compute it on a larger one"
        )
    _expected(spec, prompt, weight_files(folder), PublishedWeights(spec, folder))
    return file


def _tiny_weights(spec: RunSpec) -> list[Any]:
    return [tiny_model(spec.model, spec.layers).config, spec.seed]


def _expected(spec: RunSpec, prompt: Prompt, identity: list[Any], weights: ModelWeights) -> Expected | None:
    """Return what the unsplit model generates, computed or kept as the run allows; None if that is not known."""
    if spec.reference_mode == "off":
        return None
    file = reference_file(spec, prompt.tokens, identity)
    if spec.reference_mode == "kept":
        return kept(file)
    return computed_once(file, lambda: reference_generation(spec, weights, prompt.tokens))


def reference_generation(spec: RunSpec, weights: ModelWeights, tokens: Any) -> Expected:
    """Generate greedily with the unsplit model after a prompt, [batch, length]."""
    values = {name: weights.whole(name, spec.dtype) for name in weights.names()}
    weights.close()
    logits, others = PlainModel(model_form(weights.model, spec.layers), values).generate(tokens, spec.output_length)
    return Expected(logits, np.abs(others - logits).max(-1))


def published_subject(spec: RunSpec, layers: int | None = None) -> Subject:
    """Return a published model; only its reference is in the host's memory.

    `layers` are compared with the unsplit model; by default as many as the host's memory allows, if the run may compute
    the reference. A kept reference has all layers.
    """
    folder = model_folder(spec.model)
    weights = PublishedWeights(spec, folder)
    prompt = run_prompt(spec, weights.model.config["vocab_size"], folder)
    if spec.reference_mode != "compute":
        layers = spec.layers
    elif layers is None:
        # All hosts of a TPU slice must choose the same, because the first layers are a program over all of them.
        layers = reference_layers(spec, available_memory() if spec.device == "cpu" else installed_memory())
    expected = None
    if layers == spec.layers:
        expected = _expected(spec, prompt, weight_files(folder), weights)
        layers = layers if expected is not None else 0
    kind: Kind = "full" if expected is not None else "first_layers" if layers else "finite_logits"
    return _subject(spec, weights.model, prompt, Reference(kind, layers, expected), weights)


def traced_subject(spec: RunSpec) -> Subject:
    """Return a model whose steps are traced, not run; a published one is made of zeros, without its files."""
    spec = spec.model_copy(update={"reference": "off", "prompt": None})
    if not spec.is_published:
        return tiny_subject(spec)
    model = pretrained_model(spec.model)
    prompt = run_prompt(spec, model.config["vocab_size"])
    return _subject(spec, model, prompt, Reference("finite_logits"), ZeroWeights(model, spec.layers))


def first_layers_subject(subject: Subject) -> Subject:
    """Return the first layers of a model as a run of its own, for the reference `first_layers`."""
    layers = subject.reference.layers
    steps = min(subject.spec.output_length, FIRST_LAYERS_STEPS)
    part = subject.spec.model_copy(update={"layers": layers, "output_length": steps})
    return published_subject(part, layers)


def reference_layers(spec: RunSpec, available: int) -> int:
    """Return how many layers the host can compute here: all, the fewest with every kind of layer, or none."""
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
    """[batch, input_length] of int32, on the host."""
    source: str
    """`text` (tokenised) or `random tokens`."""


def run_prompt(spec: RunSpec, vocabulary: int, folder: Path | None = None) -> Prompt:
    """Return the prompt of a run, by the tokenizer of a published model's folder if it has one.

    It is the same in every process with the same files.
    """
    if folder is not None and (folder / TOKENIZER).is_file():
        rows = _tokenised(folder / TOKENIZER, spec.prompt or TEXT, spec.batch, spec.input_length)
        tokens = np.array(rows, np.int32)
        if int(tokens.max()) >= vocabulary:
            raise CollectError(
                f"{folder / TOKENIZER}: gives token {int(tokens.max())}, but the model has {vocabulary}; is it another "
                "model's?"
            )
        return Prompt(tokens, "text")
    if spec.prompt is not None:
        raise CollectError(f"{folder}: a prompt needs {TOKENIZER}, which is not there; add it or leave out the prompt")
    shape = (spec.batch, spec.input_length)
    tokens = np.random.default_rng(spec.seed + 1).integers(FIRST_ORDINARY, vocabulary, shape, np.int32)
    return Prompt(tokens, "random tokens")


def _tokenised(file: Path, text: str, batch: int, length: int) -> list[list[int]]:
    """Return [batch][length]: the tokenizer's first tokens, then the text over and over, each row one token on."""
    require_packages(("tokenizers",), "a prompt for a model with a tokenizer", "jax")
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
