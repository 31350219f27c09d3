"""Creates and deletes TPU slices within the quota, whatever fails meanwhile."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Callable

from pydantic import ValidationError
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from tracewarehouse.collect.errors import TpuError
from tracewarehouse.collect.tpu.gcloud import (
    COMING,
    GONE,
    READY,
    WAITING,
    CapacityError,
    DeletionError,
    Gcloud,
    Provider,
    RefusedError,
    StateError,
    TakenError,
    TpuApi,
)
from tracewarehouse.collect.tpu.instance_groups import InstanceGroups
from tracewarehouse.collect.tpu.quota import Quota
from tracewarehouse.collect.tpu.state import Place, Slice, State

QUESTIONS = 3
"""Least number of attempts if Google does not give the state of a slice: perhaps nothing was done yet."""


class InterruptionError(TpuError):
    """The slice was preempted or the connection lost; the run can go on later."""


class QueuedError(TpuError):
    """The slice waits in Google's queue; the wait ends by itself."""


class Slices:
    """The slices of one state file.

    `show` is called with each line about what happens; `backoff_s` comes before the second attempt, and is doubled for
    each further one.
    """

    def __init__(
        self, state: State, quota: Quota, gcloud: Gcloud, show: Callable[[str], None], backoff_s: float = 30.0
    ) -> None:
        self.state = state
        self.quota = quota
        self.gcloud = gcloud
        self.show = show
        self._backoff_s = backoff_s

    def cloud(self, entry: Slice) -> Provider:
        """Return the provider of a slice."""
        return InstanceGroups(self.show) if entry.provider == "instance_group" else TpuApi(self.show)

    def create(
        self,
        name: str,
        accelerator_type: str,
        *,
        zone: str | None = None,
        spot: bool | None = None,
        place: Place | None = None,
        attempts: int = 1,
    ) -> Slice:
        """Create a slice, or find the one that an earlier call created; wait for one that is in the queue.

        Raises:
            QuotaError: the slice is outside of the quota.
            CapacityError: there were no free chips in all attempts.
            TpuError: another failure, or a slice of this name that is different.
        """
        generation, chips = self.quota.generation_and_chips(accelerator_type)

        def choose(used: list[Slice]) -> Slice:
            pool = self.quota.pool(generation, chips, zone=zone, spot=spot, used=used)
            details = self.quota.generation(generation)
            try:
                return Slice(
                    name=name,
                    owner=secrets.token_hex(8),
                    generation=generation,
                    accelerator_type=accelerator_type,
                    chips=chips,
                    hosts=details.hosts[chips],
                    zone=pool.zone,
                    spot=pool.spot,
                    runtime=details.runtime,
                    provider=details.provider,
                    topology=details.topology[chips],
                    machine_type=details.machine_type,
                    devices_per_chip=details.devices_per_chip,
                    place=place or Place(),
                )
            except ValidationError:
                raise TpuError(
                    f"{name!r} is no name for a slice: it has at most 63 small letters, digits and hyphens, begins "
                    "with a letter and does not end with a hyphen"
                ) from None

        # Recorded before any command: a slice must not be forgotten if this process is killed meanwhile.
        entry, is_new = self.state.reserve(name, choose)
        if entry.accelerator_type != accelerator_type or zone not in (None, entry.zone):
            raise TpuError(f"{name} is there already as {entry.accelerator_type} in {entry.zone}; delete it first")
        if spot not in (None, entry.spot) or place not in (None, Place(), entry.place):
            raise TpuError(f"{name} is there already with another provisioning, project or place; delete it first")
        try:
            for attempt in self.attempts(attempts):
                with attempt:
                    self.ensure(entry)
        except TakenError:
            if is_new:
                self.state.remove(name)
            raise
        except TpuError:
            if is_new and self.found(entry) == GONE:
                self.state.remove(name)
            raise
        return entry

    def delete(self, name: str, *, attempts: int = 1) -> None:
        """Delete a slice that was created here."""
        entry = self.state.get(name)
        for attempt in self.attempts(attempts):
            with attempt:
                self.cloud(entry).delete(entry)
        self.state.remove(name)

    def ensure(self, entry: Slice) -> None:
        """Make sure that the slice is there: create it, or delete and create it again if it was preempted.

        Raises:
            InterruptionError: it is not ready yet.
            QueuedError: it waits in the queue.
            TpuError: as for `create`.
        """
        self.state.require(entry)
        state = self.cloud(entry).state(entry)
        if state == READY:
            entry.status = "ready"
            self.state.put(entry)
            return
        if state in WAITING:
            raise QueuedError(f"{entry.name} is {state}")
        if state in COMING:
            raise InterruptionError(f"{entry.name} is {state}")
        if state != GONE:
            self.show(f"# {entry.name} is {state}: it is deleted and created again")
            self.cloud(entry).delete(entry)
        entry.status, entry.is_set_up, entry.round = "creating", False, None
        self.state.put(entry)
        if entry.place.queue and state == "FAILED":
            raise CapacityError(
                f"{entry.name} was not granted within {entry.place.queue}: no free chips in {entry.zone}"
            )
        try:
            self.cloud(entry).create(entry)
        except TakenError:
            if self.found(entry) == GONE:
                raise
            # it was asked for before, by another call or by one whose answer was lost, and Google did not show it yet
            raise StateError(f"{entry.name} is there already, as it was asked for") from None
        if entry.place.queue:
            raise QueuedError(f"{entry.name} is asked for")
        entry.status = "ready"
        self.state.put(entry)

    def found(self, entry: Slice) -> str | None:
        """Return the state of the slice; None if Google does not say."""
        try:
            return self.cloud(entry).state(entry)
        except (StateError, RefusedError):
            return None

    def interruption(self, entry: Slice, why: str) -> InterruptionError:
        """Return the error that says why a slice cannot go on now, and its state."""
        return InterruptionError(f"{entry.name} ({self.found(entry) or 'state not known'}): {why}")

    def require(self, entry: Slice, done: subprocess.CompletedProcess[str], what: str) -> None:
        """Make sure that a command to the hosts of a slice succeeded."""
        if done.returncode:
            raise self.interruption(entry, f"{what}: {' '.join(done.stderr.split())[-300:]}")

    def attempts(self, count: int) -> Retrying:
        """Return attempts with growing pauses while the failure can pass; at least `QUESTIONS` if the state is unknown.

        A look that finds the slice still in the queue is no attempt: Google says when the wait was too long.
        """
        looks = 0

        def call_error(call: RetryCallState) -> BaseException | None:
            return call.outcome.exception() if call.outcome else None

        def most(call: RetryCallState) -> int:
            return max(count, QUESTIONS) if isinstance(call_error(call), StateError) else count

        def is_over(call: RetryCallState) -> bool:
            nonlocal looks
            looks += isinstance(call_error(call), QueuedError)
            return not isinstance(call_error(call), QueuedError) and call.attempt_number - looks >= most(call)

        def tell(call: RetryCallState) -> None:
            is_queued = isinstance(call_error(call), QueuedError)
            number = "" if is_queued else f" attempt {call.attempt_number - looks} of {most(call)},"
            self.show(
                f"# {call_error(call)};{number} the next {'look' if is_queued else 'one'} in {call.upcoming_sleep:g} s"
            )

        return Retrying(
            stop=is_over,
            wait=wait_exponential(multiplier=self._backoff_s, max=20 * self._backoff_s),
            retry=retry_if_exception_type((CapacityError, InterruptionError, QueuedError, StateError, DeletionError)),
            before_sleep=tell,
            sleep=time.sleep,
            reraise=True,
        )
