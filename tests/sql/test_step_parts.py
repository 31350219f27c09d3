"""The time of each step on all its devices, taken apart."""

from __future__ import annotations

import pytest
from given_tables import warehouse_of


def test_compute_exposed_and_idle_add_up_to_the_step() -> None:
    """Microseconds; steps last until the next one starts, and step 3, which none follows, does not count.

            0    1    2    3    4    5    6    7    8    9
    step    [ decode 1         )    [ decode 2     )[ decode 3
    dev 0   [ op )[ ar    )[copy)        [ matrix  )
    dev 1   [ attn    )[ar)         [ op )
    """
    given = {
        "instructions": [
            {"instruction_id": 0, "opcode": "fusion"},
            {"instruction_id": 1, "opcode": "all-reduce", "collective": "all-reduce"},
            {"instruction_id": 2, "opcode": "copy"},
            {"instruction_id": 3, "opcode": "dot"},
            {"instruction_id": 4, "opcode": "custom-call", "name": "RPA-bq_32-bkvp_64-p_64-.1"},
        ],
        "phases": [
            {"kind": "step", "name": "decode", "index": i, "device_id": d, "start_us": s, "end_us": e}
            for i, s, e in ((1, 0, 4), (2, 5, 8), (3, 8, 9))
            for d in (0, 1)
        ],
        "ops": {
            "columns": ["event_id", "instruction_id", "device_id", "phase", "step", "start_us", "duration_us"],
            "rows": [
                [0, 0, 0, "decode", 1, 0, 1],
                [1, 1, 0, "decode", 1, 1, 2],
                [2, 2, 0, "decode", 1, 3, 1],
                [3, 3, 0, "decode", 2, 6, 2],
                [4, 4, 1, "decode", 1, 0, 2],
                [5, 1, 1, "decode", 1, 2, 1],
                [6, 0, 1, "decode", 2, 5, 1],
            ],
        },
        "collectives": [
            {
                "event_id": e,
                "device_id": d,
                "kind": "all-reduce",
                "phase": "decode",
                "step": 1,
                "start_us": s,
                "end_us": 3,
            }
            for e, d, s in ((1, 0, 1), (5, 1, 2))
        ],
    }
    with warehouse_of(given) as connection:
        found = connection.execute(
            "SELECT step, phase, part, position, time_ps, mean_ms FROM models.step_parts ORDER BY step, position"
        ).fetchall()
    parts = ("matrix", "attention", "other compute", "waiting for copies", "exposed communication", "idle")
    assert found == [
        (step, "decode", part, position, us * 1_000_000, us / 2 / 1000)
        for step, times in ((1, (0, 2, 1, 1, 3, 3)), (2, (2, 0, 1, 0, 0, 3)))
        for position, (part, us) in enumerate(zip(parts, times, strict=True))
    ]


def test_the_only_step_of_a_phase_counts_with_its_own_duration() -> None:
    """Step 1 of prefill lasts 4 us until decode; step 2 of decode is the last, of 3 us, and the only one."""
    given = {
        "instructions": [{"instruction_id": 0, "opcode": "fusion"}],
        "phases": [
            {"kind": "step", "name": n, "index": i, "device_id": 0, "start_us": s, "end_us": e}
            for n, i, s, e in (("prefill", 1, 0, 3), ("decode", 2, 4, 7))
        ],
        "ops": [
            {"event_id": i, "instruction_id": 0, "device_id": 0, "phase": n, "step": i, "start_us": s, "duration_us": 2}
            for n, i, s in (("prefill", 1, 0), ("decode", 2, 4))
        ],
    }
    with warehouse_of(given) as connection:
        found = connection.execute(
            "SELECT step, part, time_ps FROM models.step_parts WHERE time_ps > 0 ORDER BY step, position"
        ).fetchall()
    us = 1_000_000
    assert found == [
        (1, "other compute", 2 * us),
        (1, "idle", 2 * us),
        (2, "other compute", 2 * us),
        (2, "idle", us),
    ]


def test_time_in_which_a_device_computes_is_computing_whatever_runs_beside_it() -> None:
    """Microseconds of one step of 10, on three streams: an all-gather and a copy beside products.

            0    1    2    3    4    5    6    7    8    9    10
    core              [ matrix           )[ fusion  )
    links   [ all-gather     )
    copies                                [ copy    )
    """
    given = {
        "instructions": [
            {"instruction_id": 0, "opcode": "dot"},
            {"instruction_id": 1, "opcode": "fusion"},
            {"instruction_id": 2, "opcode": "all-gather", "collective": "all-gather"},
            {"instruction_id": 3, "opcode": "copy"},
        ],
        "phases": [{"kind": "step", "name": "decode", "index": 0, "device_id": 0, "start_us": 0, "end_us": 10}],
        "ops": {
            "columns": ["event_id", "instruction_id", "device_id", "phase", "step", "start_us", "duration_us"],
            "rows": [
                [0, 2, 0, "decode", 0, 0, 3],
                [1, 0, 0, "decode", 0, 2, 4],
                [2, 3, 0, "decode", 0, 6, 2],
                [3, 1, 0, "decode", 0, 6, 2],
            ],
        },
        "collectives": [
            {
                "event_id": 0,
                "device_id": 0,
                "kind": "all-gather",
                "phase": "decode",
                "step": 0,
                "start_us": 0,
                "end_us": 3,
            }
        ],
    }
    with warehouse_of(given) as connection:
        found = dict(connection.execute("SELECT part, time_ps // 1000000 FROM models.step_parts").fetchall())
    assert found == {
        "matrix": 4,
        "attention": 0,
        "other compute": 2,
        "waiting for copies": 0,
        "exposed communication": 2,
        "idle": 2,
    }


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ({"opcode": "custom-call", "name": "RPA-bq_32-bkvp_64-p_64-.7"}, "attention"),
        ({"opcode": "custom-call", "name": "splash_mha_fwd_no_residuals.3"}, "attention"),
        (
            {"opcode": "custom-call", "name": "custom-call.9", "op_name": "jit(f)/attn/flash_attention/pallas_call"},
            "attention",
        ),
        ({"opcode": None, "name": "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits>"}, "attention"),
        ({"opcode": None, "name": "fmha_cutlassF_bf16_aligned_64x128_rf_sm80"}, "attention"),
        ({"opcode": "fusion", "name": "fusion.1", "op_name": "jit(f)/dot_product_attention/softmax"}, "attention"),
        ({"opcode": "fusion", "name": "add_fusion", "op_name": "jit(f)/flash_attention/reshape"}, "other compute"),
        ({"opcode": "fusion", "name": "fusion.4", "category": "convolution fusion"}, "matrix"),
        ({"opcode": "custom-call", "name": "quantized_matmul_kernel_512_6400_1024.2"}, "matrix"),
        # a product of one row, which the compiler writes as products and their sum
        ({"opcode": "fusion", "name": "multiply_reduce_fusion.3", "op_name": "jit(f)/mlp/dot_general"}, "matrix"),
        (
            {"opcode": "fusion", "name": "multiply_reduce_fusion.4", "op_name": "jit(f)/norm/reduce_sum"},
            "other compute",
        ),
        ({"opcode": "fusion", "name": "copy_fusion", "op_name": "jit(f)/mlp/dot_general"}, "other compute"),
        ({"opcode": "custom-call", "name": "closed_call.1", "operand_dtype": "s8"}, "matrix"),
        ({"opcode": None, "name": "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV"}, "matrix"),
        ({"opcode": None, "name": "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"}, "matrix"),
        ({"opcode": "reshape", "name": "dot_reshape.1"}, "other compute"),
        ({"opcode": "fusion", "name": "loop_add_fusion"}, "other compute"),
        (
            {
                "opcode": "fusion",
                "name": "ynn_fusion",
                "category": "custom fusion",
                "op_name": "jit(f)/mlp/dot_general",
            },
            "matrix",
        ),
        (
            {"opcode": "fusion", "name": "fusion.2", "category": "loop fusion", "op_name": "jit(f)/mlp/dot_general"},
            "other compute",
        ),
        ({"opcode": "copy-done", "name": "copy-done.3"}, "copy"),
        ({"opcode": "collective-broadcast", "collective": "collective-broadcast"}, "communication"),
    ],
)
def test_class_of_an_instruction(instruction: dict[str, str | None], expected: str) -> None:
    with warehouse_of({"instructions": [{"instruction_id": 0} | instruction]}) as connection:
        [(found,)] = connection.execute("SELECT class FROM models.instruction_classes").fetchall()
    assert found == expected


def test_idle_time_by_what_ends_it_adds_up_to_that_of_the_devices() -> None:
    """Step 1 lasts 30 us; step 2, which no other one follows, does not count.

    us     0        4      7        9     12        16     18       20     25     27    30
    step 1 [ fusion )      [ permute pp )      [ all-reduce ) [ fusion )    [ fusion )        of step 2: 31-35, 39-40
    module [ 0                                               )               [ 1     )
    """
    given = {
        "instructions": [
            {"instruction_id": 0, "opcode": "fusion"},
            {"instruction_id": 1, "opcode": "collective-permute", "collective": "collective-permute"},
            {"instruction_id": 2, "opcode": "all-reduce", "collective": "all-reduce"},
        ],
        "phases": [
            {"kind": "step", "name": "decode", "index": i, "device_id": 0, "start_us": s, "end_us": e}
            for i, s, e in ((1, 0, 27), (2, 30, 40))
        ],
        "ops": {
            "columns": ["event_id", "instruction_id", "execution", "phase", "step", "start_us", "duration_us"],
            "rows": [
                [0, 0, 0, "decode", 1, 0, 4],
                [1, 1, 0, "decode", 1, 7, 2],
                [2, 2, 0, "decode", 1, 12, 4],
                [3, 0, 0, "decode", 1, 18, 2],
                [4, 0, 1, "decode", 1, 25, 2],
                [5, 0, 2, "decode", 2, 31, 4],
                [6, 0, 2, "decode", 2, 39, 1],
            ],
        },
        "collectives": [
            {"event_id": e, "kind": kind, "axis": axis, "phase": "decode", "step": 1, "start_us": s, "end_us": u}
            for e, kind, axis, s, u in ((1, "collective-permute", "pp", 7, 9), (2, "all-reduce", "tp", 12, 16))
        ],
    }
    with warehouse_of(given) as connection:
        found = connection.execute("SELECT part, position, idle_ps FROM models.idle_parts ORDER BY position").fetchall()
        idle = connection.execute("SELECT (span_ms - busy_ms) * 1e9 FROM metrics.device_idle_v1").fetchall()
    us = 1_000_000
    assert found == [
        ("before a launch", 0, 5 * us),
        ("before a pipeline's tick", 1, 3 * us),
        ("before another collective", 2, 3 * us),
        ("before another op", 3, 2 * us),
        ("between steps", 4, 3 * us),
    ]
    assert idle == [(pytest.approx(16 * us),)]


def test_each_metric_of_gaps_answers_its_own_question() -> None:
    """Two stages; step 1 lasts 20 us; step 2, which no other one follows, counts for no share of time.

    us      0     2     4     6     8    10    12    14 15 16    20 21    24 25
    stage 0 [ fusion    )     [ pp  )           [ op )           [ op     )
    stage 1       [ pp              )[ op       )       [op)        [ op     )
    module  [ 0                                )[ 1        )     [ 2         )
    """
    ops = [  # event, instruction, device, execution, step, start, duration
        [0, 0, 0, 0, 1, 0, 4],
        [1, 1, 0, 0, 1, 6, 2],
        [2, 0, 0, 1, 1, 12, 2],
        [3, 0, 0, 2, 2, 20, 4],
        [4, 1, 1, 0, 1, 2, 6],
        [5, 0, 1, 0, 1, 8, 4],
        [6, 0, 1, 1, 1, 15, 1],
        [7, 0, 1, 2, 2, 21, 4],
    ]
    modules = [(0, 0, 0, 8), (0, 1, 12, 14), (0, 2, 20, 24), (1, 0, 2, 12), (1, 1, 15, 16), (1, 2, 21, 25)]
    given = {
        "runs": [{"pp": 2, "microbatches": 2}],
        "instructions": [
            {"instruction_id": 0, "opcode": "fusion"},
            {"instruction_id": 1, "opcode": "collective-permute", "collective": "collective-permute"},
        ],
        "phases": {
            "columns": ["kind", "name", "index", "device_id", "start_us", "end_us"],
            "rows": [
                *(["step", "decode", i, d, s, e] for d in (0, 1) for i, s, e in ((1, 0, 18), (2, 20, 25))),
                *(["module", "p", i, d, s, e] for d, i, s, e in modules),
            ],
        },
        "ops": {
            "columns": ["event_id", "instruction_id", "device_id", "execution", "step", "start_us", "duration_us",
                        "phase"],
            "rows": [[*op, "decode"] for op in ops],
        },
        "collectives": [
            {"event_id": e, "device_id": d, "kind": "collective-permute", "axis": "pp", "phase": "decode", "step": 1,
             "start_us": s, "end_us": 8}
            for e, d, s in ((1, 0, 6), (4, 1, 2))
        ],
    }  # fmt: skip
    with warehouse_of(given) as connection:
        idle = connection.execute("SELECT idle_ratio FROM metrics.device_idle ORDER BY device_id").fetchall()
        [(together,)] = connection.execute("SELECT gap_ratio FROM metrics.host_gap").fetchall()
        [(ticks,)] = connection.execute("SELECT bubble_ratio FROM metrics.pipeline_bubble").fetchall()
        launches = connection.execute("SELECT gap_us FROM metrics.launch_overhead ORDER BY device_id").fetchall()
    # a device without an op: 20 - 8 and 20 - 11
    assert idle == [(pytest.approx(12 / 20),), (pytest.approx(9 / 20),)]
    # both without one: 14 to 15, 16 to 20
    assert together == pytest.approx(5 / 20)
    # both stages from a step's first op to its last, 0 to 14, 2 to 16, 20 to 24 and 21 to 25: gaps 6 and 3, pp 2 and 6
    assert ticks == pytest.approx((6 + 2 + 3 + 6) / (14 + 14 + 4 + 4))
    # from the end of an execution to the start of the next: 4 and 6, 3 and 5
    assert launches == [(pytest.approx(5),), (pytest.approx(4),)]
