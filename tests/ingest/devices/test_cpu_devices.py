"""Ops of virtual CPU devices find their device and execution through the threads that ran them.

The events are those that torch_xla 2.9 writes: `_p` of a record is consumed as `_c` by the region that it starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xplane_builder import LineBuilder, Space, Unsigned

from tracewarehouse.ingest.pipeline import ingest_one

CAPTURES = Path(__file__).parents[1] / "captures"

US = 1_000_000
LAUNCH = "PjRtCpuExecutable::Execute"
SINGLE = "PjRtCpuExecutable::ExecuteSharded"
HELPER = "PjRtCpuExecutable::ExecuteHelper"
OPS = (
    "SELECT o.device_id, o.execution, i.name, o.start_ps // 1000000 FROM ops AS o JOIN instructions AS i "
    "ON i.run_id = o.run_id AND i.instruction_id = o.instruction_id ORDER BY o.start_ps"
)


def record(line: LineBuilder, at: int, context: int) -> None:
    line.event("ThreadpoolListener::Record", at * US, 0, _pt=15, _p=context)


def region(line: LineBuilder, start: int, end: int, context: int) -> None:
    line.event("ThreadpoolListener::StartRegion", start * US, 0, _ct=15, _c=context)
    line.event("ThreadpoolListener::StopRegion", end * US, 0)


def op(line: LineBuilder, name: str, at: int) -> None:
    line.event(name, at * US, US, hlo_op=name, hlo_module="step.1", program_id=Unsigned(1))


class TestOneDeviceWithoutSpmd:
    def test_ops_that_the_pool_runs(self, ingest: Any) -> None:
        """The dot hands parts of itself to the pool, and the fusion behind it runs there."""
        space = Space()
        host = space.host()
        python, launcher, pool, eigen = (
            host.line(n) for n in ("python", "tf_pytorchxla/1", "tf_client/2", "tf_Eigen/3")
        )
        for first, context in ((0, 100), (100, 200)):
            python.event("decode", first * US, 90 * US, step_num=first // 100, _r=1)
            record(python, first + 2, context)
            region(launcher, first + 5, first + 20, context)
            launcher.event(SINGLE, (first + 6) * US, 10 * US).event(HELPER, (first + 7) * US, 8 * US)
            record(launcher, first + 8, context + 1)
            region(pool, first + 25, first + 60, context + 1)
            op(pool, "dot.1", first + 30)
            record(pool, first + 30, context + 2)
            region(eigen, first + 35, first + 50, context + 2)
            op(eigen, "fusion.2", first + 40)
        result, query = ingest(space)
        assert query("SELECT backend, device_count FROM runs") == [("cpu", 1)]
        assert query(OPS) == [
            (0, 0, "dot.1", 30),
            (0, 0, "fusion.2", 40),
            (0, 1, "dot.1", 130),
            (0, 1, "fusion.2", 140),
        ]
        assert query("SELECT DISTINCT step, phase FROM ops WHERE instruction_id IS NOT NULL ORDER BY 1") == [
            (0, "decode"),
            (1, "decode"),
        ]
        assert not result.entry.flags

    def test_ops_of_a_cheap_program_run_where_it_is_launched(self, ingest: Any) -> None:
        """One of them still hands a part to the pool; the op behind the launch belongs to none."""
        space = Space()
        host = space.host()
        launcher, eigen = host.line("tf_pytorchxla/1"), host.line("tf_Eigen/3")
        for first in (0, 100):
            launcher.event(SINGLE, (first + 6) * US, 30 * US).event(HELPER, (first + 7) * US, 28 * US)
            op(launcher, "dot.1", first + 10)
            record(launcher, first + 10, first + 1)
            record(launcher, first + 11, first + 2)
            op(launcher, "fusion.2", first + 20)
            region(eigen, first + 12, first + 19, first + 2)
            op(eigen, "dot.3", first + 13)
        op(launcher, "dot.1", 150)
        result, query = ingest(space)
        assert query(OPS) == [
            *((0, 0, name, at) for name, at in (("dot.1", 10), ("dot.3", 13), ("fusion.2", 20))),
            *((0, 1, name, at) for name, at in (("dot.1", 110), ("dot.3", 113), ("fusion.2", 120))),
            (None, None, "dot.1", 150),
        ]
        assert result.entry.flags == ["inferred_steps", "unattributed_ops"]


def test_records_of_a_launch_on_several_devices_are_one_each(ingest: Any) -> None:
    space = Space()
    host = space.host()
    launcher, pool, other = host.line("tf_pytorchxla/1"), host.line("tf_client/2"), host.line("tf_client/3")
    launcher.event(LAUNCH, 0, 20 * US)
    for device, line in ((0, pool), (1, other)):
        record(launcher, 5 + device, 1 + device)
        region(line, 10 + device, 60, 1 + device)
        line.event(HELPER, (12 + device) * US, 3 * US)
        op(line, "dot.1", 20 + device)
    _, query = ingest(space)
    assert query("SELECT device_count FROM runs") == [(2,)]
    assert query(OPS) == [(0, 0, "dot.1", 20), (1, 0, "dot.1", 21)]


class TestALaunchThatWaitsForTheProgramBefore:
    """Two devices: the second launch begins while the first runs, whose last device makes its records."""

    @staticmethod
    def capture(released: int) -> Space:
        space = Space()
        host = space.host()
        launcher, pool, other = host.line("tf_pytorchxla/1"), host.line("tf_client/2"), host.line("tf_client/3")
        launcher.event(LAUNCH, 0, 20 * US).event(LAUNCH, 30 * US, 20 * US)
        for device, line in ((0, pool), (1, other)):
            record(launcher, 5 + device, 1 + device)
            region(line, 10 + device, 15, 1 + device)
            line.event(HELPER, (12 + device) * US, US)
            record(line, 12 + device, 11 + device)
            region(line, 20, 90 + device, 11 + device)
            op(line, "dot.1", 21 + device)
            line.event("ThunkExecutor::Execute (wait for completion)", 30 * US, (50 + device) * US)
        waiting = host.line("tf_client/4")
        for device in (0, 1):
            record(launcher, 35 + device, 21 + device)
            region(waiting, 40 + 5 * device, 44 + 5 * device, 21 + device)
            waiting.event(HELPER, (41 + 5 * device) * US, US)
        for number in range(released):
            record(other, 82 + number, 31 + number)
            line = (waiting, pool, launcher)[number]
            region(line, 100, 120, 31 + number)
            op(line, "dot.1", 105 + number)
        return space

    def test_the_device_that_waited_last_is_released_first(self, ingest: Any) -> None:
        result, query = ingest(self.capture(2))
        assert query(OPS) == [(0, 0, "dot.1", 21), (1, 0, "dot.1", 22), (1, 1, "dot.1", 105), (0, 1, "dot.1", 106)]
        assert "unattributed_ops" not in result.entry.flags

    def test_other_records_than_those_that_wait_tell_nothing(self, ingest: Any) -> None:
        result, query = ingest(self.capture(3))
        assert [row[:2] for row in query(OPS)] == [(0, 0), (1, 0), *[(None, None)] * 3]
        assert "unattributed_ops" in result.entry.flags

    def test_a_recording_that_states_who_reduces_together(self, tmp_path: Path, tables_in: Any) -> None:
        """In each program one device reduces alone; the key of the others' rendezvous names the others."""
        ingest_one(CAPTURES / "torch_xla-unsynchronised.xplane.pb.gz", tmp_path / "warehouse")
        query = tables_in(tmp_path / "warehouse")
        assert query("SELECT count(*), count(DISTINCT (device_id, execution)) FROM ops") == [(336, 48)]
        repeated = "SELECT count(*) FROM ops GROUP BY device_id, execution, instruction_id HAVING count(*) > 1"
        assert query(repeated) == []
        named = query(
            """SELECT o.device_id, regexp_extract(s.string_value, 'global_devices=.([0-9,]+)', 1)
            FROM host_events AS h JOIN event_stats AS s ON s.event_id = h.event_id AND s.name = 'name'
            JOIN ops AS o ON o.line = h.thread AND h.start_ps >= o.start_ps
                AND h.start_ps + h.duration_ps <= o.start_ps + o.duration_ps
            WHERE s.string_value LIKE '%global_devices%'"""
        )
        assert len(named) >= 3 * 12
        assert all(str(device) in members.split(",") for device, members in named)


class TestWithoutALaunch:
    def test_the_launch_came_before_the_capture(self, ingest: Any) -> None:
        """Metadata name the launch, no event is one: nothing tells the device of the ops, which stay host events."""
        space = Space()
        host = space.host()
        host.metadata(LAUNCH)
        op(host.line("tf_client/2"), "dot.1", 5)
        result, query = ingest(space)
        assert query("SELECT thread, name, start_ps FROM host_events") == [("tf_client/2", "dot.1", 5 * US)]
        assert query("SELECT count(*) FROM ops") == [(0,)]
        assert query("SELECT backend, device_count FROM runs") == [("unknown", 0)]
        assert result.entry.flags == ["no_device_events"]

    def test_of_two_planes_of_host_threads_the_first_has_the_devices(self, ingest: Any) -> None:
        space = Space()
        for at in (0, 100):
            host = space.host()
            python, launcher, pool = (host.line(n) for n in ("python", "tf_pytorchxla/1", "tf_client/2"))
            record(python, at + 2, 100)
            region(launcher, at + 5, at + 20, 100)
            launcher.event(SINGLE, (at + 6) * US, 10 * US).event(HELPER, (at + 7) * US, 8 * US)
            record(launcher, at + 8, 101)
            region(pool, at + 25, at + 60, 101)
            op(pool, "dot.1", at + 30)
        _, query = ingest(space)
        assert query(OPS) == [(0, 0, "dot.1", 30)]
        assert query("SELECT start_ps // 1000000 FROM host_events WHERE name = 'dot.1'") == [(130,)]


class TestOpsThatStateTheirDevice:
    """As JAX's client writes them: the ops' `run_id` is that of the launch, `device_ordinal` says where they ran."""

    @staticmethod
    def op(line: LineBuilder, name: str, at: int, device: int, launch: int) -> None:
        module = {"hlo_op": name, "hlo_module": "jit_f", "program_id": Unsigned(1)}
        line.event(name, at * US, US, **module, run_id=launch, device_ordinal=device)

    def test_two_devices_share_a_thread(self, ingest: Any) -> None:
        """The second launch is made by the thread of the first, in no step; a third came before the capture."""
        space = Space()
        host = space.host()
        python, pool = host.line("python"), host.line("tf_client/2")
        python.event("train", 0, 10 * US, step_num=7, _r=1)
        python.event("CommonPjRtLoadedExecutable::Execute (jit_f)", 2 * US, 3 * US, run_id=-5)
        python.event("CommonPjRtLoadedExecutable::Execute (jit_f)", 20 * US, 3 * US, run_id=-4)
        pool.event("ThunkExecutor::Execute (wait for completion)", 1 * US, 0, run_id=-6, device_ordinal=3)
        self.op(pool, "dot.1", 1, device=3, launch=-6)
        self.op(pool, "dot.1", 6, device=3, launch=-5)
        self.op(pool, "dot.1", 8, device=1, launch=-5)
        self.op(pool, "dot.1", 22, device=1, launch=-4)
        self.op(pool, "dot.1", 24, device=3, launch=-4)
        result, query = ingest(space)
        assert query(OPS) == [
            (1, 0, "dot.1", 1),
            (1, 1, "dot.1", 6),
            (0, 1, "dot.1", 8),
            (0, 2, "dot.1", 22),
            (1, 2, "dot.1", 24),
        ]
        assert query("SELECT device_id, local_ordinal, backend FROM devices ORDER BY 1") == [
            (0, 1, "cpu"),
            (1, 3, "cpu"),
        ]
        assert query("SELECT step, phase, count(*) FROM ops GROUP BY ALL ORDER BY ALL NULLS LAST") == [
            (7, None, 2),
            (None, "outside", 3),
        ]
        assert query("SELECT DISTINCT name FROM phases WHERE kind = 'step'") == [("train",)]
        assert result.entry.flags == ["missing_hlo"]

    @pytest.mark.parametrize("numbers", [(0, 1, 2), (0, 0, 1)])
    def test_marks_reach_the_executions_of_a_single_device_on_other_threads(
        self, ingest: Any, numbers: tuple[int, ...]
    ) -> None:
        """Its launches state no `run_id`. Two programs of a step wait in the pool, the last until after its mark.

        Where decode counts from 0 as prefill does, host and device number the steps anew.
        """
        space = Space()
        host = space.host()
        python, pool, other = (
            host.line("python"),
            host.line("tf_XLAPjRtCpuClient/1"),
            host.line("tf_XLAPjRtCpuClient/2"),
        )
        for step, name in enumerate(("prefill", "decode", "decode")):
            at = 100 * step
            python.event(name, at * US, 40 * US, step_num=numbers[step], _r=1)
            for k, (thread, begin) in enumerate(((pool, at + 10), (other, at + 60))):
                context = 10 * step + k + 1
                python.event("CommonPjRtLoadedExecutable::ExecuteHelperOnSingleDevice", (at + 5 + 9 * k) * US, 5 * US)
                record(python, at + 6 + 9 * k, context)
                region(thread, begin, begin + 20, context)
                launch = 2 * step + k + 7
                self.op(thread, f"dot.{k}", begin + 1, device=0, launch=launch)
                ids = {"run_id": launch, "device_ordinal": 0}
                thread.event("ThunkExecutor::Execute (wait for completion)", (begin + 9) * US, 0, **ids)
        _, query = ingest(space)
        assert query("SELECT step, phase, count(*) FROM ops WHERE device_id = 0 GROUP BY ALL ORDER BY ALL") == [
            (0, "prefill", 2),
            (1, "decode", 2),
            (2, "decode", 2),
        ]
        for clock in ("device_id = 0", "device_id IS NULL"):
            steps = f"""SELECT "index", name, source FROM phases WHERE kind = 'step' AND {clock} ORDER BY 1"""
            assert query(steps) == [(0, "prefill", "marker"), (1, "decode", "marker"), (2, "decode", "marker")]

    @pytest.mark.parametrize("mark", ["train", "step"])
    @pytest.mark.parametrize("is_whole", [False, True])
    def test_a_neutral_mark_leaves_the_phases_of_named_programs(self, ingest: Any, mark: str, is_whole: bool) -> None:
        """A mark around each step or around all of them; a program that samples follows each step inside it."""
        space = Space()
        host = space.host()
        python, pool = host.line("python"), host.line("tf_client/2")
        if is_whole:
            python.event(mark, 0, 300 * US, step_num=0, _r=1)
        for step, name in enumerate(("jit_prefill", "jit_decode", "jit_decode")):
            if not is_whole:
                python.event(mark, 100 * step * US, 90 * US, step_num=step + 4, _r=1)
            for k, module in enumerate((name, "jit_sample")):
                at, launch = 100 * step + 30 * k, 2 * step + k + 1
                python.event("ThunkExecutor::Execute", (at + 2) * US, US, run_id=launch)
                stats = {"hlo_op": "dot.1", "hlo_module": module, "program_id": Unsigned(1)}
                pool.event("dot.1", (at + 5) * US, US, **stats, run_id=launch, device_ordinal=0)
        _, query = ingest(space)
        phases = [phase for (phase,) in query("SELECT phase FROM ops WHERE device_id = 0 ORDER BY start_ps")]
        assert phases == ["prefill"] * 2 + ["decode"] * 4
        assert len(set(query("SELECT step FROM ops WHERE device_id = 0"))) == 3

    def test_hosts_that_number_a_program_otherwise_run_the_same_steps(self, ingest: Any) -> None:
        hosts = []
        for number in (1, 2):
            space = Space(hostnames=[f"host{number}"])
            host = space.host()
            python, pool = host.line("python"), host.line("tf_client/2")
            for step in range(3):
                python.event("ThunkExecutor::Execute", (100 * step + 2) * US, US, run_id=step + 1)
                stats = {"hlo_op": "dot.1", "hlo_module": "jit_step", "program_id": Unsigned(number)}
                pool.event("dot.1", (100 * step + 5) * US, US, **stats, run_id=step + 1, device_ordinal=0)
            space.profiled(10**18, 10**18 + 10**6)
            hosts.append(space)
        _, query = ingest(*hosts)
        steps = """SELECT device_id, "index" FROM phases WHERE kind = 'step' ORDER BY ALL"""
        assert query(steps) == [(device, step) for device in (0, 1) for step in range(3)]

    def test_an_op_on_a_device_beyond_belief_has_none(self, ingest: Any) -> None:
        space = Space()
        host = space.host()
        pool = host.line("tf_client/2")
        pool.event("ThunkExecutor::Execute (wait for completion)", 0, 0, run_id=1, device_ordinal=0)
        self.op(pool, "dot.1", 1, device=0, launch=1)
        for at, device in enumerate((-1, 1 << 40, 1 << 63), 2):
            self.op(pool, "dot.1", at, device=device, launch=1)
        result, query = ingest(space)
        assert query("SELECT device_id, count(*) FROM ops GROUP BY ALL ORDER BY ALL NULLS LAST") == [(0, 1), (None, 3)]
        assert query("SELECT count(*) FROM devices") == [(1,)]
        assert result.entry.flags == ["inferred_steps", "unattributed_ops"]

    def test_a_capture_of_jax(self, tmp_path: Path, tables_in: Any) -> None:
        """Two layers over dp=2 and tp=2: each sums its output over tp, in a prefill of 16 tokens and three steps."""
        result = ingest_one(CAPTURES / "jax-dp2tp2.xplane.pb.gz", tmp_path / "warehouse")
        query = tables_in(tmp_path / "warehouse")
        assert query("SELECT backend, device_count FROM runs") == [("cpu", 4)]
        rows = 2 * 64 * 4  # sequences of a replica, hidden size, bytes of a float
        assert query(
            "SELECT device_id, phase, step, kind, axis, group_size, list(DISTINCT message_bytes), "
            "count(DISTINCT instance) FROM collectives GROUP BY ALL ORDER BY ALL"
        ) == [
            (device, phase, step, "all-reduce", "tp", 2, [rows * (16 if step == 0 else 1)], 2)
            for device in range(4)
            for phase, steps in (("decode", (1, 2, 3)), ("prefill", (0,)))
            for step in steps
        ]
        assert query(
            "SELECT layer, part, count(DISTINCT instruction_id) > 0, count(*) FILTER (o.execution IS NULL) "
            "FROM ops AS o JOIN instructions USING (run_id, instruction_id) GROUP BY ALL ORDER BY ALL"
        ) == [(0, "mlp", True, 0), (1, "mlp", True, 0)]
        assert result.entry.flags == ["inferred_axes"]
