"""Programs of transformers as a TPU runs them, op by op with the truth, and captures of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xplane_builder import Space, Unsigned

from tracewarehouse.ingest.hlo.instruction_row import InstructionRow
from tracewarehouse.ingest.hlo.text import parse_instruction
from tracewarehouse.ingest.layers.sequence import Execution

PROGRAM = 42


@dataclass(frozen=True)
class Op:
    """An op of a program: its HLO text, category, time in ns, name path without layer, and the truth."""

    text: str
    category: str
    ns: int
    op_name: str
    layer: int | None
    part: str | None


def transformer(layers: int, *, permutes: bool = False, dense: int = 0) -> list[Op]:
    """Embedding, layers of attention and mlp, the final norm; the first `dense` layers have an mlp of another width.

    Each product and each all-reduce is a kernel of its own, as on a TPU with tp=2. A layer begins with its norm and
    ends with the residual add after the mlp.
    """
    ops: list[Op] = []

    def add(
        opcode: str, shape: str, category: str, ns: int, place: str, layer: int | None = None, part: str | None = None
    ) -> None:
        number = len(ops)
        attributes = ", replica_groups={{0,1}}" if opcode == "all-reduce" else ""
        attributes = ", source_target_pairs={{0,1}}" if opcode == "collective-permute" else attributes
        attributes = ", kind=kOutput, calls=%c" if opcode == "fusion" else attributes
        text = f"%{opcode}.{number} = {shape} {opcode}(bf16[8,64] %a.{number}){attributes}"
        ops.append(Op(text, category, ns, f"jit(step)/{place}", layer, part))

    add("fusion", "bf16[8,64]", "loop fusion", 900, "embedding/take", None, "embed")
    add("all-reduce", "bf16[8,64]", "all-reduce", 2000, "embedding/psum", None, "embed")
    for i in range(layers):
        width = 512 if i < dense else 256
        add("fusion", "bf16[8,64]", "loop fusion", 300, "aten::mean/rsqrt", i, "norm")
        add("fusion", "bf16[8,192]", "convolution fusion", 5000, "QKVParallelLinear/dot", i, "attn")
        add("fusion", "bf16[8,2,32]", "loop fusion", 400, "rotary/mul", i, "attn")
        add("copy-start", "(bf16[8,2,32], bf16[8,2,32], u32[])", "copy-start", 20, "", i, "attn")
        add("custom-call", "bf16[8,2,32]", "custom-call", 7000, "attention/kernel", i, "attn")
        add("copy-done", "bf16[8,2,32]", "copy-done", 20, "", i, "attn")
        add("fusion", "bf16[8,64]", "convolution fusion", 3000, "RowParallelLinear/dot", i, "attn")
        add("all-reduce", "bf16[8,64]", "all-reduce", 2000, "RowParallelLinear/psum", i, "attn")
        add("fusion", "bf16[8,64]", "loop fusion", 350, "aten::mean/rsqrt", i, "norm")
        add("fusion", f"bf16[8,{width}]", "convolution fusion", 9000, "MergedColumnParallelLinear/dot", i, "mlp")
        add("fusion", "bf16[8,64]", "convolution fusion", 6000, "RowParallelLinear/dot", i, "mlp")
        add("all-reduce", "bf16[8,64]", "all-reduce", 2000, "RowParallelLinear/psum", i, "mlp")
        if permutes:
            add("collective-permute", "bf16[8,64]", "collective-permute", 800, "ppermute", None, "pipeline")
        add("fusion", "bf16[8,64]", "loop fusion", 200, "residual_sum/add", i, "mlp")
    add("fusion", "f32[8,64]", "loop fusion", 310, "final/convert", None, None)
    return ops


def rows_of(ops: Sequence[Op]) -> list[InstructionRow]:
    """The instructions of a program, as ingest knows them."""
    rows = []
    for op in ops:
        hlo = parse_instruction(op.text)
        assert hlo is not None, op.text
        rows.append(InstructionRow(hlo.name, PROGRAM, "jit_step", op.category, hlo, op_name=op.op_name))
    return rows


def execution(ops: Sequence[Op], order: Sequence[int] | None = None, *, is_cut: bool = False) -> Execution:
    """An execution that runs the instructions in this order, each in its time."""
    ids = np.array(range(len(ops)) if order is None else order, np.int32)
    time = np.array([ops[i].ns * 1000 for i in ids.tolist()], np.int64)
    return Execution("jit_step", PROGRAM, 0, ids, time, is_cut)


def named_capture(ops: Sequence[Op], backend: str, *, executions: int = 4) -> Space:
    """A capture of two GPUs or virtual CPU devices, whose events name their instructions in stats, as JAX writes it."""
    space = Space(hostnames=["host-0"])
    duration = sum(op.ns for op in ops) * 1000 + 2_000_000
    host = space.host()
    python = host.line("python")
    for d in range(2):
        plane = space.plane(f"/device:GPU:{d}") if backend == "gpu" else host
        line = plane.line("Stream #1(Compute)" if backend == "gpu" else f"tf_XLAPjRtCpuClient/{d}")
        for e in range(executions):
            at = 1_000_000 + e * duration
            if backend == "cpu" and not d:
                python.event("ThunkExecutor::Execute", at - 1_000_000, 1000, run_id=e + 1)
            for k, op in enumerate(ops):
                # without the profiler's categories, products are told by their opcodes
                text = op.text.replace("fusion", "dot").split(", kind")[0] if "conv" in op.category else op.text
                name = text.split(" =")[0].removeprefix("%")
                text += f', metadata={{op_name="{op.op_name}"}}'
                stats = {"hlo_op": name, "hlo_module": "jit_step", "program_id": PROGRAM}
                if backend == "gpu":
                    stats["correlation_id"] = e * len(ops) + k + 1
                else:
                    stats |= {"run_id": e + 1, "device_ordinal": d}
                line.event(plane.metadata(text, f"kernel_{name}"), at, op.ns * 1000, **stats)
                at += op.ns * 1000
    return space


def capture(ops: Sequence[Op], *, devices: int = 2, executions: int = 5, lost: slice = slice(0)) -> Space:
    """A capture in which devices run a program several times; the ops in `lost` are in no execution of it."""
    space = Space(hostnames=["host-0"])
    duration = sum(op.ns for op in ops) * 1000
    left = [op for op in ops if op not in ops[lost]]
    for d in range(devices):
        tpu = space.tpu(d)
        ids = {
            op.text: tpu.instruction(op.text, hlo_category=op.category, tf_op=op.op_name, program_id=Unsigned(PROGRAM))
            for op in left
        }
        for e in range(executions):
            at = 1_000_000 + e * (duration + 1_000_000)
            tpu.modules.event(f"jit_step({PROGRAM})", at, duration, run_id=Unsigned(e + 1))
            for op in ops:
                if op.text in ids:
                    tpu.ops.event(ids[op.text], at, op.ns * 1000)
                at += op.ns * 1000
    return space
