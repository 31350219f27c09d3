"""The instructions of a run: each distinct HLO instruction once, with the facts of its text or Hlo Proto."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracewarehouse.ingest.columns.records import EventMetadata, Int32, Plane, Stat, StatKind
from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.hlo import op_name, text
from tracewarehouse.ingest.hlo.collectives import KINDS, Collective, collective_of
from tracewarehouse.ingest.hlo.instruction import AsyncRole, Instruction, merged, with_device_numbers, without_groups
from tracewarehouse.ingest.hlo.kernels import collective_kind, is_memcpy
from tracewarehouse.ingest.hlo.module_name import module_and_program
from tracewarehouse.ingest.hlo.opcodes import (
    OpClass,
    async_role,
    async_start_name,
    base_opcode,
    is_spread,
    is_spread_step,
    op_class,
)
from tracewarehouse.ingest.hlo.products import operand_dtype
from tracewarehouse.ingest.hlo.replica_groups import Groups

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.costs import KernelCost

MOST_MEMBERS = 1 << 20
"""Members that replica groups of a run may have, or one per 4 bytes of a larger capture; see `Instructions`."""
_INT64_MAX = (1 << 63) - 1
MAX_UPDATES = 16
"""Updates between a start and its done that are followed."""
_OWN_COLUMN = {"hlo_category", "program_id", "flops", "model_flops", "bytes_accessed", "tf_op", "source"}


class OpFacts(NamedTuple):
    """The facts of an instruction that the rows of its events need.

    `role` says which part of an asynchronous op it is, and `start_name` names the operand that an update or done
    continues. `carried` is what passes from the start of an asynchronous collective to its done: its kind and shape.
    """

    name: str
    program_id: int | None
    is_hlo: bool
    op_class: OpClass
    role: AsyncRole | None
    start_name: str | None
    carried: str | None

    @property
    def is_collective(self) -> bool:
        """True if it is a collective or half of one."""
        return self.op_class == "communication"


class InferredPlace(NamedTuple):
    """The place of an instruction in the model, inferred from what repeats in its program.

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
    inferred: InferredPlace | None = None
    """Its inferred place in the model, in a program whose names tell no layer."""
    outline: text.Outline | None = None
    """The part of `hlo` that has been read so far, of an instruction that is neither a collective nor a done."""
    kernel: str | None = None
    """Name of its event on a GPU's stream."""
    given: KernelCost | None = None
    """Its cost, as given by the user."""
    started: Collective | None = None
    """The collective of its start, if it is a done that does not state what it ends."""

    @cached_property
    def collective(self) -> Collective | None:
        """The kind of collective and what it moves; None if the instruction is no collective."""
        if self.outline:
            return None
        if self.hlo is None:
            return self._by_kernel
        stated = collective_of(self.hlo)
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
        """The kind that the profiler's category names for a fused collective; no text tells what it moves."""
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
        """What a device does while it runs."""
        opcode = self.hlo.opcode if self.hlo else "copy" if self.kernel and is_memcpy(self.kernel) else None
        return op_class(opcode, is_collective=self.collective is not None)

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
        )

    @property
    def _carried(self) -> str | None:
        if self.hlo is None or self.collective is None or self.collective.role is None:
            return None
        of_done = next(iter(self.hlo.operand_shapes), None)
        shape = self.hlo.shape if self.collective.role == "start" else of_done
        return f"{self.collective.kind} {shape.text}" if shape is not None else None

    def row(self) -> dict[str, Any]:
        """The row as a mapping of column to value, without instruction_id."""
        hlo, collective, members = self.hlo, self.collective, self.members
        layer, part = op_name.layer_and_part(self.op_name) if self.op_name else (None, None)
        stage_layer, tick = op_name.stage_layer_and_tick(self.op_name)
        layer_source = None if layer is None and stage_layer is None else "marked"
        part_source = "marked" if part else None
        if self.inferred and layer_source is None:
            layer_source = "inferred"
            if self.inferred.is_in_stage:
                stage_layer = self.inferred.layer
            else:
                layer = self.inferred.layer
        if self.inferred and self.inferred.part and part is None:
            part, part_source = self.inferred.part, "inferred"
        return {
            "program_id": self.program_id,
            "module": self.module,
            "name": self.name,
            "opcode": hlo.opcode if hlo else None,
            "category": self.category,
            "hlo_text": hlo.text if hlo else None,
            "shape": hlo.shape.text if hlo else None,
            "dtype": hlo.shape.dtype if hlo else None,
            "operand_dtype": operand_dtype(hlo, self.category) if hlo and not collective else None,
            "flops": self.flops,
            "model_flops": self.model_flops,
            "bytes_accessed": self.bytes_accessed,
            "given_flops": self.given.flops if self.given else None,
            "given_bytes_accessed": self.given.bytes if self.given else None,
            "op_name": self.op_name,
            "layer": layer,
            "stage_layer": stage_layer,
            "tick": tick,
            "part": part,
            "layer_source": layer_source,
            "part_source": part_source,
            "layer_confidence": self.inferred.confidence if self.inferred else None,
            "source": self.source,
            "op_class": self.op_class,
            "collective": collective.kind if collective else None,
            "async_role": async_role(hlo) if hlo else None,
            "async_start": async_start_name(hlo) if hlo else None,
            "channel_id": collective.channel_id if collective else None,
            "message_bytes": collective.message_bytes if collective else None,
            "group_count": len(members) if members else None,
            "group_size": collective.group_size if collective else None,
            "replica_groups": json.dumps(members, separators=(",", ":")) if members is not None else None,
        }


class Instructions:
    """Collects the instructions of all hosts of a run, and numbers them from 0.

    Args:
        most_members: most members that the replica groups of all instructions may have together. Twenty bytes of text
            can name 131,072. Instructions beyond the limit have unknown groups.

    Attributes:
        rows: by instruction id.
        facts: by instruction id, as when the instruction was added.
    """

    def __init__(self, most_members: int = MOST_MEMBERS) -> None:
        self._members_left = most_members
        self.rows: list[InstructionRow] = []
        self.facts: list[OpFacts] = []
        self._by_key: dict[Hashable, int] = {}
        self._by_identity: dict[int, tuple[EventMetadata, int]] = {}
        self._programs: dict[int, str] = {}

    def of_metadata(self, plane: Plane, modules: HloModules) -> Int32:
        """Return the instruction id per row of a device plane's event metadata, and last one for events without any."""
        for m in plane.event_metadata:
            if not m.stats:
                module, program = module_and_program(m.name)
                if program is not None:
                    self._programs.setdefault(program, module)
        seen, known = self._by_identity, len(self.rows)
        ids = [numbered[1] if (numbered := seen.get(id(m))) else self._of(m, modules) for m in plane.event_metadata]
        self._tell_dones(known)
        return np.array([*ids, self._add(("unnamed",), InstructionRow("(unnamed)"))], np.int32)

    def _tell_dones(self, first: int) -> None:
        """Give each done from row `first` on that does not state what it ends the collective of its start.

        The text of an async-done need not name the computation that its start runs.
        """
        rows = [r for r in self.rows[first:] if r.hlo and not r.outline]
        untold = [r for r in rows if r.collective is None and r.hlo and async_start_name(r.hlo)]
        if not untold:
            return
        by_name = {(r.program_id, r.name): r for r in rows}
        numbers = {id(r): i for i, r in enumerate(self.rows[first:], first)}
        for row in untold:
            start: InstructionRow | None = row
            for _ in range(MAX_UPDATES):
                if start is None or start.hlo is None or start.collective:
                    break
                start = by_name.get((row.program_id, async_start_name(start.hlo) or ""))
            if start is not None and start.collective:
                row.started = start.collective
                del row.collective
                self.facts[numbers[id(row)]] = row.facts

    def of_op(
        self,
        modules: HloModules,
        op: str,
        module: str | None,
        program_id: int | None,
        event: str,
        hlo_text: str | None = None,
    ) -> int:
        """Return the id of the instruction that an event names in its stats, as on CPU and GPU.

        Its facts come from the module or, without one, from the HLO text.
        """
        compiled = modules.find(program_id, module)
        key = (compiled.digest if compiled else None, program_id, module, op, event, hlo_text)
        known = self._by_key.get(key)
        if known is not None:
            return known
        return self._add(key, _row_of_op(compiled, op, module, program_id, event, hlo_text))

    def of_program(self, module: HloModule, names: Iterable[str], lines: Mapping[str, str]) -> dict[str, int]:
        """Instructions of a compiled program by name; `lines` has their text, where the program is text."""
        return {
            name: self._add(("program", module.digest, name), _row_of_instruction(module, name, lines.get(name)))
            for name in names
        }

    def of_name(self, name: str) -> int:
        """Return the id of the row for a device event that is no instruction."""
        row = InstructionRow(name, kernel=name)
        row.category = _category_of_kernel(row)
        return self._add(("name", name), row)

    def _of(self, metadata: EventMetadata, modules: HloModules) -> int:
        row = _row_of_metadata(metadata, has_groups=self._members_left > 0)
        if row.hlo and _may_carry_collective(row.hlo, row.category):
            module = modules.find(row.program_id, self._programs.get(row.program_id or 0))
            row.hlo = merged(row.hlo, module.instruction(row.name) if module else None)
        if row.hlo and row.members is not None:
            module = modules.find(row.program_id, self._programs.get(row.program_id or 0))
            _number_devices(row, module)
        key: Hashable
        if row.hlo:
            key = (row.program_id, row.name, row.hlo.text)
        else:
            key = (metadata.name, metadata.display_name, metadata.stats)
        number = self._add(key, row)
        self._by_identity[id(metadata)] = metadata, number  # the object is kept, so its identity stays its own
        return number

    def _add(self, key: Hashable, row: InstructionRow) -> int:
        number = self._by_key.setdefault(key, len(self.rows))
        if number == len(self.rows):
            self._limit_members(row)
            self.rows.append(row)
            self.facts.append(row.facts)
        return number

    def _limit_members(self, row: InstructionRow) -> None:
        """Leave out the groups of an instruction, and of all that follow, once there would be too many."""
        if row.outline or not row.hlo or not row.collective:
            return
        count = sum(map(len, row.members or ()))
        if self._members_left and count <= self._members_left:
            self._members_left -= count
        else:
            self._members_left = 0
            row.hlo, row.lacks_groups = without_groups(row.hlo), True
            del row.collective  # which was made with the groups

    def complete(self) -> None:
        """Read the rest of the texts of which events needed only the outline."""
        for row in self.rows:
            if row.outline and row.hlo:
                row.hlo = text.parse_instruction(row.hlo.text or "", has_groups=False, outline=row.outline)
                row.op_name = row.op_name or (row.hlo.op_name if row.hlo else None)
                row.source = row.source or _source(row.hlo)
                row.outline = None

    def name_modules(self) -> None:
        """Fill module names from program ids, once all planes have been seen."""
        for row in self.rows:
            if row.module is None and row.program_id is not None:
                row.module = self._programs.get(row.program_id)

    def assign_program(self, number: int, module: str, program_id: int | None) -> None:
        """Set the program in which an instruction ran, if its metadata does not tell."""
        row = self.rows[number]
        if row.program_id is None and row.hlo is not None:
            row.program_id, row.module = program_id, module

    def column_rows(self) -> Iterator[dict[str, Any]]:
        """Return the rows of main.instructions."""
        for number, row in enumerate(self.rows):
            yield {"instruction_id": number} | row.row()


def _may_carry_collective(hlo: Instruction, category: str | None) -> bool:
    """True if only the proto states what the instruction moves: it is an async op, or a fused collective."""
    if hlo.opcode.startswith("async-") or is_spread(hlo):
        return True
    return hlo.opcode in ("fusion", "custom-call") and any(kind in (category or "") for kind in KINDS)


def _row_of_metadata(metadata: EventMetadata, *, has_groups: bool) -> InstructionRow:
    """Return the row of a TPU plane's event metadata, whose name is HLO text and whose stats are facts."""
    stats = {s.name: s for s in metadata.stats}
    outline = text.parse_outline(metadata.name)
    hlo = Instruction(outline.name, outline.opcode, outline.shape, text=metadata.name) if outline else None
    name = hlo.name if hlo else metadata.display_name or metadata.name
    row = InstructionRow(name, hlo=hlo, is_unread=hlo is None and text.is_meant_as_instruction(metadata.name))
    row.program_id = _integer(stats.get("program_id"), signed=False)
    row.category = _string(stats.get("hlo_category"))
    if hlo:
        names_start = async_role(hlo) == "done"  # by an operand, which pairs it with its start
        if names_start or base_opcode(hlo.opcode) in KINDS or _may_carry_collective(hlo, row.category):
            row.hlo = hlo = text.parse_instruction(metadata.name, has_groups=has_groups, outline=outline)
        else:
            row.outline = outline
    row.flops, row.model_flops, row.bytes_accessed = (
        _integer(stats.get(n)) for n in ("flops", "model_flops", "bytes_accessed")
    )
    row.op_name = _string(stats.get("tf_op")) or (hlo.op_name if hlo else None)
    row.source = _string(stats.get("source")) or _source(hlo)
    row.stats = [s for s in metadata.stats if s.name not in _OWN_COLUMN]
    if hlo is None and metadata.display_name and metadata.display_name != metadata.name:
        row.stats.append(Stat("name", StatKind.STRING, metadata.name))
    elif hlo and metadata.display_name not in ("", hlo.name):
        row.stats.append(Stat("display_name", StatKind.STRING, metadata.display_name))
    return row


def _row_of_op(
    module: HloModule | None,
    op: str,
    module_name: str | None,
    program_id: int | None,
    event: str,
    hlo_text: str | None,
) -> InstructionRow:
    hlo = module.instruction(op) if module else text.parse_instruction(hlo_text) if hlo_text else None
    row = InstructionRow(op, program_id, module_name, hlo=hlo, kernel=event)
    if hlo:
        _fill_from_module(row, hlo, module)
    else:
        row.category = _category_of_kernel(row)
    if event != op:
        row.stats.append(Stat("event_name", StatKind.STRING, event))
    return row


def _row_of_instruction(module: HloModule, name: str, line: str | None) -> InstructionRow:
    hlo = module.instruction(name)
    row = InstructionRow(name, None, module.name, hlo=hlo._replace(text=line) if hlo else None)
    if hlo:
        _fill_from_module(row, hlo, module)
    return row


def _fill_from_module(row: InstructionRow, hlo: Instruction, module: HloModule | None) -> None:
    row.op_name, row.source = hlo.op_name, _source(hlo)
    if row.members is not None:
        _number_devices(row, module)
    kind = (hlo.fusion_kind or "").removeprefix("k").lower()
    row.category = f"{kind} fusion".strip() if hlo.opcode == "fusion" else hlo.opcode


def _category_of_kernel(row: InstructionRow) -> str | None:
    if row.kernel and is_memcpy(row.kernel):
        return "memcpy"
    return row.collective.kind if row.collective else None


def _number_devices(row: InstructionRow, module: HloModule | None) -> None:
    """Make the groups of a collective count devices, if its program has both replicas and partitions."""
    if module is None or row.hlo is None or 1 in module.device_counts:
        return
    try:
        row.hlo = with_device_numbers(row.hlo, *module.device_counts)
    except MalformedError:
        row.hlo, row.lacks_groups = without_groups(row.hlo), True
    del row.collective


def _source(hlo: Instruction | None) -> str | None:
    if hlo is None or not hlo.source_file:
        return None
    return f"{hlo.source_file}:{hlo.source_line}" if hlo.source_line else hlo.source_file


def _string(stat: Stat | None) -> str | None:
    return stat.value if stat and isinstance(stat.value, str) and stat.value else None


def _integer(stat: Stat | None, *, signed: bool = True) -> int | None:
    value = stat.value if stat else None
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,20}", value):
        value = int(value)
    if not isinstance(value, int):
        return None
    low, high = (-_INT64_MAX - 1, _INT64_MAX) if signed else (0, (1 << 64) - 1)
    if not signed and value < 0:
        value += 1 << 64
    return value if low <= value <= high else None


@dataclass
class HloModule:
    """One embedded Hlo Proto, which is parsed when it is first needed."""

    name: str
    raw: bytes
    notes: list[str]

    @cached_property
    def digest(self) -> str:
        """Digest of the proto, by which the same program on two hosts is the same module."""
        return hashlib.sha256(self.raw).hexdigest()

    @cached_property
    def device_counts(self) -> tuple[int, int]:
        """Replicas and partitions of the program; 1 of each if the proto is damaged."""
        from tracewarehouse.ingest.hlo import proto

        try:
            return proto.device_counts(self.raw)
        except MalformedError as error:
            self.notes.append(f"Hlo Proto of {self.name}: {error}")
            return 1, 1

    def instruction(self, name: str) -> Instruction | None:
        """Return the instruction with this name in any computation; None if there is none or the proto is damaged."""
        try:
            return self._instructions.get(name)
        except MalformedError as error:
            self.notes.append(f"Hlo Proto of {self.name}: {error}")
            return None

    @cached_property
    def _instructions(self) -> Mapping[str, Instruction]:
        from tracewarehouse.ingest.hlo import proto

        try:
            return proto.read_module(self.raw).instructions
        except MalformedError as error:
            self.notes.append(f"Hlo Proto of {self.name}: {error}")
            return {}


class HloModules:
    """The Hlo Protos that a capture embeds in its metadata plane, by program id and module name."""

    def __init__(self, planes: Sequence[Plane], notes: list[str]) -> None:
        self._by_id: dict[int, list[HloModule]] = {}
        self._found: dict[tuple[int | None, str | None], HloModule | None] = {}
        for plane in planes:
            for metadata_id, m in zip(plane.metadata_ids, plane.event_metadata, strict=False):
                for s in m.stats:
                    if s.name.lower().replace("_", " ") == "hlo proto" and isinstance(s.value, bytes):
                        name, program_id = module_and_program(m.name)
                        module = HloModule(name, s.value, notes)
                        # torch_xla keeps the program id as metadata id, JAX in the name's suffix
                        for i in {metadata_id % (1 << 64), program_id}:
                            if i is not None:
                                self._by_id.setdefault(i, []).append(module)

    def device_counts(self) -> Iterator[tuple[str, int]]:
        """Digest of each program's proto, and the number of devices for which the program is compiled."""
        modules = {m.digest: m for same in self._by_id.values() for m in same}
        return ((digest, math.prod(m.device_counts)) for digest, m in modules.items())

    def find(self, program_id: int | None, module: str | None) -> HloModule | None:
        """Return the module of a program; if several have that id, the one with that name."""
        key = program_id, module
        if key not in self._found:
            candidates = self._by_id.get(program_id, []) if program_id is not None else []
            named = [c for c in candidates if c.name == module]
            only = candidates[0] if len(candidates) == 1 else None
            self._found[key] = named[0] if named else only
        return self._found[key]
