"""What the marks of the harness make of a capture: every op has its step, steps are apart, and time has its place."""

from __future__ import annotations

from itertools import groupby, pairwise
from pathlib import Path

import pytest

from tracewarehouse.ingest.capture.manifest import load_manifest
from tracewarehouse.warehouse import Warehouse

CAPTURES = sorted(p.parent for p in (Path(__file__).parents[2] / "data" / "captures").glob("*/manifest.json"))


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.name)
def test_every_op_has_the_phase_and_step_that_the_host_marked(all_captures: Warehouse, capture: Path) -> None:
    marked = [(p.name, p.step) for p in load_manifest(capture / "manifest.json").phases]

    steps = all_captures.query(
        f"""SELECT phase, step, min(start_ps), max(start_ps + duration_ps) FROM ops JOIN runs AS r USING (run_id)
            WHERE r.name = '{capture.name}' GROUP BY ALL ORDER BY step"""
    ).rows()

    assert [(phase, step) for phase, step, _, _ in steps] == marked
    # The barrier: a step begins on the first device after the one before has ended on the last.
    assert all(stop <= start for (*_, stop), (_, _, start, _) in pairwise(steps)), steps


def test_nine_tenths_of_the_time_have_a_layer_or_part(all_captures: Warehouse) -> None:
    phases = all_captures.query(
        """SELECT o.run_id, o.phase, sum(o.self_ps) AS total,
             sum(CASE WHEN l.layer IS NOT NULL OR l.part IS NOT NULL THEN o.self_ps ELSE 0 END) AS known
           FROM models.leaf_ops AS o JOIN models.op_layers AS l USING (run_id, event_id) GROUP BY ALL ORDER BY ALL"""
    ).rows()

    assert [len(list(rows)) for _, rows in groupby(phases, lambda row: row[0])] == [2] * len(CAPTURES)
    assert all(known > 0.9 * total for _, _, total, known in phases), phases
