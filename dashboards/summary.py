"""The head of a run's report: what ran, and its main numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse


@dataclass(frozen=True)
class Fact:
    """One fact of a run, such as its mesh."""

    label: str
    value: str


@dataclass(frozen=True)
class Tile:
    """One main number with its unit, and a line that says more."""

    label: str
    value: float
    unit: str
    detail: str = ""


def facts_of(run: dict[str, Any]) -> list[Fact]:
    """What a row of main.runs tells of the workload; unknown facts are left out."""
    lengths = f"{run['input_length']} in, {run['output_length']} out" if run["input_length"] else None
    found = {
        "Model": run["model"] or run["model_family"],
        "Layers": run["num_layers"],
        "Precision": run["dtype"],
        "Batch": run["batch_size"],
        "Tokens": lengths,
        "Mesh": run["mesh"],
        "Sequence parallelism": run["sequence_parallelism"],
        "Devices": f"{run['device_count']} ({run['backend']}), hosts {run['host_count']}",
        "Framework": run["framework"],
        "Events": f"{run['event_count']:,}",
        "Run": run["run_id"],
    }
    return [Fact(label, str(value)) for label, value in found.items() if value not in (None, "")]


def tiles_of(warehouse: Warehouse, run_id: str) -> list[Tile]:
    """The run's main numbers; one without data has no tile."""
    rows = warehouse.query(
        """SELECT label, value, unit, detail FROM macros.run_tiles([$run_id]) WHERE value IS NOT NULL
           ORDER BY position, phase DESC, label""",
        run_id=run_id,
    )
    return [Tile(**row) for row in rows.dicts()]
