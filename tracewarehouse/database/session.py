"""Opens an in-memory DuckDB over the runs of a warehouse."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import duckdb

from tracewarehouse.database.catalogue import Catalogue, files_error, kept_source
from tracewarehouse.database.catalogue_store import KEPT
from tracewarehouse.database.checked_files import CheckedFiles
from tracewarehouse.database.lens import (
    OWN_VIEWS,
    add_all_views,
    add_tables,
    add_views,
    begin_lens,
    bound_views_folder,
    comment_on_tables,
    table_source,
)
from tracewarehouse.database.temporary import TemporaryFolder
from tracewarehouse.definitions.derived import CATALOG, DERIVED
from tracewarehouse.ingest.errors import MetricError, QueryError, WarehouseError
from tracewarehouse.ingest.lake.lake import DATABASE, MANY_RUNS, KnownRuns, Lake, State
from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.queries.memory_limit import set_memory_limit
from tracewarehouse.queries.read_only import ROW_FUNCTIONS, literal, restrict
from tracewarehouse.queries.runs_read import runs_read
from tracewarehouse.queries.tables_read import ParsedSql, TablesRead

if TYPE_CHECKING:
    from tracewarehouse.definitions.reading import Definitions

COMPARED = frozenset(
    ("main.runs", CATALOG, *(f"macros.{n}" for n in ("compare_steps", "compare_values", "configurations")))
)
"""The parts of a lens that a comparison of runs reads directly; `behind` adds what these read in turn."""

_MANY = 12
"""More views than this take longer to create than a copy of all views."""
_OF_DATABASE = re.compile(rf"Corrupt database file|(IO|FATAL|INTERNAL|Serialization) Error|/{DATABASE}", re.IGNORECASE)
_TABLES = frozenset(f"main.{t}" for t in TABLES)


class Session:
    """One database with the tables and metrics of the runs, as the runs were when they were first needed.

    `prepare` creates the views that a query reads. Before SQL that does more than read, it creates all views with their
    comments. If it holds some runs alone, a model that is read again becomes a table, unless it has a row per op.

    Args:
        definitions: gives the models and metrics. It is called when a query needs any, as reading them all takes
            longer than many queries of tables.
        is_restricted: restrict the database to queries that only read.
        catalogue: gives what it has of many runs, if the session is of all runs.

    Attributes:
        only: the ids of the runs that it holds; None for all. It may be set until the runs are first needed:
            `runs_read` finds the runs that suffice for a query; with only these, no other run is read.
    """

    def __init__(
        self,
        lake: Lake,
        definitions: Callable[[], Definitions],
        *,
        is_restricted: bool,
        only: Collection[str] | None = None,
        catalogue: Catalogue | None = None,
    ) -> None:
        self.only = only
        self._catalogue = catalogue
        self._kept: KnownRuns = {}
        self._lake = lake
        self._read_definitions = definitions
        self._created = set[str]()
        self._reads = Counter[str]()
        self._kept_models = set[str]()
        self._has_comments = False
        self._files = CheckedFiles(lake)
        self.connection = duckdb.connect(":memory:")
        try:
            if lake.filesystem is not None:
                self.connection.register_filesystem(lake.filesystem)
            set_memory_limit(self.connection)
            begin_lens(self.connection)
            self._spill = TemporaryFolder()
            if is_restricted:
                folders = [lake.folder]
                if views := bound_views_folder():
                    folders.append(str(views))
                files = catalogue.readable_paths if catalogue else []
                restrict(self.connection, folders, self._spill.path, files)
            else:
                self.connection.execute(f"SET temp_directory = {literal(str(self._spill.path))}")
        except duckdb.Error as error:
            self.connection.close()
            raise WarehouseError(f"{lake.root}: {error}") from None
        except QueryError:
            self.connection.close()
            raise

    @cached_property
    def _definitions(self) -> Definitions:
        return self._read_definitions()

    @cached_property
    def _state_and_runs(self) -> tuple[State, list[RunVersion]]:
        self._lake.sync()
        if self.only is not None:
            return self._lake.state_of(self.only), self._lake.runs_of(self.only)
        state = self._lake.state()
        if self._catalogue and self._lake.is_large():
            self._kept = self._catalogue.attach(self.connection)
            self._lake.catalogue = lambda: self._kept
        return state, self._lake.readable(*self._lake.listing(state))

    @property
    def runs(self) -> list[RunVersion]:
        """The runs that it holds, listed when they are first needed.

        Raises:
            WarehouseError: the runs cannot be listed.
        """
        return self._state_and_runs[1]

    @property
    def is_current(self) -> bool:
        """Whether the runs have not changed since it listed them.

        Raises:
            WarehouseError: the runs cannot be listed.
        """
        if "_state_and_runs" not in self.__dict__:
            return True
        self._lake.sync()
        return self._state_and_runs[0] == (self._lake.state() if self.only is None else self._lake.state_of(self.only))

    def may_blame_catalogue(self, error: Exception) -> bool:
        """Whether an error may come from the catalogue, so that the runs' own files may still answer."""
        return bool(self._kept) and _OF_DATABASE.search(str(error)) is not None

    def prepare(self, read: TablesRead) -> Callable[[], None] | None:
        """Create the views and macros that a query reads; create all if the query reads the catalogue.

        It also creates all if the query uses an unknown name, so that DuckDB can suggest a similar one. The files of
        the tables that the query reads are checked.

        Returns:
            What is to be done before the query and may take as long as one; None for nothing.
        """
        names, is_all = self._named(read)
        if is_all:
            self._check(names if read.is_known else _TABLES)
            self.complete()
        else:
            self.create(names)
        if (read.shows_comments or not read.is_known) and not self._has_comments:
            comment_on_tables(self.connection)
            self._has_comments = True
        return None if is_all or self.only is None or names <= _TABLES else lambda: self._keep_models(names)

    def _keep_models(self, names: Collection[str]) -> None:
        """Make tables of the models that are read for the second time; DuckDB computes a view for each of its readers.

        Args:
            names: what the query names.
        """
        needed = self._behind(names)
        definitions = (*self._definitions.ordered, *self._definitions.macros)
        readers = Counter(names)
        for view in definitions:
            if view.qualified in needed:
                readers.update(view.depends_on)
        for view in self._definitions.ordered:  # each comes after those that it reads
            if not (view.is_kept and view.qualified in needed) or view.qualified in self._kept_models:
                continue
            self._reads[view.qualified] += readers[view.qualified]
            if self._reads[view.qualified] > 1:
                self._kept_models.add(view.qualified)
                drop, create = f"DROP VIEW {view.qualified}", f"CREATE TABLE {view.qualified} AS {view.sql}"
                try:
                    self.connection.execute(";\n".join(("BEGIN", drop, create, "COMMIT")))
                except duckdb.Error as error:  # a number beyond its type, which not every reader asks for
                    self.connection.execute("ROLLBACK")
                    if isinstance(error, duckdb.InterruptException):
                        raise

    def _check(self, names: Collection[str]) -> None:
        for view in self._behind(names) & _TABLES:
            table = view.removeprefix("main.")
            self._files.check(self._unkept if table in KEPT else self.runs, [table])

    @cached_property
    def _unkept(self) -> list[RunVersion]:
        state, runs = self._state_and_runs
        return [r for r in runs if r.run_id not in self._kept or self._kept[r.run_id][0] != state.get(r.run_id)]

    def runs_read(self, query: ParsedSql, parameters: Mapping[str, Any] | None = None) -> frozenset[str] | None:
        """The ids of the runs whose rows suffice for a query; None if it may need those of any run.

        A query without tables needs none. A metric that compares runs needs them all. So may a macro whose
        arguments do not name its runs, another table function, which can name files, and a query that cannot be parsed.
        A macro of so many runs that a catalogue pays is asked of all, because the catalogue is.
        """
        try:
            query.sql.encode()  # half a surrogate pair cannot be encoded
            read = query.tables(self.connection)
            tree = query.tree(self.connection)
        except (duckdb.Error, UnicodeError, RecursionError, OverflowError):
            return None
        names, is_all = self._named(read)
        if is_all or "query_table" in {n for _, n in read.functions} or self._compares_runs(names):
            return None
        if not read.functions:
            return runs_read(tree, None, parameters)
        wanted = runs_read(tree, self._definitions.macro_runs, parameters)
        return wanted if wanted and len(wanted) < MANY_RUNS else None

    def damaged_runs(self, query: ParsedSql) -> frozenset[str]:
        """The runs that lack files of tables that a query names, or have damaged ones; none if it reads some runs."""
        if self.only is not None:
            return frozenset()
        read = query.tables(self.connection)
        tables = [n.removeprefix("main.") for n in self._behind(self._named(read)[0]) & _TABLES]
        damaged = {run.run_id for run, _ in self._files.damaged(self.runs, tables)}
        damaged |= {run.run_id for run in self._lake.lacking(self.runs)}
        return frozenset(damaged) if read.is_known else frozenset()

    def _compares_runs(self, names: set[str]) -> bool:
        if names <= _TABLES:
            return False
        compare = {m.view.qualified for m in self._definitions.metrics if m.view.compares_runs}
        return not behind(self._definitions, names).isdisjoint(compare)

    def _named(self, read: TablesRead) -> tuple[set[str], bool]:
        """The result of `lens_names`; if the query reads only tables, it is found without the definitions."""
        names = {f"{schema or 'main'}.{name}" for schema, name in read.tables}
        is_of_tables = names <= _TABLES and all(not s and n in ROW_FUNCTIONS for s, n in read.functions)
        if read.is_known and not read.shows_catalogue and is_of_tables:
            return names, False
        return lens_names(self._definitions, read)

    def complete(self) -> None:
        """Create every view and macro that is still missing; no file is checked."""
        self._add(_TABLES | self._all_views)

    @cached_property
    def _all_views(self) -> frozenset[str]:
        return frozenset(OWN_VIEWS).union(d.qualified for d in (*self._definitions.ordered, *self._definitions.macros))

    def create(self, names: Collection[str]) -> None:
        """Create missing tables and views, by qualified name, with everything that they read, and check their files.

        Raises:
            WarehouseError: a run cannot be read, or a file is damaged.
            MetricError: DuckDB refuses a definition.
        """
        self._check(names)
        self._add(names)

    def _add(self, names: Collection[str]) -> None:
        wanted = self._behind(names) - self._created
        if not wanted:
            return
        try:
            # apart from the views, so that no view is blamed for a bad file
            add_tables(self.connection, {t: self._source(t) for t in TABLES if f"main.{t}" in wanted})
            views = wanted - _TABLES
            if views and len((self._created | wanted) - _TABLES) > _MANY:
                add_all_views(self.connection, self._definitions)
                self._kept_models.clear()
                wanted |= self._all_views
            elif views:
                add_views(
                    self.connection,
                    self._definitions,
                    [v for v in self._definitions.ordered if v.qualified in wanted],
                    own=wanted & OWN_VIEWS.keys(),
                    macros=[m for m in self._definitions.macros if m.qualified in wanted],
                )
        except duckdb.Error as error:
            raise WarehouseError(files_error(self._lake, self.runs, error)) from None
        self._created |= wanted

    def _behind(self, names: Collection[str]) -> set[str]:
        return set(names) if _TABLES.issuperset(names) else behind(self._definitions, names)

    def _source(self, table: str) -> str | None:
        state, runs = self._state_and_runs
        if self._kept and table in KEPT:
            return kept_source(self._lake, runs, self._kept, state, table)
        return table_source(self._lake.root, runs, table)

    def close(self) -> None:
        """Close the database and delete what it spilled; a query that goes on keeps the database until it ends."""
        with suppress(duckdb.Error):  # which DuckDB raises while a query runs
            self.connection.close()
        self._spill.close()


def lens_names(definitions: Definitions, read: TablesRead) -> tuple[set[str], bool]:
    """Find the tables, views and macros of a lens that a query names, and whether it may need all of them.

    Returns:
        The qualified names, with aliases resolved; and True if the query reads the catalogue, names something that is
        not in the lens, or could not be analysed.
    """
    known = {n: n for n in (*_TABLES, *OWN_VIEWS, *(v.qualified for v in definitions.ordered))}
    known |= {f"metrics.{name}": m.view.qualified for name, m in definitions.aliases.items()}
    known |= {m.qualified: m.qualified for m in definitions.macros}
    named = [f"{schema or 'main'}.{name}" for schema, name in read.tables]
    named += [f"{schema}.{name}" for schema, name in read.functions if schema or name not in ROW_FUNCTIONS]
    names = {known[n] for n in named if n in known}
    return names, not read.is_known or read.shows_catalogue or any(n not in known for n in named)


def behind(definitions: Definitions, names: Collection[str]) -> set[str]:
    """The qualified names of these parts of a lens and of everything that they read."""
    wanted = set(names)
    if any(n.startswith("macros.") for n in wanted):
        stands_for = {f"metrics.{name}": m.view.qualified for name, m in definitions.aliases.items()}
        for macro in reversed(definitions.macros):  # each comes after those that it reads
            if macro.qualified in wanted:
                wanted |= {stands_for.get(n, n) for n in macro.depends_on}
    for name, derived in DERIVED.items():
        if name in wanted:
            wanted |= derived.reads(definitions)
    views = definitions.with_upstream(wanted)
    return wanted | {v.qualified for v in views} | {n for v in views for n in v.depends_on}


def reads_values(definitions: Definitions, sql: str) -> bool:
    """Whether SQL reads stored metric values, directly or through a view or macro; False if it cannot be parsed."""
    try:
        # it only parses, so it needs no threads
        with duckdb.connect(":memory:", config={"threads": 1}) as parser:
            read = ParsedSql(sql).tables(parser)
    except (duckdb.Error, UnicodeError, RecursionError):
        return False
    names, _ = lens_names(definitions, read)
    return not read.is_known or "main.metric_values" in behind(definitions, names)


@contextmanager
def naming_lost_files(lake: Lake, runs: Sequence[RunVersion]) -> Iterator[None]:
    """Tell an unreadable file of a run from a fault of the statement, if a statement over runs fails."""
    try:
        yield
    except (QueryError, MetricError) as error:
        if f"/{DATABASE}" in str(error):
            raise WarehouseError(
                f"{lake.warehouse / DATABASE}: is damaged ({error}); `tw build` writes it anew"
            ) from None
        if any(path in str(error) for run in runs for path in run.paths):
            raise WarehouseError(files_error(lake, runs, error)) from None
        raise
