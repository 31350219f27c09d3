"""Prefill and decode by the shapes of products: made-up servers, whose programs are padded to several sizes."""

from __future__ import annotations

from typing import Any

import pytest
from served_steps import FUSED, KERNEL, LAYERS, head, layers, served
from xplane_builder import Space

from tracewarehouse.ingest.devices import product_phases
from tracewarehouse.ingest.devices.host_survey import HostSurvey
from tracewarehouse.ingest.devices.product_phases import phase_by_rows
from tracewarehouse.ingest.hlo.instruction import is_product
from tracewarehouse.ingest.hlo.text import parse_instruction

PHASES = """SELECT "index", CASE WHEN name IN ('prefill', 'decode') THEN name END FROM phases
            WHERE kind = 'step' AND device_id = 0 ORDER BY 1"""


def phases(ingest: Any, space: Space) -> list[str | None]:
    _, query = ingest(space)
    return [phase for _, phase in query(PHASES)]


def test_a_prefill_has_few_rows_in_the_head_and_a_decode_fewer_in_the_layers(ingest: Any) -> None:
    prompt, token = (
        [("jit_step", layers(256)), ("jit_logits", [head(8)])],
        [("jit_step", layers(16)), ("jit_logits", [head(8)])],
    )
    result, query = ingest(served(prompt, token, token))
    assert query(PHASES) == [(0, "prefill"), (1, "decode"), (2, "decode")]
    [(sentence,)] = query("SELECT detail FROM quality_flags WHERE flag = 'inferred_steps'")
    assert sentence == "by the shapes of its products jit_step is decode, jit_step is prefill"
    assert result.entry.flags.count("inferred_steps") == 1


@pytest.mark.parametrize("sizes", [(16, 512), (8, 64, 256), (32, 32, 1024)])
@pytest.mark.parametrize("is_apart", [True, False])
def test_a_decode_that_is_padded_to_several_sizes_is_no_prefill(
    ingest: Any, sizes: tuple[int, ...], is_apart: bool
) -> None:
    """Its head has as many rows, in a program of its own or in the same one."""
    apart = [[("jit_step", layers(n)), ("jit_compute_logits", [head(n)])] for n in sizes]
    together = [[("jit_step", [*layers(n), head(n)])] for n in sizes]
    steps = apart if is_apart else together
    assert phases(ingest, served(*steps, *steps)) == [None] * (2 * len(sizes))


@pytest.mark.parametrize(("rows", "phase"), [(32, "prefill"), (31, None), (16, None)])
def test_four_times_the_rows_of_the_head_are_a_prefill(ingest: Any, rows: int, phase: str | None) -> None:
    assert phases(ingest, served([("jit_step", [*layers(rows), head(8)])])) == [phase]


def test_the_head_counts_that_runs_in_the_same_step(ingest: Any) -> None:
    """256 rows are a decode beside a head of 256, and a prefill beside one of 4."""
    of_many = [("jit_step", layers(256)), ("jit_logits", [head(256)])]
    of_few = [("jit_step", layers(256)), ("jit_logits", [head(4)])]
    assert phases(ingest, served(of_many, of_few)) == [None, "prefill"]


OF_EXPERTS = FUSED
OF_HEADS = FUSED.replace("bf16[{m},{k}] fusion(bf16[{m},64]", "bf16[{m},32,1,{k}] fusion(bf16[{m},32,1,64]")


@pytest.mark.parametrize(("text", "times"), [(OF_EXPERTS, 8), (OF_HEADS, 1)])
@pytest.mark.parametrize(
    ("sizes", "expected"), [([16] * 4, [None] * 4), ([512, 16, 16], ["prefill", "decode", "decode"])]
)
def test_a_token_that_is_multiplied_several_times_is_no_prefill(
    ingest: Any, text: str, times: int, sizes: list[int], expected: list[str | None]
) -> None:
    """Experts multiply a token eight times, attention multiplies it for each of 32 heads, for most of the time."""
    steps = []
    for tokens in sizes:
        many = [op for copy in (1, 2) for op in layers(times * tokens, text.replace(".{n}", f".{copy}0{{n}}"))]
        steps.append([("jit_step", [*layers(tokens), *many, head(16)])])
    assert phases(ingest, served(*steps)) == expected


def test_without_a_head_sizes_alone_tell_nothing(ingest: Any) -> None:
    assert phases(ingest, served([("jit_step", layers(1024))], [("jit_step", layers(8))])) == [None, None]


@pytest.mark.parametrize(
    ("text", "category", "op_name"),
    [
        (KERNEL, "custom-call", "jit(quantized_matmul_kernel)/pallas_call"),
        (KERNEL, "custom-call", "pallas_call"),
        (FUSED, "custom fusion", "dot_general"),
        (FUSED, "convolution fusion", "fused"),
    ],
)
def test_products_are_found_by_what_they_are(ingest: Any, text: str, category: str, op_name: str) -> None:
    """By their category, their name path, or the operands and the result of a custom call."""
    prompt = [("jit_step", layers(128, text, category, op_name)), ("jit_logits", [head(8)])]
    token = [("jit_step", layers(8, text, category, op_name)), ("jit_logits", [head(8)])]
    assert phases(ingest, served(prompt, token)) == ["prefill", "decode"]


@pytest.mark.parametrize("backend", ["tpu", "gpu", "cpu"])
def test_a_head_without_a_name_is_the_last_product(ingest: Any, backend: str) -> None:
    """On virtual CPU devices and GPUs the text of HLO tells the shapes; a server calls no program there."""
    prompt = [("jit_step", [*layers(64), head(4, "jit(f)/dot_general")])]
    token = [("jit_step", [*layers(4), head(4, "jit(f)/dot_general")])]
    assert phases(ingest, served(prompt, token, token, backend=backend)) == ["prefill", "decode", "decode"]


@pytest.mark.parametrize("backend", ["tpu", "gpu", "cpu"])
@pytest.mark.parametrize("most", [1 << 17, 20])
def test_a_long_capture_is_read_up_to_one_time(
    ingest: Any, monkeypatch: pytest.MonkeyPatch, backend: str, most: int
) -> None:
    """Of 41 executions three of each program are read, or, if events are too many, those of some of the first."""
    read: list[int] = []
    add = product_phases._Tally.add

    def count(tally: Any, op: Any, start: Any, duration: Any) -> bool:
        read.append(len(op))
        return add(tally, op, start, duration)

    monkeypatch.setattr(product_phases._Tally, "add", count)
    monkeypatch.setattr(product_phases, "FIRST_EVENTS", most)
    prompt = [("jit_step", [*layers(64), head(4)])]
    token = [("jit_step", [*layers(4), head(4)])]
    space = served(prompt, *[token] * 40, backend=backend)
    assert phases(ingest, space) == ["prefill", *["decode"] * 40]
    if backend != "tpu":  # whose batches are longer than this line
        assert sum(read) < 41 * 13 / 2


def test_products_of_a_loop_count_as_often_as_they_run(ingest: Any) -> None:
    body = layers(128)[:3]
    prompt = [("jit_step", [*(body * LAYERS), head(8)])]
    assert phases(ingest, served(prompt)) == ["prefill"]


def test_a_program_that_trains_neither_prefills_nor_decodes(ingest: Any) -> None:
    """Its last product is the gradient of a weight, which has fewer rows than there are tokens."""
    backward = (FUSED.format(n=98, m=64, k=999), "convolution fusion", "jit(f)/transpose(jvp(f))/dot_general")
    assert phases(ingest, served([("jit_step", [*layers(1024), head(1024), backward])])) == [None]


def test_phase_by_rows() -> None:
    found = [
        phase_by_rows(*rows) for rows in ((1024, 8, None), (24, 8, None), (8, 8, 1024), (16, None, 64), (8, 8, 16))
    ]
    assert found == ["prefill", None, "decode", "decode", None]


@pytest.mark.parametrize(
    ("text", "multiplies"),
    [
        ("%k = bf16[8,256] custom-call(bf16[8,64] %a, f8e4m3fn[256,64] %w)", True),
        ("%k = (bf16[8,256], f32[8]) custom-call(s8[8,64] %a, s8[64,256] %w)", True),
        ("%k = bf16[8,256] custom-call(bf16[8,256] %a, bf16[8,256] %b)", False),
        ("%k = bf16[8,4,2,128] custom-call(bf16[8,4,2,128] %q, bf16[99,16,4,2,128] %cache)", False),
        ("%k = bf16[8,256] fusion(bf16[8,64] %a, bf16[64,256] %w), kind=kLoop, calls=%c", False),
        ("%d = bf16[8,256] dot(bf16[8,64] %a, bf16[64,256] %w)", True),
        ('%g = bf16[8,256] custom-call(bf16[8,9] %a), custom_call_target="__cublas$lt$matmul"', True),
    ],
)
def test_what_a_product_is(text: str, multiplies: bool) -> None:
    hlo = parse_instruction(text)
    assert hlo is not None
    assert is_product(hlo, None, None) is multiplies


def test_planes_are_looked_up_once_for_all_devices(ingest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else thousands of devices would take the square of their number."""
    calls: list[int] = []
    rows_of_programs, tpus = product_phases._rows_of_programs, HostSurvey.tpus

    def counted(*of: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(HostSurvey, "tpus", property(lambda s: calls.append(1) or tpus.__get__(s)))
            return rows_of_programs(*of)

    monkeypatch.setattr(product_phases, "_rows_of_programs", counted)
    space = Space()
    for number in range(5):
        tpu = space.tpu(number)
        tpu.modules.event("step(1)", 0, 100)
        tpu.ops.event("%a = f32[4]{0} add(f32[4]{0} %x, f32[4]{0} %x)", 1, 2)
    ingest(space)
    assert len(calls) == 1
