"""The warehouse as one object: query it, ingest captures, read metrics."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tracewarehouse.ingest.capture.locations import is_remote
from tracewarehouse.ingest.capture.run_options import DEFAULT_OPTIONS, RunOptions
from tracewarehouse.ingest.errors import CaptureError, QueryError, WarehouseError
from tracewarehouse.ingest.lake.garbage import GRACE_SECONDS, Leftover
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import RunVersion, UnreadRun
from tracewarehouse.ingest.lake.warehouse_folder import check_folder

if TYPE_CHECKING:
    import duckdb

    from tracewarehouse.database.catalogue import Catalogue
    from tracewarehouse.database.session import Session
    from tracewarehouse.database.sessions import Sessions
    from tracewarehouse.definitions.reading import Definitions
    from tracewarehouse.evaluation.audits import Finding
    from tracewarehouse.executors.executor import Executor, IngestResults, Outcome
    from tracewarehouse.ingest.capture.manifest import Mesh
    from tracewarehouse.ingest.capture.sources import Capture
    from tracewarehouse.ingest.capture_comparison import CaptureComparison
    from tracewarehouse.ingest.lake.fsck import Problem
    from tracewarehouse.ingest.pipeline import IngestResult
    from tracewarehouse.queries.read_only import Limits
    from tracewarehouse.queries.result import QueryResult
    from tracewarehouse.queries.run_summary import RunSummary
    from tracewarehouse.queries.tables_read import ParsedSql


def open_warehouse(
    path: str | os.PathLike[str] = "warehouse", *, create: bool = False, sql: str | os.PathLike[str] | None = None
) -> Warehouse:
    """Open the warehouse in a folder, or open one at a URI (`gs://`, `s3://`, `https://`) for reading only.

    Args:
        path: the folder, or the URI.
        create: create the folder if it does not exist, to ingest into it.
        sql: a folder with your own metrics and models, laid out like the package's sql/; ingest and `refresh_metrics`
            evaluate them too.

    Raises:
        WarehouseError: the folder does not exist, or is not a warehouse.
        MetricError: a definition in `sql` is not valid, or has the name of one in the package.
    """
    if is_remote(path):
        warehouse = Warehouse(os.fspath(path), sql)
        warehouse.lake.sync()
        return warehouse
    folder = Path(path)
    check_folder(folder, create=create)
    warehouse = Warehouse(folder, sql)
    if sql is not None:
        _ = warehouse.definitions  # reports a mistake in a definition here
    return warehouse


class Warehouse:
    """A folder of runs, open for queries.

    Queries run on a database in memory that holds only views. It follows the runs by itself: a query sees every run
    that is published when the query starts. Do not share one warehouse between threads; open one in each thread.
    """

    def __init__(self, path: str | os.PathLike[str], sql: str | os.PathLike[str] | None = None) -> None:
        self.lake: Lake
        if is_remote(path):
            from tracewarehouse.database.remote_lake import RemoteLake

            self.lake = RemoteLake(os.fspath(path))
        else:
            self.lake = Lake(Path(path))
        self.path = os.fspath(path) if is_remote(path) else Path(path)
        self.sql = Path(sql) if sql is not None else None
        self._limits: Limits | None = None
        self.lake.catalogue = lambda: self._catalogue.runs()

    def __enter__(self) -> Warehouse:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Warehouse({str(self.path)!r})"

    def close(self) -> None:
        """Close the database; a later query opens it again."""
        if sessions := self.__dict__.pop("_sessions", None):
            sessions.close()

    def refresh(self) -> None:
        """Discard the database, the metrics' SQL, and everything that unrestricted queries created.

        The next query reads the SQL and builds the database again.
        """
        self.close()
        self.__dict__.pop("definitions", None)

    @cached_property
    def definitions(self) -> Definitions:
        """The models and metrics of the package and of the folder `sql`.

        Raises:
            MetricError: a definition is not valid.
        """
        from tracewarehouse.definitions.reading import load_with

        return load_with(self.sql)

    def query(self, sql: str, /, *, read_only: bool = True, **parameters: Any) -> QueryResult:
        """Run SQL over the tables (schema `main`) and metrics (schema `metrics`).

        Args:
            sql: one SELECT, with parameters written as `$name`.
            read_only: False lifts all limits: any statements, any files.
            **parameters: values of the parameters.

        Raises:
            QueryError: the query was refused or failed.
            WarehouseError: the runs cannot be listed or read.
        """
        return self._run(sql, parameters, read_only=read_only)

    def rows(self, sql: str, /, *, read_only: bool = True, **parameters: Any) -> QueryResult:
        """Run a query as `query` does, but faster if its rows are few or are only printed or counted.

        The rows are fetched as Python values. So pyarrow, which takes a tenth of a second to load, is loaded only when
        the result is asked for a table or data frame. For many rows, `query` is then faster.
        """
        return self._run(sql, parameters, read_only=read_only, as_values=True)

    def query_runs(self, run_ids: Collection[str], sql: str, /, **parameters: Any) -> QueryResult:
        """Run a read-only query on the files of some runs only, as if the warehouse had no others; see `query`."""
        with closing(self._sessions.of(run_ids)) as session:
            return self._ask(session, sql, parameters)

    @cached_property
    def _sessions(self) -> Sessions:
        from tracewarehouse.database.sessions import Sessions

        return Sessions(self.lake, self._catalogue, lambda: self.definitions)

    @cached_property
    def _catalogue(self) -> Catalogue:
        from tracewarehouse.database.catalogue import Catalogue

        return Catalogue(self.lake, self.sql, lambda: self.definitions)

    def _run(self, sql: str, parameters: Mapping[str, Any], *, read_only: bool, as_values: bool = False) -> QueryResult:
        from tracewarehouse.queries.tables_read import ParsedSql

        query = ParsedSql(sql)
        if not read_only:
            return self._ask(self._sessions.unrestricted(), query, parameters, read_only=False, as_values=as_values)
        session = self._sessions.for_query(query, parameters)
        try:
            return self._ask(session, query, parameters, as_values=as_values)
        except (QueryError, WarehouseError) as error:
            if not session.may_blame_catalogue(error):
                if not isinstance(error, WarehouseError):
                    raise
                if (others := self._sessions.undamaged_runs(session, query, parameters)) is None:
                    raise
                with closing(self._sessions.of(others)) as undamaged:
                    return self._ask(undamaged, query, parameters, as_values=as_values)
        self._catalogue.leave_out()
        self._sessions.close()
        return self._ask(self._sessions.for_query(query, parameters), query, parameters, as_values=as_values)

    def _ask(
        self,
        session: Session,
        sql: str | ParsedSql,
        parameters: Mapping[str, Any],
        *,
        read_only: bool = True,
        as_values: bool = False,
    ) -> QueryResult:
        from tracewarehouse.database.session import naming_lost_files
        from tracewarehouse.queries.read_only import NO_LIMITS, run_query

        with naming_lost_files(self.lake, session.runs):
            return run_query(
                session.connection,
                sql,
                parameters,
                read_only=read_only,
                runs=session.runs,
                prepare=session.prepare,
                limits=self._limits or NO_LIMITS,
                as_values=as_values,
            )

    @contextmanager
    def limited(self, limits: Limits) -> Iterator[Warehouse]:
        """Give each query in this context limits of its own; every method that reads asks such queries.

        The warehouse of a query that raises StuckQueryError cannot be used any more.
        """
        before, self._limits = self._limits, limits
        try:
            yield self
        finally:
            self._limits = before

    def reads_values(self, sql: str) -> bool:
        """Whether SQL reads stored metric values, directly or through a view or macro; False if it cannot be parsed."""
        from tracewarehouse.database.session import reads_values

        return reads_values(self.definitions, sql)

    def connection(self) -> duckdb.DuckDBPyConnection:
        """The database that read-only queries run on; it accepts nothing but such queries.

        It shows the runs as they are now, and is valid until the next query. No file is checked for damage.

        Raises:
            WarehouseError: the runs cannot be listed or read.
        """
        session = self._sessions.for_all()
        session.complete()
        return session.connection

    def runs(self) -> QueryResult:
        """The table main.runs, sorted by name."""
        return self.query("SELECT * FROM main.runs ORDER BY name, run_id")

    def files(self, table: str) -> list[str]:
        """The Parquet files that hold a table of all runs now, for other readers: absolute paths, or URIs.

        A pattern such as `lake/*/*/ops*.parquet` also finds versions of runs that were replaced in the last day, whose
        rows it would count twice.

        Raises:
            WarehouseError: there is no such table, or the runs cannot be listed.
        """
        from difflib import get_close_matches

        from tracewarehouse.ingest.lake.schema import TABLES

        if table not in TABLES:
            close = get_close_matches(table, TABLES, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(TABLES)}"
            raise WarehouseError(f"no table {table!r}; {hint}")
        self.lake.sync()
        return [f"{self.lake.root}/{file}" for run in self.lake.runs() for file in run.files.get(table, ())]

    def unread_runs(self) -> list[UnreadRun]:
        """List the runs that are missing from every answer, with the reason.

        Either the run's manifest is damaged, or its tables have another schema version. Ingest its capture again to
        repair it, or call `remove` to forget it.

        Raises:
            WarehouseError: the runs cannot be listed.
        """
        self.lake.sync()
        return self.lake.listing()[1]

    def run(self, reference: str) -> RunVersion:
        """Find a run by its id or name, or the beginning of one; an empty text means the only run.

        Raises:
            WarehouseError: no run fits, or several do; the message lists the candidates.
        """
        return self._meant(reference)[0]

    def find(self, references: Sequence[str]) -> list[RunVersion]:
        """Find runs, each once: each reference is one run (see `run`), or a pattern of names such as 'llama-*'.

        Raises:
            WarehouseError: no run fits a reference.
        """
        return self._meant(references, patterns=True)

    def _meant(self, references: str | Sequence[str], *, patterns: bool = False) -> list[RunVersion]:
        from tracewarehouse.queries.run_references import runs_meant

        return runs_meant(self.lake, self.path, references, patterns=patterns)

    def summary(self, run: str) -> RunSummary:
        """A run in short: facts, main numbers, what dominates its steps, flags, and what is missing and why.

        Args:
            run: a run (see `run`).

        Raises:
            WarehouseError: the run does not exist, or its files cannot be read.
        """
        from tracewarehouse.queries.run_summary import summarise

        run_id = self.run(run).run_id
        session = self._sessions.for_runs(frozenset((run_id,)))
        return summarise(lambda sql: self._ask(session, sql, {}, as_values=True), run_id)

    def metrics(self) -> QueryResult:
        """The catalogue of metrics, metrics.catalog."""
        return self.query("SELECT * FROM metrics.catalog ORDER BY metric, version")

    def metric(self, name: str, run: str | Sequence[str] | None = None, version: int | None = None) -> QueryResult:
        """The rows of one metric, computed now from its view.

        Args:
            name: the metric, such as 'tpot'.
            run: a run (see `run`), several, or None for all.
            version: version of the definition; None for the newest stable one.

        Raises:
            MetricError: the metric or version does not exist.
            WarehouseError: a run does not exist.
        """
        from tracewarehouse.definitions.derived import in_these

        view = self.definitions.metric(name, version).view.name
        if run is None:
            return self.query(f"SELECT * FROM metrics.{view} ORDER BY ALL")  # noqa: S608  the view's name is checked
        where = in_these([r.run_id for r in self._meant(run)])
        return self.rows(f"SELECT * FROM metrics.{view} WHERE {where} ORDER BY ALL")  # noqa: S608

    def values(
        self,
        run: str | Sequence[str] | None = None,
        *,
        metrics: Sequence[str] | None = None,
        version: int | None = None,
    ) -> QueryResult:
        """The values of metrics, as ingest or `refresh_metrics` stored them.

        Some values are not stored but evaluated now: those of metrics that compare runs, such as scaling_efficiency; of
        metrics with a row per instruction, such as roofline; and of deprecated and compatibility versions. The latter
        two kinds are returned only if `metrics` names the metric; if `run` is given, this also holds for metrics that
        compare runs, since they read all other runs. Rows without a value are left out. The column `status` holds the
        status of the version; it is NULL if a stored version no longer has a definition.

        Args:
            run: a run (see `run`), several, or None for all.
            metrics: names of metrics, or None for all.
            version: one version of each metric, or None for all.

        Raises:
            MetricError: a metric or version does not exist.
            WarehouseError: a run does not exist.
        """
        from tracewarehouse.definitions.derived import values_query

        ids = None if run is None else [r.run_id for r in self._meant(run)]
        ask = self.query if run is None else self.rows
        return ask(values_query(self.definitions, ids, metrics, version))

    def ingest(
        self,
        path: str | os.PathLike[str],
        *,
        mesh: Mesh | str | None = None,
        name: str | None = None,
        step_program: str | None = None,
        costs: str | os.PathLike[str] | None = None,
        device: str | None = None,
        chip_price: float | None = None,
        jobs: int | None = None,
        max_gzip_ratio: float | None = None,
    ) -> IngestResults:
        """Ingest every capture under a path or URI, and store its metric values.

        Args:
            path: a capture file, a capture directory, or a folder of them, or a URI (`gs://`, `s3://`, `https://`) of
                one. A URI is first copied to a cache; see `tracewarehouse.ingest.capture.remote.local_copy`.
            mesh: the device mesh, such as 'dp=2,tp=4', if no manifest gives it.
            name: name of the run, for a path that holds one capture.
            step_program: the module whose executions begin a step, instead of the capture's own steps.
            costs: a JSON or TOML file with the costs of kernels that the profiler does not know.
            device: kind of the chips, such as TPU7x, where neither capture nor card tells it.
            chip_price: price of a chip for an hour, in USD, instead of the list price.
            jobs: number of processes that ingest in parallel; None for one per core, as far as memory allows. Small
                captures are shared among them, and a large capture is read by all.
            max_gzip_ratio: how many times its own size a gzipped file may unpack to before it is refused as a trap;
                None for the reader's own limit.

        Raises:
            CaptureError: captures or the costs cannot be read, or the chip is not known; all other captures are in the
                warehouse.
            WarehouseError: the warehouse cannot be written.
        """
        from tracewarehouse.executors.executor import IngestResults
        from tracewarehouse.ingest.capture.remote import local_copy
        from tracewarehouse.ingest.devices.joined_hosts import find_whole_captures

        options = RunOptions.parse(mesh, name, step_program, costs, device, chip_price)
        captures = find_whole_captures(local_copy(path), max_gzip_ratio=max_gzip_ratio)
        if name is not None and len(captures) > 1:
            raise CaptureError(f"{path}: holds {len(captures)} captures, but a name can be given only to one")
        with self.followed_by_database():
            if len(captures) == 1:
                return IngestResults([self.ingest_capture(captures[0], options, jobs=jobs)])
            outcomes = list(self.ingest_captures(captures, options, jobs=jobs))
        return IngestResults.of(outcomes)

    def ingest_captures(
        self,
        captures: Sequence[Capture],
        options: RunOptions = DEFAULT_OPTIONS,
        *,
        jobs: int | None = None,
        executor: Executor | None = None,
    ) -> Generator[Outcome, None, None]:
        """Ingest many captures in several processes, and yield the outcome of each, in the order in which they end.

        Each capture becomes the same run as by `ingest_capture`, byte for byte, in any number of processes. If one
        cannot be read, or its process is killed, its outcome has an error; the others go on. If the caller stops
        early, unfinished runs are removed. `followed_by_database` brings warehouse.duckdb up to date.

        Args:
            captures: as `tracewarehouse.ingest.devices.joined_hosts.find_whole_captures` returns them; the number of an
                outcome is the index of its capture.
            options: the options of all runs.
            jobs: number of processes; see `ingest`.
            executor: runs the processes; by default on this machine.

        Raises:
            MetricError: a definition of the user's own metrics is not valid.
            WarehouseError: the warehouse is remote.
        """
        from tracewarehouse.executors.executor import IngestTask, LocalProcesses, run_tasks

        folder = self._folder("ingest").resolve()
        tasks = [IngestTask(number, capture, folder, self.sql, options) for number, capture in enumerate(captures)]
        yield from run_tasks(tasks, executor or LocalProcesses(jobs))

    def ingest_capture(
        self,
        capture: Capture,
        options: RunOptions = DEFAULT_OPTIONS,
        *,
        evaluate: bool = True,
        jobs: int | None = None,
    ) -> IngestResult:
        """Ingest one capture; see `ingest`. `followed_by_database` brings warehouse.duckdb up to date.

        Args:
            capture: the files of one run; `tracewarehouse.ingest.devices.joined_hosts.find_whole_captures` gives such.
            options: what the user says about the run.
            evaluate: store the metric values with the run.
            jobs: number of processes that may read a large capture in parallel; None for one per core.
        """
        from tracewarehouse.evaluation.evaluator import Evaluator
        from tracewarehouse.executors.executor import IngestTask, run_task

        task = IngestTask(0, capture, self._folder("ingest"), self.sql, options)
        return run_task(task, Evaluator(lambda: self.definitions) if evaluate else None, jobs)

    def audit(self, run: str | Sequence[str] | None = None, limit: int = 20) -> list[Finding]:
        """Run the audits, and return the rows that must never occur; empty if all is well.

        Args:
            run: a run (see `run`), several, or None for all.
            limit: maximum number of rows per audit and run.

        Raises:
            WarehouseError: a run does not exist, or its files cannot be read.
            MetricError: an audit fails.
        """
        from tracewarehouse.database.lens import run_sources
        from tracewarehouse.database.session import naming_lost_files
        from tracewarehouse.definitions.derived import all_audits
        from tracewarehouse.evaluation.audits import run_audits
        from tracewarehouse.evaluation.values import suspected_audits

        runs = self.lake.runs() if run is None else self._meant(run)
        read = {n for a in all_audits(self.definitions) for n in a.depends_on}
        of_all = run is None or any(m.view.compares_runs for m in self.definitions.metrics if m.view.qualified in read)
        with closing(self._sessions.of(None if of_all else [r.run_id for r in runs])) as session:
            session.create(read)
            with naming_lost_files(self.lake, runs):
                connection, found = session.connection, []
                for one in runs:
                    sources = run_sources(self.lake.root, [one])
                    audits = suspected_audits(connection, one.run_id, self.definitions, sources)
                    found += run_audits(connection, one.run_id, self.definitions, audits=audits, limit=limit)
                return found

    def refresh_metrics(self) -> list[RunVersion]:
        """Evaluate the metrics of all runs whose stored values come from other definitions, and return these runs.

        Raises:
            WarehouseError: the warehouse cannot be written.
            MetricError: a definition is not valid.
        """
        from tracewarehouse.evaluation.evaluator import Evaluator, refresh

        self._folder("refresh")
        evaluator = Evaluator(lambda: self.definitions)
        with self.followed_by_database():
            return [fresh for r in self.stale_runs() if (fresh := refresh(self.lake, r, evaluator))]

    def stale_runs(self, run: str | Sequence[str] | None = None) -> list[RunVersion]:
        """The runs whose stored metric values come from other definitions than today's, or that have no values.

        Args:
            run: a run (see `run`), several, or None for all.

        Raises:
            WarehouseError: a run does not exist.
        """
        runs = self.lake.runs() if run is None else self._meant(run)
        return [r for r in runs if not self.definitions.is_current(r.metrics_fingerprint)]

    def build(self) -> Path:
        """Write warehouse.duckdb, a database file that any DuckDB can open, and return its path.

        Raises:
            WarehouseError: the file cannot be written, or a file of a run is missing.
        """
        self._folder("build")
        return self._catalogue.build()

    def is_database_current(self) -> bool:
        """Whether warehouse.duckdb holds the current runs and definitions; True if there is no such file."""
        # a remote warehouse has no such file: commands that build one need a folder
        return not isinstance(self.path, Path) or self._catalogue.is_current

    def update_database(self) -> bool:
        """Bring warehouse.duckdb up to date if there is one and it is older than the runs; returns whether it was.

        Ingest, `remove` and `refresh_metrics` end with this, so the file never answers from old runs.

        Raises:
            WarehouseError: the file is older and cannot be built, or it holds metrics that are not defined here.
        """
        return isinstance(self.path, Path) and self._catalogue.update()

    def database(self) -> Path:
        """The path of warehouse.duckdb, built now if it is missing or older than the runs.

        Raises:
            WarehouseError: it cannot be built.
        """
        self._folder("build a database")
        if not self._catalogue.path.exists():
            return self._catalogue.build()
        self._catalogue.update()
        return self._catalogue.path

    @contextmanager
    def followed_by_database(self) -> Iterator[None]:
        """Update warehouse.duckdb after a change of the runs in this context, if it exists or there are many runs.

        It is updated even if the change fails half-way; the first error is raised.

        Raises:
            WarehouseError: as `update_database`.
        """
        self.lake.settle()
        before = self.lake.changed_ns()
        try:
            yield
        except Exception:
            with suppress(WarehouseError):
                self._follow(before)
            raise
        self._follow(before)

    def _follow(self, before: int) -> None:
        if isinstance(self.path, Path) and self.lake.changed_ns() != before and self.lake.wants_catalogue():
            self._catalogue.write()

    def fsck(self) -> list[Problem]:
        """Verify every byte of the warehouse, and that its parts agree; returns an empty list if all is well.

        Raises:
            WarehouseError: there is no warehouse.
        """
        from tracewarehouse.evaluation.fsck import fsck

        self._folder("verify")
        return fsck(self.lake, self._catalogue, self.definitions)

    def against(self, capture: Capture) -> CaptureComparison:
        """Compare a capture, decoded by a second parser, with its run, to prove that no event or stat is missing.

        Args:
            capture: the files of one run; `tracewarehouse.ingest.devices.joined_hosts.find_whole_captures` gives such.

        Raises:
            CaptureError: the capture cannot be read.
            WarehouseError: the capture's run is not in the warehouse, or its tables cannot be read.
        """
        from tracewarehouse.ingest.capture_comparison import compare_with_capture

        return compare_with_capture(capture, self._folder("verify"))

    def remove(self, run: str | Sequence[str]) -> list[RunVersion | UnreadRun]:
        """Remove runs from the warehouse, and return them; a later `collect_garbage` deletes their files.

        Args:
            run: a run (see `run`), or several. A run that cannot be read must be given by its whole run id or name.

        Raises:
            WarehouseError: a run does not exist, or the warehouse cannot be written; in both cases no run is removed.
        """
        self._folder("remove runs")
        unread = {key: r for r in self.lake.listing()[1] for key in (r.name, r.run_id)}
        listed = [unread.get(r) or self.run(r) for r in ([run] if isinstance(run, str) else run)]
        with self.followed_by_database():
            return [r for r in listed if self.lake.remove(r.run_id)]

    def leftovers(self, grace_seconds: float = GRACE_SECONDS) -> list[Leftover]:
        """The files that `collect_garbage` would remove.

        Raises:
            WarehouseError: the warehouse cannot be listed, or its database cannot be read.
        """
        from tracewarehouse.ingest.lake.garbage import leftovers

        self._folder("gc")
        return leftovers(self.lake, grace_seconds, self._catalogue.replaced_files())

    def collect_garbage(self, grace_seconds: float = GRACE_SECONDS) -> list[Leftover]:
        """Remove unused files, and return them: files of dead writers, and of versions replaced before the grace time.

        Files that warehouse.duckdb names are kept until it is brought up to date.

        Raises:
            WarehouseError: the warehouse cannot be written, or its database cannot be read.
        """
        from tracewarehouse.ingest.lake.garbage import collect_garbage

        if not (self._folder("gc") / "manifests").is_dir():
            return []
        return collect_garbage(self.lake, grace_seconds, self._catalogue.replaced_files())

    def _folder(self, verb: str) -> Path:
        if isinstance(self.path, Path):
            return self.path
        raise WarehouseError(f"{self.path}: a remote warehouse can only be read; copy it to a folder to {verb} there")
