"""Writes the tables about the collectives of all devices: executions, groups, traffic and mesh axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tracewarehouse.ingest.capture.promises import CollectiveStep
from tracewarehouse.ingest.collectives.axis_inference import InferredAxis
from tracewarehouse.ingest.collectives.table import CollectiveWriter
from tracewarehouse.ingest.devices.run_survey import MissingDevices, Placement, RunSurvey
from tracewarehouse.ingest.tables.lines import LinesWritten
from tracewarehouse.ingest.tables.writers import RunWriters


@dataclass(frozen=True)
class CollectivesWritten:
    """The facts about a run that its collectives show.

    Attributes:
        counts: executions by device, step, kind and axis.
        incomplete_instances: instances without a row of some device that is in the run.
        inferred: the inferred mesh axes; empty if the mesh is known.
        missing: devices that replica groups count but the capture lacks.
    """

    counts: Mapping[CollectiveStep, int]
    incomplete_instances: int
    inferred: tuple[InferredAxis, ...]
    missing: MissingDevices


def write_collectives(writers: RunWriters, survey: RunSurvey, parts: Sequence[LinesWritten]) -> CollectivesWritten:
    """Join the executions on the devices of all parts, and write the tables of collectives."""
    groups = survey.groups()
    with ExitStack() as stack:
        executions = [stack.enter_context(p.executions) for p in parts]
        collectives = CollectiveWriter(survey.instructions.rows, executions, is_timed=not survey.is_program)
        collectives.write(writers["collectives"], groups)
    writers.write_rows("collective_groups", groups.group_rows())
    writers.write_rows("traffic", groups.traffic_rows())
    writers.write_rows("mesh_axes", _axis_rows(survey.placement, groups.inferred))
    writers.finish("collectives")
    return CollectivesWritten(
        collectives.counts,
        collectives.incomplete_instances,
        tuple(groups.inferred),
        survey.placement.missing(len(survey.devices) + groups.missing_devices, "replica groups count"),
    )


def _axis_rows(placement: Placement, inferred: Sequence[InferredAxis]) -> Iterator[dict[str, Any]]:
    """Rows of main.mesh_axes."""
    if placement.mesh and placement.coordinates is not None:
        strides = placement.mesh.strides()
        for position, (axis, size) in enumerate((a, n) for a, n in placement.mesh.axes.items() if n > 1):
            place = {"position": position, "axis": axis, "size": size, "stride": strides[axis]}
            yield place | {"source": "mesh", "confidence": 1.0}
        return
    for position, guess in enumerate(inferred):
        yield {
            "position": position,
            "axis": guess.axis,
            "size": guess.size,
            "stride": guess.stride,
            "source": "inferred",
            "confidence": guess.confidence,
            "evidence": guess.evidence,
        }
