"""Captures of an H200, recorded with CUDA events around each step, and what ingest makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tracewarehouse
from tracewarehouse.warehouse import Warehouse

CAPTURE = Path(__file__).parents[4] / "data" / "gpu" / "h200-torch-cuda-graph.pt.trace.json.gz"
STARTS_US = [
    0.0, 6819.0, 7862.0, 8281.7, 8699.4, 9119.9, 9540.4, 9959.2, 10378.1, 10796.6, 11216.1, 11636.6, 12054.7, 12474.2,
    12893.6, 13311.8, 13730.9,
]  # fmt: skip
"""Times at which the device reached the beginning of each step, by CUDA events."""
LASTED_US = [418.1, 416.4, 418.8, 419.1, 417.2, 417.7, 416.9, 418.2, 418.9, 416.8, 418.0, 418.1, 416.7, 417.9, 418.8]
"""Times of the steps that replay the graph."""
RECORDED = Path(__file__).parent / "recorded"
PRODUCTS_US = [
    (1.2, 1284.3), (1287.5, 1093.8), (2518.2, 1097.8), (3748.9, 1096.8), (4977.6, 1096.0), (6203.3, 1098.1),
    (7431.1, 1098.7), (8659.9, 1097.8),
]  # fmt: skip
"""Start and time of the six products of each step, by CUDA events on their stream."""
COPY_US = [1216.5, 1218.9, 1216.5, 1217.1, 1213.4, 1215.5, 1213.9, 1215.0]
"""Time of the copy of each step, by CUDA events on its stream."""
PRODUCTS = {
    ("bf16", "bf16[8192,8192]"): (2 * 8192**3, 1372.7),
    ("bf16", "bf16[4096,4096]"): (2 * 4096**3, 175.5),
    ("bf16", "bf16[2048,2048]"): (2 * 2048**3, 26.5),
    ("f16", "f16[8192,8192]"): (2 * 8192**3, 1429.3),
    ("f16", "f16[4096,4096]"): (2 * 4096**3, 181.6),
    ("f16", "f16[2048,2048]"): (2 * 2048**3, 27.4),
    ("f32", "f32[8192,8192]"): (2 * 8192**3, 21696.1),
    ("f32", "f32[4096,4096]"): (2 * 4096**3, 2702.8),
    ("f32", "f32[2048,2048]"): (2 * 2048**3, 347.9),
    ("f8e4m3fn", None): (2 * 8192**3, 758.2),
    ("bf16", "bf16[64,4096]"): (2 * 64 * 4096**2, 11.7),
    ("bf16", "bf16[16384,64,64]"): (2 * 16384 * 64**3, 74.8),
}
"""Operations of each product, and its time by CUDA events, the median of ten."""
EVENT_US = 5
"""Time of the device between an event and the next kernel."""


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    with tracewarehouse.open(tmp_path_factory.mktemp("gpu") / "w", create=True) as opened:
        opened.ingest(CAPTURE)
        yield opened


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    with tracewarehouse.open(tmp_path_factory.mktemp("recorded") / "w", create=True) as opened:
        opened.ingest(RECORDED)
        yield opened


def test_steps_are_those_that_cuda_events_measured(warehouse: Warehouse) -> None:
    rows = warehouse.query(
        """SELECT "index", name, source, start_ps / 1e6, (end_ps - start_ps) / 1e6 FROM main.phases
        WHERE kind = 'step' AND device_id IS NOT NULL ORDER BY 1"""
    ).rows()
    assert [(i, name) for i, name, *_ in rows] == [(0, "prefill"), *((i, "decode") for i in range(1, 17))]
    assert {source for _, _, source, *_ in rows} == {"launches"}
    starts = [start for _, _, _, start, _ in rows]
    from_second = [s - starts[2] for s in starts[2:]]
    assert from_second == pytest.approx([s - STARTS_US[2] for s in STARTS_US[2:]], abs=EVENT_US)
    assert [us for *_, us in rows[2:]] == pytest.approx(LASTED_US, abs=EVENT_US)


def test_the_marks_tell_phases_tokens_and_so_metrics_of_serving(warehouse: Warehouse) -> None:
    found = (
        "SELECT step, scheduled_tokens, prefill_tokens, decode_tokens, requests FROM main.step_batches ORDER BY step"
    )
    batches = warehouse.query(found).rows()
    assert batches == [(0, 1024, 1024, 0, 4), *((i, 4, 0, 4, 4) for i in range(1, 17))]
    [(tpot,)] = warehouse.query("SELECT tpot_ms FROM metrics.tpot WHERE clock = 'device'").rows()
    assert tpot == pytest.approx((STARTS_US[-1] - STARTS_US[1]) / 15 / 1000, rel=0.03)


def test_layers_of_replays_are_those_of_the_capture(warehouse: Warehouse) -> None:
    """In every step each layer has 12 kernels of attention, 5 of the MLP, 16 of norms and 2 sums."""
    layers = warehouse.query(
        """SELECT o.phase, i.layer, i.part, COUNT(*) / COUNT(DISTINCT o.step) FROM main.ops AS o
        INNER JOIN main.instructions AS i USING (run_id, instruction_id)
        WHERE o.line LIKE 'Stream%' AND i.layer IS NOT NULL AND o.phase = 'decode' GROUP BY ALL ORDER BY ALL"""
    ).rows()
    parts = (("attn", 12), ("mlp", 5), ("norm", 16), (None, 2))
    assert layers == [("decode", layer, part, count) for layer in range(4) for part, count in parts]
    assert not warehouse.query("SELECT detail FROM main.quality_flags WHERE flag = 'inferred_layers'").rows()


def test_layers_of_eager_kernels_follow_from_modules(warehouse: Warehouse) -> None:
    path = "LlamaForCausalLM_0/LlamaDecoderLayer_2/LlamaAttention_2/aten::_cudnn_attention_forward"
    found = (
        "SELECT DISTINCT op_name, part, layer_source FROM main.instructions WHERE layer = 2 AND category = 'attention'"
    )
    assert warehouse.query(found).rows() == [(path, "attn", "marked")]


def test_launches_and_gaps_have_values(warehouse: Warehouse) -> None:
    [(launches, dispatch)] = warehouse.query(
        "SELECT launches, dispatch_us FROM metrics.launch_overhead WHERE phase = 'decode'"
    ).rows()
    assert launches >= 16
    assert dispatch > 0
    gaps = dict(warehouse.query("SELECT phase, gap_ratio FROM metrics.host_gap").rows())
    assert gaps["decode"] < 0.2 < gaps["prefill"]  # replays leave no gaps, eager kernels do
    assert warehouse.query("SELECT kind, backend FROM main.devices").rows() == [("NVIDIA H200", "gpu")]
    assert not warehouse.fsck()


def test_a_step_holds_the_copy_beside_its_products(recorded: Warehouse) -> None:
    """The copy of a step begins with its products on another stream and ends after them; products have gaps."""
    rows = recorded.query(
        """SELECT p.start_ps / 1e6, (p.end_ps - p.start_ps) / 1e6,
          SUM(o.duration_ps) FILTER (WHERE o.line <> 'Stream #7') / 1e6,
          (MAX(o.start_ps + o.duration_ps) FILTER (WHERE o.line = 'Stream #7') - p.start_ps) / 1e6
        FROM main.phases AS p INNER JOIN main.ops AS o ON o.run_id = p.run_id AND o.step = p."index"
        WHERE p.kind = 'step' AND p.source = 'launches' AND p.device_id IS NOT NULL AND o.line LIKE 'Stream%'
        GROUP BY p.start_ps, p.end_ps ORDER BY p.start_ps"""
    ).rows()
    starts, lasted, copies, products = zip(*rows, strict=True)
    began, of_products = zip(*PRODUCTS_US, strict=True)
    assert [s - starts[1] for s in starts[1:]] == pytest.approx([b - began[1] for b in began[1:]], abs=EVENT_US)
    assert copies == pytest.approx(COPY_US, abs=EVENT_US)
    assert products[1:] == pytest.approx(of_products[1:], abs=2 * EVENT_US)  # before the first and after the last
    assert all(step >= copy for step, copy in zip(lasted, copies, strict=True))


def test_rates_of_products_and_copies_are_those_that_cuda_events_measured(recorded: Warehouse) -> None:
    """Events lie around each call, so that they measure the time before the kernel too."""
    rows = recorded.query(
        """SELECT i.operand_dtype, i.shape, i.flops, MEDIAN(o.duration_ps) / 1e6
        FROM main.ops AS o INNER JOIN main.instructions AS i USING (run_id, instruction_id)
        INNER JOIN main.runs AS r USING (run_id) WHERE i.flops > 1e9 AND r.name = 'torch-peaks' GROUP BY ALL"""
    ).rows()
    assert {(dtype, shape): flops for dtype, shape, flops, _ in rows} == {k: f for k, (f, _) in PRODUCTS.items()}
    for dtype, shape, _, us in rows:
        assert 0 < PRODUCTS[dtype, shape][1] - us < 2 * EVENT_US
    rates = recorded.query("SELECT operand_dtype, shape, tflops_per_s, efficiency FROM metrics.gemm_efficiency").rows()
    best = {dtype: max((t, e) for d, _, t, e in rates if d == dtype) for dtype, *_ in rates}
    assert best["bf16"] == pytest.approx((807, 807 / 989), rel=1e-2)
    assert best["f8e4m3fn"] == pytest.approx((1462, 1462 / 1979), rel=1e-2)  # the peak of its own type
    assert best["f32"] == pytest.approx((50.8, 50.8 / 66.9), rel=1e-2)  # by kernels that use no matrix units
    copies = recorded.query(
        """SELECT kind, copies, bytes, median_gbps FROM metrics.copy_bandwidth INNER JOIN main.runs USING (run_id)
        WHERE name = 'torch-peaks' ORDER BY kind"""
    ).rows()
    size = 1 << 28
    assert [row[:3] for row in copies] == [
        ("device_to_device", 10, 40 * size),
        ("device_to_host", 10, 10 * size),
        ("host_to_device", 10, 10 * size),
    ]
    assert [gbps for *_, gbps in copies] == pytest.approx(
        [4 * size / 509.4e3, size / 4859.1e3, size / 4843.9e3], rel=1e-2
    )
    [(bound, attained)] = recorded.query(
        """SELECT r.bound, r.attained FROM metrics.roofline AS r INNER JOIN main.runs AS p USING (run_id)
        WHERE p.name = 'torch-peaks' AND r.name LIKE '%elementwise%' AND r.flops > 0"""
    ).rows()
    assert bound == "memory" and attained == pytest.approx(3 * 2 * size / 367.9e3 / 4814.3, rel=2e-2)


def test_products_of_f32_have_the_peak_of_what_multiplies_them(recorded: Warehouse) -> None:
    """Those of 4096 x 4096 as CUDA events measured them, with TF32 and without."""
    rates = recorded.query(
        """SELECT operand_dtype, tflops_per_s, efficiency
        FROM metrics.gemm_efficiency INNER JOIN main.runs USING (run_id)
        WHERE name = 'torch-precision' AND shape = 'f32[4096,4096]' ORDER BY operand_dtype"""
    ).rows()
    assert [dtype for dtype, *_ in rates] == ["f32", "tf32"]
    assert [rate for _, rate, _ in rates] == pytest.approx([51.2, 404.8], rel=0.06)
    assert [share for *_, share in rates] == pytest.approx([51.0 / 66.9, 385.8 / 494.5], rel=0.01)


def test_grouped_sends_move_what_their_calls_say(recorded: Warehouse) -> None:
    """One tensor of 2 MiB, or three of 2, 12 and 2.5 MiB in two types, to its own rank, which needs no link."""
    found = recorded.query(
        """SELECT dtype, message_bytes, group_size, wire_bytes, COUNT(*) FROM main.collectives
        WHERE kind = 'send' GROUP BY ALL ORDER BY 2"""
    ).rows()
    assert found == [("bf16", 2 << 20, 1, 0, 6), (None, 33 << 19, 1, 0, 6)]
    assert not recorded.query("SELECT * FROM main.traffic").rows()


def test_a_step_of_jax_is_of_two_programs_and_its_mark_of_the_host(recorded: Warehouse) -> None:
    """The host measured its steps around the marks."""
    steps = recorded.query(
        """SELECT step, phase, mark_ms, last_step_ms FROM metrics.step_time INNER JOIN main.runs USING (run_id)
        WHERE name = 'jax-three-modules' ORDER BY step"""
    ).rows()
    assert [(step, phase) for step, phase, *_ in steps] == [(0, "prefill"), *((i, "decode") for i in range(1, 6))]
    for (_, _, mark_ms, _), around in zip(steps, [1.512, 2.172, 1.277, 0.874, 0.662, 0.736], strict=True):
        assert around - 0.05 < mark_ms < around
    programs = recorded.query(
        """SELECT m.name, COUNT(*) FROM main.phases AS s INNER JOIN main.phases AS m ON s.run_id = m.run_id
          AND m.kind = 'module' AND m.start_ps >= s.start_ps AND m.end_ps <= s.end_ps
        WHERE s.kind = 'step' AND s.device_id IS NOT NULL AND m.name LIKE 'jit_%' GROUP BY ALL ORDER BY ALL"""
    ).rows()
    assert programs == [("jit_decode_fn", 5), ("jit_prefill_fn", 1), ("jit_sample_fn", 6)]
