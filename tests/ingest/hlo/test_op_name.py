from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracewarehouse.ingest.hlo.op_names import PARTS, layer_and_part, stage_layer_and_tick


@pytest.mark.parametrize(
    ("op_name", "layer", "part"),
    [
        # torch_xla scopes: the number behind the dot counts uses
        ("layer1.7/mlp.9/aten__mul.4/aten__mul", 1, "mlp"),
        ("layer0.8/attn.4/aten__mm", 0, "attn"),
        ("layer12.40/aten__mean", 12, None),
        ("embed.3/aten__index_select", None, "embed"),
        ("lm_head.5/aten__mm", None, "lm_head"),
        ("aten__argmax", None, None),
        ("xla__device_data", None, None),
        ("prim__Constant", None, None),
        ("tick1.5/local_layer0.4/attn.1/aten__where", None, "attn"),
        ("tick1.5/pp_shift.2/aten__cat", None, "pipeline"),
        # JAX and MaxText
        ("jit(train)/decoder/layers_12/self_attention/query/dot_general", 12, "attn"),
        ("jit(f)/transpose(jvp(layers_3))/mlp/wi_0/dot_general", 3, "mlp"),
        ("decoder/layers_2/pre_self_attention_layer_norm/mul", 2, "norm"),
        ("decoder/decoder_norm/mul", None, "norm"),
        ("decoder/layers_4/MoeBlock_0/gate/dot_general", 4, "moe"),
        ("token_embedder/gather", None, "embed"),
        ("decoder/logits_dense/dot_general", None, "lm_head"),
        ("transformer/h_3/attn/c_attn", 3, "attn"),
        ("transformer/h/3/mlp/c_fc", 3, "mlp"),
        ("transformer/layer_7/ffw_gating/dot_general", 7, "mlp"),
        ("FlaxLlama/DecoderLayer_5/feed_forward/w1", 5, "mlp"),
        ("VisionTransformer/encoderblock_2/MultiHeadDotProductAttention_0/query", 2, "attn"),
        # torch modules and vLLM
        ("model.layers.5.self_attn.qkv_proj", 5, "attn"),
        ("model.layers.5.self_attn", 5, "attn"),
        ("model.layers.31.mlp.gate_up_proj", 31, "mlp"),
        ("model.layers.3.mlp.gate", 3, "moe"),
        ("model.layers.3.mlp.experts.17.down_proj", 3, "moe"),
        ("model.layers.3.mlp.shared_experts.up_proj", 3, "moe"),
        ("model.layers.3.block_sparse_moe.router", 3, "moe"),
        ("model.layers.5.input_layernorm", 5, "norm"),
        ("model.layers.5.post_attention_layernorm", 5, "norm"),
        ("model.layers.5.self_attn.q_norm", 5, "attn"),
        ("model.layers.5.self_attn.rotary_emb", 5, "attn"),
        ("model.layers.5.o_proj", 5, "attn"),
        ("model.layers.5.gate_proj", 5, "mlp"),
        ("model.norm", None, "norm"),
        ("model.embed_tokens", None, "embed"),
        ("decoder.layer.7", 7, None),
        ("encoder.layer.7.attention.self", 7, "attn"),
        ("blocks.3", 3, None),
        ("blocks.3.ln_1", 3, "norm"),
        ("transformer.h.11.ln_f", 11, "norm"),
        ("model.layers[4].attn", 4, "attn"),
        ("transformer.wte", None, "embed"),
        # tf_op of TPU captures
        ("jit(step_fun)/jit(_jax_attn_func)/shard_map/jit(ragged_paged_attention)/slice:", None, "attn"),
        ("jit(step_fun)/QKVParallelLinear/mn,pn->mp/dot_general:", None, "attn"),
        ("jit(step_fun)/aten::view/reshape;jit(step_fun)/QKVParallelLinear/reshape:", None, "attn"),
        ("jit(step_fun)/aten::embedding/jit(_take)/gather:", None, "embed"),
        ("jit(compute_logits_func)/linear/...a,ba->...b/dot_general:", None, "lm_head"),
        ("jit(step_fun)/RowParallelLinear/mn,pn->mp/dot_general:", None, None),
        ("jit(f)/layers_1/mul;jit(f)/layers_2/mlp/dot", 1, "mlp"),
        # names that only look like layers
        ("flash_attention/moe_block_256", None, "attn"),
        ("player_3/x", None, None),
        ("LayerNorm_1", None, "norm"),
        ("RPA-bq_32-bkvp_64-p_64-", None, None),
        ("layer1x", None, None),
        ("", None, None),
        (None, None, None),
    ],
)
def test_layer_and_part(op_name: str | None, layer: int | None, part: str | None) -> None:
    assert layer_and_part(op_name) == (layer, part)


@given(st.text(max_size=80))
def test_any_text_is_answered(op_name: str) -> None:
    layer, part = layer_and_part(op_name)
    assert layer is None or layer >= 0
    assert part is None or part in PARTS


@given(st.integers(0, 99999), st.sampled_from(["layer{}.3", "layers_{}", "model.layers.{}", "h_{}", "blocks.{}"]))
def test_the_layer_is_the_number_of_the_scope(layer: int, scope: str) -> None:
    assert layer_and_part(f"jit(f)/{scope.format(layer)}/attn/dot")[0] == layer


def test_the_outermost_scope_is_the_layer() -> None:
    assert layer_and_part("layers_7/mlp/layers_1/dot") == (7, "mlp")


def test_long_hostile_names_are_cheap() -> None:
    for unit in ("layer_", "a_", "A", "/", ";", "(", "local_"):
        layer_and_part(unit * 2_000_000)


@pytest.mark.parametrize(
    ("op_name", "stage_layer", "tick"),
    [
        ("tick0.7/local_layer0.2/attn.2/aten__matmul", 0, 0),
        ("tick12.8/local_layer3.2/mlp.5", 3, 12),
        ("tick2.9/aten__cat", None, 2),
        ("pp_shift.10/aten__stack", None, None),
        ("aten__add;tick1/local_layer4/mul;tick2/local_layer5/dot", 4, 1),
        ("jit(f)/stage_layers_6/dot", 6, None),
        ("layer3.1/attn", None, None),
        ("stick_2/nonlocal_layer1/x", None, None),
        ("tick1x/local_layer", None, None),
        ("", None, None),
        (None, None, None),
    ],
)
def test_stage_layer_and_tick(op_name: str | None, stage_layer: int | None, tick: int | None) -> None:
    assert stage_layer_and_tick(op_name) == (stage_layer, tick)
