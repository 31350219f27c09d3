"""Captures of made-up servers, step by step: programs of layers and output heads with so many rows."""

from __future__ import annotations

from typing import Any

from xplane_builder import Space, Unsigned

US = 1_000_000
LAYERS = 4
FUSED = "%fusion.{n} = bf16[{m},{k}] fusion(bf16[{m},64] %a.{n}, bf16[64,{k}] %w.{n}), kind=kOutput, calls=%c.{n}"
KERNEL = "%kernel.{n} = bf16[{m},{k}] custom-call(bf16[{m},64] %a.{n}, s4[64,{k}] %w.{n}, f32[1,{k}] %s.{n})"
SUMMED = "%sum.{n} = bf16[{m},{k}] fusion(bf16[{m},{k}] %x.{n}, bf16[{m},{k}] %y.{n}), kind=kLoop, calls=%c.{n}"
Op = tuple[str, str, str]
"""HLO text, category and op_name."""


def layers(
    rows: int, text: str = FUSED, category: str = "convolution fusion", op_name: str = "dot_general"
) -> list[Op]:
    """Layers of two products and a sum on so many rows."""
    made = []
    for n in range(LAYERS):
        for part, width in enumerate((256, 64)):
            made.append((text.format(n=2 * n + part, m=rows, k=width), category, f"jit(f)/mlp/{op_name}"))
        made.append((SUMMED.format(n=n, m=rows, k=64), "loop fusion", "jit(f)/add"))
    return made


def head(rows: int, op_name: str = "jit(f)/lm_head/dot_general", columns: int = 999) -> Op:
    return FUSED.format(n=99, m=rows, k=columns), "convolution fusion", op_name


def served(*steps: list[tuple[str, list[Op]]], backend: str = "tpu") -> Space:
    """Steps of programs, by name and number, called by a server; the ops of a program take 5 us each."""
    space = Space(hostnames=["vm"])
    host = space.host()
    engine = host.line("engine")
    tpu = space.tpu(0) if backend == "tpu" else None
    device = tpu or (space.plane("/device:GPU:0") if backend == "gpu" else host)
    stream = device.line("Stream #1(Compute)" if backend == "gpu" else "tf_XLAPjRtCpuClient/0")
    at = launch = 0
    numbers: dict[tuple[str, str], int] = {}
    for step in steps:
        engine.event("$runner.py:7 execute_model", at, 500 * US)
        for name, ops in step:
            number = numbers.setdefault((name, ops[0][0]), len(numbers) + 1)
            launch += 1
            if tpu:
                tpu.modules.event(f"{name}({number})", at, 5 * len(ops) * US, run_id=Unsigned(launch))
            elif backend == "cpu":
                engine.event("ThunkExecutor::Execute", at, US, run_id=launch)
            engine.event("PJRT_LoadedExecutable_Execute linkage", at + US, US)
            for k, (text, category, op_name) in enumerate(ops):
                if tpu:
                    stats: dict[str, Any] = {"hlo_category": category, "tf_op": op_name, "program_id": Unsigned(number)}
                    tpu.ops.event(tpu.instruction(text, **stats), at, 5 * US)
                else:
                    hlo = text.split(" =")[0].removeprefix("%")
                    named = {"hlo_op": hlo, "hlo_module": name, "program_id": number}
                    named |= {"run_id": launch, "device_ordinal": 0} if backend == "cpu" else {"correlation_id": at + k}
                    text += f', metadata={{op_name="{op_name}"}}'
                    stream.event(device.metadata(text, hlo), at, 5 * US, **named)
                at += 5 * US
            at += 20 * US
        at += 600 * US
    return space
