"""A capture whose numbers are known by hand: steps of a dot and three all-reduces, and the rows of an answer."""

from __future__ import annotations

from typing import Any

from xplane_builder import Space, Unsigned

US = 1_000_000


def step_capture(dot_us: int) -> Space:
    """Two devices, a prefill and three decode steps of 200 us, and in each a dot and all-reduces of 1, 2 and 4 MB.

    An all-reduce takes 2 us and 10 us for each MB: 12, 22 and 42 us, so 76 us in a step.

    0         dot_us            + 12   + 34   + 76                       200
    |---dot---|---all-reduce.1---|--.2--|--.4--|--------- idle -----------|
    """
    space = Space(hostnames=["vm"])
    for device in (0, 1):
        tpu = space.tpu(device)
        for step in range(4):
            program, name = (1, "prefill") if step == 0 else (2, "decode")
            at = 200 * US * step
            tpu.modules.event(f"{name}.{program}({program})", at, (dot_us + 76) * US, run_id=Unsigned(step + 1))
            facts = {"program_id": Unsigned(program)}
            dot = "%dot.1 = f32[8,8]{1,0} dot(f32[8,8]{1,0} %a, f32[8,8]{1,0} %b)"
            tpu.ops.event(tpu.instruction(dot, hlo_category="convolution fusion", **facts), at, dot_us * US)
            at += dot_us * US
            for megabytes in (1, 2, 4):
                shape = f"f32[{250_000 * megabytes}]{{0}}"
                reduce = (
                    f"%all-reduce.{megabytes} = {shape} all-reduce({shape} %x), channel_id={megabytes}, "
                    "replica_groups={{0,1}}, use_global_device_ids=true, to_apply=%add"
                )
                duration = (2 + 10 * megabytes) * US
                tpu.ops.event(tpu.instruction(reduce, hlo_category="all-reduce", **facts), at, duration)
                at += duration
    return space


def rows(answer: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The rows of a table of an answer of a tool, by column."""
    [table] = [t for t in answer["tables"] if t["name"] == name]
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
