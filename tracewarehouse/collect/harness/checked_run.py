"""Runs a model on the devices of a stack, records the last generation and checks what it computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tracewarehouse.collect.checks.promises import promised_collectives, routed_pairs
from tracewarehouse.collect.checks.reference import compare, require_finite
from tracewarehouse.collect.harness.backend import DeviceModel, Recording, Stack
from tracewarehouse.collect.harness.generation import (
    Generation,
    dropped_on_host,
    generate,
    generate_timed,
    logits_on_host,
    prepare,
    timing_checks,
    warm_up,
)
from tracewarehouse.collect.harness.subject import (
    Reference,
    Subject,
    first_layers_subject,
    published_subject,
    tiny_subject,
)
from tracewarehouse.collect.parallel.attention_forms import attention_forms
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.quota import host_chip
from tracewarehouse.ingest.capture_names import host_name


def record_generation(spec: RunSpec, capture: Path, stack_for: Callable[[RunSpec], Stack]) -> Recording:
    """Run one configuration, with its profile in the capture directory.

    The run generates at least twice to warm up, then in turn with the profiler off and on; the last is the capture.
    `stack_for` takes the devices of a run, once the model and its reference are on the host.
    """
    subject = published_subject(spec) if spec.is_published else tiny_subject(spec)
    stack = stack_for(spec)
    checks = _first_layers_checks(subject, stack) if subject.reference.kind == "first_layers" else {}
    prepared = generations(stack, stack.model(subject), subject)
    warmups = warm_up(lambda: prepared()())
    timed = generate_timed(stack, prepared, capture)
    dropped = dropped_on_host(stack, timed.profiled)
    checks |= agreement(subject.reference, logits_on_host(stack, timed.profiled), dropped, spec)
    checks |= timing_checks(warmups, timed)
    return finished(stack, subject, timed.profiled, [host_name(f) for f in timed.files], checks)


def generations(stack: Stack, model: DeviceModel, subject: Subject) -> Callable[[], Callable[[], Generation]]:
    """Return a function that prepares a generation and returns the function that runs it."""
    tokens, length = subject.prompt.tokens, subject.spec.output_length
    return lambda: partial(generate, stack, model, prepare(stack, model, tokens), length)


def agreement(reference: Reference, logits: Any, dropped: Any, spec: RunSpec) -> dict[str, Any]:
    """Return the results of the checks of a generation; a weaker check has another name.

    `logits` are [batch, steps, vocabulary], `dropped` pairs of token and expert [batch, steps], None without experts.
    """
    checks: dict[str, Any] = {"reference": reference.kind, **attention_forms(spec)}
    if dropped is not None:
        checks |= {"dropped_pairs": int(dropped.sum()), "routed_pairs": routed_pairs(spec)}
    if reference.kind != "full":
        require_finite(logits)
        return checks
    comparison = compare(logits, reference.expected, spec.precision, dropped)
    if dropped is not None:
        checks["comparable_share"] = comparison.comparable_share
    return checks | {"tokens_equal": comparison.tokens_equal, "max_logit_error": comparison.max_logit_error}


def finished(
    stack: Stack, subject: Subject, generation: Generation, hosts: list[str], checks: dict[str, Any]
) -> Recording:
    """Return the recording of a finished run."""
    return Recording(
        model=subject.facts,
        phases=generation.marks,
        hosts=hosts,
        prompt_source=subject.prompt.source,
        checks=checks,
        promised_collectives=promised_collectives(subject.spec),
        chip=host_chip() if subject.spec.device == "tpu" else None,
        devices_per_host=stack.devices_per_host,
    )


def _first_layers_checks(subject: Subject, stack: Stack) -> dict[str, Any]:
    """Compare the first layers of a model on the devices with plain torch, then remove them from the devices."""
    part = first_layers_subject(subject)
    generation = generations(stack, stack.model(part), part)()()
    dropped = dropped_on_host(stack, generation)
    comparison = compare(logits_on_host(stack, generation), part.reference.expected, part.spec.precision, dropped)
    comparable = {} if dropped is None else {"first_layers_comparable_share": comparison.comparable_share}
    return comparable | {
        "first_layers": part.spec.layers,
        "first_layers_tokens_equal": comparison.tokens_equal,
        "first_layers_max_logit_error": comparison.max_logit_error,
    }
