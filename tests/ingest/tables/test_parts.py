"""A run written in parts, by any number of processes, and what happens when one of them ends."""

from __future__ import annotations

import fcntl
import gzip
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
import pytest
from benchmarks.tpu_captures import write_capture
from tiny_capture import tiny_capture
from xplane_builder import Space

from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.columns.records import Line, Plane
from tracewarehouse.ingest.devices import run_survey
from tracewarehouse.ingest.devices.timeline import Timeline
from tracewarehouse.ingest.errors import CaptureError, WarehouseError
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.ingest.pipeline import IngestResult, ingest_capture
from tracewarehouse.ingest.processes.pool import HelperError, start_helpers
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.formats import open_trace
from tracewarehouse.ingest.readers.kineto import reader as kineto
from tracewarehouse.ingest.tables import parts
from tracewarehouse.ingest.tables.lines import DeviceEvents, PlaneLines
from tracewarehouse.ingest.tables.parts import divide


@pytest.fixture
def small_parts() -> Iterator[None]:
    """Divides captures of any size, into parts of one plane or some threads."""
    with patch.object(parts, "DIVIDED", 0), patch.object(parts, "_SMALLEST", 1):
        yield


def ingested(path: Path, warehouse: Path, jobs: int) -> IngestResult:
    return ingest_capture(find_captures(path)[0], warehouse, jobs=jobs)


def contents(warehouse: Path) -> dict[str, bytes]:
    return {str(p.relative_to(warehouse)): p.read_bytes() for p in warehouse.rglob("*") if p.is_file()}


def rows_of(warehouse: Path, result: IngestResult) -> dict[str, list[tuple[Any, ...]]]:
    lake = Lake(warehouse)
    return {
        t: [tuple(r.values()) for p in lake.paths(result.entry, t) for r in pq.read_table(p).to_pylist()]
        for t in TABLES
    }


class TestRun:
    def test_parts_hold_the_rows_of_the_whole(self, tmp_path: Path, small_parts: None) -> None:
        path = tmp_path / "tpu.xplane.pb"
        write_capture(path, 0.5, devices=4, ops=80)
        divided = ingested(path, tmp_path / "parts", 2)
        with patch.object(parts, "DIVIDED", 1 << 60):
            whole = ingested(path, tmp_path / "whole", 2)
        assert divided.run_id == whole.run_id
        assert divided.entry.rows == whole.entry.rows
        found, expected = rows_of(tmp_path / "parts", divided), rows_of(tmp_path / "whole", whole)
        for table in TABLES:
            assert found[table] == expected[table], table

    def test_programs_that_only_the_events_tell(self, tmp_path: Path, small_parts: None) -> None:
        """Instructions without a program id, one seen first on the second device, with a start and its done."""
        space = Space()
        for device in range(2):
            tpu = space.tpu(device)
            tpu.modules.event("decode(7)" if device else "prefill(5)", 0, 100)
            names = ["%ar-start.1 = f32[8]{0} all-reduce-start(f32[8]{0} %a), replica_groups={{0,1}}"]
            names.append("%ar-done.1 = f32[8]{0} all-reduce-done(f32[8]{0} %ar-start.1)")
            if device:
                names.append("%dot.9 = f32[8]{0} dot(f32[8]{0} %a, f32[8]{0} %b)")
            for i, name in enumerate(names):
                tpu.ops.event(tpu.instruction(name), 10 * i, 10)
        path = space.write(tmp_path / "a.xplane.pb")
        divided = rows_of(tmp_path / "parts", ingested(path, tmp_path / "parts", 2))
        with patch.object(parts, "DIVIDED", 1 << 60):
            whole = rows_of(tmp_path / "whole", ingested(path, tmp_path / "whole", 1))
        assert divided == whole
        names_at = [c.name for c in TABLES["instructions"].columns]
        programs = {r[names_at.index("name")]: r[names_at.index("program_id")] for r in divided["instructions"]}
        assert (programs["ar-start.1"], programs["ar-done.1"], programs["dot.9"]) == (5, 5, 7)
        assert len(divided["collectives"]) == 2

    def test_a_capture_of_virtual_cpu_devices_stays_whole(self, tmp_path: Path, small_parts: None) -> None:
        """Their ops are found by what all threads say together, also where ops state their device, as JAX's do."""
        [path] = (Path(__file__).parents[1] / "captures").glob("jax-*.xplane.pb.gz")
        result = ingested(path, tmp_path / "parts", 2)
        with patch.object(parts, "DIVIDED", 1 << 60):
            ingested(path, tmp_path / "whole", 1)
        assert result.entry.rows["ops"] > 0
        assert contents(tmp_path / "parts") == contents(tmp_path / "whole")

    def test_a_trace_of_a_gpu_is_parsed_together(self, tmp_path: Path, small_parts: None) -> None:
        path = Path(__file__).parents[3] / "data" / "gpu" / "h200-torch-cuda-graph.pt.trace.json.gz"
        with patch.object(kineto, "_PART", 1 << 18):
            ingested(path, tmp_path / "parts", 2)
        ingested(path, tmp_path / "whole", 1)
        assert contents(tmp_path / "parts") == contents(tmp_path / "whole")

    def test_a_gzipped_capture_and_several_hosts(self, tmp_path: Path, small_parts: None) -> None:
        run = tmp_path / "plugins" / "profile" / "t"
        run.mkdir(parents=True)
        for host in range(2):
            plain = tmp_path / "plain"
            write_capture(plain, 0.2, devices=2, ops=40, seed=host + 1)
            (run / f"host{host}.xplane.pb.gz").write_bytes(gzip.compress(plain.read_bytes()))
        first = ingested(run, tmp_path / "w1", 1)
        assert len(first.entry.files["ops"]) == 4
        ingested(run, tmp_path / "w2", 2)
        assert contents(tmp_path / "w1") == contents(tmp_path / "w2")

    def test_a_damaged_line_is_an_error_from_any_process(self, tmp_path: Path, small_parts: None) -> None:
        space = Space()
        for device in range(3):
            tpu = space.tpu(device)
            for i in range(50):
                tpu.ops.event(tpu.instruction("%dot.1 = f32[8]{0} dot(f32[8]{0} %a)"), 10 * i, 10)
            tpu.ops.events.append(b"\x22\x02\x10\xff")  # an offset without an end
        path = space.write(tmp_path / "a.xplane.pb")
        for jobs in (1, 3):
            with pytest.raises(CaptureError, match=r"a\.xplane\.pb: line 'XLA Ops' of plane '/device:TPU:0'"):
                ingested(path, tmp_path / "w", jobs)
            assert not [p for p in (tmp_path / "w" / "lake").rglob("*") if p.is_file()]

    def test_a_full_disk_in_a_helper_is_a_warehouse_error(self, tmp_path: Path, small_parts: None) -> None:
        path = tmp_path / "tpu.xplane.pb"
        write_capture(path, 0.2, devices=2, ops=40)
        with (
            patch.object(parts, "write_part", _full_disk),
            pytest.raises(WarehouseError, match="No space left on device"),
        ):
            ingested(path, tmp_path / "w", 2)
        assert list((tmp_path / "w" / "lake").iterdir()) == []

    @pytest.mark.parametrize("error", [KeyboardInterrupt, CaptureError])
    def test_an_error_while_helpers_still_write_leaves_nothing(
        self, tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
    ) -> None:
        monkeypatch.setenv("WAREHOUSE", str(tmp_path / "w"))
        path = tmp_path / "tpu.xplane.pb"
        write_capture(path, 0.2, devices=2, ops=40)

        def survey(*_: Any) -> None:
            while len(list(tmp_path.glob("w/lake/.staging-*/**/.events-*"))) < 300:  # which are not removed in no time
                time.sleep(0.001)
            raise error

        with (
            patch.object(parts, "count_events", _write_without_end),
            patch.object(run_survey, "survey_host", survey),
            pytest.raises(error),
        ):
            ingested(path, tmp_path / "w", 2)
        assert list((tmp_path / "w" / "lake").iterdir()) == []

    @pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
    def test_a_helper_that_is_killed_publishes_nothing(
        self, tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals
    ) -> None:
        monkeypatch.setenv("CALLER", str(os.getpid()))
        path = tmp_path / "tpu.xplane.pb"
        write_capture(path, 0.2, devices=2, ops=40)
        ends = _end_by_kill if sent == signal.SIGKILL else _end_by_term
        with patch.object(parts, "write_part", ends), pytest.raises(HelperError, match=sent.name) as error:
            ingested(path, tmp_path / "w", 2)
        assert "\n" not in str(error.value)
        assert Lake(tmp_path / "w").runs() == []
        assert list((tmp_path / "w" / "lake").iterdir()) == []


def _full_disk(shared: parts.Shared, task: Any) -> None:
    raise OSError(28, "No space left on device")


def _write_without_end(traces: Any, task: Any) -> None:
    (folder,) = Path(os.environ["WAREHOUSE"]).glob("lake/.staging-*/*/*")
    for number in count():
        with suppress(FileNotFoundError):
            (folder / f".events-{os.getpid()}-{number}").touch()


def _end_by_kill(shared: parts.Shared, task: Any) -> None:
    _end(shared, signal.SIGKILL)


def _end_by_term(shared: parts.Shared, task: Any) -> None:
    _end(shared, signal.SIGTERM)


def _end(shared: parts.Shared, sent: signal.Signals) -> None:
    """End the helper; its caller waits with the part it has itself until that is under way."""
    begun = shared.folder.path / "begun"
    if os.environ["CALLER"] != str(os.getpid()):
        begun.touch()
        os.kill(os.getpid(), sent)
    while not begun.exists():
        time.sleep(0.01)


class TestDivide:
    def test_planes_of_a_device_stay_together_and_threads_are_cut(self) -> None:
        def lines(*sizes: int) -> list[Line]:
            return [Line(f"l{i}", i, start=0, end=size) for i, size in enumerate(sizes)]

        def device(number: int) -> DeviceEvents:
            return DeviceEvents(number, Timeline(), np.zeros(1, np.int32))

        size = 40 << 20
        planes = [
            PlaneLines(0, "h", 0, 0, Plane("a"), lines(size), device(0)),
            PlaneLines(0, "h", 0, 1, Plane("b"), lines(size), device(1)),
            PlaneLines(0, "h", 0, 2, Plane("a sparse"), lines(10), device(0)),
            PlaneLines(0, "h", 0, 3, Plane("threads"), lines(*[size // 10] * 10)),
        ]
        pieces, found = divide(planes)
        assert [p.planes for p in found] == [(0, 2), (1,), (3,), (4,), (5,), (6,), (7,)]
        assert [len(p.lines) for p in pieces[3:]] == [2, 2, 2, 2, 2]
        assert [line for p in pieces[3:] for line in p.lines] == planes[3].lines

    def test_a_run_of_just_so_many_bytes_is_divided(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        trace = open_trace(CaptureFile(tiny_capture().write(tmp_path / "a.xplane.pb")))
        size = sum(line.end - line.start for plane in trace.planes for line in plane.lines)
        for bound, expected in ((size, [trace]), (size + 1, [])):
            monkeypatch.setattr(parts, "DIVIDED", bound)
            assert parts._divided([trace]) == expected


class TestProcesses:
    def test_results_come_in_the_order_of_the_tasks(self) -> None:
        with start_helpers(2) as both:
            assert both.count == 2
            both.share({"add": 5})
            assert both.start(_add, range(20)).results() == list(range(5, 25))
            assert both.start(_add, []).results() == []
            both.share({"add": 7})
            assert both.start(_add, [1, 2]).results() == [8, 9]

    def test_helpers_begin_before_the_results_are_asked_for(self, tmp_path: Path) -> None:
        with start_helpers(1) as both:
            work = both.start(_touch, [tmp_path / "begun"])
            deadline = time.monotonic() + 60
            while not (tmp_path / "begun").exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert work.results() != [os.getpid()]

    def test_the_first_error_is_raised_and_no_process_is_left(self) -> None:
        with start_helpers(1) as both:
            both.share({"add": 5})
            [helper] = both._helpers
            with pytest.raises(TypeError):
                both.start(_add, [1, "two", 3]).results()
        assert helper._process.returncode is not None

    def test_a_helper_has_no_lock_of_its_caller(self, tmp_path: Path) -> None:
        with (tmp_path / "lock").open("w") as lock, start_helpers(1) as both:
            fcntl.flock(lock, fcntl.LOCK_EX)
            [helper] = both._helpers
            assert helper.ask(_touch, tmp_path / "begun") != os.getpid()
            lock.close()
            with (tmp_path / "lock").open("w") as again:
                fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_helpers_end_with_their_caller(self) -> None:
        code = "from tracewarehouse.ingest.processes import pool; import time; "
        code += "p = pool.start_helpers(2); "
        code += "print(*(h._process.pid for h in p._helpers), flush=True); "
        caller = subprocess.Popen([sys.executable, "-c", code + "time.sleep(60)"], stdout=subprocess.PIPE)
        assert caller.stdout is not None
        helpers = [int(pid) for pid in caller.stdout.readline().split()]
        assert len(helpers) == 2
        caller.kill()
        caller.wait()
        caller.stdout.close()
        deadline = time.monotonic() + 60
        while any(_is_running(pid) for pid in helpers):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def test_any_number_of_processes_writes_the_same_bytes(self, tmp_path: Path, small_parts: None) -> None:
        path = tmp_path / "tpu.xplane.pb"
        count = write_capture(path, 0.5, devices=4, ops=80)
        alone = ingested(path, tmp_path / "alone", 1)
        helped = ingested(path, tmp_path / "helped", 3)
        assert alone.event_count == helped.event_count == count
        assert len(alone.entry.files["ops"]) == 4
        assert len(alone.entry.files["host_events"]) >= 4
        assert contents(tmp_path / "alone") == contents(tmp_path / "helped")


def _touch(_: None, path: Path) -> int:
    path.touch()
    return os.getpid()


def _add(state: dict[str, int], task: int) -> int:
    return state["add"] + task


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
