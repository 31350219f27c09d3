"""Writes a report: a page, a digest, JSON, or a folder with a picture of each chart."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

from tracewarehouse.dashboards.report import Report
from tracewarehouse.ingest.errors import WarehouseError

Format = Literal["html", "md", "json", "png", "svg"]
FORMATS: tuple[Format, ...] = get_args(Format)


def text_of(report: Report, form: Literal["html", "md", "json"]) -> str:
    """Return the report as one text."""
    if form == "html":
        from tracewarehouse.dashboards.page import html

        return html(report)
    if form == "md":
        from tracewarehouse.dashboards.digest import markdown

        return markdown(report)
    return json.dumps(report.content(), indent=1, default=str) + "\n"


def write_text(report: Report, output: Path, form: Literal["html", "md", "json"] = "html") -> Path:
    """Write the report to one file and return the path; the file appears whole or not at all.

    Raises:
        WarehouseError: the file cannot be written.
    """
    text = text_of(report, form)
    part = output.with_name(f".{output.name}.{uuid.uuid4().hex[:8]}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(output)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise WarehouseError(f"{output}: the report cannot be written: {error.strerror or error}") from None
    return output


def write_pictures(report: Report, folder: Path, form: Literal["png", "svg"]) -> list[Path]:
    """Write a picture of each chart into a folder and return their paths.

    Raises:
        WarehouseError: a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WarehouseError(f"{folder}: the charts cannot be written: {error.strerror or error}") from None
    return [figure.save(folder / f"{name}.{form}") for name, figure in report.figures()]
