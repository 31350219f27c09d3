"""Layers that are inferred are the true ones, or none."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformer_capture import PROGRAM, Op, execution, rows_of, transformer

from tracewarehouse.ingest.layers.inference import ProgramLayers, infer_layers, programs_with_layers
from tracewarehouse.ingest.layers.sequence import Execution


def inferred(ops: Sequence[Op], *executions: Execution) -> ProgramLayers:
    [found] = infer_layers(executions or [execution(ops)], rows_of(ops))
    return found


def truth(ops: Sequence[Op]) -> dict[int, int]:
    return {i: op.layer for i, op in enumerate(ops) if op.layer is not None}


@given(st.integers(4, 40))
@settings(max_examples=15, deadline=None)
def test_every_op_gets_its_layer_and_part(layers: int) -> None:
    ops = transformer(layers)
    found = inferred(ops)
    assert found.refusal is None
    assert (found.program, found.count) == (("jit_step", PROGRAM), layers)
    assert found.confidence == pytest.approx(1)
    assert found.layer == truth(ops)
    assert found.part == {i: op.part for i, op in enumerate(ops) if op.layer is not None and op.part}


def test_first_layers_of_another_width_count() -> None:
    ops = transformer(12, dense=2)
    found = inferred(ops)
    assert found.count == 12
    assert found.layer == truth(ops)


def test_names_are_not_needed_for_layers() -> None:
    ops = [Op(op.text, op.category, op.ns, "", op.layer, op.part) for op in transformer(8)]
    found = inferred(ops)
    products = [i for i, op in enumerate(ops) if op.layer is not None and "convolution" in op.category]
    assert found.count == 8
    assert [found.layer[i] for i in products] == [ops[i].layer for i in products]
    assert not found.part


def test_names_of_one_kind_of_block_say_no_other_part() -> None:
    """Without a name in the mlp nothing tells where attention ends."""
    plain = transformer(8)
    ops = [
        Op(op.text, op.category, op.ns, op.op_name.replace("MergedColumnParallel", "Other"), op.layer, op.part)
        for op in plain
    ]
    found = inferred(ops)
    reduces = [i for i, op in enumerate(ops) if op.category == "all-reduce" and op.layer is not None]
    assert found.count == 8
    assert not any(i in found.part for i in reduces)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_few_layers_are_refused(layers: int) -> None:
    assert not inferred(transformer(layers)).layer


def test_stages_of_a_pipeline_are_refused() -> None:
    found = inferred(transformer(8, permutes=True))
    assert "collective-permute" in (found.refusal or "")
    assert not found.layer


def test_loops_are_refused() -> None:
    ops = transformer(8)
    found = inferred(ops, execution(ops, [*range(len(ops)), 5]))
    assert "several times" in (found.refusal or "")
    none = np.zeros(0, np.int32)
    found = inferred(ops, Execution("jit_step", PROGRAM, 0, none, none.astype(np.int64), has_loop=True))
    assert "several times" in (found.refusal or "")


def test_cut_executions_do_not_count() -> None:
    ops = transformer(8)
    cut = execution(ops, range(40, len(ops)), is_cut=True)
    assert "lacks ops" in (inferred(ops, cut).refusal or "")
    assert inferred(ops, cut, execution(ops)).layer == truth(ops)


def test_chains_of_equal_products_are_refused() -> None:
    """A benchmark of one or two kernels repeats too."""
    ops = [op for op in transformer(30) if op.category != "convolution fusion" and op.category != "custom-call"]
    assert inferred(ops).refusal
    product = transformer(1)[3]
    chain = [Op(product.text.replace(".3 ", f".{i} "), "convolution fusion", 50, "", None, None) for i in range(200)]
    assert inferred(chain).refusal


@given(st.integers(4, 24), st.integers(0, 1 << 30))
@settings(max_examples=25, deadline=None)
def test_shuffled_ops_are_refused(layers: int, seed: int) -> None:
    ops = transformer(layers)
    order = list(range(len(ops)))
    random.Random(seed).shuffle(order)
    assert not inferred(ops, execution(ops, order)).layer


@given(st.integers(6, 24), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_lost_ops_shift_no_layer(layers: int, r: random.Random) -> None:
    """Where 1 % of the ops within are lost, what is told is nearly all true, or nothing is told."""
    ops = transformer(layers)
    lost = set(r.sample(range(10, len(ops) - 10), max(1, len(ops) // 100)))
    found = inferred(ops, execution(ops, [i for i in range(len(ops)) if i not in lost]))
    wrong = sum(ops[i].ns for i, layer in found.layer.items() if ops[i].layer != layer)
    assert wrong <= 0.05 * sum(op.ns for op in ops)


@given(st.integers(4, 16), st.integers(1, 30), st.floats(0, 2))
@settings(max_examples=25, deadline=None)
def test_times_do_not_matter(layers: int, seed: int, spread: float) -> None:
    """Waiting makes times uneven; three executions of uneven times agree."""
    ops = transformer(layers)
    rng = np.random.default_rng(seed)
    found = inferred(
        ops,
        *(
            Execution(e.module, e.program_id, d, e.instruction_id, (e.self_ps * factor).astype(np.int64))
            for d in range(3)
            for e in [execution(ops)]
            for factor in [rng.lognormal(0, spread * 0.5, len(ops))]
        ),
    )
    assert found.layer == truth(ops) or found.refusal


def test_devices_that_disagree_lower_the_confidence() -> None:
    """Half of the executions of a program show something else: no layer is sure."""
    ops = transformer(8)
    order = list(range(len(ops)))
    random.Random(3).shuffle(order)
    assert not inferred(ops, execution(ops), execution(ops, order)).layer


def marked(ops: Sequence[Op], shares: Callable[[int], bool], shift: int = 0) -> list[Op]:
    """The ops, some of them with the layer in their names; `shares` chooses by position."""
    return [
        replace(op, op_name=f"jit(step)/layers_{op.layer + shift}/{op.op_name}")
        if op.layer is not None and shares(i)
        else op
        for i, op in enumerate(ops)
    ]


def test_programs_whose_time_is_marked_are_left_alone() -> None:
    found = inferred(marked(transformer(8), lambda i: i % 3 > 0))
    assert found.is_marked
    assert found.marked_share > 0.5
    assert not found.is_inferred
    assert not found.layer


def test_few_marks_do_not_switch_inference_off() -> None:
    """As a server marks the reduces of its weights' scales, and nothing else."""
    ops = transformer(8)
    found = inferred(marked(ops, lambda i: ops[i].category == "all-reduce"))
    assert 0 < found.marked_share < 0.5
    assert found.is_inferred
    assert found.layer == truth(ops)


def test_marks_tell_the_first_layer_of_a_stage() -> None:
    ops = transformer(8)
    found = inferred(marked(ops, lambda i: ops[i].category == "all-reduce", shift=16))
    assert found.first == 16
    assert found.layer == {i: layer + 16 for i, layer in truth(ops).items()}


def test_marks_that_contradict_repetition_refuse_it() -> None:
    """One layer is called another, and all that are marked are; a single mark proves no other first layer."""
    ops = transformer(8)
    of_two = marked(ops, lambda i: ops[i].category == "all-reduce" and ops[i].layer in (2, 5), shift=1)
    assert "names state other layers for 4 of 4" in (inferred(of_two).refusal or "")
    assert not inferred(of_two).layer


def test_programs_with_layers() -> None:
    """Marked ones and inferred ones; not the small ones beside them."""
    ops = transformer(8)
    small = [Op("%add.900 = f32[8] add(%a, %b)", "loop fusion", 40, "jit(sample)/softmax", None, None)]
    marked = [Op("%dot.901 = f32[8] dot(%a, %b)", "convolution fusion", 40, "jit(g)/layers_1/mlp/dot", 1, "mlp")]
    rows = rows_of([*ops, *small, *marked])
    number = len(ops)
    executions = [
        execution(ops),
        Execution("jit_sample", 43, 0, np.array([number], np.int32), np.array([40_000])),
        Execution("jit_marked", None, 0, np.array([number + 1], np.int32), np.array([40_000])),
    ]
    assert programs_with_layers(executions, rows) == {("jit_step", PROGRAM), ("jit_marked", None)}
