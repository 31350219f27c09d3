"""models.op_layers: worked out by hand, and on a recorded pipeline."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
from given_tables import warehouse_of

from tracewarehouse.database.lens import create_lens, run_sources
from tracewarehouse.definitions.reading import load_definitions
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.pipeline import ingest_one

CAPTURE = Path(__file__).parents[2] / "data" / "captures" / "llama-pp2tp2-b4-i16-o5"
DEFINITIONS = load_definitions()
QUERY = "SELECT device_id, layer, microbatch FROM models.op_layers ORDER BY event_id"


def found(
    run: dict[str, Any],
    instruction: dict[str, Any],
    pp_index: list[int | None],
    *stages: dict[str, int],
    iteration: int | None = None,
) -> list[tuple[Any, ...]]:
    """Layer and microbatch of one op on devices of these stages."""
    given = {
        "runs": [run],
        "devices": [
            {"device_id": d, "pp_index": p} | (stages[p] if stages and p is not None else {})
            for d, p in enumerate(pp_index)
        ],
        "instructions": [{"instruction_id": 0} | instruction],
        "ops": [
            {"device_id": d, "start_us": d, "duration_us": 1, "iteration": iteration} for d in range(len(pp_index))
        ],
    }
    with warehouse_of(given, DEFINITIONS) as connection:
        return connection.execute(QUERY).fetchall()


PIPELINE = {"pp": 2, "num_layers": 6, "microbatches": 2}


def test_the_same_instruction_is_another_layer_on_another_stage() -> None:
    # 3 layers a stage: local layer 1 is layer 1 on stage 0, layer 4 on stage 1. In tick 1 they have microbatch 1 and 0.
    assert found(PIPELINE, {"stage_layer": 1, "tick": 1}, [0, 0, 1]) == [(0, 1, 1), (1, 1, 1), (2, 4, 0)]


@pytest.mark.parametrize(
    ("slot", "layers"), [(0, [0, None]), (1, [1, 3]), (2, [2, 4]), (3, [None, 5]), (4, [None, None])]
)
def test_unlike_stages_have_their_layers_in_different_slots(slot: int, layers: list[int | None]) -> None:
    # Layer 0 has a slot of its own, in which stage 1 has none; stage 1 has one more of the other layers.
    stages = (
        {"first_layer": 0, "last_layer": 2, "first_slot": 0},
        {"first_layer": 3, "last_layer": 5, "first_slot": 1},
    )
    rows = found(PIPELINE, {"stage_layer": slot}, [0, 1], *stages)
    assert [layer for _, layer, _ in rows] == layers


def test_filling_and_draining_stages_have_no_microbatch() -> None:
    # Ticks 0, 1, 2: stage 1 waits in the first, stage 0 has nothing left in the last.
    assert found(PIPELINE, {"stage_layer": 0, "tick": 0}, [0, 1]) == [(0, 0, 0), (1, 3, None)]
    assert found(PIPELINE, {"stage_layer": 0, "tick": 2}, [0, 1]) == [(0, 0, None), (1, 3, 1)]


def test_a_layer_of_the_whole_model_goes_first() -> None:
    assert found(PIPELINE, {"layer": 5, "stage_layer": 0}, [0, 1]) == [(0, 5, None), (1, 5, None)]


@pytest.mark.parametrize(
    ("run", "pp_index"),
    [
        ({"pp": 2, "num_layers": 5}, 1),
        ({"pp": 2}, 1),
        ({"num_layers": 6}, 1),
        ({"pp": 0, "num_layers": 6}, 1),
        (PIPELINE, None),
    ],
)
def test_unknown_where_a_fact_is_missing(run: dict[str, Any], pp_index: int | None) -> None:
    ((_, layer, _),) = found(run, {"stage_layer": 1}, [pp_index])
    assert layer is None


@pytest.mark.parametrize(
    ("run", "stages", "layers"),
    [
        ({}, ({}, {}), [1, 1]),  # no pipeline
        (PIPELINE, ({}, {}), [1, 4]),  # three layers a stage
        (PIPELINE, ({"first_layer": 0, "last_layer": 1}, {"first_layer": 2, "last_layer": 5}), [1, 3]),
        ({"pp": 2, "num_layers": 5}, ({}, {}), [None, None]),
    ],
)
def test_a_stage_loops_over_its_layers(
    run: dict[str, Any], stages: tuple[dict[str, int], ...], layers: list[int | None]
) -> None:
    """The second iteration of a loop; an op of unknown iteration has no layer, not the first."""
    instruction = {"loop_layer": 0, "layers_per_iteration": 1}
    assert [layer for _, layer, _ in found(run, instruction, [0, 1], *stages, iteration=1)] == layers
    assert [layer for _, layer, _ in found(run, instruction, [0, 1], *stages)] == [None, None]


def test_an_op_without_layer() -> None:
    assert found(PIPELINE, {}, [1]) == [(0, None, None)]


def test_the_layers_of_stages_are_those_of_the_manifest(tmp_path: Path) -> None:
    """The recorded pipeline, said to be one of two slots, of which the second stage has only the second."""
    capture = tmp_path / "capture"
    shutil.copytree(CAPTURE, capture)
    manifest = json.loads((capture / "manifest.json").read_text())
    manifest["stages"] = [
        {"first_layer": 0, "last_layer": 1, "first_slot": 0},
        {"first_layer": 2, "last_layer": 2, "first_slot": 1},
    ]
    (capture / "manifest.json").write_text(json.dumps(manifest))
    with ingested(capture, tmp_path / "warehouse") as connection:
        devices = connection.execute(
            "SELECT device_id, first_layer, last_layer, first_slot FROM main.devices ORDER BY ALL"
        ).fetchall()
        assert devices == [(0, 0, 1, 0), (1, 0, 1, 0), (2, 2, 2, 1), (3, 2, 2, 1)]
        # All ops are of slot 0, which is layer 0 on the first stage and nothing on the second.
        layers = connection.execute(
            "SELECT DISTINCT stage, stage_layer, layer FROM models.op_layers WHERE stage_layer IS NOT NULL ORDER BY ALL"
        ).fetchall()
        assert layers == [(0, 0, 0), (1, 0, None)]


@contextmanager
def ingested(capture: Path, warehouse: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    ingest_one(capture, warehouse)
    with duckdb.connect() as connection:
        create_lens(connection, run_sources(str(warehouse), Lake(warehouse).runs()), DEFINITIONS)
        yield connection


def test_a_recorded_pipeline(tmp_path: Path) -> None:
    """Two stages of one layer, tp=2 in each, two microbatches: three ticks."""
    with ingested(CAPTURE, tmp_path) as connection:
        layers = connection.execute(
            "SELECT DISTINCT device_id, stage, layer FROM models.op_layers WHERE layer IS NOT NULL ORDER BY ALL"
        ).fetchall()
        assert layers == [(0, 0, 0), (1, 0, 0), (2, 1, 1), (3, 1, 1)]
        microbatches = connection.execute(
            "SELECT DISTINCT stage, tick, microbatch FROM models.op_layers WHERE tick IS NOT NULL ORDER BY ALL"
        ).fetchall()
        assert microbatches == [(0, 0, 0), (0, 1, 1), (0, 2, None), (1, 0, None), (1, 1, 0), (1, 2, 1)]
        # In every tick attention and MLP of the one layer end in an all-reduce over tp.
        reduces = connection.execute(
            """SELECT o.device_id, l.layer, l.part, l.tick, COUNT(*) FROM main.collectives AS o
            JOIN models.op_layers AS l USING (run_id, event_id)
            WHERE o.kind = 'all-reduce' AND o.axis = 'tp' AND o.step = 1 AND l.tick IS NOT NULL
            GROUP BY ALL ORDER BY ALL"""
        ).fetchall()
        assert reduces == [(d, d // 2, part, t, 1) for d in range(4) for part in ("attn", "mlp") for t in range(3)]
