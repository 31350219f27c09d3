"""Real captures: every event, stat and metadata equals what protobuf's own parser reads."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from xplane_reference import decoded, read_xplane, reference

from tracewarehouse.ingest.readers.xplane.reader import profile_window

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
V6E = "tpu-v6e-4chip-host-offload.xplane.pb"


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


class TestV6e:
    def test_counts_per_line(self, shared_traces: Path) -> None:
        trace = read_xplane(shared_traces / V6E)
        counts = {
            (plane.name, line.name): sum(len(b) for b in trace.batches(plane, line))
            for plane in trace.planes
            for line in plane.lines
            if plane.name.startswith("/device:TPU")
        }
        expected = {
            ("/device:TPU:0", "XLA Modules"): 105,
            ("/device:TPU:0", "XLA Ops"): 1504,
            ("/device:TPU:0", "Async XLA Ops"): 600,
            ("/device:TPU:0", "XLA TraceMe"): 108,
        }
        for device in (1, 2, 3):
            expected[f"/device:TPU:{device}", "XLA Modules"] = 103
            expected[f"/device:TPU:{device}", "XLA Ops"] = 1503
            expected[f"/device:TPU:{device}", "XLA TraceMe"] = 106
        assert {key: n for key, n in counts.items() if n} == expected
        host = [p for p in trace.planes if p.name == "/host:CPU"]
        assert [len(p.lines) for p in host] == [122]
        assert sum(len(b) for p in host for n in p.lines for b in trace.batches(p, n)) == 19_270

    def test_plane_stats(self, shared_traces: Path) -> None:
        planes = {p.name: {s.name: s.value for s in p.stats} for p in read_xplane(shared_traces / V6E).planes}
        device = planes["/device:TPU:0"]
        assert device["device_type_string"] == "TPU v6 Lite"
        assert device["peak_teraflops_per_second"] == 918
        assert device["peak_hbm_bw_gigabytes_per_second"] == pytest.approx(1637.99, abs=0.01)
        start = profile_window(shared_traces / V6E)
        assert start is not None
        assert start[0] == 1_741_722_099_081_044_120

    def test_hlo_protos(self, shared_traces: Path) -> None:
        (plane,) = (p for p in read_xplane(shared_traces / V6E).planes if p.name == "/host:metadata")
        assert [s.name for m in plane.event_metadata for s in m.stats].count("Hlo Proto") == 4
