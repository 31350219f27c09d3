"""Times that are read all at once are those that the digits say, one by one."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tracewarehouse.ingest.readers.chrome.values import INT64_MAX, PS_PER_US, exact_picoseconds, picoseconds

_DIGITS = st.text("0123456789", max_size=24)
NUMBERS = st.builds(
    lambda sign, whole, rest: f"{sign}{whole.lstrip('0') or '0'}{'.' + rest if rest else ''}",
    st.sampled_from(["", "", "-"]),
    st.text("0123456789", max_size=19),
    _DIGITS,
)


@given(st.lists(NUMBERS | st.just(""), max_size=6), st.integers(0, 10**18))
@example(["9223372036854.775807", "-9223372036854.775808", "9223372036854.7758075"], 0)
@example(["0.0000005", "-0.0000005", "0.00000049999", "-0", "0.9999995"], 0)
@example(["1700000000000000.4999999", "1700000000000001"], 1700000000000000)
def test_many_at_once_are_as_each_alone(texts: list[str], origin_us: int) -> None:
    values, known = picoseconds([msgspec.Raw(t.encode()) for t in texts], origin_us)
    exact = [exact_picoseconds(t.encode()) for t in texts]
    expected = [None if v is None else v - origin_us * PS_PER_US for v in exact]
    expected = [v if v is not None and abs(v) <= INT64_MAX else None for v in expected]
    assert (values.dtype, known.dtype) == (np.int64, np.bool_)
    assert [v if k else None for v, k in zip(values.tolist(), known.tolist(), strict=True)] == expected
