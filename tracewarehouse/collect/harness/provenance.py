"""Reads the versions and commit of what ran."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("tracewarehouse", "torch", "torch_xla", "jax", "jaxlib", "transformers", "libtpu")


def versions() -> dict[str, str]:
    """Return the version of Python and of each installed package."""
    of_packages = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            of_packages[package] = version(package)
        except PackageNotFoundError:
            continue
    return of_packages


def git_commit(folder: Path | None = None) -> str | None:
    """Return the commit of this code's checkout, with `-dirty` if files were changed; None outside of a checkout."""
    folder = folder or Path(__file__).parents[1]
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return commit + ("-dirty" if _git(folder, "status", "--porcelain", "--", ".") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30)  # noqa: S603, S607
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
