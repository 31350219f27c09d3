"""Says what a predicted program runs on: one chip's rates, the slice, and the factors of a what-if."""

from __future__ import annotations

from dataclasses import dataclass

from tracewarehouse.collect.tpu.compile_ahead import Topology
from tracewarehouse.ingest.capture.hardware import chip_named
from tracewarehouse.ingest.errors import CaptureError


@dataclass(frozen=True)
class Chip:
    """Rates of one device of a generation.

    Attributes:
        generation: its name in topologies, such as 'v6e'.
        clock_hz: clock of the core, to which the compiler's cycles count.
        hbm_bytes_per_s: peak of the HBM.
        stream_share: the share of that peak that large transfers reach.
        flops_per_s: peak of products of bf16.
        product_factor: measured time of a product that computing bounds, over the compiler's estimate.
        has_product_factor: whether that factor was measured on this generation.
        floor_cycles: what the estimate of a loop fusion holds beside its work.
        flash_share: the share of the peak that a causal flash attention kernel reaches.
    """

    generation: str
    clock_hz: float
    hbm_bytes_per_s: float
    stream_share: float
    flops_per_s: float
    product_factor: float
    has_product_factor: bool
    floor_cycles: int
    flash_share: float


# clock, share of HBM peak, product factor, floor of the estimates, share of peak of a flash attention kernel
_RATES: dict[str, tuple[float, float, float | None, int, float]] = {
    "v4": (1.05e9, 0.80, None, 609, 0.45),
    "v5e": (1.5e9, 0.80, None, 1817, 0.45),
    "v5p": (1.75e9, 0.80, None, 2116, 0.40),
    "v6e": (1.75e9, 0.85, 0.78, 2116, 0.25),
    "tpu7x": (2.2e9, 0.80, 1.0, 2298, 0.25),
}


@dataclass(frozen=True)
class Machine:
    """A slice of TPUs, as a prediction sees it.

    Attributes:
        chip: the rates of a device.
        topology: the slice.
        ici_factor: how much faster than real its links are.
        hbm_factor: how much faster than real its HBM is.
        host_ms: time of the host between two executions of a program, in which the device waits.
    """

    chip: Chip
    topology: Topology
    ici_factor: float = 1.0
    hbm_factor: float = 1.0
    host_ms: float = 0.0

    @classmethod
    def named(
        cls, topology: str | Topology, *, ici_factor: float = 1.0, hbm_factor: float = 1.0, host_ms: float = 0.0
    ) -> Machine:
        """Return the machine with this topology, such as 'v6e:2x4'.

        Raises:
            ValueError: it is no name of a topology.
            CaptureError: the rates of the generation are not known.
        """
        slice_ = Topology.parse(topology) if isinstance(topology, str) else topology
        if slice_.generation not in _RATES:
            raise CaptureError(
                f"the rates of {slice_.generation} for predictions are not known; known are {', '.join(_RATES)}"
            )
        clock, share, factor, floor, flash = _RATES[slice_.generation]
        kind = chip_named(f"TPU {slice_.generation}") or chip_named(slice_.generation)
        assert kind is not None
        chip = Chip(
            slice_.generation,
            clock,
            kind["hbm_gbps"] * 1e9,
            share,
            kind["peak_flops_per_s"]["bf16"],
            factor or 1.0,
            factor is not None,
            floor,
            flash,
        )
        return cls(chip, slice_, ici_factor, hbm_factor, host_ms)

    @property
    def hbm_bytes_per_ps(self) -> float:
        """What large transfers reach between HBM and the core's memory."""
        return self.chip.hbm_bytes_per_s * self.chip.stream_share * self.hbm_factor * 1e-12
