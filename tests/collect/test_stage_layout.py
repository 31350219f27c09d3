from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracewarehouse.collect.run_spec import stage_layout


def by_slot(layers: int, dense: int, stages: int) -> list[list[int | None]]:
    layout = stage_layout(layers, dense, stages)
    return [layout.slot_layers(slot) for slot in range(layout.slots)]


@pytest.mark.parametrize(
    ("layers", "dense", "stages", "expected"),
    [
        (4, 0, 1, [[0], [1], [2], [3]]),
        (4, 0, 2, [[0, 2], [1, 3]]),
        # What does not divide goes to the last stage.
        (3, 0, 2, [[0, 1], [None, 2]]),
        # A dense layer has a slot of its own, on the first stage; the others are shared evenly.
        (5, 1, 2, [[0, None], [1, 3], [2, 4]]),
        (4, 1, 2, [[0, None], [1, 2], [None, 3]]),
        (2, 1, 2, [[0, None], [None, 1]]),
        # Dense layers alone are alike.
        (2, 3, 2, [[0, 1]]),
    ],
)
def test_worked_by_hand(layers: int, dense: int, stages: int, expected: list[list[int | None]]) -> None:
    assert by_slot(layers, dense, stages) == expected


@given(st.integers(1, 70), st.integers(0, 70), st.integers(1, 9))
def test_every_layer_is_in_one_slot_of_its_kind(layers: int, dense: int, stages: int) -> None:
    try:
        slots = by_slot(layers, dense, stages)
    except ValueError as error:
        assert str(error).startswith(f"pp={stages} has more stages than")
        return
    by_stage = [[slot[s] for slot in slots if slot[s] is not None] for s in range(stages)]
    assert all(by_stage)
    assert [n for stage in by_stage for n in stage] == list(range(layers))
    dense = dense if dense < layers else 0
    assert all(len({n < dense for n in slot if n is not None}) == 1 for slot in slots)
    # No more slots than the fullest stage needs: one per dense layer, and the others spread evenly.
    assert len(slots) == dense + -(-(layers - dense) // stages)
    assert stage_layout(layers, dense, stages).layer_kinds()[:dense] == list(range(dense))
