"""Replaces rates of predictions by what a recorded run's ops took (`tw plan --calibrate`), and formulas of kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tracewarehouse.collect.tpu.quota import load_quota
from tracewarehouse.ingest.capture.hardware import chip_named
from tracewarehouse.ingest.capture.prediction import MeasuredKernel
from tracewarehouse.ingest.errors import QueryError, WarehouseError
from tracewarehouse.ingest.hlo.modules import HloModule, module_and_program
from tracewarehouse.ingest.hlo.opcodes import attention_form, kernel_name
from tracewarehouse.predict.calibrations import (
    FILE,
    LEAST_POINTS,
    LEAST_SHARE,
    Calibration,
    PredictionError,
    calibrated,
    described,
    of_chip,
    rates,
    read_calibrations,
    with_rows,
    write_calibrations,
)
from tracewarehouse.predict.machine import Machine
from tracewarehouse.predict.microbenchmarks import MeasuredProgram, fitted
from tracewarehouse.queries.read_only import literal
from tracewarehouse.warehouse import Warehouse


@dataclass(frozen=True)
class Recalibration:
    """What a recorded run changed.

    Attributes:
        path: the file of the warehouse that holds the rates.
        changes: each rate as it was, if it was known, and as it is now.
        predicted: names of the predicted runs with which the recorded one was compared.
        kept: kinds of ops that changed no rate, with what was compared of each, or why.
    """

    path: Path
    changes: tuple[tuple[Calibration | None, Calibration], ...]
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
    kind = _tpu_kind(warehouse, run.run_id, run.name)
    rows = warehouse.query(
        "SELECT r.name, p.topology, p.calibration, e.op_kind, e.variant, e.phase, e.n, "
        "e.p10, e.p50, e.p90, e.measured_ms, e.matched_share "
        "FROM metrics.prediction_error AS e JOIN main.runs AS r ON r.run_id = e.predicted_run_id "
        "JOIN (SELECT DISTINCT run_id, topology, calibration FROM main.predictions) AS p "
        "ON p.run_id = e.predicted_run_id "
        f"WHERE e.run_id = {literal(run.run_id)} ORDER BY e.measured_ms DESC, e.predicted_run_id"
    ).rows()
    alone, unused = _shown_alone(warehouse, run.run_id, run.name, kind)
    found = {(new.class_, new.what): new for new in alone}
    predicted: dict[str, None] = {}
    kept: dict[str, str] = {}
    changed: set[str] = set()
    for name, topology, said, *values in rows:
        generation, error = topology.partition(":")[0], PredictionError(*values)
        mine = of_chip(own, generation)
        if said not in (None, described(mine)):
            continue
        predicted[name] = None
        if said and _is_measured_alone(error, mine):
            kept[error.named] = f"{error.named}: a run of calibrate has measured it, and only such a run changes that"
            continue
        if error.rates and error.is_enough:
            changed.add(error.named)
        else:
            kept.setdefault(error.named, f"{error.named}: {error.n} ops, {error.matched_share:.0%} of their time")
        base = rates(generation, mine if said else ())
        for new in calibrated([error], generation, base, f"{run.name} ({run.run_id}) against {name}"):
            found.setdefault((new.class_, new.what), new)
    if not found and not rows and not unused:
        raise QueryError(
            f"{run.name}: no predicted run has ops in common with it; "
            "predict the same model, mesh and slice with `tw plan`"
        )
    if not found and not predicted and not unused:
        raise QueryError(
            f"{run.name}: the predicted runs with ops in common have rates that the warehouse has no more; "
            "predict again with `tw plan`"
        )
    without = (*(said for named, said in kept.items() if named not in changed), *([_named(unused)] if unused else []))
    if not found:
        needed = f"; a kind needs {LEAST_POINTS} ops in common with a prediction, and {LEAST_SHARE:.0%} of its time"
        raise QueryError(f"{run.name}: no rate follows from {'; '.join(without)}{needed if predicted else ''}")
    changes = tuple((rates(new.chip, own).get(key), new) for key, new in found.items())
    write_calibrations(path, with_rows(own, found.values()))
    return Recalibration(path, changes, tuple(predicted), without)


def _is_measured_alone(error: PredictionError, own: Iterable[Calibration]) -> bool:
    """Whether rows of a run of calibrate, which no other rate changes, decide the times of this kind of op."""
    is_ragged = error.op_kind == "kernel" and attention_form(error.variant or "") == "ragged"
    begin = "ragged_attention" if is_ragged else f"{error.op_kind} "
    return any(row.class_.startswith(begin) for row in own)


def _tpu_kind(warehouse: Warehouse, run_id: str, name: str) -> str:
    """Return the kind of the TPUs of a recorded run; refuse another run, which shows nothing of one."""
    [[origin, backend, kind]] = warehouse.query(
        "SELECT origin, backend, (SELECT MIN(kind) FROM main.devices AS d WHERE d.run_id = r.run_id) "
        f"FROM main.runs AS r WHERE run_id = {literal(run_id)}"
    ).rows()
    if origin != "recorded":
        raise QueryError(f"{name} is {origin}, and nothing was measured; rates follow from runs that are recorded")
    if backend != "tpu":
        place = {"cpu": "virtual CPU devices", "gpu": kind or "GPUs"}.get(backend, "devices that are not known")
        raise QueryError(f"{name} ran on {place}, and the rates are those of TPUs; record it on a slice (tw tpu run)")
    return str(kind)


def _named(unused: dict[str, str]) -> str:
    """Return what shows no rate, by the reason."""
    reasons: dict[str, list[str]] = {}
    for what, reason in unused.items():
        reasons.setdefault(reason, []).append(what)
    return "; ".join(f"{', '.join(what)}: {reason}" for reason, what in reasons.items())


def _shown_alone(warehouse: Warehouse, run_id: str, name: str, kind: str) -> tuple[list[Calibration], dict[str, str]]:
    """Return the rates that a run of microbenchmarks shows, and why some of its programs show none."""
    where, source = f"WHERE run_id = {literal(run_id)}", f"{name} ({run_id})"
    rows = [
        Calibration(*row).widened
        for row in warehouse.query(
            f'SELECT kind, chip, class, what, "value", low, high, n, {literal(source)} FROM models.calibration_rates '
            f"{where}"
        ).rows()
    ]
    measured = warehouse.query(
        "SELECT program, kind, class, what, low_us, value_us, high_us, n FROM metrics.microbenchmarks_v1 "
        f"{where} AND kind IN ('collective', 'product') AND value_us > 0 ORDER BY program, class, what, axis"
    ).rows()
    modules = {
        module_and_program(event)[0]: HloModule(event, raw, [])
        for event, raw in warehouse.query(
            f"SELECT event, bytes_value FROM main.metadata_stats {where} AND event LIKE 'jit_micro.%' "
            "AND LOWER(REPLACE(name, '_', ' ')) = 'hlo proto' AND bytes_value IS NOT NULL"
        ).rows()
    }
    programs = [MeasuredProgram(modules[program], *rest) for program, *rest in measured if program in modules]
    unused: dict[str, str] = {}
    if programs:
        devices = max(math.prod(module.device_counts) for module in modules.values())
        slice_ = _slice(kind, max(devices, warehouse.query(f"SELECT COUNT(*) FROM main.devices {where}").scalar()))
        if slice_ is None:
            return rows, {"collectives and products": "a slice of as many chips of this kind is not known"}
        more, unused = fitted(Machine.named(slice_), programs, source)
        rows += more
    if lost := len({name for name in modules if ".collective." in name} - {program for program, *_ in measured}):
        unused[f"{lost} programs of collectives"] = "the capture has none of all their devices"
    if len(programs) < len(measured):
        unused[f"{len(measured) - len(programs)} programs"] = "the capture lacks what the compiler made of them"
    return rows, unused


def _slice(kind: str, devices: int) -> str | None:
    """Return the slice with as many devices of a kind, such as v6e:2x4; None if it is not known."""
    chip = (chip_named(kind) or {}).get("kind")
    for name, generation in load_quota().generations.items():
        chips, rest = divmod(devices, generation.devices_per_chip)
        if generation.kind == chip and not rest and (sides := generation.topology.get(chips)):
            return f"{name}:{sides}"
    return None


class RecordedKernels:
    """What kernels took in the recorded runs of a warehouse; of several runs that hold one, in the newest."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._newest = cache(self._runs_of)
        self._of_run = cache(self._read)

    def find(self, chip: str, signature: str) -> MeasuredKernel | None:
        """Return what the kernel with a signature took on chips of a kind; None if no run holds it there."""
        run = self._newest(chip).get(signature)
        return self._of_run(*run).get(signature) if run else None

    def _runs_of(self, chip: str) -> dict[str, tuple[str, str]]:
        """Return the run that counts, as id and name, by signature; of other chips and predictions nothing is read."""
        kinds = self._warehouse.query(
            "SELECT run_id, min(kind) FROM main.devices JOIN main.runs USING (run_id) "
            "WHERE origin = 'recorded' AND kind IS NOT NULL GROUP BY run_id"
        ).rows()
        ids = [literal(run_id) for run_id, kind in kinds if (chip_named(kind) or {"kind": kind})["kind"] == chip]
        rows = self._warehouse.query(
            "SELECT i.run_id, r.name, i.signature FROM main.instructions AS i JOIN main.runs AS r USING (run_id) "
            f"WHERE i.run_id IN ({', '.join(ids) or 'NULL'}) AND i.async_role IS NULL "
            "AND i.signature LIKE '% custom-call:tpu_custom_call %' ORDER BY r.profile_start_ns NULLS FIRST, i.run_id"
        ).rows()
        return {signature: (run_id, name) for run_id, name, signature in rows}

    def _read(self, run_id: str, run: str) -> dict[str, MeasuredKernel]:
        rows = self._warehouse.query(f"FROM macros.kernel_times([{literal(run_id)}])").dicts()
        return {
            row["signature"]: MeasuredKernel(
                **{name: row[name] for name in ("signature", "us", "low_us", "high_us", "n", "run_id")},
                kernel=kernel_name(row["name"]),
                run=run,
            )
            for row in rows
        }
