"""Collectives as compilers write them: through loops, spread over fusions, with replicas and partitions."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hlo_writer import Module
from hypothesis import given
from hypothesis import strategies as st
from xplane_builder import Space, Unsigned

from tracewarehouse.ingest.hlo.collectives import find_collective
from tracewarehouse.ingest.hlo.proto import read_module
from tracewarehouse.ingest.hlo.replica_groups import flattened
from tracewarehouse.ingest.hlo.text import parse_instruction
from tracewarehouse.ingest.pipeline import ingest_one

PROGRAM = 42
DOT = "%dot.1 = f32[8,8]{1,0} dot(f32[8,8]{1,0} %a, f32[8,8]{1,0} %b), lhs_contracting_dims={1}"
WINDOWS = """SELECT name, start_ps, end_ps, exposed_ps, window_source
             FROM collectives JOIN instructions USING (instruction_id) ORDER BY start_ps, name"""


def capture(*ops: tuple[str, int, int], devices: int = 1, category: str = "op", proto: bytes | None = None) -> Space:
    """The same ops (text, start, end) on every device, in one execution of a program."""
    space = Space()
    for device in range(devices):
        tpu = space.tpu(device)
        tpu.modules.event(f"jit_step({PROGRAM})", 0, max(end for *_, end in ops))
        for text, start, end in ops:
            metadata = tpu.instruction(text, hlo_category=category, program_id=Unsigned(PROGRAM))
            tpu.ops.event(metadata, start, end - start)
    if proto:
        space.hlo_protos({"jit_step": (PROGRAM, proto)})
    return space


class TestGenericAsync:
    START = "%async-start.1 = ((f32[32]{0}), f32[8]{0}, u32[]) async-start(f32[32]{0} %x), calls=%reduce_scatter.clone"
    DONE = "%async-done.1 = f32[8]{0} async-done(((f32[32]{0}), f32[8]{0}, u32[]) %async-start.1)"
    SCATTER = "%rs = f32[8]{0} reduce-scatter(f32[32]{0} %p), channel_id=1, replica_groups={{0,1,2,3}}"

    def test_a_done_inherits_kind_and_role_from_its_start(self, ingest: Any) -> None:
        """From 0, when the start begins, to 37, when the done ends; it was 2, the start alone."""
        module = Module()
        module.computation(1, "%p = f32[32]{0} parameter(0)", self.SCATTER)
        module.computation(2, "%x = f32[32]{0} parameter(0)", self.START, self.DONE, calls={"async-start.1": 1})
        _, query = ingest(
            capture((self.START, 0, 2), (DOT, 2, 30), (self.DONE, 30, 37), devices=4, proto=module.encode())
        )
        assert query(WINDOWS) == [("async-start.1", 0, 37, 9, "start/done pair")] * 4
        assert query("SELECT DISTINCT kind, group_size, message_bytes FROM collectives") == [("reduce-scatter", 4, 128)]

    def test_from_text_alone_the_done_is_what_its_start_is(self, ingest: Any) -> None:
        start = self.START.replace("async-start.1", "reduce-scatter-start.1").replace(
            " reduce-scatter-start(", " async-start("
        )
        done = "%async-done.1 = f32[8]{0} async-done(((f32[32]{0}), f32[8]{0}, u32[]) %reduce-scatter-start.1)"
        _, query = ingest(capture((start, 0, 2), (DOT, 2, 30), (done, 30, 37)))
        assert query(WINDOWS) == [("reduce-scatter-start.1", 0, 37, 9, "start/done pair")]


class TestWindows:
    GROUP = "channel_id=1, replica_groups={{0,1}}, to_apply=%add"
    START = f"%all-reduce-start.1 = f32[8]{{0}} all-reduce-start(f32[8]{{0}} %x), {GROUP}"
    DONE = "%all-reduce-done.1 = f32[8]{0} all-reduce-done(f32[8]{0} %all-reduce-start.1)"
    PARTS = "SELECT DISTINCT exposed_ps, exposed_done_ps, hidden_ps FROM collectives"

    def test_idle_time_is_neither_hidden_nor_exposed(self, ingest: Any) -> None:
        _, query = ingest(capture((self.START, 0, 2), (DOT, 2, 12), (self.DONE, 80, 100), devices=2))
        assert query(self.PARTS) == [(22, 20, 10)]

    def test_a_loop_around_the_window_does_not_make_it_busy(self, ingest: Any) -> None:
        loop = "%while.1 = (f32[8]{0}) while((f32[8]{0}) %t), condition=%c, body=%b"
        ops = [(loop, 0, 110), (self.START, 5, 10), (DOT, 20, 30), (self.DONE, 50, 60), (DOT, 60, 90)]
        _, query = ingest(capture(*ops, devices=2))
        assert query(self.PARTS) == [(15, 10, 10)]

    def test_without_a_done_nothing_is_known_of_it(self, ingest: Any) -> None:
        _, query = ingest(capture((self.START, 0, 2), (DOT, 2, 12), devices=2))
        assert query(self.PARTS) == [(2, None, 0)]

    def test_a_done_whose_start_was_before_the_profile_ends_no_other(self, ingest: Any) -> None:
        """The profile begins within a loop: the first done is alone, and those of the iterations after it stay."""
        ops = [(self.DONE, 0, 5)]
        for at in (10, 60):
            ops += [(self.START, at, at + 2), (DOT, at + 2, at + 12), (self.DONE, at + 40, at + 45)]
        _, query = ingest(capture(*ops))
        assert [row[1:] for row in query(WINDOWS)] == [(at, at + 45, 7, "start/done pair") for at in (10, 60)]

    def test_a_synchronous_collective_has_no_done_and_hides_nothing(self, ingest: Any) -> None:
        text = f"%all-reduce.1 = f32[8]{{0}} all-reduce(f32[8]{{0}} %x), {self.GROUP}"
        _, query = ingest(capture((self.START, 0, 2), (text, 4, 9), (self.DONE, 12, 15), devices=2))
        assert sorted(query(self.PARTS), key=str) == [(10, 3, 0), (5, None, 0)]

    def test_a_device_that_starts_early_waits_at_most_for_its_done(self, ingest: Any) -> None:
        space = Space()
        for device, start in ((0, 0), (1, 60)):
            tpu = space.tpu(device)
            tpu.modules.event(f"jit_step({PROGRAM})", 0, 100)
            for text, begin, end in ((self.START, start, start + 2), (self.DONE, 95, 100)):
                tpu.ops.event(tpu.instruction(text, program_id=Unsigned(PROGRAM)), begin, end - begin)
        _, query = ingest(space)
        parts = "SELECT end_ps - start_ps, exposed_ps, exposed_done_ps FROM collectives ORDER BY device_id"
        assert query(parts) == [(100, 7, 5), (40, 7, 5)]


class TestLoops:
    SHAPE = "(f32[8]{0}, f32[8]{0}, u32[], u32[])"

    def permute(self, n: int) -> str:
        return (
            f"%collective-permute-start.{n} = {self.SHAPE} collective-permute-start(f32[8]{{0}} %x), channel_id={n}, "
            "source_target_pairs={{0,1},{1,0}}"
        )

    def done(self, n: int, operand: str) -> str:
        return f"%collective-permute-done.{n} = f32[8]{{0}} collective-permute-done({self.SHAPE} %{operand})"

    def test_halves_that_a_loop_carries_are_paired(self, ingest: Any) -> None:
        # before the loop  start.1
        # in it, twice     done.2 of the one before, start.2
        # behind it        done.3
        ops = [
            (self.permute(1), 0, 1),
            (self.done(2, "get-tuple-element.5"), 10, 12),
            (self.permute(2), 12, 13),
            (self.done(2, "get-tuple-element.5"), 20, 22),
            (self.permute(2), 22, 23),
            (self.done(3, "get-tuple-element.9"), 30, 33),
        ]
        _, query = ingest(capture(*ops, devices=2))
        windows = [
            ("collective-permute-start.1", 0, 12, 1 + 2, "start/done pair"),
            ("collective-permute-start.2", 12, 22, 1 + 2, "start/done pair"),
            ("collective-permute-start.2", 22, 33, 1 + 3, "start/done pair"),
        ]
        assert query(WINDOWS) == [w for w in windows for _ in range(2)]

    def test_halves_that_name_each_other_keep_each_other(self, ingest: Any) -> None:
        ops = [
            (self.permute(1), 0, 1),
            (self.permute(7), 2, 3),
            (self.done(7, "collective-permute-start.7"), 4, 6),
            (self.done(2, "get-tuple-element.5"), 10, 12),
        ]
        _, query = ingest(capture(*ops, devices=2))
        assert query(WINDOWS.replace("ORDER", "WHERE device_id = 0 ORDER")) == [
            ("collective-permute-start.1", 0, 12, 1 + 1 + 2 + 2, "start/done pair"),
            ("collective-permute-start.7", 2, 6, 1 + 2, "start/done pair"),
        ]


class TestFusions:
    @pytest.mark.parametrize(
        ("category", "kind"),
        [
            ("all-reduce fusion", "all-reduce"),
            ("all-gather", "all-gather"),
            ("loop fusion", None),
            ("small-all-to-allx", None),
        ],
    )
    def test_a_fused_collective_is_known_by_its_category(self, ingest: Any, category: str, kind: str | None) -> None:
        fusion = "%fusion.3 = f32[8]{0} fusion(f32[32]{0} %x), kind=kCustom, calls=%fused_computation.3"
        _, query = ingest(capture((fusion, 0, 10), category=category))
        assert query("SELECT kind, message_bytes, group_size FROM collectives") == (
            [(kind, None, None)] if kind else []
        )


class TestSpread:
    """An all-gather that the TPU compiler spreads over a first, a middle and a last fusion."""

    SHAPE = "(f32[4]{0}, f32[32]{0}, s32[2]{0}, u32[])"
    START = f"%async-collective-start.2 = {SHAPE} fusion(f32[4]{{0}} %x), kind=kCustom, calls=%fused_computation.1"
    STEP = (
        "%fusion.9 = (f32[8,8]{1,0}, f32[4]{0}, f32[32]{0}) fusion(f32[8,8]{1,0} %a, f32[4]{0} %get-tuple-element.1), "
        "kind=kCustom, calls=%async_collective_fusion.9"
    )
    DONE = (
        "%async-collective-done.2 = f32[32]{0} fusion(f32[4]{0} %get-tuple-element.2, f32[32]{0} %get-tuple-element.3, "
        "s32[2]{0} %get-tuple-element.4), kind=kCustom, calls=%fused_computation.2"
    )

    @pytest.mark.parametrize("category", ["custom fusion", "all-gather"])
    def test_it_is_one_collective_and_the_middle_computes(self, ingest: Any, category: str) -> None:
        ops = [(self.START, 0, 2), (self.STEP, 2, 30), (self.DONE, 30, 37)]
        _, query = ingest(capture(*ops, category=category))
        assert query(WINDOWS) == [("async-collective-start.2", 0, 37, 2 + 7, "start/done pair")]
        assert query("SELECT kind, is_async, message_bytes, dtype FROM collectives") == [
            ("all-gather", True, 128, "f32")
        ]
        assert query("SELECT collective, async_role FROM instructions WHERE name = 'fusion.9'") == [(None, None)]

    @pytest.mark.parametrize(
        ("name", "spread"),
        [
            ("llama-tp8-ulysses.prefill.v5e-2x4", {10: 4096}),
            ("deepseek_v3-tp8-sp.prefill.v6e-2x4-libtpu21", {5: 16384, 25: 32768, 11: 4480, 16: 16384, 28: 32768}),
        ],
    )
    def test_real_programs_as_proto_and_as_text(self, shared_traces: Path, name: str, spread: dict[int, int]) -> None:
        folder = shared_traces / "tpu-hlo"
        if not folder.is_dir():
            pytest.skip(f"no compiled programs in {folder}")
        module = read_module(gzip.decompress((folder / f"{name}.hlo.pb.gz").read_bytes()))
        fused = {n: i for n, i in module.instructions.items() if i.opcode == "fusion"}
        found = {n: c for n, i in fused.items() if (c := find_collective(i))}
        starts = [c for c in found.values() if c.role == "start"]
        assert {c.channel_id: c.message_bytes for c in starts} == spread
        dones = Counter(c.start_name for c in found.values() if c.role == "done")
        assert dones == {n: 1 for n, c in found.items() if c.role == "start"}
        assert len(found) == 2 * len(spread)
        lines = gzip.decompress((folder / f"{name}.txt.gz").read_bytes()).decode().splitlines()
        stated = {i.name: i for line in lines if (i := parse_instruction(line)) and i.opcode == "fusion"}
        for started, collective in found.items():
            if collective.role == "start":
                from_text = find_collective(stated[started])
                assert from_text is not None
                assert (from_text.kind, from_text.role) == ("all-gather", "start")
                assert from_text.message_bytes == collective.message_bytes


class TestReplicasAndPartitions:
    """HLO's channel rule; devices count replica by replica, partition by partition."""

    def test_by_hand_for_two_replicas_of_two_partitions(self) -> None:
        def devices(*, channel: bool, is_global: bool = False, form: bool = True) -> Any:
            groups = ((0, 1),)
            return flattened(groups, 2, 2, has_channel=channel, is_global=is_global, has_global_form=form)

        assert devices(channel=False) == ((0, 2), (1, 3))
        assert devices(channel=True, form=False) == ((0, 1), (2, 3))
        assert devices(channel=True) == ((0, 1, 2, 3),)
        assert devices(channel=True, is_global=True) == ((0, 1),)

    @given(st.integers(1, 4), st.integers(1, 4), st.booleans(), st.booleans(), st.booleans(), st.data())
    def test_every_device_finds_its_own_members(
        self, replicas: int, partitions: int, has_channel: bool, has_form: bool, is_empty: bool, data: st.DataObject
    ) -> None:
        """By the definition, asked from each device: who shares its group."""
        by_partition = has_channel and not has_form
        numbers = data.draw(st.permutations(range(partitions if by_partition else replicas)))
        cut = data.draw(st.integers(0, len(numbers)))
        stated = tuple(tuple(part) for part in (numbers[:cut], numbers[cut:]) if part)
        given_groups = () if is_empty else stated
        groups = flattened(
            given_groups, replicas, partitions, has_channel=has_channel, is_global=False, has_global_form=has_form
        )
        group_of = {device: set(group) for group in groups for device in group}
        everyone = [(r, p) for r in range(replicas) for p in range(partitions)]
        for replica, partition in everyone:
            mine = next(g for g in (given_groups or (tuple(numbers),)) if (partition if by_partition else replica) in g)
            shares = {
                r * partitions + p
                for r, p in everyone
                if (r == replica and p in mine if by_partition else r in mine and (has_channel or p == partition))
            }
            assert group_of[replica * partitions + partition] == shares

    def test_a_capture_of_such_a_program(self, ingest: Any) -> None:
        reduce = "%all-reduce.7 = f32[256]{0} all-reduce(f32[256]{0} %x), replica_groups={{0,1}}, to_apply=%add"
        module = Module()
        module.computation(1, "%x = f32[256]{0} parameter(0)", reduce)
        module.assign(2, 2)
        _, query = ingest(capture((reduce, 0, 10), devices=4, proto=module.encode()))
        sql = "SELECT device_id, group_index, rank_in_group, is_partial FROM collectives ORDER BY device_id"
        assert query(sql) == [(0, 0, 0, False), (1, 1, 0, False), (2, 0, 1, False), (3, 1, 1, False)]


def test_a_device_outside_every_pair_of_a_permute_is_not_partial(ingest: Any) -> None:
    permute = "%collective-permute.1 = f32[16]{0} collective-permute(f32[16]{0} %x), source_target_pairs={{0,1}}"
    result, query = ingest(capture((permute, 10, 20), devices=3))
    rows = query("SELECT device_id, instance, is_partial FROM collectives ORDER BY device_id")
    assert [(device, is_partial) for device, _, is_partial in rows] == [(0, False), (1, False), (2, False)]
    assert rows[0][1] == rows[1][1] != rows[2][1]
    assert "partial_collectives" not in result.entry.flags


class TestLinks:
    """The class of the links that a group of devices needs."""

    @staticmethod
    def collective(groups: str, count: int, kind: str = "TPU7x", hosts: int = 1) -> list[Space]:
        spaces = [Space(hostnames=(f"host{h}",)) for h in range(hosts)]
        text = f"%all-reduce.1 = f32[8]{{0}} all-reduce(f32[8]{{0}} %x), channel_id=1, replica_groups={groups}"
        for device in range(count):
            space = spaces[device * hosts // count]
            if kind.startswith("TPU"):
                plane = space.tpu(device % (count // hosts), kind)
                plane.modules.event(f"jit_step({PROGRAM})", 0, 100)
                plane.ops.event(plane.instruction(text, program_id=Unsigned(PROGRAM)), 0, 50)
        return spaces

    @pytest.mark.parametrize(
        ("groups", "count", "kind", "expected"),
        [
            ("{{0,1},{2,3}}", 4, "TPU7x", ["die"] * 4),
            ("{{0,2},{1,3}}", 4, "TPU7x", ["ici"] * 4),
            ("{{0,1,2,3}}", 4, "TPU7x", ["ici"] * 4),
            ("{{0,1},{2,3}}", 4, "TPU v6 Lite", ["ici"] * 4),  # a device is a chip
            ("{{0},{1}}", 2, "TPU7x", [None] * 2),  # nothing is sent
        ],
    )
    def test_devices_of_one_chip_are_linked_by_their_die(
        self, ingest: Any, groups: str, count: int, kind: str, expected: list[str | None]
    ) -> None:
        [space] = self.collective(groups, count, kind)
        _, query = ingest(space)
        assert query("SELECT link FROM collectives ORDER BY device_id") == [(link,) for link in expected]

    def test_chips_of_a_slice_are_linked_by_ici_across_hosts(self, tmp_path: Path, tables_in: Any) -> None:
        for number, space in enumerate(self.collective("{{0,2},{1,3}}", 4, hosts=2)):
            space.write(tmp_path / "plugins" / "profile" / "t" / f"host{number}.xplane.pb")
        ingest_one(tmp_path / "plugins", tmp_path / "w")
        assert tables_in(tmp_path / "w")("SELECT DISTINCT link FROM collectives") == [("ici",)]
