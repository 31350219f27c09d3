"""Charts draw what the views hold, and the page stands alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_capture import write_capture_directory
from xplane_builder import Space

from tracewarehouse.dashboards.report import CHARTS, save_chart, write_report
from tracewarehouse.dashboards.timeline import device_timeline
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.warehouse import Warehouse, open_warehouse


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """A warehouse with a run of two devices, and a run of the host alone whose name is hostile."""
    folder = tmp_path_factory.mktemp("report")
    with open_warehouse(folder / "warehouse", create=True) as opened:
        opened.ingest(write_capture_directory(folder / "tiny"))
        space = Space()
        space.host().line("python").event("f", 1, 2)
        opened.ingest(space.write(folder / "x.xplane.pb"), name="<script>alert('x')</script>")
        yield opened


@pytest.fixture(scope="module")
def run_id(warehouse: Warehouse) -> str:
    return warehouse.run("tiny-tp2").run_id


def data_of(chart: Any) -> list[dict[str, Any]]:
    """The rows that a chart draws."""
    [rows] = chart.to_dict()["datasets"].values()
    return list(rows)


def svg_texts(chart: Any) -> set[str]:
    """The texts that a chart shows when it is drawn."""
    import vl_convert

    svg = vl_convert.vegalite_to_svg(chart.to_dict())
    return set(re.findall(r">([^<>]+)</(?:text|tspan)>", svg))


def test_timeline_has_a_bar_per_leaf_op(warehouse: Warehouse, run_id: str) -> None:
    chart = device_timeline(warehouse, run_id)
    rows = data_of(chart)
    assert len(rows) == 2 * 4 * 8
    assert {r["class"] for r in rows} == {"all-reduce", "matrix", "fusion"}
    first = min(rows, key=lambda r: r["start_ms"])
    assert (first["device"], first["start_ms"], first["end_ms"], first["layer"]) == ("device 0", 0, 0.012, 0)
    assert {
        "device 0",
        "device 1",
        "Device timeline",
        "Prefill 0 to decode 3: all 64 ops. In view at first is prefill 0.",
    } <= svg_texts(chart)


def test_timeline_is_cut_at_a_step_and_says_so(warehouse: Warehouse, run_id: str) -> None:
    chart = device_timeline(warehouse, run_id, max_bars=40)
    assert len(data_of(chart)) == 32
    assert "Prefill 0 to decode 1: 32 of 64 ops. In view at first is prefill 0." in svg_texts(chart)


def test_step_parts_add_up_to_the_step(warehouse: Warehouse, run_id: str) -> None:
    """A step lasts 150 us to the next one's start: 80 us of ops, the rest idle; the last ends with its module."""
    rows = data_of(CHARTS["steps"](warehouse, run_id))
    of_step = {s: {r["part"]: round(1000 * r["ms"], 3) for r in rows if r["step"] == s} for s in range(4)}
    # device 0: dots and fusions 48 us, all-reduces 32 us; device 1 starts 2 us late, so 30 us in all-reduces
    busy = {"compute and copies": 48.0, "exposed communication": 31.0}
    assert of_step[0] == of_step[1] == of_step[2] == busy | {"idle": 71.0}
    assert of_step[3] == busy | {"idle": 21.0}


def test_exposed_communication_per_device(warehouse: Warehouse, run_id: str) -> None:
    rows = data_of(CHARTS["exposed-communication"](warehouse, run_id))
    found = {(r["phase"], r["device"]): round(1000 * r["exposed_ms"], 3) for r in rows}
    assert found == {(p, f"device {d}"): 32.0 - 2 * d for p in ("prefill", "decode") for d in (0, 1)}


def test_traffic_by_axis(warehouse: Warehouse, run_id: str) -> None:
    rows = data_of(CHARTS["traffic"](warehouse, run_id))
    assert {(r["phase"], r["axis"], r["kb"]) for r in rows} == {
        ("prefill", "tp", 4 * 16 * 64 * 4 / 1e3),
        ("decode", "tp", 4 * 64 * 4 / 1e3),
    }


def test_traffic_matrix_is_symmetric(warehouse: Warehouse, run_id: str) -> None:
    """A ring of two sends each message whole: 4 all-reduces a step, one prefill of 16 rows and three decodes of one."""
    rows = data_of(CHARTS["traffic-matrix"](warehouse, run_id))
    sent = 4 * 64 * 4 * (16 + 3) / 1e6
    assert [(r["source"], r["target"], r["mb"]) for r in rows] == [(0, 1, sent), (1, 0, sent)]


def test_a_run_without_devices_has_no_charts(warehouse: Warehouse) -> None:
    [run] = [r for r in warehouse.lake.runs() if r.name.startswith("<script>")]
    assert [name for name, draw in CHARTS.items() if draw(warehouse, run.run_id) is not None] == []


def test_page_stands_alone_and_escapes_names(warehouse: Warehouse, tmp_path: Path) -> None:
    runs = [r.run_id for r in warehouse.lake.runs()]
    page = write_report(warehouse, runs, tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in page
    markup = re.sub(r"<script\b.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<(link|img|iframe)\b|\ssrc\s*=|url\(", markup)
    assert not re.search(r"<script[^>]*\ssrc\s*=", page)
    specs = re.findall(r'<script type="application/json" data-chart="([^"]+)">(.*?)</script>', page, re.DOTALL)
    assert [name.split("-", 1)[1] for name, _ in specs] == list(CHARTS)
    for _, spec in specs:
        assert json.loads(spec)["$schema"].startswith("https://vega.github.io/schema/vega-lite/")
    assert "TTFT, host" in page
    assert "TPOT, device" in page
    assert "only the host was profiled" in page


def test_page_that_cannot_be_written_is_an_error(warehouse: Warehouse, run_id: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WarehouseError, match="the report cannot be written"):
        write_report(warehouse, [run_id], tmp_path / "file" / "report.html")


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<svg"), (".html", b"<!DOCTYPE html>")])
def test_charts_are_saved(warehouse: Warehouse, run_id: str, tmp_path: Path, suffix: str, magic: bytes) -> None:
    draw: Callable[..., Any] = CHARTS["steps"]
    path = save_chart(draw(warehouse, run_id), tmp_path / f"steps{suffix}")
    assert path.read_bytes().lstrip().startswith(magic)


def test_an_unknown_ending_is_an_error(warehouse: Warehouse, run_id: str, tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match=r"\.html, \.png or \.svg"):
        save_chart(CHARTS["steps"](warehouse, run_id), tmp_path / "steps.gif")
