"""Does one host's part in a round: `python -m tracewarehouse.collect.slice_worker RUNS NAME OUTPUT` records one run.

`tw tpu run` starts it on all hosts of a slice at the same time, so that all record the same run.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pydantic import ValidationError

from tracewarehouse.collect import runner
from tracewarehouse.collect.errors import CollectError
from tracewarehouse.collect.experiment import Experiment
from tracewarehouse.collect.processes import exit_code
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.commands import SharedRuns
from tracewarehouse.collect.tpu.weights import require_weights

ROOM = 5 * 10**9
"""Bytes that must be free for a capture; with less, captures of earlier rounds, which were copied, are removed."""


def record(file: Path, name: str, output: Path) -> None:
    """Record one run into `output`, with the files of its model fetched first."""
    try:
        shared = SharedRuns.model_validate_json(file.read_text(encoding="utf-8"))
        place = [run.name for run in shared.runs].index(name)
        specs = [RunSpec.model_validate(run.spec) for run in shared.runs[place:]]
    except (OSError, ValidationError, ValueError) as error:
        raise CollectError(f"{file}: {name} cannot be read there: {' '.join(str(error).split())}") from None
    if specs[0].digest != shared.runs[place].digest:
        raise CollectError(
            f"{name}: this host has another version of tracewarehouse; delete the slice and create it again"
        )
    make_room(output)
    require_weights(specs[0], specs[1:])
    (result,) = runner.collect(Experiment.from_runs(specs[0], timeout_s=shared.timeout_s, retries=0), output)
    if result.status == "failed":
        raise CollectError(f"{name}: {result.error}")


def make_room(output: Path) -> None:
    """Remove the captures of other rounds if the disk has hardly any room for another one."""
    output.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(output).free < ROOM:
        for other in output.parent.iterdir():
            if other != output:
                shutil.rmtree(other, ignore_errors=True)


def main(arguments: list[str]) -> int:
    """Entry of the process; prints one line that starts with `error:` when the run fails."""
    file, name, output = arguments
    return exit_code(lambda: record(Path(file), name, Path(output)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
