"""An in-memory DuckDB over the runs of a warehouse."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import duckdb

from tracewarehouse import consolidated
from tracewarehouse.definitions.reading import Definitions
from tracewarehouse.ingest.errors import MetricError, QueryError, WarehouseError
from tracewarehouse.ingest.lake.lake import Lake, RunVersion, unread_sentence
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.lens import add_views, begin_lens, create_lens, run_sources, table_source
from tracewarehouse.query import literal, restrict
from tracewarehouse.temporary import TemporaryFolder

_WORD = re.compile(r"[a-z_][a-z0-9_]*")
_EXTRAS = frozenset(("all_values", "catalog", "macros"))  # of the lens, beside the views of sql/
_TABLES = frozenset(f"main.{t}" for t in TABLES)
_CATALOGUE = re.compile(r"\b(show|describe|summarize|desc|comment|information_schema|(duckdb|pg|pragma|sqlite)_\w+)\b")

State = tuple[tuple[str, int, int], ...]


class Session:
    """One database with the tables and metrics of the runs as they were when it was made.

    Args:
        lake: the runs.
        definitions: the models and metrics.
        is_restricted: close it for queries that only read.
        comments: put the comments on tables and columns, which takes as long as all the rest.
        is_whole: create every view now; else `prepare` creates those that a query reads.

    Raises:
        WarehouseError: a run cannot be read.
        MetricError: DuckDB refuses a definition.
    """

    def __init__(
        self, lake: Lake, definitions: Definitions, *, is_restricted: bool, comments: bool = True, is_whole: bool = True
    ) -> None:
        self.state = state_of(lake)
        self.has_comments = comments
        self._lake = lake
        self._definitions = definitions
        self._missing = set() if is_whole else {*_EXTRAS, *_TABLES, *(v.qualified for v in definitions.ordered)}
        runs = self.runs = lake.runs()
        self.connection = duckdb.connect(":memory:")
        try:
            if lake.filesystem is not None:
                self.connection.register_filesystem(lake.filesystem)
            if is_whole:
                create_lens(self.connection, run_sources(lake.root, runs), definitions, comments=comments)
            else:
                begin_lens(self.connection)
            self._spill = TemporaryFolder()
            if is_restricted:
                restrict(self.connection, [lake.folder, *consolidated.folders(lake)], self._spill.path)
            else:
                self.connection.execute(f"SET temp_directory = {literal(str(self._spill.path))}")
        except MetricError:
            self.connection.close()
            raise
        except duckdb.Error as error:
            self.connection.close()
            raise WarehouseError(files_error(lake, runs, error)) from None

    def prepare(self, sql: str) -> None:
        """Create the views and macros that a query names, and all of them for one that asks what there is.

        A name too many costs some milliseconds; one too few is an error of DuckDB's, after which `complete` helps.
        """
        text = sql.lower()
        if _CATALOGUE.search(text):
            self.complete()
        elif self._missing:
            words = set(_WORD.findall(text))
            aliases = self._definitions.aliases()
            names = {v.qualified for v in self._definitions.ordered if v.name in words}
            names |= {m.view.qualified for name, m in aliases.items() if name in words}
            names |= {f"main.{t}" for t in words & TABLES.keys()}
            self._create(names | (_EXTRAS & words))

    def complete(self) -> bool:
        """Create every view and macro that is still missing; False where none is."""
        is_missing = bool(self._missing)
        self._create(self._missing)
        return is_missing

    def _create(self, names: Collection[str]) -> None:
        """Create tables, models and metrics by qualified name, and `_EXTRAS`, with what they read."""
        extras = _EXTRAS & self._missing & {*names}
        wanted = set(names)
        if "macros" in extras:
            wanted |= {n for m in self._definitions.macros for n in m.depends_on}
        if "all_values" in extras:
            wanted |= {"main.metric_values"}
            wanted |= {m.view.qualified for m in self._definitions.metrics if m.view.compares_runs}
        views = [v for v in self._definitions.with_upstream(wanted) if v.qualified in self._missing]
        tables = (wanted | {n for v in views for n in v.depends_on}) & _TABLES & self._missing
        if views or tables or extras:
            try:
                add_views(
                    self.connection,
                    self._definitions,
                    views,
                    tables={t: self._source(t) for t in sorted(n.removeprefix("main.") for n in tables)},
                    catalog="catalog" in extras,
                    all_values="all_values" in extras,
                    macros="macros" in extras,
                )
            except duckdb.Error as error:
                raise WarehouseError(files_error(self._lake, self.runs, error)) from None
            self._missing -= {v.qualified for v in views} | tables | extras

    def _source(self, table: str) -> str | None:
        return consolidated.source(self._lake, self.runs, table) or table_source(self._lake.root, self.runs, table)

    def close(self) -> None:
        """Release the database and what it spilled."""
        self.connection.close()
        self._spill.close()


def files_error(lake: Lake, runs: Sequence[RunVersion], error: Exception) -> str:
    """What to say where DuckDB cannot read the files of runs: which run it is, and what helps."""
    said = str(error).partition("\n")[0]
    lost = lake.lacking(runs)
    what = unread_sentence(lost) if lost else f"{said}; `tw fsck` says which run is damaged and what to do"
    return f"{lake.root}: {what}"


@contextmanager
def files_named(lake: Lake, runs: Sequence[RunVersion]) -> Iterator[None]:
    """Where a statement fails that asks runs, tell a file of theirs that cannot be read from a fault of the statement.

    Raises:
        WarehouseError: the error within names a file of the runs.
    """
    try:
        yield
    except (QueryError, MetricError) as error:
        if any(path in str(error) for run in runs for path in run.paths):
            raise WarehouseError(files_error(lake, runs, error)) from None
        raise


def state_of(lake: Lake) -> State:
    """What changes whenever a run is published, replaced or removed."""
    lake.sync()
    try:
        with os.scandir(lake.warehouse / "manifests") as entries:
            stats = [(e.name, e.stat()) for e in entries if e.name.endswith(".json")]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise WarehouseError(f"{lake.warehouse}: cannot list the runs: {error.strerror or error}") from None
    return tuple(sorted((name, s.st_ino, s.st_mtime_ns) for name, s in stats))
