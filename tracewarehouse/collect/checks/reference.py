"""Keeps the results of plain generations on the host for other runs, and compares those of the devices with them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tracewarehouse.collect.errors import CheckError
from tracewarehouse.collect.run_spec import RunSpec

TOLERANCE = {"float32": 1e-4, "bfloat16": 0.025}
"""Largest difference of a logit that rounding explains in a model of two layers if no logit is above 2.

In bfloat16 it grows with the cube root of the layers. Tiny llama, qwen3 and deepseek_v2 of 2, 8, 32 and 80 layers
differ from themselves in float32 by at most 0.007, 0.016, 0.014 and 0.018, and JAX on two to four devices from the
reference by 0.008 (dense, 2 layers), 0.010 (8) and 0.012 (32). A wrong token of the prompt changes a logit by 0.11 to
0.27 (2 layers) and 0.10 to 0.14 (80), a mask that shows the next token by 0.03 to 0.13 and 0.51 to 0.76. A position of
a decode step that is off by one changes a logit of the tiny llama by 0.01, which only float32 tells from rounding.
"""
LOGIT_SCALE = 2.0


@dataclass(frozen=True)
class Expected:
    """What the unsplit model generates."""

    logits: Any
    """[batch, steps, vocabulary], in float32."""
    tie_change: Any
    """Largest change of a logit if all tokens near a tie between experts went the other way, [batch, steps]."""


@dataclass(frozen=True)
class Agreement:
    """The agreement of a generation with the reference."""

    tokens_equal: bool | None
    """Whether the tokens of all comparable steps are equal; None if no step is comparable."""
    max_logit_error: float
    """Largest difference of a logit, over all comparable steps up to the first token that differs."""
    comparable_share: float
    """Share of the steps, counted per sequence, before and in which nothing was dropped, and without the tied ones."""
    tied_steps: int = 0
    """Steps that differ where a tie between experts explains it, and those after another token in one."""


def tolerance_of(precision: str, layers: int, largest: float) -> float:
    """Return the largest difference of a logit that rounding explains, for the largest logit of the reference."""
    depth = (layers / 2) ** (1 / 3) if precision == "bfloat16" else 1.0
    return TOLERANCE[precision] * max(1.0, depth) * max(1.0, largest / LOGIT_SCALE)


def compare(logits: Any, reference: Expected, precision: str, layers: int, dropped: Any = None) -> Agreement:
    """Compare the logits of two greedy generations [batch, steps, vocabulary].

    After its first token that differs, a sequence is another text, and nothing further of it is compared. A token may
    differ if the reference itself has a tie within rounding. Rounding grows with the largest logit, and
    in bfloat16 with the layers.

    The reference drops nothing, so a sequence is compared until one of its tokens does not reach an expert: `dropped`
    counts such pairs, [batch, steps]. `precision` is that of the devices.

    In bfloat16 a token near a tie between experts may go to another one than in the reference. A step that differs by
    more than the tolerance is not comparable if such ties alone change the reference's logits there by half of it.
    """
    expected = reference.logits
    same = logits.argmax(-1) == expected.argmax(-1)
    is_whole = np.ones_like(same) if dropped is None else dropped.cumsum(1) == 0
    tolerance = tolerance_of(precision, layers, float(np.abs(expected).max()))
    error = np.abs(logits - expected).max(-1)
    can_tie = (reference.tie_change > tolerance / 2) & (precision == "bfloat16")
    is_tied = is_whole & _so_far(same) & (error > tolerance) & can_tie
    is_tied |= is_whole & ~_so_far(same | ~is_tied)
    is_whole &= ~is_tied
    error = np.where(is_whole & _so_far(same), error, 0.0)
    worst = float(error.max())
    if not worst <= tolerance:
        sequence, step = divmod(int(error.argmax()), error.shape[1])
        raise CheckError(
            f"the logits differ from the reference by {worst:.3g} at sequence {sequence}, step {step} "
            f"(tolerance for {precision}: {tolerance:.3g}): the partitioned model does not compute the same"
        )
    tokens_equal = bool(same[is_whole].all()) if is_whole.any() else None
    return Agreement(tokens_equal, worst, float(is_whole.mean()), int(is_tied.sum()))


def _so_far(is_true: Any) -> Any:
    """Return whether something was true in all earlier steps, [batch, steps]."""
    before = np.concatenate([np.ones_like(is_true[:, :1]), is_true[:, :-1]], 1)
    return np.logical_and.accumulate(before, 1)


def require_finite(logits: Any) -> None:
    """Make sure that a generation without a reference gave finite numbers."""
    is_bad = ~np.isfinite(logits).all(-1)
    if is_bad.any():
        sequence, step = divmod(int(is_bad.argmax()), is_bad.shape[1])
        raise CheckError(
            f"{int(is_bad.sum())} of {is_bad.size} steps gave logits that are not finite, the first at sequence "
            f"{sequence}, step {step}; try float32 or bfloat16 weights as published"
        )


FOLDER = "TRACEWAREHOUSE_REFERENCES"
"""Environment variable that names the folder of references."""
SUFFIX = ".npz"
REVISION = 2
"""Raised when references are computed in another way; those kept from before then count no more."""


def cache_folder() -> Path:
    """Return the folder of references; it may be removed at any time."""
    if given := os.environ.get(FOLDER):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "tracewarehouse" / "references"


def kept_files(models: Iterable[str]) -> list[Path]:
    """Return the kept references of these models, whatever the prompt, lengths and dtype."""
    names = {Path(model).name for model in models}
    return sorted(f for f in cache_folder().glob(f"*{SUFFIX}") if f.stem.rpartition("-")[0] in names)


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
        "revision": REVISION,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return cache_folder() / f"{Path(spec.model).name}-{digest[:32]}{SUFFIX}"


def weight_files(folder: Path) -> list[Any]:
    """Return the identity of the weights of a published model.

    Files in the hub's cache are links to files named by their content; other files are identified by size and time.
    """
    files = [*sorted(folder.glob("*.safetensors")), folder / "config.json"]
    return [
        [f.name, f.resolve().name] if f.is_symlink() else [f.name, f.stat().st_size, f.stat().st_mtime_ns]
        for f in files
    ]


def kept(file: Path) -> Expected | None:
    """Return what was computed before; None if there is nothing to be read."""
    try:
        with file.open("rb") as opened, np.load(opened) as arrays:
            return Expected(arrays["logits"], arrays["tie_change"])
    except (OSError, ValueError, TypeError, AttributeError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
        return None


def computed_once(file: Path, compute: Callable[[], Expected]) -> Expected:
    """Return what was computed before, or else compute and keep it.

    A folder that cannot be written keeps nothing.
    """
    if (expected := kept(file)) is not None:
        return expected
    expected = compute()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=file.parent) as folder:
            new = Path(folder) / file.name
            np.savez(new, logits=expected.logits, tie_change=expected.tie_change)
            new.replace(file)
    except OSError:
        pass
    return expected
