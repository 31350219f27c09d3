"""Finds the Hlo Protos that a capture embeds, and parses each when one of its instructions is first needed."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tracewarehouse.ingest.columns.records import Plane
from tracewarehouse.ingest.errors import MalformedError, TooManyError
from tracewarehouse.ingest.hlo.collectives import KINDS
from tracewarehouse.ingest.hlo.instruction import Instruction, Loop

if TYPE_CHECKING:
    from tracewarehouse.ingest.hlo.proto import Module
    from tracewarehouse.ingest.hlo.schedule import Schedule


_NOT_IN_KERNELS = re.compile(r"[^A-Za-z0-9_]")


@dataclass
class HloModule:
    """One embedded Hlo Proto, which is parsed when it is first needed."""

    name: str
    raw: bytes
    notes: list[str]

    @cached_property
    def digest(self) -> str:
        """Digest of the proto; the same program on two hosts has the same digest."""
        from tracewarehouse.ingest.hlo import proto

        return hashlib.sha256(proto.in_one_order(self.raw)).hexdigest()

    @cached_property
    def device_counts(self) -> tuple[int, int]:
        """Replicas and partitions of the program; 1 of each if the proto does not state them."""
        return max(map(len, self._assigned), default=1) or 1, len(self._assigned) or 1

    @cached_property
    def assignment(self) -> tuple[int, ...]:
        """Global device ids by logical number, replica by replica; empty if the proto does not state all of them."""
        ids = tuple(i for replica in zip(*self._assigned, strict=False) for i in replica)
        is_whole = len(ids) == sum(map(len, self._assigned)) == len(set(ids))
        return ids if is_whole and all(0 <= i < 1 << 31 for i in ids) else ()

    @cached_property
    def _assigned(self) -> tuple[tuple[int, ...], ...]:
        from tracewarehouse.ingest.hlo import proto

        try:
            return proto.device_assignment(self.raw)
        except MalformedError as error:
            self._note(error)
            return ()

    def instruction(self, name: str) -> Instruction | None:
        """Return the instruction with this name in any computation; None if there is none or the proto is damaged."""
        try:
            return self._module.instructions.get(name) if self._module else None
        except MalformedError as error:
            self._note(error)
            return None

    @cached_property
    def fused_collectives(self) -> frozenset[str]:
        """Names of the fusions that carry a collective whose channel nothing outside of them has."""
        if not any(kind.encode() in self.raw for kind in KINDS):
            return frozenset()
        return self._module.fused_collectives if self._module else frozenset()

    @cached_property
    def schedule(self) -> Schedule:
        """The program as its device runs it; raises MalformedError if the proto is damaged."""
        from tracewarehouse.ingest.hlo.schedule import Schedule

        return Schedule(self.raw)

    @cached_property
    def loops(self) -> Mapping[str, tuple[Loop, ...]]:
        """The loops that hold each instruction, outermost first; empty if there are none, or the proto is damaged."""
        if b"while" not in self.raw:
            return {}
        from tracewarehouse.ingest.hlo.program import Program

        try:
            return Program(self.raw).loops
        except MalformedError as error:
            self._note(error)
            return {}

    @cached_property
    def kernels(self) -> Mapping[str, str | None]:
        """Name of the instruction for which the compiler made each of a GPU's kernels; None if several could be."""
        kernels: dict[str, str | None] = {}
        for name in self._module.instructions if self._module else ():
            kernel = _NOT_IN_KERNELS.sub("_", name)
            kernels[kernel] = None if kernel in kernels else name
        return kernels

    @cached_property
    def has_communicating_kernels(self) -> bool:
        """Whether some kernel of the program may send data to other devices itself."""
        return b"has_communication" in self.raw or b"collective_id" in self.raw

    def _note(self, error: MalformedError) -> None:
        """Note that the proto is damaged; one that no compiler makes is refused with its capture."""
        if isinstance(error, TooManyError):
            raise error
        self.notes.append(f"Hlo Proto of {self.name}: {error}")

    @cached_property
    def _module(self) -> Module | None:
        from tracewarehouse.ingest.hlo import proto

        try:
            return proto.read_module(self.raw)
        except MalformedError as error:
            self._note(error)
            return None


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

    def assignments(self, program_id: int | None, module: str | None) -> tuple[tuple[int, ...], ...]:
        """Return the device assignments of a program; several if it was loaded on several sets of devices.

        A program whose id is not known has those of all modules of its name.
        """
        every = [m for same in self._by_id.values() for m in same]
        same = self._by_id.get(program_id, []) if program_id is not None else every
        named = [m for m in same if m.name == module]
        found = named or (same if len({m.name for m in same}) == 1 else [])
        return tuple(dict.fromkeys(m.assignment for m in found if m.assignment))

    def find(self, program_id: int | None, module: str | None) -> HloModule | None:
        """Return the module of a program; if several have that id, the one with that name."""
        key = program_id, module
        if key not in self._found:
            candidates = self._by_id.get(program_id, []) if program_id is not None else []
            named = [c for c in candidates if c.name == module]
            only = candidates[0] if len(candidates) == 1 else None
            self._found[key] = named[0] if named else only
        return self._found[key]


_MODULE = re.compile(r"(.*)\((\d+)\)", re.DOTALL)


def module_and_program(name: str) -> tuple[str, int | None]:
    """Split 'jit_f(123)' into ('jit_f', 123); a name without a program id keeps its whole text."""
    match = _MODULE.fullmatch(name)
    if not match or int(match.group(2)) >= 1 << 64:
        return name, None
    return match.group(1), int(match.group(2))
