"""Reads what chips and links reach: rows with a value, the range it lies in, and its source.

`calibrations.csv` beside this module ships with the package. A warehouse may hold a file of the same form, with what
its owner measured. Its rows win.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple, get_args

from tracewarehouse.ingest.errors import CaptureError, shown
from tracewarehouse.ingest.hlo.collectives import KINDS
from tracewarehouse.ingest.hlo.opcodes import attention_form
from tracewarehouse.predict.geometry import Form

FILE = "calibrations.csv"
"""Name of the file in a warehouse that holds its owner's rows."""
LEAST_POINTS = 20
"""Instructions that a kind of op must have in common with a prediction before they change a rate."""
LEAST_SHARE = 0.5
"""Share of the measured time of that kind that these must take: a few ops do not speak for all."""
LEAST_SPREAD = 0.05
"""Half of the narrowest range: ops of one run repeat a few shapes, and others may differ more."""
EVERY_CHIP = "*"
"""The chip of a row that holds for all chips without a row of their own."""


class Calibration(NamedTuple):
    """One number of a chip or its links.

    Attributes:
        kind: machine (rates of a chip), link (of its links) or factor (measured / predicted time of a class of ops).
        chip: generation as topologies name it, such as v6e, or EVERY_CHIP.
        what: name of the number, with its unit.
        low, high: the range in which the true value is believed to lie.
        n: measurements behind it; 0 is a public statement or a judgement.
    """

    kind: str
    chip: str
    class_: str
    what: str
    value: float
    low: float
    high: float
    n: int
    source: str

    @property
    def widened(self) -> Calibration:
        """The row with LEAST_SPREAD on both sides of its value at least."""
        return self._replace(
            low=min(self.low, self.value * (1 - LEAST_SPREAD)), high=max(self.high, self.value * (1 + LEAST_SPREAD))
        )


COLUMNS = tuple(name.rstrip("_") for name in Calibration._fields)
_MEASURED_ALONE = frozenset(
    {("host_step", "ms"), *(("ragged_attention", what) for what in ("prompt_share", "share", "sequence_ns"))}
)
"""Rates that no shipped row has, by class and name: predictions use them where their owner measured them."""
_LINE = {"us": "gbps", "gbps": "us"}
"""The two rates of a line through the times of a collective's algorithm, which says nothing without both."""
_ALGORITHM = re.compile(
    rf"({'|'.join(map(re.escape, sorted(KINDS)))}) ({'|'.join(get_args(Form))}|[0-9]+ hops?)( [0-9]+)?"
    r"( stride [0-9]+)?( on SparseCores)?"
)
"""Class of the rates of a line: the name that predict.links gives an algorithm."""


@cache
def shipped() -> tuple[Calibration, ...]:
    """Return the rows that ship with the package."""
    text = (files("tracewarehouse") / "predict" / "calibrations.csv").read_text(encoding="utf-8")
    return _rows(text.splitlines(keepends=True), "calibrations.csv")


def read_calibrations(path: Path) -> tuple[Calibration, ...]:
    """Return the rows of a file; none if it does not exist.

    Raises:
        CaptureError: it is no such table, or has a row that no prediction would use.
    """
    if not path.exists():
        return ()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CaptureError(f"{path} cannot be read as a table of calibrations: {error}") from None
    rows = _rows(text.splitlines(keepends=True), path.name)
    for number, row in enumerate(rows, 2):
        if why := _unused(row, rows):
            raise CaptureError(f"line {number} of {path.name} would change no prediction: {why}")
    return rows


def _unused(row: Calibration, rows: Sequence[Calibration]) -> str | None:
    """Return why no prediction uses a row of a table; None if one may."""
    chips = sorted({each.chip for each in shipped()})
    if row.chip not in chips:
        return f"no chip is named {shown(row.chip)!r}; there are {', '.join(chips)}"
    if row.what in _LINE and _ALGORITHM.fullmatch(row.class_):
        other = _LINE[row.what]
        has_both = any(
            (r.class_, r.what) == (row.class_, other) and (r.chip == row.chip or EVERY_CHIP in (r.chip, row.chip))
            for r in rows
        )
        return None if has_both else f"its algorithm also needs a row with {other}"
    names = {(each.class_, each.what) for each in shipped()} | _MEASURED_ALONE
    if (row.class_, row.what) in names:
        return None
    of_class = sorted(what for class_, what in names if class_ == row.class_)
    close = get_close_matches(row.class_, sorted({class_ for class_, _ in names}), n=1)
    known = f"; that class has {', '.join(of_class)}" if of_class else f"; did you mean {close[0]}?" if close else ""
    return f"no rate is named {shown(row.what)!r} of class {shown(row.class_)!r}{known}"


def rates(generation: str, own: Iterable[Calibration] = ()) -> Mapping[tuple[str, str], Calibration]:
    """Return the numbers of a chip by class and name, such as ('ici', 'gbps').

    A row of the chip wins over one of every chip, and a row of `own` over one that ships.
    """
    ranked = (*of_chip(shipped(), generation), *of_chip(own, generation))
    return {(row.class_, row.what): row for row in ranked}


def of_chip(rows: Iterable[Calibration], generation: str) -> tuple[Calibration, ...]:
    """Return the rows that predictions of a chip use: those of every chip, and behind them its own."""
    known = tuple(rows)
    return tuple(row for chip in (EVERY_CHIP, generation) for row in known if row.chip == chip)


def _rows(lines: Iterable[str], name: str) -> tuple[Calibration, ...]:
    reader = csv.DictReader(lines)
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise CaptureError(
            f"{name} is no table of calibrations: its first line is {shown(','.join(reader.fieldnames or ()))!r}, "
            f"and should be {','.join(COLUMNS)!r}"
        )
    rows = []
    for number, cells in enumerate(reader, 2):
        try:
            numbers = (float(cells["value"]), float(cells["low"]), float(cells["high"]))
            row = Calibration(
                cells["kind"], cells["chip"], cells["class"], cells["what"], *numbers, int(cells["n"]), cells["source"]
            )
        except (TypeError, ValueError):
            raise CaptureError(
                f"line {number} of {name} is no calibration: value, low, high and n are numbers"
            ) from None
        if not 1e-6 <= row.low <= row.value <= row.high <= 1e15:
            raise CaptureError(
                f"line {number} of {name} is no calibration: expected 1e-6 <= low <= value <= high <= 1e15"
            )
        rows.append(row)
    return tuple(rows)


class PredictionError(NamedTuple):
    """How long ops of one kind took against their prediction; a row of metrics.prediction_error.

    Attributes:
        op_kind, variant: kind of op, as models.signed_times has it.
        phase: prefill, decode or mixed, if it is known.
        n: instructions that were compared.
        p10, p50, p90: percentiles of measured / predicted time.
        measured_ms: their measured time.
        matched_share: their share of the time of all ops of the kind.
    """

    op_kind: str
    variant: str | None
    phase: str | None
    n: int
    p10: float
    p50: float
    p90: float
    measured_ms: float
    matched_share: float

    @property
    def is_enough(self) -> bool:
        """Whether it may change rates."""
        return self.n >= LEAST_POINTS and self.matched_share >= LEAST_SHARE

    @property
    def rates(self) -> tuple[tuple[str, str, int], ...]:
        """The rates that decide the time: class, name, and whether it grows with them (1) or falls (-1).

        The products of a decode step wait for HBM, so they say nothing of the matrix units.
        """
        name = self.variant or ""
        if self.op_kind == "kernel":
            form = attention_form(name)
            kernel = "flash_attention" if form == "flash" else "paged_attention" if form else "other_kernel"
            return ((kernel, "share", -1),)
        if self.op_kind == "product":
            return () if self.phase == "decode" else (("product", "factor", 1),)
        if self.op_kind in _RINGS:
            return _OF_RINGS.get(name, ())
        return _OF_OTHERS.get((self.op_kind, name), ())

    @property
    def named(self) -> str:
        """The kind of op in words."""
        return f"{self.op_kind} ({self.variant})" if self.variant else self.op_kind


_RINGS = ("all-reduce", "all-gather", "reduce-scatter")
_OF_RINGS: dict[str, tuple[tuple[str, str, int], ...]] = {
    "": (("ici", "gbps", -1),),
    "die": (("die", "gbps", -1),),
    "small": (("start", "us", 1), ("hop", "us", 1)),
}
_OF_OTHERS: dict[tuple[str, str], tuple[tuple[str, str, int], ...]] = {
    ("all-to-all", "small"): (("all_to_all", "us", 1),),
    ("vector", "VMEM"): (("loop_fusion", "elementwise_factor", 1), ("reduction", "bytes_per_cycle", -1)),
}


def calibrated(
    errors: Iterable[PredictionError], generation: str, base: Mapping[tuple[str, str], Calibration], source: str
) -> list[Calibration]:
    """Return the rows that follow from what ops took, in place of the rates `base` with which they were predicted.

    A rate takes the median of the kind of op that has the most measured time of those it decides, and its range is that
    of eight in ten ops. Kinds of which too few ops were compared change nothing.
    """
    found: dict[tuple[str, str], Calibration] = {}
    for error in sorted(errors, key=lambda e: e.measured_ms, reverse=True):
        for class_, what, sign in error.rates:
            old = base.get((class_, what))
            if not error.is_enough or old is None or (class_, what) in found:
                continue
            low, mid, high = sorted(ratio**sign for ratio in (error.p10, error.p50, error.p90))
            ends = old.value * mid, old.value * low, old.value * high
            found[class_, what] = Calibration(old.kind, generation, class_, what, *ends, error.n, source).widened
    return list(found.values())


def with_rows(own: Iterable[Calibration], new: Iterable[Calibration]) -> tuple[Calibration, ...]:
    """Return one's own rows with new ones in the place of those for the same number of the same chip."""
    rows = {(row.chip, row.class_, row.what): row for row in (*own, *new)}
    return tuple(rows[key] for key in sorted(rows))


def write_calibrations(path: Path, rows: Iterable[Calibration]) -> None:
    """Write a table of calibrations, whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(
        row._replace(value=_digits(row.value), low=_digits(row.low), high=_digits(row.high)) for row in rows
    )
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(text.getvalue(), encoding="utf-8")
    beside.replace(path)


def described(own: Iterable[Calibration]) -> str | None:
    """Return what a prediction says of the rows that its user measured of its chip; None if there are none.

    Equal rows have equal words, so that a later calibration knows with which rates a run was predicted.
    """
    rows = sorted(own)
    if not rows:
        return None
    digest = hashlib.sha256(repr([r._replace(source="") for r in rows]).encode()).hexdigest()
    return f"{FILE} with {len(rows)} rows, {digest[:12]}"


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
