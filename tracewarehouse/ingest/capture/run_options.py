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
        device: kind of the chips in the hardware table, such as TPU7x, where neither capture nor card tells it.
        chip_price: price of a chip for an hour, in USD; it replaces the list price of the hardware table.
    """

    mesh: Mesh | None = None
    name: str | None = None
    step_program: str | None = None
    costs: Costs | None = None
    device: str | None = None
    chip_price: float | None = None

    @classmethod
    def parse(
        cls,
        mesh: Mesh | str | None = None,
        name: str | None = None,
        step_program: str | None = None,
        costs: str | os.PathLike[str] | None = None,
        device: str | None = None,
        chip_price: float | None = None,
    ) -> Self:
        """The options of a mesh such as 'dp=2,tp=4', a file of costs (see `load_costs`) and a chip such as TPU7x.

        A price is in USD for a chip and hour.

        Raises:
            CaptureError: the mesh is not of that form or names an unknown axis, the costs cannot be read, or the chip
                is not in the hardware table.
        """
        given = None
        if costs is not None:
            from tracewarehouse.ingest.capture.costs import load_costs

            given = load_costs(costs)
        mesh = parse_mesh(mesh) if isinstance(mesh, str) else mesh
        return cls(mesh, name, step_program, given, parse_device(device) if device else None, chip_price)


DEFAULT_OPTIONS = RunOptions()


def parse_mesh(text: str) -> Mesh:
    """The mesh of a text such as 'dp=2,tp=4'."""
    from tracewarehouse.ingest.capture.manifest import Mesh

    try:
        return Mesh.parse(text)
    except ValueError as error:
        raise CaptureError(str(error)) from None


def parse_device(text: str) -> str:
    """The kind of a chip in the hardware table, given any of its names."""
    from tracewarehouse.ingest.capture.hardware import known_kind

    return known_kind(text)[1]
