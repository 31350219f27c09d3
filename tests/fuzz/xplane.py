"""The xplane reader against protobuf's own parser."""

from __future__ import annotations

import random
from pathlib import Path
from unittest.mock import patch

from fuzz.judging import RefusedError, Target, scratch_file
from fuzz.seeds import capture_files
from fuzz.xplane_mutations import MUTATIONS, mutated, random_space
from google.protobuf.message import DecodeError
from xplane_reference import Contents, decoded, fits_int64, read_xplane, reference

from tracewarehouse.ingest.readers.xplane import wire

_LEGAL_BUT_REFUSED = {
    "field tag": "a group, or a tag in more bytes than it needs",
    "without planes": "no planes",
    "empty": "no planes",
    "stands after its events": "a line's header after its events",
}


class XPlaneTarget(Target):
    """Captures made at random, damaged inside or outside, and now and then a damaged real one."""

    name = "xplane"
    suffix = ".xplane.pb"

    def __init__(self, traces: Path | None = None) -> None:
        self._path = scratch_file(self, "x.xplane.pb")
        self._corpus = [f.read_bytes() for f in capture_files(traces, ".xplane.pb") if f.stat().st_size < 1 << 20]

    def make(self, r: random.Random) -> tuple[str, bytes]:
        mutation = r.choice(MUTATIONS)
        if self._corpus and r.random() < 0.002:
            return mutation, mutated(r, r.choice(self._corpus), mutation)
        if r.random() < 0.6:
            return mutation, random_space(r, mutation)
        return mutation, mutated(r, random_space(r), mutation)

    def read(self, data: bytes) -> Contents:
        self._path.write_bytes(data)
        # captures here are small: half of them are read as large ones are
        with patch.object(wire, "FEW_BYTES", 1 << 8 if len(data) % 2 else wire.FEW_BYTES):
            return decoded(read_xplane(self._path))

    def reference(self, data: bytes) -> Contents:
        try:
            return reference(data)
        except DecodeError as error:
            raise RefusedError(str(error)) from None

    def difference(self, got: Contents, want: Contents) -> str:
        if got == want:
            return ""
        parts = [n for n in ("planes", "metadata", "lines", "events") if getattr(got, n) != getattr(want, n)]
        return f"{' and '.join(parts)} differ from protobuf's"

    def may_refuse(self, data: bytes, want: Contents, refusal: str) -> str:
        if not fits_int64(want):
            return "times beyond int64"
        return next((reason for part, reason in _LEGAL_BUT_REFUSED.items() if part in refusal), "")


class CountedTarget(XPlaneTarget):
    """The same, as a large capture is read: events are counted first. Windows are small, so that lines have many."""

    name = "xplane-counted"

    def read(self, data: bytes) -> Contents:
        self._path.write_bytes(data)
        with (
            patch.object(wire, "FEW_BYTES", 1 << 8 if len(data) % 2 else wire.FEW_BYTES),
            patch.object(wire, "WINDOW", (64, 300, 1 << 12)[len(data) % 3] + len(data) // 1000),
        ):
            trace = read_xplane(self._path)
            counted = [trace.count(plane, line) for plane in trace.planes for line in plane.lines]
            found = decoded(trace)
            assert counted == [len(events) for plane in found.events for events in plane]
            return found
