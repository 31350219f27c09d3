"""Writes the list of runs and the shell commands for the hosts of a slice, and reads their output."""

from __future__ import annotations

import re
import shlex
from typing import Any

from pydantic import BaseModel, ConfigDict

from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.state import Place, Round

VENV = "tracewarehouse-venv"
CAPTURES = "tracewarehouse-captures"
"""Folder into which hosts record: `<token of the round>/<name of the run>`."""
ROUNDS = "tracewarehouse-rounds"
"""Folder of a host's rounds: `<token>/log`, `code` once it ended, `group` of its processes."""
RUNS = "tracewarehouse-runs.json"
TOKEN = "tracewarehouse-token"  # noqa: S105  a file
WEIGHTS = "tracewarehouse-weights"
REFERENCES = ".cache/tracewarehouse/references"
"""Folder in which the collector looks for references, in the home of the hosts."""
LOCK = "tracewarehouse.lock"
TORCH_XLA = "torch_xla[tpu,pallas]==2.9.0"
"""Package of torch_xla, with the TPU driver, and JAX for the attention kernel of the prefill."""
JAX = "jax[tpu]"
"""Package of JAX with the TPU driver, where no run needs torch_xla."""
ENDED, HAS = "tracewarehouse-ended", "tracewarehouse-has"
_ENDED = re.compile(rf"^{ENDED} ([0-9a-f]+) (\S+) (\S+)$", re.MULTILINE)
_HAS = re.compile(rf"^{HAS} (\S+) ([0-9a-f]+)/(\S+)$", re.MULTILINE)


def setup_command(package: str, *, with_torch: bool = True) -> str:
    """Return the command that installs the collector with its own Python; the image's may be too old.

    The variable lets the image's pip install for this user; pip of older images does not know it.
    """
    uv, python = '"$HOME/.local/bin/uv"', f'"$HOME/{VENV}/bin/python"'
    extra, stack = ("collect", TORCH_XLA) if with_torch else ("jax", JAX)
    missing = f"libtpu is missing; uv pip install {stack!r} brings it"
    return (
        "PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --user --quiet uv && "
        f'{uv} venv --quiet --clear --python 3.12 "$HOME/{VENV}" && '
        f"{uv} pip install --quiet --python {python} {shlex.quote(f'{package}[{extra}]')} {shlex.quote(stack)} && "
        f'{{ {python} -c "import libtpu" || {{ echo {shlex.quote(missing)} >&2; exit 4; }}; }}'
    )


def mount_command(place: Place, hosts: int) -> str:
    """Return the command that mounts the disk or bucket with the weights, if there is one."""
    target = f'"$HOME/{WEIGHTS}"'
    if place.bucket:
        mount = (
            "{ command -v gcsfuse > /dev/null || "
            "{ echo 'gcsfuse is missing; sudo apt-get install gcsfuse' >&2; exit 5; }; } "
            f"&& gcsfuse --implicit-dirs -o ro {place.bucket} {target}"
        )
    elif place.data_disk:
        # The disk that is not the system's.
        find = (
            'root=$(findmnt -no SOURCE /); disk=; for d in $(lsblk -dnpo NAME -e 7,11); do case "$root" in "$d"*) ;; '
            '*) disk=$d ;; esac; done; test -n "$disk" || { echo "no data disk is attached" >&2; exit 5; }; '
        )
        if hosts > 1:
            mount = f'{find}sudo mount -o ro,noload "$disk" {target}'
        else:
            mount = (
                f'{find}{{ sudo blkid "$disk" > /dev/null || sudo mkfs.ext4 -q "$disk"; }} && '
                f'sudo mount "$disk" {target} && sudo chmod a+rwx {target}'
            )
    else:
        return "true"
    return f"mkdir -p {target} && {{ mountpoint -q {target} || {{ {mount}; }}; }}"


def record_command(round_: Round, place: Place, hosts: int) -> str:
    """Return the command that records the run of a round, and prints the host and how the run ended there.

    Given again for the same round, it starts nothing twice and waits for what runs.
    """
    folder = f"{ROUNDS}/{round_.token}"
    cache = f'HF_HUB_CACHE="$HOME/{WEIGHTS}/hub" ' if place.bucket or place.data_disk else ""
    worker = f"-m tracewarehouse.collect.slice_worker {RUNS} {round_.run} {CAPTURES}/{round_.token}"
    once = (
        f"test -e {folder}/code && exit; ps -o pgid= -p $$ > {folder}/group; "
        f'{cache}HF_TOKEN_PATH="$HOME/{TOKEN}" HF_XET_CHUNK_CACHE_SIZE_BYTES=0 PJRT_DEVICE=TPU '
        f'"$HOME/{VENV}/bin/python" {worker}; echo $? > {folder}/part && mv {folder}/part {folder}/code'
    )
    detached = f"setsid flock {LOCK} sh -c {shlex.quote(once)} >> {folder}/log 2>&1 < /dev/null & wait $!"
    code = f"$(cat {folder}/code 2> /dev/null || echo stopped)"
    said = f'tail -n 5 {folder}/log; echo "{ENDED} {round_.token} $(hostname) {code}"'
    return f'cd "$HOME" && {mount_command(place, hosts)} && mkdir -p {folder} && {{ {detached}; {said}; }}'


def stop_command(round_: Round) -> str:
    """Return the command that ends the processes of a round."""
    group = f"{ROUNDS}/{round_.token}/group"
    return f'cd "$HOME" && test -e {group} && kill -- "-$(tr -d " " < {group})"; true'


def list_command() -> str:
    """Return the command that prints the finished captures of a host."""
    each = f'test -e "$m" && echo "{HAS} $(hostname) ${{m%/manifest.json}}"'
    return f'cd "$HOME/{CAPTURES}" 2> /dev/null && for m in */*/manifest.json; do {each}; done; true'


def ended(text: str, round_: Round) -> dict[str, str]:
    """Return the exit codes of the hosts that ended a round, from the output of `record_command`.

    A connection that hung may still tell of an earlier round.
    """
    return {host: code for token, host, code in _ENDED.findall(text) if token == round_.token}


def captures(text: str) -> dict[tuple[str, str], set[str]]:
    """Return the hosts that have each capture, by its token and name, from the output of `list_command`."""
    hosts: dict[tuple[str, str], set[str]] = {}
    for host, token, name in _HAS.findall(text):
        hosts.setdefault((token, name), set()).add(host)
    return hosts


class SharedRun(BaseModel):
    """A run, as the hosts get it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    digest: str
    spec: dict[str, Any]


class SharedRuns(BaseModel):
    """The runs that all hosts of a slice record, in this order, each when they are told to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout_s: float
    runs: list[SharedRun]

    @classmethod
    def from_specs(cls, specs: list[RunSpec], timeout_s: float) -> SharedRuns:
        """Return the runs of given specifications."""
        runs = [SharedRun(name=s.name, digest=s.digest, spec=s.model_dump(mode="json")) for s in specs]
        return cls(timeout_s=timeout_s, runs=runs)
