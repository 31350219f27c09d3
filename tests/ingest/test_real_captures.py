"""What the real captures must yield: facts read from their bytes, as their README lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tracewarehouse.ingest.lake.manifest import RunVersion

Query = Callable[..., list[tuple[Any, ...]]]
Runs = dict[str, RunVersion]

V6E = "tpu-v6e-4chip-host-offload"
VLLM = "tpu-2chip-vllm-tp2-prefill"
GPU = "gpu-mi300-jax-gemm"
CPU_OPS = {
    "cpu_deepseekv2_ep4": (4, 17, 13_972),
    "cpu_deepseekv3_dp2ep2tp2": (8, 9, 16_776),
    "cpu_llama_pp2tp2": (4, 5, 5_376),
    "cpu_llama_ppmp": (4, 9, 3_408),
    "cpu_llama_sp_tp4": (4, 9, 3_248),
    "cpu_llama_tp4": (4, 17, 5_980),
    "cpu_qwen3_dp2tp2": (4, 9, 3_340),
}
"""Devices, steps (prefill and decode) and op events of each CPU capture."""


class TestV6e:
    def test_events_per_device_and_line(self, shared_runs: Runs, shared_tables: Query) -> None:
        run = shared_runs[V6E].run_id
        found = shared_tables("SELECT device_id, line, count(*) FROM ops WHERE run_id = ? GROUP BY ALL", run)
        expected = {(0, "XLA Modules"): 105, (0, "XLA Ops"): 1504, (0, "Async XLA Ops"): 600, (0, "XLA TraceMe"): 108}
        for device in (1, 2, 3):
            expected |= {(device, "XLA Modules"): 103, (device, "XLA Ops"): 1503, (device, "XLA TraceMe"): 106}
        assert {(d, line): n for d, line, n in found} == expected

    def test_empty_lines_are_known(self, shared_runs: Runs, shared_tables: Query) -> None:
        run = shared_runs[V6E].run_id
        sql = "SELECT line, count(*) FROM lines WHERE run_id = ? AND event_count = 0 GROUP BY ALL ORDER BY ALL"
        assert shared_tables(sql, run) == [("Async XLA Ops", 3), ("Overlay", 4)]

    def test_host_events(self, shared_runs: Runs, shared_tables: Query) -> None:
        run = shared_runs[V6E].run_id
        assert shared_tables("SELECT count(*) FROM host_events WHERE run_id = ?", run) == [(19_270,)]
        assert shared_tables("SELECT event_count FROM runs WHERE run_id = ?", run) == [(26_723,)]

    def test_all_reduces_lack_the_ranks_of_the_other_host(self, shared_runs: Runs, shared_tables: Query) -> None:
        """The program is assigned to 0 to 7 in order, and the cores here state the global ids 4 to 7."""
        run = shared_runs[V6E].run_id
        sql = """SELECT device_id, kind, axis, message_bytes, group_size, is_partial, rank_in_group, group_index,
                        wire_bytes, channel_id, dtype, count(*), count(DISTINCT instance)
                 FROM collectives WHERE run_id = ? GROUP BY ALL ORDER BY device_id"""
        size = 5 * 1024 * 1024 * 256 * 4
        row = ("all-reduce", "unknown", size, 2, True, 1)
        expected = [(device, *row, device, size, 1, "f32", 3, 3) for device in range(4)]
        assert shared_tables(sql, run) == expected
        assert shared_tables("SELECT count(*) FROM traffic WHERE run_id = ?", run) == [(0,)]
        members = "SELECT group_index, rank, logical_id, device_id FROM collective_groups WHERE run_id = ? ORDER BY ALL"
        assert shared_tables(members, run) == [(g, r, g + 4 * r, (None, g)[r]) for g in range(4) for r in range(2)]
        assert shared_tables("SELECT missing_devices FROM runs WHERE run_id = ?", run) == [(4,)]

    def test_devices(self, shared_runs: Runs, shared_tables: Query) -> None:
        run = shared_runs[V6E].run_id
        sql = (
            "SELECT device_id, kind, global_id, peak_flops_per_s, round(peak_hbm_gbps, 2) FROM devices WHERE run_id = ?"
        )
        expected = [(i, "TPU v6 Lite", 4 + i, 918e12, 1637.99) for i in range(4)]
        assert sorted(shared_tables(sql, run)) == expected

    def test_instruction_facts_come_from_metadata(self, shared_runs: Runs, shared_tables: Query) -> None:
        run = shared_runs[V6E].run_id
        sql = """SELECT name, opcode, category, program_id, module, flops, bytes_accessed, shape, dtype, message_bytes
                 FROM instructions WHERE run_id = ? AND opcode = 'all-reduce'"""
        size = 5 * 1024 * 1024 * 256 * 4
        program = 9646411105960254074
        facts = (program, "jit__psum", 1342177280, 10737418240, "f32[5,1024,1024,256]", "f32", size)
        assert shared_tables(sql, run) == [("all-reduce", "all-reduce", "all-reduce", *facts)]

    def test_device_time_by_category_equals_xprof(self, shared_runs: Runs, shared_tables: Query) -> None:
        """XProf 2.24.2, tool hlo_stats, total_self_time by category in us, and 6,013 occurrences.

        XProf sums the device clock's stat, our metrics the event's own duration, which is the same clock as the
        start times; on this capture the two differ by 0.1 % for copy-done and 2.3 % for loop fusion.
        """
        sql = """SELECT i.category, sum(o.device_duration_ps) / 1e6, count(*)
                 FROM ops AS o JOIN instructions AS i USING (run_id, instruction_id)
                 WHERE run_id = ? AND o.is_leaf GROUP BY ALL"""
        found = shared_tables(sql, shared_runs[V6E].run_id)
        xprof = {
            "copy-done": 304033212.06250006,
            "loop fusion": 9619893.637500001,
            "all-reduce": 1460345.25875,
            "broadcast": 4443.76625,
            "copy-start": 8.98125,
        }
        assert {category: us for category, us, _ in found} == pytest.approx(xprof, rel=1e-12)
        assert sum(n for _, _, n in found) == 6013

    def test_devices_agree_on_steps(self, shared_runs: Runs, shared_tables: Query) -> None:
        """A hundred launches of jit_f; the all-reduces of another program come before the first and have no step."""
        run = shared_runs[V6E].run_id
        sql = """SELECT device_id, count(*), min("index"), max("index"), any_value(source) FROM phases
                 WHERE run_id = ? AND kind = 'step' GROUP BY device_id ORDER BY device_id"""
        assert shared_tables(sql, run) == [(d, 100, 0, 99, "program") for d in range(4)]
        sql = """SELECT step, kind = 'all-reduce', count(*) FROM collectives WHERE run_id = ? GROUP BY ALL"""
        assert shared_tables(sql, run) == [(None, True, 12)]


class TestVllm:
    def test_a_step_is_a_call_of_the_server(self, shared_runs: Runs, shared_tables: Query) -> None:
        """Four programs were launched in one call; its 1024 tokens against 8 sampled rows are a prefill."""
        for name in (VLLM, "chrome"):
            run = shared_runs[name].run_id
            sql = (
                """SELECT device_id, "index", name, source FROM phases WHERE run_id = ? AND kind = 'step' ORDER BY 1"""
            )
            assert shared_tables(sql, run) == [(d, 0, "prefill", "server call") for d in (0, 1)]
            sql = """SELECT device_id, step, phase, count(*) FROM collectives
                     WHERE run_id = ? AND kind = 'all-reduce' GROUP BY ALL ORDER BY 1"""
            assert shared_tables(sql, run) == [(d, 0, "prefill", 129) for d in (0, 1)]
            sql = "SELECT DISTINCT step FROM ops WHERE run_id = ? AND is_leaf"
            assert shared_tables(sql, run) == [(0,)]

    def test_collectives_per_device(self, shared_runs: Runs, shared_tables: Query) -> None:
        for name in (VLLM, "chrome"):
            sql = """SELECT device_id, kind, axis, group_size, is_async, is_partial, count(*)
                     FROM collectives WHERE run_id = ? GROUP BY ALL ORDER BY ALL"""
            expected = [
                (device, kind, "tp", 2, False, False, count)
                for device in (0, 1)
                for kind, count in (("all-gather", 2), ("all-reduce", 129))
            ]
            assert shared_tables(sql, shared_runs[name].run_id) == expected

    def test_message_bytes_are_not_bytes_accessed(self, shared_runs: Runs, shared_tables: Query) -> None:
        sql = """SELECT DISTINCT c.message_bytes, i.bytes_accessed, c.wire_bytes FROM collectives AS c
                 JOIN instructions AS i USING (run_id, instruction_id)
                 WHERE run_id = ? AND c.kind = 'all-reduce' AND i.shape = 'bf16[1024,5120]'"""
        assert shared_tables(sql, shared_runs[VLLM].run_id) == [(10_485_760, 20_971_520, 10_485_760)]

    def test_ranks_pair_into_instances(self, shared_runs: Runs, shared_tables: Query) -> None:
        sql = """SELECT count(*), max(ranks), min(ranks), min(ended), max(ended) FROM (
                   SELECT instance, count(*) AS ranks, max(end_ps) - min(end_ps) AS ended
                   FROM collectives WHERE run_id = ? AND kind = 'all-reduce' GROUP BY instance)"""
        [(instances, most, least, _, skew)] = shared_tables(sql, shared_runs[VLLM].run_id)
        assert (instances, most, least) == (129, 2, 2)
        assert skew <= 240_000  # ps: the ends of one collective lie within 0.24 us

    def test_start_skew(self, shared_runs: Runs, shared_tables: Query) -> None:
        sql = """SELECT min(skew), max(skew) FROM (
                   SELECT sum(CASE device_id WHEN 0 THEN start_ps ELSE -start_ps END) / 1e6 AS skew
                   FROM collectives WHERE run_id = ? AND kind = 'all-reduce' GROUP BY instance)"""
        [(low, high)] = shared_tables(sql, shared_runs[VLLM].run_id)
        assert (round(low, 1), round(high, 1)) == (-39.8, 3.2)

    def test_all_reduce_time(self, shared_runs: Runs, shared_tables: Query) -> None:
        sql = "SELECT sum(end_ps - start_ps) / 1e6 FROM collectives WHERE run_id = ? AND device_id = 0 AND kind = ?"
        run = shared_runs[VLLM].run_id
        assert round(shared_tables(sql, run, "all-reduce")[0][0], 1) == 3433.8
        assert round(shared_tables(sql, run, "all-gather")[0][0], 1) == 4.5

    def test_ops_per_line(self, shared_runs: Runs, shared_tables: Query) -> None:
        sql = (
            "SELECT device_id, line, count(*) FROM ops WHERE run_id = ? AND line LIKE 'XLA %' GROUP BY ALL ORDER BY ALL"
        )
        expected = [(d, ln, n) for d in (0, 1) for ln, n in (("XLA Modules", 4), ("XLA Ops", 3454), ("XLA TraceMe", 4))]
        for name in (VLLM, "chrome"):
            run = shared_runs[name].run_id
            assert shared_tables(sql, run) == expected
            assert shared_tables("SELECT count(*) FROM host_events WHERE run_id = ?", run) == [(3386,)]

    def test_chrome_export_and_xplane_give_the_same_ops(self, shared_runs: Runs, shared_tables: Query) -> None:
        """Row by row in time order: same device, line, instruction and facts; times within the JSON's rounding."""
        sql = """SELECT o.device_id, o.line, i.name, i.opcode, i.category, i.hlo_text, i.op_name, i.source,
                        i.bytes_accessed, i.message_bytes, o.depth, o.is_leaf, o.device_offset_ps,
                        o.device_duration_ps, o.start_ps, o.duration_ps
                 FROM ops AS o JOIN instructions AS i USING (run_id, instruction_id)
                 WHERE run_id = ? AND line LIKE 'XLA %' ORDER BY device_id, line, device_offset_ps, event_id"""
        xplane = shared_tables(sql, shared_runs[VLLM].run_id)
        chrome = shared_tables(sql, shared_runs["chrome"].run_id)
        assert len(xplane) == len(chrome) == 2 * 3462
        assert [r[:-2] for r in xplane] == [r[:-2] for r in chrome]
        off = [max(abs(a[-2] - b[-2]), abs(a[-1] - b[-1])) for a, b in zip(xplane, chrome, strict=True)]
        assert max(off) <= 1_000  # ps

    def test_chrome_export_and_xplane_give_the_same_collectives(self, shared_runs: Runs, shared_tables: Query) -> None:
        sql = """SELECT c.device_id, i.name, c.kind, c.axis, c.group_index, c.group_size, c.rank_in_group, c.is_partial,
                        c.message_bytes, c.wire_bytes, c.dtype, c.instance, c.window_source, c.start_ps, c.end_ps
                 FROM collectives AS c JOIN instructions AS i USING (run_id, instruction_id)
                 WHERE run_id = ? ORDER BY device_id, start_ps"""
        xplane = shared_tables(sql, shared_runs[VLLM].run_id)
        chrome = shared_tables(sql, shared_runs["chrome"].run_id)
        assert [r[:-2] for r in xplane] == [r[:-2] for r in chrome]
        assert max(abs(a[-1] - b[-1]) for a, b in zip(xplane, chrome, strict=True)) <= 1_000


class TestGpu:
    def test_kernels_and_host_events(self, shared_runs: Runs, shared_tables: Query) -> None:
        run = shared_runs[GPU].run_id
        sql = "SELECT line, count(*), sum(is_leaf::INT) FROM ops WHERE run_id = ? GROUP BY ALL ORDER BY ALL"
        assert shared_tables(sql, run) == [("Stream #16(Kernel)", 42, 42), ("Stream #17(Kernel)", 12, 12)]
        assert shared_tables("SELECT count(*) FROM host_events WHERE run_id = ?", run) == [(3728,)]
        assert shared_tables("SELECT backend, device_count FROM runs WHERE run_id = ?", run) == [("gpu", 1)]

    def test_kernels_find_their_hlo(self, shared_runs: Runs, shared_tables: Query) -> None:
        sql = """SELECT count(*), count(i.opcode) FROM ops AS o JOIN instructions AS i USING (run_id, instruction_id)
                 WHERE run_id = ? AND i.module IS NOT NULL"""
        [(with_module, with_opcode)] = shared_tables(sql, shared_runs[GPU].run_id)
        assert with_module == with_opcode > 0


class TestCpu:
    @pytest.mark.parametrize("name", CPU_OPS)
    def test_every_op_has_one_device_phase_and_step(self, name: str, shared_runs: Runs, shared_tables: Query) -> None:
        devices, steps, ops = CPU_OPS[name]
        run = shared_runs[name].run_id
        sql = """SELECT count(*), count(device_id), count(phase), count(step), count(DISTINCT step),
                        count(DISTINCT device_id), count(*) FILTER (is_leaf) > 0 FROM ops WHERE run_id = ?"""
        assert shared_tables(sql, run) == [(ops, ops, ops, ops, steps, devices, True)]
        twice = """SELECT count(*) FROM (SELECT device_id, execution, instruction_id FROM ops WHERE run_id = ?
                   GROUP BY ALL HAVING count(*) > 1)"""
        assert shared_tables(twice, run) == [(0,)]

    @pytest.mark.parametrize("name", CPU_OPS)
    def test_ranks_of_an_instance_meet(self, name: str, shared_runs: Runs, shared_tables: Query) -> None:
        """No rank can leave a collective before the last one has entered: paired rightly, windows intersect."""
        sql = """SELECT count(*) FILTER (last_start > first_end),
                        count(*) FILTER (ranks <> group_size AND kind <> 'collective-permute')
                 FROM (SELECT kind, max(start_ps) AS last_start, min(end_ps) AS first_end, count(*) AS ranks,
                              any_value(group_size) AS group_size
                       FROM collectives WHERE run_id = ? GROUP BY instance, kind)"""
        assert shared_tables(sql, shared_runs[name].run_id) == [(0, 0)]

    def per_step(self, tables: Query, run: str, *, layer: bool = True) -> list[tuple[Any, ...]]:
        """Collectives on device 0 per kind, axis and phase, divided by the steps of the phase."""
        sql = f"""SELECT c.kind, c.axis, c.phase, {"i.layer" if layer else "NULL"},
                         count(*) / count(DISTINCT c.step) AS n
                  FROM collectives AS c JOIN instructions AS i USING (run_id, instruction_id)
                  WHERE run_id = ? AND device_id = 0 GROUP BY ALL ORDER BY ALL"""
        return tables(sql, run)

    def test_tensor_parallel_llama(self, shared_runs: Runs, shared_tables: Query) -> None:
        """Two all-reduces per layer and step, and two all-gathers per step for the vocabulary-parallel argmax."""
        run = shared_runs["cpu_llama_tp4"].run_id
        found = self.per_step(shared_tables, run)
        assert [r for r in found if r[0] == "all-reduce"] == [
            ("all-reduce", "tp", phase, layer, 2) for phase in ("decode", "prefill") for layer in (0, 1)
        ]
        gathers = [r for r in self.per_step(shared_tables, run, layer=False) if r[0] == "all-gather"]
        assert gathers == [("all-gather", "tp", phase, None, 2) for phase in ("decode", "prefill")]
        groups = "SELECT DISTINCT replica_groups FROM instructions WHERE run_id = ? AND collective IS NOT NULL"
        assert shared_tables(groups, run) == [("[[0,1,2,3]]",)]

    def test_data_and_tensor_parallel_qwen(self, shared_runs: Runs, shared_tables: Query) -> None:
        run = shared_runs["cpu_qwen3_dp2tp2"].run_id
        found = self.per_step(shared_tables, run)
        assert [r for r in found if r[0] == "all-reduce"] == [
            ("all-reduce", "tp", phase, layer, 2) for phase in ("decode", "prefill") for layer in (0, 1)
        ]
        sql = """SELECT group_index, list(device_id ORDER BY rank) FROM (
                   SELECT DISTINCT group_index, rank, device_id FROM collective_groups WHERE run_id = ?)
                 GROUP BY group_index ORDER BY group_index"""
        assert shared_tables(sql, run) == [(0, [0, 1]), (1, [2, 3])]

    def test_expert_parallel_deepseek(self, shared_runs: Runs, shared_tables: Query) -> None:
        """Dispatch and combine: two all-to-alls in each of the two MoE layers; layer 0 is dense."""
        found = self.per_step(shared_tables, shared_runs["cpu_deepseekv2_ep4"].run_id)
        assert found == [("all-to-all", "ep", phase, layer, 2) for phase in ("decode", "prefill") for layer in (1, 2)]

    def test_expert_and_tensor_parallel_deepseek(self, shared_runs: Runs, shared_tables: Query) -> None:
        run = shared_runs["cpu_deepseekv3_dp2ep2tp2"].run_id
        sql = "SELECT DISTINCT collective, replica_groups FROM instructions WHERE run_id = ? AND collective IS NOT NULL"
        pairs = "[[0,1],[2,3],[4,5],[6,7]]"
        assert ("all-to-all", "[[0,2],[1,3],[4,6],[5,7]]") in shared_tables(sql, run)
        assert ("all-reduce", pairs) in shared_tables(sql, run)
        axes = "SELECT DISTINCT kind, axis FROM collectives WHERE run_id = ? ORDER BY ALL"
        assert shared_tables(axes, run) == [("all-gather", "tp"), ("all-reduce", "tp"), ("all-to-all", "ep")]

    def test_pipeline_and_tensor_parallel_llama(self, shared_runs: Runs, shared_tables: Query) -> None:
        run = shared_runs["cpu_llama_pp2tp2"].run_id
        sql = "SELECT DISTINCT kind, axis FROM collectives WHERE run_id = ? ORDER BY ALL"
        assert shared_tables(sql, run) == [("all-reduce", "pp"), ("all-reduce", "tp"), ("collective-permute", "pp")]
        pairs = """SELECT DISTINCT replica_groups FROM instructions
                   WHERE run_id = ? AND collective = 'collective-permute' ORDER BY ALL"""
        assert ("[[0,2],[1,3],[2,0],[3,1]]",) in shared_tables(pairs, run)

    def test_two_processes_are_one_run_of_two_hosts(self, shared_runs: Runs, shared_tables: Query) -> None:
        run = shared_runs["cpu_llama_ppmp"].run_id
        sql = "SELECT host, hostname, clock_source, clock_offset_ps FROM hosts WHERE run_id = ? ORDER BY host_index"
        offset = (1795214846644725178 - 1795214846642197192) * 1000
        assert shared_tables(sql, run) == [
            ("cpu_llama_ppmp_host0", "vm", "profile_start", offset),
            ("cpu_llama_ppmp_host1", "vm", "first_host", 0),
        ]
        devices = "SELECT device_id, host, pp_index, tp_index FROM devices WHERE run_id = ? ORDER BY device_id"
        host = "cpu_llama_ppmp_host"
        assert shared_tables(devices, run) == [(i, f"{host}{i // 2}", i // 2, i % 2) for i in range(4)]
        axes = "SELECT DISTINCT axis FROM collectives WHERE run_id = ?"
        assert shared_tables(axes, run) == [("tp",)]

    def test_op_time_has_a_layer(self, shared_runs: Runs, shared_tables: Query) -> None:
        """By time, at least 79 % of the op time of a plain decoder carries a framework name."""
        sql = """SELECT sum(o.duration_ps) FILTER (i.op_name IS NOT NULL) / sum(o.duration_ps)
                 FROM ops AS o JOIN instructions AS i USING (run_id, instruction_id) WHERE run_id = ?"""
        for name in ("cpu_llama_tp4", "cpu_qwen3_dp2tp2", "cpu_deepseekv2_ep4"):
            assert shared_tables(sql, shared_runs[name].run_id)[0][0] > 0.96
