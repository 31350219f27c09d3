"""A Chrome trace is read in pieces: wherever they end, what comes out is what json.loads and a loop give."""

from __future__ import annotations

from pathlib import Path

import pytest
from chrome_reference import everything, opened, reference

from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.readers.chrome import document

EVENT = b'{"ph":"X","pid":%d,"tid":%d,"ts":%d,"dur":1.5,"name":"op%d","args":{"run_id":"%d","kind":"k%d"}}'


def written(folder: Path, content: bytes) -> Path:
    path = folder / "x.trace.json"
    path.write_bytes(content)
    return path


def events(count: int) -> list[bytes]:
    return [EVENT % (i % 3, i % 5, i, i % 7, i, i % 11) for i in range(count)]


@pytest.mark.parametrize("gap", [b"", b" ", b"\n", b"\r\n\t"])
def test_events_may_be_apart(tmp_path: Path, gap: bytes) -> None:
    path = written(tmp_path, b'{"a":1,"traceEvents":[' + (b"," + gap).join(events(400)) + b'],"z":[{},{"ph":1}]}')
    assert everything(opened(path, 300)) == reference(path.read_bytes())


def test_an_event_like_no_other_and_members_at_the_end_are_found_in_few_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Walking a text takes as long as parsing it twenty times; so do not after the last of the names that begin it."""
    walked: list[int] = []
    walk = document._end_of_events

    def counted(text: bytes) -> int:
        walked.append(len(text))
        return walk(text)

    monkeypatch.setattr(document, "_HEAD", 300)
    monkeypatch.setattr(document, "_end_of_events", counted)
    names = [b'{"name":"process_name","ph":"M","pid":%d,"args":{"name":"p"}}' % i for i in range(3)]
    path = written(
        tmp_path, b'{"traceEvents":[' + b",".join([*names, *events(400), *names]) + b'],"z":[%b]}' % b",".join(names)
    )
    assert everything(opened(path, 9000)) == reference(path.read_bytes())
    assert sum(walked) < 2000


def test_what_only_looks_like_the_border_of_events(tmp_path: Path) -> None:
    """Strings and arguments with events inside, between which pieces could end."""
    inside = b",".join(events(9))
    text = b'{"ph":"X","pid":1,"tid":1,"ts":1,"name":"%b","args":{"in":[%b]}}' % (
        inside.replace(b'"', b'\\"'),
        inside,
    )
    path = written(tmp_path, b"[" + b",".join([*events(3), *[text] * 20, *events(3)]) + b"]")
    assert everything(opened(path, 300)) == reference(path.read_bytes())


def test_begins_and_ends_in_different_pieces(tmp_path: Path) -> None:
    """The end of an outermost event far from its begin, ends without a begin, begins without an end."""
    begin, end = (b'{"ph":"%b","pid":1,"tid":%%d,"ts":%%d,"name":"b","args":{"x":"%%d"}}' % ph for ph in (b"B", b"E"))
    spans = [one % (i % 3, 1000 + i, i) for i in range(60) for one in (begin, end)]
    texts = [*events(40), end % (7, 5, 5), begin % (8, 6, 6), *spans, *events(40)]
    for at in (50, 100, 150):
        crossed = [*texts[:at], begin % (1, 900 + at, at), *texts[at:], end % (1, 9000, at), *events(9)]
        path = written(tmp_path, b"[" + b",".join(crossed) + b"]")
        assert everything(opened(path, 300)) == reference(path.read_bytes())


def test_halves_that_tell_their_duration_need_no_pairing(tmp_path: Path) -> None:
    """Those of `tw export chrome`: each begin has what its end would tell."""
    half = b'{"ph":"%b","pid":1,"tid":1,"ts":%d,"exact_dur":%d.000001,"cat":"a","id2":{"local":"%d"},"name":"n"}'
    halves = [half % (ph, ts, i, i) for i in range(100) for ph, ts in ((b"b", i), (b"e", 2 * i))]
    path = written(tmp_path, b"[" + b",".join([*events(20), *halves, *events(20)]) + b"]")
    assert everything(opened(path, 300)) == reference(path.read_bytes())


@pytest.mark.parametrize("damage", [b"}", b",", b'"', b"\xff", b"]", b'"traceEvents":[],'])
def test_damage_anywhere_is_refused_or_read_as_json_reads_it(tmp_path: Path, damage: bytes) -> None:
    content = b'{"traceEvents":[' + b",\n".join(events(120)) + b"]}"
    for at in range(0, len(content), len(content) // 7):
        for damaged in (content[:at] + damage + content[at:], content[:at] + damage + content[at + 1 :], content[:at]):
            path = written(tmp_path, damaged)
            if not damaged:
                continue
            try:
                found = everything(opened(path, 300))
            except CaptureError:
                continue
            assert found == reference(damaged)


def test_a_fault_in_a_late_piece_refuses_the_whole_trace(tmp_path: Path) -> None:
    texts = events(200)
    texts[150] = texts[150].replace(b'"k', b'"\xff')
    with pytest.raises(CaptureError, match="can't decode byte"):
        opened(written(tmp_path, b"[" + b",".join(texts) + b"]"), 300)
