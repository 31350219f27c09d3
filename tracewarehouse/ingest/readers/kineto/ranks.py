"""Tells which rank of a job wrote a GPU trace, without reading its events: by `distributedInfo`, or by its name.

Every rank writes a file of its own. Its name is the launcher's choice: `rank3_trace.json`, `kineto_trace_3.json`,
`worker3_step_12.1694128201545.pt.trace.json`, `x_rank_3.1694128201545.pt.trace.json`, `1694128201-TP-3.trace.json.gz`.
"""

from __future__ import annotations

import json
import re
import stat
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tracewarehouse.ingest.readers.files import peeked

_NAMED = re.compile(r"(?i)(?<![a-z0-9])(?:rank|kineto_trace|worker)[-_]?(\d{1,6})(?![a-z0-9])")
_COORDINATES = re.compile(r"-(TP|DP|PP|EP)-(\d{1,6})(?![a-zA-Z0-9])")
_TIME = re.compile(r"(?<![0-9])\d{10,19}(?![0-9])")
_OF_KINETO = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo)"\s*:'
    rb'|"cat"\s*:\s*"(?:cpu_op|user_annotation|cuda_runtime|python_function|kernel|Operator|Kernel)"'
)
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{(?:[^{}\[\]]*,)?\s*"rank"\s*:\s*(\d{1,6})\b')
_WORLD = re.compile(rb'"distributedInfo"\s*:\s*\{(?:[^{}\[\]]*,)?\s*"world_size"\s*:\s*(\d{1,7})\b')
_HEAD, _TAIL = 1 << 17, 1 << 17
_BLOCK = 1 << 20


class FileRank(NamedTuple):
    """The rank that wrote a file.

    Attributes:
        rank: its number in the job; None if neither the file nor its name tells it.
        world_size: ranks of the job; None if the file does not tell.
        session: the file's name without rank and time, which the files of one recording share; "" if the name does not
            tell the rank, as it then has the number of a process.
        time: the time in its name, as text of digits; "" if there is none.
    """

    rank: int | None
    world_size: int | None
    session: str
    time: str


def rank_in_name(name: str) -> int | None:
    """Return the rank in the name of a file; None without one.

    Of SGLang's coordinates only those on one axis are a rank.
    """
    if named := list(_NAMED.finditer(name)):
        return int(named[-1][1])
    places = {axis: int(place) for axis, place in _COORDINATES.findall(name) if axis != "EP"}
    on = [place for place in places.values() if place]
    return None if not places or len(on) > 1 else sum(on)


def only_process_group(distributed: Mapping[str, Any]) -> dict[str, str]:
    """Return what `distributedInfo` says of the job's only process group, as arguments of a collective name it.

    The result is empty if there are several, or none is described.
    """
    groups = distributed.get("pg_config")
    group = groups[0] if isinstance(groups, list) and len(groups) == 1 else None
    if not isinstance(group, dict) or not isinstance(ranks := group.get("ranks"), list):
        return {}
    if distributed.get("pg_count") not in (1, None):
        return {}
    said = {"Process Group Name": "pg_name", "Process Group Description": "pg_desc", "Group size": "pg_size"}
    texts = {name: str(group[key]) for name, key in said.items() if isinstance(group.get(key), str | int)}
    return texts | {"Process Group Ranks": json.dumps(ranks)}


def file_rank(path: Path) -> FileRank | None:
    """Return the rank that wrote a file; None for a file that is no GPU trace, or that cannot be read.

    Of an export of Nsight Systems only the name counts here, since it may hold several ranks.
    """
    if path.name.endswith((".sqlite", ".sqlite.gz")):
        return _named_rank(path.name)
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):  # opening a pipe would wait for its writer
            return None
        return _file_rank(path, state.st_size, state.st_mtime_ns)
    except (OSError, EOFError, zlib.error):  # reported when it is ingested
        return None


@lru_cache(maxsize=4096)  # `tw watch` asks again at every look
def _file_rank(path: Path, _size: int, _changed_ns: int) -> FileRank | None:
    in_name = rank_in_name(path.name)
    with peeked(path) as content:
        text = content.read(_HEAD)
        if not _OF_KINETO.search(text):
            return None
        if not _RANK.search(text) and in_name is None:
            while block := content.read(_BLOCK):  # its members may follow the events
                text = (text + block)[-_TAIL:]
    rank, world = _RANK.search(text), _WORLD.search(text)
    named = _named_rank(path.name)
    return named._replace(rank=int(rank[1]) if rank else in_name, world_size=int(world[1]) if world else None)


def _named_rank(name: str) -> FileRank:
    name = name.removesuffix(".gz")
    rank, time = rank_in_name(name), _TIME.search(name)
    session = "" if rank is None else _TIME.sub("", _COORDINATES.sub("-", _NAMED.sub("", name)))
    return FileRank(rank, None, session, time[0] if time else "")
