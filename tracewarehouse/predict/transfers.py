"""Moves data between HBM and the core's memory while the core works: one queue, and one budget of bandwidth."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tracewarehouse.predict.links import TimeRange


@dataclass
class Transfer:
    """A transfer that was started; `start` and `end` are in ps, and None while they are not known."""

    bytes_left: float
    start: int | None = None
    end: int | None = None
    time: TimeRange | None = None


@dataclass
class Transfers:
    """Transfers between HBM and the core's memory: one queue, which gets the bandwidth that the running op leaves.

    Without this budget a decode step would get its weights for nothing: that of Llama-3.1-8B on eight v6e moves 98 % of
    what the HBM gives in its whole time.
    """

    rate: float
    waiting: deque[Transfer] = field(default_factory=deque)

    def add(self, issued: int, size: int) -> Transfer:
        """Queue a transfer of some bytes; one of none is over at once."""
        if not size:
            return Transfer(0.0, issued, issued)
        transfer = Transfer(float(size))
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

    def wait(self, transfer: Transfer, now: int) -> int:
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
