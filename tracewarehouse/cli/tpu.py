"""`tw tpu`: record an experiment on TPU virtual machines of Google Cloud, through `gcloud`."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracewarehouse.collect.tpu.slices import Slices

app = typer.Typer(no_args_is_help=True, help="Record on TPU slices of Google Cloud, through gcloud.")

Name = Annotated[str, typer.Argument(help="Name of the slice.")]
ExperimentFile = Annotated[
    Path,
    typer.Argument(metavar="EXPERIMENT", help="Experiment file, or the name of a ready-made one, such as tpu_v6e."),
]
Zone = Annotated[str | None, typer.Option(help="Zone; by default the first whose quota has the chips.")]
Spot = Annotated[bool | None, typer.Option("--spot/--on-demand", help="Only spot, or only on demand.")]
QuotaFile = Annotated[Path | None, typer.Option("--quota", help="Quota table in place of the built-in one.")]
StateFile = Annotated[Path, typer.Option("--state", help="Record of the slices that were created.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for the capture directories, one per run.")]
Backoff = Annotated[float, typer.Option("--backoff", min=0.0, help="Seconds before the second attempt; then doubled.")]
STATE = Path("tpu-slices.json")


@app.command()
def plan(
    experiment: ExperimentFile,
    generation: Annotated[str, typer.Option("--generation", "-g", help="v4, v5e or v6e.")],
    zone: Zone = None,
    spot: Spot = None,
    quota: QuotaFile = None,
    state: StateFile = STATE,
) -> None:
    """Print the slices that an experiment needs, its runs, and the memory each needs per chip; run nothing.

    The chips of slices that were created already are taken from the quota.
    """
    from tracewarehouse.collect.experiment import load_experiment
    from tracewarehouse.collect.tpu.plan import plan_slices
    from tracewarehouse.collect.tpu.quota import load_quota, provisioning
    from tracewarehouse.collect.tpu.state import State

    table = load_quota(quota) if quota else load_quota()
    used = State(state).slices().values()
    slices = plan_slices(load_experiment(experiment), generation, table, zone=zone, spot=spot, used=used)
    for planned in slices:
        typer.echo(
            f"{planned.accelerator_type}\t{planned.chips} chips\t{planned.hosts} hosts\t{planned.pool.zone}\t"
            f"{provisioning(planned.pool.spot)}\t{len(planned.runs)} captures"
        )
        for run in planned.runs:
            need = planned.memory.get(run.name)
            typer.echo(f"  {run.name}" + (f"\t{need} per chip" if need else ""))
    typer.echo(f"{len(slices)} slices, {sum(len(s.runs) for s in slices)} captures")


@app.command()
def create(
    name: Name,
    accelerator_type: Annotated[str, typer.Option("--type", help="Accelerator type, such as v6e-8.")],
    zone: Zone = None,
    spot: Spot = None,
    project: Annotated[str | None, typer.Option(help="Google Cloud project; by default that of gcloud.")] = None,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts while the zone has no free chips.")] = 1,
    backoff: Backoff = 30.0,
    quota: QuotaFile = None,
    state: StateFile = STATE,
) -> None:
    """Create a slice within the quota."""
    made = _slices(state, quota, backoff).create(
        name, accelerator_type, zone=zone, spot=spot, project=project, attempts=attempts
    )
    typer.echo(f"{made.name}\t{made.accelerator_type}\t{made.zone}\t{made.chips} chips\t{made.hosts} hosts")


@app.command()
def run(
    name: Name,
    experiment: ExperimentFile,
    output: Output = Path("captures"),
    wheel: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Wheel of tracewarehouse to install.")
    ] = None,
    setup: Annotated[str | None, typer.Option(help="Shell command in place of the installation on each host.")] = None,
    poll: Annotated[float, typer.Option(min=0.0, help="Seconds between two looks for finished captures.")] = 60.0,
    attempts: Annotated[int, typer.Option(min=1, help="Starts before giving up after interruptions.")] = 10,
    backoff: Backoff = 30.0,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the slice at the end, also after Ctrl-C.")] = False,
    quota: QuotaFile = None,
    state: StateFile = STATE,
) -> None:
    """Run an experiment on all hosts of a slice and copy captures back as they finish; print their directories.

    Runs whose mesh has another size than the slice are left out. A second call goes on with what is missing.
    """
    from tracewarehouse.collect.experiment import load_experiment
    from tracewarehouse.collect.tpu.sweep import Installation, run_sweep

    slices = _slices(state, quota, backoff)
    with _deleted_at_the_end(slices, name, delete):
        result = run_sweep(
            slices,
            name,
            load_experiment(experiment),
            output,
            installation=Installation(wheel, setup),
            poll_s=poll,
            attempts=attempts,
        )
    for path in result.recorded:
        typer.echo(path)
    if result.other_sizes:
        typer.echo(f"left out, for slices of another size: {', '.join(result.other_sizes)}", err=True)
    if result.missing:
        typer.echo(f"error: not recorded: {', '.join(result.missing)}; see {output / name}.log", err=True)
        raise typer.Exit(1)


@app.command()
def fetch(name: Name, experiment: ExperimentFile, output: Output = Path("captures"), state: StateFile = STATE) -> None:
    """Copy finished captures of an experiment back from a slice; print their directories."""
    from tracewarehouse.collect import experiment as experiments
    from tracewarehouse.collect.tpu import captures

    slices = _slices(state, None, 0)
    specs = experiments.plan(experiments.load_experiment(experiment))
    output.mkdir(parents=True, exist_ok=True)
    for path in captures.fetch(slices.gcloud, slices.state.get(name), specs, output, slices.show):
        typer.echo(path)


@app.command()
def delete(name: Name, state: StateFile = STATE) -> None:
    """Delete a slice that was created here."""
    _slices(state, None, 0).delete(name)


def _slices(state: Path, quota: Path | None, backoff: float) -> Slices:
    from tracewarehouse.collect.tpu.gcloud import Gcloud
    from tracewarehouse.collect.tpu.quota import load_quota
    from tracewarehouse.collect.tpu.slices import Slices
    from tracewarehouse.collect.tpu.state import State

    def show(line: str) -> None:
        typer.echo(line, err=True)

    return Slices(State(state), load_quota(quota) if quota else load_quota(), Gcloud(show), show, backoff)


DELETIONS = 5
"""Attempts to delete a slice at the end of a run: one that is left costs."""


@contextmanager
def _deleted_at_the_end(slices: Slices, name: str, is_wanted: bool) -> Iterator[None]:
    """Delete the slice however the block ends, or say that it still runs."""
    import signal
    import sys

    # Whoever ends this process otherwise than by Ctrl-C must not leave a slice that costs either.
    before = {s: signal.signal(s, lambda number, _: sys.exit(128 + number)) for s in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if name in slices.state.slices():
            try:
                if is_wanted:
                    slices.delete(name, attempts=DELETIONS)
            finally:
                if name in slices.state.slices():
                    typer.echo(f"{name} still runs and costs; tw tpu delete {name} ends it", err=True)
