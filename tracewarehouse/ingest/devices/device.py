"""Describes the devices of a run, numbered over all hosts, with their peak rates."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from tracewarehouse.ingest.columns.records import Plane, StatKind
from tracewarehouse.ingest.readers.xplane import wire


@dataclass
class Device:
    """One row of main.devices."""

    device_id: int
    host: str
    plane: str
    local_ordinal: int
    backend: str
    global_id: int | None = None
    kind: str | None = None
    chip_id: int | None = None
    core_id: int | None = None
    pp_index: int | None = None
    dp_index: int | None = None
    ep_index: int | None = None
    tp_index: int | None = None
    sp_index: int | None = None
    first_layer: int | None = None
    last_layer: int | None = None
    first_slot: int | None = None
    peak_flops_per_s: float | None = None
    peak_int8_flops_per_s: float | None = None
    peak_fp8_flops_per_s: float | None = None
    peak_hbm_gbps: float | None = None
    peak_ici_gbps: float | None = None
    peak_source: str | None = None

    def row(self) -> dict[str, Any]:
        """The row as a mapping of column to value."""
        return asdict(self)


def accelerator(device_id: int, host: str, plane: Plane, backend: str, ordinal: int) -> Device:
    """Create a TPU or GPU from its plane's stats; facts missing in the capture come from the hardware table."""
    stats = {s.name: s for s in plane.stats}
    device = Device(device_id, host, plane.name, ordinal, backend)

    def number(name: str) -> float | None:
        value = stats[name].value if name in stats else None
        return float(value) if isinstance(value, int | float) and value > 0 else None

    kind = stats.get("device_type_string") or stats.get("device_vendor")
    device.kind = str(kind.value) if kind else None
    tera, hbm, memory = (
        number(n) for n in ("peak_teraflops_per_second", "peak_hbm_bw_gigabytes_per_second", "memory_bandwidth")
    )
    device.peak_flops_per_s = tera * 1e12 if tera else None
    device.peak_hbm_gbps = hbm or (memory / 1e9 if memory else None)
    from_capture = device.peak_flops_per_s is not None or device.peak_hbm_gbps is not None
    details = stats.get("core_details")
    if details and details.kind == StatKind.BYTES and isinstance(details.value, bytes):
        core = {tag >> 3: value for tag, _, value, _ in wire.fields(details.value, 0, len(details.value))}
        # CoreDetails: 2 device_ordinal, 3 core_num, 4 local_chip_id, 5 global_chip_id, 6 global_core_id
        device.core_id, device.chip_id, device.global_id = core.get(3, 0), core.get(5, 0), core.get(6, 0)
    known = _hardware(device.kind)
    if known:
        _complete(device, known)
    if from_capture or known:
        device.peak_source = "both" if from_capture and known else "capture" if from_capture else "hardware table"
    return device


def complete_devices(devices: Iterable[Device], backend: str, model: str) -> None:
    """Set kind and peaks from the chip that a card names, for devices whose capture states no known kind.

    Args:
        devices: the devices of the run; those of another backend are not changed, those of an unknown one get this one.
        backend: the kind of chip according to the card: tpu or gpu.
        model: the chip as cards write it, such as tpu_v6e, v6e or TPU v6 Lite.
    """
    words = model.replace("_", " ").replace("-", " ").strip()
    known = _hardware(words) or _hardware(f"{backend} {words}")
    for device in devices:
        if not words or device.backend not in (backend, "unknown") or _hardware(device.kind):
            continue
        device.backend = backend
        device.kind = device.kind or (known["kind"] if known else model)
        if known:
            _complete(device, known)
            device.peak_source = "both" if device.peak_source else "card"


def _complete(device: Device, known: dict[str, Any]) -> None:
    """Fill in the peaks that the capture does not state, from an entry of the hardware table."""
    rates = known["peak_flops_per_s"]
    device.peak_flops_per_s = device.peak_flops_per_s or rates["bf16"]
    device.peak_int8_flops_per_s, device.peak_fp8_flops_per_s = rates.get("int8"), rates.get("fp8")
    device.peak_hbm_gbps = device.peak_hbm_gbps or known["hbm_gbps"]
    device.peak_ici_gbps = known["ici_gbps"]


def _hardware(kind: str | None) -> dict[str, Any] | None:
    if kind is None:
        return None
    for entry in _hardware_table():
        if any(kind.lower() == m.lower() for m in entry["match"]):
            return entry
    return None


@cache
def _hardware_table() -> list[dict[str, Any]]:
    content = json.loads((files("tracewarehouse") / "hardware.json").read_text(encoding="utf-8"))
    table: list[dict[str, Any]] = content["devices"]
    return table
