"""fsck finds every kind of damage; a run is compared with the bytes of its capture."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from benchmarks.tpu_captures import write_capture
from chrome_reference import plain_planes as plain_chrome
from msgspec.structs import replace
from xplane_builder import Ref, Space, Unsigned, content, integer

from tracewarehouse.ingest import capture_comparison
from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.capture_comparison import compare_with_capture
from tracewarehouse.ingest.errors import CaptureError, WarehouseError
from tracewarehouse.ingest.lake.durable_files import file_digest
from tracewarehouse.ingest.lake.fsck import fsck
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import RunVersion, manifest_text
from tracewarehouse.ingest.lake.parquet import parquet_writer
from tracewarehouse.ingest.pipeline import IngestResult, ingest_one
from tracewarehouse.ingest.readers.formats import XPLANE
from tracewarehouse.ingest.readers.xplane.plain import plain_planes
from tracewarehouse.warehouse import Warehouse

Change = Callable[[pa.Table], pa.Table]
COMPARED = ["tpu-v6e-4chip-host-offload", "tpu-2chip-vllm-tp2-prefill", "gpu-mi300-jax-gemm", "cpu_llama_ppmp"]
"""Real captures that are compared: of each kind of device, and of two hosts."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, IngestResult]:
    """A capture, a warehouse of it, and its run; tests have copies, since they damage them."""
    folder = tmp_path_factory.mktemp("made")
    capture = folder / "tpu.xplane.pb"
    write_capture(capture, 0.2, devices=2, ops=40)
    return capture, folder / "w", ingest_one(capture, folder / "w")


@pytest.fixture
def capture(made: tuple[Path, Path, IngestResult], tmp_path: Path) -> Path:
    return shutil.copy(made[0], tmp_path / made[0].name)


@pytest.fixture
def run(made: tuple[Path, Path, IngestResult], capture: Path, tmp_path: Path) -> IngestResult:
    shutil.copytree(made[1], tmp_path / "w")
    return made[2]


def file_of(warehouse: Path, run: IngestResult, table: str) -> Path:
    [path] = Lake(warehouse).paths(run.entry, table)
    return path


def rewrite(path: Path, change: Change) -> None:
    """Change a table as a faulty writer would have written it: with the right digest in the manifest."""
    table = pq.ParquetFile(path).read()
    changed = change(table)
    with parquet_writer(path, changed.schema) as writer:
        writer.write_table(changed)
    warehouse = path.parents[3]
    [run] = Lake(warehouse).runs()
    seal(warehouse, replace(run, digests=run.digests | {str(path.relative_to(warehouse)): file_digest(path)}))


def seal(warehouse: Path, run: RunVersion) -> None:
    (warehouse / "manifests" / f"{run.run_id}.json").write_text(manifest_text(run))


def with_column(name: str, function: Callable[[Any], Any]) -> Change:
    def change(table: pa.Table) -> pa.Table:
        i = table.schema.get_field_index(name)
        return table.set_column(i, table.schema.field(i), function(table.column(i)))

    return change


class TestFsck:
    def test_a_whole_warehouse(self, run: IngestResult, tmp_path: Path) -> None:
        assert fsck(tmp_path / "w") == []

    def test_no_warehouse(self, tmp_path: Path) -> None:
        with pytest.raises(WarehouseError, match="no warehouse here"):
            fsck(tmp_path)

    def problem(self, tmp_path: Path) -> str:
        [found] = fsck(tmp_path / "w")
        assert found.action
        return str(found)

    @pytest.fixture
    def is_mended(self, capture: Path, run: IngestResult, tmp_path: Path) -> Iterator[None]:
        """What the action says, `tw ingest` again, puts the warehouse right."""
        yield
        [found] = fsck(tmp_path / "w")
        assert found.action == "`tw ingest` its capture again"
        assert ingest_one(capture, tmp_path / "w").status == "ingested"
        assert fsck(tmp_path / "w") == []
        assert ingest_one(capture, tmp_path / "w").status == "unchanged"

    @pytest.mark.usefixtures("is_mended")
    def test_a_file_that_is_gone(self, run: IngestResult, tmp_path: Path) -> None:
        file_of(tmp_path / "w", run, "ops").unlink()
        assert "ops.parquet: there is no such file" in self.problem(tmp_path)

    @pytest.mark.usefixtures("is_mended")
    def test_a_file_cut_short(self, run: IngestResult, tmp_path: Path) -> None:
        path = file_of(tmp_path / "w", run, "ops")
        path.write_bytes(path.read_bytes()[:-100])
        assert "ops.parquet: its bytes are not those that were written" in self.problem(tmp_path)

    @pytest.mark.usefixtures("is_mended")
    @pytest.mark.parametrize("place", [0.1, 0.5, 0.95, 0.999])
    def test_one_flipped_bit(self, run: IngestResult, tmp_path: Path, place: float) -> None:
        path = file_of(tmp_path / "w", run, "ops")
        data = bytearray(path.read_bytes())
        data[int(len(data) * place)] ^= 4
        path.write_bytes(data)
        assert "ops.parquet: its bytes are not those that were written" in self.problem(tmp_path)

    @pytest.mark.parametrize("place", [0.1, 0.3, 0.5, 0.7])
    def test_page_checksums_are_verified_beside_the_digest(
        self, run: IngestResult, tmp_path: Path, place: float
    ) -> None:
        path = file_of(tmp_path / "w", run, "ops")
        data = bytearray(path.read_bytes())
        end = pq.read_metadata(path)
        last = end.row_group(end.num_row_groups - 1)
        column = last.column(last.num_columns - 1)
        size = column.data_page_offset + column.total_compressed_size
        data[int(size * place)] ^= 4
        path.write_bytes(data)
        file = str(path.relative_to(tmp_path / "w"))
        seal(tmp_path / "w", replace(run.entry, digests=run.entry.digests | {file: file_digest(path)}))
        assert "ops.parquet: it cannot be read" in self.problem(tmp_path)

    def test_rows_that_are_missing(self, run: IngestResult, tmp_path: Path) -> None:
        rewrite(file_of(tmp_path / "w", run, "ops"), lambda t: t.slice(1))
        assert "ops.parquet: has" in self.problem(tmp_path)

    def test_an_event_that_is_there_twice(self, run: IngestResult, tmp_path: Path) -> None:
        rewrite(file_of(tmp_path / "w", run, "ops"), lambda t: pa.concat_tables([t.slice(1), t.slice(1, 1)]))
        assert "2 of its" in self.problem(tmp_path)

    def test_columns_of_another_table(self, run: IngestResult, tmp_path: Path) -> None:
        rewrite(file_of(tmp_path / "w", run, "phases"), lambda t: t.drop_columns(["source"]))
        assert "its columns are not those" in self.problem(tmp_path)

    def test_an_instruction_that_is_not_there(self, run: IngestResult, tmp_path: Path) -> None:
        change = with_column("instruction_id", lambda c: pc.add(c, pa.scalar(1000, pa.int32())))
        rewrite(file_of(tmp_path / "w", run, "collectives"), change)
        assert "collectives names an instruction" in self.problem(tmp_path)

    def test_hosts_of_another_capture(self, run: IngestResult, tmp_path: Path) -> None:
        change = with_column("digest", lambda c: pa.array(["0" * 64] * len(c)))
        rewrite(file_of(tmp_path / "w", run, "hosts"), change)
        assert "its id does not follow from the digests of its hosts" in self.problem(tmp_path)

    def test_rows_of_another_run(self, run: IngestResult, tmp_path: Path) -> None:
        change = with_column("run_id", lambda c: pa.array([*c.to_pylist()[:-1], "r0"]))
        rewrite(file_of(tmp_path / "w", run, "phases"), change)
        assert "phases.parquet: it has rows of the run r0" in self.problem(tmp_path)

    @pytest.mark.usefixtures("is_mended")
    def test_a_manifest_of_another_schema(self, run: IngestResult, tmp_path: Path) -> None:
        seal(tmp_path / "w", replace(run.entry, schema_version=0))
        assert "has table schema 0" in self.problem(tmp_path)

    @pytest.mark.usefixtures("is_mended")
    @pytest.mark.parametrize("change", [{"source_digest": "abc"}, {"rows": {}}, {"surprise": 1}, {"run_id": "r0"}])
    def test_a_manifest_that_was_changed(self, run: IngestResult, tmp_path: Path, change: dict[str, Any]) -> None:
        path = tmp_path / "w" / "manifests" / f"{run.run_id}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        assert "not a run manifest" in self.problem(tmp_path)

    @pytest.mark.usefixtures("is_mended")
    def test_a_manifest_of_another_run(self, run: IngestResult, tmp_path: Path) -> None:
        path = tmp_path / "w" / "manifests" / f"{run.run_id}.json"
        path.write_text(manifest_text(replace(run.entry, run_id="r0")))
        assert "it is of run r0" in self.problem(tmp_path)

    @pytest.mark.usefixtures("is_mended")
    @pytest.mark.parametrize("content", ["", "{", "[]", "1", '{"files": 3}'])
    def test_a_manifest_that_is_none(self, run: IngestResult, tmp_path: Path, content: str) -> None:
        (tmp_path / "w" / "manifests" / f"{run.run_id}.json").write_text(content)
        assert "not a run manifest" in self.problem(tmp_path)

    def test_a_table_without_its_file(self, run: IngestResult, tmp_path: Path) -> None:
        files = {t: f for t, f in run.entry.files.items() if t != "phases"}
        digests = {f: d for f, d in run.entry.digests.items() if f not in run.entry.files["phases"]}
        seal(tmp_path / "w", replace(run.entry, files=files, digests=digests))
        assert "counts rows of phases but names no file" in self.problem(tmp_path)


class TestAgainst:
    def test_everything_is_there(self, capture: Path, run: IngestResult, tmp_path: Path) -> None:
        found = compare_with_capture(find_captures(capture)[0], tmp_path / "w")
        assert (found.run_id, found.events, found.differences) == (run.run_id, run.event_count, [])
        assert found.stats > found.events

    @pytest.mark.parametrize(
        ("table", "change", "sentence"),
        [
            ("ops", lambda t: t.slice(1), "events is"),
            ("ops", with_column("start_ps", lambda c: pc.add(c, 1)), "sum of start_ps is"),
            ("host_events", with_column("duration_ps", lambda c: pc.add(c, 1)), "sum of duration_ps is"),
            ("ops", with_column("device_offset_ps", lambda c: pa.nulls(len(c), c.type)), "stat 'device_offset_ps'"),
            ("event_stats", lambda t: t.slice(1), "values of stat"),
            ("event_stats", with_column("int_value", lambda c: pc.add(c, 1)), "has other values in the run"),
            ("lines", lambda t: t.filter(pc.field("line") != "Steps"), "line 'Steps' of plane '/device:TPU:0'"),
            ("lines", lambda t: pa.concat_tables([t, t.slice(0, 1)]), "the run has 1 lines more than the capture"),
            ("plane_stats", lambda t: t.slice(1), "the run fewer"),
        ],
    )
    def test_a_change_is_found(
        self, capture: Path, run: IngestResult, tmp_path: Path, table: str, change: Change, sentence: str
    ) -> None:
        rewrite(file_of(tmp_path / "w", run, table), change)
        found = compare_with_capture(find_captures(capture)[0], tmp_path / "w")
        assert any(sentence in d for d in found.differences)

    def test_a_capture_that_was_not_ingested(self, capture: Path, tmp_path: Path) -> None:
        with pytest.raises(WarehouseError, match="run `tw ingest` on it first"):
            compare_with_capture(find_captures(capture)[0], tmp_path / "w")

    def test_a_run_without_its_files(self, capture: Path, run: IngestResult, tmp_path: Path) -> None:
        file_of(tmp_path / "w", run, "ops").unlink()
        with pytest.raises(WarehouseError, match="its tables cannot be read"):
            compare_with_capture(find_captures(capture)[0], tmp_path / "w")

    @pytest.mark.filterwarnings("ignore::tracewarehouse.SkippedEntryWarning")
    def test_the_real_captures(self, shared_traces: Path, shared_captures: Warehouse) -> None:
        events = {r.run_id: r.rows["events"] for r in shared_captures.lake.runs()}
        captures = {c.name: c for c in find_captures(shared_traces)}
        chrome = find_captures(shared_traces / "tpu-2chip-vllm-tp2-prefill.trace.json.gz")
        for capture in [*(captures[name] for name in COMPARED), *chrome]:
            decode = plain_planes if capture.files[0].name.endswith(XPLANE.suffixes) else plain_chrome
            with patch.object(capture_comparison, "plain_planes", decode):
                found = compare_with_capture(capture, shared_captures.lake.warehouse)
            assert found.differences == []
            assert found.events == events[found.run_id]
        assert fsck(shared_captures.lake.warehouse) == []

    def test_a_chrome_trace_of_any_program(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Categories, counters with arguments that are an instruction's elsewhere, ids that are no number, no end."""
        path = tmp_path / "a.trace.json"
        path.write_text(
            '[{"ph":"X","pid":1,"tid":2.5,"ts":1,"dur":2,"cat":"gpu","name":"a","args":{"flops":"7","x":"1"}},'
            '{"ph":"C","pid":1,"ts":2,"name":"c","args":{"flops":"7","\\u00e9":"y"}},'
            '{"ph":"B","pid":"p","tid":2,"ts":3,"cat":"5","name":"b"},'
            '{"ph":"E","pid":"p","tid":2,"ts":4,"args":{"z":[1]}},'
        )
        [capture] = find_captures(path)
        ingest_one(path, tmp_path / "w")
        with pytest.raises(CaptureError, match="found chrome"):
            compare_with_capture(capture, tmp_path / "w")
        monkeypatch.setattr(capture_comparison, "plain_planes", plain_chrome)
        found = compare_with_capture(capture, tmp_path / "w")
        assert found.differences == []
        assert (found.events, found.stats) == (3, 6)

    def test_stats_that_are_odd_are_kept(self, tmp_path: Path) -> None:
        """Repeated, of mixed kinds, beyond int64, HLO names without an op, on accelerators and hosts."""
        space = Space()
        tpu = space.tpu(0)
        tpu.ops.event("a", 0, 1, device_offset_ps="12").event("b", 2, 3, device_offset_ps="x", hlo_op="c", wide=-1)
        tpu.ops.event("c", 5, 1, wide=Unsigned((1 << 64) - 1), ratio=float("nan"), word=Ref("shared"), raw=b"\0\xff")
        twice = b"".join(content(4, tpu.encode_stat("device_offset_ps", Unsigned(v))) for v in (7, 8))
        tpu.ops.raw_event(integer(1, tpu.metadata("d")), integer(2, 9), integer(3, 1), twice)
        gpu = space.plane("/device:GPU:0").line("Stream #1")
        gpu.event("k1", 0, 1, hlo_op="fusion.1", hlo_module="m", program_id=3).event("k2", 2, 1, program_id=3)
        gpu.event("k3", 4, 1, hlo_module="m").event("k4", 6, 1, hlo_op="fusion.1", program_id="not a number")
        both = b"".join(content(4, gpu.plane.encode_stat("hlo_op", v)) for v in ("one", "two"))
        gpu.raw_event(integer(1, gpu.plane.metadata("k5")), integer(2, 8), integer(3, 1), both)
        space.host().line("t").event("h", 0, 1, hlo_op="x", device_offset_ps=4)
        path = space.write(tmp_path / "a.xplane.pb")
        ingest_one(path, tmp_path / "w")
        found = compare_with_capture(find_captures(path)[0], tmp_path / "w")
        assert found.differences == []
        assert (found.events, found.stats) == (10, 21)
