"""Which devices the logical numbers of HLO are: by the program's device assignment, or by the times of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hlo_writer import Module
from hypothesis import given
from hypothesis import strategies as st
from xplane_builder import Space, Unsigned, integer

from tracewarehouse.ingest.collectives.numbering import TRAY_ORDERS, DeviceNumbers, RankTimes
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.warehouse import open_warehouse

SUBMESHES = Path(__file__).resolve().parent.parent / "captures" / "submeshes.xplane.pb.gz"

PROGRAM = 42
GROUPS = """SELECT group_index, list(device_id ORDER BY rank) AS members FROM collective_groups
            GROUP BY instruction_id, group_index ORDER BY ALL"""
FLAGS = "SELECT flag FROM quality_flags WHERE flag IN ('unverified_groups', 'inferred_order', 'partial_collectives')"


def reduction(groups: str, number: int = 1) -> str:
    return (
        f"%all-reduce.{number} = f32[16]{{0}} all-reduce(f32[16]{{0}} %x), channel_id={number}, "
        f"replica_groups={groups}, use_global_device_ids=true, to_apply=%add"
    )


def proto(text: str, assignment: Sequence[int] = ()) -> bytes:
    """A program with one partition for each device of the assignment."""
    module = Module()
    module.computation(1, "%x = f32[16]{0} parameter(0)", text)
    for device in assignment:
        module.proto.hlo_module.device_assignment.computation_devices.add(replica_device_ids=[device])
    return module.encode()


def core(global_id: int) -> bytes:
    """A TPU's CoreDetails with its global core id."""
    return integer(6, global_id)


def capture(
    groups: str,
    together: Sequence[Sequence[int]],
    *,
    assignment: Sequence[int] = (),
    devices: Sequence[int] = range(4),
    ids: Sequence[int] = (),
    program: int = PROGRAM,
    space: Space | None = None,
    executions: int = 3,
    host: str = "h0",
    gap: int = 100,
) -> Space:
    """A program that sums up over `groups`; the devices of each of `together` run it at the same time.

    Args:
        groups: replica groups, of logical numbers.
        together: sets of device ordinals; each begins `gap` after the one before, an op takes 50.
        assignment: the device assignment that the Hlo Proto states; without one there is no proto.
        devices: ordinals of the devices.
        ids: global ids of the devices, which their planes state.
        program: program id.
        space: a capture to which it is added.
        executions: executions of the program.
        host: name of the host.
        gap: time from one set to the next.
    """
    space, text = space or Space(hostnames=[host]), reduction(groups)
    for place, ordinal in enumerate(devices):
        tpu = space.tpu(ordinal)
        if ids:
            tpu.stat("core_details", core(ids[place]))
        metadata = tpu.instruction(text, hlo_category="all-reduce", program_id=Unsigned(program))
        [slot] = [i for i, members in enumerate(together) if ordinal in members]
        for n in range(executions):
            begin = 1000 * n + gap * slot + ordinal
            tpu.modules.event(f"jit_step({program})", begin, 60)
            tpu.ops.event(metadata, begin, 50)
    if assignment:
        space.hlo_protos({"jit_step": (program, proto(text, assignment))})
    return space


class TestAssigned:
    @pytest.mark.parametrize("order", [(0, 1, 3, 2), (0, 2, 1, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
    def test_groups_are_of_the_devices_that_the_program_is_assigned_to(self, ingest: Any, order: Sequence[int]) -> None:
        pairs = [order[:2], order[2:]]
        _, query = ingest(capture("{{0,1},{2,3}}", pairs, assignment=order))
        assert query(GROUPS) == [(0, list(order[:2])), (1, list(order[2:]))]
        assert query("SELECT count(*) FROM collectives WHERE is_partial") == [(0,)]
        assert query("SELECT max(end_ps) - min(start_ps) < 60 FROM collectives GROUP BY instance") == [(True,)] * 6
        ring = sorted((a, b) for pair in pairs for a, b in (pair, pair[::-1]))
        assert query("SELECT source_device_id, target_device_id FROM traffic ORDER BY ALL") == ring
        assert query(FLAGS) == []

    def test_a_mesh_lies_over_the_devices_as_the_program_is_assigned(self, ingest: Any) -> None:
        """dp of the mesh is {0,3} and {1,2}, as jax.make_mesh lays it over a tray of four chips."""
        _, query = ingest(capture("{{0,2},{1,3}}", [(0, 3), (1, 2)], assignment=(0, 1, 3, 2)), mesh="dp=2,tp=2")
        assert query("SELECT DISTINCT axis, axis_source FROM collectives") == [("dp", "mesh")]
        assert query("SELECT dp_index, tp_index FROM devices ORDER BY device_id") == [(0, 0), (0, 1), (1, 1), (1, 0)]

    def test_axes_of_programs_with_other_orders_are_those_of_the_main_one(self, ingest: Any) -> None:
        """Both programs sum up over {0,1} and {2,3}; the second counts the devices in another order."""
        space = capture("{{0,1},{2,3}}", [(0, 1), (2, 3)], assignment=(0, 1, 2, 3))
        other = "{{0,3},{1,2}}"
        for ordinal, tpu in enumerate(space.planes[:4]):
            metadata = tpu.instruction(reduction(other, 7), hlo_category="all-reduce", program_id=Unsigned(7))
            tpu.modules.event("jit_other(7)", 5000 + ordinal, 60)
            tpu.ops.event(metadata, 5000 + ordinal, 50)
        space.hlo_protos({"jit_other": (7, proto(reduction(other, 7), (0, 2, 3, 1)))})
        _, query = ingest(space)
        assert query("SELECT size, stride FROM mesh_axes ORDER BY position") == [(2, 2), (2, 1)]
        assert query("SELECT count(DISTINCT axis) FROM collectives") == [(1,)]
        assert query(GROUPS) == [(0, [0, 1]), (0, [0, 1]), (1, [2, 3]), (1, [2, 3])]


class TestSeveralHosts:
    def test_global_ids_that_the_planes_state_decide(self, ingest: Any) -> None:
        """The first file is that of devices 4 to 7, and the program pairs devices of different hosts."""
        order = (0, 4, 1, 5, 2, 6, 3, 7)
        pairs = [(0,), (1,), (2,), (3,)]
        ids = {"h0": (4, 5, 6, 7), "h1": (0, 1, 2, 3)}
        hosts = [capture("[4,2]<=[8]", pairs, assignment=order, ids=ids[h], host=h) for h in ids]
        _, query = ingest(*hosts)
        assert query(GROUPS) == [(0, [4, 0]), (1, [5, 1]), (2, [6, 2]), (3, [7, 3])]
        assert query("SELECT host, global_id FROM devices ORDER BY device_id")[4] == ("h1", 0)

    def test_without_them_ids_ascend_in_the_order_of_the_hosts(self, ingest: Any) -> None:
        """As those of JAX's CPU devices, of which each process has 2048 numbers."""
        order = (2049, 0, 2048, 1)
        hosts = [
            capture("{{0,1},{2,3}}", [(0,), (1,)], assignment=order, devices=range(2), host=h) for h in ("h0", "h1")
        ]
        _, query = ingest(*hosts)
        assert query(GROUPS) == [(0, [3, 0]), (1, [2, 1])]

    def test_hosts_with_programs_of_their_own_have_groups_of_their_own(self, ingest: Any) -> None:
        hosts = [capture("{{0,1}}", [(0, 1)], assignment=(1, 0), devices=range(2), host=h) for h in ("h0", "h1")]
        _, query = ingest(*hosts)
        assert query(GROUPS) == [(0, [1, 0]), (1, [3, 2])]

    def test_hosts_may_run_one_text_on_devices_of_their_own(self, ingest: Any) -> None:
        """The instruction is the same, the assignments are not."""
        placed = {"h0": ((0, 1), (1, 0)), "h1": ((2, 3), (2, 3))}
        hosts = [
            capture("{{0,1}}", [(0, 1)], assignment=order, devices=range(2), ids=ids, host=h)
            for h, (ids, order) in placed.items()
        ]
        _, query = ingest(*hosts)
        assert query(GROUPS) == [(0, [1, 0]), (1, [2, 3])]
        assert query("SELECT count(*) FROM instructions WHERE collective IS NOT NULL") == [(1,)]

    def test_of_one_host_of_two_the_devices_that_are_here_are_known(self, ingest: Any) -> None:
        order = (0, 4, 1, 5, 2, 6, 3, 7)
        _, query = ingest(capture("[4,2]<=[8]", [(0, 1, 2, 3)], assignment=order, ids=(4, 5, 6, 7)))
        assert query(GROUPS) == [(n, [None, n]) for n in range(4)]
        assert query("SELECT flag FROM quality_flags WHERE flag = 'missing_devices'") == [("missing_devices",)]


class TestPartOfTheDevices:
    @pytest.mark.parametrize("is_stated", [True, False])
    def test_prefill_and_decode_on_devices_of_their_own(self, ingest: Any, is_stated: bool) -> None:
        """Without an assignment the groups are of the devices that ran the program."""
        prefill, decode = (0, 1, 2, 3), (4, 5, 6, 7)
        space = capture("{{0,1},{2,3}}", [(0, 1), (2, 3)], devices=prefill, assignment=prefill if is_stated else ())
        order = decode if is_stated else ()
        capture("{{0,2},{1,3}}", [(4, 6), (5, 7)], devices=decode, assignment=order, program=43, space=space)
        _, query = ingest(space)
        assert query(GROUPS) == [(0, [0, 1]), (0, [4, 6]), (1, [2, 3]), (1, [5, 7])]
        assert query("SELECT count(*), count(*) FILTER (is_partial) FROM collectives") == [(24, 0)]
        evidence = "sets of devices that run programs of their own"
        mesh = query("SELECT size, stride, evidence FROM mesh_axes ORDER BY position")
        assert mesh[0] == (2, 4, evidence)
        assert [(size, stride) for size, stride, _ in mesh[1:]] == [(2, 2), (2, 1)]
        assert query(FLAGS) == []

    def test_axes_are_those_of_each_set_of_devices(self, ingest: Any) -> None:
        """All eight reductions of prefill are over its two devices, those of decode over two of its four."""
        space = Space()
        for first, size, program, groups in ((0, 2, 42, "{{0,1}}"), (2, 4, 43, "{{0,2},{1,3}}")):
            for ordinal in range(first, first + size):
                tpu = space.tpu(ordinal)
                tpu.modules.event(f"jit_step({program})", 0, 1000)
                for n in range(8):
                    text = reduction(groups, n + 1)
                    metadata = tpu.instruction(text, hlo_category="all-reduce", program_id=Unsigned(program))
                    tpu.ops.event(metadata, 100 * n, 50)
        _, query = ingest(space)
        axes = "SELECT device_id < 2, axis, axis_source FROM collectives GROUP BY ALL ORDER BY ALL DESC"
        assert query(axes) == [(True, "tp", "inferred"), (False, "tp", "inferred")]
        assert query("SELECT axis, size, stride FROM mesh_axes ORDER BY position") == [("tp", 2, 2), ("dp", 2, 1)]

    def test_one_text_loaded_on_two_sets_of_devices(self, ingest: Any) -> None:
        """Two replicas of a server on one host, whose programs have the same id."""
        space = capture("{{0,1},{2,3}}", [(0, 1), (2, 3)], assignment=(0, 1, 2, 3))
        capture("{{0,1},{2,3}}", [(4, 5), (6, 7)], devices=range(4, 8), assignment=(5, 4, 7, 6), space=space)
        _, query = ingest(space)
        assert query(GROUPS) == [(0, [0, 1]), (1, [2, 3]), (2, [5, 4]), (3, [7, 6])]
        assert query(FLAGS) == []


class TestByTime:
    """No device assignment is stated."""

    @pytest.mark.parametrize("order", TRAY_ORDERS)
    def test_the_order_whose_ranks_overlap_is_taken(self, ingest: Any, order: tuple[int, ...]) -> None:
        world = len(order)
        near = [order[i : i + 2] for i in range(0, world, 2)]
        _, query = ingest(capture(f"[{world // 2},2]<=[{world}]", near, devices=range(world)))
        found = query(GROUPS)
        assert sorted(sorted(members) for _, members in found) == sorted(map(sorted, near))
        is_own = sorted(map(sorted, near)) == [[i, i + 1] for i in range(0, world, 2)]
        assert query(FLAGS) == ([] if is_own else [("inferred_order",)])

    def test_a_mesh_is_laid_in_that_order(self, ingest: Any) -> None:
        _, query = ingest(capture("{{0,2},{1,3}}", [(0, 3), (1, 2)]), mesh="dp=2,tp=2")
        assert query("SELECT DISTINCT axis, axis_source FROM collectives") == [("dp", "mesh")]
        assert query("SELECT dp_index, tp_index FROM devices ORDER BY device_id") == [(0, 0), (0, 1), (1, 1), (1, 0)]

    def test_the_order_of_the_devices_counts_as_verified_where_ranks_overlap(self, ingest: Any) -> None:
        _, query = ingest(capture("{{0,1},{2,3}}", [(0, 1), (2, 3)]))
        assert query(GROUPS) == [(0, [0, 1]), (1, [2, 3])]
        assert query(FLAGS) == []

    def test_ranks_that_overlap_in_no_usual_order_are_flagged(self, ingest: Any) -> None:
        """{0,2} and {1,3} run together: no tray has neighbours like these."""
        _, query = ingest(capture("{{0,1},{2,3}}", [(0, 2), (1, 3)]))
        assert query(FLAGS) == [("unverified_groups",)]
        [(detail,)] = query("SELECT detail FROM quality_flags WHERE flag = 'unverified_groups'")
        assert detail.endswith("0 of 6 pairs of ranks overlap in time")

    def test_where_several_orders_fit_the_one_whose_ranks_leave_together_is_taken(self, ingest: Any) -> None:
        """
        0, 3  |=====|
        1, 2    |=====|     all overlap, and {0,3} and {1,2} end within 3, {0,2} and {1,3} within 22
        """
        _, query = ingest(capture("{{0,2},{1,3}}", [(0, 3), (1, 2)], gap=20))
        assert query(GROUPS) == [(0, [0, 3]), (1, [1, 2])]
        assert query(FLAGS) == [("inferred_order",)]

    def test_times_that_fit_several_orders_alike_are_flagged(self, ingest: Any) -> None:
        _, query = ingest(capture("{{0,2},{1,3}}", [(0, 1, 2, 3)]))
        assert query(GROUPS) == [(0, [0, 2]), (1, [1, 3])]
        [(detail,)] = query("SELECT detail FROM quality_flags WHERE flag = 'unverified_groups'")
        assert detail.endswith("the ranks' times fit the order 0,1,2,3, which is taken, and 1 more")

    def test_an_order_with_the_same_members_is_no_rival(self, ingest: Any) -> None:
        _, query = ingest(capture("{{0,1},{2,3}}", [(0, 1, 2, 3)]))
        assert query(FLAGS) == []

    def test_groups_of_all_devices_need_no_order(self, ingest: Any) -> None:
        _, query = ingest(capture("{{0,1,2,3}}", [(0, 1), (2, 3)]))
        assert query(FLAGS) == []

    def test_hosts_without_a_common_clock_verify_nothing(self, ingest: Any) -> None:
        """Each group has a device of either host, and too few executions to align the clocks."""
        hosts = [capture("{{0,2},{1,3}}", [(0, 1)], devices=range(2), executions=1, host=h) for h in ("h0", "h1")]
        _, query = ingest(*hosts)
        [(detail,)] = query("SELECT detail FROM quality_flags WHERE flag = 'unverified_groups'")
        assert "no two ranks" in detail


class TestImpossible:
    """Damaged captures: what they name is unknown, and costs no memory."""

    @pytest.mark.parametrize("ids", [(), (4, 5, 6, 7)])
    @pytest.mark.parametrize("assignment", [(), (0, 1, 2147483647, 3)])
    def test_a_number_that_no_run_has(self, ingest: Any, ids: Sequence[int], assignment: Sequence[int]) -> None:
        _, query = ingest(capture("{{0,2147483647}}", [range(4)], ids=ids, assignment=assignment))
        assert query(GROUPS) == [(0, [None, None])]
        assert query("SELECT flag FROM quality_flags WHERE flag = 'missing_devices'") == [("missing_devices",)]

    def test_an_assignment_that_names_a_device_twice_is_none(self, ingest: Any) -> None:
        _, query = ingest(capture("{{0,1},{2,3}}", [(0, 1), (2, 3)], assignment=(0, 0, 2, 3)))
        assert query(GROUPS) == [(0, [0, 1]), (1, [2, 3])]


class TestOverlap:
    @given(st.permutations(range(8)), st.sampled_from([2, 4]))
    def test_ranks_overlap_exactly_in_the_order_in_which_they_ran(self, order: list[int], size: int) -> None:
        """Groups run one after the other; a numbering with other members always has a pair apart."""
        groups = [order[i : i + size] for i in range(0, 8, size)]
        times = RankTimes(dict.fromkeys(range(8), 0))
        for slot, members in enumerate(groups):
            for device in members:
                start = np.array([100 * slot + device], np.int64)
                times.add(device, np.zeros(1, np.int32), np.zeros(1, np.int64), start, start + 50)
        right = times.overlap(0, groups, is_permute=False)
        assert right[:2] == (8 - len(groups), 8 - len(groups))
        assert right.spread_ps == sum(max(g) - min(g) for g in groups)
        own = [list(range(i, i + size)) for i in range(0, 8, size)]
        found = times.overlap(0, own, is_permute=False)
        assert (found.overlapping == found.tried) == ({frozenset(g) for g in own} == {frozenset(g) for g in groups})

    def test_a_permute_only_holds_its_target_back(self) -> None:
        """Device 1 receives from 0, which ended before 1 began; the other way round, it would be impossible."""
        times = RankTimes({0: 0, 1: 0})
        for device, start in ((0, 0), (1, 100)):
            at = np.array([start], np.int64)
            times.add(device, np.zeros(1, np.int32), np.zeros(1, np.int64), at, at + 50)
        assert times.overlap(0, [(0, 1)], is_permute=True)[:2] == (1, 1)
        assert times.overlap(0, [(1, 0)], is_permute=True)[:2] == (1, 0)
        assert times.overlap(0, [(0, 1)], is_permute=False) == (1, 0, 100)


@given(st.permutations(range(6)), st.sampled_from([0, 100]))
def test_an_assignment_of_a_host_maps_each_number_to_its_device(order: list[int], first: int) -> None:
    """Ordinals and ids that begin elsewhere are the same devices in the same order."""
    numbers = DeviceNumbers([list(range(6))], {}, {})
    assert numbers.assigned([tuple(first + i for i in order)], None) == [order]


def test_one_function_on_three_meshes_of_a_real_capture(tmp_path: Path, tables_in: Any) -> None:
    """Recorded by captures/record_submeshes.py: sums along tp, then along dp; all modules have the same name."""
    meshes = ([[1, 0]], [[3, 2], [5, 4]], [[0, 2, 4, 6], [1, 3, 5, 7]])
    ingest_one(SUBMESHES, tmp_path / "warehouse")
    query = tables_in(tmp_path / "warehouse")
    groups = query("SELECT list(device_id ORDER BY rank) FROM collective_groups GROUP BY instruction_id, group_index")
    expected = [line for mesh in meshes for line in (*mesh, *map(list, zip(*mesh, strict=True)))]
    assert sorted(members for (members,) in groups) == sorted(expected)
    assert query("SELECT count(*), count(*) FILTER (is_partial) FROM collectives") == [(2 * 3 * (2 + 4 + 8), 0)]
    apart = """SELECT count(*) FROM collectives AS a JOIN collectives AS b USING (instance)
               WHERE a.start_ps >= b.end_ps"""
    assert query(apart) == [(0,)]
    assert query("SELECT size, stride FROM mesh_axes ORDER BY position") == [(2, 4), (4, 1)]


def test_real_jax_meshes_that_are_not_in_device_order(shared_traces: Path, tmp_path: Path) -> None:
    """Every pair of ranks overlaps; with groups of the devices' order 3 of 50 and 10 of 40 did not."""
    captures = [shared_traces / "situations" / f"jax-{name}.xplane.pb.gz" for name in ("tray", "perm")]
    if not all(c.is_file() for c in captures):
        pytest.skip("the situations are not here")
    with open_warehouse(tmp_path / "warehouse", create=True) as warehouse:
        for path in captures:
            warehouse.ingest(path)
        overlap = "SELECT name, sum(pairs), sum(overlapping) FROM models.rank_overlap JOIN main.runs USING (run_id) "
        assert warehouse.query(overlap + "GROUP BY name ORDER BY name").rows() == [
            ("jax-perm", 40, 40),
            ("jax-tray", 50, 50),
        ]
        members = (
            "SELECT DISTINCT r.name, list(device_id ORDER BY rank) AS members FROM main.collective_groups AS g "
            "JOIN main.runs AS r USING (run_id) GROUP BY r.name, run_id, instruction_id, group_index ORDER BY ALL"
        )
        assert warehouse.query(members).rows() == [
            ("jax-perm", [0, 2]),
            ("jax-perm", [1, 3]),
            ("jax-tray", [0, 1]),
            ("jax-tray", [0, 3]),
            ("jax-tray", [1, 2]),
            ("jax-tray", [2, 1]),
            ("jax-tray", [3, 0]),
            ("jax-tray", [3, 2]),
        ]
