"""Says what a predicted program runs on: a chip's rates, the slice, and the factors of a what-if."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tracewarehouse.collect.tpu.compile_ahead import Topology
from tracewarehouse.ingest.capture.hardware import chip_named, known_kind
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.predict.calibrations import Calibration, rates


@dataclass(frozen=True)
class Machine:
    """A slice of TPUs, as a prediction sees it.

    Attributes:
        rates: what its chips and links reach, by class and name, such as ('clock', 'hz').
        hbm_bytes_per_s: peak of the HBM of a device.
        flops_per_s: peak of a device for products of bf16.
        ici_factor: how much faster than real its links are.
        hbm_factor: how much faster than real its HBM is.
    """

    topology: Topology
    rates: Mapping[tuple[str, str], Calibration]
    hbm_bytes_per_s: float
    flops_per_s: float
    ici_factor: float = 1.0
    hbm_factor: float = 1.0

    @classmethod
    def named(
        cls,
        topology: str,
        own: Iterable[Calibration] = (),
        *,
        ici_factor: float = 1.0,
        hbm_factor: float = 1.0,
    ) -> Machine:
        """Return the machine with a topology, such as 'v6e:2x4'; rows of `own` win over the rates that ship."""
        place = Topology.parse(topology)
        found = rates(place.generation, own)
        if ("clock", "hz") not in found:
            raise CaptureError(
                f"the rates of {place.generation} are not known, so its programs cannot be predicted; "
                "calibrations.csv has the generations that can"
            )
        chip = chip_named(known_kind(place.generation)[1]) or {}
        hbm, peak = chip["hbm_gbps"] * 1e9, chip["peak_flops_per_s"]["bf16"]
        return cls(place, found, hbm, peak, ici_factor, hbm_factor)

    def rate(self, class_: str, what: str) -> float:
        """Return one of the rates."""
        return self.rates[class_, what].value

    @property
    def hbm_bytes_per_ps(self) -> float:
        """What large transfers reach between HBM and the core's memory."""
        return self.hbm_bytes_per_s * self.rate("hbm", "stream_share") * self.hbm_factor * 1e-12
