"""Predicts the configurations of grid.yaml: `python docs/study/study.py [--hours H]`, or `make study`.

Each result lands as it comes: its row in configurations.parquet, beside this file, and its run in the warehouse of
--folder, where the compiled programs are kept too. What is there of the same compiler and rules is not computed again,
so a study that was stopped goes on. At the end it draws report.html of the runs in the warehouse.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tracewarehouse.collect.ahead_of_time import PHASES, PROGRAMS
from tracewarehouse.comparison.study import Place, places, predicted, rows
from tracewarehouse.dashboards.report import study_report
from tracewarehouse.dashboards.writing import write_text
from tracewarehouse.predict.configuration import WhatIf
from tracewarehouse.predict.rules import RULES_VERSION
from tracewarehouse.warehouse import Warehouse, open_warehouse

HERE = Path(__file__).resolve().parent
TABLE = HERE / "configurations.parquet"
PAGE = HERE / "report.html"
STEPS = {"decode": ("decode",), "both": PHASES}
CPU_S = {"decode": 8, "both": 45}
"""Seconds of one core of this repository's machine for a configuration, by what is compiled of it."""

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
SCHEMA = pa.schema(
    [(name, kind) for kind, names in _TYPES.items() for name in names]
    + [(name, "int64") for name in ("memory_bytes", "capacity_bytes")]
    + [(f"{phase}_bottleneck", "string") for phase in PHASES]
)
"""The columns of macros.planned_runs that tell configurations of a study apart, the compiler, and why one cannot be."""


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
    """Return all that the study asks, in order: `first`, then the decode steps of all, then the prefills.

    The decode step of a configuration stands apart from both of its steps, which replace it.
    """
    slices = grid["slices"]
    fields = {name: grid[name] for name in ("input_length", "output_length", "dtype")} | {"backend": "jax"}

    def found(model: str, name: str, meshes: Sequence[str], batches: Sequence[int], steps: str) -> Iterator[Asked]:
        for place in places(meshes, [slices[name]], batches, model=model, **fields):
            if place.spec is not None:
                yield Asked(place, name, steps, model.rpartition("/")[2], str(place.spec.mesh))

    out: list[Asked] = []
    for first in grid["first"]:
        out += found(*(first[field] for field in ("model", "slice", "meshes", "batches", "steps")))
    for steps, name, model in itertools.product(STEPS, slices, grid["models"]):
        out += found(model, name, [], grid["batches"], steps)
    once: dict[tuple[Key, str], Asked] = {}
    for each in out:
        once.setdefault((each.key, each.steps), each)
    return list(once.values())


class Results:
    """The rows of the study by configuration, in a Parquet file that is whole after each of them."""

    def __init__(self, path: Path, compiler: str) -> None:
        self._path, self._compiler = path, compiler
        said = pq.read_table(path).to_pylist() if path.exists() else []
        self.rows: dict[Key, Row] = {tuple(row[name] for name in KEY): row for row in said if self._is_current(row)}

    def _is_current(self, row: Row) -> bool:
        return (row["compiler"], row["rules_version"]) == (self._compiler, RULES_VERSION)

    def has(self, each: Asked, run_ids: Container[str]) -> bool:
        """Return whether a configuration is done: refused, or with all its steps in the warehouse."""
        row = self.rows.get(each.key)
        if row is None or (row["run_id"] is None and row["refused"] is None):
            return False
        is_whole = row["refused"] is not None or row["ttft_ms"] is not None or each.steps == "decode"
        return is_whole and (row["run_id"] is None or row["run_id"] in run_ids)

    def add(self, each: Asked, row: Row) -> None:
        """Add what is predicted of a configuration. A decode step stays where only the prefill is refused."""
        before = self.rows.get(each.key, {})
        named = dict(zip(KEY, each.key, strict=True)) | {"slice": each.slice}
        made = {"compiler": self._compiler, "rules_version": RULES_VERSION, "refused": row.get("refused")}
        self.rows[each.key] = (before if made["refused"] else {}) | row | named | made
        self.write()

    def write(self) -> None:
        """Write the file anew, whole or not at all."""
        table = pa.Table.from_pylist([self.rows[key] for key in sorted(self.rows)], SCHEMA)
        part = self._path.with_suffix(".part")
        pq.write_table(table, part, compression="zstd")
        part.replace(self._path)


def compute(warehouse: Warehouse, study: Sequence[Asked], results: Results, python: str, until: float) -> None:
    """Predict what is not done, in order, until all is done or the time has come."""
    here = {run.run_id for run in warehouse.lake.runs()}
    left = [each for each in study if not results.has(each, here)]
    total = len({each.key for each in study})
    for (steps, *_), group in itertools.groupby(left, key=lambda each: (each.steps, each.slice, each.model)):
        members = {id(each.place): each for each in group}
        done = predicted(
            warehouse, [each.place for each in members.values()], WhatIf(), python=python, phases=STEPS[steps]
        )
        for outcome in done:
            each = members[id(outcome.place)]
            [row] = rows(warehouse, [outcome])
            before = results.rows.get(each.key, {}).get("run_id")
            results.add(each, row)
            if before in here and outcome.run_id not in (None, before):
                warehouse.remove(before)  # the decode step alone
            if outcome.run_id is not None:
                here.add(outcome.run_id)
            left.remove(each)
            cost = sum(CPU_S[other.steps] for other in left) / 3600
            said = outcome.refused or f"TPOT {row['tpot_ms']:.3g} ms"
            count = sum(other.key in results.rows for other in {each.key: each for each in study}.values())
            print(
                f"{count} of {total} ({cost:.1f} CPU hours left): {each.model} {each.slice} {each.mesh} "
                f"batch {each.place.batch}, {steps}: {said}",
                flush=True,
            )
            if time.monotonic() > until:
                return


def main() -> None:
    """Compute what is missing, and draw the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--hours", type=float, default=float("inf"), help="begin nothing after so many hours")
    parser.add_argument("--folder", type=Path, default=Path("study"), help="of the warehouse and the compiled programs")
    parser.add_argument("--python", default=sys.executable, help="Python that has jax and libtpu")
    options = parser.parse_args()
    os.environ.setdefault(PROGRAMS, str(options.folder / "programs"))
    study = asked(yaml.safe_load((HERE / "grid.yaml").read_text(encoding="utf-8")))
    results = Results(TABLE, version("libtpu"))
    with open_warehouse(options.folder / "warehouse", create=True) as warehouse:
        compute(warehouse, study, results, options.python, time.monotonic() + 3600 * options.hours)
        here = {run.run_id for run in warehouse.lake.runs()}
        shown = [row["run_id"] for row in results.rows.values() if row["run_id"] in here]
        if shown:
            print(write_text(study_report(warehouse, shown), PAGE))


if __name__ == "__main__":
    main()
