"""Brings the collector, and the token for gated models, onto the hosts of a slice."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tracewarehouse
from tracewarehouse.collect.errors import TpuError
from tracewarehouse.collect.tpu import commands
from tracewarehouse.collect.tpu.gcloud import READY, failed_on_host
from tracewarehouse.collect.tpu.slices import Slices
from tracewarehouse.collect.tpu.state import Slice
from tracewarehouse.ingest.version import VERSION

LIMIT_S = 3600.0
"""Time after which a hanging installation counts as failed; torch alone is gigabytes."""


@dataclass(frozen=True)
class Installation:
    """The collector to install on the hosts, or the command that installs it."""

    wheel: Path | None = None
    """Wheel of the collector; by default it is built from these sources."""
    command: str | None = None
    """Shell command to use in place of the installation."""
    token: str | None = None
    """Token of the Hugging Face hub, for gated models."""

    def __repr__(self) -> str:
        """Leave the token out."""
        return f"Installation({self.wheel}, {self.command}, {'a token' if self.token else 'no token'})"


def install(
    slices: Slices,
    entry: Slice,
    installation: Installation,
    references: Sequence[Path] = (),
    *,
    with_torch: bool = True,
) -> None:
    """Install the collector and copy references to all hosts, unless that is done, and give them the token.

    `references` are files of what the unsplit model gives, so that the hosts need not compute them. Without torch, only
    runs of JAX can be recorded.
    """
    if not entry.is_set_up:
        with tempfile.TemporaryDirectory() as folder:
            command = installation.command or commands.setup_command(
                _package(slices, entry, installation, Path(folder)), with_torch=with_torch
            )
        done = slices.cloud(entry).ssh(entry, command, limit_s=LIMIT_S)
        if failed_on_host(done.returncode, done.stderr) and slices.found(entry) == READY:
            said = " ".join(done.stderr.split())[-300:]
            raise TpuError(f"{entry.name}: the collector could not be installed (exit code {done.returncode}): {said}")
        slices.require(entry, done, "the collector could not be installed")
        _send_references(slices, entry, references)
    if installation.token:
        _send_token(slices, entry, installation.token)
    entry.is_set_up = True
    slices.state.put(entry)


def remove_token(slices: Slices, entry: Slice) -> None:
    """Remove the token from the hosts; no answer is no failure, since the token is then gone with them."""
    with suppress(TpuError):
        slices.cloud(entry).ssh(entry, f'rm -f "$HOME/{commands.TOKEN}"')


def build_wheel(folder: Path) -> Path | None:
    """Build the wheel of these sources; return None if they are an installed package, not a checkout."""
    source = Path(tracewarehouse.__file__).resolve().parents[1]
    if not (source / "pyproject.toml").is_file():
        return None
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        said = " ".join(done.stderr.split())[-300:]
        raise TpuError(f"no wheel could be built from {source}: {said}; give one with --wheel")
    return next(folder.glob("*.whl"))


def _package(slices: Slices, entry: Slice, installation: Installation, folder: Path) -> str:
    wheel = installation.wheel or build_wheel(folder)
    if wheel is None:
        return f"tracewarehouse=={VERSION}"
    slices.require(entry, slices.cloud(entry).upload(entry, wheel, wheel.name), "the wheel could not be copied")
    return f"./{wheel.name}"


def _send_references(slices: Slices, entry: Slice, references: Sequence[Path]) -> None:
    if references:
        made = slices.cloud(entry).ssh(entry, f'mkdir -p "$HOME/{commands.REFERENCES}"')
        slices.require(entry, made, "no folder for references could be made")
    for file in references:
        done = slices.cloud(entry).upload(entry, file, f"{commands.REFERENCES}/{file.name}")
        slices.require(entry, done, f"the reference {file.name} could not be copied")


def _send_token(slices: Slices, entry: Slice, token: str) -> None:
    """Copy the token as a file that only its owner can read: everybody sees a command line, and it is logged."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "token"
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(token)
        slices.require(entry, slices.cloud(entry).upload(entry, file, commands.TOKEN), "the token could not be copied")
    done = slices.cloud(entry).ssh(entry, f'chmod 600 "$HOME/{commands.TOKEN}"')
    slices.require(entry, done, "the token could not be protected")
