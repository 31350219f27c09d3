"""`tw collect`: run the inference harness and save its captures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collect.runner import Progress


def collect(
    experiment: Annotated[
        Path | None,
        typer.Argument(metavar="[EXPERIMENT]", help="Experiment file, or the name of a ready-made one, such as tiny."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the capture directories, one per run.")
    ] = Path("captures"),
    model: Annotated[str | None, typer.Option(help="Architecture of a tiny model, such as llama.")] = None,
    mesh: Annotated[str | None, typer.Option(help="Device mesh, outermost axis first, such as dp=2,tp=2.")] = None,
    sequence_parallelism: Annotated[
        str | None, typer.Option("--sequence-parallelism", help="Split the sequence over tp: megatron, ulysses, ring.")
    ] = None,
    microbatches: Annotated[int | None, typer.Option(help="Microbatches of the pipeline.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences.")] = None,
    input_length: Annotated[int | None, typer.Option(help="Tokens of each prompt.")] = None,
    output_length: Annotated[int | None, typer.Option(help="Tokens to generate per sequence.")] = None,
    layers: Annotated[int | None, typer.Option(help="Decoder layers.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the weights and prompts.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu (virtual devices of this machine) or tpu.")] = None,
    resume: Annotated[bool, typer.Option(help="Skip runs whose capture is there already.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be recorded, and record nothing.")] = False,
) -> None:
    """Run the inference harness and save the profiler's captures.

    Prints the capture directory of each run. A capture that ingest cannot read, or that lacks the collectives that the
    mesh promises, counts as failed; it is kept, and checked again when the experiment is resumed. Needs the extra
    `collect` (torch and torch_xla).
    """
    from collect import experiment as experiments
    from collect import runner

    fields = {
        "model": model,
        "mesh": mesh,
        "sequence_parallelism": sequence_parallelism,
        "microbatches": microbatches,
        "batch": batch,
        "input_length": input_length,
        "output_length": output_length,
        "layers": layers,
        "dtype": dtype,
        "seed": seed,
        "device": device,
    }
    if experiment is None:
        plan = experiments.Experiment.of(experiments.run_spec(**fields))
    elif given := [f"--{k.replace('_', '-')}" for k, v in fields.items() if v is not None]:
        raise typer.BadParameter(f"{', '.join(given)} and an experiment file exclude each other; write it in the file")
    else:
        plan = experiments.load_experiment(experiment)
    if dry_run:
        for run in runner.dry_run(plan, output):
            typer.echo(f"{run.spec.name}\t{run.devices} devices\t{'to record' if run.captures else 'recorded'}")
        return
    faults: dict[str, list[str]] = {}

    def report(progress: Progress) -> None:
        _report(progress)
        name = progress.spec.name
        if progress.state in ("recorded", "skipped") and (found := capture_faults(output / name)):
            faults[name] = found
            for fault in found:
                typer.echo(f"error: {name}: {fault}", err=True)

    results = runner.collect(plan, output, resume=resume, on_progress=report)
    for result in results:
        if result.status != "failed" and result.spec.name not in faults:
            typer.echo(result.path)
    if faults or any(r.status == "failed" for r in results):
        raise typer.Exit(1)


def capture_faults(capture: Path) -> list[str]:
    """What a finished capture lacks of what its manifest promises, found by ingesting it into a warehouse put aside."""
    import tempfile

    from ingest.errors import TracewarehouseError
    from ingest.pipeline import ingest_one
    from ingest.promises import NOTE

    with tempfile.TemporaryDirectory(prefix="tw-collect-") as warehouse:
        try:
            notes = ingest_one(capture, Path(warehouse)).notes
        except TracewarehouseError as error:
            return [f"the capture cannot be ingested: {error}"]
    return [note for note in notes if note.startswith(NOTE)]


def _report(progress: Progress) -> None:
    line = f"{progress.number}/{progress.total} {progress.spec.name}: {progress.state}"
    if progress.state == "failed":
        line = f"error: {line}"
    typer.echo(f"{line}: {progress.message}" if progress.message else line, err=True)
