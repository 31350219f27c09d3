"""Reads what chips and links reach: rows with a value, the range it lies in, and its source.

`calibrations.csv` beside this module ships with the package. A warehouse may hold a file of the same form, with what
its owner measured. Its rows win.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from tracewarehouse.ingest.errors import CaptureError, shown

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


COLUMNS = tuple(name.rstrip("_") for name in Calibration._fields)


@cache
def shipped() -> tuple[Calibration, ...]:
    """Return the rows that ship with the package."""
    text = (files("tracewarehouse") / "predict" / "calibrations.csv").read_text(encoding="utf-8")
    return _rows(text.splitlines(keepends=True), "calibrations.csv")


def read_calibrations(path: Path) -> tuple[Calibration, ...]:
    """Return the rows of a file; none if it does not exist.

    Raises:
        CaptureError: it is no table of calibrations.
    """
    if not path.exists():
        return ()
    return _rows(path.read_text(encoding="utf-8").splitlines(keepends=True), path.name)


def rates(generation: str, own: Iterable[Calibration] = ()) -> Mapping[tuple[str, str], Calibration]:
    """Return the numbers of a chip by class and name, such as ('ici', 'gbps').

    A row of the chip wins over one of every chip, and a row of `own` over one that ships.
    """
    ranked = [
        row for rows in (shipped(), tuple(own)) for chip in (EVERY_CHIP, generation) for row in rows if row.chip == chip
    ]
    return {(row.class_, row.what): row for row in ranked}


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
        if not 0 < row.low <= row.value <= row.high < float("inf"):
            raise CaptureError(f"line {number} of {name} is no calibration: expected 0 < low <= value <= high")
        rows.append(row)
    return tuple(rows)
