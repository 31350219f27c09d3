from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tracewarehouse.ingest.capture.card import WorkloadCard, dump_card, load_card
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.tables.run_row import card_facts

CARD = """
version: 1
description: a run
workload:
  model:
    phase: inference
    moe: false
    iteration:
    model_arch: {num_layers: 32, num_params: 8.03e9, flavour: vanilla}
  hardware:
    network_topo: {topology: 2D torus, bandwidth_gbps: [200, 6400]}
Model-executor:
  model_plan_parallelization: {tp: 4, pp: ""}
metric_source:
  traces: [json_tpu]
own_section: {note: kept}
"""


@pytest.fixture
def card_file(tmp_path: Path) -> Path:
    path = tmp_path / "card.yaml"
    path.write_text(CARD)
    return path


def test_reads_fields_and_leaves_the_missing_blank(card_file: Path) -> None:
    card = load_card(card_file)

    assert card.workload.model.model_arch.num_layers == 32
    assert card.workload.model.model_arch.num_params == 8.03e9
    assert card.workload.model.moe is False
    assert card.workload.model.iteration == ""
    assert card.workload.data.batch_size == ""
    assert card.workload.hardware.network_topo.bandwidth_gbps == [200, 6400]
    assert card.model_executor.model_plan_parallelization.tp == 4
    assert card.model_executor.model_plan_parallelization.pp == ""


def test_keeps_unknown_fields_when_written_again(card_file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.yaml"

    dump_card(load_card(card_file), copy)

    written = yaml.safe_load(copy.read_text())
    assert written["own_section"] == {"note": "kept"}
    assert written["workload"]["model"]["model_arch"]["flavour"] == "vanilla"
    assert written["Model-executor"]["model_plan_parallelization"]["dp_replicate"] == ""
    assert load_card(copy) == load_card(card_file)


def test_an_empty_card_has_every_section() -> None:
    card = WorkloadCard().model_dump(by_alias=True)

    assert list(card) == [
        "version",
        "description",
        "hf_url",
        "trace_url",
        "contributor",
        "contact",
        "workload",
        "Model-executor",
        "metric_source",
    ]
    assert card["workload"]["hardware"]["xpu_spec"]["total_count"] == ""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("workload: {data: {batch_size: many}}", "workload.data.batch_size"),
        ("workload: {model: {moe: perhaps}}", "workload.model.moe"),
        ("Model-executor: {model_plan_parallelization: {tp: [4]}}", "Model-executor.model_plan_parallelization.tp"),
        ("metric_source: {traces: [{}]}", "metric_source.traces"),
        ("workload: 7", "workload"),
        ("[1, 2]", "mapping"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "card.yaml"
    path.write_text(text)

    with pytest.raises(CaptureError) as caught:
        load_card(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert named in str(caught.value)
    assert "literal[" not in str(caught.value)


def test_a_missing_card_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(CaptureError) as caught:
        load_card(tmp_path / "card.yaml")
    assert "\n" not in str(caught.value)


LAUGHS = "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (LAUGHS, "an alias"),
        ("a: &a {b: *a}", "an alias"),
        ("a: " + "[" * 40 + "]" * 40, "nested too deeply"),
        ("a: " + "[" * 20_000, "nested too deeply"),
        ("version: " + "9" * 25, "over 64 bits"),
        ("a: {b: [" + ":".join(["59"] * 5000) + "]}", "over 64 bits"),
        ("version: " + "9" * 5000, "4300 digits"),
        ("a: .inf", "not finite"),
        ("a: !!int ", "type of its tag"),
        ("a: !!bool x", "type of its tag"),
        ('a: "\\ud800"', "invalid Unicode"),
        ("a: !!binary AA==", "constructor"),
        ("a: !!python/object/apply:os.system [x]", "constructor"),
        ("a: x\n" * 200_000, "larger than 128 kB"),
        ("a: \0", "control characters"),
        ("workload: {data: {batch_size: 2147483648}}", "batch_size"),
        ("workload: {model: {model_arch: {num_params: 1e300}}}", "num_params"),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_no_card_but_a_trap_is_refused(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "card.yaml"
    path.write_text(text)
    with pytest.raises(CaptureError, match=what) as caught:
        load_card(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1500


def test_what_is_not_applicable_is_blank(tmp_path: Path) -> None:
    path = tmp_path / "card.yaml"
    path.write_text(
        """
workload:
  model: {epochs: N/A, moe: n/a, model_arch: N/A}
  data: {batch_size: [1, 2, 128], seq_len: N/A}
  hardware:
    network_topo: {bandwidth_gbps: [N/A, 800]}
Model-executor:
  model_plan_parallelization: {pp: N/A, tp: 2}
  protocol_selection:
    - ici
    -
own: N/A
"""
    )
    card = load_card(path)
    assert (card.workload.model.epochs, card.workload.model.moe) == ("", "")
    assert card.workload.model.model_arch.num_layers == ""
    assert card.workload.hardware.network_topo.bandwidth_gbps == ["", 800]
    assert card.model_executor.protocol_selection == ["ici", ""]
    assert card.model_dump()["own"] == "N/A"
    facts = card_facts(card)
    assert facts["tp"] == 2
    assert not {"pp", "batch_size"} & facts.keys()


def test_a_date_stays_text(tmp_path: Path) -> None:
    path = tmp_path / "card.yaml"
    path.write_text("description: 2026-01-02\nrecorded: 2026-01-02")
    card = load_card(path)
    assert card.description == "2026-01-02"
    assert card.model_dump()["recorded"] == "2026-01-02"
