"""Tells which GPU a process means by a CUDA ordinal, what is known of that GPU, and the rank that uses it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tracewarehouse.ingest.columns.records import Stat, StatKind
from tracewarehouse.ingest.readers.nsys.database import NONE, Database
from tracewarehouse.ingest.readers.nsys.ranges import PID, Payload, Ranges, process

_GPUS, _ORDINALS = "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE"
_FACTS = {
    "memoryBandwidth": "memory_bandwidth",
    "totalMemory": "memory_size",
    "smCount": "core_count",
    "clockRate": "clock_rate",
    "computeMajor": "compute_cap_major",
    "computeMinor": "compute_cap_minor",
    "l2CacheSize": "l2_cache_size",
}
"""Columns of a GPU's row, and the stats that XLA's profiler gives the plane of a GPU for the same."""
_NAMES = {"name": "gpu_device_name", "chipName": "chip_name", "busLocation": "bus_location", "uuid": "uuid"}
_RANK = re.compile(r"MPI Rank (\d{1,6})")

_LARGEST = 9999
"""Largest number that is taken for that of a GPU."""

User = tuple[int, int]
"""A process, and the CUDA ordinal by which it knows a GPU."""


@dataclass(frozen=True)
class Gpu:
    """One GPU of an export.

    Attributes:
        ordinal: its number in the export: NVIDIA's where every process tells, else that of CUDA where no two processes
            use the same, else its place in the order of processes.
        users: the processes that used it.
        stats: what is known of it.
    """

    ordinal: int
    users: tuple[User, ...]
    stats: tuple[Stat, ...]


def find_gpus(database: Database, used: Sequence[User], ranges: Ranges) -> tuple[list[Gpu], list[str]]:
    """Return the GPUs that processes used, and sentences on what is not known of them.

    CUDA numbers GPUs for each process, as CUDA_VISIBLE_DEVICES says: two use one GPU only if the export says so.
    """
    gpu_of = _mapped(database)
    known = {user: gpu_of[key] for user in used if (key := (user[0] & PID, user[1])) in gpu_of}
    is_mapped = len(known) == len(used) and all(0 <= n <= _LARGEST for n in known.values())
    groups: dict[object, list[User]] = {}
    for user in sorted(used):
        groups.setdefault(known[user] if is_mapped else user, []).append(user)
    ordinals = {user[1] for user in used if 0 <= user[1] <= _LARGEST}
    facts = _facts(database)
    ranks = _ranks(ranges, used)
    gpus = []
    for place, users in enumerate(groups.values()):
        gpu_id = known.get(users[0])
        by_cuda = users[0][1] if len(ordinals) == len(used) else place
        ordinal = gpu_id if is_mapped and gpu_id is not None else by_cuda
        stats = [*facts.get(gpu_id, ())]
        stats += [Stat(name, StatKind.INT64, number) for name, number in ranks.get(users[0], {}).items()]
        stats += [Stat("process", StatKind.INT64, user[0] & PID) for user in users[:1]]
        stats += [Stat("cuda_ordinal", StatKind.INT64, users[0][1])]
        gpus.append(Gpu(ordinal, tuple(users), tuple(stats)))
    notes = []
    if len({user[0] for user in used}) > 1 and not all(u in ranks for u in used):
        notes.append("nothing tells the ranks of the processes: devices are numbered in the order of their GPUs")
    return sorted(gpus, key=lambda g: g.ordinal), notes


def _mapped(database: Database) -> dict[User, int]:
    """Return the GPU of each process and ordinal for which the export has one."""
    if not database.has(_ORDINALS, "gpuId", "cudaId", "pid"):
        return {}
    rows = [part.T.tolist() for part in database.columns(_ORDINALS, ("pid", "cudaId", "gpuId"))]
    return {(pid & PID, ordinal): gpu for part in rows for pid, ordinal, gpu in part if NONE not in (pid, gpu)}


def _facts(database: Database) -> dict[int | None, tuple[Stat, ...]]:
    """Return what is known of each GPU; under None what all of them have in common, but for their identity."""
    if not database.has(_GPUS, "id"):
        return {}
    numbers = [c for c in _FACTS if database.has(_GPUS, c)]
    names = [c for c in _NAMES if database.has(_GPUS, c)]
    columns = ", ".join(f'"{c}"' for c in ("id", *numbers, *names))
    found: dict[int | None, tuple[Stat, ...]] = {}
    for number, *values in database.texts(f"SELECT {columns} FROM {_GPUS}"):  # noqa: S608  names of this module
        stats = []
        for column, value in zip((*numbers, *names), values, strict=True):
            if column in _FACTS and isinstance(value, int) and value > 0:
                stats.append(Stat(_FACTS[column], StatKind.INT64, value))
            elif column in _NAMES and isinstance(value, str) and value:
                stats.append(Stat(_NAMES[column], StatKind.STRING, value))
        found[database.checked([number])[0]] = tuple(stats)
    shared = set.intersection(*(set(stats) for stats in found.values())) if found else set()
    first = next(iter(found.values()), ())
    found[None] = tuple(s for s in first if s in shared and s.name not in ("uuid", "bus_location"))
    return found


def process_groups(ranges: Ranges) -> dict[int, tuple[Stat, ...]]:
    """Return what is known of each communicator of NCCL, as stats that PyTorch's profiler gives a collective.

    A rank counts in its communicator. That in the largest one of its process is taken for its rank in the run.
    """
    world: dict[int, Payload] = {}
    members: dict[int, dict[int, int]] = {}
    sizes: dict[int, int] = {}
    for owner, said in ranges.communicators:
        if said.communicator is None or said.ranks is None or said.rank is None:
            continue
        members.setdefault(said.communicator, {})[said.rank] = owner
        sizes[said.communicator] = said.ranks
        if owner not in world or said.ranks > (world[owner].ranks or 0):
            world[owner] = said
    groups = {}
    for number, size in sizes.items():
        own = members[number]
        stats = [Stat("Process Group Name", StatKind.STRING, f"{number:#x}"), Stat("Group size", StatKind.INT64, size)]
        ranks = [world[own[i]].rank for i in range(size)] if len(own) == size else []
        if all(world[owner].communicator == number for owner in own.values()) and size <= _LARGEST:
            ranks = list(range(size))
        if ranks and len(set(ranks)) == size:
            stats.append(Stat("Process Group Ranks", StatKind.STRING, json.dumps(ranks)))
        groups[number] = tuple(stats)
    return groups


def _ranks(ranges: Ranges, used: Sequence[User]) -> dict[User, dict[str, int]]:
    """Return rank and number of ranks of each process, by its largest communicator of NCCL, or by its name in MPI."""
    found: dict[User, dict[str, int]] = {}
    largest: dict[User, Payload] = {}
    for owner, said in ranges.communicators:
        for user in used:
            if user[0] == owner and said.device in (user[1], None) and said.rank is not None:
                before = largest.get(user)
                if before is None or (said.ranks or 0) > (before.ranks or 0):
                    largest[user] = said
    for user, said in largest.items():
        if said.rank is not None and said.ranks is not None:
            found[user] = {"rank": said.rank, "world_size": said.ranks}
    for thread, name in ranges.thread_names.items():
        own = [user for user in used if user[0] == process(thread)]
        if (match := _RANK.fullmatch(name)) and len(own) == 1:
            found.setdefault(own[0], {"rank": int(match[1])})
    return found
