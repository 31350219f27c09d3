"""Makes the row of an instruction in main.instructions, and the facts about it that events need."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from tracewarehouse.ingest.columns.profiler_names import collective_kind, is_memcpy, is_memset
from tracewarehouse.ingest.columns.records import Stat
from tracewarehouse.ingest.hlo import op_names
from tracewarehouse.ingest.hlo.collectives import KINDS, Collective, find_collective
from tracewarehouse.ingest.hlo.instruction import (
    KNOWN_TRIPS,
    AsyncRole,
    Instruction,
    Loop,
    carried_arrays,
    operand_dtype,
    signature,
)
from tracewarehouse.ingest.hlo.opcodes import (
    OpClass,
    async_role,
    async_start_name,
    base_opcode,
    is_spread_step,
    op_class,
)
from tracewarehouse.ingest.hlo.replica_groups import Groups
from tracewarehouse.ingest.hlo.stated_work import Work

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.costs import KernelCost


class OpFacts(NamedTuple):
    """The facts of an instruction that the rows of its events need.

    `role` says which part of an asynchronous op it is, and `start_name` names the operand that an update or done
    continues. `carried` is what passes from the start of an asynchronous collective to its done: its kind and shape.
    `is_fused` says that a collective is part of what it computes.
    `rendezvous` names a collective that two starts share, of which one stands for both: not the `is_second_half`.
    `trips` is the number of iterations of a loop, 0 if the compiler does not tell it, None if it is no loop, and
    `arrays` those that the loop carries.
    `is_outside` says that it is named after the embedding or the output head, which no layer has.
    The compiler does not know what an `is_custom_call` costs, so that a stated 0 is no cost there.
    `is_memset` fills memory with one value: it is of the class copy, but copies nothing.
    """

    name: str
    program_id: int | None
    is_hlo: bool
    op_class: OpClass
    role: AsyncRole | None
    start_name: str | None
    carried: str | None
    rendezvous: str | None = None
    is_second_half: bool = False
    is_fused: bool = False
    trips: int | None = None
    arrays: frozenset[str] = frozenset()
    contracts: bool = False
    is_outside: bool = False
    is_custom_call: bool = False
    is_memset: bool = False

    @property
    def is_collective(self) -> bool:
        """True if it is a collective or half of one, and nothing else."""
        return self.op_class == "communication"

    @property
    def has_collective(self) -> bool:
        """True if it is a collective or half of one, or if one is fused into what it computes."""
        return self.is_collective or self.is_fused


class InferredPlace(NamedTuple):
    """The place of an instruction in the model, inferred from the repetition in its program.

    Attributes:
        layer: the layer; in a pipeline stage with its own program, counted from the stage's first layer.
        part: part of the model; None if unknown.
        confidence: how sure it is, from 0 to 1.
        is_in_stage: the layer counts within a stage.
    """

    layer: int
    part: str | None
    confidence: float
    is_in_stage: bool = False


class LoopPlace(NamedTuple):
    """The place in the model of an instruction in a loop over layers.

    Attributes:
        layer: its layer in the loop's first iteration; in a pipeline, counted from the first layer of the stage.
        per_iteration: how many layers further it is in each iteration; negative where a loop goes back through them.
        part: part of the model; None if unknown.
        confidence: confidence that these are layers, where no loop but the order of kernels tells; None for a loop.
    """

    layer: int
    per_iteration: int
    part: str | None
    confidence: float | None = None


@dataclass
class InstructionRow:
    """One row of main.instructions, with its collective and the stats that have no column."""

    name: str
    program_id: int | None = None
    module: str | None = None
    category: str | None = None
    hlo: Instruction | None = None
    flops: int | None = None
    model_flops: int | None = None
    bytes_accessed: int | None = None
    op_name: str | None = None
    source: str | None = None
    stats: list[Stat] = field(default_factory=list)
    is_unread: bool = False
    """The text looks like an instruction but cannot be read as one."""
    lacks_groups: bool = False
    """Its replica groups are left out, because the groups of the run have too many members."""
    assignments: tuple[tuple[int, ...], ...] = ()
    """The program's device assignments, of a collective: global device ids by logical number; () if not stated."""
    inferred: InferredPlace | None = None
    """Its inferred place in the model, if no name tells its layer."""
    in_loop: LoopPlace | None = None
    """Its place in the model, if it is in a loop over layers."""
    loops: tuple[Loop, ...] = ()
    """The loops that hold it, outermost first, if its program tells them."""
    kernel: str | None = None
    """Name of its event on a GPU's stream."""
    kernel_part: str | None = None
    """The part of the model that the kernel's name tells."""
    hbm_bytes: int | None = None
    """The part of bytes_accessed in HBM, if the profiler splits it by memory."""
    on_chip_bytes: int | None = None
    """The part in memories of the chip itself."""
    given: KernelCost | None = None
    """Its cost, if the user gave one."""
    is_communicating: bool = False
    """The proto says that its kernel sends data to other devices itself."""
    is_fused: bool = False
    """It is a fusion that computes, and a collective is part of it."""
    started: Collective | None = None
    """The collective of its start, if it is a done that does not state its collective."""
    stated: Collective | None = None
    """The collective that the framework says a kernel executes."""
    work: Work | None = None
    """What the operator that launched a kernel says of its work."""

    @cached_property
    def collective(self) -> Collective | None:
        """The collective that the instruction executes; None if it executes none."""
        if self.hlo is None:
            return self.stated or self._by_kernel
        stated = find_collective(self.hlo)
        if stated is None and self.started:
            return replace(
                self.started,
                role=async_role(self.hlo),
                start_name=async_start_name(self.hlo),
                groups=None,
                pairs=None,
                channel_id=None,
                group_size=None,
            )
        return stated or self._by_kernel or self._by_category

    @property
    def _by_kernel(self) -> Collective | None:
        kind = collective_kind(self.kernel, self.name, KINDS) if self.kernel else None
        return Collective(kind) if kind else None

    @property
    def _by_category(self) -> Collective | None:
        """The kind of a fused collective, from the profiler's category; no text tells what it moves."""
        hlo, category = self.hlo, self.category or ""
        if hlo is None or hlo.inner or hlo.opcode not in ("fusion", "custom-call") or is_spread_step(hlo):
            return None
        kinds = [kind for kind in KINDS if re.search(rf"(?<![a-z-]){kind}(?![a-z-])", category)]
        return Collective(kinds[0], async_role(hlo), async_start_name(hlo)) if len(kinds) == 1 else None

    @property
    def members(self) -> Groups | None:
        """Replica groups, or source-target pairs, of a collective; () means all devices, None is unknown."""
        if self.collective is None:
            return None
        return self.collective.pairs if self.collective.pairs is not None else self.collective.groups

    @property
    def absurd_shape(self) -> str | None:
        """Text of its first shape that is larger than any memory; None if all shapes are possible."""
        for i in (self.hlo, *self.hlo.inner) if self.hlo else ():
            for shape in (i.shape, *i.operand_shapes):
                if shape is not None and shape.is_absurd:
                    return shape.text
        return None

    @property
    def op_class(self) -> OpClass:
        """The class of the instruction: what a device does while it runs."""
        moves_memory = self.kernel is not None and (is_memcpy(self.kernel) or is_memset(self.kernel))
        opcode = self.hlo.opcode if self.hlo else "copy" if moves_memory else None
        return op_class(opcode, is_collective=self.collective is not None and not self.is_fused)

    @property
    def facts(self) -> OpFacts:
        """The facts that its events need."""
        collective = self.collective
        return OpFacts(
            self.name,
            self.program_id,
            self.hlo is not None,
            self.op_class,
            collective.role if collective else async_role(self.hlo) if self.hlo else None,
            collective.start_name if collective else async_start_name(self.hlo) if self.hlo else None,
            self._carried,
            collective.rendezvous if collective else None,
            collective.is_second_half if collective else False,
            self.is_fused and collective is not None,
            self._trips,
            carried_arrays(self.hlo.shape) if self.hlo and self.hlo.opcode == "while" else frozenset(),
            self.contracts,
            self.contracts and op_names.layer_and_part(self.op_name)[1] in ("embed", "lm_head"),
            self.hlo is not None and self.hlo.opcode == "custom-call",
            self.hlo is None and self.kernel is not None and is_memset(self.kernel),
        )

    @property
    def contracts(self) -> bool:
        """Whether it multiplies matrices, or is a kernel of its own, as products of a server often are."""
        category = self.category or (self.hlo.opcode if self.hlo else "")
        if self.collective is not None:
            return False
        # XLA calls several things a custom fusion, and of some kernels only the name is known
        names = category in ("custom fusion", "") and _CONTRACTS_BY_NAME.search(
            f"{self.name} {self.kernel} {self.op_name or ''}"
        )
        return bool(names) or _CONTRACTS.search(category) is not None

    @property
    def _trips(self) -> int | None:
        if self.hlo is None or self.hlo.opcode != "while":
            return None
        stated = KNOWN_TRIPS.search(self.hlo.text or "")
        return int(stated[1]) if stated else 0

    @property
    def _carried(self) -> str | None:
        if self.hlo is None or self.collective is None or self.collective.role is None:
            return None
        of_done = next(iter(self.hlo.operand_shapes), None)
        shape = self.hlo.shape if self.collective.role == "start" else of_done
        kind = base_opcode(self.hlo.opcode) if self.collective.link else self.collective.kind
        return f"{kind} {shape.text}" if shape is not None else None

    def row(self) -> dict[str, Any]:
        """The row as a mapping of column to value, without instruction_id."""
        hlo, collective, members, work = self.hlo, self.collective, self.members, self.work or Work()
        layer, part = op_names.layer_and_part(self.op_name) if self.op_name else (None, None)
        stage_layer, tick = op_names.stage_layer_and_tick(self.op_name)
        layer_source = None if layer is None and stage_layer is None else "marked"
        part_source = "marked" if part else None
        if self.in_loop:
            layer, stage_layer = None, None
            layer_source = "loop" if self.in_loop.confidence is None else "inferred"
        elif self.inferred and layer_source is None:
            layer_source = "inferred"
            if self.inferred.is_in_stage:
                stage_layer = self.inferred.layer
            else:
                layer = self.inferred.layer
        if self.inferred and self.inferred.part and part is None:
            part, part_source = self.inferred.part, "inferred"
        if self.in_loop and self.in_loop.part and part is None:
            part, part_source = self.in_loop.part, "inferred"
        if part is None and self.kernel_part:
            part, part_source = self.kernel_part, "inferred"
        return {
            **{name: getattr(self, name) for name in _OWN_COLUMNS},
            **{name: getattr(collective, name, None) for name in ("channel_id", "message_bytes", "group_size")},
            "opcode": hlo.opcode if hlo else None,
            "hlo_text": hlo.text if hlo else None,
            "shape": hlo.shape.text if hlo else work.shape,
            "signature": signature(hlo) if hlo else None,
            "dtype": hlo.shape.dtype if hlo else None,
            "operand_dtype": operand_dtype(hlo, self.category, self.op_name)
            if hlo and (not collective or self.is_fused)
            else work.operand_dtype,
            "hbm_bytes_accessed": self.hbm_bytes,
            "on_chip_bytes_accessed": self.on_chip_bytes,
            "given_flops": self.given.flops if self.given else None,
            "given_bytes_accessed": self.given.bytes if self.given else None,
            "layer": layer,
            "loop_layer": self.in_loop.layer if self.in_loop else None,
            "layers_per_iteration": self.in_loop.per_iteration if self.in_loop else None,
            "stage_layer": stage_layer,
            "tick": tick,
            "part": part,
            "layer_source": layer_source,
            "part_source": part_source,
            "layer_confidence": place.confidence if (place := self.in_loop or self.inferred) else None,
            "collective": collective.kind if collective else None,
            "async_role": async_role(hlo) if hlo else None,
            "async_start": async_start_name(hlo) if hlo else None,
            "group_count": len(members) if members else None,
            "replica_groups": json.dumps(members, separators=(",", ":")) if members is not None else None,
        }


_OWN_COLUMNS = (
    "program_id", "module", "name", "category", "flops", "model_flops", "bytes_accessed", "op_name", "source",
    "op_class",
)  # fmt: skip
"""Fields of a row that are columns as they are."""
_CONTRACTS = re.compile(r"convolution|dot|custom-call|gemm|matmul|ragged")
_CONTRACTS_BY_NAME = re.compile(r"gemm|matmul|dot_general$|conv_general_dilated$|ragged_dot")
