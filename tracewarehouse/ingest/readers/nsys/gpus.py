"""Tells which GPU a process means by a CUDA ordinal, what is known of that GPU, and the rank that uses it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tracewarehouse.ingest.columns.profiler_names import RANK, WORLD_SIZE
from tracewarehouse.ingest.columns.records import Stat, StatKind
from tracewarehouse.ingest.readers.nsys.database import NONE, Database
from tracewarehouse.ingest.readers.nsys.ranges import PID, Ranges, process

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
        is_placed: whether its number is such a place, which does not tell whose samples are its own.
    """

    ordinal: int
    users: tuple[User, ...]
    stats: tuple[Stat, ...]
    is_placed: bool


def find_gpus(
    database: Database, used: Sequence[User], ranges: Ranges, named: int | None
) -> tuple[list[Gpu], Job, list[str]]:
    """Return the GPUs that processes used, the ranks of these, and sentences on what is not known of them.

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
    is_placed = not is_mapped and len(ordinals) < len(used)
    placed = []
    for place, users in enumerate(groups.values()):
        by_cuda = place if is_placed else users[0][1]
        placed.append((known[users[0]] if is_mapped else by_cuda, users))
    placed.sort(key=lambda p: p[0])
    job = Job(ranges, [user for _, users in placed for user in users], named)
    gpus = []
    for ordinal, users in placed:
        stats = [*facts.get(known.get(users[0]), ())]
        if (rank := job.ranks.get(users[0])) is not None:
            stats.append(Stat(RANK, StatKind.INT64, rank))
            stats += [Stat(WORLD_SIZE, StatKind.INT64, n) for n in [job.world_size] if n is not None]
        stats += [Stat("process", StatKind.INT64, user[0] & PID) for user in users[:1]]
        stats += [Stat("cuda_ordinal", StatKind.INT64, users[0][1])]
        gpus.append(Gpu(ordinal, tuple(users), tuple(stats), is_placed))
    notes = []
    if job.is_numbered or (len({user[0] for user in used}) > 1 and not all(u in job.ranks for u in used)):
        notes.append("nothing tells the ranks of the processes: devices are numbered in the order of their GPUs")
    return gpus, job, notes


def _mapped(database: Database) -> dict[User, int]:
    """Return the GPU of each process and ordinal for which the export has one."""
    if not database.has(_ORDINALS, "gpuId", "cudaId", "pid"):
        return {}
    rows = database.columns(_ORDINALS, ("pid", "cudaId", "gpuId")).T.tolist()
    return {(pid & PID, ordinal): gpu for pid, ordinal, gpu in rows if NONE not in (pid, gpu)}


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


class Job:
    """The ranks of the users of GPUs, and the communicators of NCCL that join them.

    The job's communicator is the largest, if it holds every user that has one. Without it, ranks are those of MPI or
    that in the file's name; else users are numbered in their order, if the communicators name none that is absent.

    Args:
        ranges: the NVTX events.
        users: who uses a GPU, in the order of the GPUs.
        named: the rank in the file's name; it counts for a file with one user, above what a smaller communicator says.

    Attributes:
        ranks: ranks by user; those that nothing tells are absent.
        world_size: ranks of the job; None if not known.
        is_numbered: no event names the ranks, which are places in the order of the GPUs.
    """

    def __init__(self, ranges: Ranges, users: Sequence[User], named: int | None = None) -> None:
        self._members: dict[int, dict[int, User]] = {}
        self._sizes: dict[int, int] = {}
        self._known = ranges.used_communicators
        for owner, said in ranges.communicators:
            own = [u for u in users if u[0] == owner and said.device in (u[1], None)]
            if said.communicator is None or said.ranks is None or said.rank is None:
                continue
            self._sizes[said.communicator] = said.ranks
            members = self._members.setdefault(said.communicator, {})
            members[said.rank] = own[0] if len(own) == 1 else (owner, -1 if said.device is None else said.device)
        self.ranks, self.world_size, self.is_numbered = self._ranks(ranges, users, named)

    def _ranks(
        self, ranges: Ranges, users: Sequence[User], named: int | None
    ) -> tuple[dict[User, int], int | None, bool]:
        joined = {user for members in self._members.values() for user in members.values()}
        largest = max(self._sizes, key=lambda c: (self._sizes[c], len(self._members[c])), default=None)
        named = named if len(users) == 1 else None
        if largest is not None and joined == set(self._members[largest].values()):
            ranks = {user: rank for rank, user in self._members[largest].items() if user in users}
            if named is None or set(ranks.values()) <= {named}:
                return ranks, self._sizes[largest], False
        if named is not None:
            return {users[0]: named}, None, False
        stated = {}
        for thread, name in ranges.thread_names.items():
            own = [user for user in users if user[0] == process(thread)]
            if (match := _RANK.fullmatch(name)) and len(own) == 1:
                stated[own[0]] = int(match[1])
        if stated:
            is_whole = sorted(stated.values()) == list(range(len(users))) and self._is_closed(users)
            return stated, len(users) if is_whole else None, False
        if joined and self._is_closed(users):
            return {user: place for place, user in enumerate(users)}, len(users), True
        return {}, None, False

    def _is_closed(self, users: Sequence[User]) -> bool:
        """Whether all members of all communicators are users of GPUs in the export; there must be a communicator."""
        are_whole = all(len(self._members[c]) == size for c, size in self._sizes.items())
        return bool(self._sizes) and are_whole and all(set(m.values()) <= set(users) for m in self._members.values())

    def only_communicator(self, owner: int) -> int | None:
        """Return the communicator of a process that has one only; None for another process."""
        known = self._known.get(owner, set())
        return next(iter(known)) if len(known) == 1 else None

    def groups(self) -> dict[int, tuple[Stat, ...]]:
        """Return what is known of each communicator, as stats that PyTorch's profiler gives a collective."""
        found = {}
        for number in {c for known in self._known.values() for c in known} | self._sizes.keys():
            stats = [Stat("Process Group Name", StatKind.STRING, f"{number:#x}")]
            if (size := self._sizes.get(number)) is not None:
                stats.append(Stat("Group size", StatKind.INT64, size))
                members = self._members[number]
                ranks = [self.ranks.get(user) for _, user in sorted(members.items())] if len(members) == size else []
                if size == self.world_size and all(self.ranks.get(u, r) == r for r, u in members.items()):
                    ranks = list(range(size)) if size <= _LARGEST else []
                if ranks and None not in ranks and len(set(ranks)) == size:
                    stats.append(Stat("Process Group Ranks", StatKind.STRING, json.dumps(ranks)))
            found[number] = tuple(stats)
        return found
