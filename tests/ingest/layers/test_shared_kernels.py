"""Layers of GPU programs without loops, whose kernels run for several layers: each op has its layer by their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xplane_builder import Space

from tracewarehouse.ingest.hlo.instruction_row import InstructionRow
from tracewarehouse.ingest.layers.shared_kernels import repeated_layers
from tracewarehouse.warehouse import Warehouse

US = 1_000_000
Kernel = tuple[str, str | None]
"""Name of a kernel, and the name path of its instruction if an Hlo text tells it."""


def layer(number: int, *, own: bool = True, tile: str = "128x128") -> list[Kernel]:
    """The kernels of a layer; some are compiled for it alone, the others run for all layers."""
    qkv, out = (f"gemm_fusion_dot_{2 * number + i}" if own else f"gemm_fusion_dot_{i}" for i in (7, 8))
    norm = f"loop_add_fusion_{number}" if own else "loop_add_fusion_1"
    names = ("input_transpose_fusion_3", qkv, "gemm_fusion_dot_90", "fusion_180", "gemm_fusion_dot_91", out, norm)
    return [(n, None) for n in (*names, f"nvjet_sm90_{tile}_TNT", "loop_multiply_fusion_5")]


def program(*executions: list[Kernel]) -> Space:
    """Executions of one program as CUDA graphs: every event names the graph as its instruction."""
    space = Space()
    gpu = space.plane("/device:GPU:0")
    stream = gpu.line("Stream #14(Compute)")
    at = 0
    for number, kernels in enumerate(executions):
        for name, op_name in kernels:
            stats: dict[str, Any] = {"hlo_op": "command_buffer", "hlo_module": "jit_step", "correlation_id": number}
            if op_name:
                text = f'%{name} = bf16[8,8] fusion(bf16[8,8] %a), kind=kLoop, metadata={{op_name="{op_name}"}}'
                stream.event(gpu.metadata(text, name), at, 5 * US, **stats | {"hlo_op": name})
            else:
                stream.event(name, at, 5 * US, **stats)
            at += 6 * US
        at += 500 * US
    return space


def layers_of_ops(query: Any) -> list[int | None]:
    """The layer of each op of the first execution."""
    sql = """SELECT l.layer FROM models.op_layers AS l INNER JOIN main.ops AS o USING (run_id, event_id)
             WHERE o.is_leaf AND o.execution = 0 ORDER BY o.start_ps"""
    return [number for (number,) in query(sql).rows()]


def warehouse(space: Space, folder: Path) -> Warehouse:
    found = Warehouse(folder / "w")
    found.ingest(space.write(folder / "x.xplane.pb"))
    return found


HEAD = [("gemm_fusion_dot_general_73", None), ("input_reduce_fusion", None)]
EMBEDDING = [("loop_gather_fusion", None)]


@pytest.mark.parametrize(
    "layers",
    [
        [layer(n) for n in range(6)],
        [layer(n, own=False) for n in range(12)],
        [layer(n, tile=("128x128", "256x64")[n % 2]) for n in range(8)],
        [[*layer(0), ("memcpy128", None)], *(layer(n) for n in range(1, 5))],
    ],
)
def test_each_op_has_the_layer_in_which_it_runs(tmp_path: Path, layers: list[list[Kernel]]) -> None:
    """Some kernels are of one layer, tiles differ by layer, and a layer has a copy of its own."""
    step = [*EMBEDDING, *(k for of in layers for k in of), *HEAD]
    found = warehouse(program(step, step, step), tmp_path)
    expected = [n for n, of in enumerate(layers) for _ in of]
    got = layers_of_ops(found.query)[1 : 1 + len(expected)]
    assert sum(a == b for a, b in zip(got, expected, strict=True)) >= len(expected) - 1  # the copy may lie between two
    rows = found.query(
        "SELECT DISTINCT layer_source, layer_confidence >= 0.8 FROM main.instructions WHERE loop_layer = 0"
    )
    assert rows.rows() == [("inferred", True)]
    flags = found.query("SELECT detail FROM main.quality_flags WHERE flag = 'inferred_layers'").rows()
    assert f"{len(layers)} layers, in which kernels repeat" in flags[0][0]


def test_names_of_one_layer_tell_which_is_the_first(tmp_path: Path) -> None:
    """As in a stage of a pipeline; names that contradict the order let nothing be inferred."""
    layers = [layer(n) for n in range(6)]
    for first, is_right in ((0, True), (4, True), (-1, False)):
        marked = [list(of) for of in layers]
        for place, number in ((0, first), (3, first + 3 if is_right else 0)):
            marked[place][6] = (
                f"loop_add_fusion_{50 + place}",
                f"jit(step)/layers.{max(number, 0) + 3 * (not is_right)}/add",
            )
        step = [k for of in marked for k in of]
        folder = tmp_path / str(first)
        folder.mkdir()
        numbers = [n for n in layers_of_ops(warehouse(program(step, step), folder).query) if n is not None]
        if is_right:
            assert (min(numbers), max(numbers)) == (first, first + 5)
        else:
            assert set(numbers) == {3}


@pytest.mark.parametrize(("first", "last", "expected"), [(0, 40, [8, 8, 0]), (21, 75, [0, 8, 8]), (21, 40, [0, 0, 0])])
def test_executions_that_the_profile_cuts_have_no_layers(
    tmp_path: Path, first: int, last: int, expected: list[int]
) -> None:
    """Its first piece need not be layer 0; the last may have all layers. Where no two agree, none has layers."""
    step = [*EMBEDDING, *(k for n in range(8) for k in layer(n)), *HEAD]
    query = warehouse(program(step[first:], step, step[:last]), tmp_path).query
    sql = (
        "SELECT execution, COUNT(DISTINCT iteration) FROM main.ops WHERE is_leaf GROUP BY execution ORDER BY execution"
    )
    assert query(sql).rows() == list(enumerate(expected))


@pytest.mark.parametrize(
    "step",
    [
        [k for n in range(3) for k in layer(n)],  # three equal pieces prove nothing
        [("loop_add_fusion_1", None), ("loop_multiply_fusion_5", None)] * 40,  # no products
        [*layer(0), *layer(1), ("gemm_fusion_dot_91", None)] * 1,
    ],
)
def test_what_repeats_without_layers_has_none(tmp_path: Path, step: list[Kernel]) -> None:
    query = warehouse(program(step, step), tmp_path).query
    assert set(layers_of_ops(query)) == {None}
    assert query("SELECT COUNT(iteration) FROM main.ops").scalar() == 0


def test_a_real_model_whose_layers_are_unrolled(shared_traces: Path, tmp_path: Path) -> None:
    """Six layers, as the program was written; each takes a sixth of their time, give or take a third."""
    name = "h200-jax-llama6-unrolled-marked"
    found = Warehouse(tmp_path / "w")
    found.ingest(shared_traces / f"gpu-own/{name}.xplane.pb.gz")
    truth = json.loads((shared_traces / "gpu-own/truth-jax.json").read_text())[name]
    coverage = dict(found.query("SELECT phase, coverage FROM metrics.layer_coverage").rows())
    assert coverage["prefill"] > 0.97  # 0.13 by names alone
    assert coverage["decode"] > 0.84  # the rest is the output head and copies, which no name tells
    sql = "SELECT phase, layer, SUM(self_us) FROM metrics.layer_time WHERE layer IS NOT NULL GROUP BY ALL"
    for phase in ("prefill", "decode"):
        times = {number: us for of, number, us in found.query(sql).rows() if of == phase}
        assert times.keys() == set(range(truth["L"]))
        mean = sum(times.values()) / truth["L"]
        assert all(0.67 * mean < us < 1.34 * mean for us in times.values())
    steps = found.query("SELECT COUNT(DISTINCT step) FROM main.ops WHERE phase = 'decode' AND iteration = 5")
    assert steps.scalar() == truth["steps"]


def test_kernels_of_inductor_fuse_other_operators_in_other_layers() -> None:
    """A decode step as recorded on an H200: three products of a layer run the same kernel, on other shapes."""
    product = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
    norm, view = "triton_per_fused__fused_rms_norm__unsafe_view_add", "triton_poi_fused__unsafe_view"
    after = (
        f"{norm}_embedding_4 {norm}_embedding_6 {norm}_embedding_7 {norm}_8 {norm}_9 {norm}_10 {norm}_11 {view}_add_12"
    )
    names = [
        "triton_red_fused__fused_rms_norm_embedding_0",
        *([product] * 3),
        f"{product}_splitK",
        "splitKreduce_kernel",
    ]
    names += [f"{view}_index_copy_split_transpose_view_1", f"{view}_index_copy_split_transpose_view_2"]
    names += ["triton_poi_fused_arange_le_scalar_tensor_unsqueeze_where_3", "cudnn_generated_fort_native_sdpa_sm80"]
    names += ["void cudnn::fusion::lean_reduction_kernel<false>", f"{view}_silu_5", *after.split(), "nvjet_sm90_128x8"]
    rows = [InstructionRow(name, kernel=name) for name in [*names, "triton_red_fused_argmax_13"]]
    layers = [i for n in range(4) for i in (1, 6, 7, 8, 9, 10, 2, 12 + 2 * n, 3, 11, 4, 5, 13 + 2 * n)]
    found = repeated_layers(np.array([0, *layers, 20, 21], np.int32), rows)
    assert found is not None
    assert found.layer.tolist() == [n for n in range(4) for _ in range(13)] + [-1] * 3  # from norm to norm
