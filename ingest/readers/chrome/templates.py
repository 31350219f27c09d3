"""Finds the events of a Chrome trace that repeat an earlier one but for its numbers, without parsing them as JSON.

An exporter writes an op's event again and again: only its times, and the integers among its arguments, differ. Such an
event is a template with holes. It is found by its name and then compared: what stands between the holes must be the
template's bytes, each hole one plain number, and the template's end must be where the next event begins. That is all
that JSON would tell of it, provided that it starts between two events: so it is only taken for one where everything
before it has been read as whole events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise, repeat

import msgspec
import numpy as np

from tracewarehouse.ingest.columns.records import Int32, Int64
from tracewarehouse.ingest.readers.chrome.args import Arguments
from tracewarehouse.ingest.readers.chrome.chunks import MARGIN
from tracewarehouse.ingest.readers.chrome.events import Event, EventParser
from tracewarehouse.ingest.readers.chrome.look import Bools, Heads, Look, Texts

_ROUNDS = 8  # templates that may share a key
_PASSES = 2  # over a piece, each of which makes one template per key
_MAX_EVENT = 1 << 16  # bytes of an event that becomes a template
_MAX_HOLES = 24
_CREDIT = 20_000
"""Templates that may be made before any has been found again."""
_NUMBER = rb"(?:0|[1-9][0-9]{0,15})(?:\.[0-9]+)?"
_SHAPE = re.compile(
    rb'\{"ph":"X","pid":(0|[1-9][0-9]{0,15}),"tid":(0|[1-9][0-9]{0,15}),"ts":('
    + (_NUMBER + rb'),"dur":(' + _NUMBER)
    + rb'),"name":"(?:[^"\\]|\\.)*+"(?:,"args":(\{.*\}))?\}(,[ \t\r\n]*+)',
    re.DOTALL,
)
_PROBE = b"90718"
_PROBES = [b"%b%d" % (_PROBE, 100 + i) for i in range(4 + _MAX_HOLES)]
_ESCAPED_DIGIT = re.compile(rb"\\u003[0-9]")
_decode = msgspec.json.Decoder(Event).decode
_decode_all = msgspec.json.Decoder(list[Event]).decode


@dataclass(frozen=True)
class _Template:
    """An event without its numbers."""

    texts: tuple[bytes, ...]
    """What stands behind the duration: up to the first hole, between two, and behind the last."""
    names: tuple[str, ...]
    """The arguments whose numbers the holes hold."""
    plan: int
    """Of the other arguments."""


@dataclass(frozen=True)
class Repeats:
    """Events found by their templates, n of them.

    Attributes:
        places: where they are among all of the piece, ascending, shape (n,).
        templates: number of the template of each, shape (n,).
        pid: process of each, shape (n,).
        tid: thread of each, shape (n,).
        start_ps: picoseconds since the origin, shape (n,).
        duration_ps: picoseconds, shape (n,).
        values: the numbers per hole of the templates, each of shape (n,); 0 where a template has fewer.
    """

    places: Int64
    templates: Int64
    pid: Int64
    tid: Int64
    start_ps: Int64
    duration_ps: Int64
    values: list[Int64]


@dataclass(frozen=True)
class Piece:
    """The events of one piece of a trace.

    Attributes:
        events: those that were parsed.
        places: where they are among all of the piece, ascending, shape (len(events),).
        repeats: those that repeat a template.
    """

    events: list[Event]
    places: Int64
    repeats: Repeats | None = None


class TemplateParser:
    """Parses arrays of events: by templates where these are known, as JSON where not.

    Attributes:
        arguments: the arguments of events.
        origin_us: whole microseconds that times count from; until it is known, all is parsed as JSON.
        plans: plans of the templates, by their number, shape (n,).
        names: arguments that stand in holes, numbered in this order.
        named: number of the argument in each hole of the templates, -1 where they have fewer, shape (n, most holes).
    """

    def __init__(self) -> None:
        self._parse, self.arguments = EventParser(), Arguments()
        self.origin_us: int | None = None
        self._credit = float(_CREDIT)
        self.forget()

    @property
    def has_replaced(self) -> bool:
        """Whether bytes that are not UTF-8 were replaced somewhere."""
        return self._parse.has_replaced

    @has_replaced.setter
    def has_replaced(self, value: bool) -> None:
        self._parse.has_replaced = value

    def forget(self) -> None:
        """Forget all templates, to bound the memory that they take."""
        self.plans: Int64 = np.zeros(0, np.int64)
        self.names: dict[str, int] = {}
        self.named: Int32 = np.zeros((0, 0), np.int32)
        self._index: list[dict[int, int]] = [{} for _ in range(_ROUNDS)]
        self._texts = Texts()
        self._numbers: dict[int, int] = {}
        # of all texts of all templates, and per template where its own begin
        self._starts: Int64 = np.zeros(0, np.int64)
        self._lengths: Int64 = np.zeros(0, np.int64)
        self._first: Int64 = np.zeros(0, np.int64)
        self._holes: Int64 = np.zeros(0, np.int64)

    def __call__(self, text: memoryview) -> Piece:
        """The events of a JSON array.

        Raises:
            NotJsonError: the text is not an array of JSON objects.
        """
        if self.origin_us is not None and self._credit > 0:
            piece = self._with_repeats(text, self.origin_us)
            if piece is not None:
                return piece
        events = self._parse(text)
        return Piece(events, np.arange(len(events)))

    def _learn(self, unknown: Iterable[tuple[int, bytes]]) -> int:
        """Make templates of events that none was found for; returns how many.

        A template is right wherever its text stood: what it says of an event follows from that event alone.
        """
        new: list[_Template] = []
        for key, text in unknown:
            for free in self._index:
                if key not in free:
                    break
            else:
                continue
            if self._credit <= 0:
                break
            self._credit -= 1
            found = self._template(text)
            if found is None:
                continue
            count = len(self._numbers)
            # a hash, as the texts would be kept twice; were it that of others, they would not compare equal
            number = free[key] = self._numbers.setdefault(hash(found.texts), count)
            if number == count:
                new.append(found)
        if new:
            holes = np.array([len(t.names) for t in new], np.int64)
            texts = [text for t in new for text in t.texts]
            lengths = np.fromiter(map(len, texts), np.int64, len(texts))
            ends = self._texts.add(b"".join(texts)) + np.cumsum(lengths)
            self._first = np.append(self._first, len(self._lengths) + np.cumsum(holes + 1) - (holes + 1))
            self._lengths = np.append(self._lengths, lengths)
            self._starts = np.append(self._starts, ends - lengths)
            count, width = self.named.shape
            most = max(width, int(holes.max()))
            named = np.full((count + len(new), most), -1, np.int32)
            named[:count, :width] = self.named
            codes = [self.names.setdefault(n, len(self.names)) for t in new for n in t.names]
            named[count:][np.arange(most) < holes[:, None]] = codes
            self.named = named
            self._holes = np.append(self._holes, holes)
            self.plans = np.append(self.plans, [t.plan for t in new])
        return len(new)

    def _template(self, text: bytes) -> _Template | None:
        """The template of an event with the comma behind it; None if it cannot be one.

        It can if numbers in its holes are what it says of its process, thread, times and arguments.
        """
        shape = _SHAPE.fullmatch(text) if len(text) <= _MAX_EVENT and _is_utf8(text) else None
        # A number that is nowhere in the text shows which argument a hole is: one at top level, or the hole is none.
        if shape is None or _PROBE in text:
            return None
        low, high = shape.span(5)
        if low >= 0 and _ESCAPED_DIGIT.search(text, low, high):
            return None
        holes = self._numbers_in(text, low, high) if low >= 0 else []
        if len(holes) > _MAX_HOLES:
            return None
        texts, end = [], 0
        for start, stop in (*shape.regs[1:5], *[(start, stop) for start, stop, _ in holes]):
            texts.append(text[end:start])
            end = stop
        texts.append(text[end:])
        numbers = _PROBES[: len(texts) - 1]
        parts = [part for pair in zip(texts, numbers, strict=False) for part in pair]
        parts.append(text[end : shape.start(6)])
        try:
            event = _decode(b"".join(parts))
        except (msgspec.MsgspecError, RecursionError):
            return None
        head = [str(event.pid).encode(), str(event.tid).encode(), bytes(event.ts), bytes(event.dur)]
        if event.ph != "X" or head != numbers[:4]:
            return None
        names = tuple([name for _, _, name in holes])
        facts = self.arguments.facts_without(bytes(event.args), dict(zip(names, numbers[4:], strict=True)))
        if facts is None:
            return None
        # of a template and not of an event: what the holes held is no part of it
        plan = self.arguments.plan(event, facts, len(text))
        return _Template(tuple(texts[4:]), names, plan)

    def _numbers_in(self, text: bytes, low: int, high: int) -> list[tuple[int, int, str]]:
        """Where arguments that are plain integers seem to stand, and what they are called, in the order of the text."""
        found = []
        for name, value in self.arguments.integers(text[low:high]):
            key = b'"%b":' % name.encode()
            at = text.find(key, low, high)
            if at < 0:
                continue
            at += len(key) + (text[at + len(key)] == ord('"'))
            end = at + len(value)
            if text.startswith(value, at) and text[end] in b'",}' and (value[0] != ord("0") or len(value) == 1):
                found.append((at, end, name))
        return sorted(found)

    def _with_repeats(self, text: memoryview, origin_us: int) -> Piece | None:
        """The events of an array, which is not searched further; None where it is not known to be whole events."""
        look = Look(text)
        starts = look.starts()
        if not len(starts):
            return None
        first, end = MARGIN + 1, len(text) - MARGIN
        ends = np.append(starts[1:], end)
        found = _Found(look, look.heads(starts), ends, origin_us)
        for _ in range(_PASSES):
            self._find(found)
            rest = np.flatnonzero(found.template[:-1] < 0)[::-1]  # the last has no comma behind it, as templates do
            examples = dict(zip(found.keys[rest].tolist(), rest.tolist(), strict=True))
            in_order = sorted((i, key) for key, i in examples.items())  # so that their texts are, as events mostly are
            froms, tos = starts.tolist(), ends.tolist()
            unknown = ((key, bytes(text[froms[i] : tos[i]])) for i, key in in_order)
            learned = self._learn(unknown)
            if not learned:
                break
            self._credit -= 0.5 * learned  # what is found then is the template itself
        else:
            self._find(found)
        is_found = found.template >= 0
        repeats = found.repeats()
        count = len(repeats.places)
        self._credit = min(self._credit + 0.5 * count, 4.0 * _CREDIT)
        if 2 * count < len(starts):
            events = self._parse(text)
            return Piece(events, np.arange(len(events)))
        events_found: list[Event] = []
        places: list[int] = []
        # each run of events that were not found must be whole by itself: so the ones behind it are events too
        edges = np.flatnonzero(np.diff(is_found.astype(np.int8), prepend=1, append=1)).tolist()
        runs = [(int(starts[a]), int(ends[z - 1]), a) for a, z in pairwise(edges) if not is_found[a]]
        if starts[0] > first and runs and runs[0][2] == 0:
            runs[0] = (first, runs[0][1], 0)
        elif starts[0] > first:
            runs.insert(0, (first, int(starts[0]), -1))
        for low, high, place in runs:
            run = bytes(text[low:high]).rstrip(b" \t\r\n")
            if not run and place < 0:
                continue
            # a comma follows each event but the last, and that one never repeats a template, which ends with it
            if run[-1:] != (b"]" if high == end else b",") or not run[:-1].strip(b" \t\r\n"):
                return None
            if not _is_utf8(run):
                return None
            try:
                parsed = _decode_all(b"[%b]" % run[:-1])
            except (msgspec.MsgspecError, RecursionError):
                return None
            events_found += parsed
            places += [place] * len(parsed)
        return Piece(events_found, np.array(places, np.int64), repeats)

    def _find(self, found: _Found) -> None:
        """Find templates of events that have none yet."""
        rows = np.flatnonzero(found.may_repeat & (found.template < 0))
        for index in self._index:
            if not index or not len(rows):
                break
            guess = np.fromiter(map(index.get, found.keys[rows].tolist(), repeat(-1)), np.int64, len(rows))
            rows, guess = rows[guess >= 0], guess[guess >= 0]
            is_right = self._compare(found, rows, guess)
            found.template[rows[is_right]] = guess[is_right]
            rows = rows[~is_right]

    def _compare(self, found: _Found, rows: Int64, guess: Int64) -> Bools:
        """Whether the events `rows` have the templates `guess`; what stands in the holes goes to `found.values`."""
        look, at = found.look, found.heads.dur.high[rows]
        holes, text = self._holes[guess], self._first[guess]
        is_right = look.equal(at, self._texts, self._starts[text], self._lengths[text])
        at = at + self._lengths[text]
        for h in range(int(holes.max(initial=0))):
            here = np.flatnonzero(is_right & (holes > h))
            if not len(here):
                break
            if h == len(found.values):
                found.values.append(np.zeros(len(found.keys), np.int64))
            number, high, is_number = look.naturals(at[here])
            found.values[h][rows[here]] = number
            behind = text[here] + 1 + h
            starts, lengths = self._starts[behind], self._lengths[behind]
            is_right[here] = is_number & look.equal(high, self._texts, starts, lengths)
            at[here] = high + lengths
        is_right &= at == found.ends[rows]
        return is_right


class _Found:
    """What looks like the n events of a piece, and which templates they repeat.

    Attributes:
        template: number of the template of each, -1 where none is found, shape (n,).
        values: what stands in the holes, each of shape (n,).
        may_repeat: where the head of an event is one of a template, shape (n,).
    """

    def __init__(self, look: Look, heads: Heads, ends: Int64, origin_us: int) -> None:
        self.look, self.heads, self.ends = look, heads, ends
        self.keys = look.keys(heads, ends)
        self.template = np.full(len(ends), -1, np.int64)
        self.values: list[Int64] = []
        self._start, has_start = heads.ts.picoseconds(origin_us)
        self._duration, has_duration = heads.dur.picoseconds(0)
        self.may_repeat = heads.is_whole & has_start & has_duration

    def repeats(self) -> Repeats:
        """Those that repeat a template."""
        at = np.flatnonzero(self.template >= 0)
        return Repeats(
            at,
            self.template[at],
            self.heads.pid[at],
            self.heads.tid[at],
            self._start[at],
            self._duration[at],
            [v[at] for v in self.values],
        )


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


__all__ = ["Piece", "Repeats", "TemplateParser"]
