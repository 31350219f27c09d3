"""HLO facts of real captures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from xplane_reference import read_xplane

from tracewarehouse.ingest.hlo.collectives import Collective, find_collective
from tracewarehouse.ingest.hlo.instruction import Instruction, signature
from tracewarehouse.ingest.hlo.proto import Module, read_module
from tracewarehouse.ingest.hlo.text import parse_instruction
from tracewarehouse.ingest.readers.xplane.reader import XPlaneTrace

V6E = "tpu-v6e-4chip-host-offload.xplane.pb"


def modules(trace: XPlaneTrace) -> dict[str, Module]:
    """The embedded modules by the name of their metadata, such as 'jit_f(123)'."""
    return {
        metadata.name: read_module(stat.value)
        for plane in trace.planes
        for metadata in plane.event_metadata
        for stat in metadata.stats
        if isinstance(stat.value, bytes) and stat.name in ("Hlo Proto", "hlo_proto")
    }


def texts(trace: XPlaneTrace, plane: str) -> list[tuple[Instruction, dict[str, object]]]:
    """Instructions stated as text on a plane, with the stats of their metadata."""
    found = next(each for each in trace.planes if each.name == plane)
    parsed = [(parse_instruction(each.name), {s.name: s.value for s in each.stats}) for each in found.event_metadata]
    return [(instruction, stats) for instruction, stats in parsed if instruction is not None]


def collectives(instructions: list[Instruction]) -> Counter[tuple[object, ...]]:
    found = [collective for each in instructions if (collective := find_collective(each))]
    return Counter((each.kind, each.message_bytes, each.dtype, each.members) for each in found)


def facts(instruction: Instruction) -> dict[str, object]:
    """What both text and proto state; profilers print no metadata into the text, and signatures find its memories."""
    return {
        key: value
        for key, value in instruction._asdict().items()
        if key not in ("op_name", "op_name_source", "op_type", "source_file", "source_line", "text", "inner", "spaces")
    }


def test_v6e_text_and_proto_agree_on_every_instruction(shared_traces: Path) -> None:
    trace = read_xplane(shared_traces / V6E)
    embedded = modules(trace)
    assert sorted(name.partition("(")[0] for name in embedded) == [
        "jit__psum",
        "jit_broadcast_in_dim",
        "jit_convert_element_type",
        "jit_f",
    ]
    compared = Counter[str]()
    for device in range(4):
        for stated, stats in texts(trace, f"/device:TPU:{device}"):
            names = [name for name in embedded if name.endswith(f"({stats['program_id']})")]
            assert len(names) == 1
            twin = embedded[names[0]].instructions[stated.name]
            assert facts(stated) == facts(twin)
            assert signature(stated) == signature(twin)
            assert find_collective(stated) == find_collective(twin)
            compared[stated.opcode] += 1
    assert compared == {"copy-start": 30, "copy-done": 24, "fusion": 12, "all-reduce": 4, "broadcast": 1}


def of(module: Module, kind: str) -> list[tuple[Instruction, Collective]]:
    found = [(i, c) for i in module.instructions.values() if (c := find_collective(i))]
    return [(i, c) for i, c in found if c.kind == kind]
