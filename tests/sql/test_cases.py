"""Every metric gives the rows worked out by hand in cases/<metric>_v<n>.yaml, whatever other runs there are.

TRACEWAREHOUSE_SQL=DIR adds the metrics of a folder, and their cases in DIR/cases.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from given_tables import fill, warehouse_of

from tracewarehouse.definitions.reading import load_with

OWN = Path(os.environ["TRACEWAREHOUSE_SQL"]) if os.environ.get("TRACEWAREHOUSE_SQL") else None
CASES = [Path(__file__).parent / "cases", *([OWN / "cases"] if OWN else [])]
DEFINITIONS = load_with(OWN)
_TWIN = "~"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""By libyaml where it is there: each process that runs tests reads all cases."""


def _cases() -> list[Any]:
    found = []
    for path in (p for folder in CASES for p in sorted(folder.glob("*.yaml"))):
        for case in yaml.load(path.read_text(), LOADER):
            found.append(pytest.param(path.stem, case, id=f"{path.stem}: {case['case']}"))
    return found


def _add_twins(connection: duckdb.DuckDBPyConnection, given: Collection[str]) -> None:
    """Put a second run with the same rows beside each, which a metric that joins across runs would mix up with it."""
    for table in {*given, "instructions", "copies"}:  # the last two follow from ops
        connection.execute(
            f"INSERT INTO given.{table} SELECT * REPLACE (run_id || '{_TWIN}' AS run_id) FROM given.{table}"
        )


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with warehouse_of({}, DEFINITIONS) as database:
        yield database


@pytest.mark.parametrize(("view", "case"), _cases())
def test_the_rows_are_those_worked_out_by_hand(
    connection: duckdb.DuckDBPyConnection, view: str, case: dict[str, Any]
) -> None:
    assert case.keys() <= {"case", "given", "expect"}
    header: Any = DEFINITIONS[f"metrics.{view}"].header
    fill(connection, case["given"])
    if header.scope != "warehouse":
        _add_twins(connection, case["given"])
    expected = case["expect"]
    columns = list(expected[0]) if expected else [*header.grain, header.value]
    assert {*header.grain, header.value} <= {*columns}
    names = ", ".join(f'"{c}"' for c in columns)
    of_all = connection.execute(f"SELECT {names} FROM metrics.{view}").fetchall()
    run_id, *grain = (columns.index(c) for c in header.grain)
    found = [row for row in of_all if not row[run_id].endswith(_TWIN)]
    rows = [tuple(row[c] for c in columns) for row in expected]
    assert sorted(map(_comparable, found)) == sorted(map(_comparable, rows))
    assert len({(row[run_id], *(row[c] for c in grain)) for row in of_all}) == len(of_all)
    if header.scope == "warehouse" and header.is_stored:
        _assert_in_all_values(connection, header, view)


def _assert_in_all_values(connection: Any, header: Any, view: str) -> None:
    """The values of a metric that compares runs are in metrics.all_values."""
    found = connection.execute(
        "SELECT run_id, dimensions, value, unit FROM metrics.all_values WHERE metric = ? AND version = ?",
        [header.metric, header.version],
    ).fetchall()
    names = ", ".join([*header.grain, header.value])
    expected = [
        (row[0], json.dumps(dict(zip(header.grain[1:], row[1:-1], strict=True))), row[-1], header.unit)
        for row in connection.execute(f"SELECT {names} FROM metrics.{view}").fetchall()
    ]
    assert sorted(found) == sorted(expected)


def _comparable(row: tuple[Any, ...]) -> tuple[tuple[int, Any], ...]:
    """Rows with NULLs in an order, doubles to twelve digits."""
    return tuple(
        (0, "") if v is None else (1, f"{v:.12g}") if isinstance(v, int | float) and not isinstance(v, bool) else (2, v)
        for v in row
    )


@pytest.mark.parametrize(
    "metric", [m for m in DEFINITIONS.metrics if m.header.status != "experimental"], ids=lambda m: m.view.name
)
def test_a_released_metric_has_cases_for_every_column(metric: Any) -> None:
    paths = [p for p in (folder / f"{metric.view.name}.yaml" for folder in CASES) if p.is_file()]
    assert paths, f"{metric.view.name} is released and has no cases: write {metric.view.name}.yaml"
    cases = yaml.load(paths[0].read_text(), LOADER)
    assert any(not c["expect"] for c in cases), "one case must show when there is no row"
    shown = {column for c in cases for row in c["expect"] for column in row}
    assert not metric.header.columns.keys() - shown, "every column must be expected in some case"


def test_every_case_file_belongs_to_a_metric() -> None:
    assert {p.stem for folder in CASES for p in folder.glob("*.yaml")} <= {m.view.name for m in DEFINITIONS.metrics}


def test_percentiles_of_many_launches_are_by_nearest_rank(connection: duckdb.DuckDBPyConnection) -> None:
    """Gaps of 1 to 200 us in mixed order: the 100th, the 180th and the 198th of them."""
    phases: list[dict[str, Any]] = []
    now = 0
    for index in range(201):
        now += index and (index * 77) % 200 + 1
        phases.append(
            {"kind": "module", "name": "p", "index": index, "device_id": 0, "start_us": now, "end_us": now + 1}
        )
        now += 1
    fill(connection, {"phases": phases})
    found = connection.execute("SELECT p50_us, p90_us, p99_us, launches FROM metrics.launch_overhead_v1").fetchall()
    assert found == [(100, 180, 198, 200)]
