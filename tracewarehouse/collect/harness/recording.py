"""Records one run with a backend, and writes what every capture has, whatever stack ran the model."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tracewarehouse.collect.capture import CARD, MANIFEST, staged_capture, write_manifest
from tracewarehouse.collect.checks.promises import expert_places, promised_collectives
from tracewarehouse.collect.errors import CheckError
from tracewarehouse.collect.harness.backend import Backend, Recording
from tracewarehouse.collect.harness.workload_card import workload_card
from tracewarehouse.collect.parallel.attention_forms import attention_forms
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.ingest.capture.card import dump_card
from tracewarehouse.ingest.capture.manifest import Manifest, Mesh, ModelFacts
from tracewarehouse.ingest.capture_names import host_name, xplane_files


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
        card = workload_card(spec, recording, backend.name, manifest.versions, os.environ)
        dump_card(card, staging / CARD)
        write_manifest(staging, manifest)
    return output / spec.name


def write_promises(spec: RunSpec, model: ModelFacts, folder: Path) -> None:
    """Write the manifest of a run that is only compiled, with its promises."""
    promised = promised_collectives(spec)
    recording = Recording(model, [], [], checks=attention_forms(spec), promised_collectives=promised)
    text = run_manifest(spec, spec.backend, recording).model_dump_json(indent=2)
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def run_manifest(spec: RunSpec, backend: str, recording: Recording) -> Manifest:
    """Return the manifest that the collector writes beside the capture of a run."""
    extra: dict[str, Any] = {
        "spec": spec.model_dump(mode="json"),
        "spec_digest": spec.digest,
        "device": spec.device,
        "weights": "published" if spec.is_published else "random",
        "prompt_source": recording.prompt_source,
    }
    if spec.capacity_factor is not None:
        extra["capacity_factor"] = spec.capacity_factor
        extra["expert_places"] = {phase: asdict(places) for phase, places in expert_places(spec).items()}
    return Manifest(
        name=spec.name,
        model=recording.model,
        backend=backend,
        dtype=spec.dtype,
        batch_size=spec.batch,
        input_length=spec.input_length,
        output_length=spec.output_length,
        mesh=Mesh(axes=spec.mesh.axes, device_ids=spec.mesh.device_ids or list(range(spec.mesh.size))),
        sequence_parallelism=spec.sequence_parallelism,
        microbatches=spec.microbatch_count if spec.axis("pp") > 1 else None,
        stages=list(spec.stage_layout.stages) if spec.axis("pp") > 1 else None,
        hosts=recording.hosts,
        phases=recording.phases,
        promised_collectives=recording.promised_collectives,
        versions=versions(),
        seed=spec.seed,
        checks=recording.checks,
        git_commit=git_commit(),
        **extra,
    )


PACKAGES = ("tracewarehouse", "torch", "torch_xla", "jax", "jaxlib", "transformers", "libtpu")


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
