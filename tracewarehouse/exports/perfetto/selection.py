"""Selects the part of a run that a trace shows."""

from __future__ import annotations

from dataclasses import dataclass

from tracewarehouse.queries.read_only import literal


@dataclass(frozen=True)
class Selection:
    """The part of a run to write: the events that start in it.

    Attributes:
        start_ps: earliest start since the profile start.
        end_ps: end of the starts, exclusive.
        phase: only this phase; on threads of the host, events that start between its first and its last event.
        first_step: first step; on threads of the host, in the same way.
        last_step: last step, inclusive.
    """

    start_ps: int | None = None
    end_ps: int | None = None
    phase: str | None = None
    first_step: int | None = None
    last_step: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole run."""
        return self == Selection()

    def of_times(self, column: str = "start_ps") -> str:
        """SQL condition for the times alone."""
        terms = [f"{column} >= {self.start_ps}"] if self.start_ps is not None else []
        terms += [f"{column} < {self.end_ps}"] if self.end_ps is not None else []
        return " AND ".join(["true", *terms])

    def of_steps(self, phase: str = "phase", step: str = "step") -> str:
        """SQL condition for phase and steps alone."""
        terms = [f"{phase} = {literal(self.phase)}"] if self.phase is not None else []
        terms += [f"{step} >= {self.first_step}"] if self.first_step is not None else []
        terms += [f"{step} <= {self.last_step}"] if self.last_step is not None else []
        return " AND ".join(["true", *terms])
