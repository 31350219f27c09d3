"""The tools of a virtual machine, by the name they are called by: what mounts, what installs, and the collector."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from gcloud import CLOUD, fault, preempt, read, write

HOME, WORKER, MACHINE = Path(os.environ["HOME"]), os.environ["FAKE_WORKER"], os.environ["FAKE_MACHINE"]
STACKS = {"torch_xla[tpu,pallas]==2.9.0": "[collect]", "jax[tpu]": "[jax]"}
"""Stacks with the TPU driver, and the extra of the package that goes with each."""


def link(name: str, where: Path) -> None:
    """Another tool, by another name."""
    where.parent.mkdir(parents=True, exist_ok=True)
    where.unlink(missing_ok=True)
    where.symlink_to(CLOUD / "host-bin" / name)


def python3(arguments: list[str]) -> int:
    """The image's own Python, which brings uv."""
    assert arguments == ["-m", "pip", "install", "--user", "--quiet", "uv"], arguments
    assert os.environ["PIP_BREAK_SYSTEM_PACKAGES"] == "1"  # the pip of Ubuntu 24.04 installs nothing without it
    link("uv", HOME / ".local/bin/uv")
    return 0


def uv(arguments: list[str]) -> int:
    """Makes the environment, then installs a wheel that was copied here, or a released version."""
    if arguments[0] == "venv":
        assert arguments[1:5] == ["--quiet", "--clear", "--python", "3.12"], arguments
        Path(arguments[5], "bin").mkdir(parents=True, exist_ok=True)
        return 0
    assert arguments[:4] == ["pip", "install", "--quiet", "--python"], arguments
    python, package, stack = arguments[4:]
    name = package.removesuffix(STACKS[stack])
    assert name != package
    if name.startswith("./") and not (HOME / name).is_file():
        print(f"error: Distribution not found at: {name}", file=sys.stderr)
        return 2
    with (CLOUD / "installed").open("a") as installed:
        installed.write(f"{name} {WORKER}\n")
    link("python", Path(python))
    return 0


def python(arguments: list[str]) -> int:
    """The Python of the environment: it has libtpu, and the collector."""
    if arguments[0] == "-c":
        assert arguments[1] == "import libtpu", arguments
        return int((CLOUD / "no_libtpu").exists())
    assert arguments[:2] == ["-m", "tracewarehouse.collect.slice_worker"], arguments
    assert os.environ["PJRT_DEVICE"] == "TPU"
    if (CLOUD / "real_worker").exists():
        import subprocess

        source = (CLOUD / "real_worker").read_text()
        more = {"PYTHONPATH": source, "PATH": os.environ["PATH"]}
        return subprocess.run([sys.executable, *arguments], env=os.environ | more, check=False).returncode
    return record(*arguments[2:])


def record(file: str, name: str, output: str) -> int:
    """What the collector leaves on a host, without a model."""
    import shutil

    shared = json.loads(Path(file).read_text())
    run = next(r for r in shared["runs"] if r["name"] == name)
    with (CLOUD / "recorded").open("a") as recorded:
        recorded.write(f"{name} {WORKER} {output.rpartition('/')[2]}\n")
    token = Path(os.environ["HF_TOKEN_PATH"])
    if token.exists():
        with (CLOUD / "tokens").open("a") as tokens:
            tokens.write(f"{WORKER} {token.stat().st_mode & 0o777:o} {len(token.read_text())}\n")
    if found := fault("record", name, WORKER) or fault("record", name):
        if "sleep_s" in found:
            time.sleep(found["sleep_s"])
        elif found.get("preempt"):
            preempt(MACHINE)
            time.sleep(60)
        else:
            print(f"error: {found['text']}", file=sys.stderr)
            return 1
    spec = run["spec"]
    capture = Path(output) / name
    capture.mkdir(parents=True)
    shutil.copy(CLOUD / "profile", capture / f"host-{WORKER}.xplane.pb")
    facts = {
        "name": name,
        "hosts": [f"host-{WORKER}"],
        "spec_digest": run["digest"],
        "model": {"name": "m"},
        "dtype": spec["dtype"],
        "batch_size": spec["batch"],
        "input_length": spec["input_length"],
        "output_length": spec["output_length"],
        "mesh": spec["mesh"],
        "round": output,
    }
    (capture / "part").write_text(json.dumps(facts))
    (capture / "part").rename(capture / "manifest.json")
    return 0


def sudo(arguments: list[str]) -> int:
    """Only what mounts a disk."""
    import subprocess

    assert arguments[0] in ("mount", "mkfs.ext4", "blkid", "chmod"), arguments
    return subprocess.run(arguments, check=False).returncode


def disk() -> dict[str, str]:
    """The data disk of this slice."""
    return read(f"tpus/{MACHINE}/node.json", {}).get("disk") or {}


def findmnt(arguments: list[str]) -> int:
    """The disk of the system."""
    assert arguments == ["-no", "SOURCE", "/"], arguments
    print("/dev/sda1")
    return 0


def lsblk(arguments: list[str]) -> int:
    """All disks."""
    assert arguments == ["-dnpo", "NAME", "-e", "7,11"], arguments
    print("\n".join(["/dev/sda", *(["/dev/sdb"] if disk() else [])]))
    return 0


def blkid(arguments: list[str]) -> int:
    """Whether a disk was formatted."""
    assert arguments == ["/dev/sdb"], arguments
    return 0 if read("formatted.json", {}).get(disk()["name"]) else 2


def mkfs(arguments: list[str]) -> int:
    """Format a disk, which must not be one that somebody filled."""
    assert arguments == ["-q", "/dev/sdb"], arguments
    assert disk()["mode"] == "read-write"
    formatted = read("formatted.json", {})
    assert not formatted.get(disk()["name"]), "it was formatted already"
    write("formatted.json", formatted | {disk()["name"]: True})
    return 0


def mount(arguments: list[str]) -> int:
    """Mount the data disk; one that can only be read must be mounted so."""
    *options, device, where = arguments
    is_read_only = disk()["mode"] == "read-only"
    if device != "/dev/sdb" or options != (["-o", "ro,noload"] if is_read_only else []):
        print("mount: cannot mount /dev/sdb read-write: it is write-protected", file=sys.stderr)
        return 32
    return mounted(f"disk {disk()['name']}", where)


def mounted(what: str, where: str) -> int:
    """Keep what is mounted where."""
    (Path(where) / ".mounted").write_text(what)
    return 0


def mountpoint(arguments: list[str]) -> int:
    """Whether something is mounted."""
    assert arguments[0] == "-q"
    return 0 if (Path(arguments[1]) / ".mounted").exists() else 32


def gcsfuse(arguments: list[str]) -> int:
    """Mount a bucket."""
    assert arguments[:3] == ["--implicit-dirs", "-o", "ro"], arguments
    if "cloud-platform" not in read(f"tpus/{MACHINE}/node.json", {})["scopes"]:
        print("gcsfuse: Error 403: insufficient authentication scopes", file=sys.stderr)
        return 1
    if arguments[3] not in read("project.json", {})["buckets"]:
        print("gcsfuse: bucket doesn't exist", file=sys.stderr)
        return 1
    return mounted(f"bucket {arguments[3]}", arguments[4])


TOOLS = {"mkfs.ext4": mkfs} | {
    f.__name__: f for f in (python3, uv, python, sudo, findmnt, lsblk, blkid, mount, mountpoint, gcsfuse)
}


def main(arguments: list[str]) -> int:
    """Run the tool that was called."""
    return TOOLS[os.environ["FAKE_TOOL"]](arguments)
