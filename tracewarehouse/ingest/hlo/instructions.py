"""Collects the instructions of a run: each distinct HLO instruction once, with the facts from its text or Hlo Proto."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tracewarehouse.ingest.columns import bounds
from tracewarehouse.ingest.columns.profiler_names import AS_TF32, RANK, WORLD_SIZE, is_memcpy, is_memset
from tracewarehouse.ingest.columns.records import EventMetadata, Int32, Plane, Stat, StatKind
from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.hlo import op_names, text
from tracewarehouse.ingest.hlo.collectives import KINDS
from tracewarehouse.ingest.hlo.instruction import Instruction, Loop, merged, with_logical_numbers, without_groups
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow, OpFacts
from tracewarehouse.ingest.hlo.modules import HloModule, HloModules, module_and_program
from tracewarehouse.ingest.hlo.opcodes import MAX_UPDATES, async_start_name, base_opcode, is_spread
from tracewarehouse.ingest.hlo.replica_groups import MAX_MEMBERS
from tracewarehouse.ingest.hlo.stated_collectives import stated_collective
from tracewarehouse.ingest.hlo.stated_work import stated_work
from tracewarehouse.ingest.readers.launches import kernel_class

MOST_MEMBERS = 1 << 20
"""Most members that replica groups of a run may have, or one per 4 bytes of a larger capture; see `Instructions`."""
UNNAMED = EventMetadata("(unnamed)")
_INT64_MAX = (1 << 63) - 1
_PARTS = {"attention": "attn", "moe": "moe", "norm": "norm"}
"""Parts of a model by what a kernel computes."""
_OWN_COLUMN = {"hlo_category", "program_id", "flops", "model_flops", "bytes_accessed", "tf_op", "source"}


class Instructions:
    """Collects the instructions of all hosts of a run, and numbers them from 0.

    Args:
        most_members: most members that the replica groups of all instructions may have together. Twenty bytes of text
            can name 131,072. Instructions beyond the limit have unknown groups.

    Attributes:
        rows: rows by instruction id.
        facts: facts by instruction id, as they were when the instruction was added.
    """

    def __init__(self, most_members: int = MOST_MEMBERS) -> None:
        self._members_left = most_members
        self.rows: list[InstructionRow] = []
        self.facts: list[OpFacts] = []
        self._by_key: dict[Hashable, int] = {}
        self._by_identity: dict[int, tuple[EventMetadata, int]] = {}
        self._programs: dict[int, str] = {}

    def add_metadata(self, plane: Plane, modules: HloModules) -> Int32:
        """Return the instruction id of each row of a device plane's event metadata, and one for events without any."""
        for m in plane.event_metadata:
            if not m.stats:
                module, program = module_and_program(m.name)
                if program is not None:
                    self._programs.setdefault(program, module)
        seen, known = self._by_identity, len(self.rows)
        ids = [
            numbered[1] if (numbered := seen.get(id(m))) else self._add_event_metadata(m, modules)
            for m in plane.event_metadata
        ]
        self._tell_dones(known)
        return np.array([*ids, self._add(("unnamed",), InstructionRow("(unnamed)"))], np.int32)

    def _tell_dones(self, first: int) -> None:
        """Set the collective of the start in each done, from row `first` on, that does not state its own.

        The text of an async-done need not name the computation that its start runs.
        """
        rows = [r for r in self.rows[first:] if r.hlo]
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

    def add_op(
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
        return self._add(key, _op_row(compiled, op, module, program_id, event, hlo_text))

    def add_program(self, module: HloModule, names: Iterable[str], lines: Mapping[str, str]) -> dict[str, int]:
        """Return the ids of a program's instructions by name; `lines` has their text, if the program is text."""
        return {
            name: self._add(("program", module.digest, name), _program_row(module, name, lines.get(name)))
            for name in names
        }

    def add_kernels(self, plane: Plane) -> Int32:
        """Return the instruction id of each row of a GPU plane's event metadata, and one for events without any."""
        return np.array([self.add_kernel(m, plane) for m in (*plane.event_metadata, UNNAMED)], np.int32)

    def add_kernel(self, metadata: EventMetadata, plane: Plane) -> int:
        """Return the id of the row for a device event that is no HLO instruction, such as a kernel of PyTorch.

        Its metadata may name the operator that launched it and the modules around that, as `tf_op`, the operator's
        inputs, which tell its work, and what it says of a collective. The plane may tell the rank and their number.
        """
        if known := self._by_identity.get(id(metadata)):
            return known[1]
        stats = {s.name: s for s in metadata.stats}
        row = InstructionRow(metadata.name, kernel=metadata.name, op_name=_string(stats.get("tf_op")))
        row.stats = [s for s in metadata.stats if s.name != "tf_op"]
        job = {s.name: s for s in plane.stats}
        rank, world = _integer(job.get(RANK)), _integer(job.get(WORLD_SIZE))
        said = {s.name: s.value for s in metadata.stats}
        row.stated = stated_collective(metadata.name, said, rank)
        stated = row.stated
        if stated and stated.members is None and world is not None and stated.group_size == world <= MAX_MEMBERS:
            row.stated = replace(stated, groups=(tuple(range(world)),))  # a group of as many ranks as there are
        if row.stated and rank is not None and world is not None and rank < world <= MAX_MEMBERS:
            row.assignments = (tuple(range(world)),)  # process groups name ranks, which are the devices' global ids
        computes = kernel_class(metadata.name)
        row.category = _category_of_kernel(row) or computes
        row.kernel_part = _PARTS.get(computes or "")
        if row.op_class == "compute":
            work = stated_work(said)
            if work.operand_dtype == "f32" and AS_TF32.search(metadata.name):
                work = work._replace(operand_dtype="tf32")
            row.work = work
            row.flops, row.model_flops, row.bytes_accessed = work.flops, work.flops, work.bytes_accessed
        pairs = row.stated.pairs if row.stated else None
        return self._keep(metadata, ("kernel", metadata.name, metadata.stats, pairs), row)

    def _add_event_metadata(self, metadata: EventMetadata, modules: HloModules) -> int:
        row = self._named_row(metadata, modules)
        if row is not None:
            return self._keep(metadata, ("named", row.program_id, row.name, row.op_name), row)
        row = _metadata_row(metadata, has_groups=self._members_left > 0)
        if row.hlo and _may_carry_collective(row.hlo, row.category):
            module = modules.find(row.program_id, self._programs.get(row.program_id or 0))
            row.hlo = merged(row.hlo, module.instruction(row.name) if module else None)
        elif row.hlo and row.hlo.opcode in ("fusion", "custom-call"):
            _look_inside(row, modules.find(row.program_id, self._programs.get(row.program_id or 0)))
        if row.hlo and row.members is not None:
            name = self._programs.get(row.program_id or 0)
            _number_devices(row, modules.find(row.program_id, name), modules.assignments(row.program_id, name))
        key: Hashable
        if row.hlo:
            # one text of two programs whose ids are not known, or of events of a Chrome trace, may have several costs
            costs = (row.flops, row.model_flops, row.bytes_accessed) if row.op_class == "compute" else ()
            key = (row.program_id, row.name, row.hlo.text, *costs)
        else:
            key = (metadata.name, metadata.display_name, metadata.stats)
        return self._keep(metadata, key, row)

    def _named_row(self, metadata: EventMetadata, modules: HloModules) -> InstructionRow | None:
        stats = {s.name: s for s in metadata.stats}
        name, program_id = _string(stats.get("hlo_op")), _integer(stats.get("program_id"), signed=False)
        if name is None or program_id is None:
            return None
        module = modules.find(program_id, self._programs.get(program_id))
        hlo = module.instruction(name) if module else None
        if module is None or hlo is None:
            return None
        row = InstructionRow(name, program_id, module.name, hlo=hlo)
        _fill_from_module(row, hlo, module)
        row.category = _string(stats.get("hlo_category")) or row.category
        _take_stats(row, metadata, stats)
        row.stats = [s for s in row.stats if s.name != "hlo_op"]
        return row

    def _keep(self, metadata: EventMetadata, key: Hashable, row: InstructionRow) -> int:
        number = self._add(key, row)
        self._by_identity[id(metadata)] = metadata, number  # the object is kept, so its identity stays its own
        return number

    def _add(self, key: Hashable, row: InstructionRow) -> int:
        number = self._by_key.setdefault(key, len(self.rows))
        if number == len(self.rows):
            bounds.check(number + 1, bounds.INSTRUCTIONS, "instructions", "a program")
            self._limit_members(row)
            self.rows.append(row)
            self.facts.append(row.facts)
        elif row.assignments:  # another host may run the same text on devices of its own
            known = self.rows[number]
            known.assignments = tuple(dict.fromkeys((*known.assignments, *row.assignments)))
        return number

    def _limit_members(self, row: InstructionRow) -> None:
        """Leave out the groups of an instruction, and of all that follow, once there would be too many members."""
        if not row.hlo:
            return
        if not row.collective:
            if row.hlo.replica_groups or row.hlo.source_target_pairs:
                row.hlo = without_groups(row.hlo)
            return
        count = sum(map(len, row.members or ()))
        if self._members_left and count <= self._members_left:
            self._members_left -= count
        else:
            self._members_left = 0
            row.hlo, row.lacks_groups = without_groups(row.hlo), True
            del row.collective  # which was made with the groups

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

    def tell_loops(self) -> None:
        """Set the loops of the kernels of a command buffer that no instruction is named after: those of its others."""
        of_buffer: dict[tuple[int | None, str | None, str], tuple[Loop, ...]] = {}
        for row in self.rows:
            if row.loops and row.hlo and row.hlo.name != row.name:
                of_buffer.setdefault((row.program_id, row.module, row.name), row.loops)
        for row in self.rows:
            if row.hlo is None and row.kernel != row.name:
                row.loops = of_buffer.get((row.program_id, row.module, row.name), ())

    def column_rows(self) -> Iterator[dict[str, Any]]:
        """Return the rows of main.instructions."""
        for number, row in enumerate(self.rows):
            yield {"instruction_id": number} | row.row()


def _may_carry_collective(hlo: Instruction, category: str | None) -> bool:
    """True if only the proto may state what it moves, as of an async op, a fused collective, or a send to no device."""
    if base_opcode(hlo.opcode) in ("send", "recv"):
        return hlo.dcn is None and not hlo.source_target_pairs
    if hlo.opcode.startswith("async-") or is_spread(hlo):
        return True
    return hlo.opcode in ("fusion", "custom-call") and any(kind in (category or "") for kind in KINDS)


def _look_inside(row: InstructionRow, module: HloModule | None) -> None:
    """Give a fusion that computes the collective that it alone has, and tell whether a kernel communicates."""
    if row.hlo is None or module is None:
        return
    lacks_path = row.op_name is not None and op_names.stated_path(row.op_name) is None
    if lacks_path and (known := module.instruction(row.name)) is not None:
        row.op_name = known.op_name
    if row.hlo.opcode == "custom-call":
        known = module.instruction(row.name) if module.has_communicating_kernels else None
        row.is_communicating = known is not None and known.is_communicating
    elif row.name in module.fused_collectives:
        row.hlo = merged(row.hlo, module.instruction(row.name))
        if row.hlo.inner:
            row.is_fused = True
            row.op_name, row.source = row.op_name or row.hlo.op_name, row.source or _source(row.hlo)


def _metadata_row(metadata: EventMetadata, *, has_groups: bool) -> InstructionRow:
    stats = {s.name: s for s in metadata.stats}
    hlo = text.parse_instruction(metadata.name, has_groups=has_groups)
    name = hlo.name if hlo else metadata.display_name or metadata.name
    row = InstructionRow(name, hlo=hlo, is_unread=hlo is None and text.is_meant_as_instruction(metadata.name))
    row.program_id = _integer(stats.get("program_id"), signed=False)
    row.category = _string(stats.get("hlo_category"))
    _take_stats(row, metadata, stats)
    row.op_name = _string(stats.get("tf_op")) or (hlo.op_name if hlo else None)
    row.source = _string(stats.get("source")) or _source(hlo)
    if hlo is None and metadata.display_name and metadata.display_name != metadata.name:
        row.stats.append(Stat("name", StatKind.STRING, metadata.name))
    elif hlo and metadata.display_name not in ("", hlo.name):
        row.stats.append(Stat("display_name", StatKind.STRING, metadata.display_name))
    return row


def _take_stats(row: InstructionRow, metadata: EventMetadata, stats: Mapping[str, Stat]) -> None:
    """Set the costs that metadata states, and keep the stats that have no column."""
    row.flops, row.model_flops, row.bytes_accessed = (
        _integer(stats.get(n)) for n in ("flops", "model_flops", "bytes_accessed")
    )
    breakdown = stats.get("memory_access_breakdown")
    if breakdown and isinstance(breakdown.value, bytes):
        row.hbm_bytes, row.on_chip_bytes = _bytes_by_memory(breakdown.value)
    row.stats = [s for s in metadata.stats if s.name not in _OWN_COLUMN]


_HBM = 1
"""Number of HBM among the memory spaces of a MemoryAccessBreakdown (op_metrics.proto of XProf)."""


def _bytes_by_memory(breakdown: bytes) -> tuple[int | None, int | None]:
    """Return the bytes that a MemoryAccessBreakdown states in HBM, and those in all other memories."""
    from google.protobuf.message import DecodeError

    from tracewarehouse.ingest.hlo.proto_messages import CLASSES

    try:
        accesses = CLASSES["MemoryAccessBreakdown"].FromString(breakdown).memory_accessed
    except DecodeError:
        return None, None
    in_hbm = sum(a.bytes_accessed for a in accesses if a.memory_space == _HBM)
    elsewhere = sum(a.bytes_accessed for a in accesses if a.memory_space != _HBM)
    return (in_hbm, elsewhere) if max(in_hbm, elsewhere) <= _INT64_MAX else (None, None)


def _op_row(
    module: HloModule | None,
    op: str,
    module_name: str | None,
    program_id: int | None,
    event: str,
    hlo_text: str | None,
) -> InstructionRow:
    hlo = module.instruction(op) if module else text.parse_instruction(hlo_text) if hlo_text else None
    if module and hlo is None and module.kernels.get(event) in module.loops:
        # a kernel of a command buffer, which the op is; outside of loops a kernel may stand for several instructions
        hlo = module.instruction(module.kernels[event] or "")
    row = InstructionRow(op, program_id, module_name, hlo=hlo, kernel=event)
    if hlo:
        _fill_from_module(row, hlo, module)
    else:
        row.category = _category_of_kernel(row)
    if event != op:
        row.stats.append(Stat("event_name", StatKind.STRING, event))
    return row


def _program_row(module: HloModule, name: str, line: str | None) -> InstructionRow:
    hlo = module.instruction(name)
    row = InstructionRow(name, None, module.name, hlo=hlo._replace(text=line) if hlo else None)
    if hlo:
        _fill_from_module(row, hlo, module)
    return row


def _fill_from_module(row: InstructionRow, hlo: Instruction, module: HloModule | None) -> None:
    row.op_name, row.source = hlo.op_name, _source(hlo)
    row.loops = module.loops.get(hlo.name, ()) if module else ()
    row.is_fused = hlo.fusion_kind == "kOutput" and bool(hlo.inner) and module is not None
    if row.members is not None and module is not None:
        _number_devices(row, module, (module.assignment,) if module.assignment else ())
    kind = (hlo.fusion_kind or "").removeprefix("k").lower()
    row.category = f"{kind} fusion".strip() if hlo.opcode == "fusion" else hlo.opcode


def _category_of_kernel(row: InstructionRow) -> str | None:
    if row.kernel and is_memcpy(row.kernel):
        return "memcpy"
    if row.kernel and is_memset(row.kernel):
        return "memset"
    return row.collective.kind if row.collective else None


def _number_devices(row: InstructionRow, module: HloModule | None, assignments: tuple[tuple[int, ...], ...]) -> None:
    """Make the groups of a collective count logical numbers, and tell on which devices its program has these."""
    if module is not None and row.hlo is not None and module.device_counts != (1, 1):
        try:
            row.hlo = with_logical_numbers(row.hlo, *module.device_counts)
        except MalformedError:
            row.hlo, row.lacks_groups = without_groups(row.hlo), True
        del row.collective
    named = max((n for group in row.members or () for n in group), default=0)
    row.assignments = tuple(a for a in assignments if len(a) > named)


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
