"""Collectives of real Kineto traces beside the facts of an independent decoder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracewarehouse.ingest.pipeline import ingest_one

SHARED = Path(__file__).parents[5] / "shared" / "traces" / "gpu"
Query = Callable[..., list[tuple[Any, ...]]]
US = 1_000_000

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no GPU traces in {SHARED}")


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory, tables_in: Callable[[Path], Query]) -> Callable[[str], Query]:
    """Ingests a trace once, and returns its tables."""
    known: dict[str, Query] = {}

    def query(name: str) -> Query:
        if name not in known:
            folder = tmp_path_factory.mktemp("warehouse")
            ingest_one(SHARED / name, folder)
            known[name] = tables_in(folder)
        return known[name]

    return query


def facts(name: str) -> dict[str, Any]:
    [device] = json.loads((SHARED / "facts" / f"{name}.facts.json").read_text())["devices"].values()
    return device


class TestDlrm:
    """Eight ranks as eight files of one host, from before PyTorch said among whom a collective runs."""

    @pytest.fixture
    def query(self, ask: Callable[[str], Query]) -> Query:
        return ask("kineto-v100-dlrm-8rank")

    def test_one_run_of_eight_devices_in_the_order_of_the_ranks(self, query: Query) -> None:
        assert query("SELECT device_id, global_id, local_ordinal FROM devices ORDER BY device_id") == [
            (rank, rank, rank) for rank in range(8)
        ]
        assert query("SELECT count(*) FROM hosts WHERE clock_correction_ps IS NOT NULL") == [(0,)]

    def test_each_collective_has_its_eight_ranks(self, query: Query) -> None:
        """Kind, start skew, end skew and last to arrive, all times in us."""
        found = query("""
            SELECT any_value(kind), (max(start_ps) - min(start_ps)) // 1000000,
              (max(end_ps) - min(end_ps)) // 1000000, arg_max(device_id, start_ps), count(*), bool_or(is_partial)
            FROM collectives GROUP BY instance ORDER BY instance""")
        every = (8, False)
        assert found == [
            ("all-to-all", 7624, 2, 7, *every),
            ("all-to-all", 1101, 2, 7, *every),
            ("all-to-all", 168, 1, 7, *every),
            ("all-to-all", 125, 2, 7, *every),
            ("all-reduce", 223, 5, 7, *every),
            ("all-to-all", 534, 3, 5, *every),
            ("all-reduce", 584, 5, 5, *every),
            ("all-reduce", 885, 7, 4, *every),
        ]

    def test_durations_of_the_ranks(self, query: Query) -> None:
        sql = """SELECT list((end_ps - start_ps) // 1000000 ORDER BY device_id) FROM collectives
                 GROUP BY instance ORDER BY instance"""
        durations = [d for (d,) in query(sql)]
        assert durations[0] == [2146, 7635, 518, 6132, 4882, 4679, 514, 10]
        assert durations[4] == [246, 307, 198, 291, 95, 96, 213, 86]
        assert durations[6] == [601, 601, 572, 602, 70, 20, 602, 468]
        assert durations[7] == [952, 922, 915, 879, 69, 79, 920, 803]

    def test_exposed_communication_of_each_device(self, query: Query) -> None:
        sql = "SELECT sum(exposed_added_ps) // 1000 FROM collectives GROUP BY device_id ORDER BY device_id"
        files = sorted((SHARED / "facts").glob("worker*.facts.json"))
        known = [facts(f.name.removesuffix(".facts.json"))["exposed_comm_ns(comm - compute kernels)"] for f in files]
        assert [ns for (ns,) in query(sql)] == known

    def test_sizes_are_those_of_the_tensors_in_the_annotations(self, query: Query) -> None:
        sql = """SELECT message_bytes, dtype FROM collectives
                 WHERE kind = 'all-reduce' AND device_id = 0 ORDER BY start_ps"""
        sizes = query(sql)
        assert sizes[0] == (394241 * 4, "f32")
        assert all(size for size, _ in sizes)


@pytest.mark.parametrize("name", ["kineto-a100-ddp-ncclmeta.json", "kineto-a100-overlap-rank3of8.json"])
def test_exposed_communication(ask: Callable[[str], Query], name: str) -> None:
    [(exposed,)] = ask(f"{name}.gz")("SELECT sum(exposed_added_ps) // 1000 FROM collectives")
    assert exposed == facts(name)["exposed_comm_ns(comm - compute kernels)"]


@pytest.mark.parametrize("name", ["kineto-a100-ddp-ncclmeta.json", "kineto-mi300x-ddp-rank0.json"])
def test_kinds_bytes_and_groups_are_those_of_the_arguments(ask: Callable[[str], Query], name: str) -> None:
    found = ask(f"{name}.gz")("""
        SELECT kind, dtype, group_size, count(*), sum(end_ps - start_ps) // 1000, sum(message_bytes),
          bool_and(is_partial)
        FROM collectives GROUP BY ALL ORDER BY ALL""")
    kinds = {"allreduce": "all-reduce", "broadcast": "collective-broadcast", None: "unknown"}
    dtypes = {"Float": "f32", "BFloat16": "bf16", "Long": "s64", "None": None}
    world = next(int(n["group_size"]) for n in facts(name)["nccl"] if n["group_size"] != "None")
    known = [
        (kinds[n["collective"]], dtypes[n["dtype"]], world, n["count"], n["sum_ns"], n["in_bytes"] or None, True)
        for n in facts(name)["nccl"]
    ]
    assert sorted(found, key=str) == sorted(known, key=str)


def test_kinds_by_annotation_where_no_argument_tells(ask: Callable[[str], Query]) -> None:
    sql = "SELECT kind, count(*) FROM collectives GROUP BY ALL ORDER BY ALL"
    assert ask("kineto-a100-overlap-rank3of8.json.gz")(sql) == [("all-reduce", 18), ("all-to-all", 42)]


def test_no_communication_is_no_row(ask: Callable[[str], Query]) -> None:
    assert ask("kineto-h100-qwen-modules.json.gz")("SELECT count(*) FROM collectives") == [(0,)]


@pytest.mark.parametrize(
    ("name", "last", "share"), [("kineto-a100-overlap-rank3of8", 1013, 47.03), ("kineto-a100-ddp-ncclmeta", 5, 14.76)]
)
def test_overlap_beside_hta(ask: Callable[[str], Query], name: str, last: int, share: float) -> None:
    """Without the last step, which HTA leaves out, its overlap of communication with compute is 47.03 and 14.31 %.

    It cuts times to whole microseconds, at the start upwards and at the end downwards: nothing in the first trace, and
    in the second about a microsecond of each of the kernels.
    """
    sql = """SELECT 100.0 * (sum(end_ps - start_ps) - sum(exposed_added_ps)) / sum(end_ps - start_ps)
             FROM collectives WHERE step <= ?"""
    [(found,)] = ask(f"{name}.json.gz")(sql, last)
    assert round(found, 2) == share


@pytest.mark.parametrize(
    ("name", "busy", "communication", "exposed", "with_sets"),
    [
        ("kineto-a100-overlap-rank3of8", 388_587, 163_535, 87_921, 87_267),
        ("kineto-a100-ddp-ncclmeta", 157_500, 46_876, 39_559, 39_529),
    ],
)
def test_times_beside_tracelens(
    ask: Callable[[str], Query], name: str, busy: int, communication: int, exposed: int, with_sets: int
) -> None:
    """In us, of the whole trace. It says the same, but takes sets for compute, also where communication runs beside."""
    sql = """
        WITH kinds AS (
          SELECT event_id, start_ps, start_ps + duration_ps AS end_ps, CASE WHEN name LIKE 'nccl%' THEN 'communication'
            WHEN name LIKE 'Memcpy%' THEN 'copy' WHEN name LIKE 'Memset%' THEN 'set' ELSE 'compute' END AS kind
          FROM ops JOIN instructions USING (instruction_id) WHERE line LIKE 'Stream #%'),
        ends AS (
          SELECT start_ps, end_ps, coalesce(max(end_ps) OVER (
            ORDER BY start_ps, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), start_ps) AS covered_ps
          FROM kinds WHERE kind IN (SELECT unnest(?)))
        SELECT sum(greatest(end_ps - greatest(start_ps, covered_ps), 0)) FROM ends"""

    def us(*kinds: str) -> int:
        [(ps,)] = ask(f"{name}.json.gz")(sql, list(kinds))
        return ps

    def found(ps: int) -> int:
        return int(ps // US)

    assert found(us("compute", "communication", "copy", "set")) == busy
    assert found(us("communication")) == communication
    assert found(us("compute", "communication") - us("compute")) == exposed
    assert found(us("compute", "communication", "set") - us("compute", "set")) == with_sets
    [(added,)] = ask(f"{name}.json.gz")("SELECT sum(exposed_added_ps) FROM collectives")
    assert found(added) == exposed
