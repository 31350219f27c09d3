"""Draws rows as a text table without cutting anything off.

If the table is wider than the terminal, columns without any value are named below it, and long cells other than ids are
folded. If it still does not fit, each row becomes a block of `column  value` lines. In a pipe (no width) every row is
one line, however long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from unicodedata import east_asian_width

from tracewarehouse.ingest.errors import printable

_GAP = "  "
_FOLD_TO = 12  # a text column is never folded to less than this width
_ALIGN_TO = 400  # and never padded beyond this width, as one text of megabytes would widen every row


def draw(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int | None = None) -> Iterator[str]:
    """Yield the lines of the table.

    Args:
        columns: the header.
        rows: the values; numbers are aligned to the right, NULL is written as `NULL`.
        width: width of the terminal in cells, or None for no limit.
    """
    cells = [[cell(v) for v in row] for row in rows]
    header = [printable(c) for c in columns]
    natural = [
        max([_width(h), *(_width(row[i]) for row in cells)]) if cells else _width(h) for i, h in enumerate(header)
    ]
    numeric = [
        all(r[i] is None or _is_number(r[i]) for r in rows) and any(r[i] is not None for r in rows)
        for i in range(len(header))
    ]
    least = [
        n if is_number or _is_id(h) else max(_width(h), _FOLD_TO)
        for n, h, is_number in zip(natural, header, numeric, strict=True)
    ]
    if width is not None and sum(natural) + len(_GAP) * (len(natural) - 1) > width:
        kept = [i for i in range(len(columns)) if any(row[i] is not None for row in rows)]
        if 0 < len(kept) < len(columns):
            yield from draw([columns[i] for i in kept], [[row[i] for i in kept] for row in rows], width)
            empty = ", ".join(h for i, h in enumerate(header) if i not in kept)
            yield from _fold(f"NULL in every row: {empty}", width)
            return
    widths = [min(n, _ALIGN_TO) for n in natural] if width is None else _fitted(natural, least, width)
    if widths is None:
        yield from _blocks(header, cells, width or 80)
        return
    yield _line(header, widths, numeric)
    yield _GAP.join("─" * w for w in widths)
    for row in cells:
        if width is None:
            yield _line(row, widths, numeric)
        else:
            yield from _row(row, widths, numeric)


def cell(value: Any) -> str:
    """A value as people read it: control characters escaped, floats with six digits."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, (bytes, bytearray)):
        return "0x" + value.hex()
    if isinstance(value, (int, Decimal, datetime, date, time)):
        return str(value)
    return printable(str(value))


def _float(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{value:.1f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def _is_id(column: str) -> bool:
    """Whether people copy the column's values, so that a fold would break them."""
    return column in ("id", "run", "metric") or column.endswith("_id")


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def _fitted(natural: list[int], least: list[int], width: int) -> list[int] | None:
    """Column widths that fit the terminal, with the widest columns folded first; None if none fit."""
    room = width - len(_GAP) * (len(natural) - 1)
    widths = list(natural)
    floors = [min(n, low) for n, low in zip(natural, least, strict=True)]
    if sum(floors) > room:
        return None
    while (excess := sum(widths) - room) > 0:
        widest = max(range(len(widths)), key=lambda i: widths[i] - floors[i])
        slack = widths[widest] - floors[widest]
        others = max((w - f for i, (w, f) in enumerate(zip(widths, floors, strict=True)) if i != widest), default=0)
        widths[widest] -= min(excess, slack, max(1, slack - others))
    return widths


def _line(texts: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    parts = []
    for text, width, is_number in zip(texts, widths, numeric, strict=True):
        padding = " " * (width - _width(text))
        parts.append(padding + text if is_number else text + padding)
    return _GAP.join(parts).rstrip()


def _row(texts: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> Iterator[str]:
    folded = [_fold(t, w) for t, w in zip(texts, widths, strict=True)]
    for i in range(max(map(len, folded), default=0)):
        yield _line([f[i] if i < len(f) else "" for f in folded], widths, numeric)


def _fold(text: str, width: int) -> list[str]:
    """Split the text into pieces of at most `width` cells, at the end of a word if one ends late enough."""
    pieces = []
    start = 0
    while (end := _reach(text, start, width)) < len(text):
        at = max(text.rfind(mark, start, end) for mark in " ,_-/") + 1
        cut = at if at > (start + end) // 2 else end
        pieces.append(text[start:cut].rstrip(" "))
        start = cut
    return [*pieces, text[start:]]


def _reach(text: str, start: int, width: int) -> int:
    """The end of the piece that fits, at least one character after `start`."""
    end, cells = start, 0
    while end < len(text) and (cells := cells + _width(text[end])) <= width:
        end += 1
    return max(end, start + 1)


def _blocks(header: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    label = max(map(_width, header), default=0)
    room = max(width - label - len(_GAP), _FOLD_TO)
    for number, row in enumerate(cells, 1):
        yield f"── row {number} ".ljust(min(width, 40), "─")
        for name, text in zip(header, row, strict=True):
            first, *rest = _fold(text, room)
            yield f"{name}{' ' * (label - _width(name))}{_GAP}{first}".rstrip()
            for piece in rest:
                yield f"{' ' * label}{_GAP}{piece}"
