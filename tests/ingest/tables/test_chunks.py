"""A capture cut into small pieces gives the tables that it gives whole; the pieces of the writers one by one."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.tpu_captures import write_capture
from hypothesis import given, settings
from hypothesis import strategies as st
from xplane_builder import Space, Unsigned

from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.collectives import table as collectives
from tracewarehouse.ingest.columns import batches as event_batches
from tracewarehouse.ingest.columns.batches import chunks
from tracewarehouse.ingest.columns.nesting import nest
from tracewarehouse.ingest.columns.records import EventBatch, StatColumn, StatKind
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake import parquet
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.ingest.pipeline import ingest_capture, ingest_one
from tracewarehouse.ingest.readers.xplane import reader as xplane
from tracewarehouse.ingest.readers.xplane import wire

ORDERED = ("ops", "collectives", "host_events")


@contextmanager
def pieces_of(events: int, rows: int, window: int) -> Iterator[None]:
    """Chunks, blocks, row groups and windows of this size."""
    with (
        patch.object(event_batches, "CHUNK", events),
        patch.object(xplane, "BLOCK", events),
        patch.object(parquet, "ROW_GROUP", rows),
        patch.object(collectives, "SLICE", rows),
        patch.object(wire, "WINDOW", window),
    ):
        yield


def tables_in(path: Path, warehouse: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of a capture's tables; of those whose order is not promised, sorted."""
    entry = ingest_capture(find_captures(path)[0], warehouse).entry
    found = {}
    for table in TABLES:
        rows = [tuple(r.values()) for p in Lake(warehouse).paths(entry, table) for r in pq.read_table(p).to_pylist()]
        found[table] = rows if table in ORDERED else sorted(rows, key=repr)
    shutil.rmtree(warehouse)
    return found


def assert_same_in_pieces(path: Path, folder: Path, *sizes: tuple[int, int, int]) -> dict[str, list[tuple[Any, ...]]]:
    with pieces_of(1 << 30, 1 << 30, 1 << 30):
        whole = tables_in(path, folder / "whole")
    for size in sizes:
        with pieces_of(*size):
            cut = tables_in(path, folder / "cut")
        for table in TABLES:
            assert cut[table] == whole[table], (table, size)
    return whole


class TestPipeline:
    def test_a_realistic_tpu_capture(self, tmp_path: Path) -> None:
        count = write_capture(tmp_path / "tpu.xplane.pb", 0.5, devices=4, ops=80)
        found = assert_same_in_pieces(tmp_path / "tpu.xplane.pb", tmp_path, (64, 100, 1024), (1000, 7, 1 << 16))
        assert len(found["ops"]) + len(found["host_events"]) == count
        assert len(found["collectives"]) > 100

    @pytest.mark.parametrize("name", ["gpu-mi300-jax-gemm", "cpu/cpu_deepseekv3_dp2ep2tp2"])
    def test_real_captures(self, shared_traces: Path, tmp_path: Path, name: str) -> None:
        found = [p for p in (shared_traces / name, shared_traces / f"{name}.xplane.pb") if p.exists()]
        if not found:
            pytest.skip(f"no capture {name}")
        assert_same_in_pieces(found[0], tmp_path, (100, 1000, 4096))

    @settings(max_examples=12, deadline=None)
    @given(data=st.data())
    def test_any_line_in_order_of_start(self, data: st.DataObject) -> None:
        """Nested, overlapping, empty and simultaneous events, with stats of all kinds, on two devices."""
        space = Space()
        value = st.one_of(
            st.integers(-5, 5),
            st.sampled_from(["", "a", "b\0"]),
            st.sampled_from([0.5, -1.0]),
            st.just(b"\xff"),
            st.sampled_from([Unsigned(3), Unsigned((1 << 64) - 1)]),
        )
        stats = st.dictionaries(st.sampled_from(["x", "y", "device_offset_ps"]), value, max_size=2)
        for device in range(2):
            tpu = space.tpu(device)
            tpu.modules.event("decode(1)", 0, 60).event("decode(1)", 60, 60)
            names = [
                tpu.instruction(f"%{n}.1 = f32[8]{{0}} {n}(f32[8]{{0}} %a), replica_groups={{{{0,1}}}}", **facts)
                for n, facts in (("all-reduce", {}), ("dot", {}), ("while", {"program_id": Unsigned(1)}))
            ]
            for line in (tpu.ops, tpu.async_ops):
                starts = data.draw(st.lists(st.integers(0, 100), max_size=25))
                for start in sorted(starts):
                    duration = data.draw(st.integers(0, 12))
                    line.event(data.draw(st.sampled_from(names)), start, duration, **data.draw(stats))
        host = space.host().line("python")
        for start in data.draw(st.lists(st.integers(0, 100), max_size=10)):
            host.event(data.draw(st.sampled_from(["f", "g"])), start, 3, **data.draw(stats))
        size = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9)), data.draw(st.integers(64, 200))
        with tempfile.TemporaryDirectory() as folder:
            path = space.write(Path(folder) / "a.xplane.pb")
            assert_same_in_pieces(path, Path(folder), size)

    def test_a_full_disk_is_said_once_and_nothing_is_left(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_capture(tmp_path / "tpu.xplane.pb", 0.2, devices=2, ops=40)

        def full(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
        with pytest.raises(WarehouseError, match="No space left on device"):
            ingest_one(tmp_path / "tpu.xplane.pb", tmp_path / "w")
        assert list((tmp_path / "w" / "lake").iterdir()) == []


def batch_of(events: list[tuple[int, int]], first: int = 0) -> EventBatch:
    array = np.array(events, np.int64).reshape(-1, 2)
    numbers = np.arange(first, first + len(events))
    texts = [str(i).encode() for i in numbers]
    rows = np.arange(len(events))
    column = StatColumn("n", rows, np.full(len(rows), StatKind.STRING, np.uint8), rows.astype(np.uint64), texts)
    return EventBatch(numbers.astype(np.int32), array[:, 0], array[:, 1], [column])


class TestChunks:
    def test_an_empty_event_and_one_that_starts_with_it_stay_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In one piece the longer one comes first and holds the empty one; a cut between them would part them."""
        monkeypatch.setattr(event_batches, "CHUNK", 1)
        found = list(chunks([batch_of([(0, 10)]), batch_of([(10, 0)], 1), batch_of([(10, 10)], 2)]))
        assert [(first, len(batch)) for first, batch in found][-1][1] >= 2

    @settings(deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=40),
        st.integers(1, 12),
        st.integers(1, 12),
        st.booleans(),
    )
    def test_cuts_change_nothing(self, events: list[tuple[int, int]], size: int, block: int, is_nested: bool) -> None:
        events = sorted(events, key=lambda e: e[0])
        with patch.object(event_batches, "CHUNK", size):
            batches = [batch_of(events[i : i + block], i) for i in range(0, len(events), block)]
            found = list(chunks(batches, is_nested=is_nested))
        rows: list[tuple[int, ...]] = []
        for first, batch in found:
            [column] = batch.stats
            assert [column.texts[i] for i in column.bits.tolist()] == [str(i).encode() for i in batch.metadata.tolist()]
            assert batch.metadata.tolist() == list(range(first, first + len(batch)))
            rows += nested_rows(batch, is_nested)
        assert rows == (nested_rows(batch_of(events), is_nested) if events else [])

    def test_texts_do_not_pile_up_along_a_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The event that a cut leaves over brings its own text with it, not those of all before."""
        monkeypatch.setattr(event_batches, "CHUNK", 10)
        batches = [batch_of([(i * 10 + k, 1) for k in range(10)], i * 10) for i in range(30)]
        assert max(len(batch.stats[0].texts) for _, batch in chunks(batches)) <= 21


def nested_rows(batch: EventBatch, is_nested: bool) -> list[tuple[int, ...]]:
    order = np.lexsort((-batch.duration_ps, batch.start_ps))
    number = batch.metadata[order]
    if not is_nested:
        return [(n,) for n in number.tolist()]
    found = nest(batch.start_ps[order], (batch.start_ps + batch.duration_ps)[order])
    parent = np.where(found.parent >= 0, number[found.parent], -1)
    return list(zip(number.tolist(), found.depth.tolist(), parent.tolist(), found.self_ps.tolist(), strict=True))


class TestTableWriter:
    @pytest.fixture(params=["same thread", "background"])
    def background(self, request: pytest.FixtureRequest) -> Iterator[Executor | None]:
        if request.param == "same thread":
            yield None
        else:
            with ThreadPoolExecutor(1) as executor:
                yield executor

    @pytest.mark.parametrize("row_group", [1, 3, 1000])
    def test_every_form_of_a_column(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, background: Executor | None, row_group: int
    ) -> None:
        monkeypatch.setattr(parquet, "ROW_GROUP", row_group)
        ids = np.arange(4)
        known = np.array([True, False, True, True])
        with parquet.TableWriter(tmp_path, "r", TABLES["event_stats"], background) as writer:
            writer.write(4, {"event_id": ids, "name": "n", "kind": "int64", "int_value": parquet.Nullable(ids, known)})
            writer.write(0, {"event_id": []})
            text = parquet.Coded([1, -1, 0, 2], ["b", "a", None])
            writer.write(4, {"event_id": ids + 4, "name": "n", "kind": ["s"] * 4, "string_value": text})
            writer.write(2, {"event_id": pa.array([8, 9]), "name": "m", "kind": "double", "double_value": [0.5, None]})
            writer.write(1, {"event_id": 10, "name": "m", "kind": "bytes", "bytes_value": [b"\xff"]})
            writer.write_rows([{"event_id": 11, "name": "w", "kind": "int64", "int_value": -(1 << 63)}])
        rows = [tuple(r.values()) for r in pq.read_table(writer.path).to_pylist()]
        assert writer.rows == 12
        assert rows == [
            *(("r", i, "n", "int64", i if i != 1 else None, None, None, None) for i in range(4)),
            *(("r", 4 + i, "n", "s", None, None, t, None) for i, t in enumerate(["a", None, "b", None])),
            ("r", 8, "m", "double", None, 0.5, None, None),
            ("r", 9, "m", "double", None, None, None, None),
            ("r", 10, "m", "bytes", None, None, None, b"\xff"),
            ("r", 11, "w", "int64", -(1 << 63), None, None, None),
        ]

    def test_encodings_are_those_that_every_engine_reads(self, tmp_path: Path) -> None:
        """DuckDB 1.5 reads no byte-stream-split integers, Spark 4.0 no byte-stream-split at all."""
        with parquet.TableWriter(tmp_path, "r", TABLES["event_stats"]) as writer:
            columns = {"int_value": [1, 2], "double_value": [0.5, 1.5], "string_value": ["a", "b"]}
            writer.write(2, {"event_id": np.arange(2), "name": "n", "kind": "k", **columns})
        group = pq.read_metadata(writer.path).row_group(0)
        used = {e for i in range(group.num_columns) for e in group.column(i).encodings}
        assert used <= {"PLAIN", "RLE", "RLE_DICTIONARY", "DELTA_BINARY_PACKED"}

    def test_arrow_is_whole_before_a_second_thread_uses_it(self) -> None:
        """Arrow registers functions when pyarrow.compute is first imported, and looks them up without a lock."""
        count = "len(pyarrow._compute.function_registry().list_functions())"
        code = "import tracewarehouse.ingest.lake.parquet, pyarrow\n"
        code += f"n = {count}; import pyarrow.compute; assert n == {count} > 200"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_an_unknown_column_is_refused(self, tmp_path: Path) -> None:
        with (
            parquet.TableWriter(tmp_path, "r", TABLES["ops"]) as writer,
            pytest.raises(KeyError, match="no column noflops"),
        ):
            writer.write(1, {"noflops": 1})
