"""Real captures: every event, stat and metadata equals what protobuf's own parser reads."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from xplane_reference import decoded, read_xplane, reference

EVENTS = {
    "tpu-v6e-4chip-host-offload": 26_723,
    "tpu-2chip-vllm-tp2-prefill": 10_312,
    "gpu-mi300-jax-gemm": 3_782,
    "cpu/cpu_llama_tp4": 16_027,
    "cpu/cpu_llama_sp_tp4": 8_864,
    "cpu/cpu_llama_pp2tp2": 13_462,
    "cpu/cpu_llama_ppmp_host0": 4_771,
    "cpu/cpu_llama_ppmp_host1": 4_992,
    "cpu/cpu_qwen3_dp2tp2": 8_944,
    "cpu/cpu_deepseekv2_ep4": 32_298,
    "cpu/cpu_deepseekv3_dp2ep2tp2": 39_903,
}


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_equals_protobufs_plain_and_gzipped(name: str, shared_traces: Path, tmp_path: Path) -> None:
    plain = shared_traces / f"{name}.xplane.pb"
    want = reference(plain.read_bytes())
    assert want.event_count == EVENTS[name]
    trace = read_xplane(plain)
    assert decoded(trace) == want
    packed = tmp_path / "renamed.bin"
    packed.write_bytes(gzip.compress(plain.read_bytes(), 1))
    unpacked = read_xplane(packed)
    assert (unpacked.digest, unpacked.size) == (trace.digest, trace.size)
    assert decoded(unpacked) == want


def test_every_other_capture_equals_protobufs(shared_traces: Path) -> None:
    named = {shared_traces / f"{name}.xplane.pb" for name in EVENTS}
    for file in sorted({*shared_traces.rglob("*.xplane.pb"), *shared_traces.rglob("*.xplane.pb.gz")} - named):
        content = file.read_bytes()
        want = reference(gzip.decompress(content) if file.suffix == ".gz" else content)
        assert decoded(read_xplane(file)) == want, file.name
