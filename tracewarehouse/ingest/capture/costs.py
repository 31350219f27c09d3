"""Reads the costs that a user gives at ingest: operations and bytes of kernels whose cost the profiler lacks."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator

from tracewarehouse.ingest.capture.manifest import content_of, reading

MAX_BYTES = 1 << 20

Amount = Annotated[int, Field(ge=0, lt=1 << 63)]


class KernelCost(BaseModel):
    """The cost of one execution of a kernel on one device; a missing number stays as the profiler states it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    flops: Amount | None = Field(default=None, description="floating-point operations")
    bytes: Amount | None = Field(default=None, description="memory traffic")

    @model_validator(mode="after")
    def _check(self) -> KernelCost:
        if self.flops is None and self.bytes is None:
            raise ValueError("give flops, bytes or both")
        return self


class _Kernels(RootModel[dict[str, KernelCost]]):
    root: dict[Annotated[str, Field(min_length=1)], KernelCost] = Field(min_length=1)


@dataclass(frozen=True)
class Costs:
    """The costs of a file.

    Attributes:
        kernels: costs by pattern of kernel names, such as `RPA-*`, in the order of the file.
    """

    name: str
    kernels: dict[str, KernelCost]

    @property
    def text(self) -> str:
        """All costs as JSON, in their order."""
        return json.dumps({n: c.model_dump(exclude_none=True) for n, c in self.kernels.items()}, ensure_ascii=False)

    @property
    def digest(self) -> str:
        """Digest of the costs, independent of the layout of their file."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def pattern_of(self, kernel: str) -> str | None:
        """Return the first pattern that the name of a kernel, without its numbers, matches; None if none does."""
        return next((pattern for pattern in self.kernels if fnmatchcase(kernel, pattern)), None)


def load_costs(path: str | os.PathLike[str]) -> Costs:
    """Read and validate a file of costs: JSON, or TOML if its name ends in .toml."""
    file = Path(path)
    hint = '; a kernel has flops, bytes or both, as in {"kernel-*": {"flops": 4000000, "bytes": 20000}}'
    with reading(file, "costs", "costs", hint):
        text = content_of(file, MAX_BYTES)
        tree: Any = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text, object_pairs_hook=_distinct)
        json.dumps(tree, ensure_ascii=False).encode()  # half a surrogate pair has no UTF-8
        return Costs(file.name, _Kernels.model_validate(tree).root)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(n for n in names if names.count(n) > 1)
        raise ValueError(f"{twice!r} is given twice")
    return tree
