"""Traces the steps of a run on virtual CPU devices, as programs for TPUs: `... SPEC FOLDER`.

The attention uses the kernels of a TPU, for which torch_xla needs jax, as on a TPU.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tracewarehouse.collect.harness.recording import write_promises
from tracewarehouse.collect.harness.subject import traced_subject
from tracewarehouse.collect.processes import end_with_parent, exit_code
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.torch_xla.backend import TorchXlaBackend


def trace(spec: RunSpec, folder: Path) -> None:
    """Write each step of a run as the HLO text that the compiler would get, and the manifest; nothing is compiled."""
    from tracewarehouse.collect.torch_xla.replay import ReplayedModel
    from tracewarehouse.collect.torch_xla.stack import TorchXlaStack

    _lower_kernels_for_tpu()
    subject = traced_subject(spec)
    model = ReplayedModel(spec, TorchXlaStack(spec).traceable(subject))
    for phase, length in spec.step_lengths:
        (folder / f"{phase}.txt").write_text(model.lowered(phase, length), encoding="utf-8")
    write_promises(spec, subject.facts, folder)


def _lower_kernels_for_tpu() -> None:
    """Make torch_xla lower kernels for a TPU, as it does on a TPU."""
    from torch_xla.experimental import custom_kernel

    def lowered(kernel: Any, *args: Any, use_cache: bool = False, **options: Any) -> tuple[Any, Any]:
        import jax
        import torch

        static = {name: options.pop(name, None) for name in ("static_argnums", "static_argnames")}
        shapes = [custom_kernel.to_jax_shape_dtype_struct(a) if torch.is_tensor(a) else a for a in args]
        traced = jax.jit(kernel, **static).trace(*shapes, **options)
        module = traced.lower(lowering_platforms=("tpu",)).compiler_ir()
        return custom_kernel._extract_backend_config(module), [a for a in args if torch.is_tensor(a)]

    custom_kernel.trace_pallas = lowered


def main(arguments: list[str]) -> int:
    """Entry of the process that traces; prints one line that starts with `error:` when it fails."""
    specification, folder = arguments
    end_with_parent()
    spec = RunSpec.model_validate_json(specification)
    os.environ |= TorchXlaBackend().environment(spec.model_copy(update={"device": "cpu"}))
    return exit_code(lambda: trace(spec, Path(folder)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
