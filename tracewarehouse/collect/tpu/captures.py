"""Copies finished captures from the hosts of a TPU slice, and merges the hosts' parts into one capture."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tracewarehouse.collect.capture import (
    MANIFEST,
    Output,
    is_recorded,
    partial_directory,
    staged_capture,
    write_error,
    write_manifest,
)
from tracewarehouse.collect.errors import CollectError
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu import commands
from tracewarehouse.collect.tpu.gcloud import Provider
from tracewarehouse.collect.tpu.slices import InterruptionError
from tracewarehouse.collect.tpu.state import Slice
from tracewarehouse.ingest.capture.manifest import load_manifest
from tracewarehouse.ingest.capture_names import host_name, xplane_files


def pending(specs: list[RunSpec], output: Output) -> list[RunSpec]:
    """Return the runs whose finished capture is not in `output`."""
    return [s for s in specs if not is_recorded(output.folder(s), s)]


def fetch(
    cloud: Provider, entry: Slice, specs: list[RunSpec], output: Output, show: Callable[[str], None]
) -> list[Path]:
    """Copy the captures that every host finished in the same round and that `output` lacks."""
    output.remove_leftovers(specs)
    missing = pending(specs, output)
    if not missing:
        return []
    listed = cloud.ssh(entry, commands.list_command())
    if listed.returncode:
        raise InterruptionError(f"{entry.name}: a host does not answer: {' '.join(listed.stderr.split())[-300:]}")
    whole = {n: token for (token, n), hosts in commands.captures(listed.stdout).items() if len(hosts) == entry.hosts}
    return [_fetch_one(cloud, entry, whole[s.name], s, output.folder(s), show) for s in missing if s.name in whole]


def _fetch_one(
    cloud: Provider, entry: Slice, token: str, spec: RunSpec, output: Path, show: Callable[[str], None]
) -> Path:
    with partial_directory(output, f"fetch-{spec.name}") as folder:
        parts = []
        for worker in range(entry.hosts):
            target = folder / str(worker)
            target.mkdir()
            done = cloud.download(entry, f"{commands.CAPTURES}/{token}/{spec.name}", target, worker)
            if done.returncode:
                said = " ".join(done.stderr.split())[-300:]
                if "No space left on device" in done.stderr:
                    raise CollectError(f"{output}: {spec.name} cannot be copied there: No space left on device")
                raise InterruptionError(f"{spec.name} could not be copied from host {worker}: {said}")
            parts.append(target / spec.name)
        try:
            merge_hosts(parts, output, spec)
        except OSError as error:
            raise write_error(output, error) from None
        except CollectError:
            if not is_recorded(output, spec):  # another call was faster
                raise
    show(f"# {spec.name} is here")
    return output / spec.name


def merge_hosts(parts: list[Path], output: Path, spec: RunSpec) -> None:
    """Merge the capture directories of the hosts of a slice into one, with one profile per host.

    Card and manifest are those of the first host; the manifest names the profiles of all.

    Raises:
        CollectError: a part is not a capture of this run, or two hosts have the same name.
        InterruptionError: a part is there without its profile.
    """
    for part in parts:
        if not is_recorded(part.parent, spec):
            raise CollectError(f"{part}: no finished capture of {spec.name} was copied")
        profiles = xplane_files(part)
        if not any(profile.stat().st_size for profile in profiles):
            raise InterruptionError(f"{spec.name}: a host's copy has no profile in it; it is copied again")
    with staged_capture(output, spec.name) as staging:
        shutil.copytree(parts[0], staging, dirs_exist_ok=True)
        for part in parts[1:]:
            for profile in xplane_files(part):
                target = staging / profile.relative_to(part)
                if target.exists():
                    raise CollectError(f"{spec.name}: two hosts recorded a profile named {profile.name}")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(profile, target)
        hosts = sorted(map(host_name, xplane_files(staging)))
        write_manifest(staging, load_manifest(staging / MANIFEST).model_copy(update={"hosts": hosts}))
