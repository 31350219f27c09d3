"""`tw tpu`: record an experiment on TPU virtual machines of Google Cloud, through `gcloud`."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracewarehouse.cli.collect import ByModelOption, CapturesOption, report, to_stderr
from tracewarehouse.cli.output import lasting_echo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracewarehouse.collect.tpu.plan import PlannedSlice, StepKey, StepTimes
    from tracewarehouse.collect.tpu.slices import Slices
    from tracewarehouse.collect.tpu.state import Place

SliceArgument = Annotated[str, typer.Argument(help="Name of the slice.")]
ExperimentArgument = Annotated[
    Path,
    typer.Argument(metavar="EXPERIMENT", help="Experiment file, or the name of a ready-made one, such as tpu_v6e."),
]
GenerationOption = Annotated[str, typer.Option("--generation", "-g", help="v4, v5e, v6e or tpu7x.")]
ZoneOption = Annotated[str | None, typer.Option(help="Zone; by default the first whose quota has the chips.")]
SpotOption = Annotated[bool | None, typer.Option("--spot/--on-demand", help="Only spot, or only on demand.")]
ProjectOption = Annotated[str | None, typer.Option(help="Google Cloud project; by default that of gcloud.")]
NetworkOption = Annotated[str | None, typer.Option(help="VPC network; by default the project's default one.")]
SubnetworkOption = Annotated[str | None, typer.Option(help="Subnetwork of the network, in the zone's region.")]
DataDiskOption = Annotated[
    str | None, typer.Option(help="Disk of the zone for weights; several hosts share one that they can only read.")
]
BucketOption = Annotated[
    str | None, typer.Option(help="Cloud Storage bucket that holds the weights in its folder hub.")
]
ServiceAccountOption = Annotated[str | None, typer.Option(help="Service account of the hosts, as an e-mail address.")]
QuotaOption = Annotated[Path | None, typer.Option("--quota", help="Quota table in place of the built-in one.")]
StateOption = Annotated[Path, typer.Option("--state", help="Record of the slices that were created.")]
BackoffOption = Annotated[
    float, typer.Option("--backoff", min=0.0, help="Seconds before the second attempt; then doubled.")
]

app = typer.Typer(no_args_is_help=True, help="Record on TPU slices of Google Cloud, through gcloud.")

STATE = Path("tpu-slices.json")


@app.command()
def plan(
    experiment: ExperimentArgument,
    generation: GenerationOption,
    zone: ZoneOption = None,
    spot: SpotOption = None,
    predictions: Annotated[
        Path | None, typer.Option(help="Warehouse of runs that `tw plan` predicted; it tells the expected hours.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="HOURS", help="Choose the most telling runs for so many chip-hours, such as 20h."),
    ] = None,
    quota: QuotaOption = None,
    state: StateOption = STATE,
) -> None:
    """Print the slices that an experiment needs, its runs, memory per chip, disk, time and price class; run nothing.

    The chips of slices that were created already are subtracted from the quota. Hours are expected ones where the steps
    of all runs of a slice were predicted. With --budget it prints what was left out.
    """
    from tracewarehouse.collect.tpu.plan import with_hours, within_budget

    limit = _chip_hours(budget) if budget else None
    slices = _planned(experiment, generation, zone, spot, quota, state)
    slices = with_hours(slices, _predicted_steps(predictions, generation) if predictions else {})
    if limit is None:
        _print_plan(slices)
        return
    choice = within_budget(slices, limit)
    _print_plan(choice.slices)
    lasting_echo(f"{choice.chip_hours:.1f} of {limit:g} chip-hours")
    for run in choice.left_out:
        lasting_echo(f"left out\t{run.name}")


def _chip_hours(text: str) -> float:
    try:
        hours = float(text.removesuffix("h"))
    except ValueError:
        hours = 0.0
    if not 0 < hours < float("inf"):
        raise typer.BadParameter(f"--budget {text}: expected a number of chip-hours, such as 20h")
    return hours


def _predicted_steps(folder: Path, generation: str) -> dict[StepKey, StepTimes]:
    from tracewarehouse.collect.tpu.plan import StepTimes
    from tracewarehouse.predict.calibrations import FILE, described, of_chip, rates, read_calibrations
    from tracewarehouse.queries.read_only import literal
    from tracewarehouse.warehouse import open_warehouse

    own = of_chip(read_calibrations(folder / FILE), generation)
    now, host = described(own), rates(generation, own).get(("host_step", "ms"))
    is_now = f"p.calibration IS NOT DISTINCT FROM {literal(now) if now else 'NULL'}"
    host_ps = round(host.value * 1e9) if host else 0
    given_ps = f"CASE WHEN {is_now} THEN {host_ps} WHEN p.calibration IS NULL THEN 0 ELSE p.host_ps END"
    with open_warehouse(str(folder)) as warehouse:
        rows = warehouse.query(
            "SELECT r.model, r.num_layers, r.mesh, r.sequence_parallelism, r.capacity_factor, "  # noqa: S608
            "r.batch_size, r.input_length, r.dtype, r.microbatches, "
            "NULLIF(CAST(CAST(r.manifest AS JSON) ->> '$.spec.routing_skew' AS DOUBLE), 0), "
            f"{is_now} AS is_now, p.rules_version, "
            "MAX(CASE WHEN v.metric = 'ttft' THEN v.value END), MAX(CASE WHEN v.metric = 'tpot' THEN v.value END) "
            "FROM main.runs AS r JOIN main.metric_values AS v ON r.run_id = v.run_id "
            "JOIN main.predictions AS p ON r.run_id = p.run_id WHERE v.metric IN ('ttft', 'tpot') "
            f"AND p.ici_factor = 1 AND p.hbm_factor = 1 AND p.kernels IS NULL AND p.host_ps = {given_ps} "
            f"AND p.topology LIKE {literal(generation + ':%')} "
            "GROUP BY ALL ORDER BY is_now, rules_version"
        ).rows()
    return {  # of equal steps, the last: those by the rates of today and the newest rules
        tuple(key): StepTimes(prefill / 1e3, (decode or 0.0) / 1e3)
        for *key, _, _, prefill, decode in rows
        if prefill is not None
    }


@app.command()
def doctor(
    experiment: ExperimentArgument,
    generation: GenerationOption,
    zone: ZoneOption = None,
    spot: SpotOption = None,
    project: ProjectOption = None,
    network: NetworkOption = None,
    subnetwork: SubnetworkOption = None,
    data_disk: DataDiskOption = None,
    bucket: BucketOption = None,
    service_account: ServiceAccountOption = None,
    output: CapturesOption = Path("captures"),
    quota: QuotaOption = None,
    state: StateOption = STATE,
) -> None:
    """Check all that an experiment needs, before it costs: account, zone, network, disk, key, token; print the plan.

    Prints what is missing, each with the command that provides it. Creates nothing.
    """
    from tracewarehouse.collect.tpu.doctor import Doctor

    planned = _planned(experiment, generation, zone, spot, quota, state)
    slices = _slices(state, quota, 0)
    place = _place(project, network, subnetwork, data_disk, bucket, service_account)
    missing = 0
    for finding in Doctor(slices.gcloud, slices.quota, place, planned, output, _known_token()).findings():
        lasting_echo(finding)
        missing += finding.mend is not None
    _print_plan(planned)
    if missing:
        lasting_echo(f"error: {missing} missing; nothing was created", err=True)
        raise typer.Exit(1)


@app.command()
def create(
    name: SliceArgument,
    accelerator_type: Annotated[str, typer.Option("--type", help="Accelerator type, such as v6e-8.")],
    zone: ZoneOption = None,
    spot: SpotOption = None,
    project: ProjectOption = None,
    network: NetworkOption = None,
    subnetwork: SubnetworkOption = None,
    data_disk: DataDiskOption = None,
    bucket: BucketOption = None,
    service_account: ServiceAccountOption = None,
    queue: Annotated[
        str | None, typer.Option(help="Wait in Google's queue for free chips, for at most this long, such as 6h.")
    ] = None,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts while the zone has no free chips.")] = 1,
    backoff: BackoffOption = 30.0,
    quota: QuotaOption = None,
    state: StateOption = STATE,
) -> None:
    """Create a slice within the quota."""
    from tracewarehouse.collect.tpu.plan import counted

    place = _place(project, network, subnetwork, data_disk, bucket, service_account, queue)
    slices = _slices(state, quota, backoff)
    try:
        made = slices.create(name, accelerator_type, zone=zone, spot=spot, place=place, attempts=attempts)
    except BaseException:  # Ctrl-C too
        _say_what_costs(slices, name)
        raise
    size = f"{counted(made.chips, 'chip')}\t{counted(made.hosts, 'host')}"
    typer.echo(f"{made.name}\t{made.accelerator_type}\t{made.zone}\t{size}")


@app.command()
def run(
    name: SliceArgument,
    experiment: ExperimentArgument,
    output: CapturesOption = Path("captures"),
    by_model: ByModelOption = False,
    wheel: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Wheel to install; by default one built from these sources."),
    ] = None,
    setup: Annotated[str | None, typer.Option(help="Shell command in place of the installation on each host.")] = None,
    poll: Annotated[float, typer.Option(min=0.0, help="Seconds between two looks for finished captures.")] = 60.0,
    attempts: Annotated[int, typer.Option(min=1, help="Starts before giving up after interruptions.")] = 10,
    backoff: BackoffOption = 30.0,
    token: Annotated[
        bool,
        typer.Option(
            "--token",
            help="Give the hosts a Hugging Face token: that of HF_TOKEN or `hf auth login`, or one that you type.",
        ),
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the slice at the end, also after Ctrl-C.")] = False,
    quota: QuotaOption = None,
    state: StateOption = STATE,
) -> None:
    """Run an experiment on all hosts of a slice and copy captures back as they finish; print their directories.

    Runs whose mesh has another size than the slice are left out. A second call records what is still missing. A capture
    that ingest cannot read, or that lacks the collectives that the mesh promises, counts as failed; it is kept.
    """
    from tracewarehouse.collect.experiment import load_experiment
    from tracewarehouse.collect.tpu.installation import Installation
    from tracewarehouse.collect.tpu.sweep import run_sweep

    slices = _slices(state, quota, backoff)
    given = (_known_token() or typer.prompt("Hugging Face token", hide_input=True, err=True)) if token else None
    with slices.state.held(name), _deleted_at_the_end(slices, name, delete):
        result = run_sweep(
            slices,
            name,
            load_experiment(experiment),
            output,
            installation=Installation(wheel, setup, given),
            poll_s=poll,
            attempts=attempts,
            by_model=by_model,
        )
    faulty = [path for path in result.recorded if report(path)]
    if result.other_sizes:
        lasting_echo(f"left out, for slices of another size: {', '.join(result.other_sizes)}", err=True)
    for run_name, why in result.missing.items():
        lasting_echo(f"error: not recorded: {run_name}: {why}; see {output / name}.log", err=True)
    if result.missing or faulty:
        raise typer.Exit(1)


@app.command()
def fetch(
    name: SliceArgument,
    experiment: ExperimentArgument,
    output: CapturesOption = Path("captures"),
    by_model: ByModelOption = False,
    state: StateOption = STATE,
) -> None:
    """Copy finished captures of an experiment back from a slice; print their directories."""
    from tracewarehouse.collect import experiment as experiments
    from tracewarehouse.collect.capture import Output, require_writable
    from tracewarehouse.collect.tpu import captures

    slices = _slices(state, None, 0)
    specs = experiments.plan(experiments.load_experiment(experiment))
    require_writable(output)
    entry = slices.state.get(name)
    for path in captures.fetch(slices.cloud(entry), entry, specs, Output(output, by_model), slices.show):
        lasting_echo(path)


@app.command()
def delete(name: SliceArgument, backoff: BackoffOption = 5.0, state: StateOption = STATE) -> None:
    """Delete a slice that was created here; when Google does not answer, ask again."""
    _slices(state, None, backoff).delete(name, attempts=DELETIONS)


def _planned(
    experiment: Path, generation: str, zone: str | None, spot: bool | None, quota: Path | None, state: Path
) -> list[PlannedSlice]:
    from tracewarehouse.collect.experiment import load_experiment
    from tracewarehouse.collect.tpu.plan import plan_slices
    from tracewarehouse.collect.tpu.quota import load_quota
    from tracewarehouse.collect.tpu.state import State

    table = load_quota(quota) if quota else load_quota()
    used = State(state).slices().values()
    return plan_slices(load_experiment(experiment), generation, table, zone=zone, spot=spot, used=used)


def _print_plan(slices: list[PlannedSlice]) -> None:
    for planned in slices:
        for line in planned.lines():
            lasting_echo(line)
    from tracewarehouse.collect.tpu.plan import counted

    captures = sum(len(s.runs) for s in slices)
    lasting_echo(
        f"{counted(len(slices), 'slice')}, {counted(captures, 'capture')}; prices: https://cloud.google.com/tpu/pricing"
    )


def _place(
    project: str | None,
    network: str | None,
    subnetwork: str | None,
    data_disk: str | None,
    bucket: str | None,
    service_account: str | None,
    queue: str | None = None,
) -> Place:
    from pydantic import ValidationError

    from tracewarehouse.collect.tpu.state import Place

    if data_disk and bucket:
        raise typer.BadParameter("--data-disk and --bucket exclude each other: weights are in one place")
    try:
        return Place(
            project=project,
            network=network,
            subnetwork=subnetwork,
            data_disk=data_disk,
            bucket=bucket.removeprefix("gs://").rstrip("/") if bucket else None,
            service_account=service_account,
            queue=queue,
        )
    except ValidationError as error:
        fault = error.errors()[0]
        name = str(fault["loc"][0]).replace("_", "-")
        raise typer.BadParameter(f"--{name} {fault['input']!r} has the wrong form: {fault['msg']}") from None


def _known_token() -> str | None:
    """The token in HF_TOKEN, or that of `hf auth login` on this machine."""
    import os

    if given := os.environ.get("HF_TOKEN"):
        return given
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    file = Path(os.environ.get("HF_TOKEN_PATH", home / "token")).expanduser()
    return file.read_text(encoding="utf-8").strip() if file.is_file() else None


def _slices(state: Path, quota: Path | None, backoff: float) -> Slices:
    from tracewarehouse.collect.tpu.gcloud import Gcloud
    from tracewarehouse.collect.tpu.quota import load_quota
    from tracewarehouse.collect.tpu.slices import Slices
    from tracewarehouse.collect.tpu.state import State

    return Slices(State(state), load_quota(quota) if quota else load_quota(), Gcloud(to_stderr), to_stderr, backoff)


DELETIONS = 5
"""Attempts to delete a slice at the end of a run, since a slice that is left costs money."""


@contextmanager
def _deleted_at_the_end(slices: Slices, name: str, is_wanted: bool) -> Iterator[None]:
    """Delete the slice however the block ends, or say that it still runs."""
    try:
        yield
    finally:
        if name in slices.state.slices():
            try:
                if is_wanted:
                    with _only_stopped_by_hand():
                        slices.delete(name, attempts=DELETIONS)
            finally:
                _say_what_costs(slices, name)


def _say_what_costs(slices: Slices, name: str) -> None:
    if entry := slices.state.slices().get(name):
        how = "still runs and costs" if entry.status == "ready" else "may be there and cost"
        lasting_echo(f"{name} {how}; tw tpu delete {name} ends it", err=True)


@contextmanager
def _only_stopped_by_hand() -> Iterator[None]:
    """Let only Ctrl-C end the block, as a terminal that is closed sends its signal twice."""
    import signal

    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
