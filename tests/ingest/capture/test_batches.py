"""Batches of a server beside its captures: fields and folders as vLLM on TPU writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from xplane_builder import Space

from tracewarehouse.ingest.capture import batches
from tracewarehouse.ingest.capture.batches import Batch, BatchFile, read_batches, server_rank
from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.devices.joined_hosts import find_whole_captures
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.pipeline import ingest_one


def stats(batch_id: int, prefill: int, decode: int, padded: int, phase: str, kv: int = 7) -> dict[str, Any]:
    return {
        "batch_id": batch_id,
        "total_num_scheduled_tokens": prefill + decode,
        "num_prefill_tokens": prefill,
        "num_decode_tokens": decode,
        "padded_total_num_scheduled_tokens": padded,
        "num_reqs": decode + 1,
        "min_kv_len": kv,
        "phase": phase,
    }


BATCHES = [
    stats(10, 100, 0, 128, "PREFILL_ONLY"),
    stats(11, 50, 4, 64, "PREFILL_HEAVY"),
    stats(12, 0, 5, 8, "DECODE_ONLY", 100),
]


def served(path: Path, steps: int = 3) -> Path:
    """Steps of one program on one device."""
    space = Space()
    tpu = space.tpu(0)
    for k in range(steps):
        tpu.modules.event("jit_step_fun(42)", 1000 * k, 900)
        tpu.ops.event("fusion.1", 1000 * k + 10, 100)
    space.profiled(1_700_000_000_000_000_000, 1_700_000_000_010_000_000)
    return space.write(path)


def write(folder: Path, batches: list[dict[str, Any]], prefix: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for k, batch in enumerate(batches):
        (folder / f"{prefix}batch_composition_stats_{k}.json").write_text(json.dumps(batch))


def test_steps_get_the_facts_and_the_phase_of_their_batch(tmp_path: Path, tables_in: Any) -> None:
    served(tmp_path / "c" / "vm.xplane.pb")
    write(tmp_path / "c", BATCHES)
    result = ingest_one(tmp_path / "c", tmp_path / "w")
    query = tables_in(tmp_path / "w")
    assert query("SELECT * EXCLUDE (run_id) FROM step_batches ORDER BY position") == [
        (0, 0, 0, 10, "prefill_only", 100, 100, 0, 128, 1, 7),
        (0, 1, 1, 11, "prefill_heavy", 54, 50, 4, 64, 5, 7),
        (0, 2, 2, 12, "decode_only", 5, 0, 5, 8, 6, 100),
    ]
    assert query("SELECT step, phase FROM ops WHERE line = 'XLA Ops' ORDER BY start_ps") == [
        (0, "prefill"),
        (1, "mixed"),
        (2, "decode"),
    ]
    assert "batches_unmatched" not in result.entry.flags


def test_other_batches_make_another_version_of_the_run(tmp_path: Path, tables_in: Any) -> None:
    served(tmp_path / "c" / "vm.xplane.pb")
    assert ingest_one(tmp_path / "c", tmp_path / "w").status == "ingested"
    write(tmp_path / "c", BATCHES)
    assert ingest_one(tmp_path / "c", tmp_path / "w").status == "ingested"
    assert ingest_one(tmp_path / "c", tmp_path / "w").status == "unchanged"
    assert tables_in(tmp_path / "w")("SELECT count(*) FROM step_batches") == [(3,)]


def test_as_many_batches_as_steps_or_none_is_joined(tmp_path: Path, tables_in: Any) -> None:
    served(tmp_path / "c" / "vm.xplane.pb", steps=4)
    write(tmp_path / "c", BATCHES)
    result = ingest_one(tmp_path / "c", tmp_path / "w")
    assert "batches_unmatched" in result.entry.flags
    assert "the server tells of 3 batches, the capture has 4 steps" in result.notes
    assert tables_in(tmp_path / "w")("SELECT DISTINCT step FROM step_batches") == [(None,)]


def test_ranks_are_one_run_and_have_batches_of_their_own(tmp_path: Path, tables_in: Any) -> None:
    for rank in range(2):
        served(tmp_path / "c" / f"dp{rank}_vm.xplane.pb", steps=3 - rank)
        write(tmp_path / "c", BATCHES[rank:], prefix=f"dp{rank}_")
    [capture] = find_captures(tmp_path / "c")
    assert (capture.name, len(capture.files)) == ("vm", 2)
    ingest_one(tmp_path / "c", tmp_path / "w")
    rows = tables_in(tmp_path / "w")("SELECT rank, batch_id, step IS NULL FROM step_batches ORDER BY ALL")
    assert rows == [(0, 10, False), (0, 11, False), (0, 12, False), (1, 11, False), (1, 12, False)]


@pytest.mark.parametrize(
    ("captures", "batches"),
    [
        # one process: batches beside plugins/, as tpu-inference wrote them first, or left in the folder of its rank
        (["plugins/profile/t/vm"], [""]),
        (["plugins/profile/t/vm"], ["dp_rank_0"]),
        # the captures of all ranks moved together
        (["plugins/profile/t/dp0_vm", "plugins/profile/t/dp1_vm"], ["dp_rank_0", "dp_rank_1"]),
        (["plugins/profile/t/rank0_vm", "plugins/profile/t/rank1_vm"], ["rank_0", "rank_1"]),
        # those of servers behind a load balancer, each of which takes itself for rank 0
        ([f"dp_rank_{n}/plugins/profile/t/vm" for n in range(2)], ["dp_rank_0/dp_rank_0", "dp_rank_1/dp_rank_0"]),
        ([f"dp_rank_{n}/plugins/profile/t/vm" for n in range(2)], ["dp_rank_0", "dp_rank_1"]),
        (["dp_rank_0/dp0_vm", "dp_rank_1/dp1_vm"], ["dp_rank_0", "dp_rank_1"]),
    ],
)  # fmt: skip
def test_batches_belong_to_their_rank_wherever_the_server_writes_them(
    tmp_path: Path, tables_in: Any, captures: list[str], batches: list[str]
) -> None:
    """The last batch of each rank is the one before which the server stopped the profiler."""
    home = tmp_path / "logs" / "decode_only"
    for rank, (capture, folder) in enumerate(zip(captures, batches, strict=True)):
        served(home / f"{capture}.xplane.pb", steps=2 - rank)
        write(home / folder, BATCHES[rank:])
    [whole] = find_whole_captures(tmp_path / "logs")
    assert whole.name == ("decode_only/t" if "plugins" in captures[0] else "vm")
    result = ingest_one(tmp_path / "logs", tmp_path / "w")
    ranks = [(0, 0, 10), (0, 1, 11), (0, None, 12), (1, 0, 11), (1, None, 12)][: 5 if len(captures) > 1 else 3]
    query = tables_in(tmp_path / "w")
    assert query("SELECT rank, step, batch_id FROM step_batches ORDER BY rank, position") == ranks
    assert "batches_unmatched" not in result.entry.flags
    assert (
        query("SELECT device_id, phase FROM ops WHERE line = 'XLA Ops' AND step = 0 ORDER BY 1")
        == [
            (0, "prefill"),
            (1, "mixed"),
        ][: len(captures)]
    )


def test_the_file_of_all_batches_adds_to_those_of_steps(tmp_path: Path) -> None:
    write(tmp_path, [{"batch_id": 12, "num_reqs": 3}, {"batch_id": 9}])
    every = tmp_path / "all_batches_stats_0.jsonl"
    every.write_text("\n".join(json.dumps(b) for b in BATCHES) + "\n")
    found = read_batches([BatchFile(p, 0) for p in (*sorted(tmp_path.glob("batch_*")), every)])
    assert [(b.batch_id, b.requests, b.min_kv_length) for b in found] == [(9, None, None), (12, 3, 100)]
    assert [b.batch_id for b in read_batches([BatchFile(every, 0)])] == [10, 11, 12]


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("dp3_batch_composition_stats_1.json", 3),
        ("dp_rank_12/a.json", 12),
        ("rank_2/dp_rank_1/decode_only/rank7_vm.xplane.pb", 7),
        ("rank_2/dp_rank_1/decode_only/plugins/profile/t/vm.xplane.pb", 1),
        ("decode/a.json", 0),
    ],
)
def test_ranks_by_name(path: str, rank: int) -> None:
    assert server_rank(Path(path)) == rank


@pytest.mark.parametrize(
    ("prefill", "decode", "phase"),
    [(4, 0, "prefill"), (0, 4, "decode"), (4, 4, "mixed"), (None, 4, None), (0, 0, None)],
)
def test_the_phase_of_a_batch_of_no_kind(prefill: int | None, decode: int | None, phase: str | None) -> None:
    assert Batch(0, 0, prefill_tokens=prefill, decode_tokens=decode).phase == phase


@pytest.mark.parametrize(
    ("kind", "prefill", "decode", "phase"),
    [
        ("decode_heavy", 0, 5, "decode"),  # a server of 2025, which had no decode_only
        ("prefill_heavy", 900, 0, "prefill"),
        ("prefill_heavy", 900, 2, "mixed"),
        ("ambiguous", 30, 70, "mixed"),
        ("balanced", None, None, "mixed"),
        ("decode_only", None, None, "decode"),
        ("not_determined", None, None, None),
    ],
)
def test_tokens_say_more_of_a_batch_than_its_kind(
    kind: str, prefill: int | None, decode: int | None, phase: str | None
) -> None:
    assert Batch(0, 0, kind=kind, prefill_tokens=prefill, decode_tokens=decode).phase == phase


@pytest.mark.parametrize("prefix", ["dp0_", ""])
def test_batches_of_one_rank_are_not_joined_to_another(tmp_path: Path, tables_in: Any, prefix: str) -> None:
    """Files without a prefix are of rank 0."""
    for rank in range(2):
        served(tmp_path / "c" / f"dp{rank}_vm.xplane.pb", steps=3 - rank)
    write(tmp_path / "c", BATCHES, prefix=prefix)
    result = ingest_one(tmp_path / "c", tmp_path / "w")
    assert "rank 1: the server tells of 0 batches, the capture has 2 steps" in result.notes
    assert tables_in(tmp_path / "w")(
        "SELECT device_id, step, phase FROM ops WHERE line = 'XLA Ops' ORDER BY device_id, start_ps"
    ) == [(0, 0, "prefill"), (0, 1, "mixed"), (0, 2, "decode"), (1, 0, None), (1, 1, None)]


def test_batches_of_one_id_are_not_joined(tmp_path: Path, tables_in: Any) -> None:
    served(tmp_path / "c" / "vm.xplane.pb")
    write(tmp_path / "c", [BATCHES[0], *BATCHES[:2]])
    result = ingest_one(tmp_path / "c", tmp_path / "w")
    assert "the server tells of several batches with id 10" in result.notes
    assert tables_in(tmp_path / "w")("SELECT DISTINCT step FROM step_batches") == [(None,)]


@pytest.mark.parametrize(
    ("name", "value", "looked_for"),
    [
        ("num_prefill_tokens", "100", "a whole number from 0 on as num_prefill_tokens, found '100'"),
        ("num_reqs", -3, "a whole number from 0 on as num_reqs, found '-3'"),
        ("min_kv_len", 7.5, "a whole number from 0 on as min_kv_len, found '7.5'"),
        ("batch_id", 1 << 70, "a whole number from 0 on as batch_id, found '1180"),
        ("total_num_scheduled_tokens", True, "a whole number from 0 on as total_num_scheduled_tokens, found 'True'"),
        ("phase", 5, "a text as phase, found '5'"),
    ],
)
def test_a_fact_of_a_wrong_type_is_refused(tmp_path: Path, name: str, value: object, looked_for: str) -> None:
    served(tmp_path / "c" / "vm.xplane.pb")
    write(tmp_path / "c", [BATCHES[0], BATCHES[1] | {name: value}, BATCHES[2]])
    with pytest.raises(CaptureError, match=rf"batch_composition_stats_1\.json: looked for {looked_for}"):
        ingest_one(tmp_path / "c", tmp_path / "w")


def test_a_folder_of_many_hosts_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[Path] = []
    monkeypatch.setattr(batches, "_batches_in", lambda folder: listed.append(folder) or [])
    assert batches.batch_files([tmp_path / f"{i}.xplane.pb" for i in range(9)]) == []
    assert listed == [tmp_path]
