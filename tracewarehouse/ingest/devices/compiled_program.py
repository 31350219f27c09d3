"""Takes a compiled program for a capture: its devices, its instructions, and the collectives of one execution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracewarehouse.ingest.collectives.windows import CollectiveExecutions, CollectiveOps
from tracewarehouse.ingest.columns.records import PHASES
from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.hosts import Device, Host
from tracewarehouse.ingest.devices.timeline import named_phase
from tracewarehouse.ingest.errors import MalformedError, shown
from tracewarehouse.ingest.hlo.instructions import Instructions
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.program import MOST_DEVICES, Program
from tracewarehouse.ingest.layers.loops import loop_chains, loop_facts, places_in_programs
from tracewarehouse.ingest.readers.hlo_program import HloProgramTrace

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.manifest import Mesh

MOST_EXECUTIONS = 1 << 24
"""Most executions of collectives, on all devices together, that are listed."""


@dataclass(frozen=True)
class CompiledProgram:
    """A compiled program and its module."""

    program: Program
    module: HloModule

    @property
    def device_count(self) -> int | None:
        """Devices for which the program says that it is compiled; None if it does not say."""
        replicas, partitions = self.module.device_counts
        return replicas * partitions if replicas * partitions > 1 else None

    @property
    def devices_named(self) -> int:
        """Devices that its replica groups count, from 0 to the highest; at least 1."""
        highest = 0
        for name in self.program.names:
            instruction = self.module.instruction(name)
            for each in (instruction, *instruction.inner) if instruction else ():
                for members in (each.replica_groups, each.source_target_pairs):
                    highest = max([highest, *(d for group in members or () for d in group)])
        return highest + 1

    def add_executions(
        self, instructions: Instructions, devices: Sequence[Device], executions: CollectiveExecutions
    ) -> None:
        """Number the instructions, and add the collectives of one execution of the program on each device.

        The order in which the program runs them takes the place of times: it pairs starts with dones.
        """
        numbers = instructions.add_program(self.module, self.program.names, self.program.lines)
        collective = {name for name, n in numbers.items() if instructions.facts[n].has_collective}
        count = self.program.count(collective.__contains__)
        if count * len(devices) > MOST_EXECUTIONS:
            raise MalformedError(
                f"{self.module.name}: runs {count} collectives on each of {len(devices)} devices; "
                f"at most {MOST_EXECUTIONS} are listed"
            )
        runs = np.array([numbers[name] for name in self.program.runs(collective.__contains__)], np.int32)
        if not len(runs):
            return
        phase = named_phase(self.module.name)
        order = np.arange(len(runs), dtype=np.int64)
        once, unknown = np.zeros(len(runs), np.int32), np.full(len(runs), -1, np.int32)
        chains, loops = loop_chains(instructions.rows)
        iteration = places_in_programs(once, order, runs, chains, loops, loop_facts(instructions.facts)).iteration
        of_phase = np.full(len(runs), PHASES.index(phase) if phase in PHASES else -1, np.int32)
        for position, device in enumerate(devices):
            event_id = order + position * len(runs)
            ops = CollectiveOps(event_id, runs, order, order, once, of_phase, unknown, iteration, unknown)
            executions.add_ops(device.device_id, device.host, ops)
            executions.finish_device(device.device_id, instructions.facts, {})


def survey_program(
    host: Host, mesh: Mesh | None, hlo_notes: list[str]
) -> tuple[CompiledProgram, list[Device], list[Flag]] | None:
    """Return a host's compiled program, its devices, and flags; None if its file is a capture.

    The devices are those that the program states, else those of the mesh, else those in its groups.
    """
    trace = host.trace
    if not isinstance(trace, HloProgramTrace):
        return None
    try:
        program = Program(trace.content)
        compiled = CompiledProgram(program, HloModule(trace.module_name, program.proto, hlo_notes))
        named = compiled.devices_named
    except MalformedError as error:
        raise MalformedError(f"{host.file_name}: not a whole program: {shown(str(error))}") from None
    if hlo_notes:
        raise MalformedError(f"{host.file_name}: {hlo_notes[0]}")
    count = compiled.device_count or (mesh.size if mesh and mesh.size >= named else named)
    if not named <= count <= MOST_DEVICES:
        raise MalformedError(
            f"{host.file_name}: its collectives name {named} devices, it is for {count}, "
            f"and at most {MOST_DEVICES} can be"
        )
    plane = trace.planes[0].name
    ids = sorted(compiled.module.assignment) if compiled.device_count else range(count)
    devices = [Device(i, host.name, plane, i, "unknown", global_id=number) for i, number in enumerate(ids)]
    more = f" and {len(program.unknown) - 5} more" if len(program.unknown) > 5 else ""
    flags = [Flag("unknown_repeats", ", ".join(program.unknown[:5]) + more)] if program.unknown else []
    return compiled, devices, flags
