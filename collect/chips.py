"""The accelerators of this host, and what the table of hardware says of them."""

from __future__ import annotations

import os
import urllib.request
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from collect.errors import CollectError
from collect.tpu_quota import load_quota

METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/accelerator-type"
"""What a virtual machine of Google Cloud is told about itself."""


@cache
def known_chips() -> dict[str, dict[str, Any]]:
    """Entries of the table by kind, such as `TPU v5e`."""
    text = files("ingest").joinpath("hardware.yaml").read_text(encoding="utf-8")
    return {entry["kind"]: entry for entry in yaml.safe_load(text)["devices"]}


def chip_memory(kind: str) -> int:
    """Memory of a chip in bytes.

    Args:
        kind: As in the table.

    Raises:
        CollectError: the table does not say.
    """
    entry = known_chips().get(kind, {})
    if "hbm_gb" not in entry:
        raise CollectError(f"the memory of {kind!r} is not known; known are {', '.join(known_chips())}")
    return int(entry["hbm_gb"] * 1e9)


def host_chip() -> str | None:
    """Kind of the TPU chips of this host as in the table; None on any other host, and for a kind that is not there."""
    return load_quota().kind(accelerator_type())


def accelerator_type() -> str:
    """Accelerator type of the TPU slice that this host is part of, such as `v6e-8`; empty when it is not on one."""
    if told := os.environ.get("TPU_ACCELERATOR_TYPE"):
        return told
    request = urllib.request.Request(METADATA, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:  # noqa: S310
            return str(answer.read().decode().strip())
    except OSError:
        return ""
