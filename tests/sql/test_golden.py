"""Every value of the captures in data/ is what it was when reviewed, and what plain Python makes of the same rows.

    pytest tests/sql/test_golden.py --update-golden    write tests/sql/golden/ anew; review the difference

The plain computation covers the newest version of the metrics in plain_metrics.METRICS, value by value; the others have
their cases worked out by hand, and these golden values so that nothing changes unnoticed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plain_metrics import METRICS, Run, hockney

from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.warehouse import Warehouse

DATA = Path(__file__).parents[2] / "data" / "captures"
GOLDEN = Path(__file__).parent / "golden"
CAPTURES = sorted(p.parent.name for p in DATA.glob("*/manifest.json"))
UNLIKE = ["deepseek_v2-ep4-b4-i16-o9", "llama-pp2tp2-b4-i16-o5", "llama-tp4-sp-b4-i16-o9", "qwen3-dp2tp2-b4-i16-o9"]
"""Captures of which each has collectives that the others lack; random runs have everything else."""
_READ = ("runs", "devices", "instructions", "ops", "collectives", "traffic", "phases")


Shown = dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def shown(all_captures: Warehouse) -> Shown:
    """What the views give, by run, and by metric, version and dimensions: each is asked once, for all runs."""
    found: Shown = {r.run_id: {} for r in all_captures.lake.runs()}
    connection = all_captures.connection()
    for metric in all_captures.definitions.metrics:
        header = metric.header
        names = ", ".join([*header.grain, header.value])
        view = f"SELECT {names} FROM metrics.{metric.view.name}"
        for run_id, *row in [] if metric.view.compares_runs else connection.execute(view).fetchall():
            dimensions = json.dumps(dict(zip(header.grain[1:], row[:-1], strict=True)))
            if row[-1] is not None:
                found[run_id][f"{metric.name} {metric.version} {dimensions}"] = row[-1]
    return found


@pytest.mark.parametrize("capture", CAPTURES)
def test_values_are_the_golden_ones(
    all_captures: Warehouse, shown: Shown, capture: str, request: pytest.FixtureRequest
) -> None:
    found = shown[all_captures.run(capture).run_id]
    path = GOLDEN / f"{capture}.tsv"
    if request.config.getoption("--update-golden"):
        GOLDEN.mkdir(exist_ok=True)
        lines = [f"{key}\t{value:.12g}\n" for key, value in sorted(found.items())]
        path.write_text("".join(lines), encoding="utf-8")
    rows = (line.rsplit("\t", 1) for line in path.read_text(encoding="utf-8").splitlines())
    golden = {key: float(text) for key, text in rows}
    assert found.keys() == golden.keys(), "metrics or their rows have changed; see --update-golden"
    changed = {
        key: (golden[key], value) for key, value in found.items() if value != pytest.approx(golden[key], rel=1e-11)
    }
    assert not changed


@pytest.mark.parametrize("capture", CAPTURES)
def test_what_evaluates_a_run_alone_gives_what_its_view_gives_of_all_runs(
    all_captures: Warehouse, shown: Shown, capture: str
) -> None:
    run_id = all_captures.run(capture).run_id
    columns = "metric, version, dimensions, value"
    stored = all_captures.query(f"SELECT {columns} FROM main.metric_values WHERE run_id = $run", run=run_id).rows()
    is_stored = {f"{m.name} {m.version}": m.header.is_stored for m in all_captures.definitions.metrics}
    expected = {key: value for key, value in shown[run_id].items() if is_stored[key.partition(" {")[0]]}
    assert {f"{metric} {version} {dimensions}": value for metric, version, dimensions, value in stored} == expected


@pytest.mark.parametrize("capture", UNLIKE)
def test_plain_python_computes_the_same(all_captures: Warehouse, shown: Shown, capture: str) -> None:
    run_id = all_captures.run(capture).run_id
    tables = {}
    for name in _READ:
        columns = [c.name for c in TABLES[name].columns if c.name != "run_id"]
        names = ", ".join(f'"{c}"' for c in columns)
        rows = all_captures.query(f"SELECT {names} FROM main.{name} WHERE run_id = $run_id", run_id=run_id).rows()
        tables[name] = [dict(zip(columns, row, strict=True)) for row in rows]
    run = Run(tables)
    stored = shown[run_id]
    for name, compute in (METRICS | {f.__name__: f for f in (hockney,)}).items():
        version = all_captures.definitions.metric(name).version
        prefix = f"{name} {version} "
        expected = {
            tuple(json.loads(key.removeprefix(prefix)).values()): value
            for key, value in stored.items()
            if key.startswith(prefix)
        }
        found = {key: value for key, value in compute(run).items() if value is not None}
        assert found.keys() == expected.keys(), name
        for key, value in expected.items():
            assert found[key] == pytest.approx(value, rel=1e-9, abs=1e-12), (name, key)


def test_a_golden_file_belongs_to_every_capture() -> None:
    assert sorted(p.stem for p in GOLDEN.glob("*.tsv")) == CAPTURES
