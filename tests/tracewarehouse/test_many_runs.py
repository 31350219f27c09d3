"""Many runs: a question reads what it is about, and nothing of other runs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import many_runs

from tracewarehouse.ingest.lake import lake as lake_module
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.warehouse import Warehouse, open_warehouse

RUNS = 12


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_module, "MANY_RUNS", RUNS)


@pytest.fixture(scope="module")
def made(all_captures: Warehouse, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse of runs like those of data/captures."""
    folder = tmp_path_factory.mktemp("many") / "warehouse"
    real, _ = many_runs.patterns(generated=False, stretched=(3,), ingested=Path(all_captures.path))
    many_runs.write(folder, real, real, RUNS)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "warehouse", copy_function=shutil.copy))


def test_made_runs_are_whole_and_agree_with_themselves(made: Path) -> None:
    lake = Lake(made)
    assert len(lake.runs()) == RUNS
    assert all(map(lake.is_whole, lake.runs()[:5]))
    with open_warehouse(made) as warehouse:
        assert warehouse.query("SELECT count(*), count(DISTINCT name) FROM runs").rows() == [(RUNS, RUNS)]
        told = {r.run_id: r.rows["ops"] for r in lake.runs()}
        assert dict(warehouse.query("SELECT run_id, count(*) FROM ops GROUP BY ALL").rows()) == told
        assert warehouse.fsck() == []


def test_a_question_about_a_run_reads_nothing_of_others(folder: Path) -> None:
    assert Lake(folder).is_large()
    kept, *others = Lake(folder).runs()
    for run in others:
        shutil.rmtree(folder / "lake" / run.run_id)
    with open_warehouse(folder) as warehouse:
        of_run = f"WHERE run_id = '{kept.run_id}'"
        assert warehouse.query(f"SELECT count(*) FROM ops {of_run}").scalar() == kept.rows["ops"]
        values = warehouse.values(kept.name).rows()
        assert len(values) == kept.rows["metric_values"]
        assert {run_id for run_id, *_ in values} == {kept.run_id}
        assert warehouse.metric("tpot", kept.run_id).rows()
        assert warehouse.summary(kept.run_id)
        assert warehouse.audit(kept.run_id) == []
        for path in (folder / "manifests").glob("*.json"):
            if path.stem != kept.run_id:
                path.unlink()
        assert warehouse.query(f"SELECT count(*) FROM ops {of_run}").scalar() == kept.rows["ops"]


def test_questions_about_runs_follow_them(folder: Path) -> None:
    first, second, *_ = Lake(folder).runs()
    with open_warehouse(folder) as warehouse:
        ask = f"SELECT count(*) FROM ops WHERE run_id IN ('{first.run_id}', '{second.run_id}')"
        both = first.rows["ops"] + second.rows["ops"]
        assert warehouse.query(ask).scalar() == both
        warehouse.remove(second.run_id)
        assert warehouse.query(ask).scalar() == first.rows["ops"]
        assert warehouse.query("SELECT count(*) FROM runs").scalar() == RUNS - 1
        assert warehouse.query(ask).scalar() == first.rows["ops"]
        assert warehouse.query("SELECT count(*) FROM ops WHERE run_id = 'nobody'").scalar() == 0
