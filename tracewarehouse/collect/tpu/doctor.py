"""Checks everything that a sweep on TPUs needs, before it costs money; each fault comes with a command to fix it."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracewarehouse.collect.capture import require_writable
from tracewarehouse.collect.errors import CollectError
from tracewarehouse.collect.tpu.gcloud import ADD_KEY, KEY, Gcloud, disk_mode
from tracewarehouse.collect.tpu.installation import build_wheel
from tracewarehouse.collect.tpu.instance_groups import IMAGES
from tracewarehouse.collect.tpu.plan import PlannedSlice
from tracewarehouse.collect.tpu.quota import Generation, Quota
from tracewarehouse.collect.tpu.state import Place

TPU_AGENT = "roles/tpu.serviceAgent"
"""Role of the account with which the Cloud TPU API acts in a project."""
GATED = ("meta-llama/",)
"""Prefixes of the ids of models that the hub gives only to users who accepted their terms."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    mend: str | None = None
    """The command that fixes it; None if it is as it must be."""
    look: str | None = None
    """The command that shows it, if it cannot be checked here."""

    def __str__(self) -> str:
        if self.look is not None:
            return f"unknown  {self.what}; see: {self.look}"
        return f"ok       {self.what}" if self.mend is None else f"missing  {self.what}; run: {self.mend}"


@dataclass(frozen=True)
class Doctor:
    """Checks the account, the project, the zone and this machine."""

    gcloud: Gcloud
    quota: Quota
    place: Place
    slices: list[PlannedSlice]
    output: Path
    token: str | None

    def findings(self) -> Iterator[Finding]:
        """Check everything in the order in which it is needed, without the checks that depend on a fault."""
        if shutil.which("gcloud") is None:
            yield Finding("gcloud", "curl https://sdk.cloud.google.com | bash")
            return
        account = self._said("auth", "list", "--filter=status:ACTIVE", "--format=value(account)")
        yield Finding(f"account {account or 'of Google Cloud'}", None if account else "gcloud auth login")
        project = self.place.project or self._said("config", "get-value", "project")
        yield Finding(f"project {project or ''}".strip(), None if project else "gcloud config set project PROJECT_ID")
        if not account or not project:
            return
        in_project = f"--project={project}"
        yield from self._api(in_project)
        for zone in sorted({planned.pool.zone for planned in self.slices}):
            yield from self._zone(zone, in_project)
        yield from self._granted(in_project)
        yield from self._network(in_project)
        yield from self._weights(in_project)
        if email := self.place.service_account:
            is_there = self._is_there("iam", "service-accounts", "describe", email, in_project)
            create = f"gcloud iam service-accounts create {email.partition('@')[0]} {in_project}"
            yield Finding(f"service account {email}", None if is_there else create)
        yield from self._key()
        yield from self._here()

    def _api(self, in_project: str) -> Iterator[Finding]:
        listed = "--format=value(config.name)"
        providers = {self.quota.generation(planned.pool.generation).provider for planned in self.slices}
        for service in ("tpu.googleapis.com",) * ("tpu_api" in providers) + ("compute.googleapis.com",):
            name = self._said("services", "list", "--enabled", f"--filter=config.name={service}", listed, in_project)
            yield Finding(f"service {service}", None if name else f"gcloud services enable {service} {in_project}")
            if service == "tpu.googleapis.com" and name:
                yield self._identity(in_project)

    def _identity(self, in_project: str) -> Finding:
        """Check the account with which the Cloud TPU API acts in the project."""
        what = "identity of the service tpu.googleapis.com"
        project = in_project.removeprefix("--project=")
        policy = self._json("projects", "get-iam-policy", project, "--format=json")
        if policy is None:
            return Finding(what, look=f"gcloud projects get-iam-policy {project}")
        is_there = any(binding.get("role") == TPU_AGENT for binding in policy.get("bindings", []))
        create = f"gcloud beta services identity create --service=tpu.googleapis.com {in_project}"
        return Finding(what, None if is_there else create)

    def _zone(self, zone: str, in_project: str) -> Iterator[Finding]:
        for planned in self.slices:
            if planned.pool.zone != zone:
                continue
            details = self.quota.generation(planned.pool.generation)
            if details.provider == "instance_group":
                yield from self._instances(details, zone, in_project)
                continue
            kind, runtime = planned.accelerator_type, details.runtime
            group = ("compute", "tpus", "tpu-vm")
            is_offered = self._is_there(*group, "accelerator-types", "describe", kind, f"--zone={zone}", in_project)
            others = f"gcloud compute tpus accelerator-types list --zone={zone} {in_project}"
            yield Finding(f"{kind} is offered in {zone}", None if is_offered else others)
            is_offered = self._is_there(*group, "versions", "describe", runtime, f"--zone={zone}", in_project)
            yield Finding(
                f"software {runtime} in {zone}",
                None if is_offered else f"gcloud compute tpus tpu-vm versions list --zone={zone} {in_project}",
            )

    def _instances(self, details: Generation, zone: str, in_project: str) -> Iterator[Finding]:
        """Check what a group of instances needs of a zone."""
        machine = str(details.machine_type)
        is_offered = self._is_there("compute", "machine-types", "describe", machine, f"--zone={zone}", in_project)
        others = f"gcloud compute machine-types list --filter=name:{machine} {in_project}"
        yield Finding(f"{machine} is offered in {zone}", None if is_offered else others)
        images = f"--project={IMAGES}"
        is_there = self._is_there("compute", "images", "describe-from-family", details.runtime, images)
        yield Finding(
            f"image of the family {details.runtime}",
            None if is_there else f"gcloud compute images list --no-standard-images {images}",
        )

    def _granted(self, in_project: str) -> Iterator[Finding]:
        """Check whether Google grants the chips of each slice in its zone and in its region; both limits apply."""
        told = self._json("quotas", "info", "list", "--service=tpu.googleapis.com", "--format=json", in_project) or []
        by_id = {str(quota.get("quotaId", "")): quota for quota in told}
        for planned in self.slices:
            pool = planned.pool
            if self.quota.generation(pool.generation).provider == "instance_group":
                look = f"gcloud quotas info list --service=compute.googleapis.com {in_project}"
                yield Finding(f"quota for {planned.accelerator_type} in {pool.zone}", look=look)
                continue
            name = self.quota.generation(pool.generation).quota_id(planned.chips, pool.spot)
            limits = []
            for scope, place in (("Zone", pool.zone), ("Region", _region(pool.zone))):
                quota_id = f"{name}PerProjectPer{scope}ForTPUAPI"
                infos = by_id.get(quota_id, {}).get("dimensionsInfos", [])
                values = [_value(info) for info in infos if place in info.get("applicableLocations", [])]
                limits += [(max(values), f"{scope.lower()}={place}", quota_id)] if values else []
            if not limits:
                look = f"gcloud quotas info list --service=tpu.googleapis.com {in_project}"
                yield Finding(f"quota for {planned.accelerator_type} in {pool.zone}", look=look)
                continue
            value, place, quota_id = min(limits)
            ask = f"gcloud quotas preferences create --service=tpu.googleapis.com --quota-id={quota_id} {in_project}"
            ask = f"{ask} --preferred-value={planned.chips} --dimensions={place}"
            what = f"quota for {planned.accelerator_type} in {place.partition('=')[2]}, where Google grants {value}"
            yield Finding(what, None if value >= planned.chips else ask)

    def _network(self, in_project: str) -> Iterator[Finding]:
        name = self.place.network or "default"
        is_there = self._is_there("compute", "networks", "describe", name, in_project)
        create = f"gcloud compute networks create {name} --subnet-mode=auto {in_project}"
        yield Finding(f"network {name}", None if is_there else create)
        if not is_there:
            return
        if subnet := self.place.subnetwork:
            for region in sorted({_region(planned.pool.zone) for planned in self.slices}):
                there = self._is_there(
                    "compute", "networks", "subnets", "describe", subnet, f"--region={region}", in_project
                )
                make = f"gcloud compute networks subnets create {subnet} --network={name} --region={region}"
                yield Finding(
                    f"subnetwork {subnet} in {region}", None if there else f"{make} --range=10.0.0.0/20 {in_project}"
                )
        rules = (
            self._json("compute", "firewall-rules", "list", f"--filter=network:{name}", "--format=json", in_project)
            or []
        )
        allow = f"gcloud compute firewall-rules create {name}-allow-ssh --network={name} --allow=tcp:22 {in_project}"
        yield Finding(f"ssh is let into network {name}", None if any(map(lets_ssh_in, rules)) else allow)

    def _weights(self, in_project: str) -> Iterator[Finding]:
        if bucket := self.place.bucket:
            is_there = self._is_there("storage", "buckets", "describe", f"gs://{bucket}", in_project)
            region = _region(self.slices[0].pool.zone)
            create = f"gcloud storage buckets create gs://{bucket} --location={region} {in_project}"
            yield Finding(f"bucket {bucket}", None if is_there else create)
        elif name := self.place.data_disk:
            for planned in self.slices:
                yield self._disk(name, planned, in_project)
        else:
            for planned in self.slices:
                if not planned.fits_boot_disk:
                    yield self._disk(f"weights-{planned.pool.zone}", planned, in_project)

    def _disk(self, name: str, planned: PlannedSlice, in_project: str) -> Finding:
        zone, mode = planned.pool.zone, disk_mode(planned.hosts)
        kinds = self.quota.generation(planned.pool.generation).disks
        needed = planned.disk if mode == "read-write" else planned.all_disk
        what = f"disk {name} in {zone} with {needed / 1e9:.0f} GB for {planned.accelerator_type}, {mode}"
        size = f"--size={-(-needed // 2**30)}GB"
        disk = self._json("compute", "disks", "describe", name, f"--zone={zone}", "--format=json", in_project)
        kind = str(disk.get("type", "")).rpartition("/")[2] if disk else None
        if disk is None or kind not in ({kinds["read-only"]} if mode == "read-only" else set(kinds.values())):
            other = name if disk is None else f"{name}-{mode}"
            return Finding(
                what, f"gcloud compute disks create {other} {size} --type={kinds[mode]} --zone={zone} {in_project}"
            )
        if int(disk.get("sizeGb", 0)) * 2**30 < needed:
            return Finding(what, f"gcloud compute disks resize {name} {size} --zone={zone} {in_project} --quiet")
        is_shared = disk.get("accessMode") == "READ_ONLY_MANY" or not kinds[mode].startswith("hyperdisk")
        if mode == "read-only" and not is_shared:
            return Finding(
                what, f"gcloud compute disks update {name} --access-mode=READ_ONLY_MANY --zone={zone} {in_project}"
            )
        return Finding(what if self.place.data_disk else f"{what}; give it with --data-disk")

    def _key(self) -> Iterator[Finding]:
        key = Path(KEY).expanduser()
        there = key.is_file() and key.with_suffix(".pub").is_file()
        yield Finding(f"key {KEY}", None if there else f"ssh-keygen -t rsa -N '' -f {KEY}")
        if there and any(planned.hosts > 1 for planned in self.slices):
            public = key.with_suffix(".pub").read_text(encoding="utf-8").split()[1:2]
            is_there = bool(public) and public[0] in _agent_keys()
            yield Finding("the key is in the SSH agent, for several hosts", None if is_there else ADD_KEY)

    def _here(self) -> Iterator[Finding]:
        gated = {run.model for planned in self.slices for run in planned.runs if run.model.startswith(GATED)}
        if gated and not self.place.bucket:
            yield Finding(f"token for {', '.join(sorted(gated))}", None if self.token else "hf auth login")
        yield _tried("a wheel of these sources", _build, "python -m ensurepip --upgrade")
        yield _tried(
            f"{self.output} can be written to", lambda: require_writable(self.output), "tw tpu doctor -o FOLDER"
        )

    def _said(self, *arguments: str) -> str:
        return self.gcloud.ask(*arguments).stdout.strip()

    def _is_there(self, *arguments: str) -> bool:
        return self.gcloud.ask(*arguments).returncode == 0

    def _json(self, *arguments: str) -> Any:
        done = self.gcloud.ask(*arguments)
        try:
            return json.loads(done.stdout) if done.returncode == 0 else None
        except ValueError:
            return None


def _value(info: dict[str, Any]) -> int:
    """Return the chips that are granted: none without details; -1 means no limit."""
    value = int(info.get("details", {}).get("value", 0))
    return value if value >= 0 else 2**31


def lets_ssh_in(rule: dict[str, Any]) -> bool:
    """Return whether a firewall rule, as gcloud describes it, lets TCP connections to port 22 in."""
    if rule.get("direction", "INGRESS") != "INGRESS" or rule.get("disabled"):
        return False
    for allowed in rule.get("allowed", []):
        ports = [port.split("-") for port in allowed.get("ports", ["0-65535"])]
        if allowed.get("IPProtocol") in ("tcp", "all") and any(int(p[0]) <= 22 <= int(p[-1]) for p in ports):
            return True
    return False


def _region(zone: str) -> str:
    return zone.rpartition("-")[0]


def _tried(what: str, attempt: Callable[[], object], mend: str) -> Finding:
    try:
        attempt()
    except CollectError as error:
        return Finding(f"{what} ({error})", mend)
    return Finding(what)


def _build() -> None:
    with tempfile.TemporaryDirectory() as folder:
        build_wheel(Path(folder))


def _agent_keys() -> str:
    try:
        return subprocess.run(["ssh-add", "-L"], capture_output=True, text=True, check=False, timeout=30).stdout  # noqa: S607
    except (OSError, subprocess.TimeoutExpired):
        return ""
