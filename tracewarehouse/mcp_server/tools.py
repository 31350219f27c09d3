"""The questions that an agent can ask: each tool is a model of its arguments that answers from a warehouse."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from tracewarehouse.comparison.compare import SPLITS, VERDICTS, Split, comparing
from tracewarehouse.dashboards import words
from tracewarehouse.ingest.devices.flags import FLAGS
from tracewarehouse.ingest.errors import QueryError, WarehouseError
from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.mcp_server.answer import (
    MAX_ROWS,
    AboutRuns,
    Answer,
    Metrics,
    Offset,
    Rows,
    Run,
    Runs,
    Table,
    Tool,
    table,
)
from tracewarehouse.mcp_server.description import Describe, metric_named
from tracewarehouse.queries.read_only import LIFT, literal
from tracewarehouse.queries.result import CLOCKS, QueryResult
from tracewarehouse.queries.runs_read import runs_behind
from tracewarehouse.queries.tables_read import tables_read
from tracewarehouse.warehouse import Warehouse


class ListRuns(AboutRuns):
    """List the runs of the warehouse: model, workload, mesh, devices, and quality flags. Ask this first."""

    name = "list_runs"
    advice = "name a pattern of runs, or set max_rows and offset"

    def answer(self, warehouse: Warehouse) -> Answer:
        """A row per run, sorted by name."""
        chosen = _runs(warehouse, self.run)
        rows = warehouse.query(
            "SELECT run_id, name, COALESCE(model, model_family) AS model, dtype, batch_size, input_length, "
            "output_length, mesh, backend, device_count, host_count, event_count, "
            "CAST(MAKE_TIMESTAMP_NS(profile_start_ns) AS VARCHAR) AS captured FROM main.runs ORDER BY name, run_id"
        )
        whole = table("runs", rows)
        flags = {r.run_id: list(r.flags) for r in chosen}
        whole.columns.append("flags")
        whole.rows = [[*row, flags[row[0]]] for row in whole.rows if row[0] in flags]
        answer = Answer(tables=[])
        answer.add_page(whole, self.offset, self.max_rows)
        if unread := [str(r) for r in warehouse.unread_runs()]:
            answer.notes.append(f"in the warehouse, but not readable: {'; '.join(unread[:10])}")
        if not whole.rows:
            answer.notes.append(f"the warehouse {warehouse.path} is empty; `tw ingest CAPTURE` adds runs")
        return answer


class MetricValues(Tool):
    """List values of metrics, of some runs or all. A metric that does not apply to a run has no row; flags says why."""

    name = "metric_values"
    advice = "name fewer metrics or runs, or set max_rows and offset"

    metrics: Metrics = []
    run: Runs = []
    version: Annotated[int | None, Field(description="A version of the metrics; the newest stable one if absent.")] = (
        None
    )
    max_rows: Rows = 200
    offset: Offset = 0

    def answer(self, warehouse: Warehouse) -> Answer:
        """A row per value, sorted by run and metric."""
        definitions = warehouse.definitions
        chosen = _runs(warehouse, self.run)
        result = warehouse.values(
            [r.run_id for r in chosen] if self.run else None, metrics=self.metrics or None, version=self.version
        )
        whole = table("values", result, ("run_id", "metric", "version", "dimensions", "value", "unit"))
        answer = Answer(tables=[])
        if self.version is None:
            newest = {(m.name, m.version) for m in definitions.aliases.values()}
            whole.rows = [r for r in whole.rows if (r[1], r[2]) in newest]
        if not self.metrics:
            parts = {m.name for m in definitions.metrics if m.header.is_per_part}
            if named := sorted({r[1] for r in whole.rows} & parts):
                answer.left_out.append(
                    f"metrics with a row per step, layer, pair of devices or instruction: {', '.join(named)}; name "
                    "them in metrics"
                )
            whole.rows = [r for r in whole.rows if r[1] not in parts]
        versions: dict[str, set[int]] = {}
        for row in whole.rows:
            row[3] = json.loads(row[3])
            versions.setdefault(row[1], set()).add(row[2])
        answer.metric_versions = {m: sorted(v) for m, v in versions.items()}
        answer.add_page(whole, self.offset, self.max_rows)
        behind = {r[0] for r in whole.rows}
        answer.notes = _stale_note(warehouse, behind)
        if absent := [m for m in self.metrics if m not in versions]:
            answer.notes.append(f"no value of {', '.join(absent)} here; flags with the run says why")
        return _with_runs(answer, warehouse, behind or {r.run_id for r in chosen})


class Compare(Tool):
    """Compare runs with a baseline: which metrics are better, worse, or within noise, and what changed in a step.

    The values are medians over steps and repeats; noise is the largest difference that may be chance. The second table
    splits the time of a step: its rows add up to the difference of the step.
    """

    name = "compare"
    advice = "name metrics, or a dimension in by"

    run: Annotated[str, Field(description="The run, by id or name; several separated by commas.")]
    baseline: Annotated[str, Field(description="What to compare it with, in the same form.")]
    metrics: Metrics = []
    by: Annotated[str | None, Field(description="Only metrics with this dimension, such as phase, axis, layer.")] = None
    split: Annotated[Split, Field(description=f"How to split a step: {', '.join(SPLITS)}.")] = "part"
    force: Annotated[bool, Field(description="Compare although the workloads differ.")] = False
    max_rows: Rows = 60
    offset: Offset = 0

    def answer(self, warehouse: Warehouse) -> Answer:
        """The values that differ, the largest loss first, and what a step consists of on both sides."""
        with comparing(warehouse, self.run, self.baseline, is_unlike_allowed=self.force) as comparison:
            values = comparison.values(self.metrics, self.by)
            steps = comparison.steps(self.split)
            sides = comparison.sides
        columns = (
            "metric", "version", "dimensions", "unit", "baseline", "value", "relative", "loss", "noise", "noise_source",
            "verdict",
        )  # fmt: skip
        whole = table("values", values, columns)
        answer = Answer(tables=[])
        if not self.metrics and self.by is None:
            told = [r for r in whole.rows if r[-1] not in ("same", "noise")]
            if alike := len(whole.rows) - len(told):
                answer.left_out.append(
                    f"{alike} values that are the same or differ within noise; name their metrics to see them"
                )
            whole.rows = told
        ranks = {v: i for i, v in enumerate(VERDICTS)}
        whole.rows.sort(key=lambda r: (ranks[r[-1]], -abs(r[6] or 0.0)))
        answer.metric_versions = {r[0]: [r[1]] for r in whole.rows}
        for row in whole.rows:
            row[2] = json.loads(row[2])
        answer.add_page(whole, self.offset, self.max_rows)
        step_columns = ("phase", "name", "baseline_us", "value_us", "difference_us", "share")
        answer.add_first(
            table(f"step by {self.split}", steps, step_columns),
            40,
            f"`FROM macros.compare_steps(['RUN_ID'], ['BASELINE_ID']) WHERE split = '{self.split}'` has all",
        )
        answer.notes = [
            f"{name} of {len(repeats)} runs of one configuration"
            for name, named, repeats in (
                ("noise of the run", sides.runs, sides.run_repeats),
                ("noise of the baseline", sides.baselines, sides.baseline_repeats),
            )
            if len(repeats) > len(named)
        ]
        if comparison.unknown:
            answer.notes.append(f"not known for all runs, so not compared: {', '.join(comparison.unknown)}")
        involved = {*sides.runs, *sides.baselines}
        answer.notes += _stale_note(warehouse, involved)
        return _with_runs(answer, warehouse, involved)


class Query(Tool):
    """Run one SQL SELECT in DuckDB over the tables (main), models, metrics and macros. It can only read.

    Columns that end in _ps are integer picoseconds, _bytes bytes. Sum busy_ps of models.leaf_ops for device time, never
    durations of main.ops, which contain each other. Filter by run_id = '...', so that other runs' files stay closed.
    """

    name = "query"
    advice = "select fewer columns, GROUP BY, or use ORDER BY with LIMIT and OFFSET"

    sql: Annotated[str, Field(description="One SELECT; describe lists what it can read.")]
    max_rows: Rows = 100

    def answer(self, warehouse: Warehouse) -> Answer:
        """The rows, with the runs and metric versions that they come from."""
        try:
            result = warehouse.query(self.sql)
        except QueryError as error:
            raise type(error)(_taught(str(error))) from None
        runs, versions = _behind(warehouse, self.sql, result)
        answer = Answer(tables=[table("rows", result)], metric_versions=versions)
        if result.is_cut:
            answer.left_out.append(
                f"rows: there are more than these {self.max_rows}; raise max_rows (at most {MAX_ROWS}), or "
                f"{self.advice}"
            )
        if not len(result):
            answer.notes.append("no row; a value that is not known has no row or is NULL, and flags says why")
        return _with_runs(answer, warehouse, {r.run_id for r in runs})

    @property
    def most(self) -> int:
        """The rows that were asked for."""
        return self.max_rows


class Timeline(Tool):
    """Sum up what one device did in a window of time: slices by class of op, largest ops, collectives, steps."""

    name = "timeline"
    advice = "ask for a shorter window or fewer slices"

    run: Run
    device: Annotated[int | None, Field(description="device_id; the first device if absent.")] = None
    start_ms: Annotated[
        float | None, Field(description="Start of the window, ms since the profile start; the first op if absent.")
    ] = None
    end_ms: Annotated[float | None, Field(description="Its end; the last op if absent.")] = None
    slices: Annotated[int, Field(ge=1, le=200, description="Equal slices of the window.")] = 20
    max_rows: Annotated[int, Field(ge=1, le=200, description="Most ops and most steps to list.")] = 15

    def answer(self, warehouse: Warehouse) -> Answer:
        """The window in four tables."""
        run = warehouse.run(self.run)

        def ask(name: str, sql: str) -> Table:
            return table(name, warehouse.query_runs([run.run_id], sql))

        in_run = f"run_id = {literal(run.run_id)}"
        devices = [d for [d] in ask("", f"SELECT device_id FROM main.devices WHERE {in_run} ORDER BY device_id").rows]
        if not devices:
            raise WarehouseError("the run has no device: only the host was profiled")
        device = devices[0] if self.device is None else self.device
        if device not in devices:
            raise WarehouseError(f"the run has no device {device}; it has {', '.join(map(str, devices))}")
        on_device = f"{in_run} AND device_id = {device}"
        [(first, last)] = ask("", f"SELECT min(start_ps), max(end_ps) FROM models.leaf_ops WHERE {on_device}").rows
        if first is None:
            raise WarehouseError(f"device {device} has no op; flags says what the capture lacks")
        start = first if self.start_ms is None else round(self.start_ms * 1e9)
        until = last if self.end_ms is None else round(self.end_ms * 1e9)
        if start >= until:
            raise WarehouseError(
                f"the window from {start / 1e9:g} to {until / 1e9:g} ms is empty; the ops of device {device} run from "
                f"{first / 1e9:g} to {last / 1e9:g} ms"
            )
        place = f"{literal(run.run_id)}, {device}, {start}, {until}"
        length = -(-(until - start) // self.slices)
        tables = [
            ask("slices", f"SELECT * FROM macros.timeline_slices({place}, {length}) ORDER BY start_ms"),
            ask("ops", f"SELECT * FROM macros.timeline_ops({place}) ORDER BY time_us DESC, op, category"),
            ask("collectives", f"SELECT * FROM macros.timeline_collectives({place}) ORDER BY time_us DESC, kind, axis"),
            ask(
                "steps",
                "SELECT step, phase, start_ps / 1e9 AS start_ms, until_ps / 1e9 AS until_ms, step_ps / 1e9 AS step_ms, "
                f"is_last, source FROM models.steps WHERE {on_device} AND clock = 'device' AND start_ps < {until} "
                f"AND until_ps > {start} ORDER BY start_ps",
            ),
        ]
        notes = [
            f"device {device} of {', '.join(map(str, devices))}, from {start / 1e9:g} to {until / 1e9:g} ms since the "
            f"profile start; its ops run from {first / 1e9:g} to {last / 1e9:g} ms",
            "Each moment counts once, for the op that covers it first; compute, communication, copy and idle add up to "
            "the slice. Collectives may run beside compute; the metric exposed_communication is the time in which they "
            "do not.",
        ]
        answer = Answer(tables=tables[:1], notes=notes)
        for whole in tables[1:]:
            answer.add_first(whole, self.max_rows, "raise max_rows, or ask for a shorter window")
        return _with_runs(answer, warehouse, {run.run_id})


class Summary(Tool):
    """Sum up a run: what ran on what, ten main numbers, where the time of a step goes, flags, and what is missing."""

    name = "summary"
    advice = "flags lists what is missing"

    run: Run

    def answer(self, warehouse: Warehouse) -> Answer:
        """The tables of `tw show`."""
        run = warehouse.run(self.run)
        summary = warehouse.summary(run.run_id)
        numbers = [[n.metric, n.name, n.part, n.value, n.unit, n.detail] for n in summary.numbers]
        steps = [[s.phase, s.part, s.share, s.mean_ms, s.steps] for s in summary.steps]
        answer = Answer(
            tables=[
                Table(name="facts", columns=["fact", "value"], rows=[[k, v] for k, v in summary.facts.items()]),
                Table(name="main numbers", columns=["metric", "name", "part", "value", "unit", "detail"], rows=numbers),
                Table(name="step", columns=["phase", "part", "share", "mean_ms", "steps"], rows=steps),
                Table(name="in short", columns=["of", "answer"], rows=[list(a) for a in words.answers(summary)]),
                _flag_table([(run, f.flag, f.host, str(f)) for f in summary.flags]),
                Table(
                    name="missing metrics",
                    columns=["metrics", "reason"],
                    rows=[[", ".join(m), reason] for reason, m in summary.reasons.items()],
                ),
            ],
            metric_versions={n.metric: [warehouse.definitions.metric(n.metric).version] for n in summary.numbers},
        )
        return _with_runs(answer, warehouse, {run.run_id})


class Flags(AboutRuns):
    """Say why to read runs with care: quality flags with their meaning and, for one run, why metrics are missing."""

    name = "flags"
    advice = "name one run"

    def answer(self, warehouse: Warehouse) -> Answer:
        """A row per flag; with one run also a row per missing metric."""
        chosen = {r.run_id: r for r in _runs(warehouse, self.run)}
        rows = warehouse.query('SELECT run_id, flag, host, detail FROM main.quality_flags ORDER BY run_id, "index"')
        flagged = [
            (chosen[run_id], flag, host, f"{FLAGS.get(flag, '')} Here: {detail}".strip())
            for run_id, flag, host, detail in rows.rows()
            if run_id in chosen
        ]
        answer = Answer(tables=[])
        answer.add_page(_flag_table(flagged), self.offset, self.max_rows)
        if len(chosen) == 1:
            [run_id] = chosen
            missing = warehouse.query_runs(
                [run_id],
                "SELECT metric, version, reason FROM metrics.missing WHERE run_id = $run ORDER BY reason, metric",
                run=run_id,
            )
            answer.tables.append(table("missing metrics", missing))
        else:
            answer.left_out.append("why metrics are missing; flags with one run says it")
        answer.notes = [note for run_id, _, note in warehouse.query(CLOCKS).rows() if run_id in chosen]
        answer.notes += _stale_note(warehouse, chosen)
        if not flagged:
            answer.notes.append("no flag: the checks found nothing")
        return _with_runs(answer, warehouse, chosen)


TOOLS: dict[str, type[Tool]] = {
    t.name: t for t in (ListRuns, Describe, Summary, MetricValues, Compare, Query, Timeline, Flags)
}
"""All tools by name, in the order in which an agent meets them."""


def _runs(warehouse: Warehouse, references: Sequence[str]) -> list[RunVersion]:
    return warehouse.find(references) if references else list(warehouse.lake.runs())


def _with_runs(answer: Answer, warehouse: Warehouse, run_ids: Iterable[str]) -> Answer:
    wanted = set(run_ids)
    answer.add_runs(r for r in warehouse.lake.runs() if r.run_id in wanted)
    return answer


def _stale_note(warehouse: Warehouse, run_ids: Iterable[str]) -> list[str]:
    wanted = set(run_ids)
    stale = [r.name for r in warehouse.stale_runs() if r.run_id in wanted]
    if not stale:
        return []
    named = ", ".join(stale[:5]) + (", ..." if len(stale) > 5 else "")
    return [f"{len(stale)} runs have values of older definitions ({named}); `tw metrics refresh` corrects that"]


def _behind(warehouse: Warehouse, sql: str, result: QueryResult) -> tuple[list[RunVersion], dict[str, list[int]]]:
    """The runs and the metric versions that the rows of a query may come from."""
    import duckdb

    with duckdb.connect(":memory:", config={"threads": 1}) as parser:
        read = tables_read(parser, sql)
    definitions = warehouse.definitions
    runs = warehouse.lake.runs()
    versions: dict[str, set[int]] = {}
    for schema, name in read.tables:
        if metric := metric_named(definitions, schema, name) if schema == "metrics" else None:
            versions.setdefault(metric.name, set()).add(metric.version)
    if {"metric", "version"} <= {*result.columns}:
        for row in result.dicts():
            if isinstance(row["metric"], str) and isinstance(row["version"], int):
                versions.setdefault(row["metric"], set()).add(row["version"])
    return runs_behind(read, None, result, runs, runs), {m: sorted(v) for m, v in sorted(versions.items())}


def _flag_table(flags: Iterable[tuple[RunVersion, str, str | None, str]]) -> Table:
    return Table(
        name="flags",
        columns=["run_id", "name", "flag", "host", "meaning"],
        rows=[[run.run_id, run.name, flag, host, meaning] for run, flag, host, meaning in flags],
    )


def _taught(message: str) -> str:
    said = message.replace(LIFT, "this server runs no other queries")
    if "does not exist" in said or "not found" in said:
        said += "\ndescribe lists the tables; describe with a name lists its columns."
    return said
