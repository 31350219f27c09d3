"""`tw show` and `Warehouse.summary`: what they say is what the views say, and it fits a terminal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from given_tables import warehouse_of
from xplane_builder import Space

from tracewarehouse.cli import run
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.queries.result import QueryResult
from tracewarehouse.queries.run_summary import StepShare, labelled, main_numbers, step_shares
from tracewarehouse.warehouse import Warehouse, open_warehouse

LLAMA = "llama-tp4-b4-i16-o17"
RED = "\x1b[31mred"
NAMES = ["deepseek_v2-ep4-b4-i16-o9", "llama-pp2tp2-b4-i16-o5-hosts2", LLAMA, RED]

pytestmark = pytest.mark.usefixtures("asked_once")


@pytest.fixture(scope="module")
def warehouse(all_captures: Warehouse, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """The captures of the repository, and one of a host alone whose name is hostile."""
    folder = tmp_path_factory.mktemp("show")
    shutil.copytree(all_captures.path, folder / "warehouse")
    with open_warehouse(folder / "warehouse") as opened:
        space = Space()
        space.host().line("python").event("f", 1, 2)
        opened.ingest(space.write(folder / "x.xplane.pb"), name=RED)
        yield opened


def test_the_ten_numbers_are_those_of_the_metrics(warehouse: Warehouse) -> None:
    summary = warehouse.summary(LLAMA)
    values = {(n.metric, n.part): n.value for n in summary.numbers}
    assert len({n.name for n in summary.numbers}) == 10
    run_id = warehouse.run(LLAMA).run_id

    def one(sql: str) -> object:
        return pytest.approx(warehouse.query(f"{sql} AND run_id = '{run_id}'").scalar(), rel=1e-12)

    for clock in ("host", "device"):
        assert values["ttft", clock] == one(f"SELECT ttft_ms FROM metrics.ttft WHERE clock = '{clock}'")
        assert values["tpot", clock] == one(f"SELECT tpot_ms FROM metrics.tpot WHERE clock = '{clock}'")
    assert values["throughput", ""] == one("SELECT output_tokens_per_s FROM metrics.throughput WHERE true")
    for phase in ("prefill", "decode"):
        where = f"WHERE phase = '{phase}'"
        parts = {s.part: s for s in summary.steps if s.phase == phase}
        assert values["step_time", phase] == pytest.approx(sum(s.mean_ms for s in parts.values()))
        assert values["device_idle", phase] == pytest.approx(100 * (parts["idle"].share or 0))
        assert values["exposed_communication", phase] == pytest.approx(parts["exposed communication"].mean_ms)
        exposed = f"SELECT SUM(exposed_ms) / 4 FROM metrics.exposed_communication {where}"
        assert values["exposed_communication", phase] == one(exposed)
        count = f"SELECT SUM(executions_per_step) FROM metrics.collective_count {where}"
        assert values["collective_count", phase] == one(count)
        moved = f"SELECT SUM(message_bytes_per_step) / 1000 FROM metrics.traffic_volume {where}"
        assert values["traffic_volume", phase] == one(moved)
    assert values["mfu", ""] is None
    timed = "SELECT phase, count(step_time_ms) FROM metrics.step_time WHERE run_id = $run GROUP BY phase"
    assert {s.phase: s.steps for s in summary.steps} == dict(warehouse.query(timed, run=run_id).rows())
    assert values["hbm_bandwidth", ""] is None


def test_every_number_without_a_value_has_a_reason(warehouse: Warehouse) -> None:
    for name in NAMES:
        summary = warehouse.summary(name)
        without = {n.metric for n in summary.numbers if n.value is None}
        assert without <= {m.metric for m in summary.missing}
        assert sorted(m for metrics in summary.reasons.values() for m in metrics) == [m.metric for m in summary.missing]


def test_facts_say_what_ran_and_how_steps_were_found(warehouse: Warehouse) -> None:
    assert labelled(warehouse.summary("llama-pp2tp2-b4-i16-o5-hosts2").facts) == [
        ("Model", "llama-tiny, 2 layers, float32"),
        ("Requests", "4 sequences, 16 tokens in, 5 out"),
        ("Devices", "4 x virtual CPU device, 2 hosts"),
        ("Mesh", "pp=2,tp=2"),
        ("Steps", "5, 4 with a known time, found by the marker"),
        ("Layers", "known for at least 97 % of each phase's op time"),
        ("Captured", "2026-11-22 23:33:17 UTC, 2,892 events"),
        ("Framework", "torch_xla 2.9.0"),
        ("Run", warehouse.run("llama-pp2tp2-b4-i16-o5-hosts2").run_id),
    ]


def test_an_inferred_mesh_says_how_sure_it_is() -> None:
    facts = dict.fromkeys(
        ("model", "layers", "dtype", "batch_size", "input_length", "output_length", "device_kind", "framework",
         "layer_coverage")
    )  # fmt: skip
    facts |= {"mesh": "?=2,dp=4", "mesh_source": "inferred", "mesh_confidence": 0.39, "backend": "tpu", "devices": 1}
    facts["origin"] = "recorded"
    facts |= {"chips": 1, "captured_chips": 1, "hosts": 1, "steps": 0, "captured_ns": 2**70, "events": 3, "run_id": "r"}
    assert labelled(facts) == [
        ("Devices", "1 x TPU, 1 chip, 1 host"),
        ("Mesh", "not known (the best guess, an unnamed axis=2,dp=4, is 39 % sure; give it with --mesh at ingest)"),
        ("Steps", "none known"),
        ("Captured", "3 events"),
        ("Run", "r"),
    ]
    said = dict(labelled(facts | {"mesh_confidence": 0.5, "chips": 8, "devices": 4, "captured_chips": 4}))
    assert said["Mesh"] == "?=2,dp=4 (inferred, 50 % sure; give it with --mesh at ingest)"
    assert said["Devices"] == "4 x TPU, 4 of 8 chips captured, 1 host"


def test_what_dominates_a_step() -> None:
    """Two decode steps of 10 us, and a last one: 6 and 4 us of ops, 2 of them an all-reduce; 10 of 20 us are idle."""
    step = {"kind": "step", "name": "decode", "device_id": 0}
    given = {
        "runs": [{}],
        "instructions": [
            {"instruction_id": 0, "opcode": "fusion"},
            {"instruction_id": 1, "opcode": "all-reduce", "collective": "all-reduce"},
        ],
        "phases": [
            step | {"index": 0, "start_us": 0, "end_us": 9},
            step | {"index": 1, "start_us": 10, "end_us": 19},
            step | {"index": 2, "start_us": 20, "end_us": 24},
        ],
        "ops": [
            {"event_id": 0, "device_id": 0, "phase": "decode", "step": 0, "start_us": 0, "duration_us": 4},
            {
                "event_id": 2,
                "instruction_id": 1,
                "device_id": 0,
                "phase": "decode",
                "step": 0,
                "start_us": 4,
                "duration_us": 2,
            },
            {"event_id": 1, "device_id": 0, "phase": "decode", "step": 1, "start_us": 10, "duration_us": 4},
        ],
        "collectives": [
            {"event_id": 2, "device_id": 0, "phase": "decode", "step": 0, "start_us": 4, "end_us": 6, "exposed_us": 2}
        ],
    }
    with warehouse_of(given) as database:
        shares = step_shares(lambda sql: QueryResult(database.sql(sql).to_arrow_table()), "r")
    assert shares == [
        StepShare("decode", "idle", 5, 0.5, 0.005, 2, 0.01),
        StepShare("decode", "other compute", 2, 0.4, 0.004, 2, 0.01),
        StepShare("decode", "exposed communication", 4, 0.1, 0.001, 2, 0.01),
    ]


def test_what_runs_outside_of_all_steps_is_not_told_per_step() -> None:
    """An all-reduce of 2 us and 100 bytes before a step that has none."""
    given = {
        "runs": [{}],
        "phases": [
            {"index": 0, "kind": "step", "name": "decode", "device_id": 0, "start_us": 10, "end_us": 20},
        ],
        "ops": [{"event_id": 0, "device_id": 0, "phase": "outside", "start_us": 0, "duration_us": 2}],
        "collectives": [
            {
                "device_id": 0,
                "phase": "outside",
                "start_us": 0,
                "end_us": 2,
                "exposed_us": 2,
                "message_bytes": 100,
                "kind": "all-reduce",
            }
        ],
    }
    with warehouse_of(given) as database:
        numbers = main_numbers(lambda sql: QueryResult(database.sql(sql).to_arrow_table()), "r")
    known = [(n.label, n.value, n.unit, n.detail) for n in numbers if n.part == "outside"]
    assert known == [
        ("Exposed communication, outside steps", 0.002, "ms", "mean over devices"),
        ("Collectives, outside steps", 1, "", "all-reduce tp 1"),
        ("Traffic, outside steps", 100, "bytes", "message bytes of a device"),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_it_fits_80_columns(
    warehouse: Warehouse, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["-w", str(warehouse.path), "show", name]) == 0
    printed = capsys.readouterr().out
    assert run(["-w", str(warehouse.path), "show", name, "--missing"]) == 0
    in_full = capsys.readouterr().out
    assert max(map(len, in_full.splitlines())) <= 80
    assert "\x1b" not in in_full
    summary = warehouse.summary(name)
    said = " ".join(printed.split())
    assert f"{len(summary.missing)} metrics need something that this capture lacks; --missing says what." in said
    assert "\nMissing:" not in printed
    assert all(" ".join(reason.split()) in " ".join(in_full.split()) for reason in summary.reasons)
    assert all(f"{flag.flag}: " in said for flag in summary.flags)
    assert name != RED or "no_device_events" in said


def test_the_bar_of_a_step_has_its_parts_in_proportion(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["-w", str(warehouse.path), "show", LLAMA]) == 0
    lines = capsys.readouterr().out.splitlines()
    [at] = [i for i, line in enumerate(lines) if line.startswith("A decode step takes ")]
    legend = " ".join(lines[at + 2 : at + 5])
    shares = {s.part: s.share or 0 for s in warehouse.summary(LLAMA).steps if s.phase == "decode"}
    for part, share in shares.items():
        mark = legend[legend.index(part) - 2]
        assert lines[at + 1].count(mark) == pytest.approx(100 * share, abs=1)


def test_a_run_is_meant_by_the_beginning_of_its_name_and_without_a_name_if_alone(
    warehouse: Warehouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert warehouse.run("deepseek_v2-ep4-b4-i16-o9-").name == "deepseek_v2-ep4-b4-i16-o9-cfinf"
    with pytest.raises(WarehouseError, match="'llama-tp' stands for"):
        warehouse.run("llama-tp")
    with pytest.raises(WarehouseError, match=r"holds \d+ runs; name one"):
        warehouse.run("")
    space = Space()
    space.host().line("python").event("f", 1, 2)
    with open_warehouse(tmp_path / "w", create=True) as opened:
        opened.ingest(space.write(tmp_path / "only.xplane.pb"), name="only")
    assert run(["-w", str(tmp_path / "w"), "show"]) == 0
    assert capsys.readouterr().out.startswith("only\n")


def test_json_holds_everything(warehouse: Warehouse, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-w", str(warehouse.path), "show", LLAMA, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == warehouse.summary(LLAMA).to_dict()
    assert found["facts"]["mesh"] == "tp=4"
    assert {"metric": "mfu", "version": 1, "unmet": "accelerators"}.items() <= {
        k: v for m in found["missing"] if m["metric"] == "mfu" for k, v in m.items()
    }.items()


def test_an_unknown_run_gets_the_ones_that_may_be_meant(
    warehouse: Warehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(WarehouseError, match=rf"did you mean {LLAMA} or "):
        warehouse.run("lama-tp4-b4-i16-o17")
    with pytest.raises(WarehouseError, match=r"no run 'zzz' in .*; .tw runs. lists its runs"):
        warehouse.run("zzz")
    assert run(["-w", str(warehouse.path), "show", "lama-tp4-b4-i16-o17"]) == 1
    assert capsys.readouterr().err.startswith("error: no run 'lama-tp4-b4-i16-o17'")
