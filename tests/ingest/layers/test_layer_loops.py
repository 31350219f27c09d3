"""Loops over layers are the layers: captures of programs whose truth is known, op by op."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from perfetto_reader import read_trace
from transformer_capture import Op, transformer
from xplane_builder import Space, TpuPlane, Unsigned

from tracewarehouse.exports.chrome import export_chrome
from tracewarehouse.exports.perfetto.export import export_perfetto
from tracewarehouse.ingest.hlo.program import ModuleText
from tracewarehouse.ingest.pipeline import IngestResult
from tracewarehouse.warehouse import Warehouse, open_warehouse

Query = Callable[..., list[tuple[Any, ...]]]
Ingest = Callable[..., tuple[IngestResult, Query]]

OPS = transformer(1)
LAYER = [op for op in OPS if op.layer == 0]
BEFORE, AFTER = OPS[:2], OPS[-1:]
MOE = [replace(op, text=op.text.replace("bf16[8,256]", "bf16[8,1024]")) for op in LAYER]


@dataclass(frozen=True)
class Loop:
    """A loop with the layers of each iteration, `body` op by op; ops that are no layer's have layer None."""

    body: Sequence[Op]
    layers: Sequence[Sequence[int | None]]
    is_told: bool = True
    is_loop: bool = True
    weights: Sequence[str] = ()


def scan(body: Sequence[Op], count: int, first: int = 0) -> Loop:
    return Loop(body, [[first + i] * len(body) for i in range(count)])


def peeled(layer: int, body: Sequence[Op] | None = None) -> Loop:
    """A layer that the compiler has taken out of a loop."""
    return replace(scan(body or LAYER, 1, layer), is_loop=False)


def stack(body: Sequence[Op], count: int, first: int, *weights: str) -> Loop:
    """A loop that carries weights of these shapes."""
    return replace(scan(body, count, first), weights=weights)


def tpu_capture(*program: Sequence[Op] | Loop) -> tuple[Space, Counter[int | None]]:
    """A capture of a program, and how many ops of each layer a device runs in one execution."""
    space = Space(hostnames=["host-0"])
    truth: Counter[int | None] = Counter()
    for d in range(2):
        tpu = space.tpu(d)
        at = 1_000_000
        for e in range(3):
            begin = at
            truth.clear()
            for place, piece in enumerate(program):
                loop = piece if isinstance(piece, Loop) else Loop(piece, [[None] * len(piece)])
                if piece is loop and loop.is_loop:
                    span = len(loop.layers) * sum(op.ns for op in loop.body) * 1000
                    tpu.ops.event(_while(tpu, place, loop), at, span)
                for layers in loop.layers:
                    for op, layer in zip(loop.body, layers, strict=True):
                        text = op.text.replace(" = ", f"{place} = ", 1)
                        tpu.ops.event(_instruction(tpu, text, op), at, op.ns * 1000)
                        at += op.ns * 1000
                        truth[layer] += 1
            tpu.modules.event("jit_step(42)", begin, at - begin, run_id=Unsigned(e + 1))
            at += 1_000_000
    return space, truth


def _while(tpu: TpuPlane, place: int, loop: Loop) -> int:
    told = f', backend_config={{"known_trip_count":{{"n":"{len(loop.layers)}"}}}}' if loop.is_told else ""
    carried = ", ".join(["s32[]", "bf16[8,64]", *loop.weights])
    text = f"%while.{place} = ({carried}) while(({carried}) %t.1), condition=%c.1, body=%b.1{told}"
    return tpu.instruction(text, hlo_category="while", program_id=Unsigned(42))


def _instruction(tpu: TpuPlane, text: str, op: Op) -> int:
    return tpu.instruction(text, hlo_category=op.category, tf_op=op.op_name, program_id=Unsigned(42))


def layers_of(tmp_path: Path) -> Counter[int | None]:
    """How many leaf ops of each layer the first device runs in an execution."""
    with open_warehouse(tmp_path / "warehouse") as warehouse:
        rows = warehouse.query(
            "SELECT layer, count(*) // 3 FROM models.op_layers JOIN main.ops USING (run_id, event_id) "
            "WHERE is_leaf AND ops.device_id = 0 GROUP BY layer"
        ).rows()
    return Counter(dict(rows))


TWICE = [*LAYER, *(replace(op, text=op.text.replace(".", ".9", 1)) for op in LAYER)]
MARKED = [replace(op, op_name=op.op_name.replace("/", f"/layers_{i // len(LAYER)}/", 1)) for i, op in enumerate(TWICE)]
HEAD = Op("%fusion.99 = bf16[8,9999] fusion(bf16[8,64] %a.1), kind=kOutput, calls=%c", "convolution fusion", 700,
          "jit(step)/dot", None, None)  # fmt: skip


def copies(body: Sequence[Op], count: int) -> list[Op]:
    """A body that the compiler has made of several layers."""
    return [replace(op, text=op.text.replace(".", f".{i + 1}00", 1)) for i in range(count) for op in body]


def each(body: Sequence[Op], iterations: int, per_iteration: int, first: int = 0) -> Loop:
    """A loop with some layers in each iteration."""
    layers = [[first + per_iteration * i + k for k in range(per_iteration) for _ in body] for i in range(iterations)]
    return Loop(copies(body, per_iteration), layers)


PLAIN = [  # two products of each shape, whose places tell none from another
    replace(op, text=op.text.replace(".", f".6{k}", 1), op_name=re.sub("[A-Z][A-Za-z]+/dot", "dot", op.op_name))
    for k, op in enumerate([LAYER[0], LAYER[1], LAYER[1], *LAYER[6:10], *LAYER[9:]])
]
FOUR = [replace(op, text=op.text.replace(".", f".{i}00", 1)) for i in range(4) for op in (LAYER, LAYER, LAYER, MOE)[i]]
SIX = [op for op in transformer(6) if op.layer is not None]
BACK = [replace(op, op_name=f"transpose(jvp({op.op_name}))") for op in LAYER]
CROSS = [*LAYER[:7], *(replace(op, text=op.text.replace(".", ".7", 1)) for op in LAYER[:7]), *LAYER[7:]]
NOWHERE: list[int | None] = [None] * len(LAYER)
PROGRAMS: dict[str, tuple[Sequence[Op] | Loop, ...]] = {
    "one loop": (BEFORE, scan(LAYER, 8), AFTER),
    "two layers": (BEFORE, scan(LAYER, 2), AFTER),
    "an unknown number of iterations": (BEFORE, replace(scan(LAYER, 5), is_told=False)),
    "dense layers, then sparse ones": (BEFORE, scan(LAYER, 3), scan(MOE, 5, 3), AFTER),
    "prefill and decode in one program": (scan(LAYER, 6), AFTER, scan(LAYER, 6)),
    "there and back": (scan(LAYER, 4), AFTER, Loop(BACK, [[3 - i] * len(BACK) for i in range(4)])),
    "two layers an iteration": (
        BEFORE,
        Loop(TWICE, [[2 * i] * len(LAYER) + [2 * i + 1] * len(LAYER) for i in range(4)]),
    ),
    "four layers an iteration, of which one is sparse": (
        BEFORE,
        Loop(FOUR, [[4 * i + k // len(LAYER) for k in range(len(FOUR))] for i in range(3)]),
        AFTER,
    ),
    "two marked layers an iteration": (
        BEFORE,
        Loop(MARKED, [[2 * i] * len(LAYER) + [2 * i + 1] * len(LAYER) for i in range(4)]),
    ),
    "a loop over tokens around marked layers": (
        BEFORE,
        Loop([*MARKED, HEAD], [[0] * len(LAYER) + [1] * len(LAYER) + [None]] * 5),
    ),
    "a loop over tokens around layers": (BEFORE, Loop([*SIX, HEAD], [[op.layer for op in SIX] + [None]] * 5)),
    "a loop over tokens around two layers, which nothing proves": (
        BEFORE,
        Loop([*TWICE, HEAD], [[*NOWHERE, *NOWHERE, None]] * 5),
    ),
    "a loop over tokens around one layer": (BEFORE, Loop([*LAYER, HEAD], [[None] * (len(LAYER) + 1)] * 12)),
    "two layers peeled, one at each end": (BEFORE, peeled(0), scan(LAYER, 4, 1), peeled(5), AFTER, [HEAD]),
    "the first two layers peeled": (BEFORE, peeled(0), peeled(1), scan(LAYER, 4, 2), AFTER, [HEAD]),
    "a dense first layer is not the loop's": (
        BEFORE,
        replace(peeled(0, MOE), layers=[[None] * len(MOE)]),
        scan(LAYER, 7),
    ),
    "three layers an iteration, one before and four behind": (
        (BEFORE, peeled(0), each(LAYER, 2, 3, 1), *(peeled(i) for i in range(7, 11)), AFTER, [HEAD])
    ),
    "a layer of another kind ends each iteration, and two of the first kind follow": (
        Loop(FOUR, [[4 * i + k // len(LAYER) for k in range(len(FOUR))] for i in range(3)]),
        *(peeled(12), peeled(13), AFTER, [HEAD]),
    ),
    "three layers an iteration, with two products of each shape": (
        (BEFORE, each(PLAIN, 2, 3), peeled(6, PLAIN), peeled(7, PLAIN), AFTER, [HEAD])
    ),
    "one layer an iteration, with two products of each shape": (BEFORE, scan(PLAIN, 4), AFTER),
    "encoder and decoder": (
        BEFORE,
        stack(LAYER, 6, 0, "bf16[6,64,192]", "bf16[6,64,256]"),
        stack(CROSS, 6, 6, "bf16[6,64,192]", "bf16[6,64,192]", "bf16[6,64,256]"),
        AFTER,
    ),
    "prefill and decode with the same weights": (
        stack(LAYER, 6, 0, "bf16[6,64,192]", "bf16[6,9,8,2,32]"),
        AFTER,
        stack(LAYER, 6, 0, "bf16[6,64,192]", "bf16[6,1,8,2,32]"),
    ),
    "the loop of a benchmark": (Loop(LAYER[1:2], [[None]] * 100),),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_op_has_its_layer(name: str, ingest: Ingest, tmp_path: Path) -> None:
    space, truth = tpu_capture(*PROGRAMS[name])
    ingest(space)
    assert layers_of(tmp_path) == truth


def test_a_loop_over_parts_of_a_batch_is_no_loop_over_layers(ingest: Ingest, tmp_path: Path) -> None:
    """Around two loops over eight layers it runs the output head there and back: three products of its own."""
    space = Space(hostnames=["host-0"])
    tpu = space.tpu(0)
    names = ("logits_dense/dot", "transpose(jvp(logits_dense))/dot_1", "transpose(jvp(logits_dense))/dot_2")
    heads = [replace(HEAD, text=HEAD.text.replace(".99", f".99{i}"), op_name=n) for i, n in enumerate(names)]
    time = {id(ops): 1000 * sum(op.ns for op in ops) for ops in (LAYER, BACK, heads)}
    at, parts = 1_000_000, 5
    for e in range(3):
        begin = at
        span = parts * (8 * time[id(LAYER)] + time[id(heads)] + 8 * time[id(BACK)])
        tpu.ops.event(_while(tpu, 9, Loop((), [()] * parts)), at, span)
        for _ in range(parts):
            for place, (body, count) in enumerate(((LAYER, 8), (heads, 1), (BACK, 8))):
                if count > 1:
                    tpu.ops.event(_while(tpu, place, scan((), count)), at, count * time[id(body)])
                for op in (op for _ in range(count) for op in body):
                    tpu.ops.event(_instruction(tpu, op.text.replace(" = ", f"{place} = ", 1), op), at, op.ns * 1000)
                    at += op.ns * 1000
        tpu.modules.event("jit_step(42)", begin, at - begin, run_id=Unsigned(e + 1))
        at += 1_000_000
    ingest(space)
    assert layers_of(tmp_path) == {None: 3 * parts} | {i: parts * (len(LAYER) + len(BACK)) for i in range(8)}


def test_loops_within_the_layers_are_no_layers(ingest: Ingest, tmp_path: Path) -> None:
    """Each of six layers runs its experts in a loop; repetition shows the layers."""
    experts = [LAYER[9], LAYER[10], replace(LAYER[9], text=LAYER[9].text.replace(".11", ".77")), LAYER[12]]
    program: list[Sequence[Op] | Loop] = [BEFORE[:1]]
    for i in range(6):
        program += [
            LAYER[:9],
            Loop(experts, [[i] * len(experts)] * 8),
        ]
    space, _ = tpu_capture(*program, AFTER)
    ingest(space)
    found = layers_of(tmp_path)
    each = 9 + 8 * len(experts)
    assert found == Counter({None: 1 + len(AFTER)} | dict.fromkeys(range(6), each))


def test_ticks_of_a_pipeline_are_no_layers(ingest: Ingest, tmp_path: Path) -> None:
    permute = Op(
        "%collective-permute.88 = bf16[8,64] collective-permute(bf16[8,64] %a.1), source_target_pairs={{0,1}}",
        "collective-permute", 800, "jit(step)/ppermute", None, None,
    )  # fmt: skip
    body = [*LAYER, permute]
    space, _ = tpu_capture(BEFORE, Loop(body, [[None] * len(body)] * 6), AFTER)
    result, _ = ingest(space)
    assert set(layers_of(tmp_path)) == {None}
    assert "partial_layers" in result.entry.flags


def test_permutes_that_shard_a_layer_anew_are_no_ticks(ingest: Ingest, tmp_path: Path) -> None:
    """As the compiler adds them behind a split of query, key and value; the name of the program means nothing."""
    permute = Op(
        "%collective-permute.88 = bf16[8,64] collective-permute(bf16[8,64] %a.1), source_target_pairs={{0,1}}",
        "collective-permute", 800, "jit(roll)/while/body/split", None, None,
    )  # fmt: skip
    space, truth = tpu_capture(BEFORE, scan([*LAYER, permute], 6), AFTER)
    ingest(space)
    assert layers_of(tmp_path) == truth


def test_a_stage_runs_its_own_layers(ingest: Ingest, tmp_path: Path) -> None:
    """Without the number of layers, those of the second stage are not known; see tests/sql for what they are."""
    space, truth = tpu_capture(BEFORE, scan(LAYER, 4), AFTER)
    ingest(space, mesh="pp=2")
    assert layers_of(tmp_path) == Counter({None: truth.total()})


def test_collectives_and_sources(ingest: Ingest) -> None:
    space, _ = tpu_capture(BEFORE, scan(LAYER, 8), AFTER)
    result, query = ingest(space)
    assert query("SELECT iteration, count(*) FROM collectives GROUP BY ALL ORDER BY ALL") == [
        *((i, 2 * 2 * 3) for i in range(8)),
        (None, 2 * 3),
    ]
    facts = "SELECT DISTINCT layer, loop_layer, layers_per_iteration, layer_source FROM instructions"
    assert query(f"{facts} WHERE layer_source IS NOT NULL") == [(None, 0, 1, "loop")]
    assert query("SELECT detail FROM quality_flags WHERE flag = 'inferred_layers'") == [
        ("jit_step: 8 layers, which a loop runs",)
    ]
    assert "partial_layers" not in result.entry.flags


def test_exports_show_the_layers_of_a_loop(ingest: Ingest, tmp_path: Path) -> None:
    """Also of collectives; a Chrome trace of the run, ingested again, has the same layers."""
    space, truth = tpu_capture(BEFORE, scan(LAYER, 4), AFTER)
    ingest(space, mesh="tp=2")
    with open_warehouse(tmp_path / "warehouse") as warehouse:
        [run] = warehouse.lake.runs()
        export_perfetto(warehouse, [run.run_id], tmp_path / "run.pftrace")
        [chrome] = export_chrome(warehouse, run.run_id, tmp_path / "run.trace.json.gz")
    trace = read_trace(tmp_path / "run.pftrace")
    scopes = [s.name for s in trace.slices("TPU:0 > 5. Name Scope") if s.name.startswith("layer")]
    assert scopes == [f"layer {i}" for i in range(4)] * 3
    reduces = [s.arguments.get("layer") for s in trace.slices("TPU:0 > 6. Collectives > all-reduce tp")]
    assert reduces == [None, *(i for i in range(4) for _ in range(2))] * 3
    again = tmp_path / "again"
    with open_warehouse(again / "warehouse", create=True) as warehouse:
        warehouse.ingest(chrome)
    assert layers_of(again) == truth


HLO = """HloModule jit_step

%body (p.1: (s32[], f32[8,64])) -> (s32[], f32[8,64]) {
  %p.1 = (s32[], f32[8,64]) parameter(0)
  %g.1 = f32[8,64] get-tuple-element((s32[], f32[8,64]) %p.1), index=1
  %dot.1 = f32[8,64] dot(f32[8,64] %g.1, f32[64,64] %w.1), metadata={op_name="jit(step)/while/body/attn/dot_general"}
  %all-reduce.1 = f32[8,64] all-reduce(f32[8,64] %dot.1), channel_id=1, replica_groups={{0,1}}
  %dot.2 = f32[8,64] dot(f32[8,64] %g.1, f32[64,64] %w.1), metadata={op_name="jit(step)/while/body/mlp/dot_general"}
  %dot.3 = f32[8,64] dot(f32[8,64] %g.1, f32[64,64] %w.1), metadata={op_name="jit(step)/while/body/mlp/dot_general"}
  ROOT %tuple.1 = (s32[], f32[8,64]) tuple(s32[] %i.1, f32[8,64] %dot.3)
}

%cond (p.2: (s32[], f32[8,64])) -> pred[] {
  %p.2 = (s32[], f32[8,64]) parameter(0)
  ROOT %lt.1 = pred[] compare(s32[] %a.2, s32[] %b.2), direction=LT
}

ENTRY %main (x.1: f32[8,64]) -> f32[8,64] {
  %x.1 = f32[8,64] parameter(0)
  %copy.9 = f32[8,64] copy(f32[8,64] %x.1)
  %t.9 = (s32[], f32[8,64]) tuple(s32[] %i.9, f32[8,64] %x.1)
  %while.1 = (s32[], f32[8,64]) while((s32[], f32[8,64]) %t.9), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  ROOT %dot.9 = f32[8,64] dot(f32[8,64] %x.1, f32[64,64] %w.9), metadata={op_name="jit(step)/lm_head/dot_general"}
}
"""  # noqa: E501  as a compiler writes it
BODY = ("dot.1", "all-reduce.1", "dot.2", "dot.3")


def cpu_capture() -> Space:
    """Two virtual CPU devices that share the ops of a loop's body between two threads each."""
    space = Space(hostnames=["host-0"])
    space.hlo_protos({"jit_step(7)": (7, ModuleText(HLO).proto)})
    host = space.host()
    launches = host.line("python")
    for d in range(2):
        threads = [host.line(f"tf_XLAPjRtCpuClient/{2 * d + t}") for t in range(2)]
        for e in range(3):
            at = 1_000_000 + e * 10_000_000
            if not d:
                launches.event("ThunkExecutor::Execute", at - 500_000, 1000, run_id=e + 1)
            stats = {"hlo_module": "jit_step", "program_id": 7, "run_id": e + 1, "device_ordinal": d}
            threads[0].event(host.metadata("copy"), at, 100_000, hlo_op="copy.9", **stats)
            at += 100_000
            for i in range(5):
                for k, op in enumerate(BODY):
                    # the second product of the mlp runs beside the first, on the other thread
                    thread = threads[(i + k) % 2]
                    begin = at if op != "dot.3" else at - 50_000
                    thread.event(host.metadata(op), begin, 100_000, hlo_op=op, **stats)
                    at += 100_000
            threads[0].event(host.metadata("dot.9"), at, 100_000, hlo_op="dot.9", **stats)
    return space


def gpu_capture() -> Space:
    """A GPU that runs the body of a loop as command buffers, whose kernels name no instruction."""
    space = Space(hostnames=["host-0"])
    space.hlo_protos({"jit_step(7)": (7, ModuleText(HLO).proto)})
    plane = space.plane("/device:GPU:0")
    stream = plane.line("Stream #1(Compute)")
    at = 1_000_000
    for e in range(3):
        stats = {"hlo_module": "jit_step", "program_id": 7, "correlation_id": e + 1}
        stream.event(plane.metadata("copy_9"), at, 100_000, hlo_op="copy.9", **stats)
        at += 110_000
        for _ in range(5):
            for kernel in ("memcpy128", "memcpy128", "dot_1", "all_reduce_1", "dot_2", "dot_3"):
                stream.event(plane.metadata(kernel), at, 100_000, hlo_op="command_buffer_4", **stats)
                at += 110_000
        stream.event(plane.metadata("dot_9"), at, 100_000, hlo_op="dot.9", **stats)
        at += 1_000_000
    return space


LAYERED = "SELECT phase, min(coverage) FROM metrics.layer_coverage WHERE phase IN ('prefill', 'decode') GROUP BY phase"
SITUATIONS = {
    "situations/jax-scan-train": (8, 0.9),
    "gpu-own/h200-jax-llama6-scan-unmarked": (6, 0.9),
}
"""The layers of recorded scans, and the least share of a phase's op time that is in them: the rest is the head."""


@pytest.mark.parametrize("name", SITUATIONS)
def test_recorded_scans(name: str, shared_traces: Path, tmp_path: Path) -> None:
    count, least = SITUATIONS[name]
    with open_warehouse(tmp_path, create=True) as warehouse:
        warehouse.ingest(shared_traces / f"{name}.xplane.pb.gz")
        _check_scan(warehouse, name, count, least)


def _check_scan(warehouse: Warehouse, name: str, count: int, least: float) -> None:
    assert all(coverage >= least for _, coverage in warehouse.query(LAYERED).rows())
    ops = warehouse.query(
        "SELECT o.execution, o.device_id, l.layer, count(*) FROM models.op_layers AS l "
        "JOIN models.leaf_ops AS o USING (run_id, event_id) WHERE l.layer IS NOT NULL GROUP BY ALL"
    ).rows()
    executions = {(execution, device) for execution, device, *_ in ops}
    for where in executions:  # each layer runs the same ops
        of_layers = {layer: ops for *here, layer, ops in ops if tuple(here) == where}
        assert of_layers.keys() == set(range(count))
        assert len(set(of_layers.values())) == 1
    if name.startswith("situations"):
        collectives = warehouse.query(
            "SELECT kind, iteration, count(*) FROM main.collectives WHERE phase = 'decode' AND step = 1 GROUP BY ALL"
        ).rows()
        assert sorted(c for c in collectives if c[1] is not None) == [("all-reduce", i, 2 * 4) for i in range(8)]
        assert ("all-gather", None, 4) in collectives


@pytest.mark.parametrize(("backend", "layer"), [("cpu", 4), ("gpu", 6)])
def test_programs_tell_the_loops_of_other_devices(backend: str, layer: int, ingest: Ingest, tmp_path: Path) -> None:
    ingest(cpu_capture() if backend == "cpu" else gpu_capture())
    assert layers_of(tmp_path) == Counter({None: 2} | dict.fromkeys(range(5), layer))
