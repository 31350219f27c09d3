"""A stand-in for gcloud whose cloud is a folder; what gcloud would refuse, it refuses in the same words.

Here are the commands of the Cloud TPU API and of the project; instance_groups.py has those of Compute Engine's groups.

It knows the flags of each command (flags.py), zones, accelerator types, software versions, disks and networks. Virtual
machines are folders, on which commands run in bash, with the tools of host.py first on PATH. `faults.json` says what
fails: see Cloud.fault.

A test starts it a hundred times, so what takes long to import is imported where it is used.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
import sys
import time
from importlib import import_module
from pathlib import Path

from flags import VERBS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

CLOUD = Path(os.environ["FAKE_CLOUD"])
HOSTS = {"v4": 4, "v5litepod": 4, "v6e": 4}
ONE_HOST = {"v4-8": 4, "v5litepod-1": 1, "v5litepod-4": 4, "v5litepod-8": 8, "v6e-1": 1, "v6e-4": 4, "v6e-8": 8}
RUNTIMES = {"v4": "tpu-ubuntu2204-base", "v5litepod": "v2-alpha-tpuv5-lite", "v6e": "v2-alpha-tpuv6e"}
DISKS = {"v4": {"pd-balanced"}, "v5litepod": {"pd-balanced"}, "v6e": {"hyperdisk-balanced", "hyperdisk-ml"}}
CONNECTION = 255


def refuse(text: str, code: int = 1) -> NoReturn:
    """End as gcloud does when it refuses."""
    print(f"ERROR: (gcloud.{COMMAND.replace(' ', '.')}) {text}", file=sys.stderr)
    sys.exit(code)


COMMAND = ""


def parse(arguments: list[str]) -> tuple[str, list[str], dict[str, str]]:
    """The command, its positional arguments and its flags; ends where gcloud's own parser would."""
    global COMMAND
    words = [a for a in arguments if not a.startswith("-")]
    COMMAND = next((" ".join(words[:n]) for n in (5, 4, 3, 2) if " ".join(words[:n]) in VERBS), "")
    if not COMMAND:
        COMMAND = " ".join(words[:3])
        refuse(f"Invalid choice: {words[-1]!r}.", 2)
    verb, rest = VERBS[COMMAND], arguments[len(COMMAND.split()) :]
    flags, positional, known = {}, [], verb.flags()
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            positional.append(word)
            continue
        name, has_value, value = word[2:].partition("=")
        if name not in known:
            refuse(f"unrecognized arguments: {word}", 2)
        if not known[name] and has_value:
            refuse(f"argument --{name}: ignored explicit argument {value!r}", 2)
        if known[name] and not has_value:
            if not rest or rest[0].startswith("--"):
                refuse(f"argument --{name}: expected one argument", 2)
            value = rest.pop(0)
        flags[name] = value
    least, most = verb.positional
    if not least <= len(positional) <= most:
        refuse(f"takes {least} to {most} positional arguments, got {positional}", 2)
    for name in verb.required:
        if name not in flags:
            refuse(f"argument --{name}: Must be specified.", 2)
    for group in verb.one_of:
        if sum(name in flags for name in group) != 1:
            refuse(f"Exactly one of ({' | '.join('--' + n for n in group)}) must be specified.", 2)
    return COMMAND, positional, flags


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One at a time changes the cloud."""
    with (CLOUD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read(name: str, default: Any) -> Any:
    """A JSON file of the cloud."""
    file = CLOUD / name
    return json.loads(file.read_text()) if file.exists() else default


def write(name: str, value: Any) -> None:
    """Write one whole."""
    aside = CLOUD / f".{name.replace('/', '-')}.{os.getpid()}"
    aside.write_text(json.dumps(value, indent=1))
    aside.rename(CLOUD / name)


def fault(verb: str, text: str = "", worker: str | None = None) -> dict[str, Any] | None:
    """What shall fail now; each fault has a list of what to say at its next calls, empty for nothing."""
    with locked():
        faults = read("faults.json", [])
        for given in faults:
            if given["verb"] != verb or given.get("contains", "") not in text or given.get("worker") != worker:
                continue
            if given["texts"]:
                said = given["texts"].pop(0)
                write("faults.json", faults)
                if said:
                    return {**given, "text": said}
    return None


def preempt(name: str) -> None:
    """Google takes a slice back: its processes end, and it answers no more."""
    import signal

    node = read(f"tpus/{name}/node.json", None)
    if node is not None:
        write(f"tpus/{name}/node.json", node | {"state": "PREEMPTED"})
    request = read(f"queue/{name}.json", None)
    if request is not None:
        write(f"queue/{name}.json", request | {"state": {"state": "SUSPENDED"}})
    # At the end: what a host asks for this is one of the processes.
    for group in CLOUD.glob(f"tpus/{name}/*/tracewarehouse-rounds/*/group"):
        with contextlib.suppress(OSError, ValueError):
            os.killpg(int(group.read_text()), signal.SIGKILL)


def main(arguments: list[str]) -> None:
    """Run one command."""
    with (CLOUD / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(arguments) + "\n")
    command, positional, flags = parse(arguments)
    verb = command.split()[-1]
    found = fault(verb, shlex.join(arguments))
    if found is not None and not found.get("late"):
        if "sleep_s" in found:
            time.sleep(found["sleep_s"])
        elif found.get("preempt"):
            for node in CLOUD.glob("tpus/*/node.json"):
                preempt(node.parent.name)
        elif not found.get("lose"):
            refuse(found["text"], found["code"] if verb in ("ssh", "scp") else 1)
        else:
            flags["lose"] = found["text"]
    name = command.replace(" ", "_").replace("-", "_")
    handler = globals().get(name) or getattr(import_module("instance_groups"), name, None)
    if handler is None:
        refuse("this stand-in checks the flags of this command only; it does nothing")
    handler(positional, flags)
    if found is not None and found.get("late"):  # it is done, and the answer is lost
        refuse(found["text"])


def project_of(flags: dict[str, str]) -> str:
    """The project, which gcloud must know."""
    name = flags.get("project") or read("project.json", {}).get("project")
    if not name:
        refuse("The required property [project] is not currently set.")
    return str(name)


def node_of(name: str) -> dict[str, Any]:
    """A slice."""
    node = read(f"tpus/{name}/node.json", None)
    if node is None:
        refuse(f"NOT_FOUND: Resource 'projects/p/locations/z/nodes/{name}' was not found")
    return dict(node)


def new_node(name: str, flags: dict[str, str], runtime: str) -> dict[str, Any]:
    """What a slice with these flags is; refused where Google would."""
    world = read("project.json", {})
    project, zone, kind = project_of(flags), flags["zone"], flags.get("accelerator-type", "")
    if re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name) is None:
        refuse(f"INVALID_ARGUMENT: {name} is no valid name")
    if "tpu.googleapis.com" not in world["services"]:
        refuse(f"Cloud TPU API has not been used in project {project} before or it is disabled. SERVICE_DISABLED")
    if kind not in world["zones"].get(zone, []):
        refuse(f"INVALID_ARGUMENT: accelerator type {kind} is not available in zone {zone}")
    prefix, _, size = kind.rpartition("-")
    if runtime != RUNTIMES[prefix]:
        refuse(f"INVALID_ARGUMENT: runtime version {runtime} is not for {kind}")
    network = flags.get("network", "default")
    if network not in world["networks"]:
        refuse(f'INVALID_ARGUMENT: The value "{network}" provided for field "Network" does not exist.')
    region = zone.rpartition("-")[0]
    if "subnetwork" in flags and flags["subnetwork"] not in world["networks"][network].get(region, []):
        refuse(f'INVALID_ARGUMENT: The value "{flags["subnetwork"]}" provided for field "Subnetwork" does not exist.')
    if "service-account" in flags and flags["service-account"] not in world["service_accounts"]:
        refuse(f"INVALID_ARGUMENT: service account {flags['service-account']} does not exist")
    labels = dict(pair.split("=") for pair in flags.get("labels", "").split(",") if pair)
    if bad := [v for v in [*labels, *labels.values()] if re.fullmatch(r"[-_a-z0-9]{1,63}", v) is None]:
        refuse(f"argument --labels: Bad value [{bad[0]}]", 2)
    chips = int(size) // (2 if prefix == "v4" else 1)
    hosts = 1 if kind in ONE_HOST else chips // HOSTS[prefix]
    disk = data_disk(flags["data-disk"], project, zone, prefix, hosts) if "data-disk" in flags else None
    return {
        "name": f"projects/{project}/locations/{zone}/nodes/{name}",
        "state": "READY",
        "labels": labels,
        "acceleratorType": kind,
        "networkEndpoints": [{"ipAddress": f"10.0.0.{i}"} for i in range(hosts)],
        "spot": "spot" in flags,
        "disk": disk,
        "scopes": flags.get("scopes", ""),
    }


def data_disk(flag: str, project: str, zone: str, prefix: str, hosts: int) -> dict[str, str]:
    """The disk of a flag --data-disk."""
    fields = dict(pair.split("=", 1) for pair in flag.split(","))
    if set(fields) - {"source", "mode"}:
        refuse(f"argument --data-disk: valid keys are [mode, source]; received: {sorted(fields)}", 2)
    path = re.fullmatch(r"projects/([^/]+)/zones/([^/]+)/disks/([^/]+)", fields["source"])
    if path is None or path[1] != project or path[2] != zone:
        refuse(f"INVALID_ARGUMENT: source disk {fields['source']} is none of {project} in {zone}")
    disk = read("project.json", {})["disks"].get(path[3])
    if disk is None or disk["zone"] != zone:
        refuse(f"NOT_FOUND: disk {path[3]} was not found in {zone}")
    if disk["type"] not in DISKS[prefix]:
        refuse(f"INVALID_ARGUMENT: {prefix} does not support disks of type {disk['type']}")
    if hosts > 1 and fields["mode"] != "read-only":
        refuse("INVALID_ARGUMENT: several hosts can attach a disk only in read-only mode")
    if fields["mode"] == "read-only" and disk["type"] == "hyperdisk-balanced":
        refuse("INVALID_ARGUMENT: hyperdisk-balanced cannot be shared in read-only mode")
    return {"name": path[3], "mode": fields["mode"]}


def make_hosts(name: str, node: dict[str, Any]) -> None:
    """The virtual machines of a slice."""
    for worker in range(len(node["networkEndpoints"])):
        (CLOUD / "tpus" / name / str(worker)).mkdir(parents=True)
    write(f"tpus/{name}/node.json", node)


def compute_tpus_tpu_vm_create(positional: list[str], flags: dict[str, str]) -> None:
    """Create a slice at once."""
    (name,) = positional
    node = new_node(name, flags, flags["version"])
    if (CLOUD / "tpus" / name).exists():
        refuse(f"ALREADY_EXISTS: Resource {name} already exists")
    make_hosts(name, node)


def compute_tpus_tpu_vm_describe(positional: list[str], flags: dict[str, str]) -> None:
    """Print a slice."""
    node = node_of(positional[0])
    if flags.get("format") != "json":
        refuse("this stand-in prints JSON only")
    print(json.dumps(node))


def compute_tpus_tpu_vm_list(positional: list[str], flags: dict[str, str]) -> None:
    """Print all slices."""
    print("\n".join(sorted(node.parent.name for node in CLOUD.glob("tpus/*/node.json"))))


def compute_tpus_tpu_vm_delete(positional: list[str], flags: dict[str, str]) -> None:
    """Delete a slice."""
    import shutil

    node_of(positional[0])
    if "quiet" not in flags:
        refuse("This prompt could not be answered because you are not in an interactive session")
    if (CLOUD / "queue" / f"{positional[0]}.json").exists():
        refuse("FAILED_PRECONDITION: the node belongs to a queued resource; delete that")
    shutil.rmtree(CLOUD / "tpus" / positional[0])


def compute_tpus_queued_resources_create(positional: list[str], flags: dict[str, str]) -> None:
    """Ask for a slice; Google grants it after some looks."""
    (name,) = positional
    node = new_node(flags["node-id"], flags, flags["runtime-version"])
    if re.fullmatch(r"[1-9][0-9]*[smhd]", flags.get("valid-until-duration", "1h")) is None:
        refuse("argument --valid-until-duration: Bad value", 2)
    (CLOUD / "queue").mkdir(exist_ok=True)
    if (CLOUD / "queue" / f"{name}.json").exists():
        refuse(f"ALREADY_EXISTS: Resource {name} already exists")
    spec = [{"nodeId": flags["node-id"], "node": node}]
    request = {"name": name, "tpu": {"nodeSpec": spec}, "state": {"state": "WAITING_FOR_RESOURCES"}}
    write(f"queue/{name}.json", request)


def compute_tpus_queued_resources_describe(positional: list[str], flags: dict[str, str]) -> None:
    """Print a request; each look brings it nearer to its end."""
    name = positional[0]
    request = read(f"queue/{name}.json", None)
    if request is None:
        refuse(f"NOT_FOUND: Resource {name} was not found")
    print(json.dumps(request))
    if request["state"]["state"] == "WAITING_FOR_RESOURCES":
        looks = read("queue_looks.json", 0)
        write("queue_looks.json", looks - 1)
        if looks <= 0 and (CLOUD / "queue_fails").exists():
            write(f"queue/{name}.json", request | {"state": {"state": "FAILED"}})
        elif looks <= 0:
            spec = request["tpu"]["nodeSpec"][0]
            make_hosts(spec["nodeId"], spec["node"])
            write(f"queue/{name}.json", request | {"state": {"state": "ACTIVE"}})


def compute_tpus_queued_resources_delete(positional: list[str], flags: dict[str, str]) -> None:
    """Delete a request, with its slice when forced."""
    import shutil

    name = positional[0]
    request = read(f"queue/{name}.json", None)
    if request is None:
        refuse(f"NOT_FOUND: Resource {name} was not found")
    if request["state"]["state"] == "ACTIVE" and "force" not in flags:
        refuse("FAILED_PRECONDITION: the nodes of the queued resource must be deleted first")
    shutil.rmtree(CLOUD / "tpus" / request["tpu"]["nodeSpec"][0]["nodeId"], ignore_errors=True)
    (CLOUD / "queue" / f"{name}.json").unlink()


def workers_of(name: str, flags: dict[str, str]) -> list[Path]:
    """The virtual machines that a command is for, when they can be reached."""
    node = node_of(name)
    if node["state"] != "READY":
        refuse(f'This TPU has state "{node["state"]}", so it cannot be currently connected to.')
    hosts = sorted((w for w in (CLOUD / "tpus" / name).iterdir() if w.is_dir()), key=lambda w: int(w.name))
    wanted = flags.get("worker", "0")
    if wanted != "all" and int(wanted) >= len(hosts):
        refuse(f"Invalid value for [--worker]: {wanted}")
    chosen = hosts if wanted == "all" else [hosts[int(wanted)]]
    if len(chosen) > 1 and (CLOUD / "no_key_in_agent").exists():
        refuse('SSH Key is not present in the SSH agent. Please run "ssh-add k" to add it, and try again.')
    return chosen


def environment(host: Path) -> dict[str, str]:
    """What a command on a virtual machine sees; nothing of the machine of its user but PATH."""
    path = f"{CLOUD / 'host-bin'}:/usr/bin:/bin"
    more = {"FAKE_CLOUD": str(CLOUD), "FAKE_WORKER": host.name, "FAKE_MACHINE": host.parent.name}
    return {"HOME": str(host), "PATH": path, "LANG": "C.UTF-8", **more}


def compute_tpus_tpu_vm_ssh(positional: list[str], flags: dict[str, str]) -> None:
    """Run a command on virtual machines, on all at the same time."""
    import signal
    import subprocess

    hosts = workers_of(positional[0], flags)
    if not flags.get("command"):
        refuse("no terminal")
    running = []
    for host in hosts:
        broken = fault("ssh", flags["command"], host.name)
        if broken and not broken.get("after"):
            print(broken["text"], file=sys.stderr)
            running.append((None, broken["code"]))
            continue
        shell = subprocess.Popen(
            ["bash", "-c", flags["command"]], cwd=host, env=environment(host), start_new_session=True
        )
        running.append((shell, broken["code"] if broken else None))
    if "lose" in flags:  # what sshd does: the shell gets a hangup, what it detached goes on
        time.sleep(float(flags["lose"]))
        for shell, _ in running:
            if shell:
                os.killpg(shell.pid, signal.SIGHUP)
        refuse("[/usr/bin/ssh] exited with return code [255].", CONNECTION)
    codes = []
    for shell, code in running:
        own = shell.wait() if shell else 0
        codes.append(own if code is None else code)
    gone = read(f"tpus/{positional[0]}/node.json", {"state": "GONE"})["state"] != "READY"
    sys.exit(CONNECTION if gone else next((c if c >= 0 else CONNECTION for c in codes if c), 0))


def compute_tpus_tpu_vm_scp(positional: list[str], flags: dict[str, str]) -> None:
    """Copy to virtual machines, or from one."""
    import shutil

    *sources, target = positional
    if ":" in target:
        name, _, remote = target.partition(":")
        for host in workers_of(name, flags):
            for source in sources:
                shutil.copy(source, host / remote)
        return
    name, _, remote = sources[0].partition(":")
    (host,) = workers_of(name, flags)
    if not (host / remote).exists():
        refuse(f"scp: {remote}: No such file or directory")
    if (host / remote).is_dir() and "recurse" not in flags:
        refuse(f"scp: {remote}: not a regular file")
    shutil.copytree(host / remote, Path(target) / Path(remote).name)
    if fault("empty_profile"):
        for profile in (Path(target) / Path(remote).name).rglob("*.xplane.pb"):
            profile.write_bytes(b"")


def compute_tpus_tpu_vm_accelerator_types_describe(positional: list[str], flags: dict[str, str]) -> None:
    """Whether a zone offers an accelerator type."""
    if positional[0] not in read("project.json", {})["zones"].get(flags["zone"], []):
        refuse(f"NOT_FOUND: {positional[0]}")


def compute_tpus_tpu_vm_versions_describe(positional: list[str], flags: dict[str, str]) -> None:
    """Whether a zone has a software version."""
    if positional[0] not in RUNTIMES.values():
        refuse(f"NOT_FOUND: {positional[0]}")


def compute_disks_describe(positional: list[str], flags: dict[str, str]) -> None:
    """Print a disk."""
    disk = read("project.json", {})["disks"].get(positional[0])
    if disk is None or disk["zone"] != flags.get("zone"):
        refuse(f"The resource 'projects/p/zones/z/disks/{positional[0]}' was not found")
    kind = f"https://www.googleapis.com/compute/v1/projects/p/zones/{disk['zone']}/diskTypes/{disk['type']}"
    print(json.dumps(disk | {"type": kind}))


def change(positional: list[str], flags: dict[str, str], kind: str, value: Any) -> None:
    """Add something to the project."""
    with locked():
        world = read("project.json", {})
        for name in positional:
            if isinstance(world[kind], list):
                world[kind].append(name.removeprefix("gs://"))
            else:
                world[kind][name] = {**world[kind].get(name, {}), **value}
        write("project.json", world)


def compute_disks_create(positional: list[str], flags: dict[str, str]) -> None:
    """Create disks."""
    size = int(flags.get("size", "500GB").removesuffix("GB"))
    mode = flags.get("access-mode", "READ_WRITE_SINGLE")
    change(
        positional, flags, "disks", {"zone": flags["zone"], "type": flags["type"], "sizeGb": size, "accessMode": mode}
    )


def compute_disks_resize(positional: list[str], flags: dict[str, str]) -> None:
    """Make disks larger."""
    change(positional, flags, "disks", {"sizeGb": int(flags["size"].removesuffix("GB"))})


def compute_disks_update(positional: list[str], flags: dict[str, str]) -> None:
    """Change how a disk is shared."""
    change(positional, flags, "disks", {"accessMode": flags["access-mode"]})


def compute_networks_describe(positional: list[str], flags: dict[str, str]) -> None:
    """Whether there is a network."""
    if positional[0] not in read("project.json", {})["networks"]:
        refuse(f"The resource 'projects/p/global/networks/{positional[0]}' was not found")


def compute_networks_create(positional: list[str], flags: dict[str, str]) -> None:
    """Create a network."""
    change(positional, flags, "networks", {})


def compute_networks_subnets_describe(positional: list[str], flags: dict[str, str]) -> None:
    """Whether there is a subnetwork."""
    networks = read("project.json", {})["networks"].values()
    if not any(positional[0] in network.get(flags["region"], []) for network in networks):
        refuse(f"The resource '{positional[0]}' was not found")


def compute_networks_subnets_create(positional: list[str], flags: dict[str, str]) -> None:
    """Create a subnetwork."""
    change([flags["network"]], flags, "networks", {flags["region"]: positional})


def compute_firewall_rules_list(positional: list[str], flags: dict[str, str]) -> None:
    """Print the rules of a network."""
    name = flags["filter"].removeprefix("network:")
    print(json.dumps([r for r in read("project.json", {})["rules"].values() if r["network"] == name]))


def compute_firewall_rules_create(positional: list[str], flags: dict[str, str]) -> None:
    """Create a rule."""
    protocol, _, port = flags["allow"].partition(":")
    allowed = [{"IPProtocol": protocol, "ports": [port]}]
    change(positional, flags, "rules", {"network": flags["network"], "direction": "INGRESS", "allowed": allowed})


def services_list(positional: list[str], flags: dict[str, str]) -> None:
    """Print an enabled service."""
    name = flags["filter"].removeprefix("config.name=")
    print(name if name in read("project.json", {})["services"] else "")


def services_enable(positional: list[str], flags: dict[str, str]) -> None:
    """Enable services."""
    change(positional, flags, "services", None)


AGENT = "service-1@cloud-tpu.iam.gserviceaccount.com"
"""The identity with which the Cloud TPU API acts in the project, by its number."""


def beta_services_identity_create(positional: list[str], flags: dict[str, str]) -> None:
    """Create the identity of a service, which must be enabled."""
    if flags["service"] not in read("project.json", {})["services"]:
        refuse(f"PERMISSION_DENIED: Service {flags['service']} is not enabled")
    if flags["service"] == "tpu.googleapis.com":
        change([AGENT], flags, "identities", None)
    print(f"Service identity created: {AGENT}")


def projects_get_iam_policy(positional: list[str], flags: dict[str, str]) -> None:
    """Print who has which role."""
    if flags.get("format") != "json":
        refuse("this stand-in prints JSON only")
    members = [f"serviceAccount:{name}" for name in read("project.json", {})["identities"]]
    bindings = [{"role": "roles/owner", "members": ["user:student@example.com"]}]
    bindings += [{"role": "roles/tpu.serviceAgent", "members": members}] if members else []
    print(json.dumps({"bindings": bindings}))


def auth_list(positional: list[str], flags: dict[str, str]) -> None:
    """Print who is logged in."""
    print(read("project.json", {}).get("account", ""))


def auth_login(positional: list[str], flags: dict[str, str]) -> None:
    """Log in."""
    write("project.json", read("project.json", {}) | {"account": "student@example.com"})


def config_get_value(positional: list[str], flags: dict[str, str]) -> None:
    """Print a property."""
    print(read("project.json", {}).get("project", ""))


def config_set(positional: list[str], flags: dict[str, str]) -> None:
    """Set a property."""
    write("project.json", read("project.json", {}) | {positional[0]: positional[1]})


def projects_create(positional: list[str], flags: dict[str, str]) -> None:
    """Create a project; it becomes the default one when asked to."""


def iam_service_accounts_describe(positional: list[str], flags: dict[str, str]) -> None:
    """Whether there is a service account."""
    if positional[0] not in read("project.json", {})["service_accounts"]:
        refuse(f"NOT_FOUND: Unknown service account {positional[0]}")


def iam_service_accounts_create(positional: list[str], flags: dict[str, str]) -> None:
    """Create a service account."""
    emails = [f"{name}@{project_of(flags)}.iam.gserviceaccount.com" for name in positional]
    change(emails, flags, "service_accounts", None)


def storage_buckets_describe(positional: list[str], flags: dict[str, str]) -> None:
    """Whether there is a bucket."""
    if positional[0].removeprefix("gs://") not in read("project.json", {})["buckets"]:
        refuse(f"{positional[0]} not found: 404.")


def storage_buckets_create(positional: list[str], flags: dict[str, str]) -> None:
    """Create buckets."""
    change(positional, flags, "buckets", None)


def storage_buckets_add_iam_policy_binding(positional: list[str], flags: dict[str, str]) -> None:
    """Let somebody use a bucket."""
    storage_buckets_describe(positional, flags)


def storage_rsync(positional: list[str], flags: dict[str, str]) -> None:
    """Copy a folder into a bucket."""
    storage_buckets_describe([re.match(r"gs://[^/]+", positional[1])[0]], flags)


def compute_disks_delete(positional: list[str], flags: dict[str, str]) -> None:
    """Delete disks."""
    with locked():
        world = read("project.json", {})
        for name in positional:
            world["disks"].pop(name, None) or refuse(f"The resource {name} was not found")
        write("project.json", world)


def quotas_info_list(positional: list[str], flags: dict[str, str]) -> None:
    """Print quotas, as {id: {zone or region: chips}} of the project has them; nothing granted has no details."""
    quotas = read("project.json", {}).get("quotas", {})
    print(
        json.dumps(
            [
                {
                    "quotaId": name,
                    "dimensionsInfos": [
                        {"applicableLocations": [zone], "details": {"value": str(chips)} if chips else {}}
                        for zone, chips in zones.items()
                    ],
                }
                for name, zones in quotas.items()
            ]
        )
    )


def quotas_preferences_create(positional: list[str], flags: dict[str, str]) -> None:
    """Ask for more of a quota, which is granted at once."""
    scope, _, zone = flags["dimensions"].partition("=")
    if f"PerProjectPer{scope.title()}For" not in flags["quota-id"]:
        refuse(f"Invalid value for dimensions: {flags['quota-id']} has no dimension {scope}")
    with locked():
        world = read("project.json", {})
        world["quotas"][flags["quota-id"]][zone] = int(flags["preferred-value"])
        write("project.json", world)
