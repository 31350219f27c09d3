"""Records one run with a backend: checked generations, and the manifest and card that every capture has."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from tracewarehouse.collect.capture import CARD, MANIFEST, staged_capture, write_manifest
from tracewarehouse.collect.checks.promises import busiest_load, expert_places, promised_collectives, routed_pairs
from tracewarehouse.collect.checks.reference import Expected, compare, require_finite
from tracewarehouse.collect.errors import CheckError
from tracewarehouse.collect.harness.backend import Backend, DeviceModel, Recording, Stack
from tracewarehouse.collect.harness.generation import (
    Generation,
    counted_on_host,
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
from tracewarehouse.collect.harness.workload_card import workload_card
from tracewarehouse.collect.parallel.attention_forms import attention_forms
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.quota import host_chip
from tracewarehouse.ingest.capture.card import dump_card
from tracewarehouse.ingest.capture.manifest import Manifest, Mesh, ModelFacts
from tracewarehouse.ingest.capture_names import host_name, xplane_files

PACKAGES = ("tracewarehouse", "numpy", "torch", "torch_xla", "torch_tpu", "jax", "jaxlib", "transformers", "libtpu")


def record(spec: RunSpec, output: Path, backend: Backend) -> Path:
    """Run one configuration and write its capture directory.

    Returns:
        The capture directory, `output/<name of the run>`; it is there whole or not at all.
    """
    backend.require()
    with staged_capture(output, spec.name) as staging:
        recording = backend.record(spec, staging)
        written = {host_name(f): f.stat().st_size for f in xplane_files(staging)}
        if not recording.hosts or any(not written.get(host) for host in recording.hosts):
            raise CheckError(
                f"{backend.name} recorded {', '.join(recording.hosts) or 'no host'}, but left the profiles "
                f"{', '.join(h for h, size in written.items() if size) or 'of none'}"
            )
        manifest = run_manifest(spec, backend.name, recording)
        if spec.has_model:
            card = workload_card(spec, recording, backend.name, manifest.versions, os.environ)
            dump_card(card, staging / CARD)
        write_manifest(staging, manifest)
    return output / spec.name


def write_promises(spec: RunSpec, model: ModelFacts | None, folder: Path) -> None:
    """Write the manifest of a run that is only compiled, with its promises; microbenchmarks have no model and none."""
    recording = Recording(None, [], [])
    if spec.has_model:
        promised = promised_collectives(spec)
        recording = Recording(model, [], [], checks=attention_forms(spec), promised_collectives=promised)
    text = run_manifest(spec, spec.backend, recording).model_dump_json(indent=2)
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def run_manifest(spec: RunSpec, backend: str, recording: Recording) -> Manifest:
    """Return the manifest that the collector writes beside the capture of a run."""
    extra: dict[str, Any] = {"spec": spec.model_dump(mode="json"), "spec_digest": spec.digest, "device": spec.device}
    return Manifest(
        name=spec.name,
        model=recording.model,
        backend=backend,
        dtype=spec.dtype,
        mesh=Mesh(axes=spec.mesh.axes, device_ids=spec.mesh.device_ids or list(range(spec.mesh.size))),
        hosts=recording.hosts,
        phases=recording.phases,
        promised_collectives=recording.promised_collectives,
        versions=versions(),
        checks=recording.checks,
        git_commit=git_commit(),
        **extra,
        **(_generation_facts(spec, recording) if spec.has_model else {}),
    )


def _generation_facts(spec: RunSpec, recording: Recording) -> dict[str, Any]:
    """Return what a manifest says of a run that generates tokens."""
    facts: dict[str, Any] = {
        "batch_size": spec.batch,
        "input_length": spec.input_length,
        "output_length": spec.output_length,
        "sequence_parallelism": spec.sequence_parallelism,
        "capacity_factor": spec.capacity_factor,
        "microbatches": spec.microbatch_count if spec.axis("pp") > 1 else None,
        "stages": list(spec.stage_layout.stages) if spec.axis("pp") > 1 else None,
        "seed": spec.seed,
        "weights": "published" if spec.is_published else "random",
        "prompt_source": recording.prompt_source,
    }
    if places := expert_places(spec):
        facts["expert_places"] = {phase: asdict(counts) for phase, counts in places.items()}
    if spec.routing_skew is not None:
        facts |= {"routing_skew": spec.routing_skew, "expected_busiest_load": busiest_load(spec)}
    return facts


def versions() -> dict[str, str]:
    """Return the version of Python and of each installed package."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git_commit(folder: Path | None = None) -> str | None:
    """Return the commit of this code's checkout, with `-dirty` if files were changed; None outside of a checkout."""
    folder = folder or Path(__file__).parents[1]
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return commit + ("-dirty" if _git(folder, "status", "--porcelain", "--", ".") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30)  # noqa: S603, S607
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def record_generation(spec: RunSpec, capture: Path, stack_for: Callable[[RunSpec], Stack]) -> Recording:
    """Run one configuration, with its profile in the capture directory.

    The run generates at least twice to warm up, then in turn with the profiler off and on; the last is the capture.
    `stack_for` takes the devices of a run, once the model and its reference are on the host.
    """
    subject = published_subject(spec) if spec.is_published else tiny_subject(spec)
    stack = stack_for(spec)
    checks = _first_layers_checks(subject, stack) if subject.reference.kind == "first_layers" else {}
    prepared = generations(stack, stack.model(subject), subject)
    warmups = warm_up(lambda: prepared()(), stack.total)
    timed = generate_timed(stack, prepared, capture, stack.wait_for_all)
    counted = counted_on_host(stack, timed.profiled)
    checks |= agreement(subject.reference, logits_on_host(stack, timed.profiled), counted, spec)
    checks |= timing_checks(warmups, timed)
    return finished(stack, subject, timed.profiled, [host_name(f) for f in timed.files], checks)


def generations(stack: Stack, model: DeviceModel, subject: Subject) -> Callable[[], Callable[[], Generation]]:
    """Return a function that prepares a generation and returns the function that runs it."""
    tokens, length = subject.prompt.tokens, subject.spec.output_length
    return lambda: partial(generate, stack, model, prepare(stack, model, tokens), length)


def agreement(reference: Reference, logits: Any, counted: Any, spec: RunSpec) -> dict[str, Any]:
    """Return the results of the checks of a generation; a weaker check has another name.

    `logits` are [batch, steps, vocabulary]. `counted` is [batch, steps], None without experts: the dropped pairs of
    token and expert; or as served, where none is dropped, the devices of ep to which tokens went.
    """
    checks: dict[str, Any] = {"reference": reference.kind, **attention_forms(spec)}
    dropped = counted if spec.capacity_factor is not None else None
    if counted is not None:
        checks |= {"routed_pairs": routed_pairs(spec)}
        checks["token_sends" if dropped is None else "dropped_pairs"] = int(counted.sum())
    if reference.expected is None:
        require_finite(logits)
        return checks
    return checks | _comparison(logits, reference.expected, spec, dropped)


def _comparison(logits: Any, expected: Expected, spec: RunSpec, dropped: Any) -> dict[str, Any]:
    """Return the results of comparing a generation with its reference; of tied steps only if there are some."""
    found = compare(logits, expected, spec.precision, spec.layers, dropped)
    checks: dict[str, Any] = {"tokens_equal": found.tokens_equal, "max_logit_error": found.max_logit_error}
    if dropped is not None or found.tied_steps:
        checks["comparable_share"] = found.comparable_share
    return checks | ({"tied_steps": found.tied_steps} if found.tied_steps else {})


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
    """Compare the first layers of a model on the devices with the reference, then remove them from the devices."""
    part = first_layers_subject(subject)
    generation = generations(stack, stack.model(part), part)()()
    dropped = counted_on_host(stack, generation) if part.spec.capacity_factor is not None else None
    logits, expected = logits_on_host(stack, generation), cast("Expected", part.reference.expected)
    found = _comparison(logits, expected, part.spec, dropped)
    return {"first_layers": part.spec.layers} | {f"first_layers_{name}": value for name, value in found.items()}
