"""Walks the control flow of a compiled program: its instructions, each as often as the program runs it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from google.protobuf.message import DecodeError

from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.hlo.module_text import ModuleText
from tracewarehouse.ingest.hlo.proto_messages import CLASSES

MOST_NESTED = 64
"""Deepest nesting of loops, branches and calls that is followed."""

_TRIPS = re.compile(rb'"known_trip_count":\s*\{"n":\s*"(\d{1,18})"\}')


@dataclass(frozen=True)
class _Call:
    """The computations that an instruction runs, and how often each; of several branches, one."""

    computations: tuple[int, ...]
    times: tuple[int, ...]
    is_branch: bool = False


@dataclass
class Program:
    """A compiled program.

    Args:
        content: its HLO text, or the serialized HloProto.

    Attributes:
        proto: the serialized HloProto, made from the text if there is only text.
        lines: the text of each instruction, by its name; empty if there is no text.
        unknown: names of the loops whose number of iterations, and of the conditionals whose branch, is not known.

    Raises:
        MalformedError: the content is no program, or damaged.
    """

    content: str | bytes
    unknown: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines: dict[str, str] = {}
        try:
            if isinstance(self.content, str):
                text = ModuleText(self.content)
                self.proto, self.lines = text.proto, text.lines
            else:
                self.proto = self.content
            module = CLASSES["HloProto"].FromString(self.proto).hlo_module
        except (DecodeError, ValueError) as error:  # ValueError: a number that 64 bits do not hold
            raise MalformedError(str(error)) from None
        self._entry = module.entry_computation_id
        self._steps: dict[int, list[tuple[str, _Call | None]]] = {
            c.id: [(i.name.decode("utf-8", "replace"), self._call(i)) for i in c.instructions]
            for c in module.computations
        }
        if self._entry not in self._steps:
            raise MalformedError("the program has no entry computation")

    def _call(self, proto: Any) -> _Call | None:
        """Return the call of a control flow instruction; a loop's condition runs once more than its body."""
        called = tuple(proto.called_computation_ids)
        if proto.opcode == b"while" and len(called) == 2:
            trips = _TRIPS.search(proto.backend_config)
            if trips is None:
                self.unknown.append(proto.name.decode("utf-8", "replace"))
            count = int(trips[1]) if trips else 1
            return _Call(called, (count, count + 1))
        if proto.opcode == b"conditional" and called:
            self.unknown.append(proto.name.decode("utf-8", "replace"))
            return _Call(called, (1,) * len(called), is_branch=True)
        if proto.opcode == b"call" and called:
            return _Call(called[:1], (1,))
        return None

    @cached_property
    def names(self) -> list[str]:
        """The instructions that a device executes, and those that hold such, in the order of their computations.

        Raises:
            MalformedError: computations call each other in a circle, or nest too deeply.
        """
        reached: dict[int, None] = {}
        self._reach(self._entry, reached, 0)
        return [name for c in reached for name, _ in self._steps[c]]

    def _reach(self, computation: int, reached: dict[int, None], depth: int) -> None:
        if depth > MOST_NESTED:
            raise MalformedError(f"computations call each other more than {MOST_NESTED} deep")
        if computation in reached:
            return
        reached[computation] = None
        for _, call in self._steps.get(computation, ()):
            for called in call.computations if call else ():
                self._reach(called, reached, depth + 1)

    def count(self, is_kept: Callable[[str], bool]) -> int:
        """Return how many times one execution of the program runs the instructions with some names.

        Of the branches of a conditional, the one that runs most of them counts.

        Raises:
            MalformedError: computations call each other in a circle, or nest too deeply.
        """
        return self._counts(is_kept)(self._entry, 0)

    def runs(self, is_kept: Callable[[str], bool]) -> Iterator[str]:
        """Yield the names of these instructions in the order in which they run, each time that they do.

        Raises:
            MalformedError: computations call each other in a circle, or nest too deeply.
        """
        count = self._counts(is_kept)

        def run(computation: int, depth: int) -> Iterator[str]:
            for name, call in self._steps.get(computation, ()):
                if is_kept(name):
                    yield name
                if call is None:
                    continue
                pairs = list(zip(call.computations, call.times, strict=True))
                if call.is_branch:
                    pairs = [max(pairs, key=lambda pair: count(pair[0], depth + 1))]
                for called, times in pairs:
                    if count(called, depth + 1):
                        for _ in range(times):
                            yield from run(called, depth + 1)

        return run(self._entry, 0)

    def _counts(self, is_kept: Callable[[str], bool]) -> Callable[[int, int], int]:
        known: dict[int, int] = {}

        def count(computation: int, depth: int) -> int:
            if depth > MOST_NESTED:
                raise MalformedError(f"computations call each other more than {MOST_NESTED} deep")
            if computation not in known:
                total = 0
                for name, call in self._steps.get(computation, ()):
                    total += is_kept(name)
                    if call:
                        each = [
                            times * count(called, depth + 1)
                            for called, times in zip(call.computations, call.times, strict=True)
                        ]
                        total += max(each) if call.is_branch else sum(each)
                known[computation] = total
            return known[computation]

        return count
