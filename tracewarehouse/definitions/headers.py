"""Defines the front matter of each kind of definition, as YAML must state it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

UNSTORED = ("deprecated", "compatibility")
"""Statuses of versions whose values are not stored: superseded versions, and definitions of other tools."""

UNFILLED = "TODO"
"""The beginning of `changed` in a new version, until its author has written what is new."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
Sentence = Annotated[str, StringConstraints(strip_whitespace=True, min_length=3, pattern=r"\.$")]
Clause = Annotated[str, StringConstraints(strip_whitespace=True, min_length=3, pattern=r"[^.;]$")]
"""A part of a sentence, without a full stop."""


class _FrontMatter(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ModelHeader(_FrontMatter):
    """Front matter of a model: a view that metrics and other models read."""

    model: Name
    description: Sentence
    inline: bool = Field(default=False, description="it has a row per op; each of its readers computes it anew")
    columns: dict[Name, Sentence] = Field(min_length=1)


class AuditHeader(_FrontMatter):
    """Front matter of an audit: a query that returns no row if all is well."""

    audit: Name
    description: Sentence
    columns: dict[Name, Sentence] = Field(min_length=1)


class MacroHeader(_FrontMatter):
    """Front matter of a macro: a query over runs that the caller names, as a DuckDB table macro."""

    macro: Name
    parameters: dict[Name, Sentence]
    optional: list[Name] = Field(default=[], description="parameters that are NULL if the caller leaves them out")
    description: Sentence
    columns: dict[Name, Sentence] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> MacroHeader:
        if unknown := [n for n in self.optional if n not in self.parameters]:
            raise ValueError(f"optional names {', '.join(unknown)}, which is not a parameter")
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
    def description(self) -> str:
        """A sentence for the view's comment."""
        return f"The runs that meet it; for any other, the reason is: {self.sentence}"

    @property
    def sentence(self) -> str:
        """A sentence on why a metric is missing, and what to do about it."""
        text = self.reason if self.remedy is None else f"{self.reason}; {self.remedy}"
        return f"{text}."


_OF_OPS = frozenset(("instruction_id", "kernel", "shape"))
"""Dimensions that have a value for each instruction of a program, or for each kind of them."""

_OF_PARTS = frozenset(("step", "layer", "instruction_id", "from_us", "source_device_id"))
"""Dimensions that split a run into more rows than anyone reads."""


class MetricHeader(_FrontMatter):
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
    description: Sentence
    columns: dict[Name, Sentence] = Field(min_length=2)
    ranges: dict[Name, tuple[float, float]] = Field(
        default={}, description="by column, the least and the greatest value that it can have; audits find others"
    )
    changed: Sentence
    ccl_bench: str | None = None

    @model_validator(mode="after")
    def _check(self) -> MetricHeader:
        if self.grain[0] != "run_id":
            raise ValueError("grain must begin with run_id")
        if (self.status == "deprecated") != (self.deprecated is not None):
            raise ValueError(
                "a deprecated version must say in `deprecated` why and what to use instead; other versions must not"
            )
        if self.status != "experimental" and self.changed.startswith(UNFILLED):
            raise ValueError(f"changed must say what is new before the version is {self.status}")
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
        return self.status not in UNSTORED and not self.is_of_ops

    @property
    def is_of_ops(self) -> bool:
        """Whether it has a row for each instruction, kernel or shape."""
        return not _OF_OPS.isdisjoint(self.grain)

    @property
    def is_of_parts(self) -> bool:
        """Whether it has a row per step, layer, pair of devices or instruction."""
        return not _OF_PARTS.isdisjoint(self.grain)


Header = ModelHeader | AuditHeader | MacroHeader | PreconditionHeader | MetricHeader

KINDS: dict[str, tuple[str, type[Header]]] = {
    "model": ("models", ModelHeader),
    "metric": ("metrics", MetricHeader),
    "audit": ("audits", AuditHeader),
    "macro": ("macros", MacroHeader),
}
"""The schema and the front matter of each kind of file. The first key tells the kind, whatever the folder."""
