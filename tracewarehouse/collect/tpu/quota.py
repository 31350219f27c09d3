"""Tells which TPU slices may be created (types, zones, chips that the quota leaves), and which chips this host has."""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tracewarehouse.collect.errors import QuotaError, TpuError
from tracewarehouse.collect.tpu.compile_ahead import wraps
from tracewarehouse.collect.tpu.state import Provider, Slice

TABLE = Path(__file__).parent / "quota.yaml"


class Generation(BaseModel):
    """A TPU generation and the slices that it comes in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = Field(description="as in the table of hardware, such as TPU v5e")
    type_prefix: str = Field(description="prefix of its accelerator types")
    cores_per_chip: int = Field(ge=1, description="cores of a chip that the number in an accelerator type counts")
    runtime: str = Field(description="software version of the virtual machines; of instances the family of their image")
    provider: Provider = Field(default="tpu_api", description="what creates its slices")
    machine_type: str | None = Field(default=None, description="of instances: their machine type")
    devices_per_chip: int = Field(default=1, ge=1, description="devices that JAX sees of a chip")
    hosts: dict[int, int] = Field(description="chips of a slice to its virtual machines")
    topology: dict[int, str] = Field(description="chips of a slice to their arrangement, such as 2x4")
    disks: dict[Literal["read-write", "read-only"], str] = Field(description="mode of a disk to its kind")
    quota_ids: dict[Literal["on demand", "spot"], str] = Field(
        default={}, description="provisioning of a slice to the prefix of the ids of its quotas"
    )
    one_host_quota_ids: dict[Literal["on demand", "spot"], str] = Field(
        default={}, description="the same for slices of one host, if those have quotas of their own"
    )

    def quota_id(self, chips: int, spot: bool) -> str | None:
        """Return the prefix of the ids of the quotas for a slice; None if it is not known."""
        ids = self.one_host_quota_ids if self.hosts.get(chips) == 1 and self.one_host_quota_ids else self.quota_ids
        return ids.get("spot" if spot else "on demand")

    def accelerator_type(self, chips: int) -> str:
        """Return the name of the slice of this many chips, such as `v5litepod-8`."""
        if chips not in self.hosts:
            sizes = ", ".join(map(str, self.hosts))
            raise TpuError(f"{self.kind} has no slice of {chips} chips; it has slices of {sizes}")
        return f"{self.type_prefix}-{chips * self.cores_per_chip}"

    def network(self, chips: int) -> str:
        """Return the network between the chips of a slice, such as `mesh-2x4`; a torus if every dimension closes."""
        arrangement = self.topology[chips]
        closes = all(wraps([int(side) for side in arrangement.split("x")]))
        return f"{'torus' if closes else 'mesh'}-{arrangement}"

    def chips(self, devices: int) -> int:
        """Return the chips that have this many devices."""
        chips, rest = divmod(devices, self.devices_per_chip)
        if rest:
            raise TpuError(f"a chip of {self.kind} has {self.devices_per_chip} devices, so no slice has {devices}")
        return chips

    @model_validator(mode="after")
    def _check(self) -> Generation:
        if (self.provider == "instance_group") != (self.machine_type is not None):
            raise ValueError("machine_type: instances have one, and slices of the Cloud TPU API have none")
        if missing := set(self.hosts) - set(self.topology):
            raise ValueError(f"topology: no arrangement of {sorted(missing)} chips")
        return self


class Pool(BaseModel):
    """Chips that may be used at the same time in one zone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    generation: str
    zone: str
    spot: bool
    chips: int = Field(ge=0)

    @property
    def price_class(self) -> str:
        """Name of these chips in Google's price list; prices change, so none is kept here."""
        return f"{self.generation} {provisioning(self.spot)}"

    def __str__(self) -> str:
        return f"{self.generation} {self.zone} {provisioning(self.spot)}: {self.chips} chips"


class Quota(BaseModel):
    """The table of generations and pools."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    generations: dict[str, Generation]
    quota: list[Pool]

    @model_validator(mode="after")
    def _check(self) -> Quota:
        for pool in self.quota:
            if pool.generation not in self.generations:
                raise ValueError(f"quota: {pool.generation!r} is none of the generations")
        return self

    def generation(self, name: str) -> Generation:
        """Return a generation by its name."""
        if name not in self.generations:
            raise TpuError(f"TPU generation {name!r} is not known; known are {', '.join(self.generations)}")
        return self.generations[name]

    def network(self, kind: str, chips: int) -> str | None:
        """Return the name of the network of a slice; None if the table does not have the chips or the size."""
        generation = next((g for g in self.generations.values() if g.kind == kind), None)
        return generation.network(chips) if generation and chips in generation.topology else None

    def kind(self, accelerator_type: str) -> str | None:
        """Return the kind, as in the table of hardware, of an accelerator type of any size; None if unknown."""
        prefix = accelerator_type.rpartition("-")[0]
        return next((g.kind for g in self.generations.values() if g.type_prefix == prefix), None)

    def generation_and_chips(self, accelerator_type: str) -> tuple[str, int]:
        """Return the generation and the chips of an accelerator type."""
        known = {
            generation.accelerator_type(chips): (name, chips)
            for name, generation in self.generations.items()
            for chips in generation.hosts
        }
        if accelerator_type not in known:
            raise TpuError(f"accelerator type {accelerator_type!r} is not known; known are {', '.join(known)}")
        return known[accelerator_type]

    def pool(
        self,
        generation: str,
        chips: int,
        *,
        zone: str | None = None,
        spot: bool | None = None,
        used: Iterable[Slice] = (),
    ) -> Pool:
        """Return the first pool of a generation, zone and provisioning that has this many chips left.

        The chips of `used` slices, which exist, are taken from their pools.
        """
        self.generation(generation)
        fitting = [p for p in self.quota if p.generation == generation]
        fitting = [p for p in fitting if zone in (None, p.zone) and spot in (None, p.spot)]
        slices = list(used)
        left = []
        for pool in fitting:
            taken = sum(s.chips for s in slices if (s.generation, s.zone, s.spot) == (generation, pool.zone, pool.spot))
            if chips <= pool.chips - taken:
                return pool
            left.append(f"{pool}, {taken} of them in use")
        asked = " ".join(filter(None, [generation, zone, None if spot is None else provisioning(spot)]))
        numbers = "; ".join(left) if fitting else "nothing there; it has " + "; ".join(map(str, self.quota))
        raise QuotaError(f"{chips} chips of {asked} are outside of the quota: {numbers}")


def provisioning(spot: bool) -> str:
    """Return the provisioning of a slice in words."""
    return "spot" if spot else "on demand"


def load_quota(table: Path = TABLE) -> Quota:
    """Read the table."""
    try:
        return Quota.model_validate(yaml.safe_load(table.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, ValidationError, UnicodeDecodeError) as error:
        raise TpuError(f"{table}: cannot be read as a quota table: {' '.join(str(error).split())}") from None


METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/attributes"
"""Address at which Google Cloud tells a virtual machine of itself."""
_STATED = re.compile(r"ACCELERATOR_TYPE: '([^']+)'")


def host_chip() -> str | None:
    """Return the kind of this host's TPU chips as in the table; None without TPU or if the kind is unknown."""
    return load_quota().kind(accelerator_type())


def accelerator_type() -> str:
    """Return the type of the TPU slice that this host is in, such as `v6e-8`; empty if it is in none."""
    if told := os.environ.get("TPU_ACCELERATOR_TYPE"):
        return told
    if told := _metadata("accelerator-type"):
        return told
    stated = _STATED.search(_metadata("tpu-env"))  # of an instance of Compute Engine
    return stated[1] if stated else ""


def _metadata(attribute: str) -> str:
    """Return an attribute of this virtual machine; empty outside of Google Cloud, and if it has none."""
    request = urllib.request.Request(f"{METADATA}/{attribute}", headers={"Metadata-Flavor": "Google"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:  # noqa: S310
            return str(answer.read().decode().strip())
    except OSError:
        return ""
