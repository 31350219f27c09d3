"""What the marks of the harness make of a capture: every op has its step, steps are apart, and time has its place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import tracewarehouse as tw
from tracewarehouse.ingest.capture.manifest import load_manifest
from tracewarehouse.warehouse import Warehouse

CAPTURES = Path(__file__).parents[2] / "data" / "captures"


@pytest.fixture(
    scope="module", params=sorted(p.parent for p in CAPTURES.glob("*/manifest.json")), ids=lambda path: path.name
)
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, Warehouse]]:
    with tw.open(tmp_path_factory.mktemp("warehouse")) as warehouse:
        warehouse.ingest(request.param)
        yield request.param, warehouse


def test_every_op_has_the_phase_and_step_that_the_host_marked(recorded: tuple[Path, Warehouse]) -> None:
    capture, warehouse = recorded
    marked = [(p.name, p.step) for p in load_manifest(capture / "manifest.json").phases]

    found = warehouse.query("SELECT DISTINCT phase, step FROM ops ORDER BY step").rows()

    assert found == marked


def test_nine_tenths_of_the_time_have_a_layer_or_part(recorded: tuple[Path, Warehouse]) -> None:
    _, warehouse = recorded
    phases = warehouse.query(
        """SELECT o.phase, sum(o.self_ps) AS total,
             sum(CASE WHEN l.layer IS NOT NULL OR l.part IS NOT NULL THEN o.self_ps ELSE 0 END) AS known
           FROM models.leaf_ops AS o JOIN models.op_layers AS l USING (run_id, event_id) GROUP BY o.phase"""
    ).rows()

    assert len(phases) == 2
    assert all(known > 0.9 * total for _, total, known in phases), phases


def test_no_device_is_a_step_ahead(recorded: tuple[Path, Warehouse]) -> None:
    """The barrier: a step begins on the first device after the one before has ended on the last."""
    _, warehouse = recorded
    steps = warehouse.query(
        "SELECT step, min(start_ps) AS start, max(start_ps + duration_ps) AS stop FROM ops GROUP BY step ORDER BY step"
    ).rows()

    assert len(steps) > 2
    assert all(stop <= start for (_, _, stop), (_, start, _) in pairwise(steps)), steps
