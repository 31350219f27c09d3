"""Predicts the configurations of a study: compiles them in one process, and ingests each as a predicted run."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracewarehouse.collect.ahead_of_time import PHASES, CompiledRun, Configuration, compile_all, kept_programs
from tracewarehouse.collect.errors import ExperimentError
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.models.architectures import model_architecture
from tracewarehouse.collect.run_spec import MICROBENCHMARKS, RunSpec
from tracewarehouse.collect.tpu.compile_ahead import Topology
from tracewarehouse.comparison.calibration import RecordedKernels
from tracewarehouse.ingest.capture.manifest import Mesh
from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.predict.calibrations import FILE, Calibration, read_calibrations
from tracewarehouse.predict.configuration import (
    WhatIf,
    configuration,
    memory_refusal,
    model_layers,
    predicted_capture,
    room_refusal,
)
from tracewarehouse.predict.whole_model import UnsteadyLayersError
from tracewarehouse.queries.read_only import literal
from tracewarehouse.warehouse import Warehouse


@dataclass(frozen=True)
class Place:
    """A configuration of a study by its mesh and slice, with the run, or the reason why there is none."""

    mesh: str
    topology: str
    batch: int | None
    spec: RunSpec | None = None
    refused: str | None = None


@dataclass(frozen=True)
class Outcome:
    """A configuration with its predicted run, or the reason why there is none."""

    place: Place
    run_id: str | None = None
    refused: str | None = None


def places(meshes: Sequence[str], slices: Sequence[str], batches: Sequence[int | None], **fields: Any) -> list[Place]:
    """Return every combination of batches with the pairs of a mesh and a slice that have as many devices.

    Without meshes, each slice gets those that divide a model by dp and tp, or one with experts by ep and tp.
    """
    counts = {name: devices(name) for name in slices}
    sizes = {mesh: _size(mesh) for mesh in meshes}
    for what, given, others in (("mesh", sizes, counts), ("slice", counts, sizes)):
        for name, count in given.items():
            if meshes and count not in others.values():
                raise ExperimentError(
                    f"{what} {name} has {count} devices, and none of {', '.join(others)} has as many; add one that has"
                )
    found = []
    for topology in slices:
        asked = [mesh for mesh in meshes if sizes[mesh] == counts[topology]]
        pairs = itertools.product(asked or _sensible_meshes(fields["model"], counts[topology]), batches)
        tried = [_place(mesh, topology, {**fields, "batch": batch}) for mesh, batch in pairs]
        # of meshes that nobody asked for, those that the model cannot have are no answer, unless it can have none
        found += tried if asked else [place for place in tried if place.spec is not None] or tried
    return found


def _size(mesh: str) -> int:
    try:
        return Mesh.parse(mesh).size
    except ValueError as error:
        raise ExperimentError(str(error)) from None


def devices(topology: str) -> int:
    """Return the number of devices of a slice, by its name; raise ExperimentError if it is none."""
    try:
        return Topology.parse(topology).devices
    except ValueError as error:
        raise ExperimentError(str(error)) from None


def _sensible_meshes(model: str, devices: int) -> list[str]:
    if model == MICROBENCHMARKS:
        return [f"tp={devices}"]
    axis = "ep" if model_architecture(model).is_moe else "dp"
    shares = [n for n in range(1, devices + 1) if devices % n == 0]
    return [f"{axis}={n},tp={devices // n}" for n in shares]


def _place(mesh: str, topology: str, fields: dict[str, Any]) -> Place:
    try:
        return Place(mesh, topology, fields["batch"], run_spec(mesh=mesh, **fields))
    except ExperimentError as error:
        return Place(mesh, topology, fields["batch"], refused=str(error))


def predicted(
    warehouse: Warehouse,
    study: Sequence[Place],
    what_if: WhatIf,
    *,
    python: str = sys.executable,
    is_whole: bool = False,
    phases: tuple[str, ...] = PHASES,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Outcome]:
    """Predict each configuration of a study and ingest its run; programs that were compiled before are kept ones.

    A kernel that a recorded run of the warehouse holds, with equal shapes on equal chips, takes its median there.
    A step whose first layers cannot tell the others is compiled whole, and both are if the memory is near to a chip's.

    Args:
        warehouse: gets the runs; its calibrations.csv has rates that win over those that ship.
        what_if: what is changed about the real slices.
        python: an interpreter with the compiler.
        is_whole: compile all layers of every model.
        phases: what is predicted of a run; a decode step compiles in a fifth of the time of a prefill.
        say: takes what is being done.
    """
    asked: list[tuple[Place, Configuration]] = []
    for place in study:
        if place.spec is None:
            yield Outcome(place, refused=place.refused)
        elif refused := room_refusal(place.spec, place.topology):
            yield Outcome(place, refused=refused)
        else:
            asked.append((place, configuration(place.spec, place.topology, is_whole=is_whole, phases=phases)))
    own, kernels = read_calibrations(Path(warehouse.path) / FILE), RecordedKernels(warehouse)
    parts: dict[int, CompiledRun] = {}  # by place, the run of which some steps are compiled again
    with tempfile.TemporaryDirectory(prefix="tw-plan-") as folder:
        for turn in itertools.count():
            if not asked:
                return
            say(f"compiling {len(asked)} configurations")
            here = Path(folder) / str(turn)
            again: list[tuple[Place, Configuration]] = []
            done = compile_all([each for _, each in asked], here / "compiled", python, kept_programs())
            for number, ((place, each), new) in enumerate(zip(asked, done, strict=True), 1):
                say(f"compiled {number} of {len(asked)}: {each.spec.name} on {each.topology}")
                run = _joined(parts.pop(id(place), None), new)
                try:
                    yield _outcome(warehouse, place, run, what_if, here / str(number), own, kernels)
                except UnsteadyLayersError as error:
                    whole = configuration(each.spec, each.topology, is_whole=True, phases=phases)
                    if 0 < len(error.phases) < len(run.steps):
                        parts[id(place)] = run
                        whole = replace(whole, phases=error.phases)
                    again.append((place, whole))
            asked = again


def _joined(part: CompiledRun | None, whole: CompiledRun) -> CompiledRun:
    """Return the run of a part of a model with those steps that are compiled whole."""
    if part is None or whole.refused:
        return whole
    layers = whole.configuration.spec.layers
    own = {step.phase: replace(step, compiled_layers=layers) for step in whole.steps}
    return replace(part, steps=tuple(own.get(step.phase, step) for step in part.steps))


def _outcome(
    warehouse: Warehouse,
    place: Place,
    run: CompiledRun,
    what_if: WhatIf,
    folder: Path,
    own: Sequence[Calibration],
    kernels: RecordedKernels,
) -> Outcome:
    refused = run.refused or memory_refusal(run)
    if refused is not None:
        return Outcome(place, refused=refused)
    try:
        capture = predicted_capture(run, what_if, folder, own, kernels.find)
        [result] = warehouse.ingest(capture)
    except UnsteadyLayersError:
        raise
    except TracewarehouseError as error:
        return Outcome(place, refused=str(error))
    return Outcome(place, result.run_id)


def rows(warehouse: Warehouse, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return what is predicted of each configuration, as macros.planned_runs says; others have the reason `refused`.

    Of a part of a model `is_fitting` is of the whole: False where weights and cache alone are too large, else None.
    """
    ids = [outcome.run_id for outcome in outcomes if outcome.run_id is not None]
    answer = warehouse.query(f"FROM macros.planned_runs([{', '.join(map(literal, ids))}])") if ids else None
    facts = {row["run_id"]: row for row in answer.dicts()} if answer is not None else {}
    out = []
    for outcome in outcomes:
        place = outcome.place
        asked = {"mesh": place.mesh, "topology": place.topology, "batch_size": place.batch}
        if outcome.run_id is None or place.spec is None:
            out.append(asked | {"refused": outcome.refused})
        else:
            row = facts[outcome.run_id] | {"model_layers": model_layers(place.spec)}
            if row["model_layers"] != place.spec.layers:  # a part that fits says nothing of the whole
                whole = place.spec.model_copy(update={"layers": row["model_layers"]})
                row["is_fitting"] = False if room_refusal(whole, place.topology) else None
            out.append(row)
    return out
