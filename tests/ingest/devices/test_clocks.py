"""Clocks of hosts, corrected by the ends of the collectives that they share: captures with skews that are known."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from xplane_builder import Space, Unsigned

from tracewarehouse.ingest.devices import clocks
from tracewarehouse.ingest.devices.hosts import Host

US = 1_000_000
PROGRAM = 42
DAY_NS = 86_400 * 10**9
START_NS = 1_700_000_000_000_000_000


def reduce(groups: str) -> str:
    return (
        f"%all-reduce.1 = f32[256]{{0}} all-reduce(f32[256]{{0}} %x), channel_id=1, replica_groups={groups}, "
        "use_global_device_ids=true, to_apply=%add"
    )


def hosts_with_skew(
    *skews_us: float,
    groups: str = "{}",
    steps: int = 20,
    step_us: float = 100,
    jitter_us: float = 7,
    spread_us: float = 0.01,
    start_ns: int | None = START_NS,
    first: tuple[int, ...] = (),
    period: int | None = None,
) -> list[Space]:
    """Hosts of one TPU each that reduce together once a step; each clock is ahead of the truth by its skew.

    `first` are steps that a host's profile misses at its beginning, `period` how many it has.
    """
    r = random.Random(3)
    truth, at = [], 1000.0
    for _ in range(steps):
        at += step_us + r.uniform(-jitter_us, jitter_us)
        truth.append(at)
    spaces = []
    for host, skew in enumerate(skews_us):
        space = Space(hostnames=[f"h{host}"])
        tpu = space.tpu(0)
        op = tpu.instruction(reduce(groups), hlo_category="all-reduce", program_id=Unsigned(PROGRAM))
        low = first[host] if first else 0
        for end in truth[low : None if period is None else low + period]:
            here = int((end + skew + r.uniform(0, spread_us)) * US)
            wait = int(r.uniform(2, 20) * US)
            tpu.modules.event(f"jit_step({PROGRAM})", here - 30 * US, 31 * US)
            tpu.ops.event(op, here - wait, wait)
        if start_ns is not None:
            space.profiled(start_ns, start_ns + 10_000_000)
        spaces.append(space)
    return spaces


CLOCKS = """SELECT clock_source, clock_offset_ps / 1e6, clock_correction_ps / 1e6, clock_residual_ps / 1e6,
                   clock_instances FROM hosts ORDER BY host_index"""
SPREAD = """SELECT max(s) FROM (SELECT max(end_ps) - min(end_ps) AS s FROM collectives GROUP BY instance)"""


def test_a_skew_is_found_and_taken_out(ingest: Any) -> None:
    result, query = ingest(*hosts_with_skew(0, 3.5), mesh="dp=2")
    first, other = query(CLOCKS)
    assert first == ("first_host", 0, None, None, None)
    assert other[0] == "collective_ends"
    assert other[1:3] == (pytest.approx(-3.5, abs=0.01), pytest.approx(-3.5, abs=0.01))
    assert other[3] < 0.01
    assert other[4] == 20
    assert query(SPREAD)[0][0] < 0.02 * US
    assert any("the clock of h1 was moved by -3." in n for n in result.notes)
    assert query("SELECT flag FROM quality_flags") == [("inferred_steps",)]


@pytest.mark.parametrize("far_ns", [0, START_NS - 2 * DAY_NS, START_NS + 200 * DAY_NS, 2**63 - 1, 2**64 - 1])
def test_a_clock_that_was_never_set_counts_for_nothing(ingest: Any, far_ns: int) -> None:
    """The starts of the other profiles are near each other, and shared collectives align the host in their stead."""
    spaces = hosts_with_skew(0, 2, 3.5)
    spaces[1] = hosts_with_skew(0, 2, 3.5, start_ns=far_ns)[1]
    _, query = ingest(*spaces, mesh="dp=3")
    assert query("SELECT profile_start_ns FROM runs") == [(START_NS,)]
    sources = [(source, abs(offset) < 10) for source, offset, *_ in query(CLOCKS)]
    assert sources == [("first_host", True), ("collective_ends", True), ("collective_ends", True)]
    assert query(SPREAD)[0][0] < 0.02 * US


def test_everything_of_the_host_moves_with_it(ingest: Any) -> None:
    spaces = hosts_with_skew(0, 3.5)
    spaces[1].host().line("python").event("f", 1_000 * US, 5)
    _, query = ingest(*spaces, mesh="dp=2")
    [(offset,)] = query("SELECT clock_offset_ps FROM hosts WHERE host = 'h1'")
    assert query("SELECT start_ps FROM host_events") == [(1_000 * US + offset,)]
    times = "SELECT min(start_ps) FROM {} WHERE host = 'h1' {}"
    module = query(times.format("ops", "AND line = 'XLA Modules'"))
    assert query(times.format("phases", "AND kind = 'module'")) == module
    assert query("SELECT count(*) FROM ops WHERE line = 'XLA Ops' AND step IS NULL") == [(0,)]
    assert query("SELECT first_start_ps FROM lines WHERE host = 'h1' AND line = 'XLA Modules'") == module


def test_three_hosts_and_wall_clocks_far_apart(ingest: Any) -> None:
    spaces = hosts_with_skew(0, -40, 25)
    spaces[2] = hosts_with_skew(0, -40, 25, start_ns=START_NS + 5_000)[2]  # and its profile seems to start 5 us later
    _, query = ingest(*spaces, mesh="dp=3")
    rows = query(CLOCKS)
    assert [r[0] for r in rows] == ["first_host", "collective_ends", "collective_ends"]
    assert [r[1] for r in rows] == [pytest.approx(x, abs=0.02) for x in (0, 40, -25)]
    assert [r[2] for r in rows[1:]] == [pytest.approx(x, abs=0.02) for x in (40, -30)]


def test_hosts_that_share_only_with_a_third_are_reached_through_it(ingest: Any) -> None:
    """Groups {0,1} and {2,3} in one collective, {1,2} in another: the first host and the last have none together."""
    spaces = hosts_with_skew(0, 8, -6, 2, groups="{{0,1},{2,3}}", jitter_us=5)
    for number, skew in ((1, 8), (2, -6)):
        tpu = spaces[number].planes[0]
        hlo = reduce("{{0},{1,2},{3}}").replace("all-reduce.1", "all-reduce.2")
        op = tpu.metadata(hlo, "all-reduce.2", {"program_id": Unsigned(43), "hlo_category": "all-reduce"})
        modules, ops = tpu.lines
        for step in range(5):
            modules.event("jit_other(43)", (5_000 + 100 * step + skew) * US - 8 * US, 8 * US)
            ops.event(op, (5_000 + 100 * step + skew) * US - 4 * US, 4 * US)
    _, query = ingest(*spaces, mesh="dp=4")
    rows = query(CLOCKS)
    assert [r[0] for r in rows] == ["first_host", *["collective_ends"] * 3]
    assert [r[1] for r in rows] == [pytest.approx(x, abs=0.03) for x in (0, -8, 6, -2)]


def test_without_shared_collectives_the_wall_clocks_stay(ingest: Any) -> None:
    _, query = ingest(*hosts_with_skew(0, 3.5, groups="{{0},{1}}"), mesh="dp=2")
    rows = query(CLOCKS)
    assert [r[1:] for r in rows] == [(0, None, None, None)] * 2
    assert query("SELECT flag FROM quality_flags") == [("inferred_steps",)]


def test_without_any_start_collectives_are_enough(ingest: Any) -> None:
    _, query = ingest(*hosts_with_skew(0, 3.5, start_ns=None), mesh="dp=2")
    rows = query(CLOCKS)
    assert (rows[1][0], rows[1][1]) == ("collective_ends", pytest.approx(-3.5, abs=0.02))
    assert query("SELECT flag FROM quality_flags") == [("inferred_steps",)]


def test_with_neither_it_is_said(ingest: Any) -> None:
    _, query = ingest(*hosts_with_skew(0, 3.5, start_ns=None, groups="{{0},{1}}"), mesh="dp=2")
    flags = [("clock_unaligned", "h0"), ("clock_unaligned", "h1"), ("inferred_steps", None)]
    assert query("SELECT flag, host FROM quality_flags") == flags


def test_a_difference_within_the_scatter_is_left_alone(ingest: Any) -> None:
    _, query = ingest(*hosts_with_skew(0, 0.05, spread_us=1.5), mesh="dp=2")
    _, offset, correction, residual, count = query(CLOCKS)[1]
    assert (offset, correction, count) == (0, None, 20)
    assert residual < 1.5


def test_profiles_that_begin_at_other_steps_do_not_move_clocks(ingest: Any) -> None:
    """Both have 15 steps, but of the same 20: counted from the first, each step pairs with the one before."""
    _, query = ingest(*hosts_with_skew(0, 0.2, first=(0, 1), period=15), mesh="dp=2")
    assert query(CLOCKS)[1][1:3] == (0, None)
    flags = [("clock_uncertain", "h1"), ("inferred_steps", None)]
    assert query("SELECT DISTINCT flag, host FROM quality_flags ORDER BY flag") == flags


def test_a_host_with_one_step_less_is_not_compared(ingest: Any) -> None:
    spaces = hosts_with_skew(0, 3.5)
    spaces[1] = hosts_with_skew(0, 3.5, first=(0, 1))[1]
    _, query = ingest(*spaces, mesh="dp=2")
    assert query(CLOCKS)[1][1:] == (0, None, None, None)
    flags = [("clock_unchecked", "h1"), ("inferred_steps", None), ("partial_collectives", None)]
    flags.append(("uneven_launches", None))
    assert query("SELECT flag, host FROM quality_flags ORDER BY flag") == flags


def test_an_even_program_beside_an_uneven_one_is_check_enough(ingest: Any) -> None:
    """Each host also reduces in another program, which all ran three times: the clocks are compared by that."""
    spaces = hosts_with_skew(0, 3.5)
    spaces[1] = hosts_with_skew(0, 3.5, first=(0, 1))[1]
    for space, skew in zip(spaces, (0, 3.5), strict=True):
        tpu = space.planes[0]
        hlo = reduce("{}").replace("all-reduce.1", "all-reduce.2")
        op = tpu.metadata(hlo, "all-reduce.2", {"program_id": Unsigned(43), "hlo_category": "all-reduce"})
        modules, ops = tpu.lines
        for step in range(3):
            end = int((5_000 + 100 * step + skew) * US)
            modules.event("jit_other(43)", end - 8 * US, 8 * US)
            ops.event(op, end - 4 * US, 4 * US)
    _, query = ingest(*spaces, mesh="dp=2")
    assert query(CLOCKS)[1][:2] == ("collective_ends", pytest.approx(-3.5, abs=0.02))
    assert query("SELECT count(*) FROM quality_flags WHERE flag = 'clock_unchecked'") == [(0,)]


def test_a_skew_longer_than_a_step_is_found_where_steps_differ(ingest: Any) -> None:
    _, query = ingest(*hosts_with_skew(0, 450), mesh="dp=2")
    assert query(CLOCKS)[1][:2] == ("collective_ends", pytest.approx(-450, abs=0.02))


@pytest.mark.parametrize("seed", range(40))
def test_a_host_is_compared_with_the_earlier_one_with_which_it_shares_most(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chosen again in the plain way, among all pairs, of which thousands of hosts would have too many."""
    dice = random.Random(seed)
    count, are_ranks = dice.randrange(1, 10), seed % 2 == 1
    shares = dice.choice((0.1, 0.5, 0.9))
    here = np.array([[dice.random() < shares for _ in range(count)] for _ in range(30)])
    if seed % 3:  # hosts that share nothing with some others
        here &= np.arange(30)[:, None] % seed % 3 == np.arange(count) % 3
    compared: list[tuple[int, int]] = []
    monkeypatch.setattr(clocks, "_compare", lambda _, __, a, b, **___: compared.append((a, b)) or iter(()))
    hosts = [Host(i, f"h{i}", None, "", 0, None, None, 0, "profile") for i in range(count)]  # type: ignore[arg-type]
    none = np.zeros(here.shape, np.int64)
    ends = clocks.SharedEnds(none, none, none, here, none[:, 0])
    assert list(clocks.correct(hosts, ends, are_ranks=are_ranks)) == []

    shared = here.astype(int).T @ here
    placed, left, expected = [0], [*range(1, count)], []
    while left:
        most, a, b = min((-shared[a, b], a, b) for a in placed for b in left)
        if -most < clocks.FEWEST:
            among = [(-shared[a, b], a) for a in left for b in left if a < b]
            if not are_ranks or not among or -min(among)[0] < clocks.FEWEST:
                break
            b = min(among)[1]
        else:
            expected.append((a, b))
        left.remove(b)
        placed.append(b)
    assert compared == expected
