"""Efficiency of matrix products and stragglers of the vLLM capture, from its bytes; no other tool gives them."""

from __future__ import annotations

import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from numbers_from_bytes import COLLECTIVE, Event, events_of

from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.xplane.plain import plain_planes
from tracewarehouse.warehouse import Warehouse, open_warehouse

NAME = "tpu-2chip-vllm-tp2-prefill.xplane.pb"
PEAK = 918e12
"""Of a TPU v6e in bf16, by its data sheet."""
_CARD = "workload: {hardware: {xpu_spec: {type: TPU, model: v6e, total_count: 2}}}\n"


@pytest.fixture(scope="module")
def served(shared_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """The capture, with a card that names the chips, which it does not."""
    folder = tmp_path_factory.mktemp("served")
    capture = folder / "capture"
    capture.mkdir()
    shutil.copy(shared_traces / NAME, capture)
    (capture / "card.yaml").write_text(_CARD)
    with open_warehouse(folder / "warehouse", create=True) as warehouse:
        warehouse.ingest(capture)
        yield warehouse


@pytest.fixture(scope="module")
def op_lines(shared_traces: Path) -> list[list[Event]]:
    """The op line of each device, by protobuf's own parser."""
    planes = [p for p in plain_planes(CaptureFile(shared_traces / NAME)) if re.fullmatch(r"/device:TPU:\d+", p.name)]
    return [
        sorted(events_of(p, line), key=lambda e: e.start) for p in planes for line in p.lines if line.name == "XLA Ops"
    ]


def test_efficiency_by_shape(served: Warehouse, op_lines: list[list[Event]]) -> None:
    times: dict[tuple[str, int], list[int]] = defaultdict(list)
    for e in (e for line in op_lines for e in line if "convolution" in e.category and e.stats.get("model_flops")):
        shape = re.match(r"%\S+ = ([a-z0-9]+\[[0-9,]*\])", e.name)
        assert shape
        times[shape[1], e.stats["model_flops"]].append(e.end - e.start)
    expected = {key: 1e12 * key[1] * len(found) / (sum(found) * PEAK) for key, found in times.items()}
    rows = served.query("SELECT shape, flops, efficiency FROM metrics.gemm_efficiency").rows()
    assert len(expected) == 8
    assert {(shape, flops): efficiency for shape, flops, efficiency in rows} == pytest.approx(expected)


def test_which_device_is_last(served: Warehouse, op_lines: list[list[Event]]) -> None:
    """Both devices run the same collectives in the same order; the one that starts later is last."""
    pairs = list(zip(*([e for e in line if COLLECTIVE.fullmatch(e.category)] for line in op_lines), strict=True))
    assert all(a.name.partition(" ")[0] == b.name.partition(" ")[0] for a, b in pairs)
    last = Counter(0 if a.start >= b.start else 1 for a, b in pairs)
    rows = served.query("SELECT device_id, last_share FROM metrics.straggler_ranking").rows()
    assert dict(rows) == pytest.approx({device: last[device] / len(pairs) for device in (0, 1)})
