"""Replaces the rates of predictions by what the ops of a recorded run took (`tw plan --calibrate`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tracewarehouse.ingest.errors import QueryError, WarehouseError
from tracewarehouse.predict.calibrations import (
    FILE,
    LEAST_POINTS,
    LEAST_SHARE,
    LEAST_SPREAD,
    Calibration,
    PredictionError,
    calibrated,
    described,
    rates,
    read_calibrations,
    with_rows,
    write_calibrations,
)
from tracewarehouse.queries.read_only import literal
from tracewarehouse.warehouse import Warehouse


@dataclass(frozen=True)
class Recalibration:
    """What a recorded run changed.

    Attributes:
        path: the file of the warehouse that holds the rates.
        changes: each rate as it was and as it is now.
        predicted: names of the predicted runs with which the recorded one was compared.
        kept: kinds of ops that changed no rate, with what was compared of each.
    """

    path: Path
    changes: tuple[tuple[Calibration, Calibration], ...]
    predicted: tuple[str, ...]
    kept: tuple[str, ...]


def calibrate(warehouse: Warehouse, reference: str) -> Recalibration:
    """Write what a recorded run says of the rates of its chip into the warehouse's own table of calibrations.

    It is compared with the predicted runs that have ops in common with it, and that were predicted with the rates that
    ship or with those that the warehouse has now. A run of the experiment calibrate also shows some rates alone.
    """
    run = warehouse.run(reference)
    if not isinstance(warehouse.path, Path):
        raise WarehouseError(f"{warehouse.path}: calibrations are kept in local warehouses alone; copy it first")
    path = warehouse.path / FILE
    own = read_calibrations(path)
    rows = warehouse.query(
        "SELECT e.predicted_run_id, r.name, p.topology, p.calibration, e.op_kind, e.variant, e.phase, e.n, "
        "e.p10, e.p50, e.p90, e.measured_ms, e.matched_share "
        "FROM metrics.prediction_error AS e JOIN main.runs AS r ON r.run_id = e.predicted_run_id "
        "JOIN (SELECT DISTINCT run_id, topology, calibration FROM main.predictions) AS p "
        "ON p.run_id = e.predicted_run_id "
        f"WHERE e.run_id = {literal(run.run_id)} ORDER BY e.measured_ms DESC, e.predicted_run_id"
    ).rows()
    found = _shown_alone(warehouse, run.run_id, own)
    if not rows and not found:
        raise QueryError(
            f"{run.name}: no predicted run has ops in common with it; "
            "predict the same model, mesh and slice with `tw plan`"
        )
    usable = [row for row in rows if row[3] in (None, described(own))]
    if not usable and not found:
        raise QueryError(
            f"{run.name}: the predicted runs with ops in common have rates that the warehouse has no more; "
            "predict again with `tw plan`"
        )
    for _, name, topology, said, *error in usable:
        generation = topology.partition(":")[0]
        base = rates(generation, own if said else ())
        for new in calibrated([PredictionError(*error)], generation, base, f"{run.name} ({run.run_id}) against {name}"):
            before = rates(generation, own)[new.class_, new.what]
            found.setdefault((new.class_, new.what), (before, new))
    errors = [PredictionError(*row[4:]) for row in usable]
    changed = {error.named for error in errors if error.rates and error.is_enough}
    kept = {
        error.named: f"{error.named}: {error.n} ops, {error.matched_share:.0%} of their time"
        for error in reversed(errors)
        if error.named not in changed
    }
    if not found:
        raise QueryError(
            f"{run.name}: at least {LEAST_POINTS} ops of a kind, with {LEAST_SHARE:.0%} of its time, must be those of "
            f"a prediction; found {'; '.join(kept.values())}"
        )
    write_calibrations(path, with_rows(own, (new for _, new in found.values())))
    return Recalibration(
        path, tuple(found.values()), tuple(dict.fromkeys(row[1] for row in usable)), tuple(kept.values())
    )


def _shown_alone(
    warehouse: Warehouse, run_id: str, own: tuple[Calibration, ...]
) -> dict[tuple[str, str], tuple[Calibration, Calibration]]:
    """Return the rates that a run of microbenchmarks shows, each as it was and as it is now."""
    rows = warehouse.query(
        'SELECT kind, chip, class, what, "value", low, high, n, source FROM models.calibration_rates '
        f"WHERE run_id = {literal(run_id)}"
    ).rows()
    found = {}
    for row in rows:
        new = Calibration(*row)
        new = new._replace(
            low=min(new.low, new.value * (1 - LEAST_SPREAD)),
            high=max(new.high, new.value * (1 + LEAST_SPREAD)),
            source=f"{new.source} ({run_id})",
        )
        if (before := rates(new.chip, own).get((new.class_, new.what))) is not None:
            found[new.class_, new.what] = (before, new)
    return found
