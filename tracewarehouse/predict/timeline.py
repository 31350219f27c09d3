"""Lays the ops of a compiled program out in time: the core in its order, and beside it the transfers and the links.

A device's line of ops has no gaps (11 us of 66,914 us in three captures of a server on TPU7x): the order of the
schedule with a time for each op is the timeline, and an op costs no launch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.hlo.collectives import KINDS, Collective, find_collective
from tracewarehouse.ingest.hlo.instruction import with_logical_numbers
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.opcodes import is_spread_step
from tracewarehouse.ingest.hlo.program import MOST_NESTED
from tracewarehouse.ingest.hlo.schedule import Schedule, ScheduledOp
from tracewarehouse.predict.kernels import kernel_cost
from tracewarehouse.predict.links import SliceCollective, TimeRange, collective_time
from tracewarehouse.predict.machine import Machine
from tracewarehouse.predict.rules import (
    Basis,
    Cost,
    cost,
    gather_cost,
    moving_cost,
    start_cost,
    stated_cost,
    transferred_bytes,
    update_cost,
    wait_cost,
)

Queue = Literal["core", "dma", "sparsecore"]

MOST_OPS = 10_000_000
"""Most ops that one execution may have; a damaged program can state loops of any length."""

_FREE = frozenset({
    "add-dependency", "after-all", "bitcast", "constant", "get-tuple-element", "opt-barrier", "parameter",
    "partition-id", "replica-id", "tuple",
})  # fmt: skip
_FREE_TARGETS = frozenset({
    "AssumeGatherIndicesInBound", "ConcatBitcast", "GatherScatterIndicesBitpacked", "PrepareAsyncCallDone",
    "PrepareAsyncCallStart",
})  # fmt: skip


class TimedOp(NamedTuple):
    """An op with its predicted time; times in ps since the program's start.

    Attributes:
        instruction: name of the instruction in the program.
        start_ps: its start.
        duration_ps: its duration; `low_ps` and `high_ps` are the range in which it is expected.
        queue: 'core', or the queue on which the transfer runs that the instruction starts.
        basis: what the time rests on.
        low_ps: the least that it is expected to take.
        high_ps: the most.
        iterations: numbers of the iterations of the loops around it, outermost first, from 0.
        layer: the layer for which a repeated op stands, from 0; None for an op as it was compiled.

    An asynchronous op is two of them: its start on the core, and behind that the transfer or collective on its queue,
    from its begin to its end. The start and its done take next to nothing, apart from the wait in the done.
    """

    instruction: str
    start_ps: int
    duration_ps: int
    queue: Queue
    basis: Basis
    low_ps: int
    high_ps: int
    iterations: tuple[int, ...] = ()
    layer: int | None = None


def predict_program(
    module: HloModule,
    machine: Machine,
    kernels: Mapping[str, int] | None = None,
    context_tokens: float | None = None,
) -> list[TimedOp]:
    """Predict one execution of a program on one device.

    Args:
        module: the program, as the compiler wrote it.
        machine: what it runs on.
        kernels: median time in ps of one execution of kernels that a recorded run holds, by the kernel's name; they
            take the place of the formulas.
        context_tokens: tokens of each sequence that paged attention reads; None for all that its cache has room for.

    Returns:
        The ops in the order in which the core comes to them.

    Raises:
        MalformedError: the program is damaged.
        CaptureError: it cannot be predicted.
    """
    timeline = _Timeline(module, machine, kernels or {}, context_tokens)
    timeline.run(timeline.schedule.entry, (), 0)
    timeline.transfers.finish(timeline.now)
    return timeline.timed()


def program_end(ops: Iterable[TimedOp]) -> int:
    """Return when the core ends its last op, in ps since the program's start."""
    return max((op.start_ps + op.duration_ps for op in ops if op.queue == "core"), default=0)


@dataclass
class _Transfer:
    """A transfer that was started; `start` and `end` are in ps, and None while they are not known."""

    bytes_left: float
    start: int | None = None
    end: int | None = None
    time: TimeRange | None = None


@dataclass
class _Transfers:
    """Transfers between HBM and the core's memory: one queue, which gets the bandwidth that the running op leaves.

    Without this budget a decode step would get its weights for nothing: that of Llama-3.1-8B on eight v6e moves 98 % of
    what the HBM gives in its whole time.
    """

    rate: float
    waiting: deque[_Transfer] = field(default_factory=deque)

    def add(self, issued: int, size: int) -> _Transfer:
        """Queue a transfer of some bytes; one of none is over at once."""
        if not size:
            return _Transfer(0.0, issued, issued)
        transfer = _Transfer(float(size))
        self.waiting.append(transfer)
        return transfer

    def flow(self, begin: int, duration: int, taken: int) -> None:
        """Move what the HBM has left while an op of some duration moves `taken` bytes itself."""
        left = max(0.0, self.rate * duration - taken)
        if not left or not duration:
            return
        rate, moment, budget = left / duration, float(begin), left
        while self.waiting and budget > 0:
            head = self.waiting[0]
            if head.start is None:
                head.start = round(moment)
            use = min(budget, head.bytes_left)
            head.bytes_left -= use
            budget -= use
            moment += use / rate
            if head.bytes_left > 1e-6:
                return
            head.end = round(moment)
            self.waiting.popleft()

    def wait(self, transfer: _Transfer, now: int) -> int:
        """Return how long the core waits until a transfer is over: all before it in the queue go first."""
        if transfer.end is not None:
            return max(0, transfer.end - now)
        need = 0.0
        for each in self.waiting:
            need += each.bytes_left
            if each is transfer:
                break
        return max(1, round(need / self.rate))

    def finish(self, now: int) -> None:
        """Let what is left flow after the program, so that each transfer has an end."""
        for each in self.waiting:
            each.start = now if each.start is None else each.start
            now += round(each.bytes_left / self.rate)
            each.end = now
        self.waiting.clear()


def _placed(op: TimedOp, transfer: _Transfer) -> TimedOp:
    if transfer.start is None or transfer.end is None:
        return op
    duration = transfer.end - transfer.start
    low, _, high = transfer.time or cost(duration, op.basis, 0.9, 1.1)[:3]
    return op._replace(start_ps=transfer.start, duration_ps=duration, low_ps=low, high_ps=high)


class _Timeline:
    """One execution, as far as it has run."""

    def __init__(
        self, module: HloModule, machine: Machine, kernels: Mapping[str, int], context_tokens: float | None
    ) -> None:
        self.schedule = Schedule(module.raw)
        self.now = 0
        self.transfers = _Transfers(machine.hbm_bytes_per_ps)
        self._module, self._machine, self._kernels, self._context = module, machine, kernels, context_tokens
        self._ops: list[tuple[TimedOp, _Transfer | None]] = []
        self._started: dict[str, _Transfer] = {}
        self._free_from: dict[Queue, int] = {}
        self._collectives: dict[str, TimeRange | None] = {}
        self._times: dict[SliceCollective, TimeRange] = {}
        self._costs: dict[str, Cost] = {}

    def timed(self) -> list[TimedOp]:
        """Return the ops; those of transfers get their times, which later ops decide."""
        return [op if transfer is None else _placed(op, transfer) for op, transfer in self._ops]

    def run(self, computation: int, iterations: tuple[int, ...], depth: int) -> None:
        """Run the ops of a computation in order."""
        if depth > MOST_NESTED:
            raise MalformedError(f"computations call each other more than {MOST_NESTED} deep")
        for op in self.schedule.ops(computation):
            if op.opcode in _FREE or op.target in _FREE_TARGETS:
                continue
            if len(self._ops) > MOST_OPS:
                raise MalformedError(f"one execution of {self._module.name} has more than {MOST_OPS} ops")
            if op.opcode in ("while", "conditional", "call"):
                self._hold(op, iterations, depth)
            elif op.opcode.endswith("-start"):
                self._start(op, iterations)
            elif op.opcode.endswith("-done"):
                self._end(op, iterations)
            else:
                self._work(op, iterations)

    def _hold(self, op: ScheduledOp, iterations: tuple[int, ...], depth: int) -> None:
        """Run the ops that one holds: a loop's body as often as the compiler says, else once; the longest branch."""
        place, begin = len(self._ops), self.now
        self._ops.append((TimedOp(op.name, begin, 0, "core", "container", 0, 0, iterations), None))
        if op.opcode == "while":
            for number in range(op.trips if op.trips is not None else 1):
                self.run(op.called[0], (*iterations, number), depth + 1)
        elif op.opcode == "conditional":
            self._branch(op, iterations, depth)
        elif op.called:
            self.run(op.called[0], iterations, depth + 1)
        inside = [timed for timed, _ in self._ops[place + 1 :] if timed.queue == "core" and timed.basis != "container"]
        low, high = (sum(getattr(timed, side) for timed in inside) for side in ("low_ps", "high_ps"))
        timed = self._ops[place][0]._replace(duration_ps=self.now - begin, low_ps=low, high_ps=high)
        self._ops[place] = timed, None

    def _branch(self, op: ScheduledOp, iterations: tuple[int, ...], depth: int) -> None:
        lengths = [(self._length(called, depth + 1), -number) for number, called in enumerate(op.called)]
        if lengths:
            self.run(op.called[-max(lengths)[1]], iterations, depth + 1)

    def _length(self, computation: int, depth: int) -> int:
        """Return the time of a computation's ops on the core, without waits."""
        if depth > MOST_NESTED:
            raise MalformedError(f"computations call each other more than {MOST_NESTED} deep")
        total = 0
        for op in self.schedule.ops(computation):
            if op.opcode == "while":
                total += (op.trips or 1) * self._length(op.called[0], depth + 1)
            elif op.opcode in ("conditional", "call"):
                total += max((self._length(called, depth + 1) for called in op.called), default=0)
            elif op.opcode not in _FREE and not op.opcode.endswith(("-start", "-done")):
                total += self._cost(op).mid_ps
        return total

    def _work(self, op: ScheduledOp, iterations: tuple[int, ...]) -> None:
        spent = self._cost(op)
        self._spend(op.name, spent, iterations)

    def _spend(self, name: str, spent: Cost, iterations: tuple[int, ...]) -> None:
        taken = min(spent.hbm_bytes, int(self.transfers.rate * spent.mid_ps))
        self.transfers.flow(self.now, spent.mid_ps, taken)
        timed = TimedOp(name, self.now, spent.mid_ps, "core", spent.basis, spent.low_ps, spent.high_ps, iterations)
        self._ops.append((timed, None))
        self.now += spent.mid_ps

    def _start(self, op: ScheduledOp, iterations: tuple[int, ...]) -> None:
        """Start a transfer or a collective beside the core."""
        self._spend(op.name, start_cost(self._machine), iterations)
        time = self._collective(op)
        queue: Queue = "sparsecore" if op.thread == "sparsecore" else "dma"
        if time is not None:
            begin = max(self.now, self._free_from.get(queue, 0))
            self._free_from[queue] = begin + time.mid_ps
            transfer = _Transfer(0.0, begin, begin + time.mid_ps, time)
        else:
            transfer = self.transfers.add(self.now, transferred_bytes(op, self.schedule.root(op)))
        self._started[op.name] = transfer
        basis: Basis = "links" if time is not None else "hbm_bytes"
        self._ops.append((TimedOp(op.name, self.now, 0, queue, basis, 0, 0, iterations), transfer))

    def _end(self, op: ScheduledOp, iterations: tuple[int, ...]) -> None:
        """Wait on the core for what a start began."""
        transfer = self._started.get(op.operand_names[0]) if op.operand_names else None
        wait = self.transfers.wait(transfer, self.now) if transfer else 0
        self._spend(op.name, wait_cost(wait, self._machine), iterations)

    def _cost(self, op: ScheduledOp) -> Cost:
        if op.name not in self._costs:
            self._costs[op.name] = self._found_cost(op)
        return self._costs[op.name]

    def _found_cost(self, op: ScheduledOp) -> Cost:
        links = self._collective(op)
        if links is not None:
            return Cost(links.low_ps, links.mid_ps, links.high_ps, "links")
        stated = stated_cost(op, self._machine)
        if stated is not None:
            return stated
        if op.opcode == "custom-call" and op.target == "tpu_custom_call":
            return kernel_cost(op, self._machine, self._kernels, self._context)
        if op.opcode == "fusion" and "gather" in self.schedule.opcodes(op):
            return gather_cost(op, self._machine)
        if op.opcode == "dynamic-update-slice":
            return update_cost(op, self._machine)
        return moving_cost(op, self._machine)

    def _collective(self, op: ScheduledOp) -> TimeRange | None:
        """Return the time of the collective that an op is or carries; None if it is none."""
        if op.name not in self._collectives:
            self._collectives[op.name] = self._found_collective(op)
        return self._collectives[op.name]

    def _found_collective(self, op: ScheduledOp) -> TimeRange | None:
        if not (op.called or op.opcode.removesuffix("-start") in KINDS):
            return None
        stated = self._module.instruction(op.name)
        if stated is None or is_spread_step(stated):
            return None
        found = find_collective(with_logical_numbers(stated, *self._module.device_counts))
        if found is None:
            return None
        says = next((each for each in (op, *self.schedule.inside(op)) if each.emitter), op)
        on_sparsecore = op.thread == "sparsecore"
        placed = self._on_slice(found, says, on_sparsecore=on_sparsecore)
        if placed not in self._times:
            self._times[placed] = collective_time(self._machine, placed)
        return self._times[placed]

    def _on_slice(self, found: Collective, says: ScheduledOp, *, on_sparsecore: bool) -> SliceCollective:
        devices = self._machine.topology.devices
        members = found.members or (tuple(range(devices)),)
        places = self._module.assignment
        groups = tuple(tuple(places[n] if n < len(places) else n for n in group) for group in members)
        return SliceCollective(
            found.kind,
            found.message_bytes or 0,
            groups,
            found.pairs is not None,
            says.emitter,
            says.strategy,
            says.debug,
            on_sparsecore,
        )
