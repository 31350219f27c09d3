"""The seam to the machine learning stack: what runs a model and records it, and what every capture gets from there.

torch_xla is one such stack (collect.harness). Another, such as torch_tpu or JAX, is one more class of the shape of
`Backend`, in a module of its own, here or in any package: a run names it as `module:Class`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from collect.capture import staged_capture, write_facts
from collect.errors import CheckError, CollectError
from collect.provenance import git_commit, versions
from collect.workload_card import workload_card
from ingest.manifest import Manifest, Mesh, ModelFacts, PhaseMark, PromisedCollective

if TYPE_CHECKING:
    from collect.run_spec import RunSpec

BACKENDS = {"torch_xla": "collect.harness:TorchXlaBackend"}
"""Name to class of the backends that come with the package."""


@dataclass(frozen=True)
class Recording:
    """What a backend knows of a run that it recorded."""

    model: ModelFacts
    phases: list[PhaseMark]
    """Every step of the recorded generation by the host's clock."""
    hosts: list[str]
    """Stems of the profiles, one per host: `plugins/profile/<any folder>/<stem>.xplane.pb` in the capture."""
    prompt_source: str = "random tokens"
    checks: dict[str, Any] = field(default_factory=dict)
    """What the run proved and measured, by name."""
    promised_collectives: list[PromisedCollective] | None = None
    """What ingest must find in the capture; None promises nothing."""
    chip: str | None = None
    """Kind of the accelerator as in the table of hardware, such as `TPU v6e`; None for virtual devices."""
    devices_per_host: int | None = None
    """None where not known."""


class Backend(Protocol):
    """A machine learning stack with its profiler."""

    name: str
    """As in the manifest, and as its package is called where the manifest lists versions."""

    def require(self) -> None:
        """Make sure that the stack is installed, without importing it.

        Raises:
            MissingDependencyError: it is not; the message says what to install.
        """

    def environment(self, spec: RunSpec) -> Mapping[str, str]:
        """Variables that must be set before the stack is imported; a run has a process of its own."""

    def record(self, spec: RunSpec, capture: Path) -> Recording:
        """Run one configuration and leave its profiles in the capture directory.

        Raises:
            CollectError: it cannot be run, or what it computed is wrong; nothing of the capture is kept.
        """


def find_backend(name: str) -> Backend:
    """The backend of this name, or the class that `module:Class` names.

    Raises:
        CollectError: there is none.
    """
    module, _, attribute = BACKENDS.get(name, name).partition(":")
    try:
        return cast(Backend, getattr(import_module(module), attribute)())
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise CollectError(
            f"backend {name!r} cannot be used: {error}; known are {', '.join(BACKENDS)}, and any module:Class that "
            "Python finds"
        ) from None


def record(spec: RunSpec, output: Path, backend: Backend) -> Path:
    """Run one configuration and write its capture directory.

    Returns:
        The capture directory, `output/<name of the run>`; it is there whole or not at all.

    Raises:
        MissingDependencyError: the backend's stack is not installed.
        CheckError: the backend left no profile of some host, or an empty one.
        CollectError: as of the backend's `record`.
    """
    backend.require()
    with staged_capture(output, spec.name) as staging:
        recording = backend.record(spec, staging)
        written = {f.name.removesuffix(".xplane.pb"): f.stat().st_size for f in staging.rglob("*.xplane.pb")}
        if not recording.hosts or any(not written.get(host) for host in recording.hosts):
            raise CheckError(
                f"{backend.name} recorded {', '.join(recording.hosts) or 'no host'}, but left the profiles "
                f"{', '.join(h for h, size in written.items() if size) or 'of none'}"
            )
        manifest = _manifest(spec, backend.name, recording)
        card = workload_card(spec, recording, backend.name, manifest.versions)
        write_facts(staging, card, manifest)
    return output / spec.name


def _manifest(spec: RunSpec, backend: str, recording: Recording) -> Manifest:
    extra: dict[str, Any] = {
        "spec": spec.model_dump(mode="json"),
        "spec_digest": spec.digest,
        "device": spec.device,
        "weights": "published" if spec.is_published else "random",
        "prompt_source": recording.prompt_source,
    }
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
