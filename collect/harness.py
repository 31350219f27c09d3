"""The torch_xla backend, and the process of one run: `python -m tracewarehouse.collect.harness SPEC OUTPUT`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracewarehouse.collect.backend import Recording, find_backend
from tracewarehouse.collect.errors import CheckError, CollectError, require_torch_xla
from tracewarehouse.collect.parallel.attention import prefill_form
from tracewarehouse.collect.processes import end_with_parent
from tracewarehouse.collect.promises import promised_collectives, routed_pairs
from tracewarehouse.collect.recording import record
from tracewarehouse.collect.reference import compare, require_finite
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.subject import (
    Reference,
    Subject,
    first_layers_subject,
    published_subject,
    tiny_subject,
    traced_subject,
)
from tracewarehouse.collect.timing import generate_timed, timing_checks, warm_up
from tracewarehouse.collect.tpu.host import host_chip
from tracewarehouse.ingest.capture_names import host_name, xplane_files

if TYPE_CHECKING:
    from tracewarehouse.collect.parallel.device_mesh import DeviceMesh
    from tracewarehouse.collect.parallel.generation import DeviceModel, Generation
    from tracewarehouse.collect.parallel.replay import TraceableModel


def environment(spec: RunSpec) -> dict[str, str]:
    """Variables that torch_xla reads once, when it is imported.

    XLA_HLO_DEBUG puts the scopes of layers and parts into the op_name of every instruction.
    """
    common = {"PJRT_DEVICE": spec.device.upper(), "XLA_HLO_DEBUG": "1"}
    return common | (_cpu_environment(spec) if spec.device == "cpu" else {})


def _cpu_environment(spec: RunSpec) -> dict[str, str]:
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if spec.hosts > 1 and sys.platform == "linux" else {}
    return {"CPU_NUM_DEVICES": str(spec.mesh.size // spec.hosts)} | loopback


def generate_and_record(spec: RunSpec, capture: Path) -> Recording:
    """Run one configuration, with its profile in the capture directory.

    The run generates at least twice to warm up, then in turn with the profiler off and on; the last is the capture.

    Raises:
        CheckError: the devices are not those of the mesh, the model computes something else than in plain torch, or a
            program was compiled inside the capture.
    """
    from tracewarehouse.collect.parallel.generation import dropped_on_host, logits_on_host

    subject = published_subject(spec) if spec.is_published else tiny_subject(spec)
    mesh = _mesh(spec)
    checks = _first_layers_checks(subject, mesh) if subject.reference.kind == "first_layers" else {}
    prepare = _generations(spec, _on_devices(subject, mesh), mesh, subject.prompt.tokens)
    warmups = warm_up(lambda: prepare()())
    timed = generate_timed(prepare, capture)
    dropped = dropped_on_host(timed.profiled)
    checks |= _agreement(subject.reference, logits_on_host(timed.profiled), dropped, spec)
    checks |= timing_checks(warmups, timed)
    return _recording(subject, timed.profiled, [host_name(f) for f in timed.files], checks)


def trace_steps(spec: RunSpec, folder: Path) -> Recording:
    """Trace and compile the steps of a run without running them, and without the files of a published model.

    Args:
        spec: The run.
        folder: Gets the configuration of a published model.

    Raises:
        CheckError: the devices are not those of the mesh.
    """
    subject = traced_subject(spec, folder)
    _on_devices(subject, _mesh(spec)).begin()
    return Recording(subject.facts, [], [], promised_collectives=promised_collectives(spec))


def record_stage(spec: RunSpec, stage: int, shared: Path, staging: Path | None) -> Recording | None:
    """Run one stage of a pipeline over hosts; the first has the profiles of all, the others give nothing.

    Args:
        spec: The whole run.
        stage: Number of the stage.
        shared: Folder that the processes of all stages share.
        staging: The capture directory of the first stage, None for the others.

    Raises:
        CheckError: as of `generate_and_record`.
    """
    from tracewarehouse.collect import stage_hosts
    from tracewarehouse.collect.parallel.generation import dropped_on_host, logits_on_host

    subject = tiny_subject(spec)
    stage_hosts.join(shared, stage, spec.hosts)
    own = stage_hosts.stage_spec(spec, stage)
    mesh = _mesh(own)
    prepare = _generations(own, stage_hosts.StageModel(spec, subject.model, mesh, stage), mesh, subject.prompt.tokens)
    warmups = warm_up(lambda: prepare()(), stage_hosts.total)
    logdir = shared / f"stage{stage}"
    logdir.mkdir()
    timed = generate_timed(prepare, logdir, stage_hosts.wait_for_all)
    import torch

    logits = stage_hosts.from_last_stage(logits_on_host(timed.profiled))
    dropped = None
    if own.capacity_factor is not None:
        of_stage = dropped_on_host(timed.profiled)
        nothing = torch.zeros(spec.batch, spec.output_length, dtype=torch.int64)
        dropped = stage_hosts.total_of(nothing if of_stage is None else of_stage.long())
    stage_hosts.wait_for_all()  # All captures are written.
    if staging is None:
        return None
    agreement = _agreement(subject.reference, logits, dropped, spec)
    captures = [f for s in range(spec.hosts) for f in xplane_files(shared / f"stage{s}")]
    names = stage_hosts.gather_captures(captures, staging)
    return _recording(subject, timed.profiled, names, agreement | timing_checks(warmups, timed))


def _mesh(spec: RunSpec) -> DeviceMesh:
    import torch_xla.runtime as xr

    from tracewarehouse.collect.parallel.device_mesh import DeviceMesh

    xr.use_spmd()
    count = xr.global_runtime_device_count()
    if count != spec.mesh.size:
        raise CheckError(f"the mesh {spec.mesh} needs {spec.mesh.size} devices, the {spec.device} backend has {count}")
    return DeviceMesh(spec)


def _on_devices(subject: Subject, mesh: DeviceMesh) -> DeviceModel:
    from tracewarehouse.collect.parallel.replay import ReplayedModel

    return ReplayedModel(subject.spec, _traceable(subject, mesh))


def _traceable(subject: Subject, mesh: DeviceMesh) -> TraceableModel:
    spec, model = subject.spec, subject.on_devices(mesh)
    if spec.axis("pp") > 1:
        from tracewarehouse.collect.parallel.pipelined_model import PipelinedModel

        return PipelinedModel(spec, model, mesh, subject.weights)
    from tracewarehouse.collect.parallel.sharded_model import ShardedModel

    return ShardedModel(spec, model, mesh)


def _generations(
    spec: RunSpec, model: DeviceModel, mesh: DeviceMesh, prompt_tokens: Any
) -> Callable[[], Callable[[], Generation]]:
    """What prepares a generation, and gives what runs it."""
    from tracewarehouse.collect.parallel.generation import generate, prepare

    def prepared() -> Callable[[], Generation]:
        return partial(generate, model, prepare(model, mesh, prompt_tokens), spec.output_length)

    return prepared


def _agreement(reference: Reference, logits: Any, dropped: Any, spec: RunSpec) -> dict[str, Any]:
    """What a generation proves; a weaker check says so by its name.

    Args:
        reference: What to compare with.
        logits: [batch, steps, vocabulary].
        dropped: Pairs of token and expert, [batch, steps]; None without experts.
        spec: The run.
    """
    checks: dict[str, Any] = {"reference": reference.kind, "prefill_attention": prefill_form(spec)}
    if dropped is not None:
        checks |= {"dropped_pairs": int(dropped.sum()), "routed_pairs": routed_pairs(spec)}
    if reference.kind != "full":
        require_finite(logits)
        return checks
    agreement = compare(logits, reference.expected, spec.precision, dropped)
    if dropped is not None:
        checks["comparable_share"] = agreement.comparable_share
    return checks | {"tokens_equal": agreement.tokens_equal, "max_logit_error": agreement.max_logit_error}


def _first_layers_checks(subject: Subject, mesh: DeviceMesh) -> dict[str, Any]:
    """Compare the first layers of a model, on the devices, with plain torch; they are gone from there afterwards."""
    from tracewarehouse.collect.parallel.generation import dropped_on_host, logits_on_host

    part = first_layers_subject(subject)
    generation = _generations(part.spec, _on_devices(part, mesh), mesh, part.prompt.tokens)()()
    dropped = dropped_on_host(generation)
    agreement = compare(logits_on_host(generation), part.reference.expected, part.spec.precision, dropped)
    comparable = {} if dropped is None else {"first_layers_comparable_share": agreement.comparable_share}
    return comparable | {
        "first_layers": part.spec.layers,
        "first_layers_tokens_equal": agreement.tokens_equal,
        "first_layers_max_logit_error": agreement.max_logit_error,
    }


def _recording(subject: Subject, generation: Generation, hosts: list[str], checks: dict[str, Any]) -> Recording:
    import torch_xla.runtime as xr

    return Recording(
        model=subject.facts,
        phases=generation.marks,
        hosts=hosts,
        prompt_source=subject.prompt.source,
        checks=checks,
        promised_collectives=promised_collectives(subject.spec),
        chip=host_chip() if subject.spec.device == "tpu" else None,
        devices_per_host=xr.addressable_runtime_device_count(),
    )


class TorchXlaBackend:
    """torch_xla, as one SPMD program per host."""

    name = "torch_xla"

    def require(self) -> None:
        """Make sure that torch, torch_xla and transformers are installed."""
        require_torch_xla()

    def environment(self, spec: RunSpec) -> dict[str, str]:
        """Variables that torch_xla reads once, when it is imported."""
        return environment(spec)

    def record(self, spec: RunSpec, capture: Path) -> Recording:
        """Run one configuration; the stages of a pipeline over hosts have a process each."""
        if spec.hosts == 1:
            return generate_and_record(spec, capture)
        from tracewarehouse.collect.stage_hosts import other_stages

        with other_stages(spec, capture) as shared_folder:
            recording = record_stage(spec, 0, shared_folder, capture)
        assert recording is not None  # noqa: S101
        return recording


def main(arguments: list[str]) -> int:
    """Entry of the process; prints one line that starts with `error:` when the run fails."""
    specification, output, *of_stage = arguments
    end_with_parent()
    spec = RunSpec.model_validate_json(specification)
    try:
        backend = find_backend(spec.backend)
        os.environ.update(backend.environment(spec))
        if of_stage:
            stage, shared = of_stage
            record_stage(spec, int(stage), Path(shared), None)
        else:
            record(spec, Path(output), backend)
    except CollectError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
