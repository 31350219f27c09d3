"""Verifies a warehouse: the lake and everything derived from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import duckdb

from tracewarehouse.database.catalogue import Catalogue
from tracewarehouse.database.lens import create_lens, run_sources
from tracewarehouse.definitions.definition import View
from tracewarehouse.definitions.reading import Definitions
from tracewarehouse.evaluation.audits import run_audits, violated_audits
from tracewarehouse.evaluation.values import suspected_audits
from tracewarehouse.ingest.errors import MetricError, WarehouseError
from tracewarehouse.ingest.lake.fsck import Problem
from tracewarehouse.ingest.lake.fsck import fsck as fsck_of_lake
from tracewarehouse.ingest.lake.garbage import leftovers
from tracewarehouse.ingest.lake.lake import DATABASE, Lake
from tracewarehouse.ingest.lake.manifest import RunVersion


def fsck(lake: Lake, catalogue: Catalogue, definitions: Definitions) -> list[Problem]:
    """Check the lake, the metric values, the audits and warehouse.duckdb, and look for leftovers.

    Args:
        lake: the runs of the warehouse.
        catalogue: its warehouse.duckdb, which may not be there.
        definitions: the models, metrics and audits.
    """
    problems = fsck_of_lake(lake.warehouse)
    damaged_runs = {p.run_id for p in problems}
    whole = []
    for manifest in lake.manifests():
        run = lake.run(manifest.stem) if manifest.stem not in damaged_runs else None
        whole += [run] if run else []
    for run in whole:
        if not definitions.is_current(run.metrics_fingerprint):
            sentence = "its metric values come from other definitions than today's"
            problems.append(Problem(run.run_id, run.name, None, sentence, "`tw metrics refresh`"))
    problems += _audits(lake, definitions, whole)
    return problems + list(_catalogue(catalogue)) + list(_leftovers(lake, catalogue))


_RUNS_AT_ONCE, _OPS_AT_ONCE = 100, 1_000_000
"""The most runs, and the most of their ops, to audit together: DuckDB plans an audit once, and memory stays bounded."""
_FEW = 3
"""So many runs are audited one by one, which takes less time than planning all audits without shared models."""


def _audits(lake: Lake, definitions: Definitions, runs: list[RunVersion]) -> Iterator[Problem]:
    for some in _few(runs):
        violated: Mapping[str, list[View] | None] = {r.run_id: None for r in some}
        if len(some) > _FEW:
            with suppress(MetricError), _lens(lake, definitions, some) as connection:  # that of a run alone tells which
                violated = violated_audits(connection, definitions)
        for run in some:
            if run.run_id in violated:
                yield from _audit_run(lake, definitions, run, violated[run.run_id])


@contextmanager
def _lens(lake: Lake, definitions: Definitions, runs: list[RunVersion]) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as connection:
        create_lens(connection, run_sources(lake.root, runs), definitions)
        yield connection


def _few(runs: list[RunVersion]) -> Iterator[list[RunVersion]]:
    some: list[RunVersion] = []
    ops = 0
    for run in runs:
        if some and (len(some) == _RUNS_AT_ONCE or ops + run.rows.get("ops", 0) > _OPS_AT_ONCE):
            yield some
            some, ops = [], 0
        some.append(run)
        ops += run.rows.get("ops", 0)
    if some:
        yield some


def _audit_run(lake: Lake, definitions: Definitions, run: RunVersion, audits: list[View] | None) -> Iterator[Problem]:
    try:
        with _lens(lake, definitions, [run]) as connection:
            if audits is None:
                audits = suspected_audits(connection, run.run_id, definitions, run_sources(lake.root, [run]))
            findings = run_audits(connection, run.run_id, definitions, audits=audits, limit=1)
    except MetricError as error:
        yield Problem(run.run_id, run.name, None, f"an audit fails: {error}", "correct the audit")
        return
    for finding in findings:
        sentence = f"audit {finding.audit}: {finding.description}"
        yield Problem(run.run_id, run.name, None, sentence, f"`tw audit {run.run_id}` lists the rows")


def _catalogue(catalogue: Catalogue) -> Iterator[Problem]:
    if not catalogue.path.exists():
        return
    try:
        catalogue.check()
        if catalogue.is_current:
            return
        sentence = "was built from older runs or definitions"
    except WarehouseError as error:
        sentence = str(error).removeprefix(f"{catalogue.path}: ").partition("; ")[0]
    yield Problem(None, None, DATABASE, sentence, "`tw build`")


def _leftovers(lake: Lake, catalogue: Catalogue) -> Iterator[Problem]:
    try:
        in_use = catalogue.replaced_files()
    except WarehouseError:  # it cannot be read; that is reported as a problem of its own
        in_use = set()
    for leftover in leftovers(lake, in_use=in_use):
        file = str(leftover.path.relative_to(lake.warehouse))
        sentence = f"{leftover.what}, {leftover.bytes:,} bytes"
        yield Problem(None, None, file, sentence, "`tw gc`", is_error=False)
