"""Fits rates to what the programs of the experiment calibrate took, with what the compiler says of each.

Collectives of one algorithm give a line: the time of an empty message and what a link reaches. All collectives, and the
products that computing bounds, give the factor between measured time and the time that follows from the rates that
ship, by which these rates change for whatever was not measured itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.schedule import Schedule, ScheduledOp
from tracewarehouse.predict.calibrations import LEAST_SPREAD, Calibration, PredictionError, calibrated
from tracewarehouse.predict.collectives import ProgramCollectives
from tracewarehouse.predict.links import SliceCollective, algorithm
from tracewarehouse.predict.machine import Machine
from tracewarehouse.predict.rules import hbm_bytes, is_hbm_bound

LEAST_SIZES = 3
"""Sizes of messages that a line needs: two always lie on one."""
_SMALL = 1 << 20
"""Bytes of a message below which latency counts, as models.signed_times has it."""


class MeasuredProgram(NamedTuple):
    """What a program took; times in microseconds.

    Attributes:
        kind: collective or product.
        of_class: of a collective the kind that ran.
        what: of a collective its bytes, of a product its shape.
        low_us, value_us, high_us: 10th percentile, median and 90th percentile of `n` times.
    """

    module: HloModule
    kind: str
    of_class: str
    what: str
    low_us: float
    value_us: float
    high_us: float
    n: int


class _Point(NamedTuple):
    """A measured program beside what its time is compared with: bytes on a link, or the predicted microseconds."""

    base: float
    measured: MeasuredProgram


def fitted(
    machine: Machine, programs: Iterable[MeasuredProgram], source: str
) -> tuple[list[Calibration], dict[str, str]]:
    """Return the rates that collectives and products show, and why others show none, by what they are.

    Args:
        machine: the slice on which they ran, with the rates that ship.
        programs: what was measured.
        source: what the rows name as their source.
    """
    lines: defaultdict[str, list[_Point]] = defaultdict(list)
    factors: defaultdict[tuple[str, str | None], list[_Point]] = defaultdict(list)
    unused: dict[str, str] = {}
    for measured in programs:
        schedule = Schedule(measured.module.raw)
        ops = [each for op in schedule.ops(schedule.entry) for each in (op, *schedule.inside(op))]
        if measured.kind == "product":
            if base := _product_us(ops, machine):
                factors["product", None].append(_Point(base, measured))
            else:
                unused[f"product {measured.what}"] = "it waits for HBM, or the compiler states no cycles"
            continue
        found = ProgramCollectives(measured.module, schedule, machine)
        placed = [each for op in ops if (each := found.find(op)) and _is_that(each.collective, measured)]
        if not placed:
            unused[f"{measured.of_class} of {measured.what} bytes"] = (
                "the program in the capture has no such collective"
            )
            continue
        used, is_small = algorithm(machine.topology, placed[0].collective), int(measured.what) < _SMALL
        lines[used.name].append(_Point(used.busiest_bytes, measured))
        variant = " ".join(["small"] * is_small + ["die"] * (not used.link_bytes or used.form == "die"))
        factors[measured.of_class, variant or None].append(_Point(placed[0].time.mid_ps / 1e6, measured))
    rows = calibrated(
        (_error(*kind, points) for kind, points in factors.items()), machine.topology.generation, machine.rates, source
    )
    for name, points in lines.items():
        line = _line(name, points, machine.topology.generation, source)
        rows += line
        if not line:
            sizes = len({point.base for point in points})
            unused[name] = f"no line fits its {sizes} sizes; {LEAST_SIZES} are needed, with times that grow"
    return rows, unused


def _is_that(collective: SliceCollective, measured: MeasuredProgram) -> bool:
    return (collective.kind, str(collective.message_bytes)) == (measured.of_class, measured.what)


def _product_us(ops: Sequence[ScheduledOp], machine: Machine) -> float | None:
    """Return the time of the largest product by the compiler's cycles and the factor; None if it waits for HBM."""
    products = [op for op in ops if op.cycles and (op.cost_model == "CLASSIC" or op.fusion_kind == "kOutput")]
    if not products:
        return None
    largest = max(products, key=lambda op: op.cycles or 0)
    time_ps = (largest.cycles or 0) / machine.rate("clock", "hz") * 1e12
    return (
        None
        if is_hbm_bound(hbm_bytes(largest.buffers), time_ps, machine)
        else time_ps / 1e6 * machine.rate("product", "factor")
    )


def _error(kind: str, variant: str | None, points: Sequence[_Point]) -> PredictionError:
    """Return how measured times compare with predicted ones: of nine in ten of them, the median, and of one in ten."""
    low, mid, high = (
        _percentile([getattr(p.measured, f"{name}_us") / p.base for p in points], share)
        for name, share in (("low", 0.1), ("value", 0.5), ("high", 0.9))
    )
    count = sum(p.measured.n for p in points)
    time_ms = sum(p.measured.n * p.measured.value_us for p in points) / 1e3
    return PredictionError(kind, variant, None, count, low, mid, high, time_ms, 1.0)


def _line(name: str, points: Sequence[_Point], generation: str, source: str) -> list[Calibration]:
    """Return latency and rate of an algorithm by the line with the least squares of relative errors; none if none fits.

    Relative ones, since the times are of microseconds and of milliseconds. The range is that of times over the line.
    """
    scaled = [(1 / p.measured.value_us, p.base / p.measured.value_us) for p in points]
    ones, xs = math.fsum(a for a, _ in scaled), math.fsum(b for _, b in scaled)
    squares, mixed, x_squares = (math.fsum(s) for s in zip(*((a * a, a * b, b * b) for a, b in scaled), strict=True))
    determinant = squares * x_squares - mixed * mixed
    if len({p.base for p in points}) < LEAST_SIZES or determinant <= 0:
        return []
    latency, per_byte = (ones * x_squares - xs * mixed) / determinant, (xs * squares - ones * mixed) / determinant
    if latency <= 0 or per_byte <= 0:
        return []
    low = _percentile([p.measured.low_us / (latency + per_byte * p.base) for p in points], 0.1)
    high = _percentile([p.measured.high_us / (latency + per_byte * p.base) for p in points], 0.9)
    low, high, count = min(low, 1 - LEAST_SPREAD), max(high, 1 + LEAST_SPREAD), sum(p.measured.n for p in points)
    rate = 1e-3 / per_byte
    return [
        Calibration("link", generation, name, "us", latency, latency * low, latency * high, count, source),
        Calibration("link", generation, name, "gbps", rate, rate / high, rate / low, count, source),
    ]


def _percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile by nearest rank."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]
