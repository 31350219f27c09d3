"""Servers' captures as people report them, from bytes to numbers: what is right stands beside the captures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracewarehouse.warehouse import open_warehouse

SITUATIONS = Path(__file__).parents[1] / ".." / "shared" / "traces" / "situations"
pytestmark = pytest.mark.skipif(not SITUATIONS.is_dir(), reason=f"needs the captures of {SITUATIONS}")
Ask = Callable[[str], list[dict[str, Any]]]
PHASES = "SELECT name, COUNT(*) AS n FROM main.phases WHERE kind = 'step' AND device_id = 0 GROUP BY name"


@pytest.fixture
def asked(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Ask of one situation, by the name that the test is parametrised with."""
    with open_warehouse(tmp_path / "warehouse", create=True) as warehouse:
        warehouse.ingest(SITUATIONS / request.param)
        yield lambda sql: warehouse.query(sql).dicts()


def of(situation: str) -> Any:
    return pytest.mark.parametrize("asked", [situation], indirect=True)


def phases(asked: Ask) -> dict[str, int]:
    return {row["name"]: row["n"] for row in asked(PHASES)}


@of("srv-padsize")
def test_padded_decode_is_decode(asked: Ask) -> None:
    assert phases(asked) == {"decode": 16}
    assert asked("SELECT * FROM metrics.ttft") == []
    assert [row["tpot_ms"] for row in asked("SELECT * FROM metrics.tpot")] == [pytest.approx(1.8)]


def test_padded_decode_without_the_servers_files_is_no_prefill(tmp_path: Path) -> None:
    with open_warehouse(tmp_path / "warehouse", create=True) as warehouse:
        (tmp_path / "alone.xplane.pb").write_bytes((SITUATIONS / "srv-padsize" / "host0.xplane.pb").read_bytes())
        warehouse.ingest(tmp_path / "alone.xplane.pb")
        assert warehouse.query("SELECT * FROM metrics.ttft").dicts() == []
        assert "prefill" not in phases(lambda sql: warehouse.query(sql).dicts())


@of("srv-mixed")
def test_a_mixed_step_is_neither_prefill_nor_decode(asked: Ask) -> None:
    assert phases(asked) == {"prefill": 1, "mixed": 1, "decode": 17}
    assert [row["tpot_ms"] for row in asked("SELECT * FROM metrics.tpot")] == [pytest.approx(1.552, abs=5e-4)]
    tokens = {row["phase"]: (row["tokens"], row["bound"]) for row in asked("SELECT * FROM metrics.mfu")}
    assert tokens == {"prefill": (900, "lower"), "mixed": (502, "lower"), "decode": (40, "lower")}
    [row] = asked("SELECT * FROM metrics.throughput")
    assert (row["output_tokens"], row["token_source"]) == (2 + 2 * 9 + 1 + 3 * 9, "batches")


@of("srv-turnover")
def test_the_cost_of_context_while_requests_come_and_go(asked: Ask) -> None:
    [row] = asked("SELECT * FROM metrics.decode_cost_per_context_token")
    assert row["us_per_token"] == pytest.approx(0.05, abs=1e-5)
    assert (row["stretches"], row["steps"]) == (2, 11)
    for row in asked("SELECT * FROM metrics.kv_cache_traffic"):
        assert row["bound"] == "lower"
        assert row["read_bytes_per_step"] < 84e6


@of("srv-twoprog")
def test_what_follows_the_last_step_belongs_to_it(asked: Ask) -> None:
    gathers = "SELECT * FROM metrics.{} WHERE kind = 'all-gather'"
    assert [(r["phase"], r["executions_per_step"]) for r in asked(gathers.format("collective_count"))] == [
        ("decode", 1)
    ]
    exposed = [r["exposed_ms"] for r in asked(gathers.format("exposed_communication"))]
    assert exposed == [pytest.approx(0.01)] * len(exposed)
    assert exposed


@of("jax-onedev.xplane.pb.gz")
def test_marks_reach_the_executions_of_one_device(asked: Ask) -> None:
    assert phases(asked) == {"decode": 6}
    assert {row["clock"] for row in asked("SELECT * FROM metrics.tpot")} == {"device", "host"}


@pytest.mark.parametrize("asked", ["jax-scan-ta.xplane.pb.gz", "jax-scan-train.xplane.pb.gz"], indirect=True)
def test_a_neutral_mark_takes_nothing_away(asked: Ask) -> None:
    assert phases(asked) == {"prefill": 1, "decode": 5}
    for metric in ("ttft", "tpot"):
        assert "device" in {row["clock"] for row in asked(f"SELECT * FROM metrics.{metric}")}
    counts = asked("SELECT * FROM metrics.collective_count")
    assert {(r["phase"], r["kind"]): r["executions_per_step"] for r in counts} == {
        (phase, kind): n for phase in ("prefill", "decode") for kind, n in (("all-reduce", 16), ("all-gather", 1))
    }


@of("jax-unroll-nested.xplane.pb.gz")
def test_the_mark_that_names_a_phase_is_the_step(asked: Ask) -> None:
    assert phases(asked) == {"decode": 6}
    host = "SELECT name, COUNT(*) AS n FROM main.phases WHERE kind = 'step' AND device_id IS NULL GROUP BY name"
    assert asked(host) == [{"name": "decode", "n": 6}]


@of("jax-unroll-one.xplane.pb.gz")
def test_one_program_of_two_shapes(asked: Ask) -> None:
    assert phases(asked) == {"prefill": 1, "decode": 5}
    first = "SELECT name FROM main.phases WHERE kind = 'step' AND device_id = 0 ORDER BY start_ps LIMIT 1"
    assert asked(first) == [{"name": "prefill"}]
