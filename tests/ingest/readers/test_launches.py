"""Steps by launch, names of marks and kernels, and executions, with cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tracewarehouse.ingest.columns.records import Int64
from tracewarehouse.ingest.readers.launches import (
    Marks,
    StepMark,
    executions,
    kernel_class,
    outermost_marks,
    step_line,
    step_mark,
    step_numbers,
    steps_of_launches,
)


def ints(*values: int) -> Int64:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("ProfilerStep#7", StepMark(7)),
        ("ProfilerStep #7", StepMark(7)),
        ("execute_context_1(512)_generation_0(0)", StepMark(None, "prefill", 1, 512, 0)),
        ("execute_context_0(0)_generation_8(8)", StepMark(None, "decode", 8, 0, 8)),
        ("execute_context_2(512_900)_generation_3(3_70)", StepMark(None, "mixed", 5, 512, 3)),
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)",
            StepMark(None, "mixed", 46, 8155, 37),
        ),
        ("step[DECODE bs=32]", StepMark(None, "decode", 32, 0, 32)),
        ("step[EXTEND bs=15 toks=15360]", StepMark(None, "prefill", 15, 15360, 0)),
        ("step[MIXED bs=4 toks=100]", StepMark(None, "mixed", 4, None, None)),
        ("step[IDLE bs=0]", StepMark(None, None, 0, None, None)),
        ("training_step_12", StepMark(12)),
        ("iteration 3", StepMark(3)),
        ("decode", StepMark(None, "decode")),
        ("Prefill_2", StepMark(2, "prefill")),
        ("Optimizer.step#SGD.step", None),
        ("decode_attention", None),
        ("aten::mm", None),
        ("gpu_model_runner: forward", None),
    ],
)
def test_marks_of_steps(name: str, mark: StepMark | None) -> None:
    assert step_mark(name) == mark


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_sm90_tst_8x64_64x16_2x1_v_bz_TNN", "gemm"),
        ("Cijk_Alik_Bljk_BBS_BH_MT256x192x64", "gemm"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits>", "attention"),
        ("kernel_unified_attention_2d", "attention"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu", "moe"),
        ("triton_poi_fused_constant_pad_nd_moe_forward_0", "moe"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwd", "norm"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
        ("__amd_rocclr_fillBufferAligned", "copy"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>", None),
    ],
)
def test_classes_of_kernels(name: str, kind: str | None) -> None:
    assert kernel_class(name) == kind


def test_the_outermost_mark_with_a_phase_is_the_step() -> None:
    """0         10        20
    [ProfilerStep#0      ][ProfilerStep#1 ]
      [decode ][decode  ]
       [step[DECODE bs=1]]
    """
    names = ["ProfilerStep#0", "decode", "step[DECODE bs=1]", "decode", "ProfilerStep#1", "aten::mm"]
    start, end = ints(0, 2, 3, 11, 21, 0), ints(21, 10, 9, 20, 36, 40)
    assert outermost_marks(start, end, names).tolist() == [1, 3, 4]


def test_steps_count_from_the_marks_or_from_the_first_prefill() -> None:
    assert step_numbers(["ProfilerStep#4", "ProfilerStep#5"]) == [4, 5]
    assert step_numbers(["prefill", "decode", "decode"]) == [0, 1, 2]
    assert step_numbers(["decode", "decode"]) == [1, 2]
    assert step_numbers([]) == []


def test_a_launch_belongs_to_the_mark_before_it() -> None:
    """Marks [10, 20) and [30, 40); kernel 1 runs between them, so it counts after the last one, up to kernel 2."""
    at, kernel = ints(5, 10, 19, 20, 29, 30, 40, 45, 46, 47), ints(0, 0, 0, 1, 1, 0, 1, 1, 2, 1)
    found = steps_of_launches(ints(10, 30), ints(20, 40), at, kernel)
    assert found.inside.tolist() == [-1, 0, 0, -1, -1, 1, -1, -1, -1, -1]
    assert found.owner.tolist() == [-1, 0, 0, 0, 0, 1, 1, 1, -1, -1]


def test_no_marks_are_no_steps() -> None:
    none = ints()
    assert steps_of_launches(none, none, ints(1, 2), ints(0, 0)).owner.tolist() == [-1, -1]


def test_a_step_is_the_time_of_its_kernels_and_keeps_its_mark() -> None:
    """The device is a step behind: mark 0 is [0, 10), its kernels run in [15, 40); those of mark 1 overlap them."""
    marks, _ = Marks.of(ints(0, 10), ints(10, 20), ["decode", "decode"])
    line = step_line(marks, ints(0, 0, 1, -1), ints(15, 30, 35, 0), ints(20, 40, 50, 5))
    assert line.events.start_ps.tolist() == [15, 35]
    assert line.events.duration_ps.tolist() == [25, 15]
    assert line.names == ["decode"]
    said = {s.name: s.bits.tolist() for s in line.events.stats}
    assert said == {"step_num": [1, 2], "mark_start_ps": [0, 10], "mark_duration_ps": [10, 10]}


def test_a_replay_is_an_execution_and_so_is_what_a_step_launches_around_it() -> None:
    """A step: an eager kernel, a graph of three, an eager one; a second step; a kernel without a launch."""
    marks, _ = Marks.of(ints(0, 100), ints(50, 150), ["decode", "decode"])
    launch, launched_at = ints(1, 2, 2, 2, 3, 4, 4, 4, -1), ints(5, 10, 10, 10, 20, 110, 110, 110, 0)
    is_graph = np.isin(launch, [2, 4])
    start = ints(10, 20, 30, 40, 50, 120, 130, 140, 1)
    owner, kernels = ints(0, 0, 0, 0, 0, 1, 1, 1, -1), ints(0, 1, 2, 3, 0, 1, 2, 3, 0)
    ran = executions(marks, owner, launch, launched_at, is_graph, kernels, start, start + 5)
    assert [ran.line.names[i] for i in ran.line.events.metadata.tolist()] == ["decode", "graph 0", "decode", "graph 0"]
    assert ran.line.events.start_ps.tolist() == [10, 20, 50, 120]
    assert ran.line.events.duration_ps.tolist() == [5, 25, 5, 25]
    assert ran.of_event.tolist() == [0, 1, 1, 1, 2, 3, 3, 3, -1]
    assert ran.launch.tolist() == [1, 2, 3, 4]


def test_a_step_of_many_small_graphs_is_one_execution() -> None:
    """Three layers, each a graph of two kernels, as vLLM replays them between its kernels of attention."""
    marks, _ = Marks.of(ints(0), ints(100), ["execute_context_0(0)_generation_1(1)"])
    launch = ints(1, 1, 2, 3, 3, 4, 5, 5)
    start = np.arange(8) * 10
    kernels = ints(1, 2, 9, 1, 2, 9, 1, 2)
    ran = executions(marks, 0 * launch, launch, launch * 2, launch % 2 == 1, kernels, start, start + 5)
    assert ran.line.names == ["decode"]
    assert ran.of_event.tolist() == [0] * 8


def test_nothing_launched_is_no_execution() -> None:
    marks, _ = Marks.of(ints(), ints(), [])
    ran = executions(marks, ints(-1), ints(-1), ints(0), np.zeros(1, bool), ints(0), ints(5), ints(6))
    assert not len(ran.line.events)
    assert ran.of_event.tolist() == [-1]
