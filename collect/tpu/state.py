"""The slices that were created here, in a small JSON file, so that another call continues and deletes nothing else."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tracewarehouse.collect.errors import TpuError


class Slice(BaseModel):
    """A TPU slice that was created here."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern="^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")
    owner: str = Field(description="label that the slice carries, by which it is known as the one created here")
    generation: str
    accelerator_type: str
    chips: int
    hosts: int
    zone: str
    spot: bool
    runtime: str
    project: str | None = None
    status: Literal["creating", "ready"] = "creating"
    is_set_up: bool = Field(default=False, description="whether the collector is installed on its virtual machines")


class _Slices(BaseModel):
    model_config = ConfigDict(extra="forbid")

    slices: dict[str, Slice] = Field(default_factory=dict)


class State:
    """The file; every change is on disk before the next command runs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def slices(self) -> dict[str, Slice]:
        """Slices by name.

        Raises:
            TpuError: the file is damaged.
        """
        if not self.path.exists():
            return {}
        try:
            return _Slices.model_validate_json(self.path.read_text(encoding="utf-8")).slices
        except (OSError, ValidationError, UnicodeDecodeError) as error:
            raise TpuError(
                f"{self.path}: cannot be read as a record of slices: {' '.join(str(error).split())}"
            ) from None

    def get(self, name: str) -> Slice:
        """One slice.

        Raises:
            TpuError: it was not created here.
        """
        slices = self.slices()
        if name not in slices:
            have = ", ".join(slices) or "none"
            raise TpuError(f"no slice {name!r} was created here according to {self.path}; there is {have}")
        return slices[name]

    def put(self, entry: Slice) -> None:
        """Add or replace a slice."""
        with self._changing() as slices:
            slices[entry.name] = entry

    def reserve(self, name: str, choose: Callable[[list[Slice]], Slice]) -> tuple[Slice, bool]:
        """The slice of this name, or a new one that is chosen knowing all others; no two calls choose at a time.

        Returns:
            The slice, and whether it is new.
        """
        with self._changing() as slices:
            is_new = name not in slices
            if is_new:
                slices[name] = choose(list(slices.values()))
            return slices[name], is_new

    def remove(self, name: str) -> None:
        """Forget a slice."""
        with self._changing() as slices:
            slices.pop(name, None)

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Slice]]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_name(self.path.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            slices = self.slices()
            yield slices
            aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
            aside.write_text(_Slices(slices=slices).model_dump_json(indent=1) + "\n", encoding="utf-8")
            aside.rename(self.path)
