"""Inferred layers of captures, from their bytes to the tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hidden_marks import hide_marks
from transformer_capture import Op, capture, named_capture, transformer

from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.ingest.layers.inference import infer_layers
from tracewarehouse.ingest.pipeline import IngestResult, ingest_one
from tracewarehouse.warehouse import Warehouse

CAPTURES = Path(__file__).parents[3] / "data" / "captures"
RECORDED = Path(__file__).parents[1] / "captures"
VLLM = "tpu-2chip-vllm-tp2-prefill"
Query = Callable[..., list[tuple[Any, ...]]]
Ingest = Callable[..., tuple[IngestResult, Query]]

FACTS = """SELECT name, layer, stage_layer, part, layer_source, part_source, layer_confidence FROM instructions
           WHERE hlo_text IS NOT NULL"""


def name(op: Op) -> str:
    return op.text.split(" =")[0].removeprefix("%")


def test_ingest_tells_layer_part_source_and_confidence(ingest: Ingest) -> None:
    ops = transformer(6)
    result, query = ingest(capture(ops), mesh="tp=2")
    found = {n: facts for n, *facts in query(FACTS)}
    assert len(found) == len(ops)
    for op in ops:
        layer, stage_layer, part, layer_source, part_source, confidence = found[name(op)]
        assert (layer, stage_layer) == (op.layer, None)
        assert part == op.part
        assert layer_source == ("inferred" if op.layer is not None else None)
        assert confidence == (pytest.approx(1) if op.layer is not None else None)
        says_part = "QKV" in op.op_name or "rotary" in op.op_name or "attention" in op.op_name
        says_part = says_part or "embedding" in op.op_name
        assert part_source == ("marked" if says_part else "inferred" if op.layer is not None else None)
    assert query("SELECT flag, detail FROM quality_flags WHERE flag = 'inferred_layers'") == [
        ("inferred_layers", "jit_step: 6 layers, confidence 1.00")
    ]
    assert "inferred_layers" in result.entry.flags


def test_a_mark_that_contradicts_repetition_keeps_a_program_as_it_is_marked(ingest: Ingest) -> None:
    ops = transformer(6)
    ops[5] = Op(ops[5].text, ops[5].category, ops[5].ns, "jit(step)/layers_3/attn/kernel", 3, "attn")
    result, query = ingest(capture(ops), mesh="tp=2")
    layers = query("SELECT name, layer, layer_source, layer_confidence FROM instructions WHERE layer IS NOT NULL")
    assert layers == [(name(ops[5]), 3, "marked", None)]
    assert query("SELECT DISTINCT part_source FROM instructions WHERE part IS NOT NULL") == [("marked",)]
    assert "inferred_layers" not in result.entry.flags
    assert query("SELECT detail FROM quality_flags WHERE flag = 'partial_layers'") == [
        ("99% of the op time (jit_step: names state other layers for 1 of 1 instructions than repetition shows)",)
    ]


def test_a_stage_with_a_program_of_its_own_counts_its_own_layers(ingest: Ingest) -> None:
    _, query = ingest(capture(transformer(6)), mesh="pp=2")
    found = query("SELECT DISTINCT layer, stage_layer, layer_source FROM instructions WHERE part = 'mlp' ORDER BY ALL")
    assert found == [(None, i, "inferred") for i in range(6)]


def test_ops_that_every_execution_lacks_at_its_start_refuse_the_program(ingest: Ingest) -> None:
    """The first third is lost: numbers would be shifted."""
    ops = transformer(9)
    result, query = ingest(capture(ops, lost=slice(len(ops) // 3)), mesh="tp=2")
    assert query("SELECT count(*) FROM instructions WHERE layer IS NOT NULL") == [(0,)]
    assert "inferred_layers" not in result.entry.flags


@pytest.mark.parametrize("folder", [p.name for p in sorted(CAPTURES.iterdir()) if p.is_dir()])
def test_two_layers_with_hidden_marks_are_refused(
    folder: str, tmp_path: Path, tables_in: Callable[[Path], Query]
) -> None:
    run = ingest_one(CAPTURES / folder, tmp_path).run_id
    query = tables_in(tmp_path)
    sources = "SELECT DISTINCT layer_source, layer_confidence FROM instructions WHERE layer_source IS NOT NULL"
    assert query(sources) == [("marked", None)]
    for names_too in (False, True):
        hidden = hide_marks(query, run, names_too=names_too)
        found = infer_layers(hidden.executions, hidden.rows)
        assert len(found) >= 2
        assert [(p.layer, p.is_marked, p.is_inferred) for p in found] == [({}, False, False)] * len(found)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_ops_of_virtual_devices_and_gpus_are_placed_too(ingest: Ingest, backend: str) -> None:
    ops = transformer(6)
    result, query = ingest(named_capture(ops, backend))
    found = dict(query("SELECT split_part(name, '.', 2), layer FROM instructions WHERE hlo_text IS NOT NULL"))
    assert found == {op.text.split(" =")[0].split(".")[1]: op.layer for op in ops}
    assert {"inferred_layers"} <= set(result.entry.flags)


@pytest.mark.parametrize("names_too", [False, True])
def test_hidden_layers_of_a_recording_are_found(
    names_too: bool, tmp_path: Path, tables_in: Callable[[Path], Query]
) -> None:
    """Recorded with `tw collect --model llama --mesh tp=2 --layers 5 --batch 2 --input-length 8 --output-length 3`."""
    run = ingest_one(RECORDED / "llama-tp2-b2-i8-o3-l5.xplane.pb.gz", tmp_path).run_id
    hidden = hide_marks(tables_in(tmp_path), run, names_too=names_too)
    found = [p for p in infer_layers(hidden.executions, hidden.rows) if p.is_inferred]
    assert [(p.count, p.confidence > 0.95) for p in found] == [(5, True)] * 2  # prefill and decode
    layer = {i: number for p in found for i, number in p.layer.items()}
    total = sum(hidden.time[i] for i in hidden.layer)
    right = sum(hidden.time[i] for i, number in hidden.layer.items() if layer.get(i) == number)
    assert right > 0.98 * total


class TestVllm:
    """64 layers, on two devices, tp=2."""

    def test_nearly_all_op_time_has_layer_and_part(
        self, shared_runs: dict[str, RunVersion], shared_tables: Query
    ) -> None:
        for run in (shared_runs[VLLM], shared_runs["chrome"]):
            sql = """SELECT sum(self_ps) FILTER (layer IS NOT NULL) / sum(self_ps),
                            sum(self_ps) FILTER (part IS NOT NULL) / sum(self_ps), min(layer), max(layer)
                     FROM ops JOIN instructions USING (run_id, instruction_id)
                     WHERE run_id = ? AND is_leaf AND module = 'jit_step_fun'"""
            [(layered, parted, first, last)] = shared_tables(sql, run.run_id)
            assert layered > 0.997
            assert parted > 0.999
            assert (first, last) == (0, 63)
            assert "inferred_layers" in run.flags

    def test_few_marks_do_not_switch_inference_off(self, shared_captures: Warehouse) -> None:
        """Of the quantized model, names mark 128 reduces, 0.5 % of the time; the attention kernels count the layers."""
        run_id = shared_captures.run("tpu-2chip-vllm-tp2-quantized").run_id
        [coverage] = shared_captures.query(
            "SELECT coverage, marked, inferred FROM metrics.layer_coverage WHERE run_id = $run", run=run_id
        ).rows()
        assert coverage[0] > 0.99
        assert (round(coverage[1], 3), round(coverage[2], 2)) == (0.005, 0.99)
        kernels = shared_captures.query(
            "SELECT layer, count(DISTINCT instruction_id), count(*) FROM models.op_layers JOIN models.leaf_ops "
            "USING (run_id, event_id) WHERE run_id = $run AND name LIKE 'RPA-%' GROUP BY layer ORDER BY layer",
            run=run_id,
        ).rows()
        assert kernels == [(i, 1, 2) for i in range(64)]
