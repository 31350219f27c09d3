"""Signatures of instructions: by hand, and the same from text as from a proto."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.predict.programs import program
from tracewarehouse.ingest.hlo.instruction import signature
from tracewarehouse.ingest.hlo.proto import read_module
from tracewarehouse.ingest.hlo.text import parse_instruction

PROGRAMS = Path(__file__).resolve().parents[4] / "shared" / "traces" / "tpu-hlo"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "%f.1 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} fusion(bf16[8,64]{1,0} %a, f32[]{:T(128)S(6)} %b), kind=kLoop",
            "vmem:bf16[8,128] fusion:kLoop(hbm:bf16[8,64],f32[])",
        ),
        (
            "%f.7 = (f32[4]{0:S(1)}, s32[]{:S(2)}) copy-start(f32[4]{0} %x)",
            "vmem:f32[4],s32[] copy-start(hbm:f32[4])",
        ),
        (
            '%k.3 = f32[2]{0} custom-call(f32[2]{0} %x), custom_call_target="t"',
            "hbm:f32[2] custom-call:t k(hbm:f32[2])",
        ),
        ("%t = f32[1,8,1]{2,1,0} copy(f32[8,1]{0,1:S(1)} %x)", "hbm:f32[8] copy(vmem:f32[8])"),
        ("%h = f32[8]{0:S(5)} copy(f32[8]{0} %x)", "5:f32[8] copy(hbm:f32[8])"),
        ("%p = f32[2]{0} parameter(0)", "hbm:f32[2] parameter()"),
        ("%a = f32[2]{0} add(%x, %y)", None),  # the operands' shapes are not stated
        ("%a = f32[2]{0} add(f32[2]{0} %x, f32[2]", None),  # it breaks off
    ],
)
def test_signatures_by_hand(text: str, expected: str | None) -> None:
    instruction = parse_instruction(text)
    assert instruction is not None
    assert signature(instruction) == expected


def test_a_name_and_the_numbers_of_a_layout_do_not_count() -> None:
    one = parse_instruction("%f.1 = f32[8,8]{1,0:T(8,128)S(1)} fusion(f32[8,8]{1,0} %a), kind=kLoop, calls=%c.1")
    two = parse_instruction("%g.22 = f32[8,8]{0,1:T(2,128)S(1)} fusion(f32[8,8]{1,0:T(8)} %b.3), kind=kLoop, calls=%d")
    assert one
    assert two
    assert signature(one) == signature(two)


def test_memory_spaces_come_from_a_proto_too() -> None:
    module = read_module(
        program(main="%a = bf16[8,8]{1,0:S(1)} parameter(0)\n%c = (bf16[8,8]{1,0}, u32[]{:S(2)}) copy-start(%a)").raw
    )
    assert signature(module.instructions["c"]) == "hbm:bf16[8,8],u32[] copy-start(vmem:bf16[8,8])"


@pytest.mark.skipif(not PROGRAMS.is_dir(), reason="the programs with their texts are not beside the repository")
def test_text_and_proto_of_real_programs_give_the_same() -> None:
    compared = 0
    for path in sorted(PROGRAMS.glob("*.hlo.pb.gz")):
        module = read_module(gzip.decompress(path.read_bytes()))
        text = gzip.decompress(path.with_name(path.name.replace(".hlo.pb", ".txt")).read_bytes()).decode()
        for line in text.splitlines():
            stated = parse_instruction(line.strip().removeprefix("ROOT "))
            if stated and stated.name in module.instructions and (found := signature(stated)):
                compared += 1
                assert found == signature(module.instructions[stated.name])
    assert compared > 4000
