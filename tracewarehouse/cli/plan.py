"""`tw plan`: predict how configurations of a study would do on TPU slices, before there is one."""

from __future__ import annotations

import itertools
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from json import loads as parse_json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracewarehouse.cli.collect import (
    BackendOption,
    CapacityFactorOption,
    InputLengthOption,
    LayersOption,
    MicrobatchesOption,
    OutputLengthOption,
    RoutingSkewOption,
    SequenceParallelismOption,
)
from tracewarehouse.cli.options import complete_runs
from tracewarehouse.cli.output import lasting_echo, say_note, status

if TYPE_CHECKING:
    from tracewarehouse.comparison.study import Place

_WIDTH = 100
_UNKNOWN = "-"


def plan(
    context: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL|EXPERIMENT",
            help="A model, as in `tw collect --model`; an experiment file, or the name of a ready-made one.",
            show_default=False,
        ),
    ] = None,
    slices: Annotated[
        str | None,
        typer.Option(
            help="Slices as libtpu names them, separated by commas: v6e:2x4, v4:2x2x1, tpu7x:2x2x1 (2 devices a chip)."
        ),
    ] = None,
    meshes: Annotated[
        str | None,
        typer.Option(
            help="Meshes, outermost axis first, separated by spaces: 'tp=8 dp=2,tp=4'. Default: all of dp and tp, or "
            "of ep and tp with experts."
        ),
    ] = None,
    batches: Annotated[str | None, typer.Option(help="Batches, in sequences, separated by commas: 1,8,32.")] = None,
    sequence_parallelism: SequenceParallelismOption = None,
    microbatches: MicrobatchesOption = None,
    input_length: InputLengthOption = None,
    output_length: OutputLengthOption = None,
    layers: LayersOption = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "bfloat16",
    capacity_factor: CapacityFactorOption = None,
    routing_skew: RoutingSkewOption = None,
    backend: BackendOption = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Compile all layers, not only as many as tell the others.")
    ] = False,
    decode_only: Annotated[
        bool, typer.Option("--decode-only", help="Compile no prefill, which takes five times as long as a decode step.")
    ] = False,
    ici_factor: Annotated[
        float, typer.Option(min=0.01, max=1000, help="What if the links were so many times as fast?")
    ] = 1.0,
    hbm_factor: Annotated[
        float, typer.Option(min=0.01, max=1000, help="What if the HBM were so many times as fast?")
    ] = 1.0,
    host_ms: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1e6,
            help="Milliseconds that the host adds to each step. Default: none, or what --calibrate measured.",
        ),
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=US", help="What if one execution of a kernel took so many microseconds?"),
    ] = None,
    chip_price: Annotated[
        float | None, typer.Option(min=0, max=1e6, help="Dollars for an hour of a chip, in place of the list price.")
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Plan nothing: replace the rates of predictions by what the ops of this recorded run took.",
            autocompletion=complete_runs,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all that is predicted as a JSON list.")] = False,
    python: Annotated[str, typer.Option(help="Python that has jax and libtpu.")] = sys.executable,
) -> None:
    """Predict how a model would run on TPU slices that need not exist, from what the TPU compiler makes of it.

    Compiles prefill and decode of every combination of batch with the meshes and slices that have as many devices, and
    ingests each as a run with predicted times. Prints a row for each: its latencies with their ranges, throughput,
    communication, utilization, memory and cost, or why it cannot be. --json has more. Of a large model few layers are
    compiled. Programs are kept, so a plan that was stopped goes on, and a what-if compiles nothing. A kernel takes its
    median in the newest recorded run of the warehouse that holds it, with equal shapes on equal chips, if one does.

    The backend is jax by default, which needs the extra `jax` in the interpreter of --python; torch_xla needs the extra
    `collect` here, and `jax` in that interpreter.

    With --calibrate it prints each rate that changed, before and after, and keeps them in calibrations.csv in the
    warehouse. Delete rows of that file, or the file, to return to the rates that ship.
    """
    if calibrate is not None:
        if what is not None:
            raise typer.BadParameter("--calibrate takes a recorded run and no model")
        _calibrate(context, calibrate)
        return
    if what is None or not (topologies := _split(slices or "")):
        raise typer.BadParameter("expected a model or experiment and --slices, or --calibrate RUN")
    from tracewarehouse.collect.ahead_of_time import PHASES
    from tracewarehouse.comparison.study import Outcome, predicted, rows
    from tracewarehouse.predict.configuration import WhatIf
    from tracewarehouse.queries.output import dump

    study = _study(
        what,
        list(dict.fromkeys(_some("--meshes", meshes.split()))) if meshes is not None else [],
        topologies,
        [_batch(batch) for batch in _some("--batches", _split(batches))] if batches is not None else [],
        sequence_parallelism=sequence_parallelism,
        microbatches=microbatches,
        input_length=input_length,
        output_length=output_length,
        layers=layers,
        dtype=dtype,
        capacity_factor=capacity_factor,
        routing_skew=routing_skew,
        backend=backend or "jax",
    )
    what_if = WhatIf(ici_factor, hbm_factor, host_ms, dict(map(_kernel, kernel or ())), chip_price)
    outcomes: list[Outcome] = []
    with context.obj.open(create=True) as warehouse:
        with status() as update:
            for outcome in predicted(
                warehouse,
                study,
                what_if,
                python=python,
                is_whole=whole,
                phases=("decode",) if decode_only else PHASES,
                say=update,
            ):
                outcomes.append(outcome)
                if outcome.refused is None:
                    update(f"{len(outcomes)} of {len(study)} predicted")
        answer = rows(warehouse, sorted(outcomes, key=lambda outcome: study.index(outcome.place)))
    if json:
        lasting_echo(dump(answer))
    else:
        for line in _lines(answer):
            lasting_echo(line)
        if len(answer) > sum("refused" in row for row in answer):
            from tracewarehouse.dashboards.words import NOT_PREDICTED

            say_note(
                "comm%, MFU% and bound are of prefill/decode; MB/tok is what all chips send for a token; h/M and $/M "
                "are chip-hours and dollars for a million output tokens, by decode alone"
            )
            for said in (*_skewed(study), *_measured(row.get("measured_kernels") for row in answer)):
                say_note(said)
            say_note(NOT_PREDICTED[:1].lower() + NOT_PREDICTED[1:])
            say_note(_served())
    if all("refused" in row for row in answer):
        raise typer.Exit(1)


def _skewed(study: Sequence[Place]) -> Iterator[str]:
    """Say what a routing skew does to the loads of devices: the times are those of the busiest, if it is known."""
    from tracewarehouse.collect.checks.promises import busiest_load

    specs = [place.spec for place in study if place.spec and place.spec.routing_skew]
    for ep, spec in {spec.axis("ep"): spec for spec in specs}.items():
        load = busiest_load(spec)
        if load is None:
            told = "more than the mean (groups limit the choice, so how much is unknown); the times are of equal loads"
        else:
            told = f"{load:.2f} times the mean of the pairs of token and expert; the times are those of this device"
        yield (
            f"with a routing skew of {spec.routing_skew:g} the device with the preferred experts of ep={ep} is "
            f"expected to compute {told}"
        )


def _measured(said: Iterable[str | None]) -> Iterator[str]:
    """Say which kernels take the median of a recorded run, given what each row says of them."""
    from tracewarehouse.ingest.capture.prediction import MeasuredKernel

    for kernels in dict.fromkeys(each for each in said if each):
        yield from (MeasuredKernel.model_validate(kernel).sentence for kernel in parse_json(kernels))


def _served() -> str:
    """Say how much longer a server's steps are than the ranges of the table, by the two terms that make them longer."""
    from tracewarehouse.predict.calibrations import rates

    found = rates("*")
    engine, host = found["engine", "factor"], found["host", "ms"]
    ends = f"low x {engine.low:g} + {host.low:g} to high x {engine.high:g} + {host.high:g} ms"
    return (
        f"a server's step takes {engine.low:g} to {engine.high:g} times as long (engine term: ragged kernels, padding, "
        f"sampling) and {host.low:g} to {host.high:g} ms more (host term), so {ends}"
    )


def _calibrate(context: typer.Context, reference: str) -> None:
    from tracewarehouse.comparison.calibration import calibrate

    with context.obj.open() as warehouse:
        done = calibrate(warehouse, reference)
    for before, after in done.changes:
        was, now = (f"{r.value:.4g} ({r.low:.4g} to {r.high:.4g})" if r else _UNKNOWN for r in (before, after))
        lasting_echo(f"{after.chip}\t{after.class_} {after.what}\t{was}\t{now}\tn={after.n}")
    against = f", from what was predicted in {', '.join(done.predicted)}" if done.predicted else ""
    say_note(f"written to {done.path}{against}")
    if done.kept:
        say_note(f"no rate follows from {'; '.join(done.kept)}")


def _study(
    what: str, meshes: Sequence[str], slices: Sequence[str], batches: Sequence[int], **fields: Any
) -> list[Place]:
    from tracewarehouse.collect import experiment
    from tracewarehouse.collect.errors import ExperimentError
    from tracewarehouse.comparison.study import Place, devices, places
    from tracewarehouse.ingest.capture.manifest import Mesh

    if what not in experiment.ready_made() and not what.endswith((".yaml", ".yml")):
        try:
            study = places(meshes, slices, batches or [None], model=what, **fields)
        except ExperimentError as error:
            raise typer.BadParameter(str(error)) from None
        reasons = {place.refused for place in study}
        if len(reasons) == 1 and (reason := reasons.pop()):  # a mistake of the command, not an answer for each
            raise typer.BadParameter(reason)
        return study
    runs = experiment.plan(experiment.load_experiment(Path(what)))
    wanted = {str(Mesh.parse(mesh)) for mesh in meshes}
    backend = {"backend": fields["backend"], "device": "cpu"}
    found: list[Place] = []
    for run in runs:
        if (wanted and str(run.mesh) not in wanted) or (batches and run.batch not in batches):
            continue
        spec = run.model_copy(update=backend | {"dtype": fields["dtype"]})
        batch = spec.batch if spec.has_model else None
        found += [Place(str(spec.mesh), each, batch, spec) for each in slices if devices(each) == spec.mesh.size]
    if not found:
        raise typer.BadParameter(f"no run of {what} has a mesh with as many devices as a slice of --slices")
    return found


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(part for part in re.split(r"[,\s]+", text) if part))


def _some(option: str, parts: list[str]) -> list[str]:
    if not parts:
        raise typer.BadParameter(f"{option}: expected at least one, found none; leave the option out for the default")
    return parts


def _batch(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise typer.BadParameter(f"--batches: expected numbers separated by commas, found {text!r}")
    return int(text)


def _kernel(text: str) -> tuple[str, float]:
    name, _, us = text.partition("=")
    form = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[-+]?[0-9]+)?"
    if not name or not re.fullmatch(form, us) or not 1e-6 <= float(us) <= 1e9:
        raise typer.BadParameter(f"--kernel: expected NAME=US with microseconds from 1e-6 to 1e9, found {text!r}")
    return name, float(us)


def _lines(answer: Sequence[dict[str, Any]]) -> Iterator[str]:
    width = max(_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else _WIDTH
    for number, (topology, group) in enumerate(itertools.groupby(answer, key=lambda row: row["topology"])):
        members = list(group)
        if number:
            yield ""
        yield from textwrap.wrap(_heading(topology, members), width)
        cells = [_HEADERS, *(_cells(row) for row in members if "refused" not in row)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        if len(cells) > 1:
            yield _row(_HEADERS, widths)
        for row in members:
            if "refused" in row:
                said = f"{row['mesh']} {row['batch_size'] or ''}".strip() + f": {row['refused']}"
                yield from textwrap.wrap(said, width, subsequent_indent="  ", break_on_hyphens=False)
            else:
                yield _row(_cells(row), widths)


def _heading(topology: str, members: Sequence[dict[str, Any]]) -> str:
    row = next((row for row in members if "refused" not in row), None)
    if row is None:
        return topology
    changes = [
        f"{name} x {row[f'{name.lower()}_factor']:g}" for name in ("ICI", "HBM") if row[f"{name.lower()}_factor"] != 1
    ]
    changes += [f"host {row['host_ms']:g} ms a step"] if row["host_ms"] else []
    changes += [f"kernels {row['kernels']}"] if row["kernels"] else []
    changes += [f"rates of {row['calibration']}"] if row["calibration"] else []
    facts = [
        f"{row['layers']} layers" if row["layers"] == row["model_layers"] else _part(members, row),
        row["dtype"],
        f"{row['input_length']} tokens in, {row['output_length']} out",
        f"{row['chips']} chips of {row['capacity_bytes'] / 1e9:.3g} GB",
        *changes,
    ]
    return f"{row['model']} on {topology}, predicted: {', '.join(facts)}"


def _part(members: Sequence[dict[str, Any]], row: dict[str, Any]) -> str:
    said = " (the whole does not fit)" * all(m["is_fitting"] is False for m in members if "refused" not in m)
    return f"only {row['layers']} of {row['model_layers']} layers{said}"


_HEADERS = ["mesh", "b", "TTFT ms", "TPOT ms", "s", "tok/s/c", "comm%", "MFU%", "MB/tok", "GB", "h/M", "$/M", "bound"]
"""Columns of the table: batch, latencies with their ranges, end to end, output tokens a second and chip, exposed
communication and MFU of prefill/decode, bytes sent for an output token, memory, chip-hours and dollars for a
million output tokens, what prefill/decode use most."""


def _cells(row: dict[str, Any]) -> list[str]:
    e2e = row["e2e_ms"]
    return [
        "".join(re.findall(r"[a-z]+|\d+", row["mesh"])) if row["mesh"] else "1",
        str(row["batch_size"]),
        _ranged(row["ttft_ms"], row["ttft_low_ms"], row["ttft_high_ms"]),
        _ranged(row["tpot_ms"], row["tpot_low_ms"], row["tpot_high_ms"]),
        _number(e2e and e2e / 1e3),
        _number(row["tokens_per_s_per_chip"]),
        _percents(row["prefill_communication"], row["decode_communication"]),
        _percents(row["prefill_mfu"], row["decode_mfu"]),
        _number(row["traffic_bytes_per_token"] and row["traffic_bytes_per_token"] / 1e6, 2),
        _number(row["memory_bytes"] / 1e9, 2),
        _number(row["output_chip_hours"], 2),
        _number(row["output_usd"], 2),
        "/".join(str(row[f"{phase}_bottleneck"] or _UNKNOWN)[:5] for phase in ("prefill", "decode")),
    ]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        f"{cell:<{w}}" if i in (0, 12) else f"{cell:>{w}}"
        for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
    )
    return " ".join([first, *others]).rstrip()


def _ranged(value: float | None, low: float | None, high: float | None) -> str:
    return f"{_number(value)} {_number(low, 2)}-{_number(high, 2)}" if value is not None else _UNKNOWN


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return _UNKNOWN
    if abs(value) >= 10**digits:
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def _percents(*shares: float | None) -> str:
    return "/".join(_UNKNOWN if share is None else f"{100 * share:.0f}" for share in shares)
