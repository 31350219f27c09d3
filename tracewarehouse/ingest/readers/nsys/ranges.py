"""Reads the NVTX ranges of host threads: what encloses a launch, the marks of steps, and NCCL's payloads."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracewarehouse.ingest.columns import bounds
from tracewarehouse.ingest.columns.keys import is_new
from tracewarehouse.ingest.columns.nesting import nest
from tracewarehouse.ingest.columns.records import Columns, Int64
from tracewarehouse.ingest.readers.launches import step_mark
from tracewarehouse.ingest.readers.nsys.database import NONE, Database

TABLE = "NVTX_EVENTS"
UNNAMED = "(unnamed)"
_COLUMNS = ("globalTid", "start", "end", "eventType", "textId")
_PUSH_POP, _START_END, _MARK, _THREAD_NAME = 59, 60, 34, 39
_ARGUMENTS = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = ")
"""What PyTorch's emit_nvtx puts behind the name of an operator."""
_SIZES = re.compile(r", sizes = (\[.*?\])(?:, \w+ = |\Z)")
_MODULE = re.compile(r"\{'Module': '([^']*)'")
"""The beginning of a layer's range, as vLLM, SGLang and TensorRT-LLM write it."""
_WRAPPED = re.compile(r"FSDP::\w+ \(([\w.]+)\)")
_OPERATOR = re.compile(r"\w+::|autograd::engine")
_COLLECTIVE = re.compile(r"nccl:\w|c10d::|nccl[A-Z]")


PID = 0xFFFFFF
"""Bits of the process id of the system in the number of a process."""


def process(global_id: int) -> int:
    """Return the process of a globalTid or globalPid, which also hold the machine above 48 bits."""
    return global_id >> 24


class Context(NamedTuple):
    """What the ranges around a launch say of it.

    Attributes:
        op_name: the path of modules and other ranges, and the operator that launches; "" without any.
        sizes: shapes of the operator's inputs, as JSON; "" if not recorded.
        annotation: the innermost range that names a collective; "" without one.
    """

    op_name: str = ""
    sizes: str = ""
    annotation: str = ""


@dataclass(frozen=True)
class Payload:
    """What NCCL's payload of a range says: bytes of a message, or a rank of a new communicator."""

    communicator: int | None = None
    message_bytes: int | None = None
    ranks: int | None = None
    rank: int | None = None
    device: int | None = None


@dataclass
class ThreadRanges:
    """The ranges of one thread, sorted by start, longer ones first; arrays of shape (n,)."""

    start: Int64
    end: Int64
    text: Int64
    """Code of each range's text."""
    parent: Int64
    context: Int64
    """Code of the context inside the range."""
    payload: Int64
    """Number of the payload that holds inside the range; -1 for none."""

    def innermost(self, at: Int64) -> Int64:
        """Return the innermost range that is open at each time, -1 for none; shape (k,)."""
        if not len(self.start):
            return np.full(len(at), -1, np.int64)
        found: Int64 = self.start.searchsorted(at, side="right") - 1
        while (is_over := (found >= 0) & (self.end[found] <= at)).any():
            found[is_over] = self.parent[found[is_over]]
        return found


@dataclass
class Ranges:
    """The NVTX events of an export.

    Attributes:
        texts: distinct texts, without what differs from call to call.
        contexts: distinct contexts; the first has no range.
        payloads: NCCL's payloads, by number.
        thread_names: names that NVTX gives threads, by globalTid.
        communicators: process and payload of each rank of a new communicator.
        used_communicators: numbers of the communicators in the payloads of each process.
        marks: starts, ends and codes of the texts of the step marks of each process.
    """

    texts: list[str] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=lambda: [Context()])
    payloads: list[Payload] = field(default_factory=list)
    thread_names: dict[int, str] = field(default_factory=dict)
    communicators: list[tuple[int, Payload]] = field(default_factory=list)
    used_communicators: dict[int, set[int]] = field(default_factory=dict)
    marks: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._text_codes: dict[str, int] = {}
        self._context_codes: dict[tuple[int, int], int] = {}

    def text_code(self, text: str) -> int:
        """Return the number of a text; an operator's arguments count only as far as they are its shapes."""
        code = self._text_codes.get(text)
        if code is not None:
            return code
        bare = text
        if arguments := _ARGUMENTS.search(text):
            sizes = _SIZES.search(text, arguments.start())
            bare = text[: arguments.start()] + (f", sizes = {sizes[1]}" if sizes else "")
        code = self._text_codes.get(bare)
        if code is None:
            code = self._text_codes[bare] = len(self.texts)
            self.texts.append(bare)
        if len(self._text_codes) < 1 << 16:  # texts with numbers of calls would fill the memory
            self._text_codes[text] = code
        return code

    def add_payload(self, owner: int, said: Payload) -> int:
        """Keep a payload of a process, and return its number."""
        self.payloads.append(said)
        if said.communicator:  # 0 is none
            self.used_communicators.setdefault(owner, set()).add(said.communicator)
        if said.ranks is not None and said.rank is not None and 0 <= said.rank < said.ranks:
            self.communicators.append((owner, said))
        return len(self.payloads) - 1

    def nested(self, start: Int64, end: Int64, text: Int64, payload: Int64) -> ThreadRanges:
        """Return the ranges of a thread with what holds inside of each; `text` has codes, `payload` numbers."""
        order = np.lexsort((-end, start))
        start, end, text, payload = start[order], end[order], text[order], payload[order]
        nesting = nest(start, end)
        bounds.check(int(nesting.depth.max(initial=0)), bounds.RANGES, "nested NVTX ranges", "a thread")
        context = np.zeros(len(start), np.int64)
        for level in range(int(nesting.depth.max(initial=-1)) + 1):
            at = np.flatnonzero(nesting.depth == level)
            parent = nesting.parent[at]
            outer = np.where(parent >= 0, context[parent], 0)
            keys, inverse = np.unique(outer << 32 | text[at], return_inverse=True)
            codes = [self._inside(key >> 32, key & ((1 << 32) - 1)) for key in keys.tolist()]
            context[at] = np.array(codes, np.int64)[inverse]
            payload[at] = np.where((payload[at] < 0) & (parent >= 0), payload[parent], payload[at])
        return ThreadRanges(start, end, text, nesting.parent, context, payload)

    def _inside(self, outer: int, text: int) -> int:
        """Return the code of the context inside a range, given that around it."""
        code = self._context_codes.get((outer, text))
        if code is None:
            context = _within(self.contexts[outer], self.texts[text])
            code = self._context_codes[outer, text] = len(self.contexts)
            self.contexts.append(context)
        return code


def _within(outer: Context, text: str) -> Context:
    name, _, sizes = text.partition(", sizes = ")
    annotation = outer.annotation
    if _COLLECTIVE.match(name) and not (annotation.startswith("nccl:") or (annotation and name.startswith("ncclG"))):
        annotation = name
    if step_mark(name) or _COLLECTIVE.match(name):
        return outer._replace(annotation=annotation)
    path = outer.op_name.split("/") if outer.op_name else []
    if module := _MODULE.match(name) or _WRAPPED.match(name):
        path = [module[1].replace("/", "_")]  # the whole path of the module
    else:
        if path and _OPERATOR.match(path[-1]):
            path.pop()  # the innermost operator counts
        path.append(name.replace("/", "_"))
    return Context("/".join(path), sizes, annotation)


class ThreadEvents(NamedTuple):
    """The NVTX events of one thread in order of start; arrays of shape (n,)."""

    thread: int
    start: Int64
    duration: Int64
    text: Int64


def read_ranges(
    database: Database, strings: dict[int, str], ranges: Ranges
) -> Iterator[tuple[ThreadEvents, ThreadRanges]]:
    """Yield the NVTX events of each thread, by globalTid, and fill `ranges`.

    A push/pop range belongs to its thread. Where two cross, as those of different domains may, the later one does not
    stand in the earlier. A start/end range may end on another thread, so nothing nests in it; like the others it can
    mark a step. A range without an end, which the profile cut, is an event of length 0.
    """
    if not database.has(TABLE, "start", "end", "eventType", "globalTid"):
        return
    found = _read_rows(database, strings, ranges)
    start, end = found.start, found.end
    is_range = (end != NONE) & (end >= start)
    is_step = np.array([step_mark(text) is not None for text in ranges.texts] or [False], bool)
    for i in np.flatnonzero(is_range & (found.kind != _MARK) & is_step[found.text]).tolist():
        mark = int(start[i]), int(end[i]), int(found.text[i])
        ranges.marks.setdefault(process(int(found.thread[i])), []).append(mark)
    np.copyto(end, start, where=~is_range)
    is_nested = is_range & (found.kind == _PUSH_POP)
    for low, high in pairwise([*np.flatnonzero(is_new(found.thread)).tolist(), len(start)]):
        at = np.flatnonzero(is_nested[low:high]) + low
        nested = ranges.nested(start[at], end[at], found.text[at], found.payload[at])
        own = slice(low, high)
        yield ThreadEvents(int(found.thread[low]), start[own], end[own] - start[own], found.text[own]), nested


@dataclass(frozen=True)
class _Rows(Columns):
    """The NVTX events of all threads, by thread and start; `payload` is -1 where there is none."""

    thread: Int64
    start: Int64
    end: Int64
    kind: Int64
    text: Int64
    payload: Int64


def _read_rows(database: Database, strings: dict[int, str], ranges: Ranges) -> _Rows:
    """Read the table, and fill all of `ranges` but the marks."""
    schemas = _schemas(database)
    own = [c for c in ("text", "binaryData") if database.has(TABLE, c)]
    has_own = " OR ".join(f"{c} IS NOT NULL" for c in own)
    thread, start, end, kind, text, of_row = database.columns(TABLE, [*_COLUMNS, has_own or "absent"])
    is_kept = np.isin(kind, (_PUSH_POP, _START_END, _MARK)) & (start != NONE)
    of_names = np.flatnonzero(kind == _THREAD_NAME).tolist()
    names = [(int(thread[i]), int(start[i]), strings.get(int(text[i]), "")) for i in of_names]
    used, place = np.unique(text[is_kept], return_inverse=True)
    text[is_kept] = np.array([ranges.text_code(strings.get(i) or UNNAMED) for i in used.tolist()], np.int64)[place]
    payload = np.full(len(text), -1, np.int64)
    said: list[Payload] = []
    content = ", ".join(c if c in own else "NULL" for c in ("text", "binaryData"))
    query = f"SELECT {content} FROM {TABLE} WHERE {has_own or 'FALSE'}"  # noqa: S608  names of this module
    for i, (words, blob) in database.at(np.flatnonzero(of_row == 1), query):
        if isinstance(words, str) and is_kept[i]:
            text[i] = ranges.text_code(words or UNNAMED)
        elif isinstance(words, str) and kind[i] == _THREAD_NAME:
            names.append((int(thread[i]), int(start[i]), words))
        if isinstance(blob, bytes) and is_kept[i] and (told := _payload(blob, schemas)):
            payload[i] = len(said)
            said.append(told)
    whole = _Rows(*(column[is_kept] for column in (thread, start, end, kind, text, payload)))
    order = np.lexsort((whole.start, whole.thread))
    found = _Rows(*(column[order] for column in vars(whole).values()))
    ranges.thread_names |= {thread: name for thread, _, name in sorted(names)}
    for i in np.flatnonzero(found.payload >= 0).tolist():
        found.payload[i] = ranges.add_payload(process(int(found.thread[i])), said[found.payload[i]])
    return found


_TYPES = {
    1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "q", 8: "Q", 9: "q", 10: "Q", 11: "b", 12: "B", 13: "h",
    14: "H", 15: "i", 16: "I", 17: "q", 18: "Q", 22: "Q",
}  # fmt: skip
"""Integers among the types of payload entries (nvToolsExtPayload.h), as struct names them; of 64-bit programs."""
_HEADER = struct.Struct("<QQQQ")
"""Domain, schema and bytes of a payload; of the last word two readers of such files say different things."""
_ENTRIES = {
    "NCCL communicator ID": "communicator",
    "Message size [bytes]": "message_bytes",
    "No. of ranks": "ranks",
    "Rank": "rank",
    "CUDA device": "device",
}
_Schemas = dict[tuple[int, int], list[tuple[str, str, int]]]
"""Field, type and offset of the entries of each domain's schemas."""


def _schemas(database: Database) -> _Schemas:
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if not database.has(table, "domainId", "schemaId", "type", "name", "offset"):
        return {}
    found: _Schemas = {}
    query = f"SELECT domainId, schemaId, type, COALESCE(offset, 0), name FROM {table}"  # noqa: S608  a constant
    for *numbers, name in database.texts(query):
        domain, schema, kind, offset = database.checked(numbers)
        if str(name) in _ENTRIES and kind in _TYPES:
            found.setdefault((domain, schema), []).append((_ENTRIES[str(name)], f"<{_TYPES[kind]}", offset))
    return found


def _payload(blob: bytes, schemas: _Schemas) -> Payload | None:
    """Return what a payload says; None if its schema is not known or it is cut off."""
    if len(blob) < _HEADER.size:
        return None
    domain, schema, size, _ = _HEADER.unpack_from(blob)
    content = blob[_HEADER.size :][:size]
    said: dict[str, int] = {}
    for name, kind, offset in schemas.get((domain, schema), ()):
        if 0 <= offset <= len(content) - struct.calcsize(kind):
            (said[name],) = struct.unpack_from(kind, content, offset)
    if said.get("message_bytes", 0) >> 63:
        del said["message_bytes"]  # more than any memory has
    return Payload(**said) if said else None
