"""HLO facts of real captures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from xplane_reference import read_xplane

from tracewarehouse.ingest.collectives.participants import traffic_edges
from tracewarehouse.ingest.hlo.collectives import Collective, find_collective
from tracewarehouse.ingest.hlo.instruction import Instruction, signature
from tracewarehouse.ingest.hlo.op_names import layer_and_part
from tracewarehouse.ingest.hlo.proto import Module, read_module
from tracewarehouse.ingest.hlo.text import parse_instruction
from tracewarehouse.ingest.readers.xplane.reader import XPlaneTrace

V6E = "tpu-v6e-4chip-host-offload.xplane.pb"
VLLM = "tpu-2chip-vllm-tp2-prefill.xplane.pb"
TP4 = ((0, 1, 2, 3),)


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


@pytest.mark.parametrize("device", range(4))
def test_v6e_all_reduce(shared_traces: Path, device: int) -> None:
    found = [i for i, _ in texts(read_xplane(shared_traces / V6E), f"/device:TPU:{device}")]
    groups = ((0, 4), (1, 5), (2, 6), (3, 7))
    assert collectives(found) == {("all-reduce", 5 * 1024 * 1024 * 256 * 4, "f32", groups): 1}
    reduce = next(c for i in found if (c := find_collective(i)))
    assert (reduce.role, reduce.channel_id, reduce.group_size) == (None, 1, 2)
    assert reduce.message_bytes is not None
    # A ring of two: each sends the whole message, half of it twice.
    assert traffic_edges("all-reduce", reduce.groups or (), reduce.message_bytes)[0] == (0, 4, reduce.message_bytes)


def test_v6e_text_and_proto_agree_on_every_instruction(shared_traces: Path) -> None:
    trace = read_xplane(shared_traces / V6E)
    embedded = modules(trace)
    assert sorted(module.name for module in embedded.values()) == [
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


def test_v6e_device_assignment_names_all_eight_devices(shared_traces: Path) -> None:
    psum = next(m for m in modules(read_xplane(shared_traces / V6E)).values() if m.name == "jit__psum")
    assert psum.device_assignment == tuple((device,) for device in range(8))


@pytest.mark.parametrize("device", range(2))
def test_vllm_collectives(shared_traces: Path, device: int) -> None:
    found = texts(read_xplane(shared_traces / VLLM), f"/device:TPU:{device}")
    assert len(found) == 3454
    assert not any(instruction.is_truncated for instruction, _ in found)
    assert collectives([instruction for instruction, _ in found]) == {
        ("all-reduce", 1024 * 5120 * 2, "bf16", ((0, 1),)): 129,
        ("all-gather", 2 * 1 * 8 * 4, "s32", ((0, 1),)): 1,
        ("all-gather", 2 * 1 * 8 * 2, "bf16", ((0, 1),)): 1,
    }
    # The opcode finds exactly what the profiler's own category says.
    for instruction, stats in found:
        collective = find_collective(instruction)
        category = stats["hlo_category"]
        assert (collective.kind if collective else None) == (
            category if category in ("all-reduce", "all-gather") else None
        )


def test_vllm_asynchronous_ops_pair_by_operand(shared_traces: Path) -> None:
    found = {i.name: i for i, _ in texts(read_xplane(shared_traces / VLLM), "/device:TPU:0")}
    for name, instruction in found.items():
        if instruction.opcode in ("copy-done", "async-done"):
            start = found[instruction.operand_names[0]]
            assert start.opcode == instruction.opcode.replace("-done", "-start")
            assert instruction.operand_shapes[0] == start.shape
        if instruction.opcode.startswith("async-"):
            assert instruction.async_opcode == "slice", name


def test_vllm_parts(shared_traces: Path) -> None:
    parts = Counter(
        (instruction.opcode, layer_and_part(str(stats.get("tf_op", ""))))
        for instruction, stats in texts(read_xplane(shared_traces / VLLM), "/device:TPU:0")
    )
    assert parts["pad", (None, "attn")] == 64
    assert {part for (_, part), _ in parts.items()} <= {
        (None, "attn"),
        (None, "embed"),
        (None, "lm_head"),
        (None, None),
    }


def by_phase(shared_traces: Path, capture: str) -> dict[str, Module]:
    found = modules(read_xplane(shared_traces / "cpu" / f"{capture}.xplane.pb"))
    return {module.name.split(".")[0]: module for module in found.values()}


def of(module: Module, kind: str) -> list[tuple[Instruction, Collective]]:
    found = [(i, c) for i in module.instructions.values() if (c := find_collective(i))]
    return [(i, c) for i, c in found if c.kind == kind]


def test_cpu_pipeline_layers_are_local_to_a_stage_and_so_unknown(shared_traces: Path) -> None:
    decode = by_phase(shared_traces, "cpu_llama_pp2tp2")["decode"]
    assert {layer_and_part(i.op_name)[0] for i in decode.instructions.values()} == {None}


def test_cpu_op_names_are_inherited(shared_traces: Path) -> None:
    decode = by_phase(shared_traces, "cpu_llama_tp4")["decode"]
    sources = Counter(i.op_name_source for i in decode.instructions.values() if i.opcode == "copy")
    assert sources[None] == 0
    assert sources["operand"] > 0
    fusions = Counter(i.op_name_source for i in decode.instructions.values() if i.opcode == "fusion")
    assert fusions[None] == 0
    assert fusions["fusion"] > 0


def test_every_embedded_module_is_read(shared_traces: Path) -> None:
    captures = [*shared_traces.glob("*.xplane.pb"), *shared_traces.glob("cpu/*.xplane.pb")]
    count = 0
    for capture in captures:
        for module in modules(read_xplane(capture)).values():
            count += len([find_collective(each) for each in module.instructions.values()])
    assert count > 15_000
