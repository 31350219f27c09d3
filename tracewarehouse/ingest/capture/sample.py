"""The capture that comes with the package: a tiny Llama under tensor parallelism on 4 virtual devices."""

from __future__ import annotations

from pathlib import Path

NAME = "llama-tp4-b4-i16-o17"


def sample() -> Path:
    """The folder of the sample capture, to query or to ingest.

    It is a real capture of torch_xla: a prefill of 16 tokens and 16 decode steps at batch size 4.
    """
    return Path(__file__).resolve().parents[2] / "sample_capture"
