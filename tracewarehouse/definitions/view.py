"""Describes one definition of sql/: its front matter, its SELECT, what it reads, and the fingerprint of its meaning."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tracewarehouse.definitions.headers import Header, MetricHeader
from tracewarehouse.definitions.texts import normalised, tables_of
from tracewarehouse.ingest.errors import MetricError


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
    def is_compatibility(self) -> bool:
        """Whether this is another tool's definition, kept to explain that tool's numbers."""
        return isinstance(self.header, MetricHeader) and self.header.status == "compatibility"

    @cached_property
    def depends_on(self) -> frozenset[str]:
        """Tables and views that it reads, by qualified name.

        Raises:
            MetricError: the SQL cannot be parsed, is not one SELECT, or names a table without its schema.
        """
        try:
            return tables_of(self.sql)
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
