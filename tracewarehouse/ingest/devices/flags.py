"""Defines the quality flags: the closed list of defects of a capture that a reader of its numbers must know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FLAGS = {
    "predicted": "Nothing ran: all times are computed from compiled programs, and each has a range (main.ops.basis).",
    "events_dropped": "The profiler says that it dropped events: counts and sums are lower bounds.",
    "event_cap": "A line or an exported file has exactly as many events as a profiler's limit: later events are lost.",
    "no_trace": "Nothing was recorded: only the card and the published values of a row are known.",
    "no_device_events": "No device has events: only the host was profiled, or what the devices recorded is lost.",
    "batches_unmatched": "The server's batches and the steps differ in number, or ids repeat: they are not joined.",
    "empty_file": "A host's .xplane.pb is empty: its export was read instead, which lacks asynchronous ops and costs.",
    "unlinked_ops": "Ops of a GPU were launched before the capture began: they belong to no step and no operator.",
    "unnamed_kernels": "The capture lacks names of kernels: what these do, and whether they communicate, is unknown.",
    "opaque_graphs": "CUDA graphs were recorded as a whole: what their kernels compute and send is unknown.",
    "silent_device": "A device has a plane but no event, while other devices have events.",
    "missing_hosts": "Hosts that the manifest names are not in the capture.",
    "missing_devices": "Devices that the mesh, replica groups or device numbers name are not in the capture.",
    "partial_collectives": "Some ranks of some collectives are not in the capture, though their devices are.",
    "uneven_launches": "Devices ran a program different numbers of times: they are matched by time, else by counting.",
    "uneven_steps": "Devices differ in their steps or in how many they have: numbers per step compare different steps.",
    "unrecorded_executions": "Ops run in no recorded execution: they belong to the step before them, or to none.",
    "missing_ops": "Devices ran programs of which the capture has no op.",
    "clock_jump": "Some times are impossible: a negative duration, or events far outside the profile's window.",
    "clock_unaligned": "Nothing aligns the hosts' clocks: do not compare times of different hosts.",
    "clock_uncertain": "Shared collectives contradict hosts' clocks unevenly, or ranks were recorded minutes apart.",
    "clock_unchecked": "Devices ran shared programs different numbers of times: the hosts' clocks were not checked.",
    "compiled_in_capture": "Programs were compiled while the profiler ran: steps may include that time.",
    "mesh_mismatch": "The mesh and the capture differ in their number of devices: axes are unknown.",
    "inferred_axes": "No mesh was given: axes are inferred from the groups of collectives, see main.mesh_axes.",
    "inferred_order": "No device assignment says which devices groups name: ranks that overlap in time tell the order.",
    "unverified_groups": "Nothing tells which devices the groups of collectives name: ranks and traffic may be wrong.",
    "inferred_layers": "Names do not tell most layers: they are inferred from what repeats, see main.instructions.",
    "partial_layers": "Much of the op time may be in layers that are not known: numbers by layer lack it.",
    "inferred_executions": "A device lacks the line of its executions: they are inferred from its ops.",
    "inferred_steps": "No mark tells steps or their phases: they are inferred from programs, shapes or other devices.",
    "unsized_time": "Much of the compute time is in ops of unknown cost: metrics of bytes and operations lack it.",
    "given_costs": "Costs of kernels were given at ingest (main.runs.costs): metrics of bytes and operations use them.",
    "kernel_communication": "Kernels send data to other devices themselves: what, and for how long, is not known.",
    "promise_broken": "Collectives that the manifest promises for its parallelism are missing.",
    "unattributed_ops": "Some op events could not be assigned to a virtual device.",
    "hlo_unreadable": "An HLO module or text in the capture is damaged: its instructions lack their facts.",
    "missing_hlo": "The capture lacks the HLO of programs of several devices: which ops are collectives is unknown.",
    "unknown_repeats": "The compiler does not say how often a loop runs, or which branch is taken: a loop counts once, "
    "and of branches the one with most collectives.",
    "absurd_sizes": "Instructions name values larger than any memory: their sizes are NULL.",
    "groups_left_out": "Replica groups have more members than a capture of this size may: later groups are unknown.",
    "duplicate_file": "A file was left out because another one of the capture has the same bytes.",
    "profiler_error": "The profiler recorded an error.",
    "profiler_warning": "The profiler, or the reader of its export, recorded a warning.",
}
"""The meaning of every flag, by name."""


@dataclass(frozen=True)
class Flag:
    """One row of main.quality_flags.

    Attributes:
        name: one of FLAGS.
        detail: a sentence with the names and numbers.
        host: the host that the flag is about; None for the whole run.
    """

    name: str
    detail: str
    host: str | None = None

    def __post_init__(self) -> None:
        if self.name not in FLAGS:
            raise ValueError(f"{self.name} is not a quality flag; known are {', '.join(FLAGS)}")

    def row(self) -> dict[str, Any]:
        """Return the row as a mapping of column to value, without its number."""
        return {"flag": self.name, "host": self.host, "detail": self.detail}


def summarised(flags: Sequence[Flag], most: int = 5) -> list[Flag]:
    """Return the flags without repeats: per kind and host at most `most`, and one that counts the others."""
    groups: dict[tuple[str, str | None], list[Flag]] = {}
    for flag in dict.fromkeys(flags):
        groups.setdefault((flag.name, flag.host), []).append(flag)
    kept = []
    for (name, host), same in groups.items():
        kept += same[:most]
        if len(same) > most:
            kept.append(Flag(name, f"and {len(same) - most} more like these", host))
    return kept
