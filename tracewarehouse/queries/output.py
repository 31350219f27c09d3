"""Writes a query's result as a table, CSV, JSON, newline-delimited JSON, Parquet, Arrow or an Excel workbook."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, get_args

from tracewarehouse.ingest.errors import TracewarehouseError, printable, system_refusals
from tracewarehouse.queries.result import QueryResult

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["table", "csv", "json", "ndjson", "parquet", "arrow", "xlsx"]
BINARY: frozenset[Format] = frozenset({"parquet", "arrow", "xlsx"})
"""Formats that are not text."""
FORMATS: tuple[Format, ...] = get_args(Format)

SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".json": "json",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".xlsx": "xlsx",
    ".txt": "table",
}
"""The format that each ending of a file stands for."""


def suffix_format(path: Path) -> Format:
    """The format that a file's suffix stands for; a table if it has none."""
    suffix = path.suffix.lower()
    if suffix and suffix not in SUFFIXES:
        page = "; `tw report` writes pages" if suffix in (".html", ".md") else ""
        raise TracewarehouseError(
            f"{path}: no format for the ending {path.suffix}; expected one of {', '.join(SUFFIXES)}, or name it with "
            f"--format{page}"
        )
    return SUFFIXES.get(suffix, "table")


def write(result: QueryResult, format_: Format, path: Path | None = None) -> None:
    """Write a result to a file or to standard output; a pager shows text that is longer than the terminal.

    A file is written completely or not at all.
    """
    if format_ not in BINARY:
        told = _told(result, format_)
        _put_text(lambda width: text(told, format_, width), path)
        return
    if path is None and sys.stdout.isatty():
        raise TracewarehouseError(f"{format_} is not for a terminal; add -o FILE, or send the output into a pipe")
    _put([encoded(result, format_)], path)


def write_table(columns: Mapping[str, Sequence[Any]], path: Path | None = None) -> None:
    """Write columns of values of any kind as a table for people, as `write` does for a result."""
    rows = list(zip(*columns.values(), strict=True))
    _put_text(lambda width: _table([*columns], rows, width), path)


def _put_text(pieces: Callable[[int | None], Iterator[str]], path: Path | None) -> None:
    """Write text from a function of the terminal's width, which is None for a file or pipe."""
    if path is None and sys.stdout.isatty():
        _show("".join(pieces(shutil.get_terminal_size().columns)))
    else:
        _put((piece.encode("utf-8", "replace") for piece in pieces(None)), path)


def _put(pieces: Iterable[bytes], path: Path | None) -> None:
    if path is None:
        try:
            _write_bytes(pieces, sys.stdout.buffer)
        except BrokenPipeError:  # the reader has seen enough, as after `| head`
            close_quietly()
        return
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    with system_refusals(f"{path}: cannot be written", TracewarehouseError):
        try:
            with part.open("wb") as stream:
                _write_bytes(pieces, stream)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _write_bytes(pieces: Iterable[bytes], stream: IO[bytes]) -> None:
    for piece in pieces:
        stream.write(piece)
    stream.flush()


def _show(lines: str) -> None:
    """Write text to the terminal directly if it fits on the screen, else through the user's pager."""
    if lines.count("\n") < shutil.get_terminal_size().lines:
        sys.stdout.write(lines)
        sys.stdout.flush()
        return
    import pydoc

    os.environ.setdefault("LESS", "-FRSX")  # as git does: no pager for one screen, no clearing of the screen
    pydoc.pager(lines)


def encoded(result: QueryResult, format_: Format) -> bytes:
    """A result as the bytes of a file."""
    result = _told(result, format_)
    if format_ not in BINARY:
        return "".join(text(result, format_)).encode("utf-8", "replace")
    buffer = io.BytesIO()  # the writers seek, and a pipe cannot
    _BINARY_WRITERS[format_](result, buffer)
    return buffer.getvalue()


def _told(result: QueryResult, format_: Format) -> QueryResult:
    """The rows with a column that says which are predicted, where neither a note nor metadata does."""
    return result if format_ in ("table", "parquet", "arrow") else result.telling_predicted()


FLAGGED_RUNS = b"tracewarehouse.flagged_runs"
"""Key in the metadata of a Parquet or Arrow file: the flagged runs behind its rows, as JSON."""


def _with_flags(result: QueryResult) -> pa.Table:
    """The rows as an Arrow table whose metadata names the flagged runs behind them, as a note does for people."""
    table = result.arrow()
    if not result.flagged_runs:
        return table
    runs = [{"run_id": r.run_id, "name": r.name, "flags": r.flags} for r in result.flagged_runs]
    return table.replace_schema_metadata((table.schema.metadata or {}) | {FLAGGED_RUNS: dump(runs).encode()})


def _write_parquet(result: QueryResult, buffer: io.BytesIO) -> None:
    import pyarrow.parquet as pq

    pq.write_table(_with_flags(result), buffer, compression="zstd")


def _write_arrow(result: QueryResult, buffer: io.BytesIO) -> None:
    import pyarrow as pa

    table = _with_flags(result)
    with pa.ipc.new_file(buffer, table.schema) as writer:
        writer.write_table(table)


_MOST_ROWS, _MOST_TEXT, _EXACT = 1_048_575, 32_767, 1 << 53
"""Limits of a workbook's sheet: rows below the header, characters of a cell, and the largest exact integer."""


def _write_xlsx(result: QueryResult, buffer: io.BytesIO) -> None:
    try:
        import xlsxwriter
    except ImportError:
        raise TracewarehouseError(
            "an Excel workbook needs xlsxwriter, which is not installed; run `pip install 'tracewarehouse[xlsx]'`"
        ) from None
    if len(result) > _MOST_ROWS:
        raise TracewarehouseError(
            f"an Excel sheet holds {_MOST_ROWS:,} rows, and the result has {len(result):,}; add a LIMIT, or write "
            "Parquet"
        )
    with xlsxwriter.Workbook(
        buffer, {"in_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
    ) as book:
        sheet = book.add_worksheet("rows")
        sheet.write_row(0, 0, result.columns)
        for i, row in enumerate(result.rows(), 1):
            for j, value in enumerate(row):
                _write_cell(sheet, i, j, value)


def _write_cell(sheet: Any, row: int, column: int, value: Any) -> None:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return
    if isinstance(value, bool):
        sheet.write_boolean(row, column, value)
    elif isinstance(value, float) or (isinstance(value, (int, Decimal)) and -_EXACT <= value <= _EXACT):
        sheet.write_number(row, column, value)
    else:
        text = value if isinstance(value, str) else str(value) if isinstance(value, int) else dump(value).strip('"')
        if len(text) > _MOST_TEXT:
            raise TracewarehouseError(
                f"an Excel cell holds {_MOST_TEXT:,} characters, and a value has {len(text):,}; leave its column out, "
                "or write Parquet"
            )
        sheet.write_string(row, column, text)


_BINARY_WRITERS: dict[str, Callable[[QueryResult, io.BytesIO], None]] = {
    "parquet": _write_parquet,
    "arrow": _write_arrow,
    "xlsx": _write_xlsx,
}


def text(result: QueryResult, format_: Format, width: int | None = None) -> Iterator[str]:
    """Yield the result as text, piece by piece; `width` is the terminal's width, for tables."""
    if format_ == "table":
        yield from _table(result.columns, result.rows(), width)
    elif format_ == "csv":
        # a file gets the text unchanged; a terminal would execute control characters
        yield from _csv(result) if width is None else (_for_terminal(line) for line in _csv(result))
    elif format_ == "ndjson":
        for row in result.dicts():
            yield f"{dump(row)}\n"
    else:
        yield from _array(result.dicts())


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int | None) -> Iterator[str]:
    from tracewarehouse.queries.text_table import draw

    for line in draw(columns, rows, width):
        yield f"{line}\n"


def _csv(result: QueryResult) -> Iterator[str]:
    yield ",".join(map(_csv_field, result.columns)) + "\n"
    for row in result.rows():
        yield ",".join(map(_csv_field, row)) + "\n"


def _array(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    separator = "["
    for row in rows:
        yield f"{separator}{dump(row)}"
        separator = ",\n "
    yield "[]\n" if separator == "[" else "]\n"


def _csv_field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (bool, list, dict, tuple)):
        text = dump(value)
    elif isinstance(value, (bytes, bytearray)):
        text = base64.b64encode(value).decode("ascii")
    else:
        text = str(value)
    if text == "" or any(c in text for c in ',"\r\n'):
        text = '"' + text.replace('"', '""') + '"'
    return text


def _for_terminal(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def dump(value: Any) -> str:
    """JSON in which every character that a terminal would execute is escaped."""
    text = json.dumps(_json_value(value), ensure_ascii=False, allow_nan=False)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _json_value(value: Any) -> Any:
    """The value as JSON can hold it: NaN and infinity become null, bytes base64, times ISO text."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {str(k): _json_value(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(v) for v in value]
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def close_quietly() -> None:
    """Discard what is left in standard output, so that the interpreter's last flush does not fail on a broken pipe."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
