"""Measures `tw ingest` of small captures that ask for much: CPU seconds and peak memory of whole processes.

    python tests/benchmarks/hostile_captures.py [instructions] [text] [groups]

instructions  100,000 distinct HLO instructions on one device, each run once
text          one instruction of 10 MB of HLO text, and one whose text is 10 MB of nested tuples that never end
groups        10,000 all-reduces, each of whose 20 bytes of replica groups name 131,072 devices
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from xplane_builder import Space, Unsigned  # noqa: E402

US = 1_000_000
RUN = """
import resource, sys
from tracewarehouse.cli import run
code = run(sys.argv[1:])
own, others = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
seconds = sum(u.ru_utime + u.ru_stime for u in (own, others))
print(f"exit code {code}, {seconds:.1f} CPU s, peak {max(own.ru_maxrss, others.ru_maxrss) / 1024:.0f} MB")
"""


def capture(instructions: list[str]) -> Space:
    """One device that runs each instruction once."""
    space = Space()
    tpu = space.tpu(0)
    tpu.modules.event("step(1)", 0, (len(instructions) + 1) * US)
    for number, hlo in enumerate(instructions):
        tpu.ops.event(tpu.instruction(hlo, program_id=Unsigned(1)), number * US, US // 2)
    return space


def instructions() -> list[str]:
    """100,000 distinct ones."""
    return [
        f"%fusion.{i} = bf16[{i % 997},128]{{1,0:T(8,128)(2,1)}} fusion(bf16[{i % 997},128]{{1,0}} %p.{i}, f32[] %c), "
        f'kind=kLoop, calls=%fused.{i}, metadata={{op_name="jit(step)/layer{i % 80}/mlp/mul" source_line={i}}}'
        for i in range(100_000)
    ]


def text() -> list[str]:
    """10 MB of operands, and 10 MB of opening brackets."""
    operands = ", ".join(f"f32[8]{{0}} %p.{i}" for i in range(600_000))
    return [f"%tuple.1 = f32[8]{{0}} fusion({operands}), kind=kLoop, calls=%f", "%tuple.2 = " + "(" * 10_000_000]


def groups() -> list[str]:
    """10,000 all-reduces over 131,072 devices."""
    return [
        f"%all-reduce.{i} = f32[8]{{0}} all-reduce(f32[8]{{0}} %x), channel_id={i + 1}, "
        f"replica_groups=[{1 << 17 - i % 17},{1 << i % 17}]<=[131072], to_apply=%add"
        for i in range(10_000)
    ]


MADE = {"instructions": instructions, "text": text, "groups": groups}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *MADE], metavar="NAME")
    for name in parser.parse_args().names or MADE:
        with tempfile.TemporaryDirectory(prefix="tracewarehouse-hostile-") as folder:
            path = capture(MADE[name]()).write(Path(folder) / f"{name}.xplane.pb")
            command = [sys.executable, "-c", RUN, "-w", f"{folder}/warehouse", "ingest", str(path)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            print(f"{name}: {path.stat().st_size / 1e6:.1f} MB, {done.stdout.splitlines()[-1]}", flush=True)
            if done.returncode:
                print(done.stderr, file=sys.stderr)


if __name__ == "__main__":
    main()
