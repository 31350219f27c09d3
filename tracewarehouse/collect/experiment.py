"""Reads experiment files: runs, and sweeps over every combination of some fields."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tracewarehouse.collect.errors import ExperimentError
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.ingest.capture.manifest import content_of, reading
from tracewarehouse.ingest.errors import CaptureError, shown
from tracewarehouse.ingest.plain_yaml import yaml_tree

_MOST_BYTES = 1 << 18
_MOST_RUNS = 100_000
"""The most runs and combinations of an experiment; nobody records more, and each takes memory."""
READY_MADE = Path(__file__).parent / "experiments"


class Experiment(BaseModel):
    """A set of runs: single ones, and sweeps over every combination of some fields."""

    model_config = ConfigDict(extra="forbid")

    name: str = "experiment"
    description: str = ""
    defaults: dict[str, Any] = Field(default_factory=dict, description="fields of every run that a run does not set")
    runs: list[dict[str, Any]] = Field(default_factory=list, description="single runs")
    matrix: list[dict[str, list[Any]]] = Field(
        default_factory=list, description="sweeps: field to its values; a value that is a mapping sets several fields"
    )
    exclude: list[dict[str, Any]] = Field(default_factory=list, description="combinations of a sweep to leave out")
    repeats: int = Field(default=1, ge=1, description="times that each run is recorded")
    timeout_s: float = Field(default=900.0, gt=0, description="a run that takes longer is stopped")
    retries: int = Field(default=1, ge=0, description="further attempts after a failure")

    @model_validator(mode="before")
    @classmethod
    def _one_matrix(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("matrix"), dict):
            return {**data, "matrix": [data["matrix"]]}
        return data

    @classmethod
    def from_runs(cls, *specs: RunSpec, **settings: Any) -> Experiment:
        """Return an experiment of given runs."""
        return cls(runs=[spec.model_dump(mode="json") for spec in specs], **settings)


def load_experiment(path: Path) -> Experiment:
    """Read an experiment file, or a ready-made experiment by its name such as `tiny`, and check every run in it."""
    if str(path) in ready_made() and not path.exists():
        path = READY_MADE / f"{path}.yaml"
    if not path.exists() and not path.is_symlink():
        raise ExperimentError(f"{path}: no such experiment file; ready-made are {', '.join(ready_made())}")
    try:
        with reading(path, "an experiment", "experiment"):
            data = yaml_tree(content_of(path, _MOST_BYTES))
    except CaptureError as error:
        raise ExperimentError(str(error)) from None
    if not isinstance(data, dict):
        raise ExperimentError(f"{path}: an experiment is a mapping of fields, found {type(data).__name__}")
    try:
        experiment = Experiment.model_validate(data)
        plan(experiment)
    except ValidationError as error:
        raise ExperimentError(f"{path}: {faults(error, Experiment)}") from None
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from None
    return experiment


def ready_made() -> list[str]:
    """Return the names of the experiments that come with the package."""
    return sorted(file.stem for file in READY_MADE.glob("*.yaml"))


def plan(experiment: Experiment) -> list[RunSpec]:
    """Return every run of an experiment, in the order of recording."""
    described = [(f"runs[{i}]", run) for i, run in enumerate(experiment.runs)]
    unused = dict(enumerate(experiment.exclude))
    count = (len(described) + sum(prod(map(len, sweep.values())) for sweep in experiment.matrix)) * experiment.repeats
    if count > _MOST_RUNS:
        raise ExperimentError(
            f"the experiment has {shown(str(count))} runs and combinations; at most {_MOST_RUNS:,} are planned"
        )
    for i, sweep in enumerate(experiment.matrix):
        for label, run in _combinations(sweep):
            matching = [number for number, rule in enumerate(experiment.exclude) if _matches(rule, run)]
            if not matching:
                described.append((f"matrix[{i}] ({label})", run))
            for number in matching:
                unused.pop(number, None)
    for number, rule in unused.items():
        raise ExperimentError(f"exclude[{number}]: no combination of a matrix has {_label(rule)}, as written there")
    specs: dict[str, RunSpec] = {}
    for where, fields in described:
        for repeat in range(experiment.repeats):
            repeated = {"repeat": repeat} if experiment.repeats > 1 else {}
            spec = parsed_run({**experiment.defaults, **fields, **repeated}, where)
            if spec.name in specs:
                raise ExperimentError(f"{where}: the run {spec.name} is there already; use repeats to record it again")
            specs[spec.name] = spec
    if not specs:
        raise ExperimentError("the experiment has no run: give runs or a matrix")
    return list(specs.values())


def _combinations(sweep: dict[str, list[Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for values in itertools.product(*sweep.values()):
        run: dict[str, Any] = {}
        for field, value in zip(sweep, values, strict=True):
            run.update(value if isinstance(value, dict) and field != "mesh" else {field: value})
        yield _label(run), run


def _matches(rule: dict[str, Any], run: dict[str, Any]) -> bool:
    return all(run.get(field) == value for field, value in rule.items())


def _label(fields: dict[str, Any]) -> str:
    return shown(", ".join(f"{field}={value}" for field, value in fields.items()))


def run_spec(**fields: Any) -> RunSpec:
    """Return a run from named fields, as a command line has them; None leaves a field at its default."""
    return parsed_run({k: v for k, v in fields.items() if v is not None}, "run")


def parsed_run(fields: dict[str, Any], where: str) -> RunSpec:
    """Return a run from its fields."""
    try:
        return RunSpec.model_validate(fields)
    except ValidationError as error:
        raise ExperimentError(f"{where}: {faults(error, RunSpec)}") from None


def faults(error: ValidationError, model: type[BaseModel]) -> str:
    """Return all faults in one line, each with its field."""
    out = []
    for fault in error.errors():
        field = ".".join(str(p) for p in fault["loc"])
        message = re.sub("^Value error, ", "", fault["msg"])
        message = re.sub(r"(\w{80})\w{20,}(\.{3})?", r"\1...", message)  # values are quoted, some of them twice
        if fault["type"] == "extra_forbidden":
            message = f"is no field; fields are {', '.join(model.model_fields)}"
        out.append(f"{shown(field)}: {message}" if field else message)
    return "; ".join(out)
