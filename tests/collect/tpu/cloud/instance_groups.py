"""Compute Engine's side of the stand-in for gcloud: workload policies, instance templates, managed groups of instances.

A group is `groups/<name>.json`, its instances are hosts in `tpus/<name>/`, as those of a TPU slice. Google takes a spot
group back by deleting its instances; the group stays, and replaces none.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from pathlib import Path

from gcloud import CLOUD, CONNECTION, DISKS, environment, fault, locked, project_of, read, refuse, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FAMILY, IMAGES = "ubuntu-accel-2404-amd64-tpu-tpu7x", "ubuntu-os-accelerator-images"
HOST_CHIPS = 4
ZONES = {"us-central1-c"}
"""Zones that have the machine type."""


def store(kind: str, name: str, value: dict[str, Any] | None) -> None:
    """Keep something of the project, or forget it."""
    with locked():
        kept = read(f"{kind}.json", {})
        if value is None and kept.pop(name, None) is None:
            refuse(f"The resource 'projects/p/{kind}/{name}' was not found")
        if value is not None:
            if name in kept:
                refuse(f"The resource 'projects/p/{kind}/{name}' already exists")
            kept[name] = value
        write(f"{kind}.json", kept)


def of_project(flags: dict[str, str]) -> str:
    """The project, in which Compute Engine must be enabled."""
    project = project_of(flags)
    if "compute.googleapis.com" not in read("project.json", {})["services"]:
        refuse(f"Compute Engine API has not been used in project {project} before or it is disabled. SERVICE_DISABLED")
    return project


def compute_resource_policies_create_workload_policy(positional: list[str], flags: dict[str, str]) -> None:
    """Keep a workload policy."""
    of_project(flags)
    if (
        flags["type"] != "HIGH_THROUGHPUT"
        or re.fullmatch(r"\d+x\d+x\d+", flags.get("accelerator-topology", "")) is None
    ):
        refuse("Invalid value for field 'resource.workloadPolicy'")
    if flags.get("accelerator-topology-mode") != "AUTO_CONNECT":
        refuse("the chips would not be connected")
    name_fits(positional[0])
    store(
        "policies", positional[0], {"region": flags["region"], "topology": flags["accelerator-topology"], "users": []}
    )


def name_fits(name: str) -> None:
    """Refuse a name that Google refuses."""
    if re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name) is None:
        refuse(f"Invalid value for field 'resource.name': '{name}'.")


def compute_resource_policies_delete(positional: list[str], flags: dict[str, str]) -> None:
    """Forget a workload policy that no group uses."""
    unused(positional[0], "policies", "resourcePolicies", flags)


def compute_instance_templates_delete(positional: list[str], flags: dict[str, str]) -> None:
    """Forget a template that no group uses."""
    unused(positional[0], "templates", "instanceTemplates", flags)


def unused(name: str, kind: str, url: str, flags: dict[str, str]) -> None:
    """Forget something that no group uses."""
    if "quiet" not in flags:
        refuse("This prompt could not be answered because you are not in an interactive session")
    kept = read(f"{kind}.json", {}).get(name)
    if kept is not None and kept["region"] != flags.get("region"):
        refuse(f"The resource 'projects/p/{url}/{name}' was not found")
    for group in CLOUD.glob("groups/*.json"):
        if name in group.read_text():
            refuse(f"The {url} resource '{name}' is already being used by '{group.stem}'")
    store(kind, name, None)


def compute_instance_templates_create(positional: list[str], flags: dict[str, str]) -> None:
    """Keep a template; refused where an instance of it would be."""
    project, world = of_project(flags), read("project.json", {})
    name_fits(positional[0])
    if flags.get("machine-type") != "tpu7x-standard-4t":
        refuse(f"Invalid value for field 'resource.properties.machineType': '{flags.get('machine-type')}'")
    if (flags.get("image-project"), flags.get("image-family")) != (IMAGES, FAMILY):
        refuse("Could not fetch resource: the image family was not found")
    if flags.get("boot-disk-type") != "hyperdisk-balanced":
        refuse("[pd-standard] features are not compatible for creating instance.")
    if flags.get("maintenance-policy") != "TERMINATE":
        refuse("Instances with accelerators do not support live migration.")
    if "instance-termination-action" in flags and flags.get("provisioning-model") != "SPOT":
        refuse("required property [provisioning-model] is not SPOT for --instance-termination-action")
    network = flags.get("network", "default")
    if network not in world["networks"]:
        refuse(f"The resource 'projects/{project}/global/networks/{network}' was not found")
    if "subnet" in flags and flags["subnet"] not in world["networks"][network].get(flags.get("region", ""), []):
        refuse(f"The resource 'projects/{project}/regions/subnetworks/{flags['subnet']}' was not found")
    if "service-account" in flags and flags["service-account"] not in world["service_accounts"]:
        refuse(f"The resource '{flags['service-account']}' of type 'serviceAccount' was not found.")
    store("templates", positional[0], {"region": flags["instance-template-region"], "flags": flags})


def compute_instance_groups_managed_create(positional: list[str], flags: dict[str, str]) -> None:
    """Create a group, whose instances come when its state is asked for."""
    (name,) = positional
    project, zone, size = of_project(flags), flags.get("zone", ""), int(flags["size"])
    region = f"projects/{project}/regions/{zone.rpartition('-')[0]}"
    name_fits(name)
    if zone not in ZONES:
        refuse(
            f"Invalid value for field 'resource.zone': machine type tpu7x-standard-4t does not exist in zone '{zone}'."
        )
    template = flags["template"].removeprefix(f"{region}/instanceTemplates/")
    known = read("templates.json", {}).get(template)
    if known is None:
        refuse(f"The resource '{flags['template']}' was not found")
    if flags.get("target-size-policy-mode") != "bulk":
        refuse("MIGs with TPU accelerator topology require BULK mode in target size policy")
    if flags.get("default-action-on-vm-failure") != "do-nothing":
        refuse("MIGs with TPU accelerator topology do not support repair of instances")
    if size > 1:
        policy = flags.get("workload-policy", "")
        if not policy.startswith(f"{region}/resourcePolicies/"):
            refuse("Invalid value for field 'resource.resourcePolicies.workloadPolicy': The URL is malformed.")
        topology = read("policies.json", {}).get(policy.rpartition("/")[2], {}).get("topology", "")
        sides = [int(side) for side in topology.split("x")] if topology else [0]
        chips = 1
        for side in sides:
            chips *= side
        if chips != size * HOST_CHIPS:
            refuse(f"the topology {topology} does not have {size} virtual machines")
    if (CLOUD / "groups" / f"{name}.json").exists():
        refuse(f"The resource 'projects/{project}/zones/{zone}/instanceGroupManagers/{name}' already exists")
    for flag in filter(None, [known["flags"].get("disk")]):
        attach(flag, project, zone, size)
    (CLOUD / "groups").mkdir(exist_ok=True)
    group = {"name": name, "zone": zone, "size": size, "instanceTemplate": f"https://www/{flags['template']}"}
    write(f"groups/{name}.json", group | {"policy": flags.get("workload-policy"), "disk": known["flags"].get("disk")})


def attach(flag: str, project: str, zone: str, size: int) -> None:
    """Refuse a data disk that the instances could not use."""
    fields = dict(pair.split("=", 1) for pair in flag.split(","))
    path = re.fullmatch(rf"projects/{project}/zones/{zone}/disks/([^/]+)", fields["name"])
    disk = read("project.json", {})["disks"].get(path[1]) if path else None
    if disk is None or disk["zone"] != zone or disk["type"] not in DISKS["v6e"]:
        refuse(f"Invalid value for field 'resource.disks': {fields['name']}")
    if size > 1 and fields["mode"] != "ro":
        refuse("several instances can attach a disk only in read-only mode")


def group_of(name: str, flags: dict[str, str]) -> dict[str, Any]:
    """A group in its zone."""
    group = read(f"groups/{name}.json", None)
    if group is None or group["zone"] != flags.get("zone"):
        refuse(f"The resource 'projects/p/zones/{flags.get('zone')}/instanceGroupManagers/{name}' was not found")
    return dict(group)


def instances(group: dict[str, Any]) -> list[dict[str, str]]:
    """The instances of a group: they come together, as soon as there are chips, and go together."""
    name = group["name"]
    node = read(f"tpus/{name}/node.json", None)
    if node is None and not (CLOUD / "no_chips").exists():
        for worker in range(group["size"]):
            (CLOUD / "tpus" / name / str(worker)).mkdir(parents=True, exist_ok=True)
        disk = {}
        if group["disk"]:
            fields = dict(pair.split("=", 1) for pair in group["disk"].split(","))
            mode = "read-write" if fields["mode"] == "rw" else "read-only"
            disk = {"name": fields["name"].rpartition("/")[2], "mode": mode}
        born = f"{time.time_ns() % 46656:04x}"[-4:]
        node = {"state": "READY", "born": born, "networkEndpoints": [{}] * group["size"], "disk": disk}
        write(f"tpus/{name}/node.json", node)
    if node is None or node["state"] != "READY":
        return []
    return [
        {
            "instance": f"https://www/projects/p/zones/{group['zone']}/instances/{name}-{node['born']}{worker:x}",
            "instanceStatus": "RUNNING",
            "currentAction": "NONE",
        }
        for worker in range(group["size"])
    ]


def compute_instance_groups_managed_describe(positional: list[str], flags: dict[str, str]) -> None:
    """Print a group."""
    group = group_of(positional[0], flags)
    instances(group)
    is_stable = (CLOUD / "tpus" / group["name"] / "node.json").exists()
    print(json.dumps(group | {"status": {"isStable": is_stable}}))


def compute_instance_groups_managed_list_instances(positional: list[str], flags: dict[str, str]) -> None:
    """Print the instances of a group."""
    print(json.dumps(instances(group_of(positional[0], flags))))


def compute_instance_groups_managed_list(positional: list[str], flags: dict[str, str]) -> None:
    """Print all groups."""
    print("\n".join(sorted(group.stem for group in CLOUD.glob("groups/*.json"))))


def compute_instance_groups_managed_wait_until(positional: list[str], flags: dict[str, str]) -> None:
    """Wait; here for no time at all."""
    group = group_of(positional[0], flags)
    if "stable" not in flags:
        refuse("Exactly one of (--stable | --version-target-reached) must be specified.", 2)
    if not instances(group):
        refuse("Timeout while waiting for group to become stable.")


def compute_instance_groups_managed_delete(positional: list[str], flags: dict[str, str]) -> None:
    """Delete a group with its instances."""
    if "quiet" not in flags:
        refuse("This prompt could not be answered because you are not in an interactive session")
    group = group_of(positional[0], flags)
    shutil.rmtree(CLOUD / "tpus" / group["name"], ignore_errors=True)
    (CLOUD / "groups" / f"{group['name']}.json").unlink()


def host_of(name: str, flags: dict[str, str]) -> Path:
    """The host that an instance is, if it can be reached."""
    groups = [json.loads(file.read_text()) for file in CLOUD.glob("groups/*.json")]
    found = [
        CLOUD / "tpus" / group["name"] / str(worker)
        for group in groups
        if group["zone"] == flags.get("zone")
        for worker, instance in enumerate(instances(group))
        if instance["instance"].endswith(f"/{name}")
    ]
    if not found:
        refuse(f"Could not fetch resource:\n - The resource 'projects/p/zones/z/instances/{name}' was not found")
    return found[0]


def compute_ssh(positional: list[str], flags: dict[str, str]) -> None:
    """Run a command on an instance."""
    import os
    import signal
    import subprocess

    host = host_of(positional[0], flags)
    if not flags.get("command"):
        refuse("no terminal")
    broken = fault("ssh", flags["command"], host.name)
    if broken and not broken.get("after"):
        print(broken["text"], file=sys.stderr)
        sys.exit(broken["code"])
    shell = subprocess.Popen(["bash", "-c", flags["command"]], cwd=host, env=environment(host), start_new_session=True)
    if "lose" in flags:  # what sshd does: the shell gets a hangup, what it detached goes on
        time.sleep(float(flags["lose"]))
        os.killpg(shell.pid, signal.SIGHUP)
        refuse("[/usr/bin/ssh] exited with return code [255].", CONNECTION)
    code = shell.wait()
    if broken:
        sys.exit(broken["code"])
    is_gone = read(f"tpus/{host.parent.name}/node.json", {"state": "GONE"})["state"] != "READY"
    sys.exit(CONNECTION if is_gone or code < 0 else code)


def compute_scp(positional: list[str], flags: dict[str, str]) -> None:
    """Copy to an instance, or from one."""
    *sources, target = positional
    if ":" in target:
        name, _, remote = target.partition(":")
        for source in sources:
            shutil.copy(source, host_of(name, flags) / remote)
        return
    name, _, remote = sources[0].partition(":")
    host = host_of(name, flags)
    if not (host / remote).exists():
        refuse(f"scp: {remote}: No such file or directory")
    if (host / remote).is_dir() and "recurse" not in flags:
        refuse(f"scp: {remote}: not a regular file")
    shutil.copytree(host / remote, Path(target) / Path(remote).name)


def compute_machine_types_describe(positional: list[str], flags: dict[str, str]) -> None:
    """Whether a zone has a machine type."""
    if positional[0] != "tpu7x-standard-4t" or flags.get("zone") not in ZONES:
        refuse(f"The resource 'projects/p/zones/{flags.get('zone')}/machineTypes/{positional[0]}' was not found")


def compute_images_describe_from_family(positional: list[str], flags: dict[str, str]) -> None:
    """Whether there is an image."""
    if (positional[0], flags.get("project")) != (FAMILY, IMAGES):
        refuse(f"The resource 'projects/p/global/images/family/{positional[0]}' was not found")
