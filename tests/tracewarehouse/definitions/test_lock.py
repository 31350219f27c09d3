"""A released metric version never changes; the lock says so and says what to do instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from counting_definitions import METRIC, MODEL

from tracewarehouse.definitions.lock import changes, read_lock, write_lock
from tracewarehouse.definitions.reading import load_definitions
from tracewarehouse.ingest.errors import MetricError
from tracewarehouse.ingest.hlo.opcodes import OP_CLASS_RULES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"models/base.sql": MODEL, "metrics/m_v1.sql": METRIC}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    write_lock(load_definitions(tmp_path), tmp_path / "lock")
    return tmp_path


def _changes(folder: Path) -> list[str]:
    return changes(load_definitions(folder), read_lock(folder / "lock"))


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_no_released_metric_of_the_package_has_changed() -> None:
    found = changes(load_definitions(), read_lock())
    assert not found, "\n".join(found)


def test_comments_spacing_case_and_sentences_may_change(folder: Path) -> None:
    _edit(folder / "metrics/m_v1.sql", "SELECT b.run_id AS run_id,", "-- per run\nselect  b.run_id AS run_id,\n ")
    _edit(folder / "metrics/m_v1.sql", "Counts runs.", "Number of runs.")
    assert _changes(folder) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("COUNT(*)", "COUNT(*) + 1"), ("unit: count", "unit: ms"), ("polarity: none", "polarity: lower_is_better")],
)
def test_a_changed_version_says_which_file_takes_the_change(folder: Path, old: str, new: str) -> None:
    _edit(folder / "metrics/m_v1.sql", old, new)
    first, second = folder / "metrics/m_v1.sql", folder / "metrics/m_v2.sql"
    said = f"{first} was released and has changed; restore it and put the change into {second}"
    assert _changes(folder) == [said]
    with pytest.raises(MetricError, match="m_v2"):
        write_lock(load_definitions(folder), folder / "lock", accept_models=True)


def test_a_definition_may_move_to_any_folder(folder: Path) -> None:
    (folder / "a/b").mkdir(parents=True)
    for path in (folder / "metrics/m_v1.sql", folder / "models/base.sql"):
        path.rename(folder / "a/b" / path.name)
    assert _changes(folder) == []


def test_a_definition_of_the_package_is_named_by_its_path_in_sql() -> None:
    definitions, lock = load_definitions(), read_lock()
    lock.metrics["ttft_v1"] = lock.models["steps"] = "other"
    of_metric, of_model = changes(definitions, lock)
    assert of_metric.startswith("sql/serving/ttft_v1.sql was released and has changed")
    assert of_metric.endswith("put the change into sql/serving/ttft_v2.sql")
    assert of_model.startswith("sql/steps/steps.sql has changed beneath ")


def test_a_changed_model_is_accepted_only_on_demand(folder: Path) -> None:
    _edit(folder / "models/base.sql", "FROM main.runs AS r", "FROM main.runs AS r WHERE true")
    [said] = _changes(folder)
    assert said.startswith(f"{folder}/models/base.sql has changed beneath m_v1;")
    with pytest.raises(MetricError, match="--accept-models"):
        write_lock(load_definitions(folder), folder / "lock")
    write_lock(load_definitions(folder), folder / "lock", accept_models=True)
    assert _changes(folder) == []


def test_other_rules_for_what_an_op_does_change_what_reads_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = tuple((name, f"{pattern}|transpose" if name == "copy" else pattern) for name, pattern in OP_CLASS_RULES)
    _edit(folder / "models/base.sql", "FROM main.runs AS r", "FROM main.instructions AS r WHERE r.op_class = 'copy'")
    write_lock(load_definitions(folder), folder / "lock", accept_models=True)
    assert _changes(folder) == []
    monkeypatch.setattr("tracewarehouse.ingest.hlo.opcodes.OP_CLASS_RULES", rules)
    [sentence] = _changes(folder)
    assert "models/base.sql has changed beneath m_v1" in sentence


def test_a_released_version_can_be_deprecated_but_not_removed(folder: Path) -> None:
    _edit(folder / "metrics/m_v1.sql", "status: stable", "status: deprecated\ndeprecated: Wrong; use n.")
    assert _changes(folder) == []
    (folder / "metrics/m_v1.sql").unlink()
    assert any("gone" in s for s in _changes(folder))


def test_a_newly_stable_version_must_be_locked(folder: Path) -> None:
    text = METRIC.replace("description:", "changed: Runs count once.\ndescription:")
    (folder / "metrics/m_v2.sql").write_text(text)
    assert _changes(folder) == ["the lock does not agree on m_v2; run `tw metrics lock`"]
    write_lock(load_definitions(folder), folder / "lock")
    assert _changes(folder) == []


def test_a_damaged_lock_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("[")
    with pytest.raises(MetricError, match="not a metric lock"):
        read_lock(tmp_path / "lock")
