"""Each rule against a time computed by hand, from the constants of the chip: v6e 1.75 GHz, 1,638 GB/s x 0.85."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.predict.programs import loop, product, program
from tracewarehouse.ingest.capture.prediction import MeasuredKernel
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.predict.calibrations import Calibration
from tracewarehouse.predict.costs import OpCost, op_costs
from tracewarehouse.predict.machine import Machine
from tracewarehouse.predict.timeline import TimedOp, predict_program

V6E = Machine.named("v6e:1x1")
RATE = 1638 * 0.85  # bytes per ns


def only(main: str, machine: Machine = V6E, **computations: str) -> TimedOp:
    """The last op of a program."""
    return predict_program(program(main=main, **computations), machine)[-1]


def test_a_product_takes_its_cycles_times_the_chips_factor() -> None:
    op = only(
        f"""
        %a = bf16[128,128]{{1,0:S(1)}} parameter(0)
        %c = bf16[128,128]{{1,0:S(1)}} fusion(%a), kind=kOutput, calls=%f, {product(17500)}
        """,
        f="%p = bf16[128,128] parameter(0)",
    )
    # 17,500 cycles at 1.75 GHz are 10 us, of which a v6e takes 78 %
    assert (op.duration_ps, op.basis) == (7_800_000, "compiler_cycles")
    assert op.low_ps <= 0.9 * 7_800_000 + 1
    assert op.high_ps >= 1.1 * 7_800_000 - 1


@pytest.mark.parametrize(("element", "least_ps"), [("bf16", 2_339_307), ("s8", 1_950_000)])
def test_a_product_of_bf16_takes_its_operations_at_the_peak_at_least(element: str, least_ps: int) -> None:
    # 2^31 operations at 918 TFLOP/s are 2.339 us; 4,375 cycles are 2.5 us, of which 78 % are 1.95, enough for bytes
    op = only(
        f"""
        %a = {element}[1024,1024]{{1,0:S(1)}} parameter(0)
        %c = bf16[1024,1024]{{1,0:S(1)}} fusion(%a), kind=kOutput, calls=%f, {product(4375)}
        """,
        f=f"""
        %p = {element}[1024,1024,1024] parameter(0)
        %r = bf16[1024,1024] reduce(%p, %p), to_apply=%f, metadata={{op_name="dot/dot_general"}}
        """,
    )
    assert op.duration_ps == least_ps
    assert op.low_ps == max(1_750_000, least_ps if element == "bf16" else 0)
    assert op.high_ps == max(2_175_000, least_ps)


def test_a_product_that_hbm_bounds_is_as_fast_as_its_bytes() -> None:
    text = f"""
        %w = bf16[8192,1024] parameter(0)
        %c = bf16[8,1024]{{1,0:S(1)}} fusion(%w), kind=kOutput, calls=%f, {product(21000)}
        """
    inside = "%p = bf16[8192,1024] parameter(0)"
    # 16.8 MB take 12.05 us at the rate reached, and the estimate is 12 us: the factor of products has no part in it
    assert only(text, f=inside).duration_ps == 12_000_000
    assert only(text, replace(V6E, hbm_factor=2.0), f=inside).duration_ps == 6_000_000


ADD = """
        %p = f32[1024] parameter(0)
        %s = f32[1024] add(%p, %p)
"""


def test_an_estimate_of_a_loop_in_vmem_loses_its_constant() -> None:
    in_vmem = f"""
        %a = f32[1024]{{0:S(1)}} parameter(0)
        %c = f32[1024]{{0:S(1)}} fusion(%a), kind=kLoop, calls=%f, {loop(2116 + 35)}
        """
    # 35 cycles are 20 ns; a small op takes 12
    assert only(in_vmem, f=ADD).duration_ps == 32_000
    in_hbm = in_vmem.replace("%a = f32[1024]{0:S(1)}", "%a = f32[1024]{0}")
    assert only(in_hbm, f=ADD).duration_ps == 670_000
    assert only(in_vmem.replace("2151", "16"), f=ADD).duration_ps == 12_000


def test_on_tpu7x_loops_take_a_part_of_their_estimate() -> None:
    text = f"""
        %a = f32[1024,64]{{1,0:S(1)}} parameter(0)
        %c = f32[1024]{{0:S(1)}} fusion(%a), kind=kLoop, calls=%f, {loop(2298 + 22000)}
        """
    # 22,000 cycles at 2.2 GHz are 10 us
    assert only(text, Machine.named("tpu7x:1x1x1"), f=ADD).duration_ps == 3_812_000


REDUCE = """
        %p = f32[] parameter(0)
        %r = f32[] reduce(%p, %p), to_apply=%f
"""


@pytest.mark.parametrize(
    ("arrays", "cycles", "measured"),
    [
        # sums of squares and norms of two recorded runs, with what the compiler says of such a fusion
        (("{S}[1024,5120]",) * 3, 40_553, 8.065),
        (("{S}[1024,5120]",) * 5, 67_000, 13.758),
        (("f32[1024,32,128]",), 60_000, 5.209),
    ],
)
def test_a_reduction_takes_its_bytes_and_not_its_estimate(
    arrays: tuple[str, ...], cycles: int, measured: float
) -> None:
    parameters = [f"%a{n} = {a.replace('{S}', 'bf16')}{{:S(1)}} parameter({n})" for n, a in enumerate(arrays)]
    names = ", ".join(f"%a{n}" for n in range(len(arrays)))
    fusion = f"%c = f32[1024]{{0:S(1)}} fusion({names}), kind=kLoop, calls=%f, {loop(2298 + cycles)}"
    op = only("\n".join([*parameters, fusion]), Machine.named("tpu7x:1x1x1"), f=REDUCE)
    assert op.duration_ps == pytest.approx(measured * 1e6, rel=0.25)
    assert op.low_ps <= measured * 1e6 <= op.high_ps


@pytest.mark.parametrize("slice_", ["v6e:1x1", "v5e:1x1", "v4:1x1x1"])
def test_a_product_of_one_row_is_as_fast_as_its_matrix_comes_from_hbm(slice_: str) -> None:
    """The compiler multiplies 16,032 rows by one and adds up, and says 4 to 15 times what its own schedule takes."""

    def text(space: str, cycles: int) -> str:
        return f"""
        %w = bf16[16032,4096]{{1,0{space}}} parameter(0)
        %x = bf16[4096]{{0:S(1)}} parameter(1)
        %c = bf16[16032]{{0:S(1)}} fusion(%w, %x), kind=kLoop, calls=%f, {loop(cycles)}
        """

    machine = Machine.named(slice_)
    streamed = 16032 * 4096 * 2 / machine.hbm_bytes_per_ps
    assert only(text("", 921_807), machine, f=REDUCE).duration_ps == pytest.approx(streamed, rel=0.02)
    # from VMEM at 1,476 bytes a cycle; a small estimate is the most that it takes
    cycles = (16032 * 4096 * 2 + 4096 * 2 + 16032 * 2) / 1476
    in_vmem = only(text(":S(1)", 921_807), machine, f=REDUCE).duration_ps
    assert in_vmem == pytest.approx(cycles / machine.rate("clock", "hz") * 1e12 + 12_000, abs=2)
    constant = round(machine.rate("loop_fusion", "constant_cycles"))
    small = only(text(":S(1)", constant + 1000), machine, f=REDUCE).duration_ps
    assert small == pytest.approx(1000 / machine.rate("clock", "hz") * 1e12 + 12_000, abs=2)


@pytest.mark.parametrize(
    ("name", "flops"), [("jit(step)/layer0/mlp/dot_general", 2 * 512 * 256), ("jit(step)/norm/sum", 0)]
)
def test_the_sum_of_a_product_of_one_row_counts_as_its_operations(name: str, flops: int) -> None:
    module = program(
        main="""
        %w = bf16[512,256] parameter(0)
        %c = bf16[512]{0:S(1)} fusion(%w), kind=kLoop, calls=%f
        """,
        f=f"""
        %p = bf16[512,256] parameter(0)
        %m = bf16[512,256] multiply(%p, %p)
        %r = bf16[512] reduce(%m, %m), to_apply=%f, metadata={{op_name="{name}"}}
        """,
    )
    assert (found := op_costs(module, ["c"])["c"]).flops == flops and found.category is None


def test_a_loop_takes_its_bytes_in_hbm_at_least() -> None:
    # 22,000 cycles of 10 us on TPU7x, of which 3.8 would do; 20.97 MB take 7.104 us: HBM is what it waits for
    def text(rows: int) -> str:
        return f"""
        %a = f32[{rows},1024] parameter(0)
        %c = f32[8]{{0:S(1)}} fusion(%a), kind=kLoop, calls=%f, {loop(2298 + 22000)}
        """

    tpu7x = Machine.named("tpu7x:1x1x1")
    assert only(text(5120), tpu7x, f=ADD).duration_ps == 10_650_000
    assert only(text(3584), tpu7x, f=ADD).duration_ps == pytest.approx(
        3584 * 4096 / (3690 * 0.8) * 1e3 + 650_000, abs=1
    )


def test_a_copy_in_vmem_that_states_less_than_the_constant_holds_none() -> None:
    op = only(
        f"""
        %a = f32[1024]{{0:S(1)}} parameter(0)
        %c = f32[1024]{{0:S(1)}} copy(%a), {loop(35)}
        """
    )
    assert op.duration_ps == 32_000


def test_a_transposing_copy_takes_its_bytes_whatever_the_estimate_says() -> None:
    def text(before: str, after: str) -> str:
        return f"""
        %a = bf16[1024,2560]{{{before}:S(1)}} parameter(0)
        %c = bf16[1024,2560]{{{after}:S(1)}} copy(%a), {loop(700)}
        """

    tpu7x = Machine.named("tpu7x:1x1x1")
    there, back = only(text("1,0", "0,1"), tpu7x), only(text("0,1", "1,0"), tpu7x)
    # 10.5 MB at 1,300 bytes a cycle of 2.2 GHz: 3.67 us; four were measured at 3.0 to 4.1
    assert (there.duration_ps, there.basis) == (round(2 * 5242880 / 1300 / 2.2 * 1e3) + 12_000, "vmem_bytes")
    assert there.duration_ps == back.duration_ps
    assert only(text("1,0", "1,0"), tpu7x).basis == "compiler_cycles"


def test_a_sort_takes_the_stages_of_a_network_and_says_that_this_is_unknown() -> None:
    op = only(
        """
        %a = f32[1024,64]{1,0:S(1)} parameter(0)
        %c = f32[1024,64]{1,0:S(1)} sort(%a), dimensions={1}, to_apply=%f
        """,
        f=ADD,
    )
    # 64 values have 6 x 7 / 2 stages
    assert op.duration_ps == round(21 * 2 * 262144 / 3700 / 1.75 * 1e3) + 12_000
    assert (op.basis, op.low_ps < op.duration_ps / 5, op.high_ps > 5 * op.duration_ps) == ("unknown", True, True)


def test_a_slice_moves_its_result() -> None:
    op = only(
        """
        %a = bf16[65536,1024] parameter(0)
        %c = bf16[128,1024]{1,0:S(1)} slice(%a), slice={[0:128], [0:1024]}
        """
    )
    assert op.duration_ps == round(262144 / RATE * 1e3) + 650_000


def test_a_gather_takes_its_rows() -> None:
    # rows of 10,240 bytes are 40 segments of 2.5 ns; 1,024 of them 102.4 us, and 0.65 us
    text = """
        %table = bf16[152064,5120] parameter(0)
        %ids = s32[1024]{0:S(1)} parameter(1)
        %c = bf16[1024,5120]{1,0:S(1)} fusion(%table, %ids), kind=kCustom, calls=%f
        """
    inside = """
        %p = bf16[152064,5120] parameter(0)
        %i = s32[1024] parameter(1)
        %g = bf16[1024,5120] gather(%p, %i)
        """
    op = only(text, f=inside)
    assert (op.duration_ps, op.basis) == (1024 * 40 * 2500 + 650_000, "gather")
    # in VMEM a segment takes 0.6 ns, and nothing passes HBM
    there = only(text.replace("%table = bf16[152064,5120]", "%table = bf16[8192,5120]{1,0:S(1)}"), f=inside)
    assert there.duration_ps == 1024 * 40 * 600 + 12_000
    # but a result in HBM has to get there: 10.5 MB take 7.5 us, 1,048,576 rows of one segment 7.3 ns each
    wide = text.replace("bf16[1024,5120]{1,0:S(1)}", "bf16[1048576,128]").replace("152064,5120", "8192,128")
    assert only(wide, f=inside).duration_ps == 1048576 * 7300 + 650_000


def test_a_scatter_takes_the_rows_of_its_updates_twice_and_not_the_buffer() -> None:
    op = only(
        """
        %table = bf16[152064,5120] parameter(0)
        %ids = s32[64]{0:S(1)} parameter(1)
        %new = bf16[64,5120]{1,0:S(1)} parameter(2)
        %c = bf16[152064,5120] fusion(%table, %ids, %new), kind=kCustom, calls=%f
        """,
        f="""
        %p = bf16[152064,5120] parameter(0)
        %i = s32[64] parameter(1)
        %u = bf16[64,5120] parameter(2)
        %g = bf16[152064,5120] scatter(%p, %i, %u), to_apply=%f
        """,
    )
    assert (op.duration_ps, op.basis) == (2 * 64 * 40 * 2500 + 650_000, "gather")


def test_an_update_in_place_moves_the_update_and_not_the_buffer() -> None:
    op = only(
        """
        %cache = bf16[8,8,65536,128] parameter(0)
        %new = bf16[8,8,1,128]{3,2,1,0:S(1)} parameter(1)
        %i = s32[] parameter(2)
        %c = bf16[8,8,65536,128] dynamic-update-slice(%cache, %new, %i, %i, %i, %i)
        """
    )
    assert op.duration_ps == round(2 * 16384 / RATE * 1e3) + 650_000


def test_scalar_arithmetic_takes_nothing() -> None:
    op = only("%a = s32[] parameter(0)\n%c = s32[] add(%a, %a)")
    assert op.duration_ps == 0


def test_a_generation_without_rates_is_refused() -> None:
    with pytest.raises(CaptureError, match="rates of v3 are not known"):
        Machine.named("v3:2x2")


def test_a_faster_hbm_makes_the_segments_of_a_gather_faster_and_not_its_rows() -> None:
    def gathered(width: int, faster: float, space: int = 0) -> int:
        table = f"bf16[32000,{width}]" + (f"{{1,0:S({space})}}" if space else "")
        module = program(
            main=f"""
            %table = {table} parameter(0)
            %rows = s32[1024] parameter(1)
            %c = bf16[1024,{width}] fusion(%table, %rows), kind=kCustom, calls=%chosen
            """,
            chosen=f"""
            %a = bf16[32000,{width}] parameter(0)
            %b = s32[1024] parameter(1)
            %g = bf16[1024,{width}] gather(%a, %b)
            """,
        )
        return predict_program(module, Machine.named("v6e:2x4", hbm_factor=faster))[-1].duration_ps - 650_000

    # 1,024 rows of 40 segments of 2.5 ns, and of one, for which the 7.3 ns of a row are more
    assert gathered(5120, 1) == 1024 * 40 * 2_500
    assert gathered(5120, 2) == 1024 * 40 * 1_250
    assert gathered(128, 1) == gathered(128, 2) == 1024 * 7_300
    # a table in the core's memory
    assert gathered(5120, 1, 1) == gathered(5120, 2, 1) == 1024 * 40 * 600


def test_a_product_of_experts_takes_its_filled_rows_and_their_matrices() -> None:
    def experts(rows: int, filled: str, load: float = 1.0) -> int:
        module = program(
            8,
            main=f"""
            %x = bf16[{rows},2048]{{1,0:S(1)}} parameter(0)
            %w = bf16[8,2048,1024] parameter(1)
            {filled}
            %c = bf16[{rows},1024]{{1,0:S(1)}} custom-call(%x, %w), custom_call_target="tpu_custom_call"
            """.replace("%c = ", "%ragged-dot-none = "),
        )
        return predict_program(module, Machine.named("v6e:2x4"), busiest_load=load)[-1].duration_ps

    def exchange(rows: int, room: int) -> str:
        return (
            f"%s = bf16[{rows},64] parameter(2)\n"
            f"%r = bf16[{room},64] ragged-all-to-all(%s), replica_groups={{{{0,1,2,3,4,5,6,7}}}}\n"
            f"%back = bf16[{rows},64] ragged-all-to-all(%r), replica_groups={{{{0,1,2,3,4,5,6,7}}}}"
        )

    # 65,536 rows, at half of 918 TFLOP/s; an eighth of them is filled if each of eight may send all that it has
    full = 2 * 65536 * 2048 * 1024 / (0.5 * 918e12) * 1e12
    assert experts(65536, "") == round(full)
    assert experts(65536, exchange(8192, 65536)) == round(full / 8)
    # with half as many experts on a device as a token chooses there is half the room, and a quarter of it is filled
    assert experts(65536, exchange(16384, 65536)) == round(full / 4)
    # a token that chooses several experts of a device is sent there once
    assert experts(65536, exchange(2048, 16384)) == round(full / 8)
    # 16 rows of which two are filled need the matrices of two experts
    assert experts(16, exchange(2, 16)) == round(2 * 2048 * 1024 * 2 / RATE * 1e3)
    assert experts(16, "") == round(8 * 2048 * 1024 * 2 / RATE * 1e3)
    # the busiest device decides: its rows, its matrices, and no more than the room
    assert experts(65536, exchange(8192, 65536), 1.5) == round(1.5 * full / 8)
    assert experts(65536, exchange(8192, 65536), 9) == round(full)
    assert experts(16, exchange(2, 16), 1.5) == round(3 * 2048 * 1024 * 2 / RATE * 1e3)
    assert experts(65536, "", 1.5) == round(full)  # one device has all experts


def kernel_program(name: str, shapes: str) -> HloModule:
    """A kernel with arrays of these shapes."""
    arrays = shapes.split()
    parameters = "\n".join(f"%p{n} = {shape} parameter({n})" for n, shape in enumerate(arrays))
    operands = ", ".join(f"%p{n}" for n in range(len(arrays)))
    called = f'%{name} = bf16[8]{{0:S(1)}} custom-call({operands}), custom_call_target="tpu_custom_call"'
    return program(main=f"{parameters}\n{called}")


def kernel(name: str, shapes: str, machine: Machine = V6E, **how: Any) -> TimedOp:
    return predict_program(kernel_program(name, shapes), machine, **how)[-1]


def test_causal_attention_takes_half_of_its_pairs() -> None:
    # 8 x 4 heads, 1,024 tokens, 128 wide: 2 x 32 x 1024^2 x 128 FLOPs at a quarter of 918 TFLOP/s
    expected = round(2 * 32 * 1024**2 * 128 / (0.25 * 918e12) * 1e12)
    query = "bf16[8,4,1024,128]"
    flash = kernel("flash_attention.3", f"{query} {query} {query}")
    assert (flash.duration_ps, flash.basis) == (expected, "kernel_model")
    masks = "s8[1,4,4] s8[4,256,256]"
    splash = kernel("splash_mha_fwd.1", f"{masks} bf16[32,1024,128] bf16[8,1024,128] bf16[8,1024,128]")
    assert splash.duration_ps == expected
    # the last 256 of 1,024 tokens see 1,024 - 128 on average; values half as wide take half of their part
    chunk = kernel("splash_mha_fwd.1", "bf16[32,256,128] bf16[8,1024,128] bf16[8,1024,64]")
    assert chunk.duration_ps == round(2 * 32 * 256 * (1024 - 128) * (128 + 64) / (0.25 * 918e12) * 1e12)


def test_ragged_attention_takes_what_a_calibration_measured() -> None:
    """Eight sequences with room for ten pages of 128 tokens, 8 heads of keys of 128: 42 MB of keys and values."""
    names = (("share", 0.5), ("sequence_ns", 100.0), ("prompt_share", 0.25))
    own = [Calibration("machine", "v6e", "ragged_attention", n, v, v, v, 20, "mine") for n, v in names]
    known = Machine.named("v6e:2x4", own)
    pages = "bf16[80,128,16,128] s32[8] s32[8,10] s32[9] s32[1]"
    read, name = 80 * 128 * 16 * 128 * 2, "ragged_paged_attention_kernel.1"
    token = kernel(name, f"bf16[8,32,128]{{2,1,0:S(1)}} {pages}", known, context_tokens=640.0)
    assert token.duration_ps == pytest.approx(read / 2 / (0.5 * RATE) * 1e3 + 800_000, abs=1)
    # whole prompts of 1,280 tokens: half of the pairs, two products of 128
    prompt = kernel(name, f"bf16[10240,32,128] {pages}", known)
    flops = 8 * 32 * 128 * 4 * 1280 * 1280 / 2
    assert prompt.duration_ps == pytest.approx(flops / (0.25 * 918e12) * 1e12 + 800_000, abs=1)
    assert (token.basis, kernel(name, f"bf16[8,32,128] {pages}").basis) == ("kernel_measured", "kernel_model")
    formula = kernel(name, f"bf16[8,32,128] {pages}", context_tokens=640.0)
    assert formula.duration_ps == pytest.approx(read / 2 / (0.85 * RATE) * 1e3 + 800_000, abs=1)


def test_paged_attention_reads_the_contexts_in_use() -> None:
    # 8 sequences with room for 10 pages of 128 tokens, one head of 128: keys and values of 5.2 MB
    shapes = "s32[8] s32[80] f32[8,4,1,128]{3,2,1,0:S(1)} bf16[1,80,128,128] bf16[1,80,128,128]"
    everything = kernel("paged_attention.8", shapes)
    cache = 2 * 80 * 128 * 128 * 2
    assert everything.duration_ps == round(cache / (0.85 * RATE) * 1e3 + 8 * 100_000)
    half = kernel("paged_attention.8", shapes, context_tokens=640.0)
    assert half.duration_ps == pytest.approx(cache / 2 / (0.85 * RATE) * 1e3 + 800_000, abs=1)
    assert kernel("paged_attention.8", shapes, context_tokens=9999.0) == everything
    # the run has these bytes too, which nobody else states
    [cost] = op_costs(kernel_program("paged_attention.8", shapes), ["paged_attention.8"], 640.0).values()
    assert (cost.bytes, cost.hbm_bytes, cost.flops) == (cache // 2, cache // 2, None)
    [unknown] = op_costs(kernel_program("paged_attention.8", "s32[8]"), ["paged_attention.8"], 640.0).values()
    assert unknown == OpCost()


def test_a_recorded_median_is_faster_with_hbm_where_that_bounds_it_and_has_the_range_of_its_executions() -> None:
    def found(us: float, **factors: float) -> TimedOp:
        seen = MeasuredKernel(
            kernel="k", signature="s", us=us, low_us=us / 2, high_us=1.01 * us, n=9, run_id="r", run="served"
        )
        machine = Machine.named("v6e:2x4", **factors)
        return kernel("elementwise.1", "bf16[1024,1024]", machine, recorded=lambda _: seen)

    # 2 MiB take 1.5 us of HBM: nearly all of 2 us, and little of 20
    assert found(2)[2:7] == (2_000_000, "core", "kernel_measured", 1_000_000, 2_200_000)
    assert found(2, hbm_factor=2).duration_ps == 1_000_000
    assert found(20, hbm_factor=2).duration_ps == 20_000_000


def test_a_measured_median_replaces_the_formula_of_its_kernel_alone() -> None:
    shapes = "bf16[8,4,1024,128] bf16[8,4,1024,128] bf16[8,4,1024,128]"
    found = kernel("flash_attention.12", shapes, kernels={"flash_attention": 42_000_000})
    assert (found.duration_ps, found.basis) == (42_000_000, "kernel_measured")
    assert (found.low_ps, found.high_ps) == (37_800_000, 46_200_000)
    assert kernel("flash_attention.12", shapes, kernels={"flash": 42_000_000}).basis == "kernel_model"
