"""Ops of virtual CPU devices find their device and execution through the threads that ran them.

The events are those that torch_xla 2.9 writes: `_p` of a record is consumed as `_c` by the region that it starts.
"""

from __future__ import annotations

from typing import Any

from xplane_builder import LineBuilder, Space, Unsigned

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
        assert result.entry.flags == ["unattributed_ops"]


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
