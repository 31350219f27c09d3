"""Writes the tables that follow from all events: collectives, phases, and instructions with their layers and costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.capture.promises import CollectiveStep
from tracewarehouse.ingest.collectives.axis_inference import InferredAxis
from tracewarehouse.ingest.collectives.table import CollectiveWriter
from tracewarehouse.ingest.columns.records import Int64
from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.hosts import DAY_NS, link_between
from tracewarehouse.ingest.devices.run_survey import MissingDevices, Placement, RunSurvey
from tracewarehouse.ingest.devices.timeline import Step, host_steps, launch_offsets, named_phase, step_rows
from tracewarehouse.ingest.errors import shown
from tracewarehouse.ingest.hlo.instruction_row import InferredPlace, InstructionRow
from tracewarehouse.ingest.hlo.op_names import layer_and_part, stage_layer_and_tick
from tracewarehouse.ingest.hlo.opcodes import kernel_name
from tracewarehouse.ingest.layers.inference import ProgramLayers, infer_layers
from tracewarehouse.ingest.layers.layer_loops import KnownModel
from tracewarehouse.ingest.layers.sequence import Execution
from tracewarehouse.ingest.tables.lines import LinesWritten
from tracewarehouse.ingest.tables.staging import RunWriters

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.costs import Costs
    from tracewarehouse.ingest.capture.manifest import Manifest


@dataclass(frozen=True)
class CollectivesWritten:
    """The facts about a run that its collectives show."""

    counts: Mapping[CollectiveStep, int]
    """Executions by device, step, kind and axis."""
    incomplete_instances: int
    """Number of instances without a row of some device that is in the run."""
    inferred: tuple[InferredAxis, ...]
    """The inferred mesh axes; empty if the mesh is known."""
    missing: MissingDevices
    """Devices that replica groups count but the capture lacks."""
    flags: tuple[Flag, ...]
    """How the devices in the groups are known, if no device assignment tells."""


def write_collectives(writers: RunWriters, survey: RunSurvey, parts: Sequence[LinesWritten]) -> CollectivesWritten:
    """Join the executions on the devices of all parts, and write the tables of collectives and of devices.

    The places of the devices on a mesh are known only then, if ranks' times tell them.
    """
    groups = survey.groups()
    with ExitStack() as stack:
        executions = [stack.enter_context(p.executions) for p in parts]
        by_id = {d.device_id: d for d in survey.devices}
        hosts = {s.host.name: s.host for s in survey.hosts}
        collectives = CollectiveWriter(
            survey.instructions.rows,
            executions,
            lambda group: link_between([by_id.get(d) if d is not None else None for d in group], hosts),
            survey.clocks,
            launch_offsets(survey.timelines, survey.clocks),
            doubted=survey.doubted_clocks,
            is_timed=not survey.is_program,
        )
        collectives.write(writers["collectives"], groups)
    if groups.coordinates:
        survey.placement.lay(groups.coordinates)
    writers.write_rows("devices", map(asdict, survey.devices))
    writers.write_rows("collective_groups", groups.group_rows())
    writers.write_rows("traffic", groups.traffic_rows())
    writers.write_rows("mesh_axes", _axis_rows(survey.placement, groups.inferred))
    writers.finish("collectives", "devices")
    return CollectivesWritten(
        collectives.counts,
        collectives.incomplete_instances,
        tuple(groups.inferred),
        survey.placement.missing(len(survey.devices) + groups.missing_devices, "replica groups count"),
        (
            *(Flag("inferred_order", sentence) for sentence in groups.orders),
            *(Flag("unverified_groups", sentence) for sentence in groups.unverified),
        ),
    )


def _axis_rows(placement: Placement, inferred: Sequence[InferredAxis]) -> Iterator[dict[str, Any]]:
    if placement.mesh and placement.coordinates is not None:
        strides = placement.mesh.strides()
        for position, (axis, size) in enumerate((a, n) for a, n in placement.mesh.axes.items() if n > 1):
            place = {"position": position, "axis": axis, "size": size, "stride": strides[axis]}
            yield place | {"source": "mesh", "confidence": 1.0}
        return
    yield from ({"position": position, "source": "inferred"} | asdict(guess) for position, guess in enumerate(inferred))


def write_phases(writers: RunWriters, survey: RunSurvey, parts: Iterable[LinesWritten]) -> list[Flag]:
    """Write the rows of all devices and hosts; `parts` holds the step markers that were found.

    Returns:
        A flag for each host of whose profile the manifest's phases cannot be.
    """
    flags = []
    for surveyed in survey.hosts:
        host = surveyed.host
        for device, timeline in surveyed.device_timelines:
            writers.write_rows("phases", timeline.phase_rows(host.name, device.device_id))
        markers = [*surveyed.markers, *(m for part in parts for m in part.markers.get(host.index, ()))]
        steps = host_steps(markers)
        if not steps and survey.manifest and host.start_ns is not None:
            zero_ns = host.start_ns - host.clock_offset_ps // 1000
            steps, far_ns = _manifest_steps(survey.manifest, zero_ns)
            if far_ns:
                what = f"the manifest's phases lie {far_ns / DAY_NS:,.0f} days from the profile and are left out"
                flags.append(Flag("clock_jump", what, host.name))
        writers.write_rows("phases", step_rows(steps, {"host": host.name, "device_id": None}))
    return flags


def _manifest_steps(manifest: Manifest, zero_ns: int) -> tuple[list[Step], int]:
    """Return the steps by the collector's clock, for a capture without markers; none if they are of another time.

    The second value is then how far from the run's time 0, in ns, and else 0.
    """
    far_ns = max((abs(t - zero_ns) for m in manifest.phases for t in (m.start_ns, m.end_ns)), default=0)
    if far_ns > DAY_NS:
        return [], far_ns
    steps = [
        Step(
            m.step, named_phase(m.name), m.name, (m.start_ns - zero_ns) * 1000, (m.end_ns - zero_ns) * 1000, "manifest"
        )
        for m in manifest.phases
    ]
    return steps, 0


def place_in_layers(
    survey: RunSurvey, executions: Iterable[Execution], time_ps: Sequence[npt.NDArray[np.float64]]
) -> list[Flag]:
    """Set the layers and parts of the run's instructions that no name tells, and return flags that name their programs.

    The instructions must know their programs, and their texts have been read. A pipeline stage with its own program
    counts its layers from 0: they are layers of the stage.

    Args:
        executions: a few of each program.
        time_ps: self time by instruction id, of each part of the run.
    """
    rows = survey.instructions.rows
    mesh, manifest = survey.placement.mesh, survey.manifest
    is_in_stage = mesh is not None and mesh.axes.get("pp", 1) > 1
    layers = manifest.model.num_layers if manifest and manifest.model else None
    model = KnownModel(layers, None if mesh is None else is_in_stage)
    programs = infer_layers(executions, rows, model)
    inferred = [p for p in programs if p.is_inferred]
    places = Counter(i for p in inferred for i in (*p.layer, *p.in_loop))
    for program in inferred:
        # without program ids, one text may stand for instructions of several programs
        for i, layer in program.layer.items():
            if places[i] == 1:
                is_of_stage = is_in_stage and not program.first
                rows[i].inferred = InferredPlace(layer, program.part.get(i), program.confidence, is_of_stage)
        for i, place in program.in_loop.items():
            if places[i] == 1:
                rows[i].in_loop = place
    named = (f"{shown(p.program[0])}: {p}" for p in inferred)
    flags = [Flag("inferred_layers", "; ".join(named))] if inferred else []
    return [*flags, *_partial_layers(programs, rows, time_ps)]


_MOST_UNPLACED = 0.1
"""Share of the op time that may lack a layer in programs that have layers; a larger share is flagged."""
_OUTSIDE_LAYERS = frozenset({"embed", "lm_head", "pipeline"})


def _partial_layers(
    programs: Sequence[ProgramLayers], rows: Sequence[InstructionRow], time_ps: Sequence[npt.NDArray[np.float64]]
) -> Iterator[Flag]:
    time = _summed(time_ps, len(rows))
    time[[i for i, row in enumerate(rows) if row.op_class == "container"]] = 0
    lacking: dict[str, Int64] = {}
    for program in programs:
        if program.has_layers and not program.is_inferred:
            ids = np.array([i for i in program.instructions if not _is_placed(rows[i])], np.int64)
            names = f"names tell the layers of {program.marked_share:.0%} of its time"
            reason = names if program.is_marked else program.refusal
            lacking[f"{shown(program.program[0])}: {reason}"] = ids
    # programs may share instructions
    share = float(time[np.unique(np.concatenate([*lacking.values(), np.zeros(0, np.int64)]))].sum())
    if share > _MOST_UNPLACED * time.sum():
        of = {reason: float(time[ids].sum()) for reason, ids in lacking.items()}
        reasons = "; ".join(sorted((r for r, ps in of.items() if ps), key=lambda r: -of[r])[:3])
        yield Flag("partial_layers", f"{share / time.sum():.0%} of the op time ({reasons})")


def _is_placed(row: InstructionRow) -> bool:
    layer, part = layer_and_part(row.op_name)
    return layer is not None or part in _OUTSIDE_LAYERS or stage_layer_and_tick(row.op_name) != (None, None)


def _summed(time_ps: Iterable[npt.NDArray[np.float64]], count: int) -> npt.NDArray[np.float64]:
    total = np.zeros(count)
    for part in time_ps:
        total[: len(part)] += part
    return total


_NAMED = 48
"""Most letters of a kernel's name in a sentence on several."""
_MOST_UNSIZED = 0.1
"""Share of the compute time that may lack a cost; a larger share is flagged."""


def give_costs(rows: Iterable[InstructionRow], costs: Costs | None) -> list[Flag]:
    """Set the given costs of the instructions that compute, and return a flag that names the file and its patterns."""
    if costs is None:
        return []
    matched: Counter[str] = Counter()
    for row in rows:
        pattern = costs.pattern_of(kernel_name(row.name)) if row.op_class == "compute" else None
        if pattern is not None:
            row.given = costs.kernels[pattern]
            matched[pattern] += 1
    used = [f"{shown(p)} ({matched[p]} instructions)" for p in costs.kernels if matched[p]]
    unused = [shown(p) for p in costs.kernels if not matched[p]]
    sentence = f"{shown(costs.name)} gives the costs of {', '.join(used) or 'no kernel of the run'}"
    return [Flag("given_costs", f"{sentence}; {', '.join(unused)} matches none" if unused else sentence)]


def unsized_time(
    rows: Sequence[InstructionRow],
    time_ps: Iterable[npt.NDArray[np.float64]],
    sized_ps: Sequence[Mapping[str, npt.NDArray[np.float64]]],
) -> Iterator[Flag]:
    """Yield a flag if much of the compute time is in ops whose bytes or operations are unknown while others' are known.

    Args:
        rows: the instructions with the given costs.
        time_ps: self time by instruction id, of each part of the run.
        sized_ps: the part of it in ops whose events state bytes or flops.
    """
    total = _summed(time_ps, len(rows))
    computing = [
        (n, r, t) for n, (r, t) in enumerate(zip(rows, total.tolist(), strict=True)) if t and r.op_class == "compute"
    ]
    compute_ps = sum(ps for _, _, ps in computing)
    unsized: dict[str, dict[str, float]] = {}
    for what, stated in (("bytes", ("bytes_accessed",)), ("flops", ("model_flops", "flops"))):
        kernels: dict[str, float] = {}
        sized = _summed((part[what] for part in sized_ps if what in part), len(rows)).tolist()
        for number, row, ps in computing:
            if ps > sized[number] and not _is_sized(row, getattr(row.given, what, None), stated):
                kernels[kernel_name(row.name)] = kernels.get(kernel_name(row.name), 0) + ps - sized[number]
        if _MOST_UNSIZED * compute_ps < sum(kernels.values()) < compute_ps:
            unsized[what] = kernels
    if unsized:
        shares = " and ".join(f"the {what} of {sum(k.values()) / compute_ps:.0%}" for what, k in unsized.items())
        most = max(unsized.values(), key=lambda k: sum(k.values()))
        longest = sorted(most.items(), key=lambda item: (-item[1], item[0]))[:3]
        named = ((n if len(n) <= _NAMED else f"{n[:_NAMED]}...", ps) for n, ps in longest if ps >= compute_ps / 100)
        kernels_named = ", ".join(f"{shown(name)} {ps / compute_ps:.0%}" for name, ps in named)
        what = f"{shares} of the compute time are unknown ({kernels_named})"
        yield Flag("unsized_time", f"{what}; give them with `--costs FILE` at ingest")


def kernel_communication(rows: Sequence[InstructionRow], time_ps: Iterable[npt.NDArray[np.float64]]) -> Iterator[Flag]:
    """Yield a flag if kernels send data to other devices themselves; `time_ps` is as in `unsized_time`."""
    total = _summed(time_ps, len(rows))
    compute_ps = sum(ps for row, ps in zip(rows, total.tolist(), strict=True) if row.op_class == "compute")
    kernels: dict[str, float] = {}
    for row, ps in zip(rows, total.tolist(), strict=True):
        if ps and (row.is_communicating or (row.hlo is not None and row.hlo.is_communicating)):
            kernels[kernel_name(row.name)] = kernels.get(kernel_name(row.name), 0) + ps
    if kernels:
        longest = sorted(kernels.items(), key=lambda item: (-item[1], item[0]))[:3]
        named = ", ".join(f"{shown(name)} {ps / compute_ps:.0%}" for name, ps in longest)
        share = f"kernels of {sum(kernels.values()) / compute_ps:.0%} of the compute time"
        yield Flag("kernel_communication", f"{share} send data to other devices themselves ({named})")


def _is_sized(row: InstructionRow, given: int | None, stats: Iterable[str]) -> bool:
    """True if the instruction's cost is known; the compiler does not know that of a custom call, so 0 is none there."""
    is_custom = row.hlo is not None and row.hlo.opcode == "custom-call"
    stated: list[int | None] = [getattr(row, name) for name in stats]
    return given is not None or any(each if is_custom else each is not None for each in stated)
