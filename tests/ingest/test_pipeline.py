"""Ingest as a user meets it: the same bytes once, bad input named, nothing half written."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from xplane_builder import Space, Unsigned

from tracewarehouse.ingest.capture.manifest import Mesh
from tracewarehouse.ingest.capture.run_options import RunOptions
from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.errors import CaptureError, SkippedEntryWarning, TracewarehouseError, WarehouseError
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.ingest.pipeline import ingest_one

Query = Callable[..., list[tuple[Any, ...]]]


def capture(events: int = 100, start_ns: int = 1_000_000_000) -> Space:
    space = Space(hostnames=["vm"])
    tpu = space.tpu(0)
    metadata = tpu.instruction("%dot.1 = f32[8]{0} dot(f32[8]{0} %a, f32[8]{0} %b)", program_id=Unsigned(1))
    tpu.modules.event("decode(1)", 0, events * 10)
    for i in range(events):
        tpu.ops.event(metadata, i * 10, 9, device_offset_ps=Unsigned(i))
    space.profiled(start_ns, start_ns + 1_000_000)
    return space


class TestIdentity:
    def test_the_same_bytes_are_the_same_run(self, tmp_path: Path) -> None:
        path = capture().write(tmp_path / "a.xplane.pb")
        first = ingest_one(path, tmp_path / "w")
        assert first.status == "ingested"
        packed = tmp_path / "b.xplane.pb.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        renamed = Path(shutil.copy(path, tmp_path / "another name"))
        nested = tmp_path / "logdir" / "plugins" / "profile" / "2026_01_01" / "vm.xplane.pb"
        nested.parent.mkdir(parents=True)
        shutil.copy(path, nested)
        for again in (path, packed, renamed, tmp_path / "logdir"):
            result = ingest_one(again, tmp_path / "w")
            assert (result.run_id, result.status, result.event_count) == (first.run_id, "unchanged", 101)
        assert len(Lake(tmp_path / "w").runs()) == 1

    def test_a_mesh_adds_facts_and_the_bare_file_takes_none_away(self, tmp_path: Path) -> None:
        path = capture().write(tmp_path / "a.xplane.pb")
        bare = ingest_one(path, tmp_path / "w")
        meshed = ingest_one(path, tmp_path / "w", RunOptions(Mesh.parse("tp=1")))
        assert (meshed.run_id, meshed.status) == (bare.run_id, "ingested")
        assert ingest_one(path, tmp_path / "w").status == "unchanged"
        assert Lake(tmp_path / "w").runs()[0].version == meshed.entry.version

    def test_another_capture_is_another_run(self, tmp_path: Path) -> None:
        one = ingest_one(capture(100).write(tmp_path / "a.xplane.pb"), tmp_path / "w")
        two = ingest_one(capture(101).write(tmp_path / "a.xplane.pb"), tmp_path / "w")
        assert one.run_id != two.run_id

    def test_lost_files_are_written_again(self, tmp_path: Path) -> None:
        path = capture().write(tmp_path / "a.xplane.pb")
        first = ingest_one(path, tmp_path / "w")
        Lake(tmp_path / "w").paths(first.entry, "ops")[0].unlink()
        assert ingest_one(path, tmp_path / "w").status == "ingested"


class TestFolders:
    def test_loose_files_are_hosts_of_one_run_where_their_profiles_overlap(self, tmp_path: Path) -> None:
        capture(10, 1_000_000_000).write(tmp_path / "run_host0.xplane.pb")
        capture(11, 1_000_000_100).write(tmp_path / "run_host1.xplane.pb")
        capture(12, 9_000_000_000).write(tmp_path / "later.xplane.pb")
        found = {c.name: [f.name for f in c.files] for c in find_captures(tmp_path)}
        assert found == {"later": ["later.xplane.pb"], "run": ["run_host0.xplane.pb", "run_host1.xplane.pb"]}

    def test_a_run_folder_is_one_run_whatever_its_hosts_say(self, tmp_path: Path) -> None:
        folder = tmp_path / "log" / "plugins" / "profile" / "t1"
        capture(10, 1_000_000_000).write(folder / "host2.xplane.pb")
        capture(11, 9_000_000_000).write(folder / "host10.xplane.pb")
        [found] = find_captures(tmp_path)
        assert [f.name for f in found.files] == ["host2.xplane.pb", "host10.xplane.pb"]

    def test_an_export_beside_its_xplane_is_left_out(self, tmp_path: Path) -> None:
        folder = tmp_path / "plugins" / "profile" / "t1"
        capture().write(folder / "vm.xplane.pb")
        (folder / "vm.trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))
        [found] = find_captures(tmp_path)
        assert [f.name for f in found.files] == ["vm.xplane.pb"]

    def test_hidden_folders_are_not_captures(self, tmp_path: Path) -> None:
        capture().write(tmp_path / ".unfinished" / "vm.xplane.pb")
        with pytest.raises(CaptureError, match="no capture in this folder; looked for"):
            find_captures(tmp_path)

    def test_a_copy_in_the_same_run_folder_is_left_out(self, tmp_path: Path) -> None:
        folder = tmp_path / "plugins" / "profile" / "t1"
        path = capture().write(folder / "vm.xplane.pb")
        (folder / "vm2.xplane.pb.gz").write_bytes(gzip.compress(path.read_bytes()))
        result = ingest_one(tmp_path, tmp_path / "w")
        assert any("holds the same bytes" in n for n in result.notes)
        assert result.entry.rows["hosts"] == 1

    def test_several_captures_are_not_one(self, tmp_path: Path) -> None:
        capture(10, 1_000_000_000).write(tmp_path / "a.xplane.pb")
        capture(11, 9_000_000_000).write(tmp_path / "b.xplane.pb")
        with pytest.raises(CaptureError, match="holds 2 captures"):
            ingest_one(tmp_path, tmp_path / "w")

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            (
                "perfetto_trace.json.gz",
                b'{"displayTimeUnit":"ns","traceEvents":[{"ph":"X","pid":1,"tid":1,"ts":1,"dur":1}]}',
            ),
            ("kineto_trace_0.json.gz", b'{"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": []}'),
            ("rank1.json.gz", b'\n{ "traceEvents" : []}'),
            ("trace.json", b'[ {"name": "f", "ph": "X", "ts": 1, "dur": 1}]'),
        ],
    )
    def test_a_trace_is_found_by_its_content_whatever_its_name(self, tmp_path: Path, name: str, content: bytes) -> None:
        folder = tmp_path / "llama"
        folder.mkdir()
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        (folder / "notes.json").write_text('{"answer": 42, "of": {"traceEvents": []}, "why": "\\"traceEvents\\": "}')
        (folder / "batch_composition_stats_1.json").write_text('{"traceEvents": 1}')
        [found] = find_captures(tmp_path)
        assert [f.name for f in found.files] == [name]
        assert found.name == ("trace" if name == "trace.json" else "llama")

    def test_what_is_written_for_perfetto_beside_a_trace_is_the_same_events(self, tmp_path: Path) -> None:
        folder = tmp_path / "plugins" / "profile" / "t1"
        capture().write(folder / "vm.xplane.pb")
        for name in ("perfetto_trace.json.gz", "vm.trace.json.gz"):
            (folder / name).write_bytes(gzip.compress(b'{"traceEvents": []}'))
        [found] = find_captures(tmp_path)
        assert [f.name for f in found.files] == ["vm.xplane.pb"]

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("report1.nsys-rep", "a report of Nsight Systems"),
            ("report1.qdrep", "a report of Nsight Systems"),
            ("trace.pftrace", "a protobuf trace of Perfetto"),
            ("k.ncu-rep", "a report of Nsight Compute"),
        ],
    )
    def test_files_of_other_profilers_are_named_for_what_they_are(self, tmp_path: Path, name: str, kind: str) -> None:
        file = tmp_path / name
        file.write_bytes(b"\0" + bytes(100))
        with pytest.raises(
            CaptureError,
            match=f"no capture in this folder.*left out .*{name} .{kind}(, which|; run `nsys export .*{name}`)",
        ):
            find_captures(tmp_path)
        with pytest.raises(CaptureError, match=f"{name}: {kind}(, which is not read; give |; run `nsys export )"):
            ingest_one(file, tmp_path / "w")
        capture().write(tmp_path / "a.xplane.pb")
        with pytest.warns(SkippedEntryWarning, match=f"left out .*{name} .{kind}"):
            assert [c.name for c in find_captures(tmp_path)] == ["a"]

    def test_a_folder_of_ccl_bench_says_what_reads_its_card(self, tmp_path: Path) -> None:
        folder = tmp_path / "qwen3"
        folder.mkdir()
        (folder / "settings.yaml").write_text("workload: 3")
        (folder / "qwen3_tp2.yaml").write_text("version: 1\nworkload:\n  model: {}\nModel-executor:\n  framework: {}\n")
        with pytest.raises(CaptureError, match=r"left out .*qwen3_tp2.yaml .*`tw import ccl-bench .*qwen3` reads it"):
            find_captures(folder)
        (folder / "qwen3_tp2.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
        with pytest.warns(SkippedEntryWarning, match="a card of CCL-Bench: `tw import ccl-bench .*qwen3` reads it"):
            [found] = find_captures(folder)
        assert (found.name, found.card) == ("qwen3_tp2", None)

    def test_files_that_all_have_one_name_are_named_by_their_folders(self, tmp_path: Path) -> None:
        for number, folder in enumerate(("before", "after", "llama.tp4")):
            capture(number).write(tmp_path / folder / "host0.xplane.pb")
        assert [c.name for c in find_captures(tmp_path)] == ["after", "before", "llama.tp4"]
        assert [c.name for c in find_captures(tmp_path / "before" / "host0.xplane.pb")] == ["before"]
        capture(10, 1_000_000_000).write(tmp_path / "both" / "worker-0.xplane.pb")
        capture(11, 1_000_000_100).write(tmp_path / "both" / "worker-1.xplane.pb")
        assert [c.name for c in find_captures(tmp_path / "both")] == ["both"]


BAD: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "no such file"),
    "empty": (b"", "is empty"),
    "garbage": (bytes(range(256)) * 64, "not a complete xplane.pb"),
    "text": (b"hello, this is a log file\n" * 100, "not a complete xplane.pb"),
    "json of another kind": (b'{"answer": 42}', "traceEvents"),
    "damaged gzip": (b"\x1f\x8b\x08\x00garbage that is no deflate stream", "damaged gzip"),
    "no planes": (b"\x22\x02vm", "without planes"),
}


class TestBadInput:
    @pytest.mark.parametrize("kind", BAD)
    def test_one_clear_error_and_nothing_written(self, kind: str, tmp_path: Path) -> None:
        content, sentence = BAD[kind]
        path = tmp_path / "bad.xplane.pb"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(CaptureError, match=sentence) as error:
            ingest_one(path, tmp_path / "w")
        assert "\n" not in str(error.value)
        assert "bad.xplane.pb" in str(error.value)
        assert not list(tmp_path.glob("w/**/*.parquet"))

    def test_a_manifest_that_is_wrong_names_the_field(self, tmp_path: Path) -> None:
        capture().write(tmp_path / "c" / "plugins" / "profile" / "t" / "vm.xplane.pb")
        (tmp_path / "c" / "manifest.json").write_text(json.dumps({"name": "x", "mesh": {"axes": {"qp": 2}}}))
        with pytest.raises(CaptureError, match=r"manifest\.json: not a valid manifest: .*unknown mesh axis qp"):
            ingest_one(tmp_path / "c", tmp_path / "w")

    def test_a_warehouse_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "w").write_text("")
        with pytest.raises(WarehouseError):
            ingest_one(capture().write(tmp_path / "a.xplane.pb"), tmp_path / "w")

    def test_times_that_are_negative_or_overlap_are_kept(
        self, tmp_path: Path, tables_in: Callable[[Path], Query]
    ) -> None:
        space = Space()
        tpu = space.tpu(0)
        metadata = tpu.instruction("%dot.1 = f32[8]{0} dot(f32[8]{0} %a)", program_id=Unsigned(1))
        for start, duration in ((0, 100), (50, 100), (-20, 10), (30, -5)):
            tpu.ops.event(metadata, start, duration)
        ingest_one(space.write(tmp_path / "a.xplane.pb"), tmp_path / "w")
        rows = tables_in(tmp_path / "w")("SELECT start_ps, duration_ps FROM ops ORDER BY event_id")
        assert rows == [(0, 100), (50, 100), (-20, 10), (30, -5)]


class TestTables:
    def test_files_have_the_schema_with_units_and_comments(self, tmp_path: Path) -> None:
        result = ingest_one(capture().write(tmp_path / "a.xplane.pb"), tmp_path / "w")
        [path] = Lake(tmp_path / "w").paths(result.entry, "ops")
        schema = pq.read_schema(path)
        assert schema.names == [c.name for c in TABLES["ops"].columns]
        start = schema.field("start_ps")
        assert start.type == pa.int64()
        assert start.metadata[b"unit"] == b"ps"
        assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"

    def test_metric_values_are_part_of_the_version(self, tmp_path: Path, tables_in: Callable[[Path], Query]) -> None:
        class Count:
            fingerprint = "abc"

            def __call__(self, files: dict[str, list[Path]], run_id: str) -> dict[str, list[Any]]:
                rows = sum(pq.read_metadata(path).num_rows for path in files["ops"])
                row = {"metric": "ops", "version": 1, "dimensions": "{}", "value": float(rows), "unit": "count"}
                return {name: [value] for name, value in (row | {"fingerprint": "abc"}).items()}

        result = ingest_one(capture().write(tmp_path / "a.xplane.pb"), tmp_path / "w", evaluate=Count())
        assert result.entry.metrics_fingerprint == "abc"
        query = tables_in(tmp_path / "w")
        assert query("SELECT run_id, metric, value FROM metric_values") == [(result.run_id, "ops", 101.0)]

    def test_a_failing_evaluation_publishes_nothing(self, tmp_path: Path) -> None:
        class Fails:
            fingerprint = "abc"

            def __call__(self, files: dict[str, list[Path]], run_id: str) -> dict[str, list[Any]]:
                raise TracewarehouseError("no")

        with pytest.raises(TracewarehouseError, match="no"):
            ingest_one(capture().write(tmp_path / "a.xplane.pb"), tmp_path / "w", evaluate=Fails())
        assert not list(tmp_path.glob("w/**/*.parquet"))
