"""Writes the sentences at the top of a report: what dominates a step, what would help most, what cannot be known."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from tracewarehouse.dashboards.figure import read
from tracewarehouse.dashboards.units import quantity

if TYPE_CHECKING:
    from tracewarehouse.queries.run_summary import RunSummary
    from tracewarehouse.warehouse import Warehouse

WORTH = 0.005
"""Shares below this are not worth a word."""


def dominating(summary: RunSummary) -> list[str]:
    """Say what the steps of each phase consist of: a sentence per phase, the phase with most time first."""
    sentences = []
    for phase, of_phase in groupby(summary.steps, key=lambda s: s.phase):
        parts = list(of_phase)
        whole = quantity(sum(p.mean_ms for p in parts), "ms")
        shares = ", ".join(f"{quantity(p.share, 'ratio')} {p.part}" for p in parts if (p.share or 0) >= WORTH)
        count = (
            f"mean over devices, of {parts[0].steps} steps" if parts[0].steps > 1 else "mean over devices, of one step"
        )
        sentences.append(f"A {f'{phase} ' if phase else ''}step takes {whole} ({count}): {shares}.")
    return sentences


def largest_categories(warehouse: Warehouse, run_id: str) -> list[str]:
    """Say which categories of ops take most op time: a sentence per phase."""
    rows = read(
        warehouse,
        """SELECT coalesce(dimensions ->> '$.phase', '') AS phase, dimensions ->> '$.category' AS category,
                  value AS share
           FROM main.metric_values
           WHERE run_id = $run AND metric = 'op_time_share' AND value > 0
           QUALIFY row_number() OVER (PARTITION BY phase ORDER BY value DESC, category) <= 2
           ORDER BY phase, share DESC""",
        run=run_id,
    ).rows
    sentences = []
    for phase, of_phase in groupby(rows, key=lambda r: r["phase"]):
        named = " and ".join(
            f"{r['category'] or 'ops without a category'} ({quantity(r['share'], 'ratio')})" for r in of_phase
        )
        sentences.append(f"Most op time{f' of {phase}' if phase else ''} goes to {named}.")
    return sentences


def savings(warehouse: Warehouse, run_id: str) -> list[str]:
    """Say what would make a step shorter, and by how much at most: a sentence per phase, the most helpful first."""
    rows = read(
        warehouse,
        """SELECT phase, change, saved
           FROM macros.step_savings([$run])
           WHERE saved >= $worth
           ORDER BY phase, saved DESC, change""",
        run=run_id,
        worth=WORTH,
    ).rows
    sentences = []
    for phase, of_phase in groupby(rows, key=lambda r: r["phase"]):
        named = "; ".join(f"{r['change']}, by at most {quantity(r['saved'], 'ratio')}" for r in of_phase)
        sentences.append(f"What would shorten a {f'{phase} ' if phase else ''}step: {named}.")
    return sentences


def unknown(summary: RunSummary) -> list[tuple[str, str]]:
    """List the metrics that the run lacks, and why."""
    return [(", ".join(metrics), reason[:1].upper() + reason[1:]) for reason, metrics in summary.reasons.items()]
