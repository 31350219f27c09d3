"""Values are shown as people read them."""

from __future__ import annotations

import pytest

from tracewarehouse.dashboards.words import quantity


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (1_352_663_040, "bytes", "1.35 GB"),
        (96, "bytes", "96 B"),
        (0, "bytes", "0 B"),
        (67.243, "ms", "67.2 ms"),
        (0.0994, "ms", "99.4 µs"),
        (1500, "us", "1.5 ms"),
        (0.9999, "us", "1 µs"),
        (4800, "ms", "4.8 s"),
        (7200, "s", "7,200 s"),
        (-0.002, "ms", "-2 µs"),
        (0.4567, "ratio", "45.7 %"),
        (5.02, "%", "5.02 %"),
        (0.000186, "%", "under 0.01 %"),
        (0.0, "%", "0 %"),
        (1041, "GB/s", "1.04 TB/s"),
        (918e12, "FLOP/s", "918 TFLOP/s"),
        (131, "count", "131"),
        (2021.4, "tokens/s", "2,021 tokens/s"),
        (None, "ms", ""),
        (float("inf"), "ms", "inf ms"),
    ],
)
def test_quantity(value: float | None, unit: str, shown: str) -> None:
    assert quantity(value, unit) == shown
