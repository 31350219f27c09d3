"""Lists the formats of captures: how each is recognised, opened, and read again to verify a run.

A reader is one entry here and one folder. Each entry imports its reader only when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracewarehouse.ingest.capture_names import CHROME_SUFFIX, XPLANE_SUFFIX
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.processes.cycle_search import without_cycle_search
from tracewarehouse.ingest.processes.freed_memory import MOST, keep_freed_memory
from tracewarehouse.ingest.readers.files import CaptureFile

if TYPE_CHECKING:
    from tracewarehouse.ingest.columns.records import Trace
    from tracewarehouse.ingest.readers.xplane.plain import PlainPlane

Window = tuple[int, int]
"""Start and stop of a profile in Unix nanoseconds."""


@dataclass(frozen=True)
class Format:
    """One format of captures.

    Attributes:
        name: its name in main.runs.
        suffix: end of the names of its files; gzipped ones have `.gz` after it.
        begins: whether a file that begins with these bytes is of the format; None for the one format without a mark, to
            which a file belongs that no other format claims.
        open: opens a file.
        plain_planes: decodes a file by other means than `open`, to verify what `open` read; slow.
        profile_window: returns the window of a file, or None if it states none; None for a format without windows.
        is_export: whether it is a lossy export of another format; it is left out beside that, and ends at some number
            of events.
        is_program: whether it is a compiled program, which has no events; folders are not searched for such files.
        part_reader: module that reads parts of a file in processes of their own; None if a file is not divided.
    """

    name: str
    suffix: str
    begins: Callable[[bytes], bool] | None
    open: Callable[[CaptureFile], Trace]
    plain_planes: Callable[[CaptureFile], Iterator[PlainPlane]]
    profile_window: Callable[[Path], Window | None] | None = None
    is_export: bool = False
    is_program: bool = False
    part_reader: str | None = None

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


def _begins_as_hlo_text(head: bytes) -> bool:
    return head.startswith(b"HloModule ")


def _begins_as_hlo_proto(head: bytes) -> bool:
    """Field 1 of an HloProto is a module, whose field 1 is text, its name; field 1 of a plane in xplane is a number."""
    length = next((n for n, byte in enumerate(head[1:11], 1) if byte < 128), len(head))
    return head[:1] == b"\x0a" and head[length + 1 : length + 2] == b"\x0a"


def _open_hlo_text(file: CaptureFile) -> Trace:
    from tracewarehouse.ingest.readers.hlo_program.reader import HloProgramTrace

    return HloProgramTrace(file, "hlo_text")


def _open_hlo_proto(file: CaptureFile) -> Trace:
    from tracewarehouse.ingest.readers.hlo_program.reader import HloProgramTrace

    return HloProgramTrace(file, "hlo_proto")


def _plain_hlo(file: CaptureFile) -> Iterator[PlainPlane]:
    from tracewarehouse.ingest.readers.hlo_program.plain import plain_planes

    return plain_planes(file)


def _open_chrome(file: CaptureFile) -> Trace:
    from tracewarehouse.ingest.readers.chrome.reader import ChromeTrace

    return ChromeTrace(file)


def _plain_chrome(file: CaptureFile) -> Iterator[PlainPlane]:
    from tracewarehouse.ingest.readers.chrome.plain import plain_planes

    return plain_planes(file)


def _open_xplane(file: CaptureFile) -> Trace:
    from tracewarehouse.ingest.readers.xplane.reader import read_xplane

    return read_xplane(file)


def _plain_xplane(file: CaptureFile) -> Iterator[PlainPlane]:
    from tracewarehouse.ingest.readers.xplane.plain import plain_planes

    return plain_planes(file)


def _xplane_window(path: Path) -> Window | None:
    from tracewarehouse.ingest.readers.xplane.reader import profile_window

    return profile_window(path)


XPLANE = Format(
    name="xplane",
    suffix=XPLANE_SUFFIX,
    begins=None,  # protobuf has none
    open=_open_xplane,
    plain_planes=_plain_xplane,
    profile_window=_xplane_window,
    part_reader="tracewarehouse.ingest.readers.xplane.reader",
)
CHROME = Format(
    name="chrome",
    suffix=CHROME_SUFFIX,
    begins=_begins_as_json,
    open=_open_chrome,
    plain_planes=_plain_chrome,
    is_export=True,
)
HLO_PROTO = Format(
    name="hlo_proto",
    suffix=".hlo.pb",
    begins=_begins_as_hlo_proto,
    open=_open_hlo_proto,
    plain_planes=_plain_hlo,
    is_program=True,
)
HLO_TEXT = Format(
    name="hlo_text",
    suffix=".hlo.txt",
    begins=_begins_as_hlo_text,
    open=_open_hlo_text,
    plain_planes=_plain_hlo,
    is_program=True,
)
FORMATS = (XPLANE, CHROME, HLO_PROTO, HLO_TEXT)
"""All formats."""

_SEARCHED = tuple(f for f in FORMATS if not f.is_program)
SUFFIXES = tuple(s for f in _SEARCHED for s in f.suffixes)
"""Ends of the names of captures for which folders are searched."""
LOOKED_FOR = ", ".join(f"*{f.suffix}" for f in _SEARCHED)
"""The names of captures for which folders are searched, for a sentence."""


def format_of(file: CaptureFile) -> Format:
    """Return the format of a file, by its content.

    Raises:
        CaptureError: the file is missing, empty or cannot be read, or a text that is no HLO.
    """
    head = file.head
    if marked := next((f for f in FORMATS if f.begins and f.begins(head)), None):
        return marked
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
def open_trace(file: CaptureFile) -> Trace:
    """Open a capture by its content.

    Raises:
        CaptureError: it has no known format, or is damaged.
    """
    keep_freed_memory(MOST)
    return format_of(file).open(file)


def plain_planes(file: CaptureFile) -> Iterator[PlainPlane]:
    """Yield the planes of a capture as its independent decoder reads them, in file order.

    Raises:
        CaptureError: the file cannot be read, or is not a capture.
    """
    try:
        yield from format_of(file).plain_planes(file)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CaptureError(f"{file.path}: the independent decoder cannot read it: {error}") from None


def profile_window(path: Path) -> Window | None:
    """Return the profile window of a file in the format of its name; None if format or file state none."""
    by_name = format_by_file_name(path.name)
    return by_name.profile_window(path) if by_name and by_name.profile_window else None
