"""Metrics of a server's batches, from files to numbers: a made-up capture with a truth that is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from xplane_builder import Space

from tracewarehouse.warehouse import open_warehouse

US = 1_000_000
REQUESTS, CONTEXT, DECODES = 4, 100, 9
BASE_US, US_PER_TOKEN = 500, 0.25
HEADS_BYTES = 4 * 2 * 128 * 2
"""Keys and values of a token: four heads of each, 128 wide, in bf16."""
ATTENTION = (
    "%RPA-bq_32-bkvp_64-p_64-.1 = (bf16[8,3,2,128]{3,2,1,0}, bf16[700,64,4,2,128]{4,3,2,1,0}) "
    "custom-call(s32[] %a, bf16[8,4,2,128]{3,2,1,0} %k, bf16[700,64,4,2,128]{4,3,2,1,0:T(2,128)(2,1)} %param.18), "
    'custom_call_target="tpu_custom_call"'
)

Rows = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    """Rows of a metric of a prefill of 100 tokens in 128 and nine decode steps, each with a token more of context."""
    folder = tmp_path_factory.mktemp("served")
    capture = folder / "capture"
    capture.mkdir()
    space = Space()
    tpu = space.tpu(0)
    attention = tpu.instruction(ATTENTION, "RPA-bq_32-bkvp_64-p_64-.1", hlo_category="custom-call")
    batches = [_batch(0, CONTEXT, 0, 128, "PREFILL_ONLY", CONTEXT, 1)]
    times = [1000]
    for k in range(DECODES):
        batches.append(_batch(k + 1, 0, REQUESTS, 8, "DECODE_ONLY", CONTEXT + k, REQUESTS))
        times.append(BASE_US + int(US_PER_TOKEN * REQUESTS * (CONTEXT + k)))
    at = 0
    for us in times:
        tpu.modules.event("jit_step_fun(42)", at, us * US // 2)
        tpu.ops.event("fusion.1", at, 50 * US)
        tpu.ops.event(attention, at + 50 * US, 100 * US)
        at += us * US
    space.write(capture / "vm.xplane.pb")
    for batch in batches:
        (capture / f"batch_composition_stats_{batch['batch_id']}.json").write_text(json.dumps(batch))
    with open_warehouse(folder / "warehouse", create=True) as warehouse:
        warehouse.ingest(capture)
        yield lambda metric: warehouse.query(f"SELECT * FROM metrics.{metric}").dicts()


def _batch(number: int, prefill: int, decode: int, padded: int, kind: str, context: int, requests: int) -> Any:
    return {
        "batch_id": number,
        "total_num_scheduled_tokens": prefill + decode,
        "num_prefill_tokens": prefill,
        "num_decode_tokens": decode,
        "padded_total_num_scheduled_tokens": padded,
        "num_reqs": requests,
        "min_kv_len": context,
        "phase": kind,
    }


def test_padding(rows: Rows) -> None:
    found = {r["kind"]: (r["padding_share"], r["computed_tokens"], r["batches"]) for r in rows("padding_waste")}
    assert found == {"prefill_only": (28 / 128, 128, 1), "decode_only": (0.5, 8 * DECODES, DECODES)}


def test_the_slope_of_decode_time_on_context(rows: Rows) -> None:
    [row] = rows("decode_cost_per_context_token")
    assert (row["requests"], row["steps"], row["contexts"]) == (REQUESTS, DECODES - 1, DECODES - 1)
    assert row["us_per_token"] == pytest.approx(US_PER_TOKEN, rel=1e-6)
    assert row["low_us_per_token"] <= row["us_per_token"] <= row["high_us_per_token"]
    assert row["base_us"] == pytest.approx(BASE_US, rel=1e-6)
    assert row["r2"] == pytest.approx(1)


def test_prompt_tokens_over_the_time_of_prefill(rows: Rows) -> None:
    [row] = rows("prefill_throughput")
    assert (row["tokens"], row["token_source"], row["steps"]) == (CONTEXT, "batches", 1)
    assert row["prompt_tokens_per_s"] == pytest.approx(CONTEXT / 150e-6)


def test_what_attention_reads_and_writes_of_the_cache(rows: Rows) -> None:
    [row] = rows("kv_cache_traffic")
    contexts = [REQUESTS * (CONTEXT + k) for k in range(DECODES - 1)]
    assert row["token_bytes"] == HEADS_BYTES
    assert row["read_bytes_per_step"] == HEADS_BYTES * sum(contexts) / len(contexts)
    assert row["written_bytes_per_step"] == HEADS_BYTES * REQUESTS
    assert row["read_gbps"] == pytest.approx(row["read_bytes_per_step"] / 100e-6 / 1e9)
