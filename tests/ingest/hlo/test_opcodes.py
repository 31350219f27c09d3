from __future__ import annotations

import pytest

from tracewarehouse.ingest.hlo.instruction import Instruction, merged
from tracewarehouse.ingest.hlo.opcodes import async_role, async_start_name, op_class
from tracewarehouse.ingest.hlo.shapes import parse_shape
from tracewarehouse.ingest.hlo.text import parse_instruction


@pytest.mark.parametrize(
    ("opcode", "role"),
    [
        ("all-gather-start", "start"),
        ("all-gather-done", "done"),
        ("copy-start", "start"),
        ("copy-done", "done"),
        ("slice-start", "start"),
        ("async-start", "start"),
        ("async-update", "update"),
        ("async-done", "done"),
        ("send", "start"),
        ("send-done", "done"),
        ("recv", "start"),
        ("recv-done", "done"),
        ("dynamic-update-slice", None),
        ("all-reduce", None),
        ("copy", None),
        ("after-all", None),
    ],
)
def test_async_role(opcode: str, role: str | None) -> None:
    assert async_role(Instruction("x", opcode, parse_shape("f32[]"))) == role


def test_a_done_names_its_start() -> None:
    done = parse_instruction("%copy-done.1 = f32[5]{0} copy-done((f32[5]{0}, f32[5]{0}, u32[]) %copy-start.1)")
    assert done is not None
    assert async_start_name(done) == "copy-start.1"
    start = parse_instruction("%copy-start.1 = (f32[5]{0}, f32[5]{0}, u32[]) copy-start(f32[5]{0} %x)")
    assert start is not None
    assert async_start_name(start) is None


def test_the_class_of_an_op_is_what_the_device_does_in_its_time() -> None:
    classes = {
        "container": ("while", "conditional", "call"),
        "copy": ("copy", "copy-start", "copy-done", "send", "recv-done", "call-start", "async-start", "async-update"),
        "compute": ("fusion", "dot", "transpose", "slice", "copy-startle", None),
    }
    for name, opcodes in classes.items():
        assert {op_class(opcode, is_collective=False) for opcode in opcodes} == {name}
    assert {op_class(o, is_collective=True) for o in ("all-reduce", "all-gather-start", "fusion", "send")} == {
        "communication"
    }
    assert op_class("while", is_collective=True) == "container"


def test_text_is_joined_only_to_the_same_instruction() -> None:
    stated = parse_instruction("%f = f32[8] fusion(f32[8] %x), kind=kLoop, calls=%c")
    assert stated is not None
    embedded = Instruction("f", "fusion", parse_shape("f32[8]"), op_name="layer1/mlp/mul", op_name_source="fusion")
    joined = merged(stated, embedded)
    assert (joined.op_name, joined.text) == ("layer1/mlp/mul", stated.text)
    assert merged(stated, None) is stated
    assert merged(stated, Instruction("f", "fusion", parse_shape("f32[9]"))) is stated
