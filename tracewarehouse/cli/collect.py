"""`tw collect`: run the inference harness and save its captures."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracewarehouse.cli.options import a_folder
from tracewarehouse.cli.output import lasting_echo

if TYPE_CHECKING:
    from tracewarehouse.collect.capture import Output
    from tracewarehouse.collect.runner import CaptureResult, PlannedRun, Progress

# also of `tw plan`
SequenceParallelismOption = Annotated[
    str | None, typer.Option("--sequence-parallelism", help="Split the sequence over tp: megatron, ulysses, ring.")
]
MicrobatchesOption = Annotated[int | None, typer.Option(help="Microbatches of the pipeline.")]
BatchOption = Annotated[int | None, typer.Option(help="Sequences in the batch.")]
InputLengthOption = Annotated[int | None, typer.Option(help="Tokens of each prompt.")]
OutputLengthOption = Annotated[int | None, typer.Option(help="Tokens to generate per sequence.")]
LayersOption = Annotated[int | None, typer.Option(help="Decoder layers.")]
CapacityFactorOption = Annotated[
    str | None,
    typer.Option(
        help="Tokens that an expert has room for, as a multiple of its mean share; inf drops none. Default: as served, "
        "without limits; under torch_xla 1.25."
    ),
]
RoutingSkewOption = Annotated[
    float | None,
    typer.Option(help="Zipf's exponent by which tokens prefer some experts, such as 1. Default: the router alone."),
]
BackendOption = Annotated[
    str | None, typer.Option(help="The backend that runs the model: jax, torch_xla, torch_tpu, or module:Class.")
]
# also of `tw tpu`
CapturesOption = Annotated[
    Path, typer.Option("--output", "-o", help="Folder for the capture directories, one per run.", callback=a_folder)
]

ByModelOption = Annotated[
    bool, typer.Option("--by-model", help="Put each capture into <model>/<parallelism>/ of the folder.")
]


def collect(
    experiment: Annotated[
        Path | None,
        typer.Argument(metavar="[EXPERIMENT]", help="Experiment file, or the name of a ready-made one, such as tiny."),
    ] = None,
    output: CapturesOption = Path("captures"),
    by_model: ByModelOption = False,
    model: Annotated[
        str | None,
        typer.Option(help="Architecture of a tiny model, such as llama; a Hugging Face id; or a model's local folder."),
    ] = None,
    mesh: Annotated[str | None, typer.Option(help="Device mesh, outermost axis first, such as dp=2,tp=2.")] = None,
    sequence_parallelism: SequenceParallelismOption = None,
    microbatches: MicrobatchesOption = None,
    batch: BatchOption = None,
    input_length: InputLengthOption = None,
    output_length: OutputLengthOption = None,
    layers: LayersOption = None,
    hosts: Annotated[
        int | None,
        typer.Option(help="Processes that share the virtual devices; under torch_xla each is a stage of pp."),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    capacity_factor: CapacityFactorOption = None,
    routing_skew: RoutingSkewOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the weights and prompts.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Text for a published model's tokenizer, repeated to the input length.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu (virtual devices of this machine) or tpu.")] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="Results of the unsplit model to compare with: compute (once, and keep them), kept (only if they are "
            "there), off. Default: compute; on tpu kept."
        ),
    ] = None,
    attach: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Record what the profiler server at HOST:PORT sees; separate several by commas."
        ),
    ] = None,
    duration_ms: Annotated[int, typer.Option(min=1, help="With --attach: milliseconds to record.")] = 2000,
    backend: BackendOption = None,
    python: Annotated[
        list[str] | None,
        typer.Option(metavar="[BACKEND=]PATH", help="Python that has the backend, if this one does not."),
    ] = None,
    resume: Annotated[bool, typer.Option(help="Skip runs whose capture is there already.")] = True,
    references: Annotated[
        bool, typer.Option("--references", help="Compute and keep what the runs are checked against; record nothing.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be recorded, and record nothing.")] = False,
) -> None:
    """Run the inference harness and save the profiler's captures.

    Prints the capture directory of each run. A capture that ingest cannot read, or that lacks the collectives that the
    mesh promises, counts as failed; it is kept, and checked again when the experiment is resumed. Needs the extra
    `jax`, `collect` (torch and torch_xla) for backend torch_xla, or `torch_tpu`.
    """
    from tracewarehouse.collect import experiment as experiments
    from tracewarehouse.collect import runner
    from tracewarehouse.collect.capture import Output
    from tracewarehouse.collect.experiment import run_spec

    fields = {
        "model": model,
        "mesh": mesh,
        "sequence_parallelism": sequence_parallelism,
        "microbatches": microbatches,
        "batch": batch,
        "input_length": input_length,
        "output_length": output_length,
        "layers": layers,
        "hosts": hosts,
        "dtype": dtype,
        "capacity_factor": capacity_factor,
        "routing_skew": routing_skew,
        "seed": seed,
        "prompt": prompt,
        "device": device,
        "reference": reference,
        "backend": backend,
    }
    if attach is not None:
        if experiment is not None:
            raise typer.BadParameter("--attach records a process that runs already; it takes no experiment")
        _attach(attach, output, duration_ms, fields)
        return
    if experiment is None:
        plan = experiments.Experiment.from_runs(run_spec(**fields))
    elif given := [f"--{k.replace('_', '-')}" for k, v in fields.items() if v is not None]:
        raise typer.BadParameter(f"{', '.join(given)} and an experiment file exclude each other; write it in the file")
    else:
        plan = experiments.load_experiment(experiment)
    if dry_run:
        _print_plan(runner.dry_run(plan, output, by_model=by_model), Output(output, by_model))
        return
    if references:
        from tracewarehouse.collect.harness.subject import compute_reference

        for run in experiments.plan(plan):
            if run.has_model:
                typer.echo(compute_reference(run))
        return
    faults: dict[str, list[str]] = {}
    place = Output(output, by_model)
    pythons = _interpreters(python or [], {run.backend for run in experiments.plan(plan)})

    with _progress() as (show, say):

        def tell(progress: Progress) -> None:
            show(progress)
            if progress.state in ("recorded", "skipped") and (found := report(place.capture(progress.spec), say)):
                faults[progress.spec.name] = found

        results = runner.collect(plan, output, resume=resume, by_model=by_model, pythons=pythons, on_progress=tell)
    _print_summary(results, faults)
    if faults or any(r.status == "failed" for r in results):
        raise typer.Exit(1)


def _interpreters(given: list[str], backends: set[str]) -> dict[str, str]:
    """Interpreter by backend, from `PATH` for all of an experiment and `BACKEND=PATH` for one."""
    by_backend: dict[str, str] = {}
    for value in given:
        backend, is_pair, path = value.partition("=")
        if is_pair and backend in backends:
            if not path:
                raise typer.BadParameter(f"--python {value}: does not name an interpreter; write {backend}=PATH")
            by_backend[backend] = path
        elif is_pair and not Path(value).exists():
            raise typer.BadParameter(f"--python {value}: no run has the backend {backend}; {', '.join(backends)} run")
        else:
            by_backend |= {name: value for name in backends if name not in by_backend}
    return by_backend


ATTACH_FACTS = {"model": "model", "mesh": "mesh", "batch": "batch_size", "dtype": "dtype"} | {
    name: name for name in ("input_length", "output_length")
}
"""Options that say, with --attach, what the process runs, and their names in the manifest."""


def _attach(addresses: str, output: Path, duration_ms: int, fields: dict[str, Any]) -> None:
    from tracewarehouse.collect.attach import attach
    from tracewarehouse.ingest.capture.manifest import Mesh

    given = {name: value for name, value in fields.items() if value is not None}
    if others := [f"--{name.replace('_', '-')}" for name in given if name not in ATTACH_FACTS]:
        raise typer.BadParameter(f"{', '.join(others)} and --attach exclude each other: the process runs already")
    facts = {ATTACH_FACTS[name]: value for name, value in given.items()}
    if "mesh" in facts:
        try:
            facts["mesh"] = Mesh.parse(facts["mesh"])
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    capture = attach([a.strip() for a in addresses.split(",")], output, duration_ms, **facts)
    for fault in capture_faults(capture):
        typer.echo(f"error: {capture.name}: {fault}", err=True)
        raise typer.Exit(1)
    typer.echo(capture)


def _print_plan(planned: list[PlannedRun], place: Output) -> None:
    for run in planned:
        files = f"{run.spec.hosts} file{'s' * (run.spec.hosts > 1)}"
        state = "recorded" if run.is_recorded else "to record"
        memory = f"\t{run.memory} per device" if run.memory else ""
        typer.echo(f"{run.spec.name}\t{run.spec.mesh.size} devices\t{files}\t{state}{memory}")
        if run.is_recorded:
            say_unproved(place.capture(run.spec))
    left = sum(not run.is_recorded for run in planned)
    devices = max(run.spec.mesh.size for run in planned)
    typer.echo(f"{len(planned)} run{'s' * (len(planned) != 1)}, {left} to record, on up to {devices} devices", err=True)
    refused = [run.refusal for run in planned if run.refusal and not run.is_recorded]
    for refusal in refused:
        typer.echo(f"error: {refusal}", err=True)
    if refused:
        raise typer.Exit(1)


def to_stderr(line: str) -> None:
    """Print a line that is no result."""
    lasting_echo(line, err=True)


def report(capture: Path, say: Callable[[str], None] = to_stderr) -> list[str]:
    """Print a finished capture and what it does not prove, or the promises that it breaks; return these."""
    faults = capture_faults(capture)
    for fault in faults:
        say(f"error: {capture.name}: {fault}")
    if not faults:
        lasting_echo(capture)
        say_unproved(capture, say)
        say_proved(capture, say)
    return faults


def say_unproved(capture: Path, say: Callable[[str], None] = to_stderr) -> None:
    """Say what a recorded capture's own checks could not show of its tokens."""
    from tracewarehouse.collect.capture import unproved

    if note := unproved(capture):
        say(f"note: {capture.name}: {note}")


def say_proved(capture: Path, say: Callable[[str], None]) -> None:
    """Say that the checks of a recorded capture show its tokens to be right, if they do."""
    from tracewarehouse.collect.capture import MANIFEST, unproved
    from tracewarehouse.ingest.capture.manifest import load_manifest

    if load_manifest(capture / MANIFEST).checks.get("tokens_equal") and unproved(capture) is None:
        say(f"{capture.name}: its tokens equal those of the reference")


def _print_summary(results: list[CaptureResult], faults: dict[str, list[str]]) -> None:
    if len(results) < 2:
        return
    count = Counter("failed" if r.spec.name in faults else r.status for r in results)
    said = ", ".join(f"{count[s]} {s}" for s in ("recorded", "skipped", "failed") if count[s])
    lasting_echo(f"{len(results)} runs: {said}", err=True)
    for result in results:
        reasons = faults.get(result.spec.name) or ([result.error] if result.error else [])
        for reason in reasons:
            lasting_echo(f"  {result.spec.name}: {reason}", err=True)


MARKED = """
SELECT
  count(*) AS ops,
  count(*) FILTER (WHERE o.phase IS NULL OR o.step IS NULL) AS apart,
  sum(o.self_ps) AS time_ps,
  sum(CASE WHEN l.layer IS NULL AND l.part IS NULL THEN 0 ELSE o.self_ps END) AS known_ps
FROM models.leaf_ops AS o INNER JOIN models.op_layers AS l ON o.run_id = l.run_id AND o.event_id = l.event_id"""


def capture_faults(capture: Path) -> list[str]:
    """The promises of its manifest that a finished capture breaks, found by ingesting it into a temporary warehouse.

    For virtual devices, missing marks of steps, layers and parts count too. The marks of a TPU program do not depend on
    the collector alone.
    """
    from tracewarehouse.database.temporary import TemporaryFolder
    from tracewarehouse.ingest.capture.manifest import load_manifest
    from tracewarehouse.ingest.capture.promises import NOTE
    from tracewarehouse.ingest.errors import TracewarehouseError
    from tracewarehouse.ingest.pipeline import ingest_one

    with TemporaryFolder() as folder:
        warehouse = folder.path / "warehouse"
        try:
            notes = ingest_one(capture, warehouse).notes
            manifest = load_manifest(capture / "manifest.json")
            is_marked = manifest.model is not None and (manifest.model_extra or {}).get("device") == "cpu"
            unmarked = _unmarked(warehouse) if is_marked else []
        except TracewarehouseError as error:
            return [f"the capture cannot be ingested: {error}"]
    return [note for note in notes if note.startswith(NOTE)] + unmarked


def _unmarked(folder: Path) -> list[str]:
    from tracewarehouse.warehouse import Warehouse

    with Warehouse(folder) as warehouse:
        ((ops, apart, time, known),) = warehouse.query(MARKED).rows()
    if not ops:
        return ["the capture has no op of a device"]
    faults = [f"{apart} of {ops} op events have no phase or step"] if apart else []
    if known <= 0.9 * time:
        faults.append(f"only {100 * known / time:.0f} % of the op time has a layer or part of the model, not over 90 %")
    return faults


@contextmanager
def _progress() -> Iterator[tuple[Callable[[Progress], None], Callable[[str], None]]]:
    """Yield functions that report progress and print a line on standard error; on a terminal, above a bar of runs."""
    if not sys.stderr.isatty():
        yield (lambda progress: to_stderr(_line(progress))), to_stderr
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False)
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)

        def say(line: str) -> None:
            bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

        def report(progress: Progress) -> None:
            is_running = progress.state in ("started", "retrying")
            done = progress.number - 1 if is_running else progress.number
            bar.update(task, total=progress.total, completed=done, description=progress.spec.name if is_running else "")
            if progress.state != "started":
                say(_line(progress))

        yield report, say


def _line(progress: Progress) -> str:
    line = f"{progress.number}/{progress.total} {progress.spec.name}: {progress.state}"
    if progress.state == "failed":
        line = f"error: {line}"
    return f"{line}: {progress.message}" if progress.message else line
