"""Records one run in its own process: `python -m tracewarehouse.collect.run_process SPEC OUTPUT`.

`python -m tracewarehouse.collect.run_process BACKEND` only says whether this interpreter has what the backend needs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tracewarehouse.collect.harness.backend import find_backend
from tracewarehouse.collect.harness.recording import record
from tracewarehouse.collect.processes import end_with_parent, exit_code_of
from tracewarehouse.collect.run_spec import RunSpec


def main(arguments: list[str]) -> int:
    """Entry of the process; prints one line that starts with `error:` when the run fails."""
    end_with_parent()
    return exit_code_of(lambda: _work(arguments))


def _work(arguments: list[str]) -> None:
    match arguments:
        case [backend]:
            find_backend(backend).require()
        case [specification, output, *of_stage]:
            _record(RunSpec.model_validate_json(specification), output, of_stage)


def _record(spec: RunSpec, output: str, of_stage: list[str]) -> None:
    """Record a run, or one stage of a pipeline over hosts: `of_stage` is its number and the folder that all share."""
    backend = find_backend(spec.backend)
    os.environ.update(backend.environment(spec))
    if of_stage:
        from tracewarehouse.collect.torch_xla.stage_hosts import record_stage

        stage, shared = of_stage
        record_stage(spec, int(stage), Path(shared))
    else:
        record(spec, Path(output), backend)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
