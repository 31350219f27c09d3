"""Lists the formats of captures: how each is recognised, and the module that reads it.

A reader is one entry here and one folder, and is imported only when a file of its format is opened.
"""

from __future__ import annotations

import re
import shlex
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from tracewarehouse.ingest.capture_names import CHROME_SUFFIX, XPLANE_SUFFIX
from tracewarehouse.ingest.columns import bounds
from tracewarehouse.ingest.columns.profiler_names import device_plane
from tracewarehouse.ingest.errors import CaptureError, MalformedError
from tracewarehouse.ingest.processes.cycle_search import without_cycle_search
from tracewarehouse.ingest.readers.files import CaptureFile, peeked

if TYPE_CHECKING:
    from tracewarehouse.ingest.columns.records import Trace
    from tracewarehouse.ingest.processes.pool import Processes

Window = tuple[int, int]
"""Start and stop of a profile in Unix nanoseconds."""


class Reader(Protocol):
    """What the module of a format has."""

    def open_file(self, file: CaptureFile, *processes: Processes) -> Trace:
        """Open a file, of a format that `is_shared` with the processes that read it together."""
        ...

    def profile_window(self, path: Path) -> Window | None:
        """Return the window of a file, or None if it states none; asked of formats that `has_window`."""
        ...


@dataclass(frozen=True)
class Format:
    """One format of captures.

    Attributes:
        name: its name in main.runs.
        suffix: end of the names of its files; gzipped ones have `.gz` after it.
        module: the module that reads it, a `Reader`.
        begins: whether a file that begins with these bytes is of the format; None for the one format without a mark, to
            which a file belongs that no other format claims.
        has_window: whether a file may state the window of its profile.
        is_export: whether it is a lossy export of another format; it is left out beside that, and ends at some number
            of events.
        is_program: whether it is a compiled program, which has no events; folders are not searched for such files.
        is_divisible: whether several processes may write lines of one file.
        is_shared: whether several processes may open one file.
    """

    name: str
    suffix: str
    module: str
    begins: Callable[[bytes], bool] | None
    has_window: bool = False
    is_export: bool = False
    is_program: bool = False
    is_divisible: bool = False
    is_shared: bool = False

    @property
    def reader(self) -> Reader:
        """The imported module."""
        return cast(Reader, import_module(self.module))

    @property
    def suffixes(self) -> tuple[str, str]:
        """The ends of names, plain and gzipped."""
        return self.suffix, f"{self.suffix}.gz"

    @property
    def endings(self) -> tuple[str, ...]:
        """The suffixes and other ends of such files' names, the longest first: `x.pb` is opened if it is named."""
        kind = Path(self.suffix).suffix
        return (*reversed(self.suffixes), f"{kind}.gz", kind)


def _begins_as_json(head: bytes) -> bool:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


def _begins_as_kineto(head: bytes) -> bool:
    return _begins_as_json(head) and _KINETO.search(head) is not None and b'"addedArguments"' not in head


def _begins_with(mark: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(mark)


def _begins_as_hlo_proto(head: bytes) -> bool:
    """Field 1 of an HloProto is a module, whose field 1 is text, its name; field 1 of a plane in xplane is a number."""
    length = next((n for n, byte in enumerate(head[1:11], 1) if byte < 128), len(head))
    return head[:1] == b"\x0a" and head[length + 1 : length + 2] == b"\x0a"


_READERS = "tracewarehouse.ingest.readers"
XPLANE = Format("xplane", XPLANE_SUFFIX, f"{_READERS}.xplane.reader", None, has_window=True, is_divisible=True)
KINETO = Format("kineto", ".pt.trace.json", f"{_READERS}.kineto.reader", _begins_as_kineto, is_shared=True)
NSYS = Format("nsys", ".sqlite", f"{_READERS}.nsys.reader", _begins_with(b"SQLite format 3\0"), has_window=True)
CHROME = Format("chrome", CHROME_SUFFIX, f"{_READERS}.chrome.reader", _begins_as_json, is_export=True)
HLO_PROTO = Format("hlo_proto", ".hlo.pb", f"{_READERS}.hlo_program", _begins_as_hlo_proto, is_program=True)
HLO_TEXT = Format("hlo_text", ".hlo.txt", f"{_READERS}.hlo_program", _begins_with(b"HloModule "), is_program=True)
FORMATS = (XPLANE, KINETO, NSYS, CHROME, HLO_PROTO, HLO_TEXT)
"""All formats."""

_SEARCHED = tuple(f for f in FORMATS if not f.is_program)
SUFFIXES = tuple(s for f in _SEARCHED for s in f.suffixes)
"""Ends of the names of captures for which folders are searched."""
LOOKED_FOR = ", ".join(f"*{f.suffix}" for f in _SEARCHED)
"""The names of captures for which folders are searched, for a sentence."""


_KINETO = re.compile(
    rb'"(?:schemaVersion|deviceProperties|cupti_version)"\s*:'
    rb'|"cat"\s*:\s*"(?:cpu_op|kernel|gpu_memcpy|gpu_memset|cuda_runtime|cuda_driver|python_function|user_annotation'
    rb'|Operator|Kernel|Runtime)"'
)
"""Members that Kineto writes, and categories of its events in traces that lack them."""
_REPORT = "a report of Nsight Systems"
_EXPORT = "nsys export --type=sqlite --include-blobs=true"
"""The command that makes a file to read of such a report; without blobs, what NCCL says of its messages is left out."""
_FOREIGN = {
    ".nsys-rep": _REPORT,
    ".qdrep": _REPORT,
    ".ncu-rep": "a report of Nsight Compute",
    ".pftrace": "a protobuf trace of Perfetto",
    ".perfetto-trace": "a protobuf trace of Perfetto",
}
_EVENTS = re.compile(rb'\s*\[\s*\{[^{}]*"ph"\s*:')
_TOKEN = re.compile(rb'[\[\]{}]|"(?:[^"\\]|\\.)*+"(\s*:)?', re.DOTALL)
_PEEKED = 1 << 17


def foreign_kind(name: str) -> str | None:
    """Return what a file with this name is, and what to do, if it is of a profiler whose format is not read."""
    kind = _FOREIGN.get(Path(name.removesuffix(".gz")).suffix)
    if kind == _REPORT:
        return f"{kind}; run `{_EXPORT} {shlex.quote(name)}` and give the .sqlite file that it writes"
    return kind and f"{kind}, which is not read"


def is_unnamed_trace(path: Path) -> bool:
    """Whether a `.json` file that is not named like a capture, gzipped or not, begins as a Chrome trace does."""
    try:
        with peeked(path) as content:
            head = content.read(_PEEKED)
    except (OSError, EOFError, zlib.error):
        return False
    return _has_trace_events(head.removeprefix(b"\xef\xbb\xbf"))


def _has_trace_events(head: bytes) -> bool:
    """Whether JSON begins as an array of events, or as an object with the member of a Chrome trace."""
    if _EVENTS.match(head):
        return True
    depth = 0
    for token in _TOKEN.finditer(head) if _begins_as_json(head) else ():
        if depth == 1 and token[1] and token[0].startswith(b'"traceEvents"'):
            return True
        depth += (token[0] in (b"{", b"[")) - (token[0] in (b"}", b"]"))
    return False


def file_format(file: CaptureFile) -> Format:
    """Return the format of a file, by its content."""
    head = file.head
    if marked := next((f for f in FORMATS if f.begins and f.begins(head)), None):
        return marked
    foreign = foreign_kind(file.path.name)
    if foreign:
        hint = f"; give {LOOKED_FOR}, or HLO" if foreign.endswith("not read") else ""
        raise CaptureError(f"{file.path}: {foreign}{hint}")
    if file.path.name.endswith(HLO_TEXT.endings):
        raise CaptureError(f"{file.path}: no compiled program: HLO text begins with `HloModule`; give what XLA dumped")
    return next(f for f in FORMATS if f.begins is None)


def format_by_file_name(name: str) -> Format | None:
    """Return the format of a file by its name; None if it is not the name of a capture."""
    return next((f for f in FORMATS if name.endswith(f.suffixes)), None)


def format_named(name: str) -> Format:
    """Return the format with this name in main.runs."""
    return next(f for f in FORMATS if f.name == name)


@without_cycle_search()
def open_trace(file: CaptureFile, processes: Processes | None = None) -> Trace:
    """Open a capture by its content, together with these processes if its format allows."""
    form = file_format(file)
    trace = form.reader.open_file(file, *([processes] if processes and form.is_shared else ()))
    try:
        lines = sum(len(plane.lines) for plane in trace.planes if device_plane(plane.name))
        bounds.check(lines, bounds.DEVICE_LINES, "lines", "devices")
    except MalformedError as error:
        raise MalformedError(f"{file.path}: {error}") from None
    return trace


def profile_window(path: Path) -> Window | None:
    """Return the profile window of a file in the format of its name; None if format or file state none."""
    by_name = format_by_file_name(path.name)
    return by_name.reader.profile_window(path) if by_name and by_name.has_window else None
