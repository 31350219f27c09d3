"""Defines the form of a question and of its answer.

The answer has tables, the runs and metric versions that they come from, and what was left out.
It is bounded in rows and characters, as an agent reads all of it. It names what is left out, and how to get it.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.queries.read_only import Limits
from tracewarehouse.queries.result import QueryResult
from tracewarehouse.warehouse import Warehouse

MAX_ROWS = 1_000
"""The most rows of an answer."""

MAX_CHARACTERS = 30_000
"""The most characters of an answer, about 10,000 tokens."""

MAX_CELL = 1_500
"""The most characters of one text in a table."""

MAX_RUNS = 50
"""The most runs that an answer names."""


class Table(BaseModel):
    """Rows under their column names; a row has a value per column, in order."""

    name: str = Field(description="What the rows are.")
    columns: list[str]
    rows: list[list[Any]]


class RunNote(BaseModel):
    """A run that the answer comes from, with its quality flags: reasons to read its numbers with care."""

    run_id: str
    name: str
    flags: list[str]


class Answer(BaseModel):
    """The answer of every tool."""

    tables: list[Table]
    runs: list[RunNote] = Field(default=[], description="The runs that the rows come from, the flagged ones first.")
    metric_versions: dict[str, list[int]] = Field(default={}, description="Versions of the metrics, by metric.")
    left_out: list[str] = Field(default=[], description="What is not in the answer, and how to get it.")
    notes: list[str] = Field(default=[], description="What the rows do not say.")

    def add_page(self, whole: Table, offset: int, most: int) -> None:
        """Add some rows of a table, the first ones or those from `offset` on, and say which they are."""
        rows = whole.rows[offset : offset + most]
        goes_on = len(whole.rows) > offset + most
        self.tables.append(Table(name=whole.name, columns=whole.columns, rows=rows))
        if goes_on or offset:
            more = f"; offset={offset + most} continues" if goes_on else ""
            self.left_out.append(f"{whole.name}: rows {offset + 1} to {offset + len(rows)} of {len(whole.rows)}{more}")

    def add_first(self, whole: Table, most: int, advice: str) -> None:
        """Add the first rows of a table, and say how to get the others."""
        self.tables.append(Table(name=whole.name, columns=whole.columns, rows=whole.rows[:most]))
        if len(whole.rows) > most:
            self.left_out.append(f"{whole.name}: the first {most} of {len(whole.rows)} rows; {advice}")

    def add_runs(self, runs: Iterable[RunVersion]) -> None:
        """Name the runs of the answer, the flagged ones first."""
        ordered = sorted(runs, key=lambda r: (not r.flags, r.name, r.run_id))
        self.runs = [RunNote(run_id=r.run_id, name=r.name, flags=list(r.flags)) for r in ordered[:MAX_RUNS]]
        if rest := ordered[MAX_RUNS:]:
            flagged = sum(bool(r.flags) for r in rest)
            self.left_out.append(f"{len(rest)} more runs, {flagged} of them flagged; list_runs and flags name them")

    def text(self) -> str:
        """The answer as compact JSON."""
        return json.dumps(self.model_dump(exclude_defaults=True), ensure_ascii=False, separators=(",", ":"))


def _listed(value: Any) -> Any:
    """A list of names; some clients send one as text, either JSON or separated by commas."""
    if not isinstance(value, str):
        return value
    if value.startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return [v.strip() for v in value.split(",") if v.strip()]


Names = Annotated[list[str], BeforeValidator(_listed)]
Run = Annotated[str, Field(description="Run id, the beginning of one, or name.")]
Runs = Annotated[Names, Field(description="Runs by id or name, or patterns of names such as llama-*; empty for all.")]
Metrics = Annotated[Names, Field(description="Metrics by name, such as tpot; empty for all.")]
Rows = Annotated[int, Field(ge=1, le=MAX_ROWS, description="Most rows of the answer.")]
Offset = Annotated[int, Field(ge=0, description="Rows to leave out first, to read on where an answer ended.")]


class Tool(BaseModel):
    """One question, with its arguments. Its docstring describes it to agents."""

    model_config = ConfigDict(extra="forbid")

    name: ClassVar[str]
    advice: ClassVar[str]
    """Advice on how to get what an answer left out because it was too long."""

    def ask(self, warehouse: Warehouse, seconds: float | None = None) -> Answer:
        """The answer, short enough to be read as a whole.

        Args:
            seconds: the time that each of its queries may take.

        Raises:
            TracewarehouseError: the question cannot be answered; the message says what to ask instead.
        """
        with warehouse.limited(Limits(seconds, self.most)):
            return bounded(self.answer(warehouse), self.advice)

    @property
    def most(self) -> int | None:
        """The most rows that a query may give; None if all are needed to choose among them."""
        return None

    @abstractmethod
    def answer(self, warehouse: Warehouse) -> Answer:
        """The answer."""


class AboutRuns(Tool):
    """A question about some runs or all, whose answer can be read in parts."""

    run: Runs = []
    max_rows: Rows = 100
    offset: Offset = 0


def table(name: str, result: QueryResult, columns: Sequence[str] | None = None) -> Table:
    """A table of a query's rows.

    Args:
        name: what the rows are.
        columns: the columns to keep; None for all.
    """
    kept = list(columns or result.columns)
    places = [result.columns.index(c) for c in kept] if columns else range(len(kept))
    return Table(name=name, columns=kept, rows=[[_plain(row[i]) for i in places] for row in result.rows()])


def bounded(answer: Answer, advice: str) -> Answer:
    """The answer, with so few rows that it is short enough; the first tables keep their rows.

    Args:
        advice: how to get the rows that were left out.
    """
    tables, left_out = [], list(answer.left_out)
    clipped = 0
    left = MAX_CHARACTERS - len(answer.model_copy(update={"tables": []}).text()) - 1_000
    for table in answer.tables:
        rows: list[list[Any]] = []
        for row in table.rows:
            short = [_clipped(v) for v in row]
            clipped += sum(a is not b for a, b in zip(short, row, strict=True))
            left -= len(json.dumps(short, ensure_ascii=False, separators=(",", ":"))) + 1
            if left < 0:
                left_out.append(
                    f"{table.name}: {len(table.rows) - len(rows)} of these {len(table.rows)} rows, as an answer has at "
                    f"most {MAX_CHARACTERS} characters; {advice}"
                )
                left = 0
                break
            rows.append(short)
        tables.append(Table(name=table.name, columns=table.columns, rows=rows))
    if clipped:
        left_out.append(
            f"{clipped} texts are longer than {MAX_CELL} characters and end in ...; substr(column, {MAX_CELL + 1}) in "
            "a query gives the rest"
        )
    return answer.model_copy(update={"tables": tables, "left_out": left_out})


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def _clipped(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_CELL:
        return value[:MAX_CELL] + "..."
    if isinstance(value, (list, dict)) and len(text := json.dumps(value, ensure_ascii=False)) > MAX_CELL:
        return text[:MAX_CELL] + "..."
    return value
