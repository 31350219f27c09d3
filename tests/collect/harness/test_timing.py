"""What is done around generations; they themselves are stand-ins, so torch is not needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tracewarehouse.collect.errors import CheckError
from tracewarehouse.collect.harness.generation import Generation, Timed, generate_timed, timing_checks, warm_up
from tracewarehouse.ingest.capture.manifest import PhaseMark


def made(
    compiles: int = 0, prefill: int = 100, decode: int = 10, cpu: int = 50, host: tuple[int, int, int] = (3, 2, 2)
) -> Generation:
    """A generation of one prefill and two decode steps; host times in ns, `host` to start the steps' programs."""
    ends = [prefill, prefill + decode, prefill + 2 * decode]
    marks = [
        PhaseMark(name="decode" if step else "prefill", step=step, start_ns=start, end_ns=end)
        for step, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
    ]
    return Generation(marks, [], [], list(host), compiles, cpu)


class Recorder:
    """A profiler that notes when it is on."""

    def __init__(self, content: bytes = b"a profile") -> None:
        self.is_on = False
        self._content, self._folder = content, Path()

    def start_profiler(self, logdir: Path) -> None:
        self.is_on, self._folder = True, logdir / "plugins" / "profile" / "now"

    def stop_profiler(self) -> None:
        self.is_on = False
        self._folder.mkdir(parents=True)
        (self._folder / "host.xplane.pb").write_bytes(self._content)


@pytest.mark.parametrize(("compiles", "warmups"), [([2, 0], 2), ([0, 0], 2), ([2, 1, 0], 3), ([2, 1, 1, 0], 4)])
def test_it_warms_up_twice_and_until_nothing_is_compiled(compiles: list[int], warmups: int) -> None:
    left = iter(compiles)

    assert warm_up(lambda: made(next(left))) == warmups
    assert list(left) == []


def test_what_compiles_again_and_again_is_refused() -> None:
    with pytest.raises(CheckError, match="still compiled in the generation number 4"):
        warm_up(lambda: made(1))


def test_another_host_that_compiles_prolongs_the_warm_up() -> None:
    elsewhere = iter([2, 1, 0])

    assert warm_up(lambda: made(0), lambda own: own + next(elsewhere)) == 3


def test_the_profiler_is_off_and_on_by_turns_and_the_last_recording_is_kept(tmp_path: Path) -> None:
    recorder, states, waits, prepared = Recorder(), [], [], []
    times = iter(range(10))

    def generate() -> Generation:
        states.append(recorder.is_on)
        return made(prefill=100 + next(times))

    def prepare() -> Callable[[], Generation]:
        prepared.append(recorder.is_on)
        return generate

    timed = generate_timed(recorder, prepare, tmp_path, lambda: waits.append(len(states)))

    assert prepared == [False] * 10  # nothing of it is recorded

    assert states == [False, True] * 5
    assert waits == list(range(10))
    assert [t.ttft_ns for t in timed.off] == [100, 102, 104, 106, 108]
    assert [t.ttft_ns for t in timed.on] == [101, 103, 105, 107, 109]
    assert timed.profiled.times == timed.on[-1]
    assert timed.files == [tmp_path / "plugins" / "profile" / "now" / "host.xplane.pb"]
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == timed.files


def test_a_compilation_while_the_profiler_is_on_is_refused(tmp_path: Path) -> None:
    left = iter([made(0), made(2)])

    with pytest.raises(CheckError, match="2 programs were compiled inside the capture"):
        generate_timed(Recorder(), lambda: lambda: next(left), tmp_path)


def test_an_empty_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="the profiler wrote 1 xplane files, some empty"):
        generate_timed(Recorder(b""), lambda: made, tmp_path)


def test_the_host_times_are_medians() -> None:
    off = [made(0, *given).times for given in ((100, 10, 40), (500, 50, 80), (110, 20, 44))]
    on = [made(0, *given).times for given in ((200, 30, 55), (210, 25, 51), (220, 35, 70))]
    timed = Timed(off, on, made(host=(50, 6, 5)), [])

    checks = timing_checks(2, timed)

    assert checks == {
        "warmups": 2,
        "compiles_in_capture": 0,
        "host_step_ns": 6,
        "host_bound_steps": [1],  # 6 of 10 ns; half of the prefill's 100 is not more than the other half
        "host_ttft_ns_profiler_off": 110,
        "host_tpot_ns_profiler_off": 20,
        "host_end_to_end_ns_profiler_off": 150,
        "host_end_to_end_ns_profiler_off_each": [120, 600, 150],
        "host_cpu_ns_profiler_off": 44,
        "host_ttft_ns_profiler_on": 210,
        "host_tpot_ns_profiler_on": 30,
        "host_end_to_end_ns_profiler_on": 260,
        "host_end_to_end_ns_profiler_on_each": [260, 260, 290],
        "host_cpu_ns_profiler_on": 55,
        "profiling_overhead": 260 / 150,
        "profiling_overhead_cpu": 55 / 44,
    }
