"""Processes that have imported torch_xla or JAX already, which takes longer than a tiny model to compile and run.

As a program it is what the others are forked from: it imports, uses no device, and forks for each line of JSON that it
reads. A forked process goes on as if it had been started to run the given program, and ends by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracewarehouse.collect.run_spec import RunSpec

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "PJRT_DEVICE": "CPU",
    "XLA_HLO_DEBUG": "1",
    # Machine code is made in an eighth of the time; the programs' HLO, which the tests look at, is the same.
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
    # Idle threads of torch would wait for work by spinning, which takes as long again as a tiny model.
    "OMP_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
}
"""What torch, torch_xla and jax read when they are imported."""

NOT_FOR_JAX = ("torch", "torch_xla", "transformers", "safetensors")
"""Packages that runs of the jax backend do without."""

RECORD = """
import sys
from tests.collect.torch_processes import forked
from tracewarehouse.collect import run_process
from tracewarehouse.collect.harness import generation, processes, subject

specification, output, host_memory = sys.argv[1:]
generation.PROFILED_PAIRS = 1
processes.run_together = forked
if host_memory:
    subject.available_memory = lambda: int(host_memory)
sys.exit(run_process.main([specification, output]))
"""


def forked(commands: list[list[str]], folder: Path) -> None:
    """Fork the processes of a run; started anew, each would import its stack again."""
    from tracewarehouse.collect import run_process

    processes = []
    for command in commands:
        if not (process := os.fork()):
            os._exit(run_process.main(command[3:]))
        processes.append(process)
    codes = [os.waitpid(process, 0)[1] for process in processes]
    assert not any(codes)


class TorchProcesses:
    """Runs Python programs, each in a process of its own with torch_xla and transformers, or JAX, and the harness.

    `folder` gets what the processes print.
    """

    def __init__(self, folder: Path, backend: str = "torch_xla") -> None:
        paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self._out, self._err = folder / "out", folder / "err"
        self._parent = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, backend, str(self._out), str(self._err)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> TorchProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._parent.communicate(timeout=60)

    def run(self, program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, with variables that are set before anything of torch_xla reads them."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps([program, arguments, variables]) + "\n")
        self._parent.stdin.flush()
        code = self._parent.stdout.readline()
        assert code, "the process that imports the backend's packages has ended"
        return subprocess.CompletedProcess(
            [program, *arguments], int(code), self._out.read_text(), self._err.read_text()
        )

    def record(self, spec: RunSpec, output: Path, host_memory: int | None = None) -> Path:
        """Record a run, on a host with less memory when it is given; the capture directory."""
        done = self.run(RECORD, spec.model_dump_json(), str(output), str(host_memory or ""))
        assert done.returncode == 0, done.stderr[-3000:]
        return output / spec.name

    def answer(self, program: str, *arguments: str, **variables: str) -> Any:
        """What a program prints last, as JSON; it must end with 0."""
        done = self.run(program, *arguments, **variables)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])


def forked_for_a_program() -> tuple[str, list[str], dict[str, str]]:
    """Fork for each program that is asked for; only the forked processes return."""
    for line in sys.stdin:
        process = os.fork()
        if not process:
            program, arguments, variables = json.loads(line)
            return program, arguments, variables
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
    sys.exit()


if __name__ == "__main__":
    backend, for_out, for_err = sys.argv[1:]
    if backend == "jax":
        sys.modules |= dict.fromkeys(NOT_FOR_JAX)  # an import of one of these fails, as if it were not installed
        from tracewarehouse.collect.jax import stack as _
    else:
        from transformers import (  # noqa: F401
            DeepseekV2ForCausalLM,
            DeepseekV3ForCausalLM,
            LlamaForCausalLM,
            Qwen2ForCausalLM,
            Qwen3ForCausalLM,
            Qwen3MoeForCausalLM,
        )

        from tracewarehouse.collect.torch_xla import stage_hosts as _  # noqa: F401
    from tracewarehouse.collect import run_process  # noqa: F401

    code, sys.argv[1:], variables = forked_for_a_program()
    os.environ.update(variables)
    for number, path in ((1, for_out), (2, for_err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
