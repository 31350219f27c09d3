"""Keeps references of plain torch, computed once per model, prompt and lengths, whatever the mesh, host or run."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracewarehouse.collect.run_spec import RunSpec

FOLDER = "TRACEWAREHOUSE_REFERENCES"
"""Environment variable that names the folder of references."""
_LOGITS = "logits"


def cache_folder() -> Path:
    """Return the folder of references; it may be removed at any time."""
    if given := os.environ.get(FOLDER):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "tracewarehouse" / "references"


def kept_files(models: Iterable[str]) -> list[Path]:
    """Return the kept references of these models, whatever the prompt, lengths and dtype."""
    names = {Path(model).name for model in models}
    return sorted(f for f in cache_folder().glob("*.safetensors") if f.stem.rpartition("-")[0] in names)


def reference_file(spec: RunSpec, tokens: Any, weights: list[Any]) -> Path:
    """Return the file of a reference, whose name depends on everything that its numbers depend on.

    Args:
        spec: The run; only its model, layers, dtype and output length matter.
        tokens: The prompt, [batch, input length].
        weights: The identity of the model's weights, as JSON values.
    """
    facts = {
        "layers": spec.layers,
        "dtype": spec.dtype,
        "steps": spec.output_length,
        "tokens": tokens.tolist(),
        "weights": weights,
        "versions": [version(package) for package in ("torch", "transformers")],
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return cache_folder() / f"{Path(spec.model).name}-{digest[:32]}.safetensors"


def weight_files(folder: Path) -> list[Any]:
    """Return the identity of the weights of a published model.

    Files in the hub's cache are links to files named by their content; other files are identified by size and time.
    """
    files = [*sorted(folder.glob("*.safetensors")), folder / "config.json"]
    return [
        [f.name, f.resolve().name] if f.is_symlink() else [f.name, f.stat().st_size, f.stat().st_mtime_ns]
        for f in files
    ]


def kept(file: Path) -> Any:
    """Return logits [batch, steps, vocabulary] that were computed before; None if there are none to be read."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)[_LOGITS]
    except (OSError, SafetensorError, KeyError):
        return None


def computed_once(file: Path, compute: Callable[[], Any]) -> Any:
    """Return logits that were computed before, or else compute and keep them.

    A folder that cannot be written keeps nothing.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if (logits := kept(file)) is not None:
        return logits
    logits = compute()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=file.parent) as folder:
            new = Path(folder) / file.name
            save_file({_LOGITS: logits.contiguous()}, new)
            new.replace(file)
    except (OSError, SafetensorError):
        pass
    return logits
