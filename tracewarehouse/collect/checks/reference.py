"""Computes the same generation in plain torch on the host, keeps it for other runs, and compares the two."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tracewarehouse.collect.errors import CheckError
from tracewarehouse.collect.run_spec import RunSpec

TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
"""Largest difference of a logit that rounding explains if no logit is above 2, as in the tiny models."""
LOGIT_SCALE = 2.0


@dataclass(frozen=True)
class Agreement:
    """The agreement of a generation with the reference."""

    tokens_equal: bool | None
    """Whether the tokens of all comparable steps are equal; None if no step is comparable."""
    max_logit_error: float
    """Largest difference of a logit, over all steps up to the first token that differs."""
    comparable_share: float
    """Share of the steps, counted per sequence, before and in which nothing was dropped."""


def reference_logits(model: Any, tokens: Any, output_length: int) -> Any:
    """Return the logits [batch, output_length, vocabulary] of greedy generation by the unchanged model."""
    import torch

    logits, cache = [], None
    with torch.no_grad():
        for _ in range(output_length):
            out = model(input_ids=tokens, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            logits.append(out.logits[:, -1])
            tokens = logits[-1].argmax(-1, keepdim=True)
    return torch.stack(logits, 1)


def compare(logits: Any, expected: Any, precision: str, dropped: Any = None) -> Agreement:
    """Compare the logits of two greedy generations [batch, steps, vocabulary].

    After its first token that differs, a sequence is another text, and nothing further of it is compared. A token may
    differ if the reference itself has a tie within rounding. Rounding grows with the largest logit.

    Plain torch drops nothing, so a sequence is compared until one of its tokens does not reach an expert: `dropped`
    counts such pairs, [batch, steps]. `precision` is the coarser of the two in which they were computed.
    """
    import torch

    logits, expected = logits.float(), expected.float()
    same = logits.argmax(-1) == expected.argmax(-1)
    is_whole = torch.ones_like(same) if dropped is None else dropped.cumsum(1) == 0
    is_comparable = is_whole & torch.cat([torch.ones_like(same[:, :1]), same[:, :-1]], 1).cumprod(1).bool()
    error = (logits - expected).abs().amax(-1).masked_fill(~is_comparable, 0.0)
    worst = float(error.max())
    tolerance = TOLERANCE[precision] * max(1.0, float(expected.abs().max()) / LOGIT_SCALE)
    if not worst <= tolerance:
        sequence, step = divmod(int(error.argmax()), error.shape[1])
        raise CheckError(
            f"the logits differ from plain torch by {worst:.3g} at sequence {sequence}, step {step} "
            f"(tolerance for {precision}: {tolerance:.3g}): the partitioned model does not compute the same"
        )
    tokens_equal = bool(same[is_whole].all()) if is_whole.any() else None
    return Agreement(tokens_equal, worst, float(is_whole.float().mean()))


def require_finite(logits: Any) -> None:
    """Make sure that a generation without a reference gave finite numbers."""
    import torch

    is_bad = ~torch.isfinite(logits).all(-1)
    if is_bad.any():
        sequence, step = divmod(int(is_bad.flatten().to(torch.int8).argmax()), is_bad.shape[1])
        raise CheckError(
            f"{int(is_bad.sum())} of {is_bad.numel()} steps gave logits that are not finite, the first at sequence "
            f"{sequence}, step {step}; try float32 or bfloat16 weights as published"
        )


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

    `tokens` are the prompt [batch, input length], `weights` the identity of the model's weights as JSON values.
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
