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
from tracewarehouse.predict.calibrations import Calibration, PredictionError, calibrated
from tracewarehouse.predict.collectives import ProgramCollectives
from tracewarehouse.predict.links import algorithm
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


_Points = list[tuple[float, MeasuredProgram]]
"""Measured programs beside what their times are compared with: bytes on a link, or the predicted microseconds."""


def fitted(
    machine: Machine, programs: Iterable[MeasuredProgram], source: str
) -> tuple[list[Calibration], dict[str, str]]:
    """Return the rates that collectives and products show, and why others show none, by what they are.

    Args:
        machine: the slice on which they ran, with the rates that ship.
        programs: what was measured.
        source: what the rows name as their source.
    """
    lines: defaultdict[str, _Points] = defaultdict(list)
    factors: defaultdict[tuple[str, str | None], _Points] = defaultdict(list)
    unused: dict[str, str] = {}
    for measured in programs:
        is_product = measured.kind == "product"
        named = f"product {measured.what}" if is_product else f"{measured.of_class} of {measured.what} bytes"
        if measured.low_us <= 0:
            unused[named] = "some executions took no time"
            continue
        schedule = Schedule(measured.module.raw)
        ops = [each for op in schedule.ops(schedule.entry) for each in (op, *schedule.inside(op))]
        if is_product:
            if base := _product_us(ops, machine):
                factors["product", None].append((base, measured))
            else:
                unused[named] = "it waits for HBM, or the compiler states no cycles"
            continue
        found = ProgramCollectives(measured.module, schedule, machine)
        every = [each for op in ops if (each := found.find(op))]
        by_size = {(each.collective.kind, str(each.collective.message_bytes)): each for each in every}
        placed = by_size.get((measured.of_class, measured.what))
        if placed is None:
            unused[named] = "the program in the capture has no such collective"
            continue
        used = algorithm(machine.topology, placed.collective)
        lines[used.name].append((used.busiest_bytes, measured))
        small, die = placed.collective.message_bytes < _SMALL, not used.link_bytes or used.form == "die"
        variant = " ".join(["small"] * small + ["die"] * die)
        factors[measured.of_class, variant or None].append((placed.time.mid_ps / 1e6, measured))
    generation = machine.topology.generation
    rows = calibrated((_error(*of, points) for of, points in factors.items()), generation, machine.rates, source)
    for name, points in lines.items():
        line = _line(name, points, generation, source)
        rows += line
        if not line:
            sizes = len({size for size, _ in points})
            unused[name] = f"no line fits its {sizes} sizes; {LEAST_SIZES} are needed, with times that grow"
    return rows, unused


def _product_us(ops: Sequence[ScheduledOp], machine: Machine) -> float | None:
    """Return the time of the largest product by the compiler's cycles and the factor; None if it waits for HBM."""
    products = [op for op in ops if op.cycles and (op.cost_model == "CLASSIC" or op.fusion_kind == "kOutput")]
    largest = max(products, key=lambda op: op.cycles or 0, default=None)
    time_ps = (largest.cycles or 0) / machine.rate("clock", "hz") * 1e12 if largest else 0.0
    if largest is None or is_hbm_bound(hbm_bytes(largest.buffers), time_ps, machine):
        return None
    return time_ps / 1e6 * machine.rate("product", "factor")


def _error(kind: str, variant: str | None, points: _Points) -> PredictionError:
    """Return how measured times compare with predicted ones: of nine in ten of them, the median, and of one in ten."""
    low, mid, high = _ratios(points)
    count = sum(p.n for _, p in points)
    return PredictionError(
        kind, variant, None, count, low, mid, high, sum(p.n * p.value_us / 1e3 for _, p in points), 1.0
    )


def _line(name: str, points: _Points, generation: str, source: str) -> list[Calibration]:
    """Return latency and rate of an algorithm by the line with the least squares of relative errors; none if none fits.

    Relative ones, since the times are of microseconds and of milliseconds. The range is that of times over the line.
    """
    scaled = [(1 / p.value_us, size / p.value_us) for size, p in points]
    ones, xs = math.fsum(a for a, _ in scaled), math.fsum(b for _, b in scaled)
    squares, mixed, x_squares = (math.fsum(s) for s in zip(*((a * a, a * b, b * b) for a, b in scaled), strict=True))
    determinant = squares * x_squares - mixed * mixed
    if len({size for size, _ in points}) < LEAST_SIZES or determinant <= 0:
        return []
    latency, per_byte = (ones * x_squares - xs * mixed) / determinant, (xs * squares - ones * mixed) / determinant
    if latency <= 0 or per_byte <= 0:
        return []
    low, _, high = _ratios([(latency + per_byte * size, p) for size, p in points])
    count, rate = sum(p.n for _, p in points), 1e-3 / per_byte
    return [
        Calibration("link", generation, name, "us", latency, latency * low, latency * high, count, source).widened,
        Calibration("link", generation, name, "gbps", rate, rate / high, rate / low, count, source).widened,
    ]


def _ratios(points: _Points) -> tuple[float, float, float]:
    """Return the percentiles 10, 50 and 90, by nearest rank, of the low, median and high times over expected ones."""
    low, mid, high = (
        sorted(getattr(p, name) / base for base, p in points)[max(math.ceil(share * len(points)) - 1, 0)]
        for name, share in (("low_us", 0.1), ("value_us", 0.5), ("high_us", 0.9))
    )
    return low, mid, high
