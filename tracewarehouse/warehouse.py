"""The warehouse as one object: query it, ingest captures, read metrics."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from glob import glob
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tracewarehouse.ingest.capture.locations import is_remote
from tracewarehouse.ingest.errors import CaptureError, WarehouseError, shown
from tracewarehouse.ingest.lake import garbage
from tracewarehouse.ingest.lake.garbage import GRACE_SECONDS, Leftover
from tracewarehouse.ingest.lake.lake import DATABASE, Lake
from tracewarehouse.ingest.lake.manifest import RunVersion, UnreadRun, unread_sentence

if TYPE_CHECKING:
    import duckdb

    from tracewarehouse.database.compacted import Pack
    from tracewarehouse.database.session import Session
    from tracewarehouse.definitions.reading import Definitions, Metric
    from tracewarehouse.evaluation.evaluator import Evaluator
    from tracewarehouse.evaluation.findings import Finding
    from tracewarehouse.evaluation.forked import ForkedEvaluator
    from tracewarehouse.executors.executor import Executor, Outcome
    from tracewarehouse.ingest.capture.costs import Costs
    from tracewarehouse.ingest.capture.manifest import Mesh
    from tracewarehouse.ingest.capture.sources import Capture
    from tracewarehouse.ingest.pipeline import IngestResult
    from tracewarehouse.ingest.verify.against import CaptureComparison
    from tracewarehouse.ingest.verify.fsck import Problem
    from tracewarehouse.ingested import IngestResults
    from tracewarehouse.queries.read_only import Limits
    from tracewarehouse.queries.result import QueryResult
    from tracewarehouse.run_summary import RunSummary


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
    _check_path(folder)
    try:
        exists = folder.exists()
    except OSError as error:
        raise WarehouseError(f"{shown(str(folder))}: cannot be opened: {error.strerror or error}") from None
    if exists and not folder.is_dir():
        raise WarehouseError(
            f"{folder} is a file, not a warehouse; to query a capture itself, `tw query {folder} SQL`; to keep it, "
            f"`tw -w FOLDER ingest {folder}`"
        )
    if not folder.is_dir() and not create:
        raise WarehouseError(
            f"no warehouse at {folder}; make one with `tw -w {folder} ingest CAPTURE`, or name another with -w or "
            "TRACEWAREHOUSE (Python: tw.open(path, create=True))"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_other = not (folder / "manifests").is_dir() and not (folder / "lake").is_dir() and any(folder.iterdir())
    except OSError as error:
        raise WarehouseError(f"{folder}: cannot be opened as a warehouse: {error.strerror or error}") from None
    if is_other and not create:
        raise WarehouseError(
            f"{folder} holds files but no warehouse (no folders lake and manifests); name another with -w"
        )
    warehouse = Warehouse(folder, sql)
    if sql is not None:
        _ = warehouse.definitions  # so that a mistake in a definition is reported here
    return warehouse


def _check_path(folder: Path) -> None:
    """Refuse a folder in whose place DuckDB would find no files, or the files of another folder.

    Raises:
        WarehouseError: its path is a pattern for file names that other paths fit, or is not UTF-8.
    """
    try:
        path = str(folder.resolve())
        path.encode()
    except UnicodeEncodeError:
        raise WarehouseError(f"{shown(str(folder))}: a warehouse's path must be UTF-8; rename the folder") from None
    except (OSError, RuntimeError, ValueError):  # reported when the folder is opened
        return
    if special := [c for c in "?\\" if c in path]:
        raise WarehouseError(
            f"{shown(path)}: a warehouse's path cannot have the character {special[0]}; rename the folder, or name "
            "another with -w"
        )
    if others := sorted({*glob(path)} - {path}):  # noqa: PTH207  the path is absolute
        raise WarehouseError(
            f"{shown(path)}: a warehouse's path cannot be a pattern that others fit, such as {shown(others[0])}; "
            "rename the folder, or name another with -w"
        )


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
        self._read_only: Session | None = None
        self._limited: Session | None = None
        self._unrestricted: Session | None = None
        self._has_evaluated = False
        self._limits: Limits | None = None

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
        for session in (self._read_only, self._limited, self._unrestricted):
            if session:
                session.close()
        self._read_only = self._limited = self._unrestricted = None

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
        from tracewarehouse.definitions.user import load_with

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
        session = self._session_for(sql) if read_only else self._unrestricted_session()
        return self._ask(session, sql, parameters, read_only=read_only)

    def rows(self, sql: str, /, *, read_only: bool = True, **parameters: Any) -> QueryResult:
        """Run a query whose rows are to be printed or counted, or that has few: as `query`, with the same result.

        Its rows are fetched as Python values. This does without pyarrow, which takes a tenth of a second to load, until
        the result is asked for a table or data frame; `query` is faster for many rows that end as these.
        """
        session = self._session_for(sql) if read_only else self._unrestricted_session()
        return self._ask(session, sql, parameters, read_only=read_only, as_values=True)

    def query_of(self, run_ids: Collection[str], sql: str, /, **parameters: Any) -> QueryResult:
        """Run a read-only query on the files of some runs alone, as if the warehouse had no others; see `query`."""
        from tracewarehouse.database.session import Session

        session = Session(self.lake, lambda: self.definitions, is_restricted=True, only=run_ids)
        try:
            return self._ask(session, sql, parameters)
        finally:
            session.close()

    def _ask(
        self,
        session: Session,
        sql: str,
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
        import duckdb

        from tracewarehouse.database.session import behind, of_lens
        from tracewarehouse.queries.tables_read import tables_read

        try:
            # leaves no DuckDB threads behind, so that the process can be forked later
            with duckdb.connect(":memory:", config={"threads": 1}) as parser:
                read = tables_read(parser, sql)
        except (duckdb.Error, UnicodeError, RecursionError):
            return False
        names, _ = of_lens(self.definitions, read)
        return not read.is_known or "main.metric_values" in behind(self.definitions, names)

    def connection(self) -> duckdb.DuckDBPyConnection:
        """The database that read-only queries run on; it accepts nothing but such queries.

        It shows the runs as they are now, and is valid until the next query.

        Raises:
            WarehouseError: the runs cannot be listed or read.
        """
        session = self._session()
        session.complete()
        return session.connection

    def runs(self) -> QueryResult:
        """The table main.runs, sorted by name."""
        return self.query("SELECT * FROM main.runs ORDER BY name, run_id")

    def files(self, table: str) -> list[str]:
        """The Parquet files that hold a table of all runs now, for other readers: absolute paths, or URIs.

        Files of many runs that `compact` has joined are among them, if all of these runs are still as they were.
        A pattern such as `lake/*/*/ops*.parquet` also finds versions of runs that were replaced in the last day, whose
        rows it would count twice.

        Raises:
            WarehouseError: there is no such table, or the runs cannot be listed.
        """
        from tracewarehouse.database import compacted
        from tracewarehouse.ingest.lake.schema import TABLES

        if table not in TABLES:
            close = get_close_matches(table, TABLES, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(TABLES)}"
            raise WarehouseError(f"no table {table!r}; {hint}")
        self.lake.sync()
        return compacted.files(self.lake, self.lake.runs(), table)

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
        """Find a run by its run id, the beginning of its run id, or its name.

        Raises:
            WarehouseError: no run fits, or several do; the message lists the candidates.
        """
        return self._found(reference)[0]

    def find(self, references: Sequence[str]) -> list[RunVersion]:
        """Find runs, each once: each reference is one run (see `run`), or a pattern of names such as 'llama-*'.

        Raises:
            WarehouseError: no run fits a reference.
        """
        return self._found(references, patterns=True)

    def _found(self, references: str | Sequence[str], *, patterns: bool = False) -> list[RunVersion]:
        """The runs that references stand for, each once; see `run` and `find`.

        All runs are listed once, and only if a reference is not the whole id of a run.
        """
        self.lake.sync()
        meant: dict[str, RunVersion] = {}
        listed: tuple[list[RunVersion], list[UnreadRun]] | None = None
        for reference in [references] if isinstance(references, str) else references:
            if run := self._of_id(reference):
                meant[run.run_id] = run
                continue
            listed = listed or self.lake.listing()
            fitting: list[RunVersion] = []
            if patterns and _is_pattern(reference):
                fitting = [r for r in self.lake.readable(*listed) if fnmatchcase(r.name, reference)]
            for run in fitting or [self._named(reference, *listed)]:
                meant[run.run_id] = run
        return list(meant.values())

    def _of_id(self, reference: str) -> RunVersion | None:
        """The run with this id, from its manifest alone; None if there is none that can be read."""
        try:
            return self.lake.run(reference)
        except WarehouseError:  # the list of all runs says why
            return None

    def _named(self, reference: str, runs: list[RunVersion], unread: list[UnreadRun]) -> RunVersion:
        """The one of all runs that a reference stands for; see `run`."""
        for other in unread:
            if reference in (other.run_id, other.name):
                raise WarehouseError(f"run {other}; run `tw ingest` on its capture again")
        runs = self.lake.readable(runs, unread)
        for fitting in (
            [r for r in runs if r.run_id == reference],
            [r for r in runs if r.name == reference],
            [r for r in runs if reference and r.run_id.startswith(reference)],
        ):
            if len(fitting) == 1:
                return fitting[0]
            if fitting:
                raise WarehouseError(f"{reference!r} stands for {len(fitting)} runs: {_listed(fitting)}; use a run id")
        if not runs:
            raise WarehouseError(f"no run {reference!r}: the warehouse {self.path} is empty; add runs with `tw ingest`")
        names = [*dict.fromkeys(r.name for r in runs), *(r.run_id for r in runs)]
        if close := get_close_matches(reference, names, n=3):
            raise WarehouseError(f"no run {reference!r} in {self.path}; did you mean {' or '.join(close)}?")
        raise WarehouseError(f"no run {reference!r} in {self.path}; `tw runs` lists its runs")

    def summary(self, run: str) -> RunSummary:
        """A run in short: facts, main numbers, what dominates its steps, flags, and what is missing and why.

        Args:
            run: a run (see `run`).

        Raises:
            WarehouseError: the run does not exist, or its files cannot be read.
        """
        from tracewarehouse.database.session import Session
        from tracewarehouse.run_summary import summarise

        run_id = self.run(run).run_id
        session = Session(
            self.lake, lambda: self.definitions, is_restricted=True, only=[run_id]
        )  # opens no file of another run
        try:
            return summarise(lambda sql: self._ask(session, sql, {}, as_values=True), run_id)
        finally:
            session.close()

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
        from tracewarehouse.queries.read_only import literal

        metric = find_metric(self.definitions, name, version)
        view = metric.view.name
        if run is None:
            return self.query(f"SELECT * FROM metrics.{view} ORDER BY ALL")  # noqa: S608  the view's name is checked
        # DuckDB skips the files of other runs only if run ids are literals, not parameters or a join
        ids = [r.run_id for r in self._found(run)]
        where = f"run_id IN ({', '.join(map(literal, ids))})" if ids else "false"
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
        two kinds are returned only if `metrics` names the metric; so are those of metrics that compare runs if `run` is
        given, since they read all other runs. Rows without a value are left out. The column
        `status` holds the status of the version; it is NULL if a stored version no longer has a definition.

        Args:
            run: a run (see `run`), several, or None for all.
            metrics: names of metrics, or None for all.
            version: one version of each metric, or None for all.

        Raises:
            MetricError: a metric or version does not exist.
            WarehouseError: a run does not exist.
        """
        from tracewarehouse.database.lens import stored_values, values_now
        from tracewarehouse.queries.read_only import literal

        conditions = ["true"]
        compared = [m for m in self.definitions.metrics if m.view.compares_runs and m.header.is_stored]
        now = compared if run is None else []
        if metrics is not None:
            for name in metrics:
                find_metric(self.definitions, name, version)
            unstored = [m for m in self.definitions.metrics if not m.header.is_stored and version in (None, m.version)]
            now = [m for m in (*compared, *unstored) if m.name in metrics]
        of_runs = "true"
        if run is not None:
            ids = [r.run_id for r in self._found(run)]
            of_runs = f"run_id IN ({', '.join(map(literal, ids))})" if ids else "false"
            conditions.append(f"r.{of_runs}" if ids else of_runs)
        if metrics is not None:
            names = ", ".join(map(literal, metrics))
            conditions.append(f"v.metric IN ({names})" if names else "false")
        if version is not None:
            conditions.append(f"v.version = {int(version)}")
        sources = [stored_values(of_runs), *(values_now(m, of_runs) for m in now)]
        ask = self.query if run is None else self.rows
        return ask(
            "SELECT v.run_id, r.name, v.metric, v.version, v.dimensions, v.value, v.unit, c.status "  # noqa: S608  literals
            f"FROM ({' UNION ALL '.join(sources)}) AS v JOIN main.runs AS r ON r.run_id = v.run_id "
            "LEFT JOIN metrics.catalog AS c ON c.metric = v.metric AND c.version = v.version "
            f"WHERE {' AND '.join(conditions)} ORDER BY r.name, v.run_id, v.metric, v.version, v.dimensions"
        )

    def ingest(
        self,
        path: str | os.PathLike[str],
        *,
        mesh: Mesh | str | None = None,
        name: str | None = None,
        step_program: str | None = None,
        costs: str | os.PathLike[str] | None = None,
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
            costs: a JSON or TOML file with what kernels cost whose cost the profiler does not know.
            jobs: number of processes that ingest in parallel; None for one per core, as far as the memory goes. Small
                captures are shared among them, and a large capture is read by all.
            max_gzip_ratio: how many times larger than itself a gzipped file may unpack before it is refused as a trap;
                None for the reader's own limit.

        Raises:
            CaptureError: captures cannot be read, or the costs cannot be; all other captures are in the warehouse.
            WarehouseError: the warehouse cannot be written.
        """
        from tracewarehouse.ingest.capture.remote import local_copy
        from tracewarehouse.ingest.devices.joined_hosts import find_whole_captures
        from tracewarehouse.ingested import IngestResults

        captures = find_whole_captures(local_copy(path), max_gzip_ratio=max_gzip_ratio)
        if name is not None and len(captures) > 1:
            raise CaptureError(f"{path}: holds {len(captures)} captures, but a name can be given only to one")
        with self.followed_by_database():
            if len(captures) == 1:
                return IngestResults(
                    [
                        self.ingest_capture(
                            captures[0], mesh=mesh, name=name, step_program=step_program, costs=costs, jobs=jobs
                        )
                    ]
                )
            outcomes = self.ingest_captures(captures, mesh=mesh, step_program=step_program, costs=costs, jobs=jobs)
            ended = sorted(outcomes, key=lambda o: o.number)
        failures = [o.error for o in ended if o.error]
        if len(failures) == 1:
            raise failures[0]
        if failures:
            reasons = "; ".join(map(str, failures))
            raise CaptureError(f"{len(failures)} of {len(captures)} captures could not be ingested: {reasons}")
        return IngestResults(o.result for o in ended if o.result)

    def ingest_captures(
        self,
        captures: Sequence[Capture],
        *,
        mesh: Mesh | str | None = None,
        step_program: str | None = None,
        costs: str | os.PathLike[str] | None = None,
        jobs: int | None = None,
        executor: Executor | None = None,
    ) -> Generator[Outcome, None, None]:
        """Ingest many captures in several processes, and yield what became of each, in the order in which they end.

        Each capture becomes the same run as by `ingest_capture`, byte for byte, in any number of processes. One that
        cannot be read, or whose process is killed, is an outcome with an error; the others go on. If the caller stops
        early, what is unfinished is taken back. `followed_by_database` brings warehouse.duckdb up to date.

        Args:
            captures: as `tracewarehouse.ingest.devices.joined_hosts.find_whole_captures` returns them; the number of an
                outcome is the index of its capture.
            mesh: the device mesh of all captures.
            step_program: the module whose executions begin a step.
            costs: a JSON or TOML file with what kernels cost.
            jobs: number of processes; see `ingest`.
            executor: what runs the processes; by default this machine.

        Raises:
            MetricError: a definition of the user's own metrics is not valid.
            WarehouseError: the warehouse is remote.
        """
        from tracewarehouse.executors.executor import IngestTask
        from tracewarehouse.executors.local import LocalProcesses

        folder, parsed = self._folder("ingest").resolve(), parse_mesh(mesh)
        tasks = [
            IngestTask(number, capture, folder, self.sql, parsed, None, step_program, costs)
            for number, capture in enumerate(captures)
        ]
        processes: Executor = executor or LocalProcesses(jobs)
        try:
            for task in sorted(tasks, key=lambda t: t.is_large):  # the small ones first, so that results come early
                processes.submit(task)
            yield from processes.results()
        finally:
            processes.cancel()

    def ingest_capture(
        self,
        capture: Capture,
        *,
        mesh: Mesh | str | None = None,
        name: str | None = None,
        step_program: str | None = None,
        costs: str | os.PathLike[str] | None = None,
        evaluate: bool = True,
        jobs: int | None = None,
    ) -> IngestResult:
        """Ingest one capture; see `ingest`. `followed_by_database` brings warehouse.duckdb up to date.

        Args:
            capture: the files of one run; `tracewarehouse.ingest.devices.joined_hosts.find_whole_captures` gives such.
            mesh: the device mesh.
            name: name of the run.
            step_program: the module whose executions begin a step.
            costs: a JSON or TOML file with what kernels cost.
            evaluate: store the metric values with the run.
            jobs: number of processes that may read a large capture in parallel; None for one per core.
        """
        from tracewarehouse.executors.executor import with_findings

        folder, parsed = self._folder("ingest"), parse_mesh(mesh)
        given = _costs(costs)
        with self._evaluator(jobs) if evaluate else nullcontext() as evaluator:
            from tracewarehouse.ingest.pipeline import (
                ingest_capture,  # imported after the evaluator is started, which gets ready meanwhile
            )

            result = ingest_capture(
                capture,
                folder,
                mesh=parsed,
                name=name,
                step_program=step_program,
                costs=given,
                evaluate=evaluator,
                jobs=jobs,
            )
        return with_findings(result, evaluator)

    def audit(self, run: str | Sequence[str] | None = None, limit: int = 20) -> list[Finding]:
        """Run the audits, and return the rows that must never occur; empty if all is well.

        Args:
            run: a run (see `run`), several, or None for all.
            limit: maximum number of rows per audit and run.

        Raises:
            WarehouseError: a run does not exist, or its files cannot be read.
            MetricError: an audit fails.
        """
        from tracewarehouse.database.session import Session, naming_lost_files
        from tracewarehouse.definitions.ranges import all_audits
        from tracewarehouse.evaluation.audits import run_audits

        runs = self.lake.runs() if run is None else self._found(run)
        read = {n for a in all_audits(self.definitions) for n in a.depends_on}
        of_all = run is None or any(m.view.compares_runs for m in self.definitions.metrics if m.view.qualified in read)
        only = None if of_all else [r.run_id for r in runs]
        with closing(Session(self.lake, lambda: self.definitions, is_restricted=True, only=only)) as session:
            session.create(read)
            with naming_lost_files(self.lake, runs):
                return [
                    f for r in runs for f in run_audits(session.connection, r.run_id, self.definitions, limit=limit)
                ]

    def refresh_metrics(self) -> list[RunVersion]:
        """Evaluate the metrics of all runs whose stored values come from other definitions, and return these runs.

        Raises:
            WarehouseError: the warehouse cannot be written.
            MetricError: a definition is not valid.
        """
        from tracewarehouse.evaluation.evaluator import Evaluator, refresh

        self._folder("refresh")
        evaluator = Evaluator(self.definitions)
        with self.followed_by_database():
            return [fresh for r in self.stale_runs() if (fresh := refresh(self.lake, r, evaluator))]

    def stale_runs(self, run: str | Sequence[str] | None = None) -> list[RunVersion]:
        """The runs whose stored metric values come from other definitions than today's, or that have no values.

        Args:
            run: a run (see `run`), several, or None for all.

        Raises:
            WarehouseError: a run does not exist.
        """
        runs = self.lake.runs() if run is None else self._found(run)
        return [r for r in runs if not self.definitions.is_current(r.metrics_fingerprint)]

    def build(self) -> Path:
        """Write warehouse.duckdb, a database file that any DuckDB can open, and return its path.

        Raises:
            WarehouseError: the file cannot be written, or a file of a run is missing.
        """
        import duckdb

        from tracewarehouse.database.lens import build
        from tracewarehouse.database.session import files_error

        folder = self._folder("build")
        try:
            with self.lake.exclusive():  # so that the later of two builds has the newer runs
                runs = self.lake.runs()
                if lost := self.lake.lacking(runs):  # DuckDB itself would miss a file only when it is queried
                    raise WarehouseError(f"the database cannot be built: {self.lake.root}: {unread_sentence(lost)}")
                return build(folder, runs, self.definitions)
        except duckdb.Error as error:
            raise WarehouseError(
                f"the database cannot be built: {files_error(self.lake, self.lake.runs(), error)}"
            ) from None
        except OSError as error:
            raise WarehouseError(f"{self.path}: the database cannot be built: {error}") from None

    def is_database_current(self) -> bool:
        """Whether warehouse.duckdb holds the runs and definitions of now; True without such a file."""
        from tracewarehouse.database.lens import is_current

        if not isinstance(self.path, Path):  # commands that build one need a folder
            return True
        database = self.path / DATABASE
        try:
            return not database.exists() or is_current(database, database.parent, self.lake.runs(), self.definitions)
        except WarehouseError:  # it is damaged, or no run can be read
            return False

    def update_database(self) -> bool:
        """Build warehouse.duckdb anew if there is one and it is older than the runs; returns whether it was built.

        Ingest, `remove` and `refresh_metrics` end with this, so the file does not answer with runs of yesterday.

        Raises:
            WarehouseError: the file is older and cannot be built, or it holds metrics that are not defined here.
        """
        from tracewarehouse.database.lens import foreign_metrics

        if self.is_database_current():
            return False
        try:
            foreign = foreign_metrics(self._folder("build") / DATABASE, self.definitions)
        except WarehouseError:  # damaged: nothing of it can be lost
            foreign = []
        if foreign:
            raise WarehouseError(
                f"{self.path}: {DATABASE} is older than the runs, and has metrics that are not defined here "
                f"({', '.join(foreign)}); run `tw build`, with --sql if they are your own"
            )
        self.build()
        return True

    def database(self) -> Path:
        """The path of warehouse.duckdb, built now if it is missing or older than the runs.

        Raises:
            WarehouseError: it cannot be built.
        """
        path = self._folder("build a database") / DATABASE
        if not path.exists():
            return self.build()
        self.update_database()
        return path

    @contextmanager
    def followed_by_database(self) -> Iterator[None]:
        """Update warehouse.duckdb, if there is one, after a change of the runs in this context.

        Half of a change counts too; the first error is raised.

        Raises:
            WarehouseError: as `update_database`.
        """
        if not (isinstance(self.path, Path) and (self.path / DATABASE).exists()):
            yield
            return
        before = self.lake.listing()[0]
        try:
            yield
        except Exception:
            with suppress(WarehouseError):
                self._update_database_after(before)
            raise
        self._update_database_after(before)

    def _update_database_after(self, before: Sequence[RunVersion]) -> None:
        if self.lake.listing()[0] != before:
            self.update_database()

    def fsck(self) -> list[Problem]:
        """Verify every byte of the warehouse, and that its parts agree; returns an empty list if all is well.

        Raises:
            WarehouseError: there is no warehouse.
        """
        from tracewarehouse.fsck import fsck

        self._folder("verify")
        return fsck(self.lake, self.definitions, self.leftovers)

    def against(self, capture: Capture) -> CaptureComparison:
        """Compare a capture, decoded by a second parser, with its run, to prove that no event or stat is missing.

        Args:
            capture: the files of one run; `tracewarehouse.ingest.devices.joined_hosts.find_whole_captures` gives such.

        Raises:
            CaptureError: the capture cannot be read.
            WarehouseError: the capture's run is not in the warehouse, or its tables cannot be read.
        """
        from tracewarehouse.ingest.verify.against import against

        return against(capture, self._folder("verify"))

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
        from tracewarehouse.database import compacted, consolidated

        left = garbage.leftovers(self.lake, grace_seconds, self._named_by_database())
        left += consolidated.leftovers(self.lake, grace_seconds)
        return left + compacted.leftovers(self.lake, grace_seconds)

    def collect_garbage(self, grace_seconds: float = GRACE_SECONDS) -> list[Leftover]:
        """Remove unused files, and return them: those of dead writers, and of versions replaced before the grace time.

        Files that warehouse.duckdb names are kept until `build` has rewritten it.

        Raises:
            WarehouseError: the warehouse cannot be written, or its database cannot be read.
        """
        from tracewarehouse.database import compacted, consolidated

        if not (self._folder("gc") / "manifests").is_dir():
            return []
        left = garbage.collect_garbage(self.lake, grace_seconds, self._named_by_database())
        left += consolidated.collect_garbage(self.lake, grace_seconds)
        return left + compacted.collect_garbage(self.lake, grace_seconds)

    def compact(self) -> Iterator[Pack]:
        """Join the files of many small runs into packs, which questions about all runs then open in their stead.

        Yields each pack once it is written. No row changes, and the runs' own files stay: questions about single runs
        open them, and so does any question if the run was replaced afterwards. Packs whose runs were replaced or
        removed are written anew, and packs of few runs are joined; `collect_garbage` removes the old ones after the
        grace time.

        Raises:
            WarehouseError: the warehouse is remote or cannot be written, or a file of a run is damaged.
        """
        from tracewarehouse.database.compacted import compact

        self._folder("compact")
        yield from compact(self.lake)

    def _named_by_database(self) -> set[str]:
        from tracewarehouse.database.lens import files_in_database

        folder = self._folder("gc")
        database, root = folder / DATABASE, folder.resolve()
        if not database.exists():
            return set()
        return {str(f.relative_to(root)) for f in files_in_database(database) if f.is_relative_to(root)}

    def _folder(self, verb: str) -> Path:
        """The folder of the warehouse, for writing.

        Raises:
            WarehouseError: the warehouse is remote.
        """
        if isinstance(self.path, Path):
            return self.path
        raise WarehouseError(f"{self.path}: a remote warehouse can only be read; copy it to a folder to {verb} there")

    def _evaluator(self, jobs: int | None) -> AbstractContextManager[Evaluator | ForkedEvaluator]:
        """The metric evaluator for ingest; the first one is a separate process, to keep its imports out of this one."""
        from tracewarehouse.ingest.processes.pool import forked

        if self._has_evaluated or jobs == 1 or (helper := forked()) is None:
            from tracewarehouse.evaluation.evaluator import Evaluator

            return nullcontext(Evaluator(self.definitions))
        from tracewarehouse.evaluation.forked import ForkedEvaluator

        self._has_evaluated = True
        return ForkedEvaluator(helper, self.sql)

    def _session(self) -> Session:
        """The session of all runs, as they are now."""
        from tracewarehouse.database.session import Session

        now = self._read_only
        if now and not now.is_current:
            now.close()
            now = None
        self._read_only = now or Session(self.lake, lambda: self.definitions, is_restricted=True)
        return self._read_only

    def _session_for(self, sql: str) -> Session:
        """A session of the runs that suffice for a query, which is kept for questions about the same runs."""
        from tracewarehouse.database.session import Session

        now = self._limited or self._read_only or Session(self.lake, lambda: self.definitions, is_restricted=True)
        wanted = now.runs_read(sql)
        if wanted is None:
            if now is not self._limited:
                self._read_only = now
            return self._session()
        if now is self._read_only or (now is self._limited and not (now.only == wanted and now.is_current)):
            if self._limited:
                self._limited.close()
            now = Session(self.lake, lambda: self.definitions, is_restricted=True)
        now.only = wanted
        self._limited = now
        return now

    def _unrestricted_session(self) -> Session:
        from tracewarehouse.database.session import Session

        # kept unchanged until refresh(), with everything that its user created
        self._unrestricted = self._unrestricted or Session(self.lake, lambda: self.definitions, is_restricted=False)
        return self._unrestricted


def find_metric(definitions: Definitions, name: str, version: int | None = None) -> Metric:
    """A version of a metric, by default the newest stable one.

    Raises:
        MetricError: it does not exist; the message names a similar metric.
    """
    return definitions.metric(name, version)


def parse_mesh(mesh: Mesh | str | None) -> Mesh | None:
    """Return the mesh; a text of the form 'dp=2,tp=4' is parsed.

    Raises:
        CaptureError: the text is not of that form, or names an unknown axis.
    """
    if not isinstance(mesh, str):
        return mesh
    from tracewarehouse.ingest.capture.manifest import Mesh as Parser

    try:
        return Parser.parse(mesh)
    except ValueError as error:
        raise CaptureError(str(error)) from None


def _costs(path: str | os.PathLike[str] | None) -> Costs | None:
    if path is None:
        return None
    from tracewarehouse.ingest.capture.costs import load_costs

    return load_costs(path)


def _is_pattern(reference: str) -> bool:
    return any(c in reference for c in "*?[")


def _listed(runs: Sequence[RunVersion], limit: int = 10) -> str:
    names = [f"{r.run_id} ({r.name})" for r in runs[:limit]]
    more = len(runs) - limit
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
