"""The timeline of a whole model from its first layers, by hand and against a program with twice the layers."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.predict.programs import program
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.predict.timeline import TimedOp, program_end
from tracewarehouse.predict.whole_model import UnsteadyLayersError, whole_model

TIMES = [50, 45, 42, 42, 43, 42, 41]
"""Of the layers 0 to 6; the last one, 7, takes 30."""


def module(names: dict[str, str]) -> HloModule:
    """A program of products with these op_names."""
    start = "(bf16[8,128], bf16[8,128], u32[]) copy-start(%x)"
    made = {name: start if name.startswith("begin") else "bf16[8,128] copy(%x)" for name in names}
    lines = "".join(f"%{name} = {how}\n" for name, how in made.items())
    proto = CLASSES["HloProto"].FromString(program(main=f"%x = bf16[8,128] parameter(0)\n{lines}").raw)
    for each in proto.hlo_module.computations[0].instructions:
        each.metadata.op_name = names.get(each.name.decode(), "").encode()
    return HloModule("jit_decode", proto.SerializeToString(), [])


def op(name: str, start: int, duration: int, queue: str = "core") -> TimedOp:
    return TimedOp(name, start, duration, queue, "compiler_cycles", duration, duration)  # type: ignore[arg-type]


def layers(times: list[int], scope: str = "layer", begin: int = 10) -> tuple[dict[str, str], list[TimedOp]]:
    """Layers of an op each and, in the middle, a transfer for the layer after it; behind them an op of no layer."""
    names, ops, now = {"embed": "jit(decode)/embed/gather"}, [op("embed", 0, begin)], begin
    for number, time in enumerate([*times, 30]):
        name = f"p{len(ops)}"
        names[name] = f"jit(decode)/{scope}{number}/mlp/dot_general"
        ops.append(op(name, now, time))
        if number < len(times):
            names[f"fetch{name}"] = f"jit(decode)/{scope}{number + 1}/mlp/dot_general"
            ops.append(op(f"fetch{name}", now + 5, time, "dma"))
        now += time
    return names | {"head": "jit(decode)/lm_head/dot_general"}, [*ops, op("head", now, 7)]


def test_the_steady_layer_is_repeated_with_what_it_starts() -> None:
    names, ops = layers(TIMES)
    whole = whole_model(module(names), ops, 24)
    # 42 is the median of 42, 42, 43, 42: the third layer stands for those that follow it
    assert (whole.steady_ps, round(whole.spread, 4)) == (42, round(43 / 42 - 1, 4))
    assert program_end(whole.ops) == program_end(ops) + 24 * 42
    core = [each for each in whole.ops if each.queue == "core"]
    assert all(after.start_ps == before.start_ps + before.duration_ps for before, after in pairwise(core))
    stated = [each.layer for each in core if each.layer is not None]
    assert stated == list(range(3, 32))
    # the last five were compiled, and have other numbers in the whole model
    assert [each.layer for each in core if each.is_repeated] == list(range(3, 27))
    assert {each.instruction for each in core[4:28]} == {core[3].instruction}
    # the transfer in the layer 2 is for the layer 3, and so on
    fetched = [each.layer for each in whole.ops if each.queue == "dma" and each.layer is not None]
    assert fetched == list(range(4, 32))
    assert (core[0].layer, core[-1].layer, core[-1].instruction) == (None, None, "head")
    assert len({(each.instruction, each.layer) for each in whole.ops}) == len(whole.ops)


def test_a_layer_does_not_start_where_a_transfer_for_it_begins() -> None:
    names, ops = layers(TIMES)
    begun = [op("begin3", 10, 0), *ops[1:]]  # in layer 0, for layer 3
    whole = whole_model(module(names | {"begin3": "jit(decode)/layer3/mlp/dot_general"}), [ops[0], *begun], 24)
    assert [(each.layer, each.start_ps) for each in whole.ops if each.instruction == "begin3"] == [(None, 10)]
    assert whole.steady_ps == 42


def test_nothing_is_added_to_a_whole_model() -> None:
    names, ops = layers(TIMES)
    assert whole_model(module(names), ops, 0).ops == ops


def test_in_a_pipeline_each_tick_gets_the_layers_of_a_stage() -> None:
    names, ops = layers(TIMES, "tick0/local_layer")
    more_names, more = layers([t + 1 for t in TIMES], "tick1/local_layer", begin=3)
    end = program_end(ops)
    moved = [each._replace(instruction="t" + each.instruction, start_ps=each.start_ps + end) for each in more]
    whole = whole_model(module(names | {f"t{k}": v for k, v in more_names.items()}), ops + moved, 8)
    assert program_end(whole.ops) == end + program_end(more) + 8 * (42 + 43)
    assert whole.steady_ps == 43
    core = [each for each in whole.ops if each.queue == "core"]
    assert all(after.start_ps == before.start_ps + before.duration_ps for before, after in pairwise(core))
    assert [each.layer for each in core if each.layer is not None] == list(range(3, 16)) * 2


@pytest.mark.parametrize(
    ("times", "dense", "said"),
    [
        ([500, 450, 420, 420, 442, 420, 410], 0, "takes 5% more than the shortest"),
        ([50, 45, 42], 0, "4 layers are too few to tell the steady one; compile 8"),
        ([50, 45, 42, 42, 42], 4, "6 layers are too few to tell the steady one; compile 12"),
    ],
)
def test_layers_that_tell_no_others_are_refused(times: list[int], dense: int, said: str) -> None:
    names, ops = layers(times)
    with pytest.raises(UnsteadyLayersError, match=said):
        whole_model(module(names), ops, 4, dense)


def test_layers_that_differ_by_less_than_five_percent_tell_others() -> None:
    names, ops = layers([500, 450, 420, 420, 440, 420, 410])
    assert whole_model(module(names), ops, 4).spread == pytest.approx(20 / 420)


def test_dense_layers_before_the_experts_are_not_the_steady_ones() -> None:
    names, ops = layers([9, 9, 9, 50, 42, 42, 42, 42, 41])
    whole = whole_model(module(names), ops, 5, dense=3)
    assert whole.steady_ps == 42


def test_layers_out_of_order_are_refused() -> None:
    names, ops = layers(TIMES)
    names["p3"], names["p5"] = names["p5"], names["p3"]
    with pytest.raises(UnsteadyLayersError, match="one after the other"):
        whole_model(module(names), ops, 4)
