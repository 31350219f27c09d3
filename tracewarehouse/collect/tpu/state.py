"""Keeps the slices created here in a small JSON file, so that a later call finds them and deletes no others."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tracewarehouse.collect.errors import TpuError

Provider = Literal["tpu_api", "instance_group"]
"""What creates a slice: the Cloud TPU API, or Compute Engine as a group of instances."""


class Round(BaseModel):
    """One attempt of all hosts of a slice to record one run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: str = Field(pattern="^[0-9a-f]+$", description="names a folder on the hosts that no other round uses")
    run: str = Field(pattern=r"^[\w.-]+$", description="name of the run")


class Place(BaseModel):
    """The place of a slice: what its user chooses besides its size."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    service_account: str | None = None
    data_disk: str | None = Field(default=None, description="disk of the zone that holds the weights")
    bucket: str | None = Field(
        default=None, pattern="^[a-z0-9][a-z0-9._-]{1,220}$", description="bucket that holds the weights"
    )
    queue: str | None = Field(
        default=None, pattern="^[1-9][0-9]*[smhd]$", description="how long to wait in the queue for free chips"
    )


class Slice(BaseModel):
    """A TPU slice that was created here."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern="^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")
    owner: str = Field(description="label that shows that the slice was created here")
    generation: str
    accelerator_type: str
    chips: int
    hosts: int
    zone: str
    spot: bool
    runtime: str
    provider: Provider = "tpu_api"
    topology: str = Field(default="", description="arrangement of its chips, such as 2x2x1")
    machine_type: str | None = Field(default=None, description="of a group of instances")
    devices_per_chip: int = 1
    instances: list[str] = Field(default=[], description="of a group: names of its virtual machines, in their order")
    place: Place = Field(default_factory=Place)
    status: Literal["creating", "ready"] = "creating"
    is_set_up: bool = Field(default=False, description="whether the collector is installed on its virtual machines")
    round: Round | None = Field(default=None, description="the round that its hosts record, as far as is known here")

    @property
    def devices(self) -> int:
        """Devices that JAX sees on all hosts."""
        return self.chips * self.devices_per_chip


class _Slices(BaseModel):
    model_config = ConfigDict(extra="forbid")

    slices: dict[str, Slice] = Field(default_factory=dict)


class State:
    """The file of slices; every change is on disk before the next command runs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def slices(self) -> dict[str, Slice]:
        """Return the slices by name."""
        if not self.path.exists():
            return {}
        try:
            return _Slices.model_validate_json(self.path.read_text(encoding="utf-8")).slices
        except (OSError, ValidationError, UnicodeDecodeError) as error:
            raise TpuError(
                f"{self.path}: cannot be read as a record of slices: {' '.join(str(error).split())}"
            ) from None

    def get(self, name: str) -> Slice:
        """Return a slice by its name."""
        slices = self.slices()
        if name not in slices:
            have = ", ".join(slices) or "none"
            raise TpuError(f"no slice {name!r} was created here according to {self.path}; there is {have}")
        return slices[name]

    def put(self, entry: Slice) -> None:
        """Replace the record of a slice."""
        with self._changing() as slices:
            self._require(entry, slices)
            slices[entry.name] = entry

    def require(self, entry: Slice) -> None:
        """Make sure that no other call deleted a slice meanwhile; a deleted one must not be created again."""
        self._require(entry, self.slices())

    def _require(self, entry: Slice, slices: dict[str, Slice]) -> None:
        if entry.name not in slices or slices[entry.name].owner != entry.owner:
            raise TpuError(f"{entry.name} was deleted by another call of tw tpu")

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Hold a slice for this process: two processes that both record on its hosts would wait for each other."""
        with self._opened(f".{name}.lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TpuError(f"another tw tpu run is at work on {name}; wait for its end, or end it") from None
            yield

    def reserve(self, name: str, choose: Callable[[list[Slice]], Slice]) -> tuple[Slice, bool]:
        """Return the slice of this name, or choose a new one, given all others; one call chooses at a time.

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
        with self._opened(".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            slices = self.slices()
            yield slices
            aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
            try:
                with aside.open("w", encoding="utf-8") as file:
                    file.write(_Slices(slices=slices).model_dump_json(indent=1) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                aside.rename(self.path)
            except OSError as error:
                aside.unlink(missing_ok=True)
                raise self._write_error(error) from None

    def _opened(self, suffix: str) -> IO[str]:
        """Open a file beside the record, for a lock."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self.path.with_name(self.path.name + suffix).open("w")
        except OSError as error:
            raise self._write_error(error) from None

    def _write_error(self, error: OSError) -> TpuError:
        return TpuError(f"{self.path}: slices cannot be recorded there: {error.strerror}; name another --state")
