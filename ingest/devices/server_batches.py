"""Joins the batches of a server to the steps that ran them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from tracewarehouse.ingest.capture.batches import Batch, rank_of
from tracewarehouse.ingest.devices.quality import Flag
from tracewarehouse.ingest.devices.survey import HostSurvey


def join_batches(surveys: Sequence[HostSurvey], batches: Sequence[Batch]) -> tuple[list[Batch], list[Flag]]:
    """Join the k-th batch of a rank to the k-th step of its devices.

    Steps without a phase get the phase of their batch. If a rank has a different number of steps and batches, none of
    its batches is joined.
    """
    ranks = sorted({b.rank for b in batches})
    joined: list[Batch] = []
    flags = []
    for rank in ranks:
        of_rank = [b for b in batches if b.rank == rank]
        hosts = [s for s in surveys if len(ranks) == 1 or rank_of(PurePath(s.host.file_name)) == rank]
        timelines = [timeline for s in hosts for _, timeline in s.device_timelines]
        first: dict[int, int] = {}
        for step in (step for t in timelines for step in t.steps):
            first[step.index] = min(step.start_ps, first.get(step.index, step.start_ps))
        steps = sorted(first, key=lambda i: (first[i], i))
        if len(steps) != len(of_rank):
            joined += of_rank
            sentence = f"the server tells of {len(of_rank)} batches, the capture has {len(steps)} steps"
            flags.append(Flag("batches_unmatched", f"rank {rank}: {sentence}" if len(ranks) > 1 else sentence))
            continue
        joined += [replace(b, step=step) for b, step in zip(of_rank, steps, strict=True)]
        phases = {step: b.phase for b, step in zip(of_rank, steps, strict=True)}
        for timeline in timelines:
            timeline.set_steps([replace(s, phase=s.phase or phases[s.index]) for s in timeline.steps])
    return joined, flags
