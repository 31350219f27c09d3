"""Surveys a compiled program: finds the devices for which it is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracewarehouse.ingest.devices.compiled_program import CompiledProgram
from tracewarehouse.ingest.devices.device import Device
from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.survey import HostSurvey
from tracewarehouse.ingest.errors import MalformedError, shown
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.program import MOST_DEVICES, Program
from tracewarehouse.ingest.readers.formats import format_named
from tracewarehouse.ingest.readers.hlo_program import HloProgramTrace

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.manifest import Mesh


def survey_program(survey: HostSurvey, mesh: Mesh | None, hlo_notes: list[str]) -> list[Flag]:
    """Give a host whose file is a compiled program that program and its devices; a capture stays as it is.

    The devices are those that the program states, else those of the mesh, else those in its groups.

    Raises:
        MalformedError: the program is damaged.
    """
    trace = survey.host.trace
    if not format_named(trace.format).is_program or not isinstance(trace, HloProgramTrace):
        return []
    try:
        program = Program(trace.content)
        compiled = CompiledProgram(program, HloModule(trace.module_name, program.proto, hlo_notes))
        named = compiled.devices_named
    except MalformedError as error:
        raise MalformedError(f"{survey.host.file_name}: not a whole program: {shown(str(error))}") from None
    if hlo_notes:
        raise MalformedError(f"{survey.host.file_name}: {hlo_notes[0]}")
    stated = compiled.device_count
    count = stated or (mesh.size if mesh and mesh.size >= named else named)
    if not named <= count <= MOST_DEVICES:
        raise MalformedError(
            f"{survey.host.file_name}: its collectives name {named} devices, it is for {count}, "
            f"and at most {MOST_DEVICES} can be"
        )
    survey.program = compiled
    plane = trace.planes[0].name
    survey.devices = [Device(i, survey.host.name, plane, i, "unknown", global_id=i) for i in range(count)]
    if not program.unknown:
        return []
    more = f" and {len(program.unknown) - 5} more" if len(program.unknown) > 5 else ""
    return [Flag("unknown_repeats", ", ".join(program.unknown[:5]) + more)]
