"""The flags of the gcloud commands that are used here, from Google's reference of the released (GA) commands."""

from __future__ import annotations

WIDE = {
    "account": True,
    "billing-project": True,
    "configuration": True,
    "flags-file": True,
    "flatten": True,
    "format": True,
    "impersonate-service-account": True,
    "log-http": False,
    "project": True,
    "quiet": False,
    "trace-token": True,
    "user-output-enabled": False,
    "verbosity": True,
}
"""Flags of every command, and whether they take a value."""


class Verb:
    """What one command takes.

    Args:
        positional: how many arguments without a name, at least and at most.
        values: flags with a value, separated by spaces.
        switches: flags without one.
        required: flags that must be given.
        one_of: groups of flags of which exactly one must be given.
    """

    def __init__(
        self,
        positional: tuple[int, int],
        values: str = "",
        switches: str = "",
        required: tuple[str, ...] = (),
        one_of: tuple[tuple[str, ...], ...] = (),
    ) -> None:
        self.positional, self.values, self.switches = positional, values, switches
        self.required, self.one_of = required, one_of

    def flags(self) -> dict[str, bool]:
        """Every flag, and whether it takes a value."""
        return WIDE | dict.fromkeys(self.values.split(), True) | dict.fromkeys(self.switches.split(), False)


_NODE = (
    "zone data-disk boot-disk description labels metadata metadata-from-file network range scopes service-account "
    "subnetwork tags topology type accelerator-type"
)
_KEYS = "ssh-key-file strict-host-key-checking worker zone ssh-key-expiration ssh-key-expire-after"
_LIST = "zone filter limit page-size sort-by"

VERBS = {
    "compute tpus tpu-vm create": Verb(
        (1, 1),
        f"{_NODE} version queue-count",
        "async internal-ips preemptible reserved shielded-secure-boot spot",
        ("version", "zone"),
    ),
    "compute tpus tpu-vm delete": Verb((1, 1), "zone", "async", ("zone",)),
    "compute tpus tpu-vm describe": Verb((1, 1), "zone", "", ("zone",)),
    "compute tpus tpu-vm list": Verb((0, 0), _LIST, "uri"),
    "compute tpus tpu-vm ssh": Verb(
        (1, 1),
        f"{_KEYS} command output-directory ssh-flag",
        "dry-run force-key-file-overwrite internal-ip plain",
    ),
    "compute tpus tpu-vm scp": Verb(
        (2, 99), f"{_KEYS} scp-flag", "compress dry-run force-key-file-overwrite internal-ip plain recurse"
    ),
    "compute tpus tpu-vm accelerator-types describe": Verb((1, 1), "zone", "", ("zone",)),
    "compute tpus tpu-vm versions describe": Verb((1, 1), "zone", "", ("zone",)),
    "compute tpus tpu-vm versions list": Verb((0, 0), _LIST, "uri"),
    "compute tpus accelerator-types list": Verb((0, 0), _LIST),
    "compute tpus queued-resources create": Verb(
        (1, 1),
        f"{_NODE} runtime-version node-id node-count node-prefix valid-after-duration valid-after-time "
        "valid-until-duration valid-until-time reservation-host-folder reservation-host-organization "
        "reservation-host-project",
        "async guaranteed internal-ips reserved shielded-secure-boot spot",
        ("runtime-version", "zone"),
        (("node-id", "node-count"),),
    ),
    "compute tpus queued-resources delete": Verb((1, 1), "zone", "async force", ("zone",)),
    "compute tpus queued-resources describe": Verb((1, 1), "zone", "", ("zone",)),
    "compute resource-policies create workload-policy": Verb(
        (1, 1),
        "type accelerator-topology accelerator-topology-mode max-topology-distance description region",
        "",
        ("type",),
    ),
    "compute resource-policies delete": Verb((1, 99), "region"),
    "compute instance-templates create": Verb(
        (1, 1),
        "instance-template-region machine-type image image-project image-family boot-disk-size boot-disk-type disk "
        "create-disk maintenance-policy provisioning-model instance-termination-action max-run-duration labels network "
        "subnet region service-account scopes metadata metadata-from-file tags reservation reservation-affinity "
        "accelerator description",
        "preemptible no-address no-scopes no-service-account",
    ),
    "compute instance-templates delete": Verb((1, 99), "region"),
    "compute instance-groups managed create": Verb(
        (1, 1),
        "size template zone region zones target-size-policy-mode default-action-on-vm-failure workload-policy "
        "base-instance-name description health-check initial-delay instance-redistribution-type "
        "target-distribution-shape",
        "force-update-on-repair",
        ("size", "template"),
    ),
    "compute instance-groups managed describe": Verb((1, 1), "zone region"),
    "compute instance-groups managed delete": Verb((1, 99), "zone region"),
    "compute instance-groups managed list": Verb((0, 99), f"{_LIST} zones regions regexp", "uri"),
    "compute instance-groups managed list-instances": Verb((1, 1), "zone region filter limit page-size sort-by", "uri"),
    "compute instance-groups managed wait-until": Verb(
        (1, 1), "zone region timeout", "stable version-target-reached all-instances-config-effective"
    ),
    "compute ssh": Verb(
        (1, 1),
        "zone command ssh-flag ssh-key-file ssh-key-expiration ssh-key-expire-after strict-host-key-checking container",
        "dry-run force-key-file-overwrite internal-ip plain tunnel-through-iap troubleshoot",
    ),
    "compute scp": Verb(
        (2, 99),
        "zone scp-flag port ssh-key-file ssh-key-expiration ssh-key-expire-after strict-host-key-checking",
        "recurse compress dry-run force-key-file-overwrite internal-ip plain tunnel-through-iap",
    ),
    "compute machine-types describe": Verb((1, 1), "zone"),
    "compute machine-types list": Verb((0, 99), f"{_LIST} zones regexp", "uri"),
    "compute images describe-from-family": Verb((1, 1), "zone"),
    "compute images list": Verb((0, 99), "filter limit page-size sort-by regexp", "uri no-standard-images"),
    "beta services identity create": Verb((0, 0), "service folder organization", "", ("service",)),
    "projects get-iam-policy": Verb((1, 1), "filter limit page-size sort-by"),
    "compute disks describe": Verb((1, 1), "zone region"),
    "compute disks create": Verb(
        (1, 99),
        "size type zone region access-mode description image labels provisioned-iops provisioned-throughput "
        "source-snapshot source-disk replica-zones",
        "confidential-compute",
    ),
    "compute disks resize": Verb((1, 99), "size zone region", "", ("size",)),
    "compute disks update": Verb((1, 1), "access-mode zone region size provisioned-iops provisioned-throughput"),
    "compute disks delete": Verb((1, 99), "zone region"),
    "compute networks describe": Verb((1, 1)),
    "compute networks create": Verb((1, 1), "subnet-mode mtu description range bgp-routing-mode"),
    "compute networks subnets describe": Verb((1, 1), "region"),
    "compute networks subnets create": Verb((1, 1), "network region range description purpose", "", ("network",)),
    "compute firewall-rules list": Verb((0, 99), "filter limit page-size sort-by regexp", "uri"),
    "compute firewall-rules create": Verb(
        (1, 1), "allow network action description direction priority rules source-ranges source-tags target-tags"
    ),
    "services list": Verb((0, 0), "filter limit page-size sort-by", "enabled available"),
    "services enable": Verb((1, 99), "", "async"),
    "auth list": Verb((0, 0), "filter filter-account limit page-size sort-by"),
    "auth login": Verb((0, 1), "cred-file login-config scopes", "activate brief force launch-browser"),
    "config get-value": Verb((1, 1)),
    "config set": Verb((2, 2), "", "installation"),
    "iam service-accounts describe": Verb((1, 1)),
    "iam service-accounts create": Verb((1, 1), "description display-name"),
    "projects create": Verb((0, 1), "folder organization labels name", "enable-cloud-apis set-as-default"),
    "storage buckets describe": Verb((1, 1), "", "raw"),
    "storage buckets create": Verb(
        (1, 99), "location default-storage-class placement retention-period", "uniform-bucket-level-access"
    ),
    "storage buckets add-iam-policy-binding": Verb((1, 1), "member role condition", "", ("member", "role")),
    "storage rsync": Verb((2, 2), "exclude include", "recursive delete-unmatched-destination-objects dry-run"),
    "quotas preferences create": Verb(
        (0, 0),
        "service quota-id preferred-value dimensions email justification preference-id folder organization",
        "",
        ("service", "quota-id", "preferred-value"),
    ),
    "quotas info list": Verb((0, 0), "service folder organization filter limit page-size sort-by", "", ("service",)),
}
