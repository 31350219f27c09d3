"""Reads what a predicted capture says of itself: what was compiled, for which slice, and timed by which rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tracewarehouse.ingest.capture.manifest import Int32, Int64
from tracewarehouse.ingest.columns.profiler_names import PREDICTION, PREDICTION_PLANE
from tracewarehouse.ingest.columns.records import Trace
from tracewarehouse.ingest.errors import MalformedError, shown

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Bytes = Annotated[int, Field(ge=0, lt=1 << 63)]


class PredictedPhase(BaseModel):
    """A step of a predicted run: the program that was compiled for it, and the memory that it takes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    phase: str = Field(description="prefill or decode")
    program_digest: str = Field(description="SHA-256 of the compiled program")
    layers: Int32 | None = Field(default=None, description="of the whole model")
    compiled_layers: Int32 | None = Field(default=None, description="a steady one is repeated for the others")
    steady_spread: float | None = Field(default=None, description="longest over shortest steady layer, less 1")
    context_tokens: Int32 | None = Field(default=None, description="tokens that each sequence attends to")
    argument_bytes: _Bytes | None = Field(default=None, description="of a device, for the whole model, as all others")
    output_bytes: _Bytes | None = None
    temporary_bytes: _Bytes | None = None
    program_bytes: _Bytes | None = None


class MeasuredKernel(BaseModel):
    """What executions of a kernel took in a recorded run on the same kind of chip."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kernel: str = Field(description="its name, without numbers")
    signature: str = Field(description="what it does, as main.instructions says")
    us: _Positive = Field(description="median of all executions on all devices, in microseconds")
    low_us: _Positive = Field(description="10th percentile")
    high_us: _Positive = Field(description="90th percentile")
    n: Int64 = Field(description="executions")
    run_id: str
    run: str = Field(description="the recorded run's name")

    @property
    def sentence(self) -> str:
        """What it says, for people."""
        return f"{self.kernel} takes {self.us:.4g} us, the median of {self.n:,} in {self.run} ({self.run_id})"


class Prediction(BaseModel):
    """A predicted run: its slice, its rules, and what was changed about the real chip."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topology: str = Field(description="the slice as libtpu names it, such as v6e:2x4")
    chip: str = Field(description="kind of its chips, as the hardware table names it")
    rules_version: Int32
    compiler: str | None = Field(default=None, description="version of libtpu")
    clock_hz: _Positive | None = None
    hbm_gbps: _Positive | None = Field(default=None, description="as the rules count, what-if included")
    product_factor: _Positive | None = None
    link_gbps: _Positive | None = Field(default=None, description="one link in one direction, what-if included")
    hbm_factor: _Positive = 1.0
    ici_factor: _Positive = 1.0
    kernels: dict[str, _Positive] | None = Field(default=None, description="microseconds that replace the rules' times")
    measured_kernels: list[MeasuredKernel] | None = Field(
        default=None, description="kernels that take the median of a recorded run"
    )
    host_ms: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    calibration: str | None = Field(default=None, description="the calibrations used; null for those shipped")
    chip_price_usd_per_h: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None, description="null for the hardware table's"
    )
    capacity_bytes: Int64 | None = Field(default=None, description="memory of a device")
    phases: list[PredictedPhase] = Field(min_length=1, max_length=16)

    @property
    def sentence(self) -> str:
        """What was predicted, for people."""
        changes = [
            f"{what} x {factor:g}"
            for what, factor in (("ICI", self.ici_factor), ("HBM", self.hbm_factor))
            if factor != 1
        ]
        changes += [f"kernel {name} {us:g} us" for name, us in sorted((self.kernels or {}).items())]
        changes += [f"{self.host_ms:g} ms of the host a step"] if self.host_ms else []
        what_if = f"; with {', '.join(changes)}" if changes else ""
        own = f" and the rates of {self.calibration}" if self.calibration else ""
        known = "".join(f"; {kernel.sentence}" for kernel in self.measured_kernels or ())
        return f"for {self.topology}, by version {self.rules_version} of the rules{own}{what_if}{known}"

    @property
    def text(self) -> str:
        """What a capture holds of it; the same predictions have the same text."""
        return self.model_dump_json(exclude=None if self.measured_kernels else {"measured_kernels"})

    @property
    def host_ps(self) -> int:
        """Time that the host adds to each step, in picoseconds."""
        return round(self.host_ms * 1e9)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of main.predictions."""
        shared = self.model_dump(exclude={"phases", "chip", "host_ms"})
        shared["host_ps"] = self.host_ps
        for name in ("kernels", "measured_kernels"):
            shared[name] = json.dumps(shared[name], sort_keys=True) if shared[name] else None
        for phase in self.phases:
            yield shared | phase.model_dump()


def prediction_of(trace: Trace, file_name: str) -> Prediction | None:
    """Return the prediction that a capture holds; None if a profiler recorded it."""
    for plane in trace.planes:
        if plane.name == PREDICTION_PLANE and not plane.lines:
            text = next((s.value for s in plane.stats if s.name == PREDICTION), None)
            try:
                return Prediction.model_validate_json(text if isinstance(text, str | bytes) else "")
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"])) or PREDICTION
                raise MalformedError(
                    f"{file_name}: plane {PREDICTION_PLANE!r} says no valid prediction: {shown(where)}: {first['msg']}"
                ) from None
    return None
