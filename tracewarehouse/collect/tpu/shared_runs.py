"""Describes the runs of a sweep to all hosts of a slice."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from tracewarehouse.collect.run_spec import RunSpec


class SharedRun(BaseModel):
    """A run, as the hosts get it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    digest: str
    spec: dict[str, Any]


class SharedRuns(BaseModel):
    """The runs that all hosts of a slice record, in this order, each when they are told to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout_s: float
    runs: list[SharedRun]

    @classmethod
    def of(cls, specs: list[RunSpec], timeout_s: float) -> SharedRuns:
        """Return the runs of given specifications."""
        runs = [SharedRun(name=s.name, digest=s.digest, spec=s.model_dump(mode="json")) for s in specs]
        return cls(timeout_s=timeout_s, runs=runs)
