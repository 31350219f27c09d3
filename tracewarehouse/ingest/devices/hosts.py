"""Describes the hosts of a run, with distinct names and on a common clock, and their devices, with peak rates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeGuard

from tracewarehouse.ingest.capture.batches import server_rank
from tracewarehouse.ingest.capture.hardware import chip_named, chip_stated, vendors
from tracewarehouse.ingest.capture.sources import stem
from tracewarehouse.ingest.columns.profiler_names import PROFILE_START, PROFILE_STOP, RANK, TASK_PLANE
from tracewarehouse.ingest.columns.records import Plane, StatKind, Trace
from tracewarehouse.ingest.readers.xplane import wire


@dataclass
class Host:
    """One file of a capture, opened; one row of main.hosts. `rank` is its rank in a server, 0 if there is none."""

    index: int
    name: str
    trace: Trace
    file_name: str
    rank: int
    start_ns: int | None
    stop_ns: int | None
    clock_offset_ps: int
    clock_source: str
    clock_correction_ps: int | None = None
    clock_residual_ps: int | None = None
    clock_instances: int | None = None
    clock_reference: int | None = None
    """Index of the host with whose clock collectives tell its own; None if none do."""

    @property
    def window_ps(self) -> tuple[int, int] | None:
        """Start and end of its profile on the run's clock; None if the capture does not state them."""
        if self.start_ns is None or self.stop_ns is None or not 0 <= self.stop_ns - self.start_ns <= DAY_NS:
            return None
        return self.clock_offset_ps, self.clock_offset_ps + (self.stop_ns - self.start_ns) * 1000

    @property
    def is_aligned(self) -> bool:
        """Whether collectives that it shares with other hosts, or being the first, tell that its clock is the run's."""
        is_compared = self.clock_instances is not None or self.clock_reference is not None
        return self.clock_source in ("first_host", "collective_ends") or is_compared

    def row(self, event_count: int) -> dict[str, Any]:
        """The row as a mapping of column to value, given the events on all its lines."""
        return {
            "host": self.name,
            "host_index": self.index,
            "hostname": self.trace.hostnames[0] if self.trace.hostnames else None,
            "file_name": self.file_name,
            "digest": self.trace.digest,
            "bytes": self.trace.size,
            "profile_start_ns": self.start_ns,
            "profile_stop_ns": self.stop_ns,
            "clock_offset_ps": self.clock_offset_ps,
            "clock_source": self.clock_source,
            "clock_correction_ps": self.clock_correction_ps,
            "clock_residual_ps": self.clock_residual_ps,
            "clock_instances": self.clock_instances,
            "event_count": event_count,
        }


def clock_notes(hosts: Sequence[Host]) -> list[str]:
    """One sentence for each host whose clock was corrected."""
    return [
        f"the clock of {h.name} was moved by {h.clock_correction_ps / 1e6:+.3f} us: {h.clock_instances} shared "
        f"collectives now end within {(h.clock_residual_ps or 0) / 1e6:.3f} us (median)"
        for h in hosts
        if h.clock_correction_ps is not None
    ]


DAY_NS = 86_400 * 10**9
"""Profiles of one run, and the marks of its steps, lie closer together than this."""


def open_hosts(traces: Sequence[Trace], paths: Sequence[PurePath]) -> list[Host]:
    """Name the hosts and align their clocks by the start of their profiles.

    A host gets its recorded name if no other host of the run has it, else the name of its file, else its number. Of a
    host whose profile begins more than a day from those of most hosts, as if its clock were never set, the offset is
    unknown.
    """
    names = _names(traces, paths)
    windows = [_window(t) for t in traces]
    first = min(near_each_other(w[0] for w in windows), default=None)
    hosts = []
    for i, (trace, (start, stop)) in enumerate(zip(traces, windows, strict=True)):
        if start is None or first is None or abs(start - first) > DAY_NS:
            offset, source = 0, "none"
        else:
            offset = (start - first) * 1000
            source = "first_host" if start == first else "profile_start"
        hosts.append(Host(i, names[i], trace, paths[i].name, server_rank(paths[i]), start, stop, offset, source))
    return hosts


def near_each_other(times_ns: Iterable[int | None]) -> list[int]:
    """Those of some times that are known and lie within a day of their median, sorted."""
    known = sorted(t for t in times_ns if t is not None)
    return [t for t in known if abs(t - known[len(known) // 2]) <= DAY_NS]


def _names(traces: Sequence[Trace], paths: Sequence[PurePath]) -> list[str]:
    recorded = [t.hostnames[0] if t.hostnames else "" for t in traces]
    if all(recorded) and len(set(recorded)) == len(recorded):
        return recorded
    stems = [stem(p) for p in paths]
    if len(traces) > 1 and len(set(stems)) == len(stems):
        return stems
    return [f"host{i}" for i in range(len(traces))]


def _window(trace: Trace) -> tuple[int | None, int | None]:
    for plane in trace.planes:
        if plane.name == TASK_PLANE:
            values = {s.name: s.value for s in plane.stats}
            start, stop = values.get(PROFILE_START), values.get(PROFILE_STOP)
            start = start if _is_time(start) else trace.origin_ns
            return start, stop if _is_time(stop) else None
    return trace.origin_ns, None


def _is_time(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and abs(value) < 1 << 63


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
    peak_tf32_flops_per_s: float | None = None
    peak_f32_flops_per_s: float | None = None
    peak_hbm_gbps: float | None = None
    peak_ici_gbps: float | None = None
    link: str | None = None
    peak_link_gbps: float | None = None
    peak_die_gbps: float | None = None
    peak_source: str | None = None
    chip_price_usd_per_h: float | None = None
    chip_price_source: str | None = None


def accelerator(device_id: int, host: str, plane: Plane, backend: str, ordinal: int) -> Device:
    """Create a TPU or GPU from its plane's stats; facts missing in the capture come from the hardware table."""
    stats = {s.name: s for s in plane.stats}
    device = Device(device_id, host, plane.name, ordinal, backend)

    def number(name: str) -> float | None:
        value = stats[name].value if name in stats else None
        return float(value) if isinstance(value, int | float) and value > 0 else None

    kind = stats.get("device_type_string") or stats.get("gpu_device_name")
    vendor = str(stats["device_vendor"].value) if "device_vendor" in stats else None
    known = chip_named(str(kind.value)) if kind else chip_stated(vendor, {name: number(name) for name in stats})
    device.kind = str(kind.value) if kind else known["kind"] if known else vendor
    device.link = "ici" if backend == "tpu" else None
    tera, memory = number("peak_teraflops_per_second"), number("memory_bandwidth")
    device.peak_flops_per_s = tera * 1e12 if tera else None
    device.peak_hbm_gbps = number("peak_hbm_bw_gigabytes_per_second") or (memory / 1e9 if memory else None)
    if vendor == "AMD" and known and known["hbm_gbps"]:
        device.peak_hbm_gbps = None  # computed from the memory clock, which HBM3 multiplies by four and not by two
    from_capture = device.peak_flops_per_s is not None or device.peak_hbm_gbps is not None
    details = stats.get("core_details")
    if details and details.kind == StatKind.BYTES and isinstance(details.value, bytes):
        core = {tag >> 3: value for tag, _, value, _ in wire.fields(details.value, 0, len(details.value))}
        # CoreDetails: 2 device_ordinal, 3 core_num, 4 local_chip_id, 5 global_chip_id, 6 global_core_id
        device.core_id, device.chip_id, device.global_id = core.get(3, 0), core.get(5, 0), core.get(6, 0)
    if (rank := stats.get(RANK)) and isinstance(rank.value, int):
        device.global_id = rank.value
    if known:
        _complete(device, known)
    if from_capture or known:
        device.peak_source = "both" if from_capture and known else "capture" if from_capture else "hardware table"
    return device


def complete_devices(devices: Sequence[Device], backend: str, model: str, source: str = "card") -> None:
    """Set kind and peaks from the chip that a card or the user names, for devices whose capture states no known kind.

    Args:
        devices: the devices of the run; those of another backend are not changed, those of an unknown one get this one.
        backend: the kind of chip: tpu or gpu.
        model: the chip as cards write it, such as tpu_v6e, v6e or TPU v6 Lite.
        source: who names it, for main.devices.peak_source.
    """
    words = model.replace("_", " ").strip()
    known = next((k for w in (words, words.replace("-", " "), f"{backend} {words}") if (k := chip_named(w))), None)
    for device in devices:
        if not words or device.backend not in (backend, "unknown") or chip_named(device.kind):
            continue
        device.backend, device.link = backend, "ici" if backend == "tpu" else device.link
        if device.kind is None or device.kind.lower() in vendors():
            device.kind = known["kind"] if known else device.kind or model
        if known:
            _complete(device, known)
            device.peak_source = "both" if device.peak_source else source


def link_between(devices: Sequence[Device | None], hosts: Mapping[str, Host]) -> str | None:
    """Return the class of the slowest links between devices; None if it is not known, or for less than two devices.

    TPUs of one slice reach each other by ICI whatever their hosts, also those outside the capture, which are None.

    Args:
        hosts: the hosts of the run by name.
    """
    here = [d for d in devices if d is not None]
    if len(devices) < 2 or not here or len({id(d) for d in devices}) == 1:
        return None
    is_whole = len(here) == len(devices)
    if is_whole and here[0].chip_id is not None and len({d.chip_id for d in here}) == 1:
        return "die"
    is_one_machine = is_whole and len({_machine(d, hosts[d.host]) for d in here}) == 1
    return here[0].link if is_one_machine or here[0].link == "ici" else None


def _machine(device: Device, host: Host) -> str | int:
    """Return what the devices of one machine have in common, and those of two do not.

    The ranks of a job on GPUs write a file each, which names no machine. Launchers number ranks machine by machine, in
    the order of the GPUs of each; so ranks are of one machine if they are as far from their GPUs' ordinals, and have
    its clock.
    """
    if host.trace.hostnames:
        return host.trace.hostnames[0]
    if device.backend == "gpu" and device.global_id is not None and host.clock_correction_ps is None:
        return device.global_id - device.local_ordinal
    return device.host


def share_chips(devices: Sequence[Device]) -> None:
    """Let two neighbours share a chip where their kind has two devices a chip and the capture does not say which do.

    A host whose number of devices is odd has chips of which the capture lacks a device, so its chips stay unknown.
    """
    per_host: dict[str, list[Device]] = {}
    for device in devices:
        per_host.setdefault(device.host, []).append(device)
    for of_host in per_host.values():
        known = [chip_named(d.kind) for d in of_host]
        is_paired = all(k and k.get("devices_per_chip") == 2 for k in known) and len(of_host) % 2 == 0
        if is_paired and all(d.chip_id is None for d in of_host):
            for place, device in enumerate(of_host):
                device.chip_id, device.core_id = (of_host[0].device_id + place) // 2, place % 2


def _complete(device: Device, known: dict[str, Any]) -> None:
    rates, is_ici = known["peak_flops_per_s"], known["link"] == "ici"
    device.peak_flops_per_s = device.peak_flops_per_s or rates["bf16"]
    device.peak_int8_flops_per_s, device.peak_fp8_flops_per_s = rates.get("int8"), rates.get("fp8")
    device.peak_tf32_flops_per_s, device.peak_f32_flops_per_s = rates.get("tf32"), rates.get("f32")
    device.peak_hbm_gbps = device.peak_hbm_gbps or known["hbm_gbps"]
    device.link, device.peak_link_gbps, device.peak_die_gbps = known["link"], known["link_gbps"], known.get("die_gbps")
    device.peak_ici_gbps = known["link_gbps"] if is_ici else None
    if price := known.get("list_price"):
        device.chip_price_usd_per_h, device.chip_price_source = (
            price["usd_per_chip_h"],
            f"{price['source']}, {price['date']}",
        )
