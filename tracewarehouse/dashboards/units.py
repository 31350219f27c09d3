"""Writes values with units as people read them: 338 MB, 67.2 ms, 41 %."""

from __future__ import annotations

from math import isfinite

# for each unit, the factor to the base unit, and the base unit
_BASES = {
    "s": (1.0, "s"),
    "ms": (1e-3, "s"),
    "us": (1e-6, "s"),
    "ns": (1e-9, "s"),
    "ps": (1e-12, "s"),
    "bytes": (1.0, "B"),
    "GB/s": (1e9, "B/s"),
    "FLOP/s": (1.0, "FLOP/s"),
    "FLOP": (1.0, "FLOP"),
}
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"))


def quantity(value: float | None, unit: str = "") -> str:
    """A value with three or four digits, the prefix that leaves the fewest zeros, and its unit.

    Args:
        value: the value; None is shown as nothing.
        unit: its unit as in the metrics, such as ms, bytes or ratio; a ratio is shown in percent.
    """
    if value is None:
        return ""
    if not isfinite(value):
        return f"{value} {unit}".strip()
    if unit == "ratio":
        return f"{digits(100 * value)} %"
    if unit not in _BASES:
        return f"{digits(value)} {unit if unit != 'count' else ''}".strip()
    factor, base = _BASES[unit]
    in_base = value * factor
    steps = _PREFIXES if base != "s" else _SMALL
    size, prefix = next(((s, p) for s, p in steps if abs(in_base) >= 0.9995 * s), steps[-1])
    if in_base == 0:
        size, prefix = 1.0, ""
    return f"{digits(in_base / size)} {prefix}{base}"


def digits(value: float) -> str:
    """A number with three significant digits, or all digits before the point: 0.0994, 67.2, 1,352."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-4 else f"{value:.2e}"
