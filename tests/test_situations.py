"""Captures of what people reported: what is right of each stands beside them, in the table of their README."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.warehouse import open_warehouse

Ask = Callable[[str, str], Sequence[Any]]
STEPS = """SELECT name, COUNT(*) FROM main.phases
           WHERE run_id = {run} AND kind = 'step' AND device_id = 0 GROUP BY ALL ORDER BY ALL"""
FLAGS = "SELECT flag FROM main.quality_flags WHERE run_id = {run} ORDER BY ALL"
METRIC = "SELECT {columns} FROM metrics.{metric} WHERE run_id = {{run}} ORDER BY ALL"
NAMED_GROUPS = """SELECT DISTINCT name, list(device_id ORDER BY device_id) FROM main.collective_groups
                  JOIN main.instructions USING (run_id, instruction_id)
                  WHERE run_id = {run} GROUP BY instruction_id, name, group_index ORDER BY ALL"""
GROUPS = """SELECT DISTINCT kind, axis, list_sort(list(DISTINCT device_id)) FROM main.collective_groups
            JOIN (SELECT DISTINCT run_id, instruction_id, kind, axis FROM main.collectives)
            USING (run_id, instruction_id)
            WHERE run_id = {run} GROUP BY instruction_id, kind, axis, group_index ORDER BY ALL"""


def metric(name: str, columns: str) -> str:
    return METRIC.format(metric=name, columns=columns)


PER_STEP = metric("collective_count", "phase, kind, axis, executions_per_step")
SCANNED = [
    (phase, kind, "tp", n) for phase in ("decode", "prefill") for kind, n in (("all-gather", 1), ("all-reduce", 16))
]
LOOPS = """SELECT DISTINCT layer FROM metrics.layer_time
           WHERE run_id = {run} AND phase <> 'outside' AND layer IS NOT NULL ORDER BY ALL"""

RIGHT: list[tuple[str, str, list[Any]]] = [
    ("device-dropped", FLAGS, [("no_device_events",)]),
    (
        "fused-gather",
        "SELECT kind, channel_id, message_bytes FROM main.collectives WHERE run_id = {run}",
        [("all-gather", 7, 1024)] * 2,
    ),
    ("fused-gather", PER_STEP, [(None, "all-gather", "unknown", 1)]),
    (
        "jax-cmatmul",
        "SELECT DISTINCT kind FROM main.collectives WHERE run_id = {run} AND axis NOT IN ('tp', 'unknown')",
        [],
    ),
    ("jax-onedev", STEPS, [("decode", 6)]),
    ("jax-onedev", metric("tpot", "clock"), [("device",), ("host",)]),
    ("jax-perm", GROUPS, [("all-reduce", "tp", [0, 2]), ("all-reduce", "tp", [1, 3])]),
    ("jax-perm", metric("collective_skew", "phase, axis, ROUND(skew_us, 1)"), [("decode", "tp", 181.0)]),
    ("jax-perm", "SELECT ROUND(SUM(wait_ms), 2) FROM metrics.sync_wait WHERE run_id = {run}", [(3.71,)]),
    ("jax-scan-ta", STEPS, [("decode", 5), ("prefill", 1)]),
    ("jax-scan-ta", metric("ttft", "clock, ROUND(ttft_ms, 1)"), [("device", 26.4)]),
    ("jax-scan-ta", metric("tpot", "clock, ROUND(tpot_ms, 2)"), [("device", 3.79)]),
    *[(name, PER_STEP, SCANNED) for name in ("jax-scan-ta", "jax-scan-train")],
    *[(name, LOOPS, [(layer,) for layer in range(8)]) for name in ("jax-scan-ta", "jax-scan-train")],
    ("jax-scan-train", STEPS, [("decode", 5), ("prefill", 1)]),
    *[("jax-scan-train", metric(name, "clock"), [("device",)]) for name in ("ttft", "tpot")],
    ("jax-unroll-nested", STEPS, [("decode", 6)]),
    ("jax-unroll-nested", STEPS.replace("device_id = 0", "device_id IS NULL"), [("decode", 6)]),
    ("jax-unroll-one", STEPS + " DESC", [("prefill", 1), ("decode", 5)]),
    (
        "jax-unroll-one",
        "SELECT arg_min(name, start_ps) FROM main.phases WHERE run_id = {run} AND kind = 'step'",
        [("prefill",)],
    ),
    (
        "megascale",
        metric("exposed_communication", "device_id, axis, exposed_ms"),
        [(0, "dcn", 0.214), (1, "dcn", 0.214)],
    ),
    ("pallas-remote", FLAGS, [("kernel_communication",), ("unsized_time",)]),
    (
        "srv-rph2",
        NAMED_GROUPS,
        [
            ("all-reduce.1", list(range(8))),
            *[("all-reduce.2", [i, i + 4]) for i in range(4)],
            *[("all-reduce.4", [i, i + 4]) for i in range(4)],
            *[("collective-permute.3", [i, i + 1]) for i in (0, 4)],
        ],
    ),
    (
        "jax-tray",
        GROUPS,
        [
            ("all-reduce", "tp", [0, 1]),
            ("all-reduce", "tp", [2, 3]),
            *[(kind, "unknown", pair) for kind in ("all-reduce", "collective-permute") for pair in ([0, 3], [1, 2])],
        ],
    ),
    ("srv-early", "SELECT MAX(wait_ms_per_step) FROM metrics.sync_wait WHERE run_id = {run}", [(0.005,)]),
    ("srv-gap", metric("overlap_ratio", "overlap_ratio"), [(pytest.approx(0.1),)]),
    ("srv-mixed", STEPS, [("decode", 17), ("mixed", 1), ("prefill", 1)]),
    (
        "srv-mixed",
        metric("mfu", "phase, tokens, bound"),
        [("decode", 40, "lower"), ("mixed", 502, "lower"), ("prefill", 900, "lower")],
    ),
    ("srv-mixed", metric("tpot", "ROUND(tpot_ms, 3)"), [(1.552,)]),
    ("srv-mixed", metric("throughput", "output_tokens, token_source"), [(2 + 2 * 9 + 1 + 3 * 9, "batches")]),
    ("srv-padsize", STEPS, [("decode", 16)]),
    ("srv-padsize", metric("ttft", "*"), []),
    ("srv-padsize", metric("tpot", "tpot_ms"), [(pytest.approx(1.8),)]),
    (
        "srv-turnover",
        metric("decode_cost_per_context_token", "ROUND(us_per_token, 4), stretches, steps"),
        [(0.05, 2, 11)],
    ),
    ("srv-turnover", metric("kv_cache_traffic", "bound, read_bytes_per_step < 84e6"), [("lower", True)] * 2),
    ("srv-twoprog", PER_STEP, [("decode", kind, "unknown", 1) for kind in ("all-gather", "all-reduce")]),
    (
        "srv-twoprog",
        metric("exposed_communication", "kind, exposed_ms").replace("ORDER", "AND kind = 'all-gather' ORDER"),
        [("all-gather", pytest.approx(0.01))] * 2,
    ),
]
"""Of each capture a query, its run in place of `{run}`, and the rows that it has."""
APART = """SELECT instruction_id, instance, group_index FROM main.collectives WHERE run_id = {run} AND group_size = 2
           GROUP BY ALL HAVING COUNT(*) = 2 AND MAX(start_ps) >= MIN(end_ps)"""
"""The executions of pairs whose ranks are not at it at the same time, which no collective can be."""


@pytest.fixture(scope="module")
def situations(shared_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """What asks a query of the capture of a name."""
    folder = shared_traces / "situations"
    if not folder.is_dir():
        pytest.skip(f"the captures of {folder} are not here")
    with open_warehouse(tmp_path_factory.mktemp("situations"), create=True) as warehouse:
        runs = {
            capture.name.partition("/")[0]: warehouse.ingest_capture(capture, evaluate=False, jobs=1).run_id
            for capture in find_captures(folder)
        }
        assert set(runs) == {name for name, _, _ in RIGHT}
        yield lambda name, sql: warehouse.query(sql.format(run=f"'{runs[name]}'")).rows()


@pytest.mark.parametrize(("name", "sql", "right"), RIGHT)
def test_a_reported_situation_is_read_right(situations: Ask, name: str, sql: str, right: list[Any]) -> None:
    assert [tuple(row) for row in situations(name, sql)] == right


@pytest.mark.parametrize("name", ["jax-perm", "jax-tray"])
def test_ranks_of_a_pair_are_in_a_collective_together(situations: Ask, name: str) -> None:
    assert situations(name, APART) == []
