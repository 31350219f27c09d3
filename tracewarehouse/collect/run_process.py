"""Records one run in its own process: `python -m tracewarehouse.collect.run_process SPEC OUTPUT`.

With NUMBER FOLDER behind, it is one of the processes of a run, which share the folder: a stage of a pipeline over
hosts, or a device of torch_tpu. With only the name of a backend, it says whether this interpreter has what the backend
needs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import cast

from tracewarehouse.collect.harness.backend import BackendOfProcesses, find_backend
from tracewarehouse.collect.harness.recording import record
from tracewarehouse.collect.processes import end_with_parent, exit_code
from tracewarehouse.collect.run_spec import RunSpec


def main(arguments: list[str]) -> int:
    """Entry of the process; prints one line that starts with `error:` when the run fails."""
    end_with_parent()
    return exit_code(lambda: _work(arguments))


def _work(arguments: list[str]) -> None:
    specification, *rest = arguments
    if not rest:
        find_backend(specification).require()
        return
    spec = RunSpec.model_validate_json(specification)
    backend = find_backend(spec.backend)
    os.environ.update(backend.environment(spec))
    if len(rest) == 1:
        record(spec, Path(rest[0]), backend)
        return
    _, number, shared = rest
    cast("BackendOfProcesses", backend).record_part(spec, int(number), Path(shared))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
