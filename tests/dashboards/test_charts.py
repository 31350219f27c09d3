"""Charts of a run draw what the views hold, and say why where there is nothing to draw."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import vl_convert
from altair import Chart
from xplane_builder import Space

from tracewarehouse.dashboards.figure import ENDINGS, Figure, NothingToDraw
from tracewarehouse.dashboards.ops import device_timeline
from tracewarehouse.dashboards.registry import CHARTS, RUN_CHARTS, STUDY_CHARTS
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.warehouse import Warehouse, open_warehouse

pytestmark = pytest.mark.usefixtures("asked_once")

WITHOUT = {"memory", "roofline"}
"""Charts that the captures of data/ do not have: they state neither memory nor what ops cost."""

TINY = "tiny-tp2"


def texts(figure: Figure) -> set[str]:
    """The texts that a chart shows when it is drawn."""
    svg = vl_convert.vegalite_to_svg(figure.altair().to_dict())
    return set(re.findall(r">([^<>]+)</(?:text|tspan)>", svg))


def drawn_rows(figure: Figure) -> list[Any]:
    """The rows in the specification of a chart."""
    [rows] = figure.altair().to_dict()["datasets"].values()
    return list(rows)


@pytest.mark.parametrize("name", [n for n in RUN_CHARTS if n not in WITHOUT])
@pytest.mark.parametrize("run", ["llama-tp4-b4-i16-o17", "deepseek_v2-ep4-b4-i16-o9"])
def test_every_chart_draws_the_rows_of_its_query(recorded: Warehouse, run: str, name: str) -> None:
    figure = RUN_CHARTS[name](recorded, run)
    asked = recorded.query(figure.sql).dicts()
    assert figure.rows
    assert drawn_rows(figure) == json.loads(json.dumps(asked, default=str))
    svg = vl_convert.vegalite_to_svg(figure.specification())
    assert re.search(r'class="mark-(rect|rule|line|symbol|area)[^"]*"[^>]*><(path|line)', svg)
    assert figure.name == name
    assert figure.description.endswith(".")
    assert set(figure.metrics) <= {m.name for m in recorded.definitions.metrics}


@pytest.mark.parametrize("name", RUN_CHARTS)
def test_a_run_without_devices_says_why_nothing_is_drawn(warehouse: Warehouse, name: str) -> None:
    [run] = [r for r in warehouse.lake.runs() if r.name != TINY]
    with pytest.raises(NothingToDraw, match=r"^[A-Z].*\.$"):
        RUN_CHARTS[name](warehouse, run.run_id)


@pytest.mark.parametrize("name", ["timeline", "traffic"])
def test_a_run_that_is_unknown_is_an_error_of_its_own(warehouse: Warehouse, name: str) -> None:
    with pytest.raises(WarehouseError, match="no run 'nosuch'") as caught:
        RUN_CHARTS[name](warehouse, "nosuch")
    assert not isinstance(caught.value, NothingToDraw)


def test_timeline_is_two_layers_with_lanes(warehouse: Warehouse) -> None:
    """Layers 0 and 1 of the first decode step: per device four ops compute, and four all-reduces have a lane.

    Device 1 starts 2 us late, which is idle time.
    """
    figure = device_timeline(warehouse, TINY)
    lanes = [(r["place"], r["class"], r["op"]) for r in figure.rows if r["lane"] != "layer"]
    assert [p for p, _, op in lanes if op and op.startswith("all-reduce")] == ["device 0 communication"] * 4 + [
        "device 1 communication"
    ] * 4
    assert {c for p, c, _ in lanes if p == "device 0"} == {"matrix", "other compute"}
    assert sum(p in ("device 0", "device 1") for p, c, _ in lanes if c != "idle") == 2 * 4
    [waited] = [r for r in figure.rows if r["class"] == "idle"]
    assert (waited["place"], waited["start_ms"], waited["end_ms"]) == ("device 1", 0, 0.002)
    bars = {r["op"]: (r["start_ms"], r["end_ms"]) for r in figure.rows if r["lane"] == "layer"}
    assert bars["layer 0 attn"] == (0, 0.02)
    assert {"layer 0 attn", "layer 1 mlp", "device 0", "device 1 communication", "Device timeline"} <= texts(figure)
    assert figure.subtitle.startswith(
        "Layers 0 and 1 of decode step 1, by length and idle time nearest to the medians: 80 µs of 150 µs; "
        "before or after these layers it is idle for 70 µs. The layers are those of the first device. Drag"
    )


def test_timeline_of_a_window(warehouse: Warehouse) -> None:
    """Microseconds 150 to 210 after the first op are the dots, fusions and all-reduces of both layers, but the last."""
    figure = device_timeline(warehouse, TINY, window_ms=(0.150, 0.189))
    assert sum(r["lane"] != "layer" and r["class"] != "idle" for r in figure.rows) == 2 * 4
    with pytest.raises(NothingToDraw, match=r"No device runs an op from 0\.1 to 0\.14 ms"):
        device_timeline(warehouse, TINY, window_ms=(0.1, 0.14))


def test_timeline_of_more_ops_than_bars_shows_what_takes_most_of_each_stretch(warehouse: Warehouse) -> None:
    """A step of 16 ops in 8 bars of two devices with two lanes: 80 us are divided into stretches of 40 us.

    In the first, 0 to 40 us, device 0 runs a dot and a fusion of 12 us each, in the other lane two all-reduces of 8.
    """
    figure = device_timeline(warehouse, TINY, window_ms=(0.0, 0.0799999), max_bars=8)
    found = [(r["place"], r["class"], round(r["duration_us"], 3)) for r in figure.rows if r["device_id"] == 0]
    assert found == [("device 0", "matrix", 24.0), ("device 0 communication", "communication", 32.0)]
    assert all(r["end_ms"] - r["start_ms"] == pytest.approx(0.08, rel=1e-4) for r in figure.rows)


def test_step_times_and_tokens(warehouse: Warehouse) -> None:
    """Steps of 150 us; of three decode steps the last has no successor."""
    times = RUN_CHARTS["step-times"](warehouse, TINY)
    assert [(r["what"], r["share"], r["time_ms"]) for r in times.rows] == [
        ("prefill step", 1, 0.15),
        ("decode step", 1, 0.15),
        ("output token, host clock", 1, 0.15),
        ("output token, device clock", 1, 0.15),
    ]
    assert times.description.startswith("prefill step: median 150 µs, 90th percentile 150 µs; decode step: ")
    contexts = RUN_CHARTS["decode-by-context"](warehouse, TINY).rows
    assert [(r["context_tokens"], r["step_time_ms"]) for r in contexts] == [(17, 0.15), (18, 0.15)]


def test_fit_and_peak_stand_beside_the_measured_bandwidth(fitted: Warehouse) -> None:
    """1 MB in 12 us is 83.3 GB/s; the fit goes through all sizes, and the links of a TPU v6e give 400 GB/s."""
    rows = RUN_CHARTS["bandwidth"](fitted, "fitted").rows
    measured = {r["bus_bytes"]: r["gbps"] for r in rows if r["what"] == "measured"}
    assert measured == pytest.approx({1e6: 1000 / 12, 2e6: 2000 / 22, 4e6: 4000 / 42})
    fit = {r["bus_bytes"]: r["gbps"] for r in rows if r["what"] == "fit"}
    assert fit[min(fit)] == pytest.approx(1000 / 12)
    assert fit[max(fit)] == pytest.approx(4000 / 42)
    assert {r["gbps"] for r in rows if r["what"] == "peak of the links"} == {400}


def test_top_ops_have_names_without_numbers(warehouse: Warehouse) -> None:
    """Of 79 us a step and device, mean of both, 31 are all-reduces and 24 each dots and fusions."""
    rows = RUN_CHARTS["top-ops"](warehouse, TINY).rows
    shares = {(r["phase"], r["op"]): r["share"] for r in rows}
    for phase in ("prefill", "decode"):
        assert shares[phase, "all-reduce"] == pytest.approx(31 / 79)
        assert shares[phase, "dot"] == shares[phase, "fusion"] == pytest.approx(24 / 79)
    assert {r["layers"] for r in rows} == {"0 to 1"}


def test_a_mean_layer_is_bars_in_the_order_of_execution(warehouse: Warehouse) -> None:
    """Both layers of a step are a dot, an all-reduce, a fusion and an all-reduce, of 12 and 8 us.

    Device 1 comes 2 us late to the first all-reduce and takes 6 us, so layer 0 has 1 us less in the mean of both.
    """
    figure = RUN_CHARTS["layers"](warehouse, TINY)
    bars = [r for r in figure.rows if r["phase"] == "decode" and r["what"] == "mean layer"]
    assert [(r["class"], r["part"], round(r["self_us"], 3)) for r in bars] == [
        ("matrix", "attn", 12.0),
        ("communication", "attn", 7.5),
        ("other compute", "mlp", 12.0),
        ("communication", "mlp", 8.0),
    ]
    assert all(a["until_us"] == pytest.approx(b["begin_us"]) for a, b in pairwise(bars))
    layers = {
        r["layer"]: round(r["self_us"], 3) for r in figure.rows if r["phase"] == "decode" and r["what"] == "layer"
    }
    assert layers == {0: 39.0, 1: 40.0}
    assert figure.title.startswith("prefill: 2 ")
    assert "layer 1 +1 µs" in figure.title


def test_mean_layers_of_runs_stand_below_each_other(recorded: Warehouse) -> None:
    figure = STUDY_CHARTS["mean-layers"](recorded, ["llama-tp4-b4-i16-o17", "llama-tp4-sp-b4-i16-o9"])
    rows = {(r["run"], r["class"]) for r in figure.rows if r["what"] == "mean layer"}
    assert {run for run, _ in rows} == {"llama-tp4-b4-i16-o17", "llama-tp4-sp-b4-i16-o9"}
    assert {"llama-tp4-sp-b4-i16-o9"} == {
        r["run"] for r in figure.rows if r["op"] and r["op"].startswith("reduce-scatter")
    }


def test_layers_that_run_other_ops_are_a_heat_map(recorded: Warehouse) -> None:
    """The first layer of DeepSeek's model is dense, the second has experts."""
    figure = RUN_CHARTS["layers"](recorded, "deepseek_v2-ep4-b4-i16-o9")
    assert {"layer", "part", "compute_us"} <= figure.rows[0].keys()
    assert figure.title == "Layers and parts of the model"


def test_roofline_has_the_peaks_of_the_device(tmp_path: Path) -> None:
    """10 us for 4 MFLOP and 2 MB: 2 FLOP/byte at 0.4 TFLOP/s, under the roof of a TPU v6e."""
    space = Space()
    tpu = space.tpu(0)
    tpu.modules.event("f.1(1)", 0, 20_000_000)
    op = tpu.instruction(
        "%dot.1 = f32[8,8]{1,0} dot(f32[8,8]{1,0} %a, f32[8,8]{1,0} %b)",
        hlo_category="convolution fusion",
        flops=4_000_000,
        bytes_accessed=2_000_000,
    )
    tpu.ops.event(op, 0, 10_000_000)
    with open_warehouse(tmp_path / "warehouse", create=True) as opened:
        [run] = opened.ingest(space.write(tmp_path / "x.xplane.pb"))
        rows = RUN_CHARTS["roofline"](opened, run.run_id).rows
    [dot] = [r for r in rows if r["what"] == "op"]
    assert (dot["intensity"], dot["flops_per_s"], dot["bound"]) == (2, 4e11, "memory")
    roof = sorted((r["intensity"], r["flops_per_s"]) for r in rows if r["what"] == "roof")
    bend = 918e12 / 1.638e12
    assert [x for x, _ in roof] == pytest.approx([1, bend, 2 * bend], rel=1e-4)
    assert [y for _, y in roof] == pytest.approx([1.638e12, 918e12, 918e12], rel=1e-4)


@pytest.mark.parametrize(
    ("ending", "begins"),
    [(".png", b"\x89PNG"), (".svg", b"<svg"), (".pdf", b"%PDF"), (".html", b"<!DOCTYPE html>"), (".json", b"{")],
)
def test_charts_are_saved(warehouse: Warehouse, tmp_path: Path, ending: str, begins: bytes) -> None:
    figure = RUN_CHARTS["steps"](warehouse, TINY)
    path = figure.save(tmp_path / f"steps{ending}")
    assert path.read_bytes().lstrip().startswith(begins)
    assert ending in ENDINGS


def test_an_unknown_ending_is_an_error(warehouse: Warehouse, tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match=r"\.html, \.png, \.svg, \.pdf or \.json"):
        RUN_CHARTS["steps"](warehouse, TINY).save(tmp_path / "steps.gif")


@pytest.mark.parametrize(
    ("name", "width_mm"),
    [
        ("steps", 85),
        ("top-ops", 85),
        ("traffic-matrix", 85),
        ("traffic-matrix", 175),
        ("pareto", 175),
        ("pareto", 85),
        ("study-parts", 85),
    ],
)
def test_a_picture_for_a_paper_is_as_wide_as_a_column(
    warehouse: Warehouse, tmp_path: Path, name: str, width_mm: int
) -> None:
    runs = [r.run_id for r in warehouse.lake.runs()]
    figure = CHARTS[name](warehouse, TINY if name in RUN_CHARTS else runs)
    png = figure.save(tmp_path / "c.PNG", width_mm=width_mm).read_bytes()
    assert int.from_bytes(png[16:20]) == round(width_mm / 25.4 * 300)
    density = png[png.index(b"pHYs") + 4 :]
    assert int.from_bytes(density[:4]) == round(300 / 0.0254)  # per metre
    svg = figure.save(tmp_path / "c.svg", width_mm=width_mm).read_text()
    assert f'width="{width_mm}mm"' in svg
    # a point of the drawing is one on paper, so that letters have 7 points
    [drawn_width] = re.findall(r'viewBox="[-0-9.]+ 0 ([0-9.]+) ', svg)
    assert float(drawn_width) == pytest.approx(width_mm / 25.4 * 72, rel=0.02)
    assert {float(size) for size in re.findall(r'font-size="([0-9.]+)px"', svg)} == {7}
    assert figure.title not in svg
    pdf = figure.save(tmp_path / "c.pdf", width_mm=width_mm).read_bytes()
    [page] = re.findall(rb"MediaBox \[0 0 ([0-9.]+) ", pdf)
    assert float(page) == pytest.approx(width_mm / 25.4 * 72, abs=0.01)


def test_a_picture_that_cannot_be_written_leaves_the_old_one(warehouse: Warehouse, tmp_path: Path) -> None:
    figure = RUN_CHARTS["steps"](warehouse, TINY)
    with pytest.raises(WarehouseError, match="cannot be written"):
        figure.save(tmp_path / "nowhere" / "steps.svg")
    (tmp_path / "steps.svg").mkdir()
    with pytest.raises(WarehouseError, match="cannot be written"):
        figure.save(tmp_path / "steps.svg")
    assert [p.name for p in tmp_path.iterdir()] == ["steps.svg"]


def test_a_figure_is_an_altair_chart_for_whom_wants_one(warehouse: Warehouse) -> None:
    figure = RUN_CHARTS["steps"](warehouse, TINY)
    assert isinstance(figure.altair(), Chart)
    assert "text/html" in figure._repr_mimebundle_()


def test_memory_rises_and_falls_as_the_allocations_say(tmp_path: Path) -> None:
    """100 and 300 bytes of device 0, of which 50 reserved, then 100 again; 70 bytes of an allocator with a name."""
    space = Space()
    thread = space.host().line("python")
    states = [
        ("MemoryAllocation", 0, {"index_on_host": 0, "bytes_allocated": 100, "bytes_available": 900}),
        ("MemoryAllocation", 400, {"index_on_host": 0, "bytes_allocated": 250, "bytes_reserved": 50}),
        ("MemoryAllocation", 600, {"allocator_name": "pool", "bytes_allocated": 70}),
        ("MemoryDeallocation", 799, {"index_on_host": 0, "bytes_allocated": 100}),
    ]
    for name, at_us, stats in states:
        thread.event(name, at_us * 1_000_000, 0, **stats)
    with open_warehouse(tmp_path / "warehouse", create=True) as opened:
        [run] = opened.ingest(space.write(tmp_path / "x.xplane.pb"))
        figure = RUN_CHARTS["memory"](opened, run.run_id)
    rows = [(r["allocator"], r["at_ms"], r["used_bytes"], r["capacity_bytes"]) for r in figure.rows]
    assert rows == [
        ("device 0", 0, 100, 1000),
        ("device 0", pytest.approx(0.4, abs=0.002), 300, None),
        ("device 0", pytest.approx(0.799, abs=0.002), 100, None),
        ("pool", pytest.approx(0.6, abs=0.002), 70, None),
    ]
    assert figure.description == "The most in use. Largest first: device 0 (300 B), pool (70 B)."
