from __future__ import annotations

import importlib.util

import pytest

from tests.collect.torch_processes import TorchProcesses
from tracewarehouse.collect.parallel.partition import device_slices, weight_partition


@pytest.mark.parametrize(
    ("name", "dimensions", "partition"),
    [
        ("model.layers.0.self_attn.q_proj.weight", 2, ("tp", None)),
        ("model.layers.0.self_attn.kv_b_proj.weight", 2, ("tp", None)),
        ("model.layers.0.self_attn.o_proj.weight", 2, (None, "tp")),
        ("model.layers.0.mlp.down_proj.weight", 2, (None, "tp")),
        ("model.layers.1.mlp.shared_experts.up_proj.weight", 2, ("tp", None)),
        ("model.layers.1.mlp.experts.gate_proj", 3, ("ep", "tp", None)),
        ("model.layers.1.mlp.experts.down_proj", 3, ("ep", None, "tp")),
        ("lm_head.weight", 2, ("tp", None)),
        # What every device needs whole: embeddings, norms, routers, the projections into latents.
        ("model.embed_tokens.weight", 2, (None, None)),
        ("model.layers.0.self_attn.q_norm.weight", 1, (None,)),
        ("model.layers.1.mlp.gate.weight", 2, (None, None)),
        ("model.layers.0.self_attn.q_a_proj.weight", 2, (None, None)),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 2, (None, None)),
    ],
)
def test_a_weight_is_split_by_its_name(name: str, dimensions: int, partition: tuple[str | None, ...]) -> None:
    assert weight_partition(name, dimensions) == partition


STAGE_INDEX = """
import json
from tracewarehouse.collect.torch_xla.operations import with_stage_index
print(json.dumps([with_stage_index("gsec,gsh->gech", [True, True]), with_stage_index("abc,cd->abd", [True, False])]))
"""


@pytest.mark.skipif(importlib.util.find_spec("torch_xla") is None, reason="torch_xla is not installed")
def test_stages_are_one_more_index(torch_processes: TorchProcesses) -> None:
    assert torch_processes.answer(STAGE_INDEX) == ["agsec,agsh->agech", "eabc,cd->eabd"]


def test_slices_worked_by_hand() -> None:
    assert device_slices((10, 4), (("dp", "tp"), None), {"dp": 2, "tp": 2}, {"dp": 1, "tp": 0}) == (
        slice(6, 9),
        slice(0, 4),
    )
    assert device_slices((4,), ("tp",), {"tp": 8}, {"tp": 6}) == (slice(4, 4),)
