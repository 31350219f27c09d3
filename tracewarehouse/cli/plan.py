"""`tw plan`: predict what a model's steps would do on a TPU slice, before there is one."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracewarehouse.cli.collect import (
    BackendOption,
    BatchOption,
    CapacityFactorOption,
    InputLengthOption,
    LayersOption,
    MicrobatchesOption,
    OutputLengthOption,
    SequenceParallelismOption,
)
from tracewarehouse.cli.options import complete_runs
from tracewarehouse.cli.output import say_note, status

if TYPE_CHECKING:
    from tracewarehouse.collect.ahead_of_time import CompiledStep
    from tracewarehouse.collect.memory import MemoryNeed
    from tracewarehouse.collect.run_spec import RunSpec
    from tracewarehouse.warehouse import Warehouse


def plan(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(help="A model, as in `tw collect --model`.", show_default=False)
    ] = None,
    mesh: Annotated[str | None, typer.Option(help="Device mesh, outermost axis first, such as dp=2,tp=4.")] = None,
    topology: Annotated[
        str | None,
        typer.Option(help="The slice as libtpu names it: v6e:2x4, v4:2x2x1, tpu7x:2x2x1 (two devices a chip)."),
    ] = None,
    sequence_parallelism: SequenceParallelismOption = None,
    microbatches: MicrobatchesOption = None,
    batch: BatchOption = None,
    input_length: InputLengthOption = None,
    output_length: OutputLengthOption = None,
    layers: LayersOption = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "bfloat16",
    capacity_factor: CapacityFactorOption = None,
    backend: BackendOption = None,
    python: Annotated[str, typer.Option(help="Python that has jax and libtpu.")] = sys.executable,
    calibrate: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Plan nothing: replace the rates of predictions by what the ops of this recorded run took.",
            autocompletion=complete_runs,
        ),
    ] = None,
) -> None:
    """Compile a model's prefill and decode for a TPU slice that need not exist, and ingest both as runs without times.

    Prints for each phase: run id, the memory per device that the compiler plans, and whether the whole model fits, also
    where --layers compiles a part of it; then the collectives of a step and their traffic, by kind and mesh axis. The
    backend is jax by default, which needs the extra `jax` in the interpreter of --python; torch_xla needs the extra
    `collect` here, and `jax` in that interpreter.

    With --calibrate it prints each rate that changed, before and after, and keeps them in calibrations.csv in the
    warehouse. Delete rows of that file, or the file, to return to the rates that ship.
    """
    if calibrate is not None:
        if model is not None:
            raise typer.BadParameter("--calibrate takes a recorded run and no model")
        _calibrate(context, calibrate)
        return
    if model is None or mesh is None or topology is None:
        raise typer.BadParameter("expected a model, --mesh and --topology, or --calibrate RUN")
    from tracewarehouse.collect.ahead_of_time import compile_ahead
    from tracewarehouse.collect.experiment import run_spec

    spec = run_spec(
        model=model,
        mesh=mesh,
        sequence_parallelism=sequence_parallelism,
        microbatches=microbatches,
        batch=batch,
        input_length=input_length,
        output_length=output_length,
        layers=layers,
        dtype=dtype,
        capacity_factor=capacity_factor,
        backend=backend or "jax",
    )
    with context.obj.open(create=True) as warehouse, tempfile.TemporaryDirectory(prefix="tw-plan-") as folder:
        with status() as update:
            update(f"compiling {spec.name} for {topology}")
            steps = compile_ahead(spec, topology, Path(folder) / "compiled", python)
        for step in steps:
            _print_step(warehouse, spec, topology, step)


def _calibrate(context: typer.Context, reference: str) -> None:
    from tracewarehouse.comparison.calibration import calibrate

    with context.obj.open() as warehouse:
        done = calibrate(warehouse, reference)
    for before, after in done.changes:
        typer.echo(
            f"{after.chip}\t{after.class_} {after.what}\t{before.value:.4g} ({before.low:.4g} to {before.high:.4g})\t"
            f"{after.value:.4g} ({after.low:.4g} to {after.high:.4g})\t{after.n} ops"
        )
    say_note(f"written to {done.path}, from what was predicted in {', '.join(done.predicted)}")
    if done.kept:
        say_note(f"no rate follows from {'; '.join(done.kept)}")


def _print_step(warehouse: Warehouse, spec: RunSpec, topology: str, step: CompiledStep) -> None:
    from tracewarehouse.queries.read_only import literal

    name = f"{spec.name}-{topology.replace(':', '-')}.{step.phase}"
    [result] = warehouse.ingest(step.file, name=name)
    memory = ", ".join(f"{what} {_gigabytes(size)}" for what, size in step.memory.items())
    typer.echo(
        f"{result.run_id}\t{name}\t{_gigabytes(step.bytes_per_device)} GB per device ({memory}): {_verdict(spec, step)}"
    )
    if spec.is_published:
        typer.echo(f"  estimate of the collector: {_need(spec)} per device")
    rows = warehouse.query(
        "SELECT kind, axis, executions_per_step, message_bytes_per_step, wire_bytes_per_device "  # noqa: S608
        "FROM metrics.collective_count JOIN metrics.traffic_volume USING (run_id, phase, kind, axis) "
        f"WHERE run_id = {literal(result.run_id)} ORDER BY kind, axis"
    )
    for kind, axis, count, message, wire in rows.rows():
        sent = "unknown" if wire is None else f"{wire:.0f}"
        typer.echo(f"  {kind}\t{axis}\t{count:g} per step\t{message:.0f} message bytes\t{sent} bytes sent per chip")


def _verdict(spec: RunSpec, step: CompiledStep) -> str:
    """Say whether the whole model fits: what was compiled, and the collector's estimate of the layers that were not."""
    from tracewarehouse.collect.models.architectures import model_architecture

    layers = model_architecture(spec.model).config["num_hidden_layers"] if spec.is_published else spec.layers
    size, needs = step.bytes_per_device, ""
    if layers != spec.layers:
        size += _need(spec.model_copy(update={"layers": layers})).total - _need(spec).total
        needs = f"{spec.layers} of {layers} layers; the whole model needs {_gigabytes(size)} GB and "
    return f"{needs}{'fits' if step.fits(size) else 'does not fit'} a device of {step.chip}"


def _need(spec: RunSpec) -> MemoryNeed:
    from tracewarehouse.collect.memory import memory_need
    from tracewarehouse.collect.models.pretrained import pretrained_model

    return memory_need(pretrained_model(spec.model), spec.model_copy(update={"device": "tpu"}))


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g}"
