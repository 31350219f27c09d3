"""Finds the files of a published model."""

from __future__ import annotations

import os
from pathlib import Path

from tracewarehouse.collect.models.checkpoint import CheckpointError
from tracewarehouse.collect.models.pretrained import CONFIG, PretrainedModel, known_models

HUB_CACHES = (("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub"))
"""Environment variables that move the hub's cache, and its place below each; the first that is set counts."""


def model_folder(name: str) -> Path:
    """Return the folder of a published model's files: a local one, or its newest snapshot in the hub's cache.

    Raises:
        CheckpointError: there is neither; the message says how to get it. Or the files belong to another model than the
            table describes.
    """
    published = known_models().get(name)
    if published is None:
        return Path(name).expanduser()
    cache = hub_cache()
    snapshots = [p.parent for p in (cache / f"models--{name.replace('/', '--')}" / "snapshots").glob(f"*/{CONFIG}")]
    if not snapshots:
        raise CheckpointError(
            f"{name}: its files are not in the hub's cache {cache}; run `hf download {name}`, set HF_HUB_CACHE to "
            "where they are, or give their folder as the model"
        )
    folder = max(snapshots, key=lambda s: (s / CONFIG).lstat().st_mtime)
    if differences := published.differences(PretrainedModel.from_folder(folder)):
        raise CheckpointError(f"{folder / CONFIG}: is not the {name} of the table of models: {', '.join(differences)}")
    return folder


def hub_cache() -> Path:
    """Return the folder in which huggingface_hub keeps its downloads."""
    for variable, below in HUB_CACHES:
        if value := os.environ.get(variable):
            return Path(value).expanduser() / below
    return Path("~/.cache/huggingface/hub").expanduser()
