"""Describes a definition of sql/: its front matter, what it reads, and the fingerprint of its meaning."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from tracewarehouse.definitions.texts import normalised, tables_in
from tracewarehouse.ingest.errors import MetricError

UNSTORED = ("deprecated", "compatibility")
"""Statuses of versions whose values are not stored: superseded versions, and definitions of other tools."""

UNFILLED = "TODO"
"""The beginning of a sentence in a new metric or version, until its author has written it."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
Sentence = Annotated[str, StringConstraints(strip_whitespace=True, min_length=3, pattern=r"\.$")]
Clause = Annotated[str, StringConstraints(strip_whitespace=True, min_length=3, pattern=r"[^.;]$")]
"""A part of a sentence, without a full stop."""


class _FrontMatter(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Described(_FrontMatter):
    """Front matter of a file: what the definition is in at most three sentences, and its fine print."""

    description: Sentence
    notes: Sentence | None = Field(default=None, description="rules for special cases, assumptions and sources")

    @property
    def about(self) -> str:
        return " ".join(f"{self.description} {self.notes or ''}".split())


class ModelHeader(_Described):
    """Front matter of a model: a view that metrics and other models read."""

    model: Name
    inline: bool = Field(default=False, description="it has a row per op; each of its readers computes it anew")
    columns: dict[Name, Sentence] = Field(min_length=1)


class AuditHeader(_Described):
    """Front matter of an audit: a query that returns no row if all is well."""

    audit: Name
    columns: dict[Name, Sentence] = Field(min_length=1)


class MacroHeader(_Described):
    """Front matter of a macro: a query over runs that the caller names, as a DuckDB table macro."""

    macro: Name
    parameters: dict[Name, Sentence]
    optional: list[Name] = Field(default=[], description="parameters that are NULL if the caller leaves them out")
    reads_runs: list[Name] = Field(
        default=[], description="parameters that name, by id, all runs that it reads; none if it may read any run"
    )
    columns: dict[Name, Sentence] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> MacroHeader:
        for field in ("optional", "reads_runs"):
            if unknown := [n for n in getattr(self, field) if n not in self.parameters]:
                raise ValueError(f"{field} names {', '.join(unknown)}, which is not a parameter")
        return self

    @property
    def signature(self) -> list[str]:
        """The parameters as they stand in CREATE MACRO."""
        return [f"{n} := NULL" if n in self.optional else n for n in self.parameters]


class PreconditionHeader(_FrontMatter):
    """An entry of preconditions.yaml: a query for the runs that have something that metrics need."""

    precondition: Name
    needs: list[Name] = Field(default=[], description="preconditions to report first if a run does not meet them")
    reason: Clause = Field(description="why a run that does not meet it lacks the metric")
    remedy: Clause | None = Field(default=None, description="what the user can do about it")
    runs: str = Field(min_length=1, description="the SELECT of the runs that meet it")
    columns: dict[Name, Sentence] = {"run_id": "The run."}

    @property
    def about(self) -> str:
        """The description, which has no notes."""
        return self.description

    @property
    def description(self) -> str:
        """A sentence for the view's comment."""
        return f"The runs that meet it; for any other, the reason is: {self.sentence}"

    @property
    def sentence(self) -> str:
        """A sentence on why a metric is missing, and what to do about it."""
        text = self.reason if self.remedy is None else f"{self.reason}; {self.remedy}"
        return f"{text}."


_OP_DIMENSIONS = frozenset(("instruction_id", "kernel", "op_kind", "shape"))
"""Dimensions that have a value for each instruction of a program, or for each kind of them."""

_PART_DIMENSIONS = frozenset(("step", "layer", "instruction_id", "from_us", "source_device_id"))
"""Dimensions that split a run into more rows than anyone reads."""


class MetricHeader(_Described):
    """Front matter of a version of a metric."""

    metric: Name
    version: int = Field(ge=1)
    status: Literal["experimental", "stable", "deprecated", "compatibility"]
    deprecated: Sentence | None = Field(default=None, description="why, and what to use instead")
    unit: str = Field(min_length=1)
    polarity: Literal["higher_is_better", "lower_is_better", "none"]
    scope: Literal["run", "warehouse"] = Field(
        default="run", description="whether rows come from one run alone, or from the comparison of several"
    )
    grain: list[Name] = Field(min_length=1, description="columns that identify a row; run_id comes first")
    value: Name
    needs: list[Name] = Field(default=[], description="preconditions; the first that a run does not meet is the reason")
    columns: dict[Name, Sentence] = Field(min_length=2)
    ranges: dict[Name, tuple[float, float]] = Field(
        default={}, description="by column, the least and the greatest value that it can have; audits find others"
    )
    changed: Sentence = Field(default="First version.", description="what is new; a later version must say it")
    ccl_bench: str | None = None

    @model_validator(mode="after")
    def _check(self) -> MetricHeader:
        if self.grain[0] != "run_id":
            raise ValueError("grain must begin with run_id")
        if (self.status == "deprecated") != (self.deprecated is not None):
            raise ValueError(
                "a deprecated version must say in `deprecated` why and what to use instead; other versions must not"
            )
        is_told = self.version == 1 or "changed" in self.model_fields_set
        if not is_told or (self.status != "experimental" and self.changed.startswith(UNFILLED)):
            raise ValueError(f"changed must say what is new before the version is {self.status}")
        if self.status != "experimental" and self.description.startswith(UNFILLED):
            raise ValueError(f"description must say what the metric is before the version is {self.status}")
        for name, (least, greatest) in self.ranges.items():
            if not least < greatest:
                raise ValueError(f"the range of {name} is empty: {least} is not below {greatest}")
        for name in (*self.grain, self.value, *self.ranges):
            if name not in self.columns:
                raise ValueError(f"columns says nothing about {name}")
        if self.value in self.grain:
            raise ValueError(f"{self.value} is both value and grain")
        return self

    @property
    def is_stored(self) -> bool:
        """Whether ingest stores its values with the run; values of single ops are too many."""
        return self.status not in UNSTORED and not self.is_per_op

    @property
    def is_per_op(self) -> bool:
        """Whether it has a row for each instruction, kernel or shape, or compares those of two runs by kind."""
        return not _OP_DIMENSIONS.isdisjoint(self.grain)

    @property
    def is_per_part(self) -> bool:
        """Whether it has a row per step, layer, pair of devices or instruction."""
        return not _PART_DIMENSIONS.isdisjoint(self.grain)


Header = ModelHeader | AuditHeader | MacroHeader | PreconditionHeader | MetricHeader


@dataclass(frozen=True)
class View:
    """One definition: a view of schema models, preconditions or metrics, an audit, or a macro.

    Attributes:
        path: the file.
        schema: models, preconditions, metrics, audits or macros.
        name: name in the schema, such as leaf_ops or ttft_v1.
        header: the front matter.
        sql: the SELECT without front matter.
    """

    path: Path
    schema: str
    name: str
    header: Header
    sql: str

    @property
    def qualified(self) -> str:
        """Schema and name, such as models.leaf_ops."""
        return f"{self.schema}.{self.name}"

    @property
    def place(self) -> str:
        """The file, and the name where the file holds several definitions."""
        return f"{self.path}: {self.name}" if self.schema == "preconditions" else str(self.path)

    @property
    def compares_runs(self) -> bool:
        """Whether one row can come from several runs, as in a metric with scope: warehouse."""
        return isinstance(self.header, MetricHeader) and self.header.scope == "warehouse"

    @property
    def is_kept(self) -> bool:
        """Whether its rows may be kept for several readers, as for a model that has no row per op."""
        return isinstance(self.header, ModelHeader) and not self.header.inline

    @property
    def is_compatibility(self) -> bool:
        """Whether this is another tool's definition, kept to explain that tool's numbers."""
        return isinstance(self.header, MetricHeader) and self.header.status == "compatibility"

    @cached_property
    def depends_on(self) -> frozenset[str]:
        """Tables and views that it reads, by qualified name."""
        try:
            return tables_in(self.sql)
        except ValueError as error:
            raise MetricError(f"{self.place}: the query {error}") from None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the syntax tree of the SQL, whatever its spelling; see `normalised`.

        For a metric, it also covers what gives the value a meaning: unit, polarity, grain and value column. If the SQL
        reads a column that ingest derives from what ops do, such as op_class, it also covers the rules for that.
        """
        return _fingerprint(self.sql, _meaning(self.header))


@dataclass(frozen=True)
class Metric:
    """One version of a metric."""

    view: View
    header: MetricHeader

    @property
    def name(self) -> str:
        """Name of the metric, without version."""
        return self.header.metric

    @property
    def version(self) -> int:
        """Version of the definition."""
        return self.header.version

    @property
    def dimensions_sql(self) -> str:
        """SQL of a row's dimensions as main.metric_values has them: a JSON object of the grain without run_id."""
        members = [f"""'"{c}": ' || coalesce(to_json("{c}")::VARCHAR, 'null')""" for c in self.header.grain[1:]]
        listed = " || ', ' || ".join(members) or "''"
        return f"'{{' || {listed} || '}}'"


def _meaning(header: Header) -> Mapping[str, str]:
    if not isinstance(header, MetricHeader):
        return {}
    meaning = {
        "unit": header.unit,
        "polarity": header.polarity,
        "grain": ", ".join(header.grain),
        "value": header.value,
    }
    return meaning if header.scope == "run" else meaning | {"scope": header.scope}


_REST_ON_OP_CLASS = re.compile(r"\b(?:op_class|is_leaf|class_overlap_ps|exposed_added_ps|copies)\b", re.IGNORECASE)
"""Columns and a table that ingest fills by its rules about what an op does."""


def _fingerprint(sql: str, meaning: Mapping[str, str]) -> str:
    text = "\n".join([normalised(sql), *(f"{k}: {v}" for k, v in meaning.items())])
    if _REST_ON_OP_CLASS.search(text):
        from tracewarehouse.ingest.hlo import opcodes

        text += f"\nop_class: {opcodes.OP_CLASS_RULES}"
    return hashlib.sha256(text.encode()).hexdigest()
