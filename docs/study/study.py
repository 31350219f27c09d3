"""Predicts the configurations of grid.yaml: `python docs/study/study.py [--hours H]`, or `make study`.

Each result lands as it comes: its row in configurations.parquet, beside this file, and its run in the warehouse of
--folder, where the compiled programs are kept too. What the table has of the same compiler and rules is not computed
again, so a study that was stopped goes on. At the end it draws report.html of the table, and answers the queries of
README.md anew.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from kept import KeptRuns

from tracewarehouse.collect.ahead_of_time import PHASES, PROGRAMS
from tracewarehouse.comparison.study import Place, places, predicted, rows
from tracewarehouse.dashboards.report import Report, study_report
from tracewarehouse.dashboards.writing import write_text
from tracewarehouse.predict.configuration import WhatIf, room_refusal
from tracewarehouse.predict.rules import RULES_VERSION
from tracewarehouse.queries.read_only import literal
from tracewarehouse.warehouse import Warehouse, open_warehouse

HERE = Path(__file__).resolve().parent
TABLE = HERE / "configurations.parquet"
PAGE = HERE / "report.html"
WORDS = HERE / "README.md"
STEPS = {"decode": ("decode",), "both": PHASES}
CPU_S = {"decode": 15, "both": 120}
"""Seconds of one core of this repository's machine for a configuration, by what is compiled of it."""
CHARTS = ("pareto", "study-parts", "parallelisms", "sweep", "scaling", "faster-links")
"""The charts of the page; others need ops, which the table does not have."""

_FAR = re.compile(r"(\*\*How far it is:\*\* )[^.]*\.[^.]*\.[^.]*\.")
"""The three sentences of the page that say how much of the study is done."""
_QUERY = re.compile(r"```sql\n(.*?)```\n(?:\n(?:\|[^\n]*\n)+)?", re.S)
"""A query of the page of words, with its answer if it has one."""

Row = dict[str, Any]
Key = tuple[str, str, str, int]
KEY = ("model", "topology", "mesh", "batch_size")
_TYPES: dict[str, Sequence[str]] = {
    "string": [*KEY[:3], "slice", "dtype", "run_id", "compiler", "refused"],
    "int64": ["batch_size", "chips", "layers", "compiled_layers", "input_length", "output_length", "rules_version"],
    "float64": [
        *(f"{what}_{end}ms" for what in ("ttft", "tpot", "e2e") for end in ("", "low_", "high_")),
        *("tokens_per_s_per_chip", "traffic_bytes_per_token", "extrapolated_share"),
        *(f"{what}_{unit}" for what in ("prompt", "output") for unit in ("chip_hours", "usd")),
        *(f"{phase}_{what}" for phase in PHASES for what in ("communication", "mfu")),
    ],
}
_LISTS = {
    "parts": {"phase": "string", "part": "string", "position": "int64", "share": "float64", "mean_ms": "float64"},
    "links": {"phase": "string", "resource": "string", "axis": "string", "factor": "string", "saved": "float64",
              "is_upper_bound": "bool"},
}  # fmt: skip
"""Columns that list, for each run, rows of macros.step_shares and of macros.speedups."""
SCHEMA = pa.schema(
    [(name, kind) for kind, names in _TYPES.items() for name in names]
    + [(name, "int64") for name in ("memory_bytes", "capacity_bytes")]
    + [(f"{phase}_bottleneck", "string") for phase in PHASES]
    + [(name, pa.list_(pa.struct(list(columns.items())))) for name, columns in _LISTS.items()]
)
"""The columns of macros.planned_runs that tell configurations of a study apart, lists of rows of other macros, the
compiler, and why one cannot be."""


class Asked(NamedTuple):
    """A configuration with what is predicted of it: its decode step, or both steps."""

    place: Place
    slice: str
    steps: str
    model: str
    mesh: str

    @property
    def key(self) -> Key:
        """What the row of the configuration is found by."""
        return self.model, self.place.topology, self.mesh, self.place.batch or 0


def asked(grid: Mapping[str, Any]) -> list[Asked]:
    """Return all that the study asks: of each slice the decode steps of all models, then both of their steps.

    The decode step of a configuration stands apart from both of its steps, which replace it.
    """
    fields = {name: grid[name] for name in ("input_length", "output_length", "dtype")} | {"backend": "jax"}
    return [
        Asked(place, name, steps, model.rpartition("/")[2], str(place.spec.mesh))
        for steps, (name, topology), model in itertools.product(STEPS, grid["slices"].items(), grid["models"])
        for place in places([], [topology], grid["batches"], model=model, **fields)
        if place.spec is not None
    ]


class Results:
    """The rows of the study by configuration, in a Parquet file that is whole after each of them."""

    def __init__(self, path: Path, compiler: str) -> None:
        self._path, self._compiler = path, compiler
        said = pq.read_table(path).to_pylist() if path.exists() else []
        current = [dict.fromkeys(SCHEMA.names) | row for row in said if self._is_current(row)]
        self.rows: dict[Key, Row] = {tuple(row[name] for name in KEY): row for row in current}

    def _is_current(self, row: Row) -> bool:
        return (row["compiler"], row["rules_version"]) == (self._compiler, RULES_VERSION)

    def has(self, each: Asked) -> bool:
        """Return whether a configuration is done: refused, or with times of all the steps that are asked of it."""
        row = self.rows.get(each.key)
        if row is None:
            return False
        is_whole = each.steps == "decode" or (row["ttft_ms"] is not None and row["links"] is not None)
        return row["refused"] is not None or is_whole

    def add(self, each: Asked, row: Row) -> None:
        """Add what is predicted of a configuration. A decode step stays where only the prefill is refused."""
        new = self.row(each, row)
        if new["refused"] is not None and each.key in self.rows:
            new = self.rows[each.key] | {"refused": new["refused"]}
        self.rows[each.key] = new
        self.write()

    def row(self, each: Asked, said: Row) -> Row:
        """Return the row of a configuration of which something is said; all columns are in it."""
        named = dict(zip(KEY, each.key, strict=True)) | {"slice": each.slice}
        rules = {"compiler": self._compiler, "rules_version": RULES_VERSION}
        return dict.fromkeys(SCHEMA.names) | said | named | rules

    def write(self) -> None:
        """Write the file anew, whole or not at all."""
        table = pa.Table.from_pylist([self.rows[key] for key in sorted(self.rows)], SCHEMA)
        part = self._path.with_suffix(".part")
        pq.write_table(table, part, compression="zstd")
        part.replace(self._path)


def compute(warehouse: Warehouse, study: Sequence[Asked], results: Results, python: str, until: float) -> None:
    """Predict what is not done, in order, until all is done or the time has come."""
    here = {run.run_id for run in warehouse.lake.runs()}
    for each in {each.key: each for each in study if each.key not in results.rows}.values():
        # what no compiler is needed for
        if each.place.spec is not None and (why := room_refusal(each.place.spec, each.place.topology)):
            results.rows.setdefault(each.key, results.row(each, {"refused": why}))
    left = [each for each in study if not results.has(each)]
    while left and time.monotonic() < until:
        steps, alike = left[0].steps, (left[0].steps, left[0].slice, left[0].model)
        group = {id(each.place): each for each in left if (each.steps, each.slice, each.model) == alike}
        places = [each.place for each in group.values()]
        for outcome in predicted(warehouse, places, WhatIf(), python=python, phases=STEPS[steps]):
            each = group[id(outcome.place)]
            [row] = rows(warehouse, [outcome])
            before = results.rows[each.key]["run_id"] if each.key in results.rows else None
            results.add(each, row | (lists(warehouse, outcome.run_id) if outcome.run_id else {}))
            if before in here and outcome.run_id not in (None, before):
                warehouse.remove(before)  # the decode step alone
            if outcome.run_id is not None:
                here.add(outcome.run_id)
            left.remove(each)
            said = outcome.refused or f"TPOT {row['tpot_ms']:.3g} ms"
            cost = sum(CPU_S[other.steps] for other in left) / 3600
            print(f"{_named(results.rows[each.key])}, {steps}: {said}; {cost:.1f} CPU hours left", flush=True)
            if time.monotonic() >= until:
                break


def lists(warehouse: Warehouse, run_id: str) -> dict[str, list[Row]]:
    """Return the columns of `_LISTS` of a run."""
    runs = f"([{literal(run_id)}])"
    sources = {"parts": f"macros.step_shares{runs}", "links": f"macros.speedups{runs} WHERE metric = 'faster_links'"}
    return {
        name: warehouse.query(f"SELECT {', '.join(_LISTS[name])} FROM {source} ORDER BY ALL").dicts()  # noqa: S608
        for name, source in sources.items()
    }


def answered(words: str, table: Path, total: int) -> str:
    """Return the text with the answer of each query below it, from the table, and how far that is of a total."""

    def answer(found: re.Match[str]) -> str:
        result = connection.execute(found[1])
        names = [column[0] for column in result.description]
        lines = [names, ["---"] * len(names), *([_cell(value) for value in row] for row in result.fetchall())]
        return f"```sql\n{found[1]}```\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)

    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW configurations AS FROM read_parquet('{table}')")
        [(done, both, alone, unfit, uncompiled)] = connection.execute(
            """SELECT count(tpot_ms), count(ttft_ms),
                      count(*) FILTER (WHERE tpot_ms IS NOT NULL AND ttft_ms IS NULL AND refused IS NOT NULL),
                      count(*) FILTER (WHERE tpot_ms IS NULL AND refused LIKE 'does not fit%'),
                      count(*) FILTER (WHERE tpot_ms IS NULL AND refused NOT LIKE 'does not fit%')
               FROM configurations"""
        ).fetchall()
        left = total - unfit - uncompiled
        far = (
            f"{total} configurations are asked.\n{unfit} do not fit the memory of their chips, and the compiler "
            f"refuses {uncompiled}.\nOf the other {left}, {'all' if done == left else done} are predicted: {both} with "
            f"their prefill,\n{alone} whose prefill is refused, and {done - both - alone} whose prefill is to be "
            "computed."
        )
        return _FAR.sub(lambda found: found[1] + far, _QUERY.sub(answer, words))


def _named(row: Row) -> str:
    return f"{row['model']} {row['slice']} {row['mesh']} batch {row['batch_size']}"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value)


def page(table: Path, models: Sequence[str], refused: Sequence[tuple[str, str]]) -> Report:
    """Return the report about the configurations of a table that have times."""
    with closing(KeptRuns(table, models)) as kept:
        return study_report(kept, kept.run_ids, CHARTS, refused)


def main() -> None:
    """Compute what is missing, and draw the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--hours", type=float, default=float("inf"), help="begin nothing after so many hours")
    parser.add_argument("--slices", help="compute these alone, separated by commas: v6e-8,v5e-8")
    parser.add_argument("--table", type=Path, default=TABLE, help="of the results; a new one computes everything anew")
    parser.add_argument("--folder", type=Path, default=Path("study"), help="of the warehouse and the compiled programs")
    parser.add_argument("--python", default=sys.executable, help="Python that has jax and libtpu")
    options = parser.parse_args()
    os.environ.setdefault(PROGRAMS, str(options.folder / "programs"))
    grid = yaml.safe_load((HERE / "grid.yaml").read_text(encoding="utf-8"))
    slices = options.slices.split(",") if options.slices is not None else list(grid["slices"])
    if unknown := sorted(set(slices) - set(grid["slices"])):
        parser.error(f"--slices: no slice {', '.join(map(repr, unknown))}; there are {', '.join(grid['slices'])}")
    study = asked(grid)
    results = Results(options.table, version("libtpu"))
    with open_warehouse(options.folder / "warehouse", create=True) as warehouse:
        wanted = [each for each in study if each.slice in slices]
        compute(warehouse, wanted, results, options.python, time.monotonic() + 3600 * options.hours)
    results.write()
    refused = [(_named(row), row["refused"]) for row in results.rows.values() if row["tpot_ms"] is None]
    print(write_text(page(options.table, grid["models"], refused), options.table.with_name(PAGE.name)))
    if options.table == TABLE:
        total = len({each.key for each in study})
        WORDS.write_text(answered(WORDS.read_text(encoding="utf-8"), TABLE, total), encoding="utf-8")


if __name__ == "__main__":
    main()
