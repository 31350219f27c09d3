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
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "PJRT_DEVICE": "CPU",
    "XLA_HLO_DEBUG": "1",
    # Machine code is made in an eighth of the time; the programs' HLO, which the tests look at, is the same.
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
    # Idle threads of torch would wait for work by spinning, which takes as long again as a tiny model.
    "OMP_NUM_THREADS": "1",
}
"""What torch and torch_xla read when they are imported."""


class TorchProcesses:
    """Runs Python programs, each in a process of its own that has torch_xla or JAX, transformers and the harness.

    Args:
        folder: Gets what the processes print.
        backend: The one whose packages they have, torch_xla or jax.
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
        """Run a program to its end.

        Args:
            program: Python code.
            arguments: What it finds in `sys.argv` behind the program's name.
            variables: Set in its environment before anything of torch_xla reads them.
        """
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps([program, arguments, variables]) + "\n")
        self._parent.stdin.flush()
        code = self._parent.stdout.readline()
        assert code, "the process that imports the backend's packages has ended"
        return subprocess.CompletedProcess(
            [program, *arguments], int(code), self._out.read_text(), self._err.read_text()
        )

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
        import torch  # noqa: F401

        from tracewarehouse.collect.jax import backend as _
    else:
        from tracewarehouse.collect.torch_xla import backend as _  # noqa: F401
    from transformers import LlamaForCausalLM  # noqa: F401

    from tracewarehouse.collect import run_process  # noqa: F401

    code, sys.argv[1:], variables = forked_for_a_program()
    os.environ.update(variables)
    for number, path in ((1, for_out), (2, for_err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
