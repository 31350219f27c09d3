"""Checks whether a capture holds the collectives that its manifest promises."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.manifest import Manifest, PromisedCollective

NOTE = "promised collectives are missing: "
"""Beginning of every sentence of `broken_promises`."""


class CollectiveStep(NamedTuple):
    """The key by which executions of collectives are counted."""

    device_id: int
    phase: str | None
    step: int | None
    kind: str
    axis: str | None


def broken_promises(
    manifest: Manifest, executed: Mapping[CollectiveStep, int], stages: Mapping[int, int | None]
) -> list[str]:
    """Return one sentence for each promise that a step on a device breaks, with the collectives found there.

    Args:
        manifest: the promises, and the steps that ran; without steps each promise holds for the steps in `executed`.
        executed: executions of collectives.
        stages: pipeline stage of each device of the capture; None without a pipeline.
    """
    out = []
    for promise in manifest.promised_collectives or ():
        steps: list[int | None] = [p.step for p in manifest.phases if p.name == promise.phase]
        # A phase without any step is one place where the promise is broken.
        steps = steps or list(dict.fromkeys(f.step for f in executed if f.phase == promise.phase)) or [None]
        devices = [d for d, stage in stages.items() if promise.stage in (None, stage)]
        places = [(d, s) for s in steps for d in devices]
        fewer = [(d, s) for d, s in places if _count(promise, executed, d, s) < promise.count]
        if fewer:
            out.append(_sentence(promise, executed, fewer, len(places)))
    return out


def for_program(manifest: Manifest, phases: Collection[str | None]) -> Manifest:
    """Return the manifest as it applies to a compiled program: one step of its own phase."""
    promised = [p for p in manifest.promised_collectives or () if p.phase in phases]
    return manifest.model_copy(update={"phases": [], "promised_collectives": promised})


def _count(promise: PromisedCollective, executed: Mapping[CollectiveStep, int], device: int, step: int | None) -> int:
    return executed.get(CollectiveStep(device, promise.phase, step, promise.kind, promise.axis), 0)


def _sentence(
    promise: PromisedCollective,
    executed: Mapping[CollectiveStep, int],
    fewer: Sequence[tuple[int, int | None]],
    places: int,
) -> str:
    device, step = fewer[0]
    others = sorted(
        f"{n} {f.kind} over {f.axis or 'unknown axes'}"
        for f, n in executed.items()
        if (f.device_id, f.phase, f.step) == (device, promise.phase, step)
    )
    at = f"step {step}" if step is not None else "all steps"
    where = "every device" if promise.stage is None else f"every device of stage {promise.stage}"
    return (
        f"{NOTE}the manifest promises at least {promise.count} {promise.kind} over {promise.axis} in every step of "
        f"{promise.phase} on {where}; device {device} has {', '.join(others) or 'no collective'} in {at} "
        f"({len(fewer)} of {places} device steps have too few)"
    )
