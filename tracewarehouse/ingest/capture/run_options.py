"""Holds what a user says about a run at ingest, beyond the files of its capture."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tracewarehouse.ingest.errors import CaptureError

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.costs import Costs
    from tracewarehouse.ingest.capture.manifest import Mesh


@dataclass(frozen=True)
class RunOptions:
    """The options of a run; it can be pickled.

    Attributes:
        mesh: the device mesh; it replaces the mesh of a manifest.
        name: name for people; it replaces the name in the manifest or of the file.
        step_program: the module whose executions begin a step; it replaces the steps found by marks, server or time.
        costs: costs of kernels for which the profiler has none.
    """

    mesh: Mesh | None = None
    name: str | None = None
    step_program: str | None = None
    costs: Costs | None = None

    @classmethod
    def parse(
        cls,
        mesh: Mesh | str | None = None,
        name: str | None = None,
        step_program: str | None = None,
        costs: str | os.PathLike[str] | None = None,
    ) -> Self:
        """The options of a mesh such as 'dp=2,tp=4' and a file of costs; see `load_costs`.

        Raises:
            CaptureError: the mesh is not of that form or names an unknown axis, or the costs cannot be read.
        """
        return cls(parse_mesh(mesh) if isinstance(mesh, str) else mesh, name, step_program, _loaded(costs))


DEFAULT_OPTIONS = RunOptions()


def parse_mesh(text: str) -> Mesh:
    """The mesh of a text such as 'dp=2,tp=4'.

    Raises:
        CaptureError: the text is not of that form, or names an unknown axis.
    """
    from tracewarehouse.ingest.capture.manifest import Mesh

    try:
        return Mesh.parse(text)
    except ValueError as error:
        raise CaptureError(str(error)) from None


def _loaded(costs: str | os.PathLike[str] | None) -> Costs | None:
    if costs is None:
        return None
    from tracewarehouse.ingest.capture.costs import load_costs

    return load_costs(costs)
