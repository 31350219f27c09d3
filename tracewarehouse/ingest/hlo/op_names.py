"""Reads the layer and part of a model from an op_name, the name path that a framework gives an operation.

Instructions that the compiler made or rewrote have none; `inherited_names` finds one for them.

Paths come as 'layer1.7/mlp.9/aten__mul' (torch_xla scopes; '.7' counts uses), 'decoder/layers_12/self_attention/...'
(JAX, MaxText), 'transformer/h_3/attn', 'model.layers.5.self_attn.qkv_proj' (torch modules, vLLM), or wrapped as
'jit(step)/transpose(jvp(layers_3))/...'. A fused op's paths are joined by ';'.

Layer: the first of these in the path, as the outermost one is the transformer layer:
- layer, layers, block, blocks with a number right behind or after one of . _ / [ : layer1, layers_12, layers/5,
  decoder.layer.7, blocks.3, DecoderLayer_2; words may be joined before layer with _ (decoder_layer_3), before block
  only decoder, encoder, transformer and residual, as kernels name their block sizes;
- h with a number after . _ or / : h_3, h.3.
Not 'local_layer1': under pipeline parallelism it counts within a stage, so the layer differs between devices. That
number is the stage layer; 'tick2', around it, is the tick of the schedule.

Part: path components are read from the left, and the first that says a part decides; but moe within mlp is moe, since
models keep their experts under 'mlp'. One component says, in this order of its words:
- lm_head: lm_head, logits, unembed, output head;
- norm: norm, layernorm, rms_norm, ln_1, ln_f ('post_attention_layernorm' is a norm, not attention);
- moe: moe, expert(s), router, routing, or just 'gate' ('gate_proj' is mlp);
- attn: attn, attention, mha, mla, qkv, rotary, rope; q_proj, k_proj, v_proj, o_proj, qkv_proj, out_proj;
- mlp: mlp, ffn, ffw, feed_forward; gate_proj, up_proj, down_proj, gate_up_proj, fc1, fc2;
- embed: embed, embedding(s), embedder, wte, wpe;
- pipeline: pp_shift, pp_send, pp_recv: transfers between the stages of a pipeline.
If no rule matches, the part is None: 'RowParallelLinear' is in attention and in the mlp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from typing import Any

from tracewarehouse.ingest.hlo.instruction import OpNameSource
from tracewarehouse.ingest.hlo.opcodes import CARRIES_INNER

PARTS = ("attn", "mlp", "moe", "embed", "lm_head", "norm", "pipeline")

_LAYER = re.compile(
    r"(?<![a-z0-9_])"
    r"(?:(?:[a-z0-9]{1,40}_){0,3}(?<!local_)(?:decoder|encoder|transformer)?layers?[._/\[]?"
    r"|(?:(?:decoder|encoder|transformer|residual)_?)?blocks?[._/\[]?"
    r"|h[._/])"
    r"(\d{1,5})(?![a-z0-9])"
)
_STAGE_LAYER = re.compile(r"(?<![a-z0-9_])(?:local|stage)_layers?[._\[]?(\d{1,5})(?![a-z0-9])")
_TICK = re.compile(r"(?<![a-z0-9_])tick[._\[]?(\d{1,5})(?![a-z0-9])")
_COMPONENT = re.compile(r"[^/.()\[\]:\s]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[a-z]+")

_LM_HEAD = frozenset({"logits", "unembed", "unembedding", "lmhead"})
_NORM = frozenset({"ln", "lnf"})
_MOE = frozenset({"moe", "expert", "experts", "router", "routing", "moegate"})
_ATTN = frozenset({"attn", "attention", "mha", "mqa", "gqa", "mla", "qkv", "rotary", "rope", "sdpa"})
_ATTN_NAMES = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "out_proj"})
_MLP = frozenset({"mlp", "ffn", "ffw", "feedforward"})
_MLP_NAMES = frozenset({"gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2"})
_EMBED = frozenset({"embed", "embedding", "embeddings", "embedder", "wte", "wpe"})
_PIPELINE_NAMES = frozenset({"pp_shift", "pp_send", "pp_recv"})
_MAX_CHARACTERS = 4096


@lru_cache(maxsize=1 << 16)
def layer_and_part(op_name: str | None) -> tuple[int | None, str | None]:
    """Return the transformer layer and the part of the model (one of PARTS) in an op_name; None for one not stated.

    Of the several paths of a fused op, the first with a layer decides the layer, and the first with a part the part.
    """
    if not op_name:
        return None, None
    layer: int | None = None
    part: str | None = None
    for path in op_name[:_MAX_CHARACTERS].split(";"):
        layer = _layer(path) if layer is None else layer
        part = part or _part(path)
        if layer is not None and part:
            break
    return layer, part


@lru_cache(maxsize=1 << 16)
def stage_layer_and_tick(op_name: str | None) -> tuple[int | None, int | None]:
    """Return the layer within a pipeline stage and the tick of the schedule in an op_name; None for one not stated.

    Of the several paths of a fused op, the first that names one decides. Microbatches enter the first stage one by one,
    so in tick t stage s works on microbatch t - s (GPipe, Huang et al. 2019).
    """
    if not op_name:
        return None, None
    paths = [path.lower() for path in op_name[:_MAX_CHARACTERS].split(";")]
    stage_layer, tick = (
        next((int(match[1]) for match in map(pattern.search, paths) if match), None)
        for pattern in (_STAGE_LAYER, _TICK)
    )
    return stage_layer, tick


def _layer(path: str) -> int | None:
    match = _LAYER.search(_CAMEL.sub("_", path).lower())
    return int(match[1]) if match else None


def _part(path: str) -> str | None:
    said: str | None = None
    for component in _COMPONENT.findall(path):
        part = _component_part(component)
        if part and (said is None or (said == "mlp" and part == "moe")):
            said = part
            if said != "mlp":
                break
    return said


@lru_cache(maxsize=1 << 12)
def _component_part(component: str) -> str | None:
    name = _CAMEL.sub("_", component).lower().strip("_")
    words = _WORD.findall(name)
    distinct = set(words)
    if distinct & _LM_HEAD or ("head" in distinct and distinct & {"lm", "output"}):
        return "lm_head"
    if distinct & _NORM or any(word.endswith("norm") for word in words):
        return "norm"
    if distinct & _MOE or name == "gate" or any(word.endswith("moe") for word in words):
        return "moe"
    if distinct & _ATTN or name in _ATTN_NAMES or any(word.endswith(("attn", "attention")) for word in words):
        return "attn"
    if distinct & _MLP or name in _MLP_NAMES or ("feed" in distinct and "forward" in distinct):
        return "mlp"
    if distinct & _EMBED:
        return "embed"
    if name in _PIPELINE_NAMES:
        return "pipeline"
    return None


# Values without an operation of their own: their op_name tells nothing about the op that uses them.
_PASSIVE = frozenset({"parameter", "constant", "iota", "partition-id", "replica-id"})
_VIEWS = frozenset({"bitcast", "broadcast", "convert", "copy", "reshape", "slice", "transpose"})
# The TPU compiler's names for its kernels of a ragged-dot, in place of the path that this had.
_KERNEL_NAMES = ("ragged-dot-none", "ragged-dot-metadata")
# torch_xla's names for values from outside the program, however the compiler slices them.
_DATA_NAMES = ("xla__device_data", "prim__Constant")
# JAX's names for values from outside: weights[1][5]['mlp.up_proj'], state.params['layers_5']
_ARGUMENT = re.compile(r"[a-zA-Z_]\w{0,99}(?:\.\w{1,99}|\[[^][/]{1,99}\]){0,20}\[[^][/]{1,99}\](?:\.\w{1,99})?")


def stated_path(op_name: str | None) -> str | None:
    """Return an op_name that the framework gave an operation; None for one of the compiler's kernels or an argument."""
    is_other = not op_name or op_name.startswith(_KERNEL_NAMES) or _ARGUMENT.fullmatch(op_name)
    return None if is_other else op_name


def inherited_names(
    module: Any, computations: Mapping[int, Any], instructions: Mapping[int, Any]
) -> dict[str, tuple[str, OpNameSource]]:
    """Return the op_names of instructions that have none of their own, and the source of each, by instruction name."""
    inheritance = _Inheritance(computations, instructions)
    for computation in module.computations:
        inheritance.inherit(computation)
    return inheritance.names


class _Inheritance:
    def __init__(self, computations: Mapping[int, Any], instructions: Mapping[int, Any]) -> None:
        self.names: dict[str, tuple[str, OpNameSource]] = {}
        self._computations = computations
        self._instructions = instructions
        self._of_computation: dict[int, str | None] = {}

    def inherit(self, computation: Any) -> None:
        """Give instructions without op_name the op_name of those fused in them, of their operands or of their users.

        A fusion takes the name of its root, or of the nearest instruction before the root that has one. Operands count
        if they share one, or share a scope that names a layer or part. Parameters, constants and views of them tell
        nothing about the op that uses them. They count only if there is nothing else, not even users that share one:
        the compiler may rewrite a product with another shape and no name, under a view that keeps the name. An op that
        has the name of an argument moves it, and is of the part of the model that uses it. Operands precede their
        users, so one pass in each direction is enough.
        """
        names: dict[int, str] = {}
        passive: set[int] = set()
        unsaid: set[int] = set()
        for proto in computation.instructions:
            opcode = decoded(proto.opcode)
            if opcode in _PASSIVE or (opcode in _VIEWS and passive.issuperset(proto.operand_ids)):
                passive.add(proto.id)
            stated = decoded(proto.metadata.op_name)
            if own := stated_path(stated):
                names[proto.id] = own
                if names[proto.id].endswith(_DATA_NAMES):
                    passive.add(proto.id)
                continue
            argument = stated if _ARGUMENT.fullmatch(stated) else None
            source: OpNameSource = "fusion"
            name = self._fused_op_name(proto) if opcode in CARRIES_INNER else None
            if name is None and opcode not in _PASSIVE:
                source = "operand"
                operands = list(proto.operand_ids)
                active = [operand for operand in operands if operand not in passive]
                name = _shared({names.get(operand) for operand in active or operands})
                if not name or not active or _ARGUMENT.fullmatch(name):
                    unsaid.add(proto.id)
            if argument and (not name or _ARGUMENT.fullmatch(name)):
                name, source = argument, "own"
            if name:
                names[proto.id] = name
                self.names[decoded(proto.name)] = name, source
        if unsaid:
            self._inherit_from_users(computation, names, unsaid)

    def _inherit_from_users(self, computation: Any, names: dict[int, str], unsaid: set[int]) -> None:
        users: dict[int, set[str | None]] = {proto_id: set() for proto_id in unsaid}
        for proto in reversed(computation.instructions):
            name = _shared(users[proto.id]) if proto.id in unsaid else None
            if name and not name.endswith(_DATA_NAMES) and not _ARGUMENT.fullmatch(name):
                names[proto.id] = name
                self.names[decoded(proto.name)] = name, "user"
            for operand in proto.operand_ids:
                if operand in unsaid:
                    users[operand].add(names.get(proto.id))

    def _fused_op_name(self, proto: Any) -> str | None:
        for called in proto.called_computation_ids:
            if called not in self._of_computation and called in self._computations:
                self._of_computation[called] = self._op_name_of(self._computations[called])
            if name := self._of_computation.get(called):
                return name
        return None

    def _op_name_of(self, computation: Any) -> str | None:
        root = root_instruction(computation, self._instructions)
        for inner in chain([root] if root is not None else [], reversed(computation.instructions)):
            if decoded(inner.opcode) not in _PASSIVE and (name := stated_path(decoded(inner.metadata.op_name))):
                return name
        return None


def _shared(names: set[str | None]) -> str | None:
    """Return the only name, or the scope that several names share if it names a layer or part of the model."""
    known = [name for name in names if name]
    if len(known) < len(names) or not known:
        return None
    if len(known) == 1:
        return known[0]
    scope = _shared_scope(known)
    return scope if layer_and_part(scope) != (None, None) else None


def _shared_scope(names: list[str]) -> str:
    """Return the path with which all names begin.

    It compares whole slices and not components, because an op may have many operands with long names.
    """
    first, last = min(names), max(names)
    low, high = 0, min(len(first), len(last))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == last[:middle] else (low, middle - 1)
    prefix = first[:low]
    is_whole = all(len(name) == low or name[low] == "/" for name in names)
    return prefix if is_whole else prefix.rpartition("/")[0]


def decoded(value: bytes) -> str:
    """Return the text of a field."""
    return value.decode("utf-8", "replace")


def root_instruction(computation: Any, instructions: Mapping[int, Any]) -> Any | None:
    """Return the instruction that computes a computation's result; None if the computation is empty."""
    root = instructions.get(computation.root_id)
    if root is not None:
        return root
    return computation.instructions[-1] if computation.instructions else None
