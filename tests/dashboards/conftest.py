"""The warehouse that the tests of charts draw: a run of two devices, one of the host alone, and recorded captures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_capture import write_capture_directory
from xplane_builder import Space, Unsigned

from tracewarehouse.warehouse import Warehouse, open_warehouse


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """A warehouse with a run of two devices, and a run of the host alone whose name is hostile."""
    folder = tmp_path_factory.mktemp("charts")
    with open_warehouse(folder / "warehouse", create=True) as opened:
        opened.ingest(write_capture_directory(folder / "tiny"))
        space = Space()
        space.host().line("python").event("f", 1, 2)
        opened.ingest(space.write(folder / "x.xplane.pb"), name="<script>alert('x')</script>")
        yield opened


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """A run whose all-reduces take 2 us and 10 us for each MB: 12, 22 and 42 us in a step, after 24 us of compute."""
    folder = tmp_path_factory.mktemp("fitted")
    us = 1_000_000
    space = Space(hostnames=["vm"])
    for device in (0, 1):
        tpu = space.tpu(device)
        for step in range(4):
            program, name = (1, "prefill") if step == 0 else (2, "decode")
            start = 100 * us * step
            tpu.modules.event(f"{name}.{program}({program})", start, 100 * us, run_id=Unsigned(step + 1))
            facts = {"program_id": Unsigned(program)}
            dot = "%dot.1 = f32[8,8]{1,0} dot(f32[8,8]{1,0} %a, f32[8,8]{1,0} %b)"
            tpu.ops.event(tpu.instruction(dot, hlo_category="convolution fusion", **facts), start, 24 * us)
            at = start + 24 * us
            for megabytes in (1, 2, 4):
                shape = f"f32[{250_000 * megabytes}]{{0}}"
                reduce = (
                    f"%all-reduce.{megabytes} = {shape} all-reduce({shape} %x), channel_id={megabytes}, "
                    "replica_groups={{0,1}}, use_global_device_ids=true, to_apply=%add"
                )
                duration = (2 + 10 * megabytes) * us
                tpu.ops.event(tpu.instruction(reduce, hlo_category="all-reduce", **facts), at, duration)
                at += duration
    with open_warehouse(folder / "warehouse", create=True) as opened:
        opened.ingest(space.write(folder / "fitted.xplane.pb"), mesh="tp=2", name="fitted")
        yield opened


@pytest.fixture(scope="session")
def recorded(copy_of_captures: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """A warehouse with three captures of data/: two of one model, and one whose collectives are all-to-all."""
    names = ("llama-tp4-b4-i16-o17", "llama-tp4-sp-b4-i16-o9", "deepseek_v2-ep4-b4-i16-o9")
    with open_warehouse(copy_of_captures(tmp_path_factory.mktemp("recorded") / "warehouse", *names)) as opened:
        yield opened
