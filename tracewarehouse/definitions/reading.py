"""Reads sql/, checks each file (a YAML front matter and one SELECT), and sorts the definitions by dependency."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tracewarehouse.definitions.definition import (
    AuditHeader,
    Header,
    MacroHeader,
    Metric,
    MetricHeader,
    ModelHeader,
    PreconditionHeader,
    View,
)
from tracewarehouse.definitions.texts import column_sentences
from tracewarehouse.ingest.errors import MetricError, QueryError, found_instead, shown
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.ingest.plain_yaml import yaml_tree

SQL = Path(__file__).resolve().parents[1] / "sql"
"""The folder of the definitions that come with the package."""

_OPENING, _CLOSING = "/*---", "---*/"


class Definitions:
    """All definitions of one or more folders.

    Attributes:
        ordered: models, preconditions and metrics, each after what it reads.
        metrics: every version of every metric, by name.
        audits: the audits by name; what they read is checked when they run.
        macros: the macros, each after those that it reads; what else they read is checked when they are created.
        added: qualified names of a user's own definitions.
    """

    def __init__(self, views: Iterable[View], added: Iterable[str] = ()) -> None:
        self.added = frozenset(added)
        self._views: dict[str, View] = {}
        for v in views:
            first = self._views.setdefault(v.qualified, v)
            if first is not v:
                raise MetricError(f"{v.path}: {v.qualified} is already defined by {first.path}")
        self.ordered: list[View] = [self._views[n] for n in self._order()]
        for view in self.ordered:
            self._check_scope(view)
        self.audits = sorted((v for v in self._views.values() if v.schema == "audits"), key=lambda v: v.name)
        self.macros = self._ordered_macros()
        self.metrics: list[Metric] = sorted(
            (Metric(v, v.header) for v in self._views.values() if isinstance(v.header, MetricHeader)),
            key=lambda m: (m.name, m.version),
        )
        for metric in self.metrics:
            self.needs(metric)

    def __getitem__(self, qualified: str) -> View:
        return self._views[qualified]

    def metric(self, name: str, version: int | None = None) -> Metric:
        """A version of a metric, by default the one that its unversioned name stands for."""
        versions = [m for m in self.metrics if m.name == name]
        if not versions:
            close = get_close_matches(name, [m.name for m in self.metrics], n=1)
            hint = f"did you mean {close[0]}?" if close else "`tw metrics list` shows all"
            raise MetricError(f"there is no metric {name!r}; {hint}")
        if version is None:
            return _newest(versions)
        for m in versions:
            if m.version == version:
                return m
        raise MetricError(
            f"metric {name} has no version {version}; it has {', '.join(str(m.version) for m in versions)}"
        )

    def needs(self, metric: Metric) -> list[PreconditionHeader]:
        """The preconditions for rows of the metric, in the order in which unmet ones are reported."""
        needed: dict[str, PreconditionHeader] = {}
        self._collect_needs(metric.view, needed, ())
        return list(needed.values())

    def _collect_needs(self, view: View, needs: dict[str, PreconditionHeader], above: tuple[str, ...]) -> None:
        if not isinstance(view.header, MetricHeader | PreconditionHeader):
            return
        for name in view.header.needs:
            needed = self._views.get(f"preconditions.{name}")
            if needed is None or not isinstance(needed.header, PreconditionHeader):
                raise MetricError(f"{view.place}: needs {name}, but there is no precondition of that name")
            if len(above) > MOST_NESTED:
                raise MetricError(f"{view.place}: more than {MOST_NESTED} preconditions need each other in a row")
            if name in above:
                raise MetricError(f"preconditions need each other in a circle: {' -> '.join((*above, name))}")
            self._collect_needs(needed, needs, (*above, name))
            needs.setdefault(name, needed.header)

    @cached_property
    def macro_runs(self) -> dict[str, tuple[tuple[str, ...], frozenset[str]]]:
        """By qualified name, the parameters of each macro, and those of them that name all runs that it reads."""
        headers = {m.qualified: m.header for m in self.macros}
        return {
            name: (tuple(h.parameters), frozenset(h.reads_runs))
            for name, h in headers.items()
            if isinstance(h, MacroHeader)
        }

    @cached_property
    def aliases(self) -> dict[str, Metric]:
        """The version that each metric name stands for.

        This is the newest stable version. If there is none, it is the newest other one; deprecated ones come last.
        """
        return {m.name: self.metric(m.name) for m in self.metrics}

    def upstream(self, view: View) -> list[View]:
        """The models and metrics that a definition reads, directly or indirectly, in order."""
        seen: set[str] = set()
        todo = [view.qualified]
        while todo:
            v = self._views[todo.pop()]
            for name in v.depends_on:
                if name in self._views and name not in seen:
                    seen.add(name)
                    todo.append(name)
        return [v for v in self.ordered if v.qualified in seen]

    def with_upstream(self, names: Iterable[str]) -> list[View]:
        """The models and metrics with these qualified names and everything that they read, in order."""
        wanted = {n for n in names if n in self._views}
        wanted |= {v.qualified for n in wanted for v in self.upstream(self._views[n])}
        return [v for v in self.ordered if v.qualified in wanted]

    def fingerprint(self, view: View) -> str:
        """Fingerprint of a definition and of everything that it reads."""
        parts = [f"{v.qualified} {v.fingerprint}" for v in (*self.upstream(view), view)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def views(self) -> list[View]:
        """All definitions, in the order in which they were read."""
        return list(self._views.values())

    @property
    def names(self) -> frozenset[str]:
        """Qualified names of all definitions."""
        return frozenset(self._views)

    @cached_property
    def all_fingerprint(self) -> str:
        """Fingerprint of all metrics together; a user's own metrics add a second part after a `+`."""
        package = self._together(m for m in self.metrics if m.view.qualified not in self.added)
        own = [m for m in self.metrics if m.view.qualified in self.added]
        return f"{package}+{self._together(own)}" if own else package

    def is_current(self, fingerprint: str | None) -> bool:
        """Whether values that were stored with this fingerprint of all metrics come from these definitions.

        If a warehouse is opened without a user's own metrics, the stored values of those metrics stay as they are.
        """
        if fingerprint is None:
            return False
        return self.all_fingerprint in (fingerprint, fingerprint.partition("+")[0])

    def _together(self, metrics: Iterable[Metric]) -> str:
        parts = [f"{m.view.qualified} {self.fingerprint(m.view)}" for m in metrics]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _check_scope(self, view: View) -> None:
        """Refuse a metric whose stored value other runs could change, or that is based on another tool's definition."""
        read = view.depends_on
        if not view.is_compatibility:
            for name in sorted(read):
                if name in self._views and self._views[name].is_compatibility:
                    raise MetricError(f"{view.path}: reads {name}, which only another compatibility metric may")
        if view.compares_runs or view.schema == "preconditions":
            return
        if "main.metric_values" in read:
            raise MetricError(f"{view.path}: reads main.metric_values, which only a metric with scope: warehouse may")
        for name in sorted(read):
            if name in self._views and self._views[name].compares_runs:
                raise MetricError(f"{view.path}: reads {name}, which compares runs, so its own scope must be warehouse")

    def _order(self) -> Iterator[str]:
        known = {f"main.{t}" for t in TABLES} | {n for n, v in self._views.items() if v.schema != "macros"}
        graph: dict[str, list[str]] = {}  # sorted, because fingerprints depend on the order
        for v in self._views.values():
            if v.schema not in ("models", "preconditions", "metrics"):
                continue
            read = v.depends_on
            for name in sorted(read - known):
                raise MetricError(f"{v.place}: reads {name}, which is not a table, model or metric")
            graph[v.qualified] = sorted(n for n in read if n in self._views)
        yield from _sorted(graph)

    def _ordered_macros(self) -> list[View]:
        macros = {v.qualified: v for v in self._views.values() if v.schema == "macros"}
        return [macros[n] for n in _sorted({n: sorted(v.depends_on & macros.keys()) for n, v in macros.items()})]


def _sorted(graph: dict[str, list[str]]) -> list[str]:
    try:
        ordered = list(TopologicalSorter({n: graph[n] for n in sorted(graph)}).static_order())
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise MetricError(f"definitions read each other in a circle: {shown(circle)}") from None
    depth: dict[str, int] = {}
    for name in ordered:
        depth[name] = 1 + max((depth[read] for read in graph[name]), default=0)
        if depth[name] > MOST_NESTED:
            raise MetricError(f"{name}: more than {MOST_NESTED} definitions read each other in a row")
    return ordered


def load_definitions(*folders: Path) -> Definitions:
    """Read the definitions of each folder, by default of the package's own."""
    return Definitions([v for f in folders for v in read_folder(f)]) if folders else _package(SQL)


@cache
def _package(folder: Path) -> Definitions:
    views = read_folder(folder)
    if not views:
        raise MetricError(f"{SQL}: no metric, model or audit found; the installation is incomplete, install it again")
    return Definitions(views)


def load_with(folder: Path | None) -> Definitions:
    """Load the package's definitions, and those of a user's folder if one is given.

    The user's files lie anywhere in the folder, read the package's models and metrics, and do not reuse its names.

    Raises:
        MetricError: the folder holds no definitions, or one of them is not valid or reuses a name of the package.
    """
    if folder is None:
        return load_definitions()
    views = _read_user_folder(folder)
    package = load_definitions()
    taken = _RESERVED | package.names | {f"metrics.{name}" for name in package.aliases}
    for view in views:
        _refuse_taken(view, taken)
    _check_selects(views)
    names = {v.qualified for v in views}
    for view in views:
        if isinstance(view.header, MetricHeader) and f"metrics.{view.header.metric}" in names:
            raise MetricError(f"{view.path}: {view.header.metric} is also the name of a version of another metric")
    return Definitions([*package.views, *views], added=names)


def _check_selects(views: Iterable[View]) -> None:
    """Check by DuckDB's own parser that definitions only read, as it may read a text otherwise than ours does."""
    import duckdb

    from tracewarehouse.queries.read_only import checked_select
    from tracewarehouse.queries.tables_read import ParsedSql

    with duckdb.connect(":memory:", config={"threads": 1}) as parser:
        for view in views:
            try:
                checked_select(parser, ParsedSql(view.sql))
                view.depends_on  # noqa: B018  names what is read without a schema
            except (duckdb.Error, QueryError, UnicodeError, RecursionError) as error:
                said = str(error).partition("\n")[0].partition("; `tw query")[0]
                raise MetricError(
                    f"{view.place}: the query must be one SELECT that only reads: {shown(said)}"
                ) from None


def read_folder(folder: Path) -> list[View]:
    """Read the definitions in a folder and all folders in it."""
    return list(_views_in(folder))


def _views_in(folder: Path) -> Iterator[View]:
    yield from (_read_view(p) for p in sorted(folder.rglob("*.sql")))
    # for a whole name, rglob leaves out links that lead nowhere
    for path in sorted(p for p in folder.rglob("*.yaml") if p.name == _PRECONDITIONS):
        yield from _read_preconditions(path)


def fingerprint() -> str:
    """Fingerprint of all metrics of the package together."""
    return load_definitions().all_fingerprint


def _read_view(path: Path) -> View:
    text = _text(path)
    if not text.startswith(_OPENING):
        raise MetricError(f"{path}: must begin with a front matter {_OPENING} ... {_CLOSING}")
    front, closing, sql = text[len(_OPENING) :].partition(_CLOSING)
    if not closing:
        raise MetricError(f"{path}: the front matter is not closed with {_CLOSING}")
    try:
        try:
            content = yaml_tree(front)
        except ValueError as error:
            raise ValueError(f"the front matter is not YAML: {error}") from None
        schema, header_class, named = _kind(path, content)
        header = header_class.model_validate(_described(content, named, sql))
    except ValidationError as error:
        raise MetricError(f"{path}: {_faults(error, 'front matter')}") from None
    except ValueError as error:
        raise MetricError(f"{path}: {error}") from None
    return View(path, schema, path.stem, header, _as_part(sql))


def _read_preconditions(path: Path) -> list[View]:
    try:
        entries = yaml_tree(_text(path)) or {}
        if not (isinstance(entries, dict) and all(isinstance(e, dict) for e in entries.values())):
            raise MetricError(f"{path}: must have an entry with `reason` and `runs` for each name")
    except ValueError as error:
        raise MetricError(f"{path}: not YAML: {error}") from None
    return [_precondition(path, name, entry) for name, entry in entries.items()]


def _precondition(path: Path, name: str, entry: dict[str, object]) -> View:
    try:
        header = PreconditionHeader.model_validate({"precondition": name} | entry)
    except ValidationError as error:
        raise MetricError(f"{path}: {name}: {_faults(error, 'entry')}") from None
    return View(path, "preconditions", name, header, _as_part(header.runs))


def _as_part(sql: str) -> str:
    """A SELECT that may stand in parentheses: without a semicolon, and with an end of the line after a comment."""
    text = sql.strip().removesuffix(";").rstrip()
    return f"{text}\n" if "--" in text.rpartition("\n")[2] else text


def _text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():  # to read a pipe would wait, and a device has no end
            raise MetricError(f"{path}: looked for a file of definitions, {found_instead(path)}")
        with path.open(encoding="utf-8") as file:
            content = file.read(MOST_CHARACTERS + 1)
    except (OSError, UnicodeError) as error:
        raise MetricError(f"{path}: cannot be read: {error}") from None
    if len(content) > MOST_CHARACTERS:
        found = f"more than {MOST_CHARACTERS:,} characters"
        raise MetricError(f"{path}: looked for a file of definitions, found {found}")
    return content


def _faults(error: ValidationError, whole: str) -> str:
    return shown("; ".join(f"{'.'.join(map(str, e['loc'])) or whole}: {e['msg']}" for e in error.errors()))


_PRECONDITIONS = "preconditions.yaml"
MOST_DEFINITIONS = 1 << 10
"""Most definitions of a user's folder; the package has some 250."""
MOST_NESTED = 64
"""Most definitions that read each other in a row; those of the package reach 7. DuckDB's time grows with the square."""
MOST_CHARACTERS = 1 << 20
"""Most characters of a file of definitions; the largest of the package has some 20,000."""


def _kind(path: Path, front: object) -> tuple[str, type[Header], dict[str, Any]]:
    if version := re.fullmatch(r"(.+)_v([0-9]+)", path.stem):
        return "metrics", MetricHeader, {"metric": version[1], "version": int(version[2])}
    if path.parent.name == "audits":
        return "audits", AuditHeader, {"audit": path.stem}
    if isinstance(front, dict) and "parameters" in front:
        return "macros", MacroHeader, {"macro": path.stem}
    return "models", ModelHeader, {"model": path.stem}


def _described(front: object, named: dict[str, Any], sql: str) -> object:
    """Add to a front matter what the file's place tells, and the sentences of columns and parameters that lack one.

    A column's sentence is a comment in the SQL, or stands in columns.yaml, as those of parameters do.

    Raises:
        ValueError: the front matter repeats what the place tells, a column has a sentence in it and beside the column,
            or a parameter has none.
    """
    if not isinstance(front, dict):
        return front
    if repeated := sorted(named.keys() & front.keys()):
        raise ValueError(f"the front matter says {', '.join(repeated)}, which the file's name tells; remove it")
    front = named | front
    shared, columns, parameters = _shared_sentences(), front.get("columns") or {}, front.get("parameters")
    if isinstance(parameters, list):
        if untold := [str(n) for n in parameters if not isinstance(n, str) or n not in shared]:
            raise ValueError(f"parameter {shown(untold[0])} has no sentence in columns.yaml; write one beside it")
        front = front | {"parameters": {n: shared[n] for n in parameters}}
    if not isinstance(columns, dict):
        return front
    listed = column_sentences(sql)
    beside = {c: s or shared[c] for c, s in listed.items() if s or c in shared.keys() - columns}
    if twice := sorted(beside.keys() & columns.keys()):
        raise ValueError(
            f"column {shown(', '.join(map(str, twice)))} is described in the front matter and beside it; keep one"
        )
    return front | {"columns": beside | columns}


@cache
def _shared_sentences() -> dict[str, str]:
    sentences: dict[str, str] = yaml_tree(_text(SQL / "columns.yaml"))
    return sentences


def _newest(versions: list[Metric]) -> Metric:
    stable = [m for m in versions if m.header.status == "stable"]
    return max(stable or versions, key=lambda m: (m.header.status != "deprecated", m.version))


def _read_user_folder(folder: Path) -> list[View]:
    if not folder.is_dir():
        raise MetricError(f"no folder {folder} to read metrics from; --sql or TRACEWAREHOUSE_SQL names it")
    if not (views := list(islice(_views_in(folder), MOST_DEFINITIONS + 1))):
        raise MetricError(f"{folder}: holds no metric, model or audit: no file <name>.sql or <name>_v<n>.sql")
    if len(views) > MOST_DEFINITIONS:
        raise MetricError(
            f"{folder}: holds more than {MOST_DEFINITIONS:,} definitions; name a folder of your own alone"
        )
    return views


def _refuse_taken(view: View, taken: set[str]) -> None:
    names = {view.qualified: view.name}
    if isinstance(view.header, MetricHeader):
        names[f"metrics.{view.header.metric}"] = view.header.metric
    for qualified, name in names.items():
        if qualified in taken:
            raise MetricError(
                f"{view.path}: {qualified} is a name of the package and cannot be defined anew; use another name, "
                f"such as my_{name}"
            )


_RESERVED = {"metrics.catalog", "metrics.all_values", "metrics.missing"}
