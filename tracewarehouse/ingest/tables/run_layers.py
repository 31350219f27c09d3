"""Adds inferred layers to a run's instructions, for programs whose names do not state their layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.run_survey import RunSurvey
from tracewarehouse.ingest.errors import shown
from tracewarehouse.ingest.hlo.instruction_row import InferredPlace
from tracewarehouse.ingest.layers.inference import ProgramLayers, infer_layers
from tracewarehouse.ingest.layers.sequence import Execution


def place_in_layers(survey: RunSurvey, executions: Iterable[Execution]) -> list[Flag]:
    """Set the inferred layers and parts of the run's instructions, and return a flag that names their programs.

    A pipeline stage with its own program counts its layers from 0: they are layers of the stage.

    Args:
        survey: the survey of the run; its instructions know their programs, and their texts have been read.
        executions: some executions of each program.
    """
    rows = survey.instructions.rows
    inferred = [p for p in infer_layers(executions, rows) if p.is_inferred]
    mesh = survey.placement.mesh
    is_in_stage = mesh is not None and mesh.axes.get("pp", 1) > 1
    places = Counter(i for p in inferred for i in p.layer)
    for program in inferred:
        for i, layer in program.layer.items():
            if places[i] == 1:  # without program ids, one text may stand for instructions of several programs
                rows[i].inferred = InferredPlace(layer, program.part.get(i), program.confidence, is_in_stage)
    return [Flag("inferred_layers", _sentence(inferred))] if inferred else []


def _sentence(inferred: Sequence[ProgramLayers]) -> str:
    return "; ".join(f"{shown(p.program[0])}: {p.count} layers, confidence {p.confidence:.2f}" for p in inferred)
