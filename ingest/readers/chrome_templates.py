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
import numpy.typing as npt

from ingest.readers.chrome_args import METADATA_KEYS, Arguments
from ingest.readers.chrome_events import Event, EventParser
from ingest.readers.chrome_times import MAX_WHOLE, PS_PER_US, eight, leading, unaligned_words, whole_numbers
from ingest.records import Int64, StatKind, UInt8, UInt64

_START = b'{"ph":"X","pid":'
_TID, _TS, _DUR, _NAME = b',"tid":', b',"ts":', b',"dur":', b',"name":"'
_ROUNDS = 8  # templates that may share a key
_PASSES = 2  # over a piece, each of which makes one template per key
_MAX_EVENT = 1 << 16  # bytes of an event that becomes a template
_MAX_HOLES = 24
_CREDIT = 20_000
"""Templates that may be made before any has been found again."""
_MARGIN = 16  # bytes before the text, so that a number can be read up to its end
_BEHIND = 128  # bytes behind it, so that what is looked at there exists

_NUMBER = rb"(?:0|[1-9][0-9]{0,15})(?:\.[0-9]+)?"
_SHAPE = re.compile(
    rb'\{"ph":"X","pid":(0|[1-9][0-9]{0,15}),"tid":(0|[1-9][0-9]{0,15}),"ts":('
    + (_NUMBER + rb'),"dur":(' + _NUMBER)
    + rb'),"name":"(?:[^"\\]|\\.)*+"(?:,"args":(\{.*\}))?\}(,[ \t\r\n]*+)',
    re.DOTALL,
)
_HOLE = re.compile(rb'(?<=[{,])"([^"\\]+)":(?:"(0|[1-9][0-9]{0,15})"|(0|[1-9][0-9]{0,15}))(?=[,}])')
_PROBE = b"90718"
_ESCAPED_DIGIT = re.compile(rb"\\u003[0-9]")
_HIGH, _THREES = 0xF0F0F0F0F0F0F0F0, 0x3030303030303030

Bools = npt.NDArray[np.bool_]


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
        origin_us: whole microseconds that times count from; until it is known, all is parsed as JSON.
        plans: plans of the templates, by their number, shape (n,).
        names: arguments that stand in holes, numbered in this order.
        named: number of the argument in each hole of the templates, -1 where they have fewer, shape (n, most holes).
    """

    def __init__(self, parse: EventParser, arguments: Arguments) -> None:
        self._parse, self._arguments = parse, arguments
        self._decode = msgspec.json.Decoder(Event).decode
        self._decode_all = msgspec.json.Decoder(list[Event]).decode
        self.origin_us: int | None = None
        self._credit = float(_CREDIT)
        self.forget()

    def forget(self) -> None:
        """Forget all templates, to bound the memory that they take."""
        self.plans: Int64 = np.zeros(0, np.int64)
        self.names: dict[str, int] = {}
        self.named: Int64 = np.zeros((0, _MAX_HOLES), np.int64)
        self._index: list[dict[int, int]] = [{} for _ in range(_ROUNDS)]
        self._texts: list[list[bytes]] = [[] for _ in range(_MAX_HOLES + 1)]
        self._numbers: dict[tuple[bytes, ...], int] = {}
        self._lengths: Int64 = np.zeros((0, _MAX_HOLES + 1), np.int64)
        self._holes: Int64 = np.zeros(0, np.int64)

    def __call__(self, text: bytes) -> Piece:
        """The events of a JSON array.

        Raises:
            NotJsonError: the text is not an array of JSON objects.
        """
        if self.origin_us is not None and self._credit > 0 and (text.isascii() or _is_utf8(text)):
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
            free = next((d for d in self._index if key not in d), None)
            if free is None or self._credit <= 0:
                continue
            self._credit -= 1
            found = self._template(text)
            if found is None:
                continue
            count = len(self._numbers)
            number = free[key] = self._numbers.setdefault(found.texts, count)
            if number == count:
                new.append(found)
        if new:
            for i, column in enumerate(self._texts):
                column += [t.texts[i] if i < len(t.texts) else b"" for t in new]
            lengths = [[*map(len, t.texts), *repeat(0, _MAX_HOLES - len(t.names))] for t in new]
            self._lengths = np.concatenate([self._lengths, np.array(lengths, np.int64)])
            coded = [[self.names.setdefault(n, len(self.names)) for n in t.names] for t in new]
            named = [[*codes, *repeat(-1, _MAX_HOLES - len(codes))] for codes in coded]
            self.named = np.concatenate([self.named, np.array(named, np.int64)])
            self._holes = np.append(self._holes, [len(t.names) for t in new])
            self.plans = np.append(self.plans, [t.plan for t in new])
        return len(new)

    def _template(self, text: bytes) -> _Template | None:
        """The template of an event with the comma behind it; None if it cannot be one.

        It can if numbers in its holes are what it says of its process, thread, times and arguments.
        """
        shape = _SHAPE.fullmatch(text) if len(text) <= _MAX_EVENT else None
        if shape is None:
            return None
        low, high = shape.span(5)
        holes = [m for m in _HOLE.finditer(text, low, high) if m[1].decode() not in METADATA_KEYS] if low >= 0 else []
        if len(holes) > _MAX_HOLES:
            return None
        spans = [*map(shape.span, range(1, 5)), *(m.span(2) if m[2] is not None else m.span(3) for m in holes)]
        borders = [0, *(x for span in spans for x in span), len(text)]
        texts = tuple(text[a:z] for a, z in zip(borders[::2], borders[1::2], strict=True))
        names = tuple(m[1].decode() for m in holes)
        # A number that is nowhere in the text shows which argument a hole is: one at top level, or the hole is none.
        if _PROBE in text or _ESCAPED_DIGIT.search(text, low, high):
            return None
        numbers = [b"%b%d" % (_PROBE, 100 + i) for i in range(len(spans))]
        filled = b"".join(x for pair in zip(texts, [*numbers, b""], strict=True) for x in pair)
        try:
            event = self._decode(filled[: len(filled) - len(shape[6])])
        except (msgspec.MsgspecError, RecursionError):
            return None
        head = [str(event.pid).encode(), str(event.tid).encode(), bytes(event.ts), bytes(event.dur)]
        if event.ph != "X" or head != numbers[:4]:
            return None
        facts = self._arguments.facts(bytes(event.args))
        for name, number in zip(names, numbers[4:], strict=True):
            if (name, StatKind.INT64, int(number)) not in facts:
                return None
            facts.remove((name, StatKind.INT64, int(number)))
        # of a template and not of an event: what the holes held is no part of it
        plan = self._arguments.plan(event, facts, len(text))
        return _Template(texts[4:], names, plan)

    def _with_repeats(self, text: bytes, origin_us: int) -> Piece | None:
        """The events of an array, which is not searched further; None where it is not known to be whole events."""
        found_at = []
        at = text.find(_START)
        while at >= 0:
            found_at.append(at)
            at = text.find(_START, at + 1)
        if not found_at:
            return None
        starts = np.array(found_at, np.int64)
        ends = np.append(starts[1:], len(text))
        look = _Look(text)
        found = _Found(look, look.heads(starts), ends, origin_us)
        for _ in range(_PASSES):
            self._find(found)
            rest = np.flatnonzero(found.template < 0)
            first = dict(zip(found.keys[rest[::-1]].tolist(), rest[::-1].tolist(), strict=True))
            unknown = ((key, text[starts[i] : ends[i]]) for key, i in first.items())
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
        if starts[0] > 1 and runs and runs[0][2] == 0:
            runs[0] = (1, runs[0][1], 0)
        elif starts[0] > 1:
            runs.insert(0, (1, int(starts[0]), -1))
        for low, high, place in runs:
            run = text[low:high].rstrip(b" \t\r\n")
            if not run and place < 0:
                continue
            # a comma follows each event but the last, and that one never repeats a template, which ends with it
            if run[-1:] != (b"]" if high == len(text) else b",") or not run[:-1].strip(b" \t\r\n"):
                return None
            try:
                parsed = self._decode_all(b"[%b]" % run[:-1])
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
        look, start = found.look, found.heads.dur.high[rows]
        lengths, holes = self._lengths, self._holes[guess]
        is_right = look.starts_with(self._texts[0], guess, start)
        at = start + lengths[guess, 0]
        for h in range(int(holes.max(initial=0))):
            here = np.flatnonzero(is_right & (holes > h))
            if not len(here):
                break
            if h == len(found.values):
                found.values.append(np.zeros(len(found.keys), np.int64))
            number, high, is_number = look.natural(at[here])
            found.values[h][rows[here]] = number
            is_right[here] = is_number & look.starts_with(self._texts[1 + h], guess[here], high)
            at[here] = high + lengths[guess[here], 1 + h]
        is_right &= at == found.ends[rows]
        return is_right


class _Found:
    """What looks like the n events of a piece, and which templates they repeat.

    Attributes:
        template: number of the template of each, -1 where none is found, shape (n,).
        values: what stands in the holes, each of shape (n,).
        may_repeat: where the head of an event is one of a template, shape (n,).
    """

    def __init__(self, look: _Look, heads: _Heads, ends: Int64, origin_us: int) -> None:
        self.look, self.heads, self.ends = look, heads, ends
        self.keys = heads.keys(ends)
        self.template = np.full(len(ends), -1, np.int64)
        self.values: list[Int64] = []
        self._start, has_start = look.picoseconds(heads.ts, origin_us)
        self._duration, has_duration = look.picoseconds(heads.dur, 0)
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


@dataclass(frozen=True)
class _Numbers:
    """Decimal numbers in the text: where they start, their dots, and where they end, each of shape (n,)."""

    low: Int64
    dot: Int64
    high: Int64
    is_plain: Bools


class _Look:
    """Looks at many places of a text at once; a place behind its end reads as zeros."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._data = np.frombuffer(b"".join((bytes(_MARGIN), text, bytes(_BEHIND))), np.uint8)
        self._words = unaligned_words(self._data)

    def words(self, at: Int64, count: int) -> UInt64:
        """Eight bytes each from the places on, shape (n, count)."""
        return self.bytes_at(at, count).view(np.uint64)

    def bytes_at(self, at: Int64, count: int) -> UInt8:
        """Bytes from the places on, shape (n, 8 * count)."""
        size = 8 * count
        groups = np.ndarray((len(self._data) - size + 1,), f"V{size}", self._data, 0, (1,))
        found: UInt8 = groups[np.minimum(at, len(self._text)) + _MARGIN].view(np.uint8).reshape(len(at), size)
        return found

    def heads(self, starts: Int64) -> _Heads:
        """What events have up to their names."""
        pid, pid_end, has_pid = self.natural(starts + len(_START))
        tid, tid_end, has_tid = self.natural(pid_end + len(_TID))
        ts = self.numbers(tid_end + len(_TS))
        dur = self.numbers(ts.high + len(_DUR))
        is_whole = has_pid & has_tid & ts.is_plain & dur.is_plain
        is_whole &= self._has(_TID, pid_end) & self._has(_TS, tid_end) & self._has(_DUR, ts.high)
        return _Heads(self, pid, tid, ts, dur, is_whole)

    def _has(self, text: bytes, at: Int64) -> Bools:
        """Whether a text of up to eight bytes stands at the places."""
        mask = np.uint64((1 << 8 * len(text)) - 1)
        found: Bools = self.words(at, 1)[:, 0] & mask == np.uint64(int.from_bytes(text, "little"))
        return found

    def numbers(self, low: Int64) -> _Numbers:
        """Numbers without sign and exponent that start at the places."""
        text = self.bytes_at(low, 4)
        n = np.arange(len(low))
        is_other = (text - np.uint8(48)) > 9
        whole = is_other.argmax(axis=1)
        has_dot = text[n, whole] == 46
        is_other[n, whole] &= ~has_dot
        end = is_other.argmax(axis=1)
        is_plain = (whole >= 1) & (whole <= 16) & ((whole == 1) | (text[:, 0] != 48))
        is_plain &= np.where(has_dot, end > whole + 1, end == whole)
        end = np.where(is_plain, end, 0)
        return _Numbers(low, low + np.minimum(whole, end), low + end, is_plain)

    def picoseconds(self, numbers: _Numbers, origin_us: int) -> tuple[Int64, Bools]:
        """Microseconds as picoseconds since the origin, and where that fits."""
        low, dot, high = (np.minimum(x, len(self._text)) + _MARGIN for x in (numbers.low, numbers.dot, numbers.high))
        whole = whole_numbers(self._words, dot, np.clip(dot - low, 0, 16)) - origin_us
        digits = np.clip(high - dot - 1, 0, 8)
        part = (eight(leading(self._words[dot + 1], digits)) + 50) // 100  # from units of 10 fs
        return whole * PS_PER_US + part, numbers.is_plain & (np.abs(whole) <= MAX_WHOLE)

    def natural(self, low: Int64) -> tuple[Int64, Int64, Bools]:
        """Integers of up to 16 digits that start at the places, where they end, and whether they are plain."""
        text = self.bytes_at(low, 3)
        length = ((text - np.uint8(48)) > 9).argmax(axis=1)
        is_plain = (length >= 1) & (length <= 16) & ((length == 1) | (text[:, 0] != 48))
        high = low + length
        end = np.minimum(high, len(self._text)) + _MARGIN
        return whole_numbers(self._words, end, np.minimum(length, 16)), high, is_plain

    def starts_with(self, texts: list[bytes], which: Int64, at: Int64) -> Bools:
        """Whether `texts[which]` stands at the places."""
        wanted = map(texts.__getitem__, which.tolist())
        return np.fromiter(map(self._text.startswith, wanted, at.tolist()), np.bool_, len(at))


@dataclass(frozen=True)
class _Heads:
    """What events have up to their names, n of them."""

    look: _Look
    pid: Int64
    tid: Int64
    ts: _Numbers
    dur: _Numbers
    is_whole: Bools

    def keys(self, ends: Int64) -> UInt64:
        """A key per event by its name and its last bytes; equal for repeats, shape (n,)."""
        name_at = self.dur.high + len(_NAME)
        name = self.look.words(name_at, 6)
        text = name.view(np.uint8) == 34
        length = np.where(text.any(axis=1), text.argmax(axis=1), 48)
        last = self.look.words(np.maximum(ends - 8, 0), 1)[:, 0]
        is_other = (last & np.uint64(_HIGH)) ^ np.uint64(_THREES)
        key = last & (is_other | (is_other >> np.uint64(4)))  # digits (and : ; < = > ?) count as nothing
        for i in range(name.shape[1]):
            key ^= leading(name[:, i], np.clip(length - 8 * i, 0, 8), is_raw=True)
            key *= np.uint64(0x9E3779B97F4A7C15)
            key ^= key >> np.uint64(29)
        return key


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


__all__ = ["Piece", "Repeats", "TemplateParser"]
