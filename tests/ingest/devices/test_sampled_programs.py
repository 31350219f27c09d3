"""Which executions are put aside, and what of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracewarehouse.ingest.devices import sampled_programs
from tracewarehouse.ingest.devices.sampled_programs import SampledExecutions
from tracewarehouse.ingest.devices.timeline import Run
from tracewarehouse.ingest.layers.loops import LoopPlaces


def runs(*modules: str) -> list[Run]:
    return [Run(m, i, 100 * i, 100 * i + 100) for i, m in enumerate(modules)]


def same_program(count: int) -> list[Run]:
    return [Run("jit_step", 7, 100 * i, 100 * i + 100) for i in range(count)]


def follow(samples: SampledExecutions, execution: list[int], instruction: list[int], start: list[int]) -> None:
    n = len(execution)
    samples.follow(
        np.array(execution, np.int32),
        np.array(instruction, np.int32),
        np.array(start, np.int64),
        np.full(n, 50),
        np.ones(n, bool),
        LoopPlaces.nowhere(n),
    )


def test_inner_executions_come_before_those_at_the_edges() -> None:
    samples = SampledExecutions(3, same_program(6))
    for i in range(6):
        follow(samples, [i, i], [2 * i, 2 * i + 1], [100 * i, 100 * i + 50])
    found = samples.executions()
    assert [e.instruction_id.tolist() for e in found] == [[2, 3], [4, 5], [6, 7]]
    assert {(e.module, e.program_id, e.device_id, e.is_cut, e.has_loop) for e in found} == {
        ("jit_step", 7, 3, False, False)
    }


def test_ops_between_executions_and_containers_are_left_out() -> None:
    samples = SampledExecutions(0, same_program(1))
    samples.follow(
        np.array([0, -1, 0], np.int32),
        np.array([5, 6, 7], np.int32),
        np.array([0, 10, 20]),
        np.array([100, 5, 80]),
        np.array([False, True, True]),
        LoopPlaces.nowhere(3),
    )
    [found] = samples.executions()
    assert found.instruction_id.tolist() == [7]


def test_an_execution_without_its_beginning_is_cut() -> None:
    """An inner one lacks more than a fifth, one at an edge more than a fiftieth."""
    samples = SampledExecutions(0, runs("a", "b", "c", "d", "e"))
    follow(samples, [0, 0], [0, 1], [3, 50])  # 3 of 100 lacking at the edge
    follow(samples, [1, 1], [2, 3], [119, 150])  # 19 of 100
    follow(samples, [2, 2], [4, 5], [221, 250])  # 21 of 100
    follow(samples, [3, 3], [6, 7], [300, 348])  # 2 of 100
    follow(samples, [4, 4], [8, 9], [400, 447])  # 3 of 100 at the end
    assert [e.is_cut for e in samples.executions()] == [True, False, True, False, True]


def test_a_loop_is_noticed_and_not_kept() -> None:
    samples = SampledExecutions(0, same_program(1))
    count = sampled_programs.MOST_OPS
    follow(samples, [0] * count, [1] * count, [0] * count)
    assert not samples.executions()[0].has_loop
    follow(samples, [0], [1], [0])
    follow(samples, [0], [1], [0])
    [found] = samples.executions()
    assert found.has_loop
    assert len(found.instruction_id) == 0


def test_a_loop_over_tokens_keeps_its_layers_once() -> None:
    """Four ops in each of ten layers, run for so many tokens that not all are kept; the time of all is."""
    samples = SampledExecutions(0, [Run("jit_generate", 7, 0, 10**9)])
    tokens = sampled_programs.MOST_OPS // 40 + 2
    n = 40 * tokens
    loops = LoopPlaces(np.full(n, 9, np.int32), np.tile(np.repeat(np.arange(10), 4), tokens).astype(np.int32))
    for part in (slice(n // 2), slice(n // 2, n)):
        start = np.arange(n)[part] * 50
        count = len(start)
        instruction = np.tile(np.arange(4), n // 4).astype(np.int32)[part]
        zeros = np.zeros(count, np.int32)
        samples.follow(zeros, instruction, start, np.full(count, 50), np.ones(count, bool), loops[part])
    [found] = samples.executions()
    assert not found.has_loop
    assert found.instruction_id.tolist() == [0, 1, 2, 3] * 10
    assert found.self_ps.sum() == 50 * n
    assert found.loops is not None
    assert found.loops.iteration.tolist() == [i for i in range(10) for _ in range(4)]


@given(st.lists(st.integers(0, 6), max_size=60), st.integers(1, 20))
def test_chunks_do_not_matter(executions: list[int], size: int) -> None:
    execution = sorted(executions)
    start = [100 * e + i for i, e in enumerate(execution)]
    whole, chunked = (SampledExecutions(0, same_program(7)) for _ in range(2))
    follow(whole, execution, list(range(len(execution))), start)
    for i in range(0, len(execution), size):
        part = slice(i, i + size)
        follow(chunked, execution[part], list(range(len(execution)))[part], start[part])
    assert [e.instruction_id.tolist() for e in whole.executions()] == [
        e.instruction_id.tolist() for e in chunked.executions()
    ]
    assert all(
        np.isin(e.instruction_id, np.flatnonzero(np.isin(execution, [1, 2, 3]))).all() for e in whole.executions()
    )
