"""Writes a capture directory aside and then renames it, so that it is there whole or not at all."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracewarehouse.collect.errors import CollectError
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.ingest.capture.manifest import Manifest, load_manifest
from tracewarehouse.ingest.errors import CaptureError

CARD = "card.yaml"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Output:
    """A folder for the captures of runs."""

    root: Path
    by_model: bool = False
    """Whether each is in root/<model>/<parallelism>, not in the root itself."""

    def folder(self, spec: RunSpec) -> Path:
        """Return the folder in which the capture of a run is."""
        return self.root / spec.folder if self.by_model else self.root

    def capture(self, spec: RunSpec) -> Path:
        """Return the capture directory of a run."""
        return self.folder(spec) / spec.name

    def remove_leftovers(self, specs: Iterable[RunSpec]) -> None:
        """Remove the half-written captures of dead collectors."""
        for folder in {self.root, *map(self.folder, specs)}:
            remove_leftovers(folder)


@contextmanager
def staged_capture(output: Path, name: str) -> Iterator[Path]:
    """Give a directory to write a capture into; it becomes `output/name` if the block succeeds, or is removed."""
    with partial_directory(output, name) as staging:
        yield staging
        _flush(staging)
        try:
            staging.rename(output / name)
        except OSError as error:
            raise CollectError(f"{output / name}: cannot put the capture there: {error.strerror}") from None


@contextmanager
def partial_directory(output: Path, name: str) -> Iterator[Path]:
    """Give this process a directory in `output`; it is removed at the end, or by `remove_leftovers` after a kill."""
    made = [folder for folder in (output, *output.parents) if not folder.exists()]
    require_writable(output)
    directory = output / f".{name}.{os.getpid()}.partial"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel releases it however the process ends
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)
        with suppress(OSError):  # a directory that is not empty stays
            for folder in made:
                folder.rmdir()


def require_writable(output: Path) -> None:
    """Make sure that a folder exists and can be written."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise write_error(output, error) from None


def write_error(output: Path, error: OSError) -> CollectError:
    """Return the error that says why captures cannot be written to a folder."""
    return CollectError(f"{output}: captures cannot be written there: {error.strerror}; choose another output")


def write_manifest(staging: Path, manifest: Manifest) -> None:
    """Write manifest.json."""
    text = json.dumps(manifest.model_dump(mode="json"), indent=1, ensure_ascii=False)
    (staging / MANIFEST).write_text(text + "\n", encoding="utf-8")


def is_recorded(output: Path, spec: RunSpec) -> bool:
    """Return whether a finished capture of exactly this specification is there.

    Raises:
        CollectError: a directory of this name holds something else.
    """
    capture = output / spec.name
    if not capture.exists():
        return False
    try:
        manifest = load_manifest(capture / MANIFEST)
    except CaptureError as error:
        raise CollectError(f"{capture} is in the way: {error}; remove it or choose another output") from None
    if (manifest.model_extra or {}).get("spec_digest") != spec.digest:
        raise CollectError(f"{capture} holds a capture of another configuration; remove it or choose another output")
    return True


def unproved(capture: Path) -> str | None:
    """Return what a recorded capture's own checks could not show of its tokens; None if all equal the reference's."""
    manifest = load_manifest(capture / MANIFEST)
    checks = manifest.checks
    if manifest.model is None:  # microbenchmarks generate no token
        return None
    if "reference" not in checks:
        return "its backend names no reference, so its tokens are not compared"
    if checks["reference"] == "finite_logits":
        return "no reference was computed, so its tokens are not compared; its logits are finite"
    said = [text for text in (_of_tokens(checks), _of_ties(checks)) if text is not None]
    return "; ".join(said) or None


def _of_ties(checks: dict[str, Any]) -> str | None:
    if not (tied := checks.get("tied_steps", checks.get("first_layers_tied_steps"))):
        return None
    steps = "1 step is" if tied == 1 else f"{tied} steps are"
    return f"{steps} not compared: a token went to another expert than in the reference, equal within rounding"


def _of_tokens(checks: dict[str, Any]) -> str | None:
    name = "tokens_equal" if checks.get("reference") == "full" else "first_layers_tokens_equal"
    which = "its tokens" if name == "tokens_equal" else f"the tokens of its first {checks.get('first_layers')} layers"
    if name not in checks or checks[name]:
        return (
            None if name == "tokens_equal" else f"only {which} are compared; the host cannot hold the whole reference"
        )
    if checks[name] is None:
        if _of_ties(checks) is not None:
            return f"{which} are not compared"
        return (
            f"{which} are not compared: in every sequence the first step already dropped a token at a full expert; "
            "a larger capacity factor drops fewer (inf: none)"
        )
    return f"{which} differ from the reference's where two logits are equal within rounding"


def remove_leftovers(output: Path) -> None:
    """Remove the half-written captures of dead collectors."""
    for directory in output.glob(".*.partial"):
        try:
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # removed meanwhile, or not ours
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        except BlockingIOError:
            pass  # a collector is writing
        finally:
            os.close(lock)


def _flush(directory: Path) -> None:
    """Sync every file to the disk before the rename makes them count."""
    for path in [*directory.rglob("*"), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
