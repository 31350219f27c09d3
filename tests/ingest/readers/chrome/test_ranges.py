"""A Chrome trace read in ranges by several processes: what comes out is what one process reads from front to back."""

from __future__ import annotations

import gzip
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from benchmarks.chrome_captures import write_trace
from chrome_reference import everything, reference
from divided_chrome import Here, always_divided, columns, opened, opened_in_ranges, read_all_ways
from fuzz.chrome import trace as random_trace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.pipeline import ingest_capture
from tracewarehouse.ingest.processes.pool import HelperError, start_helpers
from tracewarehouse.ingest.readers.chrome import ranges as chrome_ranges
from tracewarehouse.ingest.readers.chrome.gather import Gathered
from tracewarehouse.ingest.readers.chrome.ranges import Range, Ranges, Shared

EVENT = b'{"ph":"X","pid":%d,"tid":%d,"ts":%d,"dur":1.5,"name":"op%d","args":{"run_id":"%d","kind":"k%d"}}'


def written(folder: Path, content: bytes) -> Path:
    path = folder / "x.trace.json"
    path.write_bytes(content)
    return path


def events(count: int) -> list[bytes]:
    return [EVENT % (i % 3, i % 5, i, i % 7, i, i % 11) for i in range(count)]


def joined(path: Path, chunk: int = 300) -> list[bool]:
    """Whether each range behind the first was taken as its process had read it, in file order."""
    taken: list[bool] = []
    read = Ranges._read

    def spy(self: Ranges) -> Iterator[Gathered]:
        for found in read(self):
            taken.append(found._arguments is None)  # as those that were pickled
            yield found

    with patch.object(Ranges, "_read", spy):
        opened_in_ranges(path, chunk)
    return taken[1:]


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chrome") / "x.trace.json"
    with patch("benchmarks.chrome_captures.CHUNK", 300), patch("benchmarks.chrome_captures.OPS", 50):
        write_trace(path, 2)
    return path


def test_any_number_of_processes_reads_the_same(capture: Path) -> None:
    whole = columns(opened(capture, 1 << 16))
    with always_divided():
        for jobs in (2, 3):
            assert columns(opened(capture, 1 << 16, jobs)) == whole
    assert all(joined(capture, 1 << 16)[1:])  # the first ranges hold names only


def test_any_number_of_processes_writes_the_same_bytes(capture: Path, tmp_path: Path) -> None:
    def ingested(jobs: int) -> dict[str, bytes]:
        warehouse = tmp_path / str(jobs)
        ingest_capture(find_captures(capture)[0], warehouse, jobs=jobs)
        return {str(p.relative_to(warehouse)): p.read_bytes() for p in warehouse.rglob("*") if p.is_file()}

    with always_divided():
        assert ingested(2) == ingested(1)


def test_a_gzipped_trace_is_read_in_ranges(capture: Path, tmp_path: Path) -> None:
    packed = tmp_path / "x.trace.json.gz"
    packed.write_bytes(gzip.compress(capture.read_bytes(), 1))
    with always_divided():
        assert columns(opened(packed, 1 << 16, 2)) == columns(opened(capture, 1 << 16))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(r=st.randoms(use_true_random=False), odd=st.booleans(), chunk=st.sampled_from([1, 50, 300, 1500, 4000]))
def test_ranges_of_random_traces_hold_what_the_whole_holds(
    tmp_path: Path, r: random.Random, odd: bool, chunk: int
) -> None:
    path = written(tmp_path, random_trace(r, with_odd=odd))
    with suppress(CaptureError):  # the same either way
        read_all_ways(path, chunk)


@pytest.mark.parametrize("gap", [b"", b" ", b"\n", b"\r\n\t"])
def test_ranges_are_taken_as_they_were_read(tmp_path: Path, gap: bytes) -> None:
    path = written(tmp_path, b'{"a":1,"traceEvents":[' + (b"," + gap).join(events(400)) + b'],"z":[{},{"ph":1}]}')
    taken = joined(path)
    assert len(taken) >= 12
    assert all(taken)
    assert read_all_ways(path, 300) == reference(path.read_bytes())


def test_what_only_looks_like_the_border_of_events(tmp_path: Path) -> None:
    """Strings and arguments with events inside, which ranges may begin in."""
    inside = b",".join(events(9))
    text = b'{"ph":"X","pid":1,"tid":1,"ts":1,"name":"%b","args":{"in":[%b]}}' % (
        inside.replace(b'"', b'\\"'),
        inside,
    )
    path = written(tmp_path, b"[" + b",".join([*events(3), *[text] * 20, *events(3)]) + b"]")
    assert read_all_ways(path, 300) == reference(path.read_bytes())
    assert sum(joined(path)) < 12


def test_begins_and_ends_in_different_ranges(tmp_path: Path) -> None:
    """The end of an outermost event far from its begin, ends without a begin, begins without an end."""
    begin, end = (b'{"ph":"%b","pid":1,"tid":%%d,"ts":%%d,"name":"b","args":{"x":"%%d"}}' % ph for ph in (b"B", b"E"))
    spans = [one % (i % 3, 1000 + i, i) for i in range(60) for one in (begin, end)]
    texts = [*events(40), end % (7, 5, 5), begin % (8, 6, 6), *spans, *events(40)]
    for at in (50, 100, 150):
        crossed = [*texts[:at], begin % (1, 900 + at, at), *texts[at:], end % (1, 9000, at), *events(9)]
        path = written(tmp_path, b"[" + b",".join(crossed) + b"]")
        assert read_all_ways(path, 300) == reference(path.read_bytes())
    assert {*joined(path)} == {True, False}


def test_a_trace_that_begins_with_pairs_is_read_in_one_piece(tmp_path: Path) -> None:
    first = b'{"ph":"B","pid":1,"tid":1,"ts":0,"name":"b"}'
    path = written(tmp_path, b"[" + b",".join([first, *events(200)]) + b"]")
    assert not any(joined(path))
    assert read_all_ways(path, 300) == reference(path.read_bytes())


def test_halves_that_tell_their_duration_do_not_keep_ranges_together(tmp_path: Path) -> None:
    """Those of `tw export chrome`: each begin has what its end would tell."""
    half = b'{"ph":"%b","pid":1,"tid":1,"ts":%d,"exact_dur":%d.000001,"cat":"a","id2":{"local":"%d"},"name":"n"}'
    halves = [half % (ph, ts, i, i) for i in range(100) for ph, ts in ((b"b", i), (b"e", 2 * i))]
    path = written(tmp_path, b"[" + b",".join([*events(20), *halves, *events(20)]) + b"]")
    assert all(joined(path))
    assert read_all_ways(path, 300) == reference(path.read_bytes())


@pytest.mark.parametrize("damage", [b"}", b",", b'"', b"\xff", b"]", b'"traceEvents":[],'])
def test_damage_in_any_range_is_what_it_is_in_one_piece(tmp_path: Path, damage: bytes) -> None:
    content = b'{"traceEvents":[' + b",\n".join(events(120)) + b"]}"
    for at in range(0, len(content), len(content) // 7):
        for damaged in (content[:at] + damage + content[at:], content[:at] + damage + content[at + 1 :], content[:at]):
            path = written(tmp_path, damaged)
            if not damaged:
                continue
            try:
                found = read_all_ways(path, 300)
            except CaptureError:
                continue
            assert found == reference(damaged)


def test_bytes_that_were_replaced_are_told_of(tmp_path: Path) -> None:
    texts = events(200)
    texts[150] = texts[150].replace(b'"k', b'"\xff')
    assert "not UTF-8" in opened_in_ranges(written(tmp_path, b"[" + b",".join(texts) + b"]"), 300).warnings[0]


def test_small_traces_and_single_jobs_need_no_process(capture: Path) -> None:
    with patch.object(chrome_ranges, "start_helpers", side_effect=AssertionError):
        opened(capture, 1 << 22, 2)
        with always_divided():
            opened(capture, 1 << 22, 1)


def test_without_room_for_what_is_found_nothing_is_read(capture: Path) -> None:
    with (
        always_divided(),
        patch("tempfile.TemporaryFile", side_effect=OSError(28, "No space left on device")),
        pytest.raises(CaptureError, match="No space left on device; make room there"),
    ):
        opened(capture, 1 << 22, 2)


def test_a_full_disk_in_a_range_is_an_error_of_ours(capture: Path) -> None:
    with (
        patch("tracewarehouse.ingest.columns.spill.Spill.put", side_effect=OSError(28, "No space left on device")),
        pytest.raises(CaptureError, match="No space left on device; make room there"),
    ):
        opened_in_ranges(capture, 1 << 16)


def _end(shared: Shared, task: Range) -> Gathered | None:
    """End the helper; its caller waits until that is under way."""
    begun = Path(os.environ["BEGUN"])
    if os.environ["CALLER"] != str(os.getpid()):
        begun.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    while not begun.exists():
        time.sleep(0.01)
    return None


def test_a_helper_that_is_killed_publishes_nothing(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLER", str(os.getpid()))
    monkeypatch.setenv("BEGUN", str(tmp_path / "begun"))
    with (
        always_divided(),
        patch.object(chrome_ranges, "read_range", _end),
        pytest.raises(HelperError, match="SIGKILL"),
    ):
        ingest_capture(find_captures(capture)[0], tmp_path / "w", jobs=2)
    assert Lake(tmp_path / "w").runs() == []
    assert not list((tmp_path / "w").rglob("*.parquet"))


def test_no_process_is_left_when_a_trace_is_damaged(capture: Path, tmp_path: Path) -> None:
    started: list[Any] = []

    def start_watched(*arguments: Any) -> chrome_ranges.Processes:
        processes = start_helpers(*arguments)
        started.extend(h._process for h in processes._helpers)
        return processes

    path = written(tmp_path, capture.read_bytes()[:-3])
    with (
        always_divided(),
        patch.object(chrome_ranges, "start_helpers", start_watched),
        pytest.raises(CaptureError, match="truncated"),
    ):
        opened(path, 1 << 16, 2)
    assert [p.returncode for p in started] == [-signal.SIGKILL]


def test_the_helpers_of_these_tests_do_what_processes_do(capture: Path) -> None:
    with always_divided():
        by_processes = columns(opened(capture, 1 << 16, 3))
        with patch.object(chrome_ranges, "start_helpers", Here):
            assert columns(opened(capture, 1 << 16, 3)) == by_processes
    assert everything(opened_in_ranges(capture, 1 << 16)) == reference(capture.read_bytes())
