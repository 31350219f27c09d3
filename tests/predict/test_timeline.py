"""Timelines computed by hand; v6e moves 1.3923 bytes a ps between HBM and VMEM."""

from __future__ import annotations

import random

import pytest

from tests.predict.programs import product, program
from tracewarehouse.ingest.errors import CaptureError, MalformedError
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.predict.calibrations import Calibration
from tracewarehouse.predict.machine import Machine
from tracewarehouse.predict.timeline import TimedOp, predict_program, program_end

V6E = Machine.named("v6e:1x1")
PAIR = Machine.named("v6e:1x2")
RATE = 1.638 * 0.85
INSIDE = "%p = bf16[8,8] parameter(0)"
MB_16 = "bf16[8192,1024]"
BYTES = 8192 * 1024 * 2


def work(name: str, us: float, operand: str = "a") -> str:
    """A product within VMEM that takes some us on a v6e."""
    cycles = round(us * 1750 / 0.78)
    return f"%{name} = bf16[8,8]{{1,0:S(1)}} fusion(%{operand}), kind=kOutput, calls=%inside, {product(cycles)}"


def by_name(ops: list[TimedOp], queue: str = "core") -> dict[str, TimedOp]:
    return {op.instruction: op for op in ops if op.queue == queue}


def prefetch(between: str) -> tuple[dict[str, TimedOp], dict[str, TimedOp]]:
    ops = predict_program(
        program(
            main=f"""
            %a = bf16[8,8]{{1,0:S(1)}} parameter(0)
            %w = {MB_16} parameter(1)
            %copy-start = ({MB_16}{{1,0:S(1)}}, {MB_16}, u32[]{{:S(2)}}) copy-start(%w)
            {between}
            %copy-done = {MB_16}{{1,0:S(1)}} copy-done(%copy-start)
            """,
            inside=INSIDE,
        ),
        V6E,
    )
    return by_name(ops), by_name(ops, "dma")


def test_a_transfer_hides_behind_an_op_that_leaves_hbm_alone() -> None:
    #  core  |-- product, 20 us --|done
    #  dma   |--- 12.05 us ---|
    core, dma = prefetch(work("c", 20))
    assert dma["copy-start"].duration_ps == pytest.approx(BYTES / RATE, abs=2)
    assert dma["copy-start"].start_ps == core["copy-start"].start_ps + core["copy-start"].duration_ps
    assert core["copy-done"].duration_ps == 2_400


def test_the_core_waits_for_what_a_transfer_has_left() -> None:
    core, dma = prefetch(work("c", 5))
    took = core["c"].duration_ps
    assert core["copy-done"].duration_ps == pytest.approx(BYTES / RATE - took, abs=2)
    assert core["copy-done"].basis == "wait"
    assert dma["copy-start"].duration_ps == pytest.approx(BYTES / RATE, abs=4)


def test_an_op_that_takes_all_of_hbm_leaves_nothing_to_a_transfer() -> None:
    busy = f"""
        %v = {MB_16} parameter(2)
        %c = bf16[8,8]{{1,0:S(1)}} fusion(%v), kind=kOutput, calls=%inside, {product(21000)}
        """
    core, _ = prefetch(busy)
    # the product moves 16.8 MB itself in its 12 us
    assert core["copy-done"].duration_ps == pytest.approx(BYTES / RATE, abs=2)


def test_transfers_go_one_after_the_other() -> None:
    core, dma = prefetch(
        f"""
        %v = {MB_16} parameter(2)
        %copy-start.1 = ({MB_16}{{1,0:S(1)}}, {MB_16}, u32[]{{:S(2)}}) copy-start(%v)
        %copy-done.1 = {MB_16}{{1,0:S(1)}} copy-done(%copy-start.1)
        """
    )
    assert core["copy-done.1"].duration_ps == pytest.approx(2 * BYTES / RATE, rel=1e-3)
    assert core["copy-done"].duration_ps == 2_400
    assert dma["copy-start.1"].start_ps == pytest.approx(
        dma["copy-start"].start_ps + dma["copy-start"].duration_ps, abs=2
    )


def test_a_slice_moves_its_part() -> None:
    ops = predict_program(
        program(
            main="""
            %w = s8[14680064] parameter(0)
            %slice-start = ((s8[14680064]), s8[2097152]{0:S(1)}, s32[]{:S(2)}) async-start(%w), calls=%part
            %slice-done = s8[2097152]{0:S(1)} async-done(%slice-start), calls=%part
            """,
            part="""
            %p = s8[14680064] parameter(0)
            %s = s8[2097152]{0:S(1)} slice(%p), slice={[0:2097152]}
            """,
        ),
        V6E,
    )
    assert by_name(ops)["slice-done"].duration_ps == pytest.approx(2097152 / RATE, abs=2)


def test_a_copy_within_hbm_moves_its_bytes_twice_and_one_to_the_host_not_through_hbm() -> None:
    within = predict_program(
        program(
            main=f"%w = {MB_16} parameter(0)\n%s = ({MB_16}, {MB_16}, u32[]) copy-start(%w)\n%d = {MB_16} copy-done(%s)"
        ),
        V6E,
    )
    assert by_name(within)["d"].duration_ps == pytest.approx(2 * BYTES / RATE, abs=2)


def loop_of(trips: str) -> HloModule:
    return program(
        main=f"""
        %a = bf16[8,8]{{1,0:S(1)}} parameter(0)
        %w = bf16[8,8]{{1,0:S(1)}} while(%a), condition=%test, body=%body{trips}
        """,
        body=f"""
        %b = bf16[8,8]{{1,0:S(1)}} parameter(0)
        {work("c", 2, "b")}
        """,
        test="%t = bf16[8,8] parameter(0)\n%go = pred[] constant(true)",
        inside=INSIDE,
    )


def test_a_loop_runs_its_body_as_often_as_the_compiler_says() -> None:
    ops = predict_program(loop_of(', backend_config={"known_trip_count":{"n":"3"}}'), V6E)
    assert [op.iterations for op in ops if op.instruction == "c"] == [(0,), (1,), (2,)]
    [container] = [op for op in ops if op.instruction == "w"]
    one = next(op for op in ops if op.instruction == "c")
    assert (container.basis, container.duration_ps) == ("container", 3 * one.duration_ps)
    assert container.low_ps == 3 * one.low_ps
    assert program_end(ops) == 3 * one.duration_ps


def test_a_loop_of_unknown_length_runs_once_and_says_so() -> None:
    ops = predict_program(loop_of(""), V6E)
    assert [(op.instruction, op.basis) for op in ops] == [("w", "unknown"), ("c", "compiler_cycles")]


def test_a_loop_of_a_damaged_program_ends() -> None:
    endless = loop_of(', backend_config={"known_trip_count":{"n":"999999999999999999"}}')
    with pytest.raises(MalformedError, match="more than"):
        predict_program(endless, V6E)


def test_what_only_names_memory_is_no_op() -> None:
    ops = predict_program(
        program(
            main=f"""
            %w = {MB_16} parameter(0)
            %b = {MB_16} bitcast(%w)
            %buffer = {MB_16} custom-call(), custom_call_target="AllocateBuffer"
            %joined = {MB_16} custom-call(%b, %buffer), custom_call_target="ConcatBitcast"
            """
        ),
        V6E,
    )
    assert ops == []


def test_of_a_conditional_the_longest_branch_counts() -> None:
    ops = predict_program(
        program(
            main="""
            %i = s32[] parameter(0)
            %a = bf16[8,8]{1,0:S(1)} parameter(1)
            %c = bf16[8,8] conditional(%i, %a, %a), branch_computations={%short, %long}
            """,
            short=f"%x = bf16[8,8]{{1,0:S(1)}} parameter(0)\n{work('brief', 1, 'x')}",
            long=f"%y = bf16[8,8]{{1,0:S(1)}} parameter(0)\n{work('lasting', 2, 'y')}",
            inside=INSIDE,
        ),
        V6E,
    )
    assert [(op.instruction, op.basis) for op in ops] == [("c", "unknown"), ("lasting", "compiler_cycles")]
    # which branch runs is not known: it may be the short one
    assert ops[0].low_ps == pytest.approx(ops[0].duration_ps / 2, rel=1e-3)


ALL_REDUCE = """
            %x = bf16[4096,1024]{1,0:S(1)} parameter(0)
            %r = bf16[4096,1024]{1,0:S(1)} all-reduce(%x), replica_groups={{0,1}}, to_apply=%sum
"""


def test_a_collective_on_the_core_lets_transfers_go_on() -> None:
    ops = predict_program(
        program(
            2,
            main=f"""
            %w = {MB_16} parameter(1)
            %copy-start = ({MB_16}{{1,0:S(1)}}, {MB_16}, u32[]{{:S(2)}}) copy-start(%w)
            {ALL_REDUCE}
            %copy-done = {MB_16}{{1,0:S(1)}} copy-done(%copy-start)
            """,
            sum="%s = bf16[] parameter(0)",
        ),
        PAIR,
    )
    core = by_name(ops)
    assert core["r"].basis == "links"
    assert core["r"].duration_ps > 90_000_000  # 8.4 MB over one link of 90 GB/s
    assert core["copy-done"].duration_ps == 2_400


def test_a_collective_of_the_sparse_cores_runs_beside_the_core() -> None:
    on_sparsecore = 'async_execution_thread="sparsecore", calls=%there'
    ops = predict_program(
        program(
            2,
            main=f"""
            %a = bf16[8,8]{{1,0:S(1)}} parameter(0)
            %x = bf16[4096,1024] parameter(1)
            %start = ((bf16[4096,1024]), bf16[4096,1024], u32[]) async-start(%x), {on_sparsecore}
            {work("c", 10)}
            %done = bf16[4096,1024] async-done(%start), {on_sparsecore}
            """,
            there="%t = bf16[4096,1024] parameter(0)\n%n = bf16[4096,1024] call(%t), to_apply=%reduce",
            reduce="""
            %p = bf16[4096,1024] parameter(0)
            %r = bf16[4096,1024] all-reduce(%p), replica_groups={{0,1}}, to_apply=%sum
            """,
            sum="%s = bf16[] parameter(0)",
            inside=INSIDE,
        ),
        PAIR,
    )
    core, [beside] = by_name(ops), [op for op in ops if op.queue == "sparsecore"]
    assert (beside.instruction, beside.basis) == ("start", "links")
    assert core["done"].duration_ps == beside.start_ps + beside.duration_ps - core["done"].start_ps
    assert core["done"].duration_ps == beside.duration_ps - core["c"].duration_ps


def sent(name: str, kind: str, rows: int) -> str:
    """A permute of 1 MB for 500 rows: 5 us of latency and, at 100 GB/s, 10 us of bytes."""
    shape = f"bf16[{rows},1000]"
    result = shape if kind == "collective-permute" else f"({shape}, {shape}, u32[], u32[])"
    return f"%{name} = {result} {kind}(%x{rows}), source_target_pairs={{{{0,1}}}}"


COPY = f"%copy-start = ({MB_16}{{1,0:S(1)}}, {MB_16}, u32[]{{:S(2)}}) copy-start(%w)"
COPY_DONE = f"%copy-done = {MB_16}{{1,0:S(1)}} copy-done(%copy-start)"
ASYNC = sent("one", "collective-permute-start", 500)
LONG = sent("one", "collective-permute-start", 1000)


@pytest.mark.parametrize(
    ("lines", "us"),
    [
        ([sent("two", "collective-permute", 500)], {"two": 10}),
        # the copy of 12.05 us, which ran beside it, would be waited for: 7.05 us of 10
        ([COPY, sent("two", "collective-permute", 500), COPY_DONE], {"two": 2.95}),
        # of the transfer of 15 us 3 are waited for, and only 5 would be left of it
        ([ASYNC, work("c", 12), "%done = bf16[500,1000] collective-permute-done(%one)"], {"one": 3}),
        ([ASYNC, work("c", 1), "%done = bf16[500,1000] collective-permute-done(%one)"], {"one": 10}),
        # a transfer of 25 us has 10 left after the permute of 15; without bytes both end after 5
        ([LONG, sent("two", "collective-permute", 500), "%done = bf16[1000,1000] collective-permute-done(%one)"],
         {"one": 10, "two": 10}),
        # a long copy is waited for whether or not a permute before it ends sooner
        ([COPY, COPY.replace("%copy-start", "%more"), sent("two", "collective-permute", 500), COPY_DONE,
          COPY_DONE.replace("%copy-done", "%last").replace("%copy-start", "%more")], {"two": 0}),
    ],
)  # fmt: skip
def test_a_collective_says_what_its_bytes_add_to_the_step(lines: list[str], us: dict[str, float]) -> None:
    given = {("start", "us"): 5, ("hop", "us"): 0, ("ici", "gbps"): 100}
    own = [Calibration("link", "v6e", *what, rate, rate, rate, 0, "by hand") for what, rate in given.items()]
    inputs = "%a = bf16[8,8]{1,0:S(1)} parameter(0)\n%x500 = bf16[500,1000] parameter(1)\n"
    inputs += f"%x1000 = bf16[1000,1000] parameter(2)\n%w = {MB_16} parameter(3)\n"
    made = program(2, main=inputs + "\n".join(lines), inside=INSIDE)
    ops = predict_program(made, Machine.named("v6e:1x2", own))
    assert {op.instruction: op.link_ps / 1e6 for op in ops if op.link_ps is not None} == pytest.approx(us, abs=0.02)
    anew = program_end(predict_program(made, Machine.named("v6e:1x2", own, ici_factor=1e12)))
    assert program_end(ops) - anew == pytest.approx(sum(op.link_ps or 0 for op in ops), abs=10)


def permute(name: str, pairs: str) -> str:
    shape = "bf16[4096,1024]"
    return f"""
            %{name} = ({shape}, {shape}, u32[], u32[]) collective-permute-start(%x), source_target_pairs={pairs}
    """


def test_two_permutes_share_a_direction_or_pass_each_other() -> None:
    def beside(second: str) -> list[TimedOp]:
        ops = predict_program(
            program(
                2,
                main=f"""
                %x = bf16[4096,1024] parameter(0)
                {permute("one-start", "{{0,1}}")}
                {permute("two-start", second)}
                %one-done = bf16[4096,1024] collective-permute-done(%one-start)
                %two-done = bf16[4096,1024] collective-permute-done(%two-start)
                """,
            ),
            PAIR,
        )
        return [op for op in ops if op.queue == "dma"]

    one, two = beside("{{0,1}}")
    assert two.start_ps == one.start_ps + one.duration_ps
    one, two = beside("{{1,0}}")
    assert two.start_ps < one.start_ps + one.duration_ps


def test_a_collective_that_is_spread_over_fusions_ends_in_the_last() -> None:
    shape = "bf16[4096,1024]"
    ops = predict_program(
        program(
            2,
            main=f"""
            %a = bf16[8,8]{{1,0:S(1)}} parameter(0)
            %x = {shape} parameter(1)
            %async-collective-start.1 = ({shape}, {shape}) fusion(%x), kind=kCustom, calls=%first
            {work("c", 10)}
            %async-collective-done.1 = {shape} fusion(%c), kind=kCustom, calls=%last
            """,
            first=f"""
            %p = {shape} parameter(0)
            %r = {shape} all-reduce(%p), replica_groups={{{{0,1}}}}, to_apply=%sum
            """,
            last=f"%q = {shape} parameter(0)",
            sum="%s = bf16[] parameter(0)",
            inside=INSIDE,
        ),
        PAIR,
    )
    core, [beside] = by_name(ops), [op for op in ops if op.queue == "dma"]
    assert beside.basis == "links"
    assert core["async-collective-done.1"].duration_ps == beside.duration_ps - core["c"].duration_ps


def test_a_done_in_the_next_iteration_ends_what_was_started_before() -> None:
    ops = predict_program(
        program(
            main=f"""
            %a = bf16[8,8]{{1,0:S(1)}} parameter(0)
            %v = {MB_16} parameter(1)
            %first = ({MB_16}{{1,0:S(1)}}, {MB_16}, u32[]) copy-start(%v)
            %w = bf16[8,8]{{1,0:S(1)}} while(%a), condition=%test, body=%body
            """,
            body=f"""
            %b = bf16[8,8]{{1,0:S(1)}} parameter(0)
            %d = {MB_16}{{1,0:S(1)}} copy-done(%b)
            """,
            test="%t = bf16[8,8] parameter(0)",
        ),
        V6E,
    )
    assert by_name(ops)["d"].duration_ps == pytest.approx(BYTES / RATE, abs=2)


def test_what_a_module_hides_is_an_error() -> None:
    """Groups that name a device twice would else count as no collective."""
    wrong = program(
        2,
        main="""
        %x = bf16[4096,1024] parameter(0)
        %r = bf16[4096,1024] all-reduce(%x), replica_groups={{0,1}}, to_apply=%sum
        """,
        sum="%s = bf16[] parameter(0)",
    )
    damaged = wrong.raw.replace(b"\x0a\x02\x00\x01", b"\x0a\x02\x01\x01")
    assert damaged != wrong.raw
    with pytest.raises(MalformedError, match="twice"):
        predict_program(HloModule("jit_step", damaged, []), PAIR)


def test_a_permute_without_pairs_and_a_gather_without_a_result_take_no_time() -> None:
    ops = predict_program(
        program(
            2,
            main="""
            %x = bf16[4096,1024] parameter(0)
            %s = (bf16[4096,1024], bf16[4096,1024]) collective-permute-start(%x), source_target_pairs={}
            %d = bf16[4096,1024] collective-permute-done(%s)
            %g = () gather(%x)
            """,
        ),
        PAIR,
    )
    assert [op.duration_ps for op in ops if op.queue == "dma"] == [0]
    assert program_end(ops) < 20_000_000


def test_a_program_for_more_devices_than_the_slice_has_is_refused() -> None:
    four = program(4, main="%a = s32[] parameter(0)\n%c = s32[] add(%a, %a)")
    with pytest.raises(CaptureError, match="for 4 devices, and v6e:1x2 has 2"):
        predict_program(four, PAIR)


def test_computations_in_a_circle_are_refused() -> None:
    circle = program(main="%a = s32[] parameter(0)\n%c = s32[] call(%a), to_apply=%main")
    with pytest.raises(MalformedError, match="call each other"):
        predict_program(circle, V6E)


OPCODES = [
    b"gather", b"scatter", b"sort", b"while", b"conditional", b"call", b"custom-call", b"async-start", b"async-done",
    b"all-reduce", b"ragged-all-to-all", b"collective-permute-start", b"copy-start", b"copy-done", b"fusion",
    b"dynamic-update-slice", b"slice", b"reduce-window", b"copy", b"send", b"reduce-scatter",
]  # fmt: skip


def test_a_damaged_program_gives_ops_or_one_error() -> None:
    source = random.Random(11)
    whole = CLASSES["HloProto"].FromString(loop_of(', backend_config={"known_trip_count":{"n":"3"}}').raw)
    predicted = 0
    for _ in range(1500):
        damaged = CLASSES["HloProto"]()
        damaged.CopyFrom(whole)
        computations = damaged.hlo_module.computations
        for _ in range(source.randint(1, 3)):
            op = source.choice(source.choice(computations).instructions)
            change = source.randrange(6)
            if change == 0:
                op.opcode = source.choice(OPCODES)
            elif change == 1:
                del op.operand_ids[:]
            elif change == 2:
                op.shape.Clear()
            elif change == 3:
                op.called_computation_ids.append(source.choice(computations).id)
            elif change == 4:
                op.replica_groups.add(replica_ids=[source.randrange(9) for _ in range(3)])
            else:
                op.source_target_pairs.add(source=source.randrange(9), target=source.randrange(9))
        try:
            predict_program(HloModule("damaged", damaged.SerializeToString(), []), PAIR)
        except CaptureError:
            continue
        predicted += 1
    assert predicted > 500
