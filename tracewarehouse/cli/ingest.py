"""`tw ingest`, `tw import` and `tw watch`: turn captures into runs of the warehouse."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tracewarehouse.cli.options import Engine, EngineOption, MasterOption
from tracewarehouse.cli.output import copying, counting, status
from tracewarehouse.ingest.capture.run_options import RunOptions, parse_device, parse_mesh
from tracewarehouse.ingest.errors import NoCaptureError, TracewarehouseError, printable

if TYPE_CHECKING:
    from tracewarehouse.executors.executor import Executor
    from tracewarehouse.ingest.capture.costs import Costs
    from tracewarehouse.ingest.capture.sources import Capture
    from tracewarehouse.ingest.pipeline import IngestResult
    from tracewarehouse.warehouse import Warehouse

_Value = TypeVar("_Value")


def _usage(parse: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """Return the parser of an option, which calls what it cannot read a wrong use."""

    def parsed(text: str) -> _Value:
        try:
            return parse(text)
        except TracewarehouseError as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


def _costs(file: str) -> Costs:
    from tracewarehouse.ingest.capture.costs import load_costs

    return load_costs(file)


MeshOption = Annotated[
    Any,
    typer.Option(
        metavar="<str>",
        help="Device mesh, outermost axis first, such as dp=2,tp=4. Replaces the manifest's.",
        parser=_usage(parse_mesh),
    ),
]

RatioOption = Annotated[
    float | None,
    typer.Option(
        min=1, help="Refuse a gzipped file that holds more than this many times its own size.", show_default=False
    ),
]


StepOption = Annotated[
    str | None,
    typer.Option(
        "--step",
        metavar="PROGRAM",
        help="Program (HLO module) that begins a step, such as jit_step_fun; instead of the capture's own steps.",
        show_default=False,
    ),
]


DeviceOption = Annotated[
    Any,
    typer.Option(
        "--device",
        metavar="KIND",
        help="Kind of the chips, such as TPU7x or H200, where neither capture nor card tells it.",
        parser=_usage(parse_device),
        show_default=False,
    ),
]


ChipPriceOption = Annotated[
    float | None,
    typer.Option(
        "--chip-price",
        min=0,
        metavar="USD",
        help="What a chip costs for an hour, instead of the list price.",
        show_default=False,
    ),
]


def ingest(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            help="Capture files, or folders that hold captures; gs://, s3:// and https:// URIs too.",
            show_default=False,
        ),
    ],
    mesh: MeshOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the run, if there is only one capture.")] = None,
    step: StepOption = None,
    costs: Annotated[
        Any,
        typer.Option(
            metavar="FILE",
            help="JSON or TOML with flops and bytes of kernels by name, for kernels whose cost the profiler lacks.",
            parser=_usage(_costs),
            show_default=False,
        ),
    ] = None,
    device: DeviceOption = None,
    chip_price: ChipPriceOption = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The most processes that ingest at once; they share a large capture. Default: one per core, fewer "
            "where memory is short.",
            show_default=False,
        ),
    ] = None,
    max_gzip_ratio: RatioOption = None,
    engine: EngineOption = Engine.DUCKDB,
    master: MasterOption = None,
) -> None:
    """Turn captures into runs of the warehouse.

    Prints one line per run as it ends: run id, name, ingested or unchanged, events. Several captures are ingested side
    by side, large ones after the small ones, one at a time. A capture that cannot be read, or whose process is killed,
    is named with its reason at the end; the others go on, and the exit code is then 1. If you interrupt it, it removes
    unfinished runs; ingest the same paths again to go on. With --engine spark each capture is a task of Spark, whose
    workers must see the captures and the warehouse under the same paths.
    """
    if engine is Engine.SPARK and (name is not None or jobs is not None):
        raise typer.BadParameter("--engine spark takes no --name and no --jobs: each capture is one task")
    captures, errors = _found(paths, max_gzip_ratio)
    if name is not None and len(captures) > 1:
        raise typer.BadParameter(f"--name is for one capture, found {len(captures)}")
    options = RunOptions(mesh, name, step, costs, device, chip_price)
    given = len(captures) + len(errors)
    try:
        if captures:
            with context.obj.open(create=True) as warehouse, warehouse.followed_by_database():
                if engine is Engine.SPARK:
                    from tracewarehouse.spark.executor import SparkExecutor

                    _ingest_all(warehouse, captures, errors, options, executor=SparkExecutor(master))
                elif len(captures) == 1:
                    _ingest_one(warehouse, captures[0], errors, options, jobs)
                else:
                    _ingest_all(warehouse, captures, errors, options, jobs)
    finally:  # failures before an interrupt are reported too
        for error in errors:
            complain(error)
    if errors:
        if given > 1:
            typer.echo(f"{len(errors)} of {given} were not ingested, for the reasons above", err=True)
        raise typer.Exit(1)


def _ingest_one(
    warehouse: Warehouse,
    capture: Capture,
    errors: list[TracewarehouseError],
    options: RunOptions,
    jobs: int | None,
) -> None:
    with status() as update:
        update(capture.name)
        try:
            result = warehouse.ingest_capture(capture, options, jobs=jobs)
        except TracewarehouseError as error:
            errors.append(error)
            return
        finally:
            update("")  # else the result would be printed behind it
        say(result)


def _ingest_all(
    warehouse: Warehouse,
    captures: list[Capture],
    errors: list[TracewarehouseError],
    options: RunOptions,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> None:
    outcomes = warehouse.ingest_captures(captures, options, jobs=jobs, executor=executor)
    with closing(outcomes), counting(len(captures)) as show:
        for outcome in outcomes:
            if outcome.error:
                errors.append(outcome.error)
            with show(outcome.error is not None):
                if outcome.result:
                    say(outcome.result)


def _found(paths: list[str], max_gzip_ratio: float | None) -> tuple[list[Capture], list[TracewarehouseError]]:
    from tracewarehouse.ingest.capture.remote import local_copy
    from tracewarehouse.ingest.capture.sources import find_captures
    from tracewarehouse.ingest.devices.joined_hosts import join_hosts

    captures: list[Capture] = []
    errors: list[TracewarehouseError] = []
    for path in paths:
        try:
            with copying() as advance:
                captures += find_captures(local_copy(path, advance), max_gzip_ratio=max_gzip_ratio)
        except TracewarehouseError as error:
            errors.append(error)
    return join_hosts(captures), errors


def say(result: IngestResult) -> None:
    """Print the result of a capture."""
    name = printable(result.name)
    typer.echo(f"{result.run_id}\t{name}\t{result.status}\t{result.event_count} events")
    for note in result.notes:
        typer.echo(f"note: {name}: {printable(note)}", err=True)


def complain(error: TracewarehouseError) -> None:
    """Print why a capture could not be ingested."""
    typer.echo(f"error: {printable(' '.join(str(error).split()))}", err=True)


import_app = typer.Typer(
    help="Turn what other tools have published into runs of the warehouse.", no_args_is_help=True, rich_markup_mode=None
)


@import_app.callback()
def imports() -> None:
    """Turn what other tools have published into runs of the warehouse."""


@import_app.command("ccl-bench")
def ccl_bench(
    context: typer.Context,
    folder: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="Folders of CCL-Bench: a card each, and a trace if it is at hand.",
            show_default=False,
        ),
    ],
    mesh: MeshOption = None,
) -> None:
    """Turn folders of CCL-Bench into runs, with the facts of their cards.

    `tw compare RUN --published FILE` then shows the published values beside ours. A folder without a trace becomes a
    run without events, which has the values that the checkout of the folder publishes: macros.published_values.
    """
    import tempfile

    from tracewarehouse.exports.ccl_bench.cards import card_capture
    from tracewarehouse.ingest.capture.sources import ccl_bench_capture

    failures = 0
    with context.obj.open(create=True) as warehouse, tempfile.TemporaryDirectory() as staging:
        for path in folder:
            try:
                try:
                    capture = ccl_bench_capture(path)
                except NoCaptureError:
                    capture = card_capture(path, Path(staging))
                say(warehouse.ingest_capture(capture, RunOptions(mesh)))
            except TracewarehouseError as error:
                failures += 1
                complain(error)
    if failures:
        raise typer.Exit(1)


def watch(
    context: typer.Context,
    location: Annotated[
        str, typer.Argument(help="Folder, or gs://, s3:// or https:// URI, that captures are written to.")
    ],
    mesh: MeshOption = None,
    step: StepOption = None,
    device: DeviceOption = None,
    chip_price: ChipPriceOption = None,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks at the folder.")] = 2.0,
    settle: Annotated[
        float, typer.Option(min=0, help="A capture is complete once it has not changed for this many seconds.")
    ] = 5,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to wait for the hosts that a manifest names.")] = 600,
    until_idle: Annotated[
        float | None,
        typer.Option(min=0, help="Stop when nothing has changed for this many seconds.", show_default=False),
    ] = None,
) -> None:
    """Ingest captures as they appear in a folder, until interrupted.

    Prints the line of `tw ingest` for each run. A capture that cannot be read is reported and the others go on; it is
    tried again when its files change. After a restart, it finds the runs that are in the warehouse already. With
    --until-idle the exit code is 1 when a capture could not be ingested.
    """
    from tracewarehouse.cli.watch import Failed, Ingested, Watcher

    complaints: set[str] = set()
    with context.obj.open(create=True) as warehouse, status() as update:
        options = RunOptions(mesh, step_program=step, device=device, chip_price=chip_price)
        watcher = Watcher(warehouse, location, options, settle=settle, patience=patience)
        for event in watcher.follow(interval):
            if isinstance(event, Ingested):
                say(event.result)
                if event.replaces:
                    typer.echo(
                        f"note: {event.result.name}: run {event.replaces} was made from it when it was not complete; "
                        f"`tw remove {event.replaces}` removes that run",
                        err=True,
                    )
            elif isinstance(event, Failed):
                if str(event.error) not in complaints:
                    complain(event.error)
                complaints.add(str(event.error))
            else:
                update(f"watching {location}" + "".join(f", {name} is being written" for name in event.pending))
                if until_idle is not None and not event.pending and event.idle_seconds >= until_idle:
                    break
    if complaints:
        raise typer.Exit(1)
