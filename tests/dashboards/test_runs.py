"""Charts over runs: each place is worked out by hand from stored values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import altair as alt
import pytest
import vl_convert
from given_tables import fill, warehouse_of
from tiny_capture import write_capture_directory
from xplane_builder import Space, Unsigned

from tracewarehouse.dashboards import communication, ops, runs, steps, theme
from tracewarehouse.dashboards.figure import Figure, NothingToDraw
from tracewarehouse.dashboards.registry import CHARTS, STUDY_CHARTS
from tracewarehouse.warehouse import Warehouse, open_warehouse

pytestmark = pytest.mark.usefixtures("asked_once")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """A step of 150, 180 and 240 us with batches of 1, 1 and 4; and one of 300 us on other chips."""
    folder = tmp_path_factory.mktemp("study")
    with open_warehouse(folder / "warehouse", create=True) as opened:
        for name, period, batch in (("fast", 150, 1), ("slow", 180, 1), ("wide", 240, 4)):
            opened.ingest(write_capture_directory(folder / name, name, period=period, batch=batch))
        moved = write_capture_directory(folder / "moved", "moved", period=300)
        [file] = moved.rglob("*.xplane.pb")
        file.write_bytes(file.read_bytes().replace(b"TPU v6 Lite", b"TPU v5 Lite"))
        opened.ingest(moved)
        yield opened


ALL = ["fast", "slow", "wide"]


def test_pareto_leaves_out_what_another_run_beats_in_both(study: Warehouse) -> None:
    """A user gets a token per step, and a chip half the batch: slow is beaten by fast, wide gives most per chip."""
    figure = runs.pareto(study, ALL)
    on_front = {r["name"]: r["is_on_front"] for r in figure.rows}
    assert on_front == {"fast": True, "slow": False, "wide": True}
    per_user = {r["name"]: r["tokens_per_s_per_user"] for r in figure.rows}
    assert per_user == pytest.approx({"fast": 1e6 / 150, "slow": 1e6 / 180, "wide": 1e6 / 240})
    assert figure.description == "2 of 3 runs are on the front: tp=2, batch 4, fast."


def test_points_of_equal_runs_are_both_on_the_front() -> None:
    """Two runs that are equal in both rates; a third that is equal in one and worse in the other."""
    given = {
        "runs": [{"run_id": r, "name": r, "model": "m"} for r in "abc"],
        "devices": [{"run_id": r, "device_id": d, "chip_id": d} for r in "abc" for d in (0, 1)],
        "metric_values": [
            {"run_id": r, "metric": m, "version": 1, "dimensions": json.dumps(d), "value": v, "unit": ""}
            for r, rate in (("a", 100.0), ("b", 100.0), ("c", 60.0))
            for m, d, v in (("tpot", {"clock": "device"}, 20.0), ("throughput", {}, rate))
        ],
    }
    with warehouse_of({}) as database:
        fill(database, given)
        rows = database.execute(
            "SELECT run_id, chips, tokens_per_s_per_user, tokens_per_s_per_chip, is_on_front "
            "FROM macros.run_points(['a', 'b', 'c']) ORDER BY run_id"
        ).fetchall()
    assert rows == [("a", 2, 50, 50, True), ("b", 2, 50, 50, True), ("c", 2, 50, 30, False)]


def test_a_sweep_has_the_mean_of_equal_runs_and_never_of_two_kinds_of_chips(study: Warehouse) -> None:
    kinds, one = (
        {(r["configuration"], r["batch_size"]): (round(r["value"], 3), r["runs"]) for r in figure.rows}
        for figure in (runs.sweep_heat_map(study, names) for names in ([*ALL, "moved"], ALL))
    )
    assert sorted(one.values()) == [(0.165, 2), (0.24, 1)]
    assert sorted(kinds.values()) == [(0.165, 2), (0.24, 1), (0.3, 1)]
    panels = {label for label, _ in one}
    assert {label for label, _ in kinds} == {f"{each}, TPU {kind} Lite" for each in panels for kind in ("v5", "v6")}


def test_scaling_needs_two_numbers_of_chips(study: Warehouse) -> None:
    with pytest.raises(NothingToDraw, match="two numbers of chips"):
        runs.scaling(study, ALL)


def test_models_of_other_sizes_are_no_points_of_one_line(tmp_path: Path) -> None:
    """Half as many layers on twice as many chips is no scaling, and no run of another size is better or worse."""
    with open_warehouse(tmp_path / "warehouse", create=True) as opened:
        for chips, layers in ((1, 2), (4, 2), (2, 1), (8, 1)):
            opened.ingest(_independent(tmp_path / f"chips{chips}", chips, layers))
        every = [f"chips{n}" for n in (1, 2, 4, 8)]
        rows = runs.scaling(opened, every).rows
        lines = {(r["workload"][-3:], r["chips"], round(r["linear"] * 390e-6)) for r in rows}
        assert lines == {("(1)", 2, 4), ("(1)", 8, 16), ("(2)", 1, 4), ("(2)", 4, 16)}
        assert not runs.scaling(opened, ["chips1", "chips4"]).rows[0]["workload"].endswith(")")
        with pytest.raises(NothingToDraw, match="two numbers of chips"):
            runs.scaling(opened, ["chips1", "chips2"])
        front = {r["name"] for r in runs.pareto(opened, every).rows if r["is_on_front"]}
        assert front == {"chips1", "chips2"}


def _independent(folder: Path, chips: int, layers: int = 2) -> Path:
    """A prefill and three decode steps of one dot of 90 us on chips that do not communicate."""
    us = 1_000_000
    space = Space(hostnames=["vm"])
    for device in range(chips):
        tpu = space.tpu(device)
        for step in range(4):
            program, name = (1, "prefill") if step == 0 else (2, "decode")
            tpu.modules.event(f"{name}.{program}({program})", 100 * us * step, 90 * us, run_id=Unsigned(step + 1))
            dot = tpu.instruction(
                "%dot.1 = f32[8,8]{1,0} dot(f32[8,8]{1,0} %a, f32[8,8]{1,0} %b)",
                hlo_category="convolution fusion",
                program_id=Unsigned(program),
            )
            tpu.ops.event(dot, 100 * us * step, 90 * us)
    space.write(folder / "plugins" / "profile" / "2026_01_01_00_00_00" / "vm.xplane.pb")
    facts = {"batch_size": 1, "input_length": 16, "output_length": 4, "mesh": {"axes": {"dp": chips}}, "hosts": ["vm"]}
    model = {"name": "tiny", "family": "llama", "num_layers": layers, "hidden_size": 64}
    (folder / "manifest.json").write_text(json.dumps({"name": folder.name, "model": model, "dtype": "float32"} | facts))
    return folder


def test_labels_of_points_leave_each_other_room() -> None:
    """A label that would lie on one of the front is left out; one far away, or well below, is not."""
    near = {"point": "dp=2,tp=4", "user_low": None, "user_high": None, "chip_high": None}
    rows = [
        near | {"name": n, "tokens_per_s_per_user": x, "tokens_per_s_per_chip": y, "is_on_front": n == "front"}
        for n, x, y in (("front", 50.0, 100.0), ("close", 45.0, 101.0), ("below", 50.0, 80.0), ("far", 100.0, 100.0))
    ]
    assert set(runs._apart(rows)) == {"front", "below", "far"}


def test_ways_to_split_a_model_stand_beside_each_other(study: Warehouse) -> None:
    """TP sends 2 x 60 bytes for each of 4 sequences, 30 a token; SP over tp is a way of its own; DP sends nothing."""
    mesh = {"model": "m", "batch_size": 4, "input_length": 8, "output_length": 4}
    given = {
        "runs": [
            mesh | {"run_id": "a", "name": "a", "mesh": "tp=2", "tp": 2},
            mesh | {"run_id": "b", "name": "b", "mesh": "tp=2", "tp": 2, "sequence_parallelism": "megatron"},
            mesh | {"run_id": "c", "name": "c", "mesh": "dp=2", "dp": 2},
            mesh | {"run_id": "d", "name": "d"},
        ],
        "phases": [
            {"run_id": "a", "kind": "step", "name": "decode", "index": 0, "device_id": d, "start_us": 0, "end_us": 9}
            for d in (0, 1)
        ],
        "collectives": [
            {"run_id": "a", "device_id": d, "kind": "all-reduce", "phase": "decode", "step": 0, "wire_bytes": 60}
            for d in (0, 1)
        ],
        "metric_values": [
            {"run_id": r, "metric": m, "version": 1, "dimensions": json.dumps(d), "value": v, "unit": ""}
            for r, m, d, v in (
                ("a", "tpot", {"clock": "device"}, 20.0),
                ("b", "tpot", {"clock": "device"}, 10.0),
                ("c", "tpot", {"clock": "device"}, 40.0),
                ("d", "tpot", {"clock": "device"}, 5.0),
                ("a", "communication_fraction", {"phase": "decode"}, 0.25),
            )
        ],
    }
    with warehouse_of({}) as database:
        fill(database, given)
        rows = database.execute(
            "SELECT run_id, parallelism, measure, value FROM macros.study_parallelisms(['a', 'b', 'c', 'd']) "
            "ORDER BY ALL"
        ).fetchall()
    assert rows == [
        ("a", "TP", "bytes sent for a token, all devices", 30),
        ("a", "TP", "exposed communication, % of a decode step", 25),
        ("a", "TP", "tokens/s per user", 50),
        ("b", "TP + SP", "tokens/s per user", 100),
        ("c", "DP", "tokens/s per user", 25),
    ]
    with pytest.raises(NothingToDraw, match="split their model alike, TP"):
        runs.parallelisms(study, ALL)


def test_a_model_keeps_its_colour_and_a_mesh_its_shape() -> None:
    """The second of three models has the second colour, also where it is alone."""
    alone = theme.series_color("model", ["b"], among=["a", "b", "c"]).to_dict()
    assert alone["scale"] == {"domain": ["b"], "range": [theme.SERIES[1]]}
    shape = theme.mesh_shape(["tp=8"], ["dp=8", "tp=8"]).to_dict()
    assert shape["scale"] == {"domain": ["tp=8"], "range": [theme.SHAPES[1]]}


def test_a_legend_has_every_mesh() -> None:
    meshes = [f"tp={n}" for n in range(1, 41)]
    chart = alt.Chart(alt.Data(values=[{"mesh": mesh} for mesh in meshes])).mark_point()
    drawn = chart.encode(shape=theme.mesh_shape(meshes, meshes)).to_dict() | {"config": theme.config()}
    assert set(re.findall(r">(tp=\d+)<", vl_convert.vegalite_to_svg(drawn))) == set(meshes)


def test_predicted_runs_are_hollow_with_bars(tmp_path: Path) -> None:
    """A predicted run of one device beside the recorded ones: a bar in each direction, and no fill."""
    with open_warehouse(tmp_path / "warehouse", create=True) as opened:
        opened.ingest(_independent(tmp_path / "chips1", 1))
        recorded = runs.pareto(opened, ["chips1"])
    assert [layer["mark"]["type"] for layer in recorded.specification()["layer"]] == ["line", "point", "text"]
    rows = [r | {"origin": "predicted", "user_low": 1.0, "user_high": 2.0} for r in recorded.rows]
    drawn = replace(recorded.drawn, rows=rows)
    predicted = runs.pareto_chart(drawn, ["tiny"], ["dp=1"])
    specification = Figure("p", "p", "", "", drawn, (), predicted, is_folded=False).specification()
    assert [layer["mark"]["type"] for layer in specification["layer"]] == ["rule", "rule", "line", "point", "text"]
    points = [
        re.findall(r'aria-roledescription="point"[^>]*>', vl_convert.vegalite_to_svg(s))
        for s in (recorded.specification(), specification)
    ]
    assert [[f'fill="{theme.SERIES[0]}"' in point for point in found] for found in points] == [[True], [False]]


@pytest.mark.parametrize(
    "name", [n for n in STUDY_CHARTS if n not in ("scaling", "parallelisms", "overlap-ratio-against-step-time")]
)
def test_every_chart_over_runs_draws_the_rows_of_its_query(study: Warehouse, name: str) -> None:
    figure = STUDY_CHARTS[name](study, ALL)
    [rows] = figure.altair().to_dict()["datasets"].values()
    assert rows == json.loads(json.dumps(study.query(figure.sql).dicts(), default=str))
    assert figure.name == name
    svg = vl_convert.vegalite_to_svg(figure.specification())
    assert re.search(r'class="mark-(rect|symbol|line)[^"]*"[^>]*><path', svg)


def test_a_chart_over_runs_of_no_values_says_so(warehouse: Warehouse) -> None:
    [empty] = [r.run_id for r in warehouse.lake.runs() if r.name != "tiny-tp2"]
    for draw in STUDY_CHARTS.values():
        with pytest.raises(NothingToDraw):
            draw(warehouse, [empty])


def test_the_registry_has_every_chart_once() -> None:
    """A function that draws is in the registry, public, and in the documentation by its name and its first sentence."""
    import tracewarehouse.dashboards as public

    page = (Path(__file__).parents[2] / "docs" / "charts.md").read_text(encoding="utf-8")
    drawing = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in (communication, ops, runs, steps)
        for name, member in vars(module).items()
        if getattr(member, "__annotations__", {}).get("return") == "Figure" and not name.startswith("_")
    }
    assert sorted(c.function for c in CHARTS.values()) == sorted(drawing)
    for name in public.__all__:
        assert getattr(public, name).__doc__, name
    for chart in CHARTS.values():
        assert getattr(public, chart.draw.__name__) is chart.draw
        assert f"| `{chart.draw.__name__}` | {chart.name} |" in page
