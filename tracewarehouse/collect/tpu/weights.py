"""Puts the files of a published model that a run reads onto this host, and makes room for them."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from tracewarehouse.collect.errors import CollectError
from tracewarehouse.collect.models.checkpoint import INDEX, SINGLE, hub_cache
from tracewarehouse.collect.models.pretrained import CONFIG, is_folder, known_models, pretrained_model
from tracewarehouse.collect.run_spec import RunSpec

DESCRIPTIONS = ("*.json", "tokenizer*")
"""Patterns of the small files: configuration, index of the weights, tokenizer."""
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


class WeightsError(CollectError):
    """The files of a model cannot be put onto this host."""


def require_weights(spec: RunSpec, later: Sequence[RunSpec] = ()) -> None:
    """Make sure that the files a run reads are in the hub's cache, downloading what is missing.

    If the disk has no room for them, other models are removed; first those that no run of `later`, in order, reads.
    """
    if not spec.is_published or is_folder(spec.model):
        return
    cache = hub_cache()
    if not (missing := missing_files(cache, spec)):
        return
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    if not os.access(there, os.W_OK):  # a bucket, or a disk that several hosts share
        raise WeightsError(
            f"{spec.model}: {', '.join(missing[:3])} is not in {cache}, which can only be read; fill the disk or "
            "bucket first, as docs/tpu.md says"
        )
    make_room(cache, spec, later)
    folder = Path(_download(spec.model, cache, list(DESCRIPTIONS)))
    _download(spec.model, cache, needed_files(folder, spec.layers))
    if missing := missing_files(cache, spec):
        raise WeightsError(f"{spec.model}: {', '.join(missing)} was not downloaded")


def needed_files(folder: Path, layers: int) -> list[str]:
    """Return the names of the weight files that hold a model's first layers or weights outside of the layers."""
    index = folder / INDEX
    if not index.is_file():
        return [SINGLE]
    names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return sorted({file for name, file in names.items() if not (m := _LAYER.match(name)) or int(m[1]) < layers})


def missing_files(cache: Path, spec: RunSpec) -> list[str]:
    """Return the names of files that a run reads and no snapshot has; the configuration if there is no snapshot."""
    snapshots = list(_folder(cache, spec.model).glob(f"snapshots/*/{CONFIG}"))
    if not snapshots:
        return [CONFIG]
    folder = max(snapshots, key=lambda s: s.lstat().st_mtime).parent
    return [name for name in needed_files(folder, spec.layers) if not (folder / name).is_file()]


def make_room(cache: Path, spec: RunSpec, later: Sequence[RunSpec]) -> None:
    """Remove models from the cache until a run's model fits; first those that are read never again, or last."""
    cache.mkdir(parents=True, exist_ok=True)
    there = sum(f.stat().st_size for f in _folder(cache, spec.model).rglob("*") if f.is_file() and not f.is_symlink())
    needed = weight_bytes(spec) - there
    order = list(dict.fromkeys(s.model for s in later))
    others = [m for m in known_models() if m != spec.model and _folder(cache, m).is_dir()]
    others.sort(key=lambda m: order.index(m) if m in order else len(order))
    while shutil.disk_usage(cache).free < needed:
        if not others:
            raise WeightsError(
                f"{spec.model}: its files take {needed / 1e9:.0f} GB more, and the disk of {cache} has "
                f"{shutil.disk_usage(cache).free / 1e9:.0f} GB free; create the slice with --data-disk or --bucket"
            )
        shutil.rmtree(_folder(cache, others.pop()))


def _folder(cache: Path, model: str) -> Path:
    return cache / f"models--{model.replace('/', '--')}"


def _download(model: str, cache: Path, files: Iterable[str]) -> str:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError

    try:
        return snapshot_download(model, cache_dir=cache, allow_patterns=list(files))
    except GatedRepoError:
        raise WeightsError(
            f"{model}: its terms must be accepted at https://huggingface.co/{model}; then give the token "
            "of that account with tw tpu run --token"
        ) from None
    except OSError as error:  # the hub's errors are OSErrors, too
        if error.errno == errno.ENOSPC:
            raise WeightsError(f"{model}: the disk of {cache} is full; use --data-disk or --bucket") from None
        raise WeightsError(f"{model}: cannot be downloaded: {' '.join(str(error).split())[:300]}") from None


BOOT_DISK = 100 * 2**30
"""Bytes of the boot disk of a TPU virtual machine, which cannot be made larger."""
SYSTEM = 40 * 10**9
"""Bytes of the boot disk that system and collector take: an estimate; torch alone takes 7 GB."""
BOOT_FREE = BOOT_DISK - SYSTEM
MARGIN = 1.05
"""Factor for the other content of a checkpoint: scales, multi-token prediction, whole files."""
_EIGHT_BITS = ("deepseek_v3",)
"""Architectures that are published with 8 bits per weight; all others have 16."""


def weight_bytes(spec: RunSpec) -> int:
    """Return the bytes of the files with the first layers of a run's model and its weights outside of the layers.

    A tiny model and a local folder take none.
    """
    if not spec.is_published or is_folder(spec.model):
        return 0
    model = pretrained_model(spec.model)
    element = 1 if model.architecture in _EIGHT_BITS else 2
    return math.ceil(MARGIN * element * model.count_parameters(spec.layers))


def all_weights(specs: Iterable[RunSpec]) -> int:
    """Return the bytes that a disk needs for the models of all runs together."""
    by_model: dict[str, int] = {}
    for spec in specs:
        by_model[spec.model] = max(by_model.get(spec.model, 0), weight_bytes(spec))
    return sum(by_model.values())


def too_large(spec: RunSpec) -> str | None:
    """Return why a host without another disk or a bucket cannot hold a run's weights; None if it can."""
    if (needed := weight_bytes(spec)) <= BOOT_FREE:
        return None
    return (
        f"the files of {spec.model} take {needed / 1e9:.0f} GB, and the hosts' own disks have {BOOT_FREE / 1e9:.0f} GB "
        "to give; create the slice with --data-disk or --bucket"
    )
