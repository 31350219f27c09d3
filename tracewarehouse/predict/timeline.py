"""Lays the ops of a compiled program out in time: the core in its order, and beside it the transfers and the links.

A device's line of ops has no gaps (11 us of 66,914 us in three captures of a server on TPU7x): the order of the
schedule with a time for each op is the timeline, and an op costs no launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from tracewarehouse.ingest.capture.prediction import MeasuredKernel
from tracewarehouse.ingest.errors import CaptureError, MalformedError
from tracewarehouse.ingest.hlo.instruction import signature
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.opcodes import async_role, async_start_name
from tracewarehouse.ingest.hlo.program import MOST_NESTED
from tracewarehouse.ingest.hlo.schedule import ScheduledOp
from tracewarehouse.predict.collectives import ProgramCollectives
from tracewarehouse.predict.costs import product_flops
from tracewarehouse.predict.kernels import kernel_cost
from tracewarehouse.predict.links import TimeRange
from tracewarehouse.predict.machine import Machine
from tracewarehouse.predict.rules import (
    Basis,
    Cost,
    cost,
    gather_cost,
    host_time,
    is_product,
    moving_cost,
    scatter_cost,
    start_cost,
    stated_cost,
    transferred_bytes,
    update_cost,
    wait_cost,
)
from tracewarehouse.predict.transfers import Transfer, Transfers

Queue = Literal["core", "dma", "sparsecore"]

MOST_OPS = 2_000_000
"""Most ops that one execution may have; a damaged program can state loops of any length."""

_FREE = frozenset({
    "add-dependency", "after-all", "bitcast", "constant", "get-tuple-element", "opt-barrier", "parameter",
    "partition-id", "replica-id", "tuple",
})  # fmt: skip
_FREE_TARGETS = frozenset({
    "AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast", "GatherScatterIndicesBitpacked",
    "PrepareAsyncCallDone", "PrepareAsyncCallStart",
})  # fmt: skip


class TimedOp(NamedTuple):
    """An op with its predicted time; times in ps since the program's start.

    Attributes:
        instruction: name of the instruction in the program.
        duration_ps: its duration; `low_ps` and `high_ps` are the range in which it is expected.
        queue: 'core', or the queue on which the transfer runs that the instruction starts.
        basis: what the time rests on.
        low_ps: the least that it is expected to take.
        high_ps: the most.
        iterations: numbers of the iterations of the loops around it, outermost first, from 0.
        layer: the layer for which the op stands, from 0, where it is not the one that its name states.
        is_repeated: it stands for an op that was not compiled; else it was compiled, as that layer if it has one.
        link_ps: of the op or the start of a collective: by how much the execution is shorter if its bytes take no time.

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
    is_repeated: bool = False
    link_ps: int | None = None


def predict_program(
    module: HloModule,
    machine: Machine,
    kernels: Mapping[str, int] | None = None,
    context_tokens: float | None = None,
    busiest_load: float = 1.0,
    recorded: Callable[[str], MeasuredKernel | None] = lambda signature: None,
) -> list[TimedOp]:
    """Predict one execution of a program on one device.

    Args:
        module: the program, as the compiler wrote it.
        machine: what it runs on.
        kernels: time in ps of one execution of kernels, by name, which takes the place of what follows.
        context_tokens: tokens of each sequence that paged attention reads; None for all that its cache has room for.
        busiest_load: pairs of token and expert on the busiest device, as a multiple of the mean. The time is that of
            this device's products of experts.
        recorded: gives what a recorded run says of the kernel with a signature, which takes the place of the formula.

    Returns:
        The ops in the order in which the core comes to them.
    """
    devices, noted = math.prod(module.device_counts), len(module.notes)
    if devices > machine.topology.devices:
        raise CaptureError(
            f"{module.name} is a program for {devices} devices, and {machine.topology.name} has "
            f"{machine.topology.devices}: name the slice that it was compiled for"
        )
    args = kernels or {}, context_tokens, busiest_load, recorded, product_flops(module)
    timeline = _Timeline(module, machine, *args)
    timeline.complete()
    if len(module.notes) > noted:
        raise MalformedError(module.notes[noted])
    timeline.tell_links(_Timeline(module, replace(machine, ici_factor=math.inf), *args))
    return timeline.timed()


def program_end(ops: Iterable[TimedOp]) -> int:
    """Return when the core ends its last op, in ps since the program's start."""
    return max((op.start_ps + op.duration_ps for op in ops if op.queue == "core"), default=0)


def _placed(op: TimedOp, transfer: Transfer) -> TimedOp:
    if transfer.start is None or transfer.end is None:
        return op
    duration = transfer.end - transfer.start
    low, _, high = transfer.time or cost(duration, op.basis, 0.9, 1.1)[:3]
    return op._replace(start_ps=transfer.start, duration_ps=duration, low_ps=low, high_ps=high)


class _Timeline:
    """One execution, as far as it has run."""

    def __init__(
        self,
        module: HloModule,
        machine: Machine,
        kernels: Mapping[str, int],
        context_tokens: float | None,
        busiest_load: float,
        recorded: Callable[[str], MeasuredKernel | None],
        flops: Callable[[ScheduledOp], int | None],
    ) -> None:
        self.schedule = module.schedule
        self._module, self._recorded, self._flops = module, recorded, flops
        self.now = 0
        self.transfers = Transfers(machine.hbm_bytes_per_ps)
        self._name, self._machine, self._kernels, self._context = module.name, machine, kernels, context_tokens
        self._ops: list[tuple[TimedOp, Transfer | None]] = []
        self._started: dict[str, tuple[int, Transfer]] = {}
        self._owners: dict[int, int] = {}  # by place of a collective's op, start or done: that of the op or the start
        self._free_from: dict[str, int] = {}
        self._collectives = ProgramCollectives(module, self.schedule, machine, busiest_load)
        self._costs: dict[str, Cost] = {}
        self._lengths: dict[int, int] = {}
        self._holders: set[int] = set()
        self._steps = 0

    def timed(self) -> list[TimedOp]:
        """Return the ops; those of transfers get their times, which later ops decide."""
        return [op if transfer is None else _placed(op, transfer) for op, transfer in self._ops]

    def complete(self) -> None:
        """Run the program."""
        self.run(self.schedule.entry, (), 0)
        self.transfers.finish(self.now)

    def tell_links(self, latency_alone: _Timeline) -> None:
        """Give each collective what it takes longer than in an execution, run here, whose bytes take no time on links.

        What the core waits longer there, for a copy or another collective, counts against the last ones before.
        """
        if not self._owners:
            return
        latency_alone._lengths = self._lengths  # so that the same branches run
        latency_alone.complete()
        saved, credited = dict.fromkeys(self._owners.values(), 0), list[int]()
        for place, ((op, _), (other, _)) in enumerate(zip(self._ops, latency_alone._ops, strict=True)):
            longer = 0 if place in self._holders else other.duration_ps - op.duration_ps
            if longer < 0 and place in self._owners:
                saved[self._owners[place]] -= longer
                credited.append(self._owners[place])
            while longer > 0 and credited:
                taken = min(longer, saved[credited[-1]])
                saved[credited[-1]] -= taken
                longer -= taken
                if longer:
                    credited.pop()
        for place, link_ps in saved.items():
            self._ops[place] = self._ops[place][0]._replace(link_ps=link_ps), None

    def run(self, computation: int, iterations: tuple[int, ...], depth: int) -> None:
        """Run the ops of a computation in order."""
        if depth > MOST_NESTED:
            raise MalformedError(f"computations call each other more than {MOST_NESTED} deep")
        for op in self.schedule.ops(computation):
            if op.opcode in _FREE or op.target in _FREE_TARGETS:
                continue
            self._count()
            role = async_role(op)
            if op.opcode in ("while", "conditional", "call"):
                self._hold(op, iterations, depth)
            elif role == "start":
                self._start(op, iterations)
            elif role is not None:
                self._end(op, iterations)
            else:
                self._spend(op.name, self._cost(op), iterations)

    def _count(self, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > MOST_OPS:
            raise MalformedError(f"one execution of {self._name} has more than {MOST_OPS} ops")

    def _hold(self, op: ScheduledOp, iterations: tuple[int, ...], depth: int) -> None:
        """Run the ops that one holds: a loop's body as often as the compiler says, and of branches the longest.

        Without a number of iterations the body runs once; then, and where branches differ, the basis says "unknown".
        """
        place, begin = len(self._ops), self.now
        self._ops.append((TimedOp(op.name, begin, 0, "core", "container", 0, 0, iterations), None))
        shortest = None
        if op.opcode == "while" and op.called:
            trips = 1 if op.trips is None else op.trips
            self._count(trips)
            for number in range(trips):
                self.run(op.called[0], (*iterations, number), depth + 1)
        elif op.called:
            lengths = [self._length(called, depth + 1) for called in op.called]
            if op.opcode == "conditional" and min(lengths) < max(lengths):
                shortest = min(lengths)
            self.run(op.called[lengths.index(max(lengths))], iterations, depth + 1)
        self._holders.add(place)
        inside = [
            timed
            for number, (timed, _) in enumerate(self._ops[place + 1 :], place + 1)
            if timed.queue == "core" and number not in self._holders
        ]
        low, high = (sum(getattr(timed, side) for timed in inside) for side in ("low_ps", "high_ps"))
        is_known = shortest is None and (op.opcode != "while" or op.trips is not None)
        timed = self._ops[place][0]._replace(
            duration_ps=self.now - begin,
            basis="container" if is_known else "unknown",
            low_ps=low if shortest is None else min(low, shortest),
            high_ps=high,
        )
        self._ops[place] = timed, None

    def _length(self, computation: int, depth: int) -> int:
        """Return the time of a computation's ops on the core, without waits."""
        if depth > MOST_NESTED:
            raise MalformedError(f"computations call each other more than {MOST_NESTED} deep")
        if computation not in self._lengths:
            total = 0
            for op in self.schedule.ops(computation):
                if op.opcode in ("while", "conditional", "call"):
                    inside = op.called[:1] if op.opcode == "while" else op.called
                    total += (op.trips or 1) * max((self._length(called, depth + 1) for called in inside), default=0)
                elif op.opcode not in _FREE and op.target not in _FREE_TARGETS and async_role(op) is None:
                    total += self._cost(op).mid_ps
            self._lengths[computation] = total
        return self._lengths[computation]

    def _spend(self, name: str, spent: Cost, iterations: tuple[int, ...]) -> None:
        taken = min(spent.hbm_bytes, int(self.transfers.rate * spent.mid_ps))
        self.transfers.flow(self.now, spent.mid_ps, taken)
        if spent.basis == "links":
            self._owners[len(self._ops)] = len(self._ops)
        timed = TimedOp(name, self.now, spent.mid_ps, "core", spent.basis, spent.low_ps, spent.high_ps, iterations)
        self._ops.append((timed, None))
        self.now += spent.mid_ps

    def _start(self, op: ScheduledOp, iterations: tuple[int, ...]) -> None:
        """Start a transfer or a collective beside the core."""
        place = len(self._ops)
        self._spend(op.name, start_cost(self._machine), iterations)
        queue: Queue = "sparsecore" if op.thread == "sparsecore" else "dma"
        collective, copied = self._collectives.find(op), host_time(op, self._machine)
        basis: Basis = "hbm_bytes"
        if collective is not None:
            basis, self._owners[place] = "links", place
            transfer = self._occupy(f"{queue} {collective.direction}", collective.time)
        elif copied is not None:
            basis = "host_link"
            transfer = self._occupy(*copied)
        elif op.opcode in ("send", "recv"):
            basis = "unknown"
            transfer = Transfer(0.0, self.now, self.now)
        else:
            transfer = self.transfers.add(self.now, transferred_bytes(op, self.schedule.root(op)))
        self._started[op.name] = place, transfer
        self._ops.append((TimedOp(op.name, self.now, 0, queue, basis, 0, 0, iterations), transfer))

    def _occupy(self, lane: str, time: TimeRange) -> Transfer:
        begin = max(self.now, self._free_from.get(lane, 0))
        self._free_from[lane] = begin + time.mid_ps
        return Transfer(0.0, begin, begin + time.mid_ps, time)

    def _end(self, op: ScheduledOp, iterations: tuple[int, ...]) -> None:
        """Wait on the core for what a start began.

        A loop may hand what it started to its next iteration: the done then names no start, and ends the oldest.
        """
        start = async_start_name(op)
        if start not in self._started:
            start = next(iter(self._started), None)
        if op.opcode == "async-update" or start is None:
            return
        place, transfer = self._started.pop(start)
        if place in self._owners:
            self._owners[len(self._ops)] = place
        wait = self.transfers.wait(transfer, self.now)
        self._spend(op.name, wait_cost(wait, self._machine), iterations)

    def _cost(self, op: ScheduledOp) -> Cost:
        if op.name not in self._costs:
            self._costs[op.name] = self._found_cost(op)
        return self._costs[op.name]

    def _found_cost(self, op: ScheduledOp) -> Cost:
        collective = self._collectives.find(op)
        if collective is not None:
            return Cost(*collective.time, "links")
        inside = self.schedule.opcodes(op) | {op.opcode}
        stated = stated_cost(op, self._machine, inside, self._flops(op) if is_product(op) else None)
        if stated is not None:
            return stated
        if op.opcode == "custom-call" and op.target == "tpu_custom_call":
            hlo = self._module.instruction(op.name)
            said = signature(hlo) if hlo is not None else None
            found = self._recorded(said) if said is not None else None
            return kernel_cost(op, self._machine, self._kernels, self._context, self._collectives.exchange, found)
        if "scatter" in inside and op.results:
            return scatter_cost(op, self._machine)
        if "gather" in inside and op.results:
            return gather_cost(op, self._machine)
        if op.opcode == "dynamic-update-slice":
            return update_cost(op, self._machine)
        return moving_cost(op, self._machine)
