"""The macros of sql/: comparisons worked out by hand, and sums that must hold on recorded captures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest
from given_tables import fill, warehouse_of

from tracewarehouse.warehouse import Warehouse, open_warehouse


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with warehouse_of({}) as database:
        yield database


def values(run: str, metric: str, samples: Sequence[float | None], version: int = 1, **dimensions: Any) -> list[Any]:
    """Stored values of a run: one, or one per step where there are several."""
    steps: list[dict[str, Any]] = [{"step": i} for i in range(len(samples))] if len(samples) > 1 else [{}]
    return [
        {
            "run_id": run,
            "metric": metric,
            "version": version,
            "dimensions": json.dumps(dimensions | step),
            "value": value,
            "unit": "ms",
        }
        for step, value in zip(steps, samples, strict=True)
    ]


def compared(database: duckdb.DuckDBPyConnection, rows: list[Any], call: str) -> list[dict[str, Any]]:
    fill(database, {"metric_values": rows})
    result = database.execute(f"SELECT * FROM macros.compare_values({call}) ORDER BY metric, dimensions")
    names = [c[0] for c in result.description]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def test_steps_are_samples_and_notches_that_overlap_are_noise(connection: duckdb.DuckDBPyConnection) -> None:
    """Ten steps a side. Nearest rank: the median is the 5th, the 90th percentile the 9th, the quartiles 3rd and 8th.

    Notches: 1.57 x (8 - 3) / sqrt(10) = 2.48 on each side, 4.96 together.
    """
    base = [float(i) for i in range(1, 11)]
    rows = values("a", "step_time", base, 1, phase="decode")
    for shift, verdict in ((4, "noise"), (5, "worse"), (-5, "better")):
        more = values("b", "step_time", [v + shift for v in base], 1, phase="decode")
        [row] = compared(connection, rows + more, "['b'], ['a']")
        assert row["dimensions"] == '{"phase":"decode"}'
        assert (row["baseline"], row["value"], row["baseline_tail"], row["tail"]) == (5, 5 + shift, 9, 9 + shift)
        assert (row["samples"], row["baseline_samples"]) == (10, 10)
        assert row["noise_source"] == "steps"
        assert row["noise"] == pytest.approx(2 * 1.57 * 5 / 10**0.5)
        assert (row["difference"], row["verdict"]) == (shift, verdict)
        assert (row["relative"], row["loss"], row["tail_loss"]) == pytest.approx((shift / 5, shift / 5, shift / 9))


def test_three_steps_say_nothing_of_noise(connection: duckdb.DuckDBPyConnection) -> None:
    rows = values("a", "step_time", [1, 2, 3], 1) + values("b", "step_time", [1, 3, 3], 1)
    [row] = compared(connection, rows, "['b'], ['a']")
    assert (row["baseline"], row["value"], row["noise"], row["noise_source"]) == (2, 3, None, None)
    assert row["verdict"] == "unknown"


def test_the_tail_of_a_metric_of_which_more_is_better_is_its_low_end(connection: duckdb.DuckDBPyConnection) -> None:
    """No released metric of that polarity is per step: the ten runs of a side are the samples."""
    rows = [r for i in range(10) for r in values(f"a{i}", "throughput", [100.0 + i])]
    rows += [r for i in range(10) for r in values(f"b{i}", "throughput", [80.0 + 2 * i])]
    call = f"{[f'b{i}' for i in range(10)]}, {[f'a{i}' for i in range(10)]}"
    [row] = compared(connection, rows, call)
    # from the best: the median is the 5th, 105 and 90; the 90th percentile the 9th, 101 and 82
    assert (row["baseline"], row["value"], row["baseline_tail"], row["tail"]) == (105, 90, 101, 82)
    assert (row["loss"], row["tail_loss"]) == pytest.approx((15 / 105, 19 / 101))
    # ten runs a side: noise is the wider range, 18
    assert (row["noise"], row["noise_source"], row["verdict"]) == (18, "repeats", "noise")


def test_repeats_give_the_noise_also_when_they_are_not_compared(connection: duckdb.DuckDBPyConnection) -> None:
    """Medians of the baseline's repeats: 10, 11, 10.5, so twice the range is 2; five of them count once."""
    rows = [r for i, v in enumerate((10, 11, 10.5, 10, 10)) for r in values(f"a{i}", "tpot", [v], clock="device")]
    rows += values("b", "tpot", [11.8], clock="device")
    [row] = compared(connection, rows, "['b'], ['a0'], NULL, ['a0', 'a1', 'a2']")
    assert (row["baseline"], row["value"], row["noise"], row["verdict"]) == (10, 11.8, 2, "noise")
    [row] = compared(connection, rows, "['b'], ['a0'], baseline_repeats := ['a0', 'a1', 'a2', 'a3', 'a4']")
    assert (row["noise"], row["verdict"]) == (1, "worse")
    [row] = compared(connection, rows, "['b'], ['a0', 'a1', 'a2']")
    assert (row["baseline"], row["baseline_samples"], row["noise"]) == (10.5, 3, 2)


def test_what_one_side_does_not_have_is_named(connection: duckdb.DuckDBPyConnection) -> None:
    rows = values("a", "tpot", [1], clock="host") + values("b", "tpot", [1], clock="device")
    rows += values("a", "throughput", [1], clock="host") + values("b", "throughput", [None], clock="host")
    found = compared(connection, rows, "['b'], ['a']")
    assert [(r["metric"], json.loads(r["dimensions"])["clock"], r["verdict"]) for r in found] == [
        ("throughput", "host", "not in run"),
        ("tpot", "device", "not in baseline"),
        ("tpot", "host", "not in run"),
    ]
    assert {r["loss"] for r in found} == {None}


@pytest.mark.parametrize(("covered", "verdict"), [(0.9, "unknown"), (0.89, "not judged"), (None, "not judged")])
def test_numbers_by_layer_are_judged_where_both_sides_know_most_layers(
    connection: duckdb.DuckDBPyConnection, covered: float | None, verdict: str
) -> None:
    """Decode by the less known side; prefill, of which both know all, by itself; what has no layer in any case."""
    rows = [
        *values("a", "layer_time", [0.1], phase="decode", layer=0, part="mlp"),
        *values("b", "layer_time", [2480.0], phase="decode", layer=0, part="mlp"),
        *values("a", "layer_time", [1.0], phase="prefill", layer=0, part="mlp"),
        *values("b", "layer_time", [2.0], phase="prefill", layer=0, part="mlp"),
        *values("a", "tpot", [1.0], phase="decode"),
        *values("b", "tpot", [2.0], phase="decode"),
        *values("b", "layer_coverage", [1.0], phase="decode"),
        *(values("a", "layer_coverage", [covered], phase="decode") if covered else []),
        *(v for run in "ab" for v in values(run, "layer_coverage", [1.0], phase="prefill")),
    ]
    found = compared(connection, rows, "['b'], ['a']")
    by_layer = {json.loads(r["dimensions"])["phase"]: r for r in found if r["metric"] == "layer_time"}
    assert by_layer["prefill"]["verdict"] == "unknown"
    assert next(r["verdict"] for r in found if r["metric"] == "tpot") == "unknown"
    decode = by_layer["decode"]
    assert decode["verdict"] == verdict
    assert (decode["baseline"], decode["value"]) == (0.1, 2480.0)
    losses = decode["relative"], decode["loss"], decode["tail_loss"]
    assert all((loss is None) == (verdict == "not judged") for loss in losses)


def test_a_loss_from_zero_is_without_limit(connection: duckdb.DuckDBPyConnection) -> None:
    rows = values("a", "tpot", [0]) + values("b", "tpot", [1])
    [row] = compared(connection, rows, "['b'], ['a']")
    assert (row["relative"], row["loss"], row["verdict"]) == (None, float("inf"), "unknown")
    [row] = compared(connection, rows, "['a'], ['a']")
    assert (row["loss"], row["verdict"]) == (0, "same")


def test_only_the_version_of_the_unversioned_name_is_compared(connection: duckdb.DuckDBPyConnection) -> None:
    rows = [r for run in "ab" for version in (1, 2) for r in values(run, "step_time", [version], version)]
    [row] = compared(connection, rows, "['b'], ['a']")
    assert (row["version"], row["value"]) == (1, 1)


def test_a_step_by_layer_category_and_collective(connection: duckdb.DuckDBPyConnection) -> None:
    """One device, two steps in run a and one in run b, in microseconds.

        a   |step 0             |step 1             |        b   |step 0                  |
        dot  0--4                10--14                      dot  0--4
        all-reduce  4---7            14---17                 all-reduce  4-------11
        nested        5-6              15-16                                   (another op within it, covered)
        add             7-8              17-18               add                    11-12
        end of step         10                18                                              15

    An op between the steps' marks and the next start belongs to the step before. The last step of a, whose 8 us lack
    what would follow, does not count; that of b is all there is.
    """
    instructions = [
        {"instruction_id": 0, "name": "dot", "opcode": "dot", "category": "dot", "layer": 0},
        {"instruction_id": 1, "name": "ar", "opcode": "all-reduce", "category": "all-reduce", "layer": 0}
        | {"collective": "all-reduce"},
        {"instruction_id": 2, "name": "add", "opcode": "add", "category": "add", "layer": 1},
        {"instruction_id": 3, "name": "copy", "opcode": "copy"},
    ]
    ops: list[dict[str, Any]] = []
    collectives: list[dict[str, Any]] = []
    phases: list[dict[str, Any]] = []
    for run, starts, wait in (("a", (0, 10), 3), ("b", (0,), 7)):
        for step, start in enumerate(starts):
            common = {"run_id": run, "phase": "decode", "step": step}
            times = ((0, 0, 4), (1, 4, wait), (3, 5, 1), (2, 4 + wait, 1))
            for instruction, at, duration in times:
                op = {"instruction_id": instruction, "event_id": len(ops), "start_us": start + at}
                ops.append(common | op | {"duration_us": duration})
                if instruction == 1:
                    window = {"start_us": start + at, "end_us": start + at + duration}
                    kind = {"instruction_id": 1, "event_id": op["event_id"], "kind": "all-reduce", "axis": "tp"}
                    collectives.append(common | kind | window)
            marks = {"start_us": start, "end_us": 15 if run == "b" else start + (8 if step else 7)}
            phases.append({"run_id": run, "kind": "step", "name": "decode", "index": step, "device_id": 0} | marks)
    fill(
        connection,
        {
            "ops": ops,
            "collectives": collectives,
            "phases": phases,
            "instructions": [{"run_id": r} | i for r in "ab" for i in instructions],
            "devices": [{"run_id": r, "device_id": 0} for r in "ab"],
            "runs": [{"run_id": r} for r in "ab"],
        },
    )
    rows = connection.execute("SELECT * FROM macros.compare_steps(['b'], ['a']) ORDER BY split, name").fetchall()
    shown = {(r[1], r[2]): r[3:6] for r in rows}
    assert {r[0] for r in rows} == {"decode"}
    assert shown == {
        ("category", "add"): (1, 1, 0),
        ("category", "all-reduce"): (3, 7, 4),
        ("category", "dot"): (4, 4, 0),
        ("category", "no category"): (0, 0, 0),
        ("category", "idle"): (2, 3, 1),
        ("collective", "all-reduce over tp"): (3, 7, 4),
        ("collective", "idle"): (2, 3, 1),
        ("collective", "no collective"): (5, 5, 0),
        ("layer", "idle"): (2, 3, 1),
        ("layer", "layer 0"): (7, 11, 4),
        ("layer", "layer 1"): (1, 1, 0),
        ("layer", "no layer"): (0, 0, 0),
        ("operation", "add"): (1, 1, 0),
        ("operation", "ar"): (3, 7, 4),
        ("operation", "copy"): (0, 0, 0),
        ("operation", "dot"): (4, 4, 0),
        ("operation", "idle"): (2, 3, 1),
        ("part", "all-reduce over tp"): (3, 7, 4),
        ("part", "idle"): (2, 3, 1),
        ("part", "matrix"): (4, 4, 0),
        ("part", "other compute"): (1, 1, 0),
    }
    assert {r[6] for r in rows if r[1] == "collective"} == {0.8, 0.2, 0}


def test_operations_are_the_same_after_a_program_is_compiled_anew(connection: duckdb.DuckDBPyConnection) -> None:
    """Instructions have other names and numbers then, and so have the parts of their paths that count calls."""
    named = {
        "a": [("fusion.1", "layer0.6/attn.2/mm"), ("fusion.2", "layer0.6/attn.2/mm.4:"), ("copy.7", None)],
        "b": [("dot.40", "layer0.16/attn.3/mm"), ("fusion.41", "layer0.16/attn.3/mm.9:"), ("copy.3.1", None)],
    }
    times = {"a": (4, 2, 1), "b": (7, 2, 1)}
    instructions, ops, phases = [], [], []
    for run, names in named.items():
        for number, (name, path) in enumerate(names):
            instructions.append({"run_id": run, "instruction_id": number, "name": name, "op_name": path})
            op = {"run_id": run, "event_id": len(ops), "instruction_id": number, "phase": "decode", "step": 0}
            ops.append(op | {"start_us": sum(times[run][:number]), "duration_us": times[run][number]})
        step = {"run_id": run, "kind": "step", "name": "decode", "index": 0, "device_id": 0}
        phases.append(step | {"start_us": 0, "end_us": sum(times[run])})
    fill(connection, {"instructions": instructions, "ops": ops, "phases": phases})
    sql = "SELECT name, baseline_us, value_us FROM macros.compare_steps(['b'], ['a']) WHERE split = 'operation'"
    assert sorted(connection.execute(sql).fetchall()) == [
        ("copy", 1, 1),
        ("idle", 0, 0),
        ("layer0/attn/mm", 4, 7),
        ("layer0/attn/mm:", 2, 2),
    ]


@pytest.fixture(scope="module")
def recorded(copy_of_captures: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    names = ("llama-tp4-b4-i16-o17", "llama-tp4-sp-b4-i16-o9", "llama-pp2tp2-b4-i16-o5")
    with open_warehouse(copy_of_captures(tmp_path_factory.mktemp("macros") / "w", *names)) as warehouse:
        yield warehouse


@pytest.mark.parametrize("run", ["llama-tp4-sp-b4-i16-o9", "llama-pp2tp2-b4-i16-o5"])
def test_contributions_add_up_to_the_difference_to_the_picosecond(recorded: Warehouse, run: str) -> None:
    ours, theirs = recorded.run(run).run_id, recorded.run("llama-tp4-b4-i16-o17").run_id
    sql = f"SELECT * FROM macros.compare_steps(['{ours}'], ['{theirs}'])"
    rows = recorded.query(sql).dicts()
    steps = {
        (r["run_id"], r["phase"]): (r["steps"], r["time_ps"])
        for r in recorded.query(
            "SELECT run_id, phase, count(*) AS steps, sum(step_ps) AS time_ps FROM models.steps "
            "WHERE clock = 'device' AND NOT is_last GROUP BY ALL"
        ).dicts()
    }
    for phase in ("prefill", "decode"):
        (our_steps, our_ps), (their_steps, their_ps) = steps[ours, phase], steps[theirs, phase]
        difference = Fraction(our_ps, our_steps) - Fraction(their_ps, their_steps)
        assert difference != 0
        for split in ("part", "layer", "category", "collective", "operation"):
            parts = [r for r in rows if (r["phase"], r["split"]) == (phase, split)]
            assert len(parts) >= 3
            assert {(r["value_steps"], r["baseline_steps"]) for r in parts} == {(our_steps, their_steps)}
            assert sum(r["value_ps"] for r in parts) == our_ps
            assert sum(r["baseline_ps"] for r in parts) == their_ps
            exact = [Fraction(r["value_ps"], our_steps) - Fraction(r["baseline_ps"], their_steps) for r in parts]
            assert sum(exact) == difference
            assert [r["difference_us"] for r in parts] == pytest.approx([float(e) / 1e6 for e in exact], rel=1e-12)
            assert sum(r["share"] for r in parts) == pytest.approx(1)


def test_most_time_of_decode_has_the_same_operations_in_programs_compiled_apart(recorded: Warehouse) -> None:
    """With and without sequence parallelism decode computes the same; of the paths as they stand, far fewer match."""
    ours, theirs = (recorded.run(name).run_id for name in ("llama-tp4-sp-b4-i16-o9", "llama-tp4-b4-i16-o17"))
    rows = recorded.query(
        f"SELECT * FROM macros.compare_steps(['{ours}'], ['{theirs}']) WHERE split = 'operation' AND phase = 'decode'"
    ).dicts()
    busy = [r for r in rows if r["name"] != "idle"]
    both = [r for r in busy if r["value_ps"] and r["baseline_ps"]]
    for side in ("value_ps", "baseline_ps"):
        assert sum(r[side] for r in both) > 0.99 * sum(r[side] for r in busy)
    paths = {
        run: {
            path
            for (path,) in recorded.query(
                "SELECT DISTINCT op_name FROM models.step_composition WHERE run_id = $run AND phase = 'decode'", run=run
            ).rows()
        }
        for run in (ours, theirs)
    }
    assert len(paths[ours] & paths[theirs]) < len(both)


def test_repeats_are_runs_of_one_configuration(connection: duckdb.DuckDBPyConnection) -> None:
    def manifest(commit: str = "c", **spec: Any) -> str:
        return json.dumps({"spec": {"model": "llama", **spec}, "versions": {"torch": "2"}, "git_commit": commit})

    runs = {
        "a": manifest(repeat=0),
        "b": manifest(repeat=1),
        "c": manifest(repeat=0, batch=2),
        "d": manifest("other", repeat=0),
        "e": json.dumps({"name": "by another collector"}),
        "f": None,
    }
    fill(connection, {"runs": [{"run_id": r, "manifest": m} for r, m in runs.items()]})
    found = dict(connection.execute("SELECT run_id, configuration FROM macros.configurations()").fetchall())
    assert sorted(found) == ["a", "b", "c", "d"]
    assert found["a"] == found["b"]
    assert len(set(found.values())) == 3


def test_what_a_last_step_waits_saves_nothing(connection: duckdb.DuckDBPyConnection) -> None:
    """Two devices of a step of 10 us, in which device 0 waits 2 us in an all-reduce, and a last step without an end.

    How long it waits in an all-reduce that lacks a rank is not known.
    """
    steps = ((1, 0, 8), (2, 10, 20))
    rows = [(0, 0, 1, 0, 6), (0, 1, 1, 2, 6), (1, 0, 2, 10, 18), (1, 1, 2, 17, 18), (2, 0, 1, 6, 8), (2, 1, 1, 7, 8)]
    fill(
        connection,
        {
            "instructions": [{"instruction_id": 0, "opcode": "all-reduce", "collective": "all-reduce"}],
            "phases": [
                {"kind": "step", "name": "decode", "index": i, "device_id": d, "start_us": s, "end_us": e}
                for d in (0, 1)
                for i, s, e in steps
            ],
            "ops": [
                {"device_id": d, "phase": "decode", "step": i, "start_us": s, "duration_us": e - s}
                for _, d, i, s, e in rows
            ],
            "collectives": [
                {"event_id": n, "instance": j, "device_id": d, "kind": "all-reduce", "group_size": 3 if j == 2 else 2}
                | {"phase": "decode", "step": i, "start_us": s, "end_us": e, "is_partial": j == 2}
                for n, (j, d, i, s, e) in enumerate(rows)
            ],
        },
    )
    assert _savings(connection) == [("decode", "sync_wait", pytest.approx(2 / 20))]


def test_a_moment_in_which_two_collectives_wait_is_saved_once(connection: duckdb.DuckDBPyConnection) -> None:
    """Device 0 has nothing to do but to wait for two transfers of 1 us that device 1 starts at 9 us of 10.

    us     0        1                              9   10
    dev 0  [starts 1)[ done 1                        )       both windows from 0 to 10, both exposed all the time
    dev 1  [ fusion                                ][done)
    """
    starts = [(0, 0, 0, 0.5), (1, 0, 0.5, 0.5), (4, 1, 9, 0.25), (5, 1, 9.25, 0.25)]
    dones = [(2, 0, 1, 8.5), (3, 0, 9.5, 0.5), (6, 1, 9.5, 0.25), (7, 1, 9.75, 0.25)]
    windows = [(0, 2, 0, 0, 0, 9.5), (1, 3, 1, 0, 0.5, 10), (4, 6, 0, 1, 9, 9.75), (5, 7, 1, 1, 9.25, 10)]
    halves = [("start", 1, starts), ("done", 2, dones)]
    fill(
        connection,
        {
            "instructions": [
                {"instruction_id": i, "opcode": f"all-reduce-{half}", "collective": "all-reduce", "async_role": half}
                for half, i, _ in halves
            ],
            "phases": [
                {"kind": "step", "name": "decode", "index": 1, "device_id": d, "start_us": 0, "end_us": 10}
                for d in (0, 1)
            ],
            "ops": [
                {"event_id": e, "instruction_id": i, "device_id": d, "phase": "decode", "step": 1}
                | {"start_us": s, "duration_us": length}
                for _, i, rows in halves
                for e, d, s, length in rows
            ],
            "collectives": [
                {"event_id": e, "done_event_id": done, "instance": n, "device_id": d, "kind": "all-reduce"}
                | {"is_async": True, "group_size": 2, "phase": "decode", "step": 1}
                | {"start_us": s, "end_us": u, "exposed_us": u - s}
                for e, done, n, d, s, u in windows
            ],
        },
    )
    [(_, _, saved)] = _savings(connection)
    # windows of 9.5 us and transfers of 0.75, but a device waits in the done alone: 8.5 us and 0.5
    assert saved == pytest.approx((8.5 + 0.5) / 20)


def _savings(connection: duckdb.DuckDBPyConnection) -> list[Any]:
    sql = "SELECT phase, metric, saved FROM macros.step_savings(['r']) WHERE metric = 'sync_wait'"
    return connection.execute(sql).fetchall()


def test_what_is_twice_as_fast_saves_what_its_axes_save_together(connection: duckdb.DuckDBPyConnection) -> None:
    """Axes of one class of links add up; with one of them unfitted the share is an upper bound."""
    rows = [
        ("faster_links", 12.5, {"link": "ici", "axis": "tp", "basis": "fit", "factor": "2"}),
        ("faster_links", 2.5, {"link": "ici", "axis": "dp", "basis": "fit", "factor": "2"}),
        ("faster_links", 30.0, {"link": "ici", "axis": "tp", "basis": "fit", "factor": "infinite"}),
        ("faster_links", 4.0, {"link": "dcn", "axis": "dcn", "basis": "fit", "factor": "2"}),
        ("faster_links", 6.0, {"link": "dcn", "axis": "dcn", "basis": "exposed", "factor": "2"}),
        ("faster_links", 1.0, {"link": None, "axis": "ep", "basis": "fit", "factor": "2"}),
        ("faster_chips", 20.0, {"resource": "hbm", "factor": "2"}),
    ]
    stored = [row for metric, value, of in rows for row in values("r", metric, [value], phase="decode", **of)]
    fill(connection, {"runs": [{}], "metric_values": stored})
    sql = "SELECT change, saved, is_upper_bound FROM macros.step_savings(['r'])"
    assert {change: (round(saved, 9), upper) for change, saved, upper in connection.execute(sql).fetchall()} == {
        "ICI links twice as fast": (0.15, False),
        "DCN links twice as fast": (0.1, True),
        "links twice as fast": (0.01, False),
        "HBM twice as fast": (0.2, True),
    }


@pytest.mark.parametrize(("sent_us", "computed_us", "saved"), [(2, 8, 0.2), (8, 2, 0.2), (6, 1, 0.1)])
def test_communication_hides_behind_no_more_than_the_other_work(
    connection: duckdb.DuckDBPyConnection, sent_us: int, computed_us: int, saved: float
) -> None:
    """In a step of 10 us: 2 us of communication hide behind 8 of computing, of 8 us only 2 do, and nothing in idle."""
    both = {"device_id": 0, "phase": "decode", "step": 0}
    given: dict[str, Any] = {
        "runs": [{}],
        "devices": [{"device_id": 0}],
        "instructions": [{"instruction_id": 0}, {"instruction_id": 1, "op_class": "communication"}],
        "phases": [
            {"index": i, "kind": "step", "name": "decode", "device_id": 0, "start_us": 10 * i, "end_us": 10 * i + 10}
            for i in range(2)
        ],
        "ops": [
            both | {"event_id": 0, "instruction_id": 0, "start_us": 0, "duration_us": computed_us},
            both | {"event_id": 1, "instruction_id": 1, "start_us": 10 - sent_us, "duration_us": sent_us},
        ],
        "collectives": [
            both | {"event_id": 1, "start_us": 10 - sent_us, "end_us": 10, "exposed_us": sent_us, "kind": "all-reduce"}
        ],
    }
    fill(connection, given)
    sql = "SELECT change, saved FROM macros.step_savings(['r']) WHERE metric = 'communication_fraction'"
    assert connection.execute(sql).fetchall() == [("communication hidden behind other work", pytest.approx(saved))]


def test_what_copies_move_stands_beside_the_wait_for_them(connection: duckdb.DuckDBPyConnection) -> None:
    """A step of 10 us that waits 8 us for an asynchronous copy of 40 kB: 4 GB/s."""
    both = {"device_id": 0, "phase": "decode", "step": 0}
    given: dict[str, Any] = {
        "runs": [{}],
        "devices": [{"device_id": 0}],
        "instructions": [
            {"instruction_id": 0},
            {"instruction_id": 1, "op_class": "copy", "opcode": "copy-start", "bytes_accessed": 40_000},
        ],
        "phases": [
            {"index": i, "kind": "step", "name": "decode", "device_id": 0, "start_us": 10 * i, "end_us": 10 * i + 10}
            for i in range(2)
        ],
        "ops": [
            both | {"event_id": 0, "instruction_id": 0, "start_us": 0, "duration_us": 2},
            both | {"event_id": 1, "instruction_id": 1, "start_us": 2, "duration_us": 8},
        ],
        "copies": [both | {"event_id": 1, "instruction_id": 1, "is_async": True, "start_us": 2, "end_us": 10}],
    }
    fill(connection, given)
    sql = "SELECT part, copied_gbps FROM macros.step_shares(['r']) ORDER BY part"
    assert connection.execute(sql).fetchall() == [("other compute", None), ("waiting for copies", pytest.approx(4))]


def test_a_predicted_step_has_a_range_and_the_time_of_its_weights(connection: duckdb.DuckDBPyConnection) -> None:
    """A step of 2 ms, 1.8 to 2.4, over 3 M weights of 2 bytes on 2 devices at 1 GB/s, which take 3 ms to read."""
    facts = {"mesh": "tp=2", "tp": 2, "dtype": "bfloat16", "num_params": 3_000_000, "num_params_active": 3_000_000}
    facts |= {"num_params_embedding": 1_000_000, "has_tied_embeddings": True}
    op = {"device_id": 0, "phase": "decode", "step": 0, "start_us": 0, "duration_us": 2000, "basis": "links"}
    given: dict[str, Any] = {
        "runs": [{"model": "m", "batch_size": 1, "origin": "predicted"} | facts],
        "devices": [{"device_id": 0, "peak_hbm_gbps": 1.0}],
        "phases": [{"index": 0, "kind": "step", "name": "decode", "device_id": 0, "start_us": 0, "end_us": 2000}],
        "predictions": [{"phase": "decode", "topology": "v6e:1x1", "ici_factor": 1, "hbm_factor": 1, "host_ms": 0}],
        "ops": [op | {"event_id": 0, "low_ps": 1_800_000_000, "high_ps": 2_400_000_000}],
    }
    fill(connection, given)
    sql = "SELECT part, mean_ms, low_ms, high_ms, weights_ms FROM macros.study_parts(['r'])"
    assert connection.execute(sql).fetchall() == [("other compute", *map(pytest.approx, (2, 1.8, 2.4, 3)))]


def test_kernels_take_the_median_of_their_executions_on_all_devices(connection: duckdb.DuckDBPyConnection) -> None:
    """Two instructions are one kernel, with executions of 2, 4, 6 and 9 us; a done and a free op are none."""
    kinds = [("attend.1", "custom-call:tpu_custom_call", None), ("attend.2", "custom-call:tpu_custom_call", None)]
    kinds += [("concat", "custom-call:ConcatBitcast", None), ("attend.3", "custom-call:tpu_custom_call", "done")]
    times = [(0, 0, 6), (0, 1, 2), (1, 0, 9), (1, 1, 4), (0, 2, 1), (0, 3, 1)]
    given: dict[str, Any] = {
        "runs": [{}],
        "devices": [{"device_id": 0}, {"device_id": 1}],
        "instructions": [
            {"instruction_id": i, "name": name, "async_role": role, "signature": f"f32[] {kind} attend()"}
            for i, (name, kind, role) in enumerate(kinds)
        ],
        "ops": [
            {"event_id": i, "device_id": device, "instruction_id": kind, "start_us": 10 * i, "duration_us": us}
            for i, (device, kind, us) in enumerate(times)
        ],
    }
    fill(connection, given)
    sql = "SELECT signature, name, us, low_us, high_us, n FROM macros.kernel_times(['r'])"
    kernel = "f32[] custom-call:tpu_custom_call attend()"
    assert connection.execute(sql).fetchall() == [(kernel, "attend.1", 4, 2, 9, 4)]


@pytest.mark.parametrize(("source", "tpot"), [("module run", 3.0), ("launches", 5.0)])
def test_a_host_that_only_launches_steps_times_none(
    connection: duckdb.DuckDBPyConnection, source: str, tpot: float
) -> None:
    stored = [row for clock, ms in (("host", 3.0), ("device", 5.0)) for row in values("r", "tpot", [ms], clock=clock)]
    given: dict[str, Any] = {
        "runs": [{}], "devices": [{"device_id": 0, "kind": "v"}], "metric_values": stored,
        "phases": [{"kind": "step", "name": "decode", "index": 0, "device_id": 0, "source": source}],
    }  # fmt: skip
    fill(connection, given)
    sql = "SELECT tpot_ms, tokens_per_s_per_user FROM macros.run_points(['r'])"
    assert connection.execute(sql).fetchall() == [(tpot, 1000 / tpot)]


def test_predicted_and_recorded_runs_are_never_of_one_series_nor_repeats(connection: duckdb.DuckDBPyConnection) -> None:
    work = {"model": "m", "batch_size": 8, "input_length": 16, "output_length": 4, "manifest": '{"spec": {"tp": 2}}'}
    ids = {"real": "recorded", "again": "recorded", "said": "predicted", "twice": "predicted", "faster": "predicted"}
    ids["own"] = "predicted"  # by rates that its user measured
    rates = {"real": 50, "again": 40, "said": 100, "twice": 100, "faster": 200, "own": 150}
    given: dict[str, Any] = {
        "runs": [work | {"run_id": run, "origin": origin} for run, origin in ids.items()],
        "devices": [{"run_id": run, "device_id": 0, "kind": "v"} for run in ids],
        "predictions": [
            {"run_id": run, "phase": "decode", "topology": "v6e:1x1", "hbm_factor": 1, "ici_factor": factor}
            for run, factor in (("said", 1), ("twice", 1), ("faster", 2))
        ]
        + [{"run_id": "own", "phase": "decode", "hbm_factor": 1, "ici_factor": 1, "calibration": "mine"}],
        "metric_values": [
            row
            for run, rate in rates.items()
            for row in (*values(run, "throughput", [rate]), *values(run, "tpot", [1000 / rate], clock="device"))
        ],
    }
    fill(connection, given)
    points = connection.execute(f"SELECT run_id, series, is_on_front FROM macros.run_points({list(ids)})").fetchall()
    assert {(run, series, front) for run, series, front in points} == {
        ("real", "m", True), ("again", "m", False), ("said", "m, predicted", True), ("twice", "m, predicted", True),
        ("faster", "m, predicted, ICI x 2.0", True), ("own", "m, predicted, rates of mine", True),
    }  # fmt: skip
    same = dict(connection.execute("SELECT run_id, configuration FROM macros.configurations()").fetchall())
    assert same["real"] == same["again"]
    assert same["said"] == same["twice"]
    assert len({same["real"], same["said"], same["faster"], same["own"]}) == 4
    works = connection.execute(f"SELECT run_id, workload FROM macros.study_points({list(ids)})").fetchall()
    assert dict(works) == {run: f"{series}, 16 in, 4 out" for run, series, _ in points}


def _study(connection: duckdb.DuckDBPyConnection, runs: dict[str, dict[str, Any]]) -> str:
    """Fill a study: of each run its facts, times in ms, tokens/s, price of a chip, and, if predicted, its range."""
    predicted = {run: r for run, r in runs.items() if "range" in r}
    work = {"model": "m", "batch_size": 8, "input_length": 16, "output_length": 4, "num_layers": 2, "backend": "tpu"}
    given: dict[str, Any] = {
        "runs": [
            work | {"run_id": run, "name": run, "origin": "predicted" if run in predicted else "recorded"} | r["facts"]
            for run, r in runs.items()
        ],
        "devices": [
            {"run_id": run, "device_id": 0, "kind": "v", "chip_id": 0, "chip_price_usd_per_h": r.get("price")}
            for run, r in runs.items()
        ],
        "metric_values": [
            row
            for run, r in runs.items()
            for row in (
                *(values(run, "throughput", [r["rate"]]) if r["rate"] else []),
                *values(run, "tpot", [r["tpot"]], clock="device"),
                *values(run, "ttft", [r["ttft"]], clock="device"),
            )
        ],
        "predictions": [
            {"run_id": run, "phase": phase, "topology": "v6e:1x1", "ici_factor": r.get("ici", 1), "hbm_factor": 1}
            | {"argument_bytes": r.get("bytes", 1), "output_bytes": 0, "temporary_bytes": 0, "program_bytes": 0}
            | {"capacity_bytes": 10, "host_ms": 0}
            for run, r in predicted.items()
            for phase in ("prefill", "decode")
        ],
        "ops": [
            {"run_id": run, "event_id": e, "device_id": 0, "start_us": 1e6 * e, "duration_us": 1e3 * r[time]}
            | {"phase": phase, "step": e, "basis": "links"}
            | {"low_ps": int(1e9 * r[time] * r["range"][0]), "high_ps": int(1e9 * r[time] * r["range"][1])}
            for run, r in predicted.items()
            for e, (phase, time) in enumerate((("prefill", "ttft"), ("decode", "tpot")))
        ],
    }
    fill(connection, given)
    return str(list(runs))


def test_a_study_names_the_best_configuration_for_each_purpose(connection: duckdb.DuckDBPyConnection) -> None:
    runs = {
        "a": {"facts": {"mesh": "tp=8"}, "tpot": 1, "ttft": 9, "rate": 100, "price": 2.0},
        "b": {"facts": {"mesh": "dp=2,tp=4"}, "tpot": 2, "ttft": 3, "rate": 400, "price": 9.0},
        "c": {"facts": {"mesh": "dp=8"}, "tpot": 4, "ttft": 5, "rate": 300, "price": 3.0},
    }
    ids = _study(connection, runs)
    sql = f"SELECT purpose, configuration, value, next_configuration, next_value FROM macros.study_choices({ids})"
    found = {purpose: tuple(rest) for purpose, *rest in connection.execute(sql).fetchall()}
    per_million = 1e6 / 3600
    assert found == {
        "one user": ("tp=8", 1000, "dp=2,tp=4", 500),
        "the first token": ("dp=2,tp=4", 3, "dp=8", 5),
        "most tokens per chip": ("dp=2,tp=4", 400, "dp=8", 300),
        "least cost": (
            "dp=8", pytest.approx(3 * per_million / 300), "tp=8", pytest.approx(2 * per_million / 100),
        ),
    }  # fmt: skip
    del runs["c"]["price"]
    runs["d"] = {"facts": {"mesh": "tp=8", "batch_size": 32}, "tpot": 1.5, "ttft": 9, "rate": 350}
    with warehouse_of({}) as other:
        ids = _study(other, runs)
        sql = f"SELECT configuration, next_configuration FROM macros.study_choices({ids}) WHERE purpose = 'one user'"
        assert other.execute(sql).fetchone() == ("tp=8, batch 8", "dp=2,tp=4, batch 8")  # not the same mesh again
        sql = f"SELECT purpose FROM macros.study_choices({ids}) ORDER BY position"
        assert [p for (p,) in other.execute(sql).fetchall()] == ["one user", "the first token", "most tokens per chip"]


def test_the_rival_of_a_mesh_has_its_batch_where_one_has(connection: duckdb.DuckDBPyConnection) -> None:
    """One sequence cannot be divided over dp, so a mesh with dp has more; a third mesh has one as well."""
    runs = {
        "a": {"facts": {"mesh": "tp=8", "batch_size": 1}, "tpot": 1, "ttft": 9, "rate": 1},
        "b": {"facts": {"mesh": "dp=2,tp=4", "batch_size": 8}, "tpot": 2, "ttft": 9, "rate": 1},
    }
    sql = "SELECT next_configuration FROM macros.study_choices({}) WHERE purpose = 'one user'"
    assert connection.execute(sql.format(_study(connection, runs))).fetchone() == ("dp=2,tp=4, batch 8",)
    runs["c"] = {"facts": {"mesh": "ep=8", "batch_size": 1}, "tpot": 3, "ttft": 9, "rate": 1}
    with warehouse_of({}) as other:
        assert other.execute(sql.format(_study(other, runs))).fetchone() == ("ep=8, batch 1",)


def test_where_prompts_are_known_of_some_only_decode_steps_compete_alone(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    facts = {"a": {"mesh": "tp=8"}, "b": {"mesh": "dp=8", "batch_size": 32}}
    runs = {
        "a": {"facts": facts["a"], "tpot": 1, "ttft": 9, "rate": 100, "price": 2.0, "range": (0.5, 2)},
        "b": {"facts": facts["b"], "tpot": 2, "ttft": 9, "rate": None, "price": 6.0, "range": (0.9, 1.1)},
    }
    ids = _study(connection, runs)
    sql = f"SELECT configuration, value, low, high, is_within_range FROM macros.study_choices({ids}) WHERE position > 4"
    rate, cost = connection.execute(f"{sql} ORDER BY position").fetchall()
    # 32 sequences in 2 ms on a chip, and 8 in 1 ms of 0.5 to 2; two dollars for 8,000 tokens, and six for 16,000
    assert rate == ("dp=8, batch 32", 16000, pytest.approx(16000 / 1.1), pytest.approx(16000 / 0.9), True)
    assert cost == ("tp=8, batch 8", *(pytest.approx(2e6 / (3600 * each)) for each in (8000, 16000, 4000)), True)
    del runs["b"]["price"]
    with warehouse_of({}) as other:
        assert [row[0] for row in other.execute(f"{sql}".replace(ids, _study(other, runs))).fetchall()] == [rate[0]]


def test_predicted_configurations_compete_within_their_ranges_and_only_if_they_fit(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    """A recorded run, a chip with faster links and a program that does not fit are no rivals of the others."""
    runs = {
        "far": {"facts": {"mesh": "tp=8"}, "tpot": 1, "ttft": 1, "rate": 100, "range": (0.9, 1.2)},
        "near": {"facts": {"mesh": "tp=4"}, "tpot": 2, "ttft": 1.1, "rate": 50, "range": (0.9, 1.2)},
        "big": {"facts": {"mesh": "dp=8"}, "tpot": 0.1, "ttft": 0.1, "rate": 1e4, "range": (1, 1), "bytes": 11},
        "dream": {"facts": {"mesh": "tp=8"}, "tpot": 0.1, "ttft": 0.1, "rate": 1e4, "range": (1, 1), "ici": 2},
        "real": {"facts": {"mesh": "tp=8"}, "tpot": 0.1, "ttft": 0.1, "rate": 1e4},
    }
    ids = _study(connection, runs)
    sql = "SELECT purpose, workload, configuration, low, high, is_within_range FROM macros.study_choices"
    workload = "m, predicted, 2 layers, 16 in, 4 out"
    request = 8 * 4 * 1e3  # tokens and milliseconds: 1 of prefill and 3 of decode take 4 ms
    assert connection.execute(f"{sql}({ids}) ORDER BY position").fetchall() == [
        ("one user", workload, "tp=8", pytest.approx(1e3 / 1.2), pytest.approx(1e3 / 0.9), False),
        ("the first token", workload, "tp=8", pytest.approx(0.9), pytest.approx(1.2), True),
        ("most tokens per chip", workload, "tp=8", pytest.approx(request / 4.8), pytest.approx(request / 3.6), False),
    ]
    told = dict(connection.execute(f"SELECT name, label FROM macros.study_points({ids})").fetchall())
    assert told["real"] == "m tp=8"
    assert told["far"] == "m, predicted tp=8"
    front = dict(connection.execute(f"SELECT name, is_on_front FROM macros.study_points({ids})").fetchall())
    assert front == {"far": True, "near": False, "big": None, "dream": True, "real": True}


def test_configurations_are_told_apart_by_what_differs(connection: duckdb.DuckDBPyConnection) -> None:
    """Batches differ, and two runs are repeats: only their names tell these apart."""
    same = {"tpot": 1, "ttft": 1, "rate": 1}
    ids = _study(
        connection,
        {
            "a": same | {"facts": {"mesh": "tp=8"}},
            "b": same | {"facts": {"mesh": "tp=8", "batch_size": 1}},
            "c": same | {"facts": {"mesh": "dp=8"}},
            "d": same | {"facts": {"mesh": "dp=8"}},
            "e": same | {"facts": {}},
        },
    )
    told = dict(connection.execute(f"SELECT name, configuration FROM macros.study_points({ids})").fetchall())
    assert told == {"a": "tp=8, batch 8", "b": "tp=8, batch 1", "c": "c", "d": "d", "e": "e"}


def test_a_workload_without_prefill_has_a_best_throughput_of_decode(connection: duckdb.DuckDBPyConnection) -> None:
    """Batch 8 on one chip: 8 tokens a step of 1 or 2 ms. Another workload of the study knows its whole throughput."""
    runs = {
        "a": {"facts": {"mesh": "tp=8"}, "tpot": 1, "ttft": None, "rate": None},
        "b": {"facts": {"mesh": "dp=8"}, "tpot": 2, "ttft": None, "rate": None},
        "c": {"facts": {"mesh": "tp=8", "input_length": 32}, "tpot": 1, "ttft": 1, "rate": 100},
        "d": {"facts": {"mesh": "dp=8", "input_length": 32}, "tpot": 2, "ttft": 1, "rate": 200},
    }
    ids = _study(connection, runs)
    sql = f"SELECT run_id, purpose, value, next_value FROM macros.study_choices({ids}) WHERE position = 3"
    assert sorted(connection.execute(sql).fetchall()) == [
        ("a", "most tokens per chip in decode", 8000, 4000),
        ("d", "most tokens per chip", 200, 100),
    ]
    places = f"SELECT run_id, place FROM macros.study_points({ids}) WHERE run_id IN ('a', 'b')"
    assert dict(connection.execute(places).fetchall()) == {"a": 1, "b": 2}


def test_evenness_is_that_of_load_imbalance_and_of_the_mean_layers(recorded: Warehouse) -> None:
    for run in recorded.lake.runs():
        of = f"['{run.run_id}']"
        found = {r["phase"]: r for r in recorded.query(f"SELECT * FROM macros.evenness({of})").dicts()}
        loads = recorded.query(f"SELECT * FROM metrics.load_imbalance WHERE run_id = '{run.run_id}'").dicts()
        assert {r["phase"]: (r["compute_imbalance"], r["devices"]) for r in loads} == {
            phase: (r["compute_imbalance"], r["devices"]) for phase, r in found.items()
        }
        layers = recorded.query(
            f"""SELECT phase, max(abs(difference_us)) / any_value(median_us) AS most, any_value(layers) AS layers
                FROM macros.mean_layers({of}) WHERE what = 'layer' GROUP BY phase"""
        ).dicts()
        assert layers
        for row in layers:
            assert abs(found[row["phase"]]["odd_difference"]) == pytest.approx(row["most"])
            assert found[row["phase"]]["layers"] == row["layers"]


def test_an_op_of_the_layers_that_runs_outside_of_their_loop_is_in_no_layer(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    """Four layers of 10 us each; the same kernel ran once before them, for 1 us."""
    ops = [
        {"event_id": k, "device_id": 0, "step": 0, "phase": "decode", "instruction_id": 1, "iteration": layer}
        | {"start_us": 10 * k, "duration_us": 10 if layer is not None else 1}
        for k, layer in enumerate([None, 0, 1, 2, 3])
    ]
    loop = {"instruction_id": 1, "loop_layer": 0, "layers_per_iteration": 1}
    mark = {"kind": "phase", "name": "decode", "device_id": 0, "index": 0, "start_us": 0, "end_us": 50}
    fill(connection, {"runs": [{}], "devices": [{}], "instructions": [loop], "phases": [mark], "ops": ops})
    assert connection.execute("SELECT layer, self_ps FROM models.layer_ops ORDER BY layer").fetchall() == [
        (layer, 10_000_000) for layer in range(4)
    ]
    [run] = connection.execute("SELECT run_id FROM main.runs").fetchall()
    found = connection.execute("SELECT layers, odd_difference FROM macros.evenness([?])", run).fetchall()
    assert found == [(4, 0.0)]


def test_the_timeline_shows_a_typical_step_and_the_next_to_its_end(connection: duckdb.DuckDBPyConnection) -> None:
    """Steps of 50, 100, 400, 100, 100, 100 us, and a last one; each begins with 40 us of one op.

    The fourth is as long as the median, and so is the next one. The second is, but an odd one follows. The idle time
    behind both steps is drawn.
    """
    starts = (0, 50, 150, 550, 650, 750, 850)
    marks = [
        {"kind": "step", "device_id": 0, "index": step, "start_us": at, "end_us": at + 40}
        for step, at in enumerate(starts)
    ]
    ops = [
        {"event_id": step, "device_id": 0, "step": step, "start_us": at, "duration_us": 40}
        for step, at in enumerate(starts)
    ]
    fill(connection, {"runs": [{}], "devices": [{}], "instructions": [{}], "phases": marks, "ops": ops})
    [run] = connection.execute("SELECT DISTINCT run_id FROM main.ops").fetchall()
    columns = "begin_ps, finish_ps, layer, step, next_step, step_ps, idle_outside_ps"
    found = connection.execute(f"SELECT {columns} FROM macros.timeline_window(?)", run).fetchall()
    assert found == [(550_000_000, 750_000_000, None, 3, 4, 100_000_000, None)]
    bars = "macros.timeline_bars(?, 550000000, 750000000, 1) WHERE class = 'idle' ORDER BY start_ms"
    idle = connection.execute(f"SELECT start_ms, end_ms FROM {bars}", run).fetchall()
    assert idle == [(0.04, 0.1), (0.14, 0.2)]
