"""Joins the batches of a server to the steps that ran them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from tracewarehouse.ingest.capture.batches import Batch
from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.survey import HostSurvey


def join_batches(surveys: Sequence[HostSurvey], batches: Sequence[Batch]) -> tuple[list[Batch], list[Flag]]:
    """Join the k-th batch of a rank to the k-th step of its devices.

    Steps without a phase get the phase of their batch. The server also describes the batch before which it stops the
    profiler; that one, the last, has no step. If a rank has different numbers of steps and batches, or two batches with
    one id, none of its batches is joined.
    """
    of_batches, of_hosts = {b.rank for b in batches}, {s.host.rank for s in surveys}
    has_ranks = max(len(of_batches), len(of_hosts)) > 1
    joined: list[Batch] = []
    flags = []
    for rank in sorted(of_batches | (of_hosts if batches and has_ranks else set())):
        of_rank = [b for b in batches if b.rank == rank]
        hosts = [s for s in surveys if not has_ranks or s.host.rank == rank]
        timelines = [timeline for s in hosts for _, timeline in s.device_timelines]
        first: dict[int, int] = {}
        for step in (step for t in timelines for step in t.steps):
            first[step.index] = min(step.start_ps, first.get(step.index, step.start_ps))
        steps = sorted(first, key=lambda i: (first[i], i))
        ids = Counter(b.batch_id for b in of_rank if b.batch_id is not None)
        sentence = ""
        has_next = len(of_rank) == len(steps) + 1 and of_rank[-1].is_profiled
        if len(steps) != len(of_rank) and not has_next:
            sentence = f"the server tells of {len(of_rank)} batches, the capture has {len(steps)} steps"
        elif repeated := [i for i, n in ids.items() if n > 1]:
            sentence = f"the server tells of several batches with id {repeated[0]}"
        if sentence:
            joined += of_rank
            flags.append(Flag("batches_unmatched", f"rank {rank}: {sentence}" if has_ranks else sentence))
            continue
        joined += [replace(b, step=step) for b, step in zip_longest(of_rank, steps)]
        phases = {step: b.phase for b, step in zip(of_rank, steps, strict=False)}
        for timeline in timelines:
            timeline.set_steps([replace(s, phase=s.phase or phases[s.index]) for s in timeline.steps])
    return joined, flags
