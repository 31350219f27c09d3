"""`tw tpu doctor`: from an empty project to one that has everything, by the commands that it prints alone."""

from __future__ import annotations

import json

import pytest

from tests.collect.tpu.fake_cloud import Cloud
from tracewarehouse.collect.tpu.doctor import lets_ssh_in

DOCTOR = ("doctor", "tpu_v6e", "--generation", "v6e")
EMAIL = "bench@study.iam.gserviceaccount.com"


@pytest.fixture(autouse=True)
def _no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracewarehouse.collect.tpu.doctor.build_wheel", lambda folder: None)


def missing(stdout: str) -> dict[str, str]:
    """What is missing, and the command that mends it."""
    lines = [line.removeprefix("missing  ") for line in stdout.splitlines() if line.startswith("missing  ")]
    return {what: mend for what, _, mend in (line.partition("; run: ") for line in lines)}


def test_it_leads_from_an_empty_project_to_a_sweep(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command that it prints is run as it stands, until nothing is missing."""
    cloud.world(account="", project="", services=[], identities=[], networks={}, rules={})
    for file in (cloud.home / ".ssh").iterdir():
        file.unlink()
    options = ("--network", "lab", "--subnetwork", "tpus", "--service-account", EMAIL, "--bucket", "weights")
    said: dict[str, str] = {}
    for _ in range(5):
        done = cloud.tw(*DOCTOR, *options)
        now = missing(done.stdout)
        assert (done.returncode == 0) is (not now)
        if not now:
            break
        for command in now.values():
            if command.startswith("ssh-keygen"):
                for name, text in (("", "private"), (".pub", "ssh-rsa AAAA me")):
                    (cloud.home / ".ssh" / f"google_compute_engine{name}").write_text(text)
            else:
                mended = cloud.gcloud(command.replace("PROJECT_ID", "study"))
                assert mended.returncode == 0, (command, mended.stderr)
        said |= now
    assert done.returncode == 0, done.stdout

    assert {what.split()[0] for what in said} == {"account", "project", "service", "network", "subnetwork", "ssh"} | {
        "bucket",
        "key",
        "identity",
    }
    made = cloud.tw("create", "one", "--type", "v6e-4", *options)
    assert made.returncode == 0, made.stderr


def test_all_is_well_and_the_plan_is_printed(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    cloud.world(buckets=["weights"])

    done = cloud.tw(*DOCTOR, "--bucket", "weights")

    assert done.returncode == 0, done.stdout
    assert missing(done.stdout) == {}
    assert "ok       v6e-64 is offered in us-east1-d" in done.stdout
    assert "ok       the key is in the SSH agent, for several hosts" in done.stdout
    assert "v6e-64\t64 chips\t16 hosts\tus-east1-d\tv6e spot\t" in done.stdout
    assert "prices: https://cloud.google.com/tpu/pricing" in done.stdout
    assert not cloud.calls("create")
    assert "hf_x" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("world", "what", "mend"),
    [
        (
            {"rules": {"web": {"network": "default", "allowed": [{"IPProtocol": "tcp", "ports": ["80", "23-30"]}]}}},
            "ssh is let into network default",
            "gcloud compute firewall-rules create default-allow-ssh --network=default --allow=tcp:22 --project=study",
        ),
        (
            {"zones": {"us-east1-d": ["v6e-4"]}},
            "v6e-64 is offered in us-east1-d",
            "gcloud compute tpus accelerator-types list --zone=us-east1-d --project=study",
        ),
    ],
)
def test_each_fault_is_named_with_its_command(cloud: Cloud, world: dict[str, object], what: str, mend: str) -> None:
    cloud.world(**world)

    done = cloud.tw(*DOCTOR)

    assert done.returncode == 1
    assert missing(done.stdout)[what] == mend


@pytest.mark.parametrize("allowed", [{"ports": ["22"]}, {"ports": ["20-30"]}, {"IPProtocol": "all"}])
def test_rules_that_let_ssh_in(allowed: dict[str, object]) -> None:
    assert lets_ssh_in({"allowed": [{"IPProtocol": "tcp"} | allowed]})
    assert not lets_ssh_in({"allowed": [{"IPProtocol": "tcp"} | allowed], "disabled": True})


def test_a_disk_for_the_weights_of_each_slice(cloud: Cloud) -> None:
    """Without one, a disk for each slice whose weights the boot disk cannot hold; several hosts need one to read."""
    found = missing(cloud.tw(*DOCTOR).stdout)

    disks = {what: mend for what, mend in found.items() if what.startswith("disk")}
    one = next(mend for what, mend in disks.items() if what.endswith("v6e-8, read-write"))
    many = next(mend for what, mend in disks.items() if what.endswith("v6e-64, read-only"))
    assert one.startswith("gcloud compute disks create weights-us-east1-d --size=")
    assert "--type=hyperdisk-balanced --zone=us-east1-d" in one
    assert "--type=hyperdisk-ml" in many
    assert cloud.gcloud(one).returncode == 0


def test_a_disk_that_is_too_small_or_cannot_be_shared(cloud: Cloud) -> None:
    disk = {"zone": "us-east1-d", "type": "hyperdisk-ml", "sizeGb": 10, "accessMode": "READ_WRITE_SINGLE"}
    cloud.world(disks={"w": disk})
    arguments = ("doctor", cloud.experiment, "--generation", "v6e", "--data-disk", "w")
    cloud.experiment.write_text("runs: [{device: tpu, backend: torch_xla, model: Qwen/Qwen3-32B, mesh: 'dp=2,tp=8'}]")

    for words in ("disks resize w --size=65GB", "disks update w --access-mode=READ_ONLY_MANY"):
        (mend,) = missing(cloud.tw(*arguments).stdout).values()
        assert words in mend
        assert cloud.gcloud(mend).returncode == 0

    assert cloud.tw(*arguments).returncode == 0
    assert json.loads((cloud.folder / "project.json").read_text())["disks"]["w"]["sizeGb"] == 65


def test_a_disk_of_another_kind_is_no_disk_for_these_chips(cloud: Cloud) -> None:
    cloud.world(disks={"w": {"zone": "us-east1-d", "type": "pd-balanced", "sizeGb": 900}})
    cloud.experiment.write_text("runs: [{device: tpu, backend: torch_xla, model: Qwen/Qwen3-32B, mesh: tp=8}]")

    (mend,) = missing(cloud.tw("doctor", cloud.experiment, "--generation", "v6e", "--data-disk", "w").stdout).values()

    assert mend.startswith("gcloud compute disks create w-read-write --size=65GB --type=hyperdisk-balanced")
    assert cloud.gcloud(mend).returncode == 0


def quota_lines(stdout: str) -> list[str]:
    """What is said of quotas."""
    return [line for line in stdout.splitlines() if " quota for " in line]


def test_a_slice_that_google_does_not_grant(cloud: Cloud) -> None:
    """The quota of spot chips counts in zone and region; those of other generations, zones and prices do not."""
    zone, region = "us-east1-d", "us-east1"
    spot, other = "TPUV6EPreemptiblePerProjectPer", "TPUV6EPerProjectPer"
    cloud.world(
        quotas={
            f"{spot}ZoneForTPUAPI": {zone: 16, "elsewhere": 512},
            f"{spot}RegionForTPUAPI": {region: 8},
            f"{other}ZoneForTPUAPI": {zone: 512},
            "TPUV5sLitepodPerProjectPerZoneForTPUAPI": {zone: 512},
        }
    )

    found = {w: mend for w, mend in missing(cloud.tw(*DOCTOR).stdout).items() if w.startswith("quota")}

    assert {what.split()[2] for what in found} == {"v6e-16", "v6e-32", "v6e-64"}
    assert all(what.endswith("in us-east1, where Google grants 8") for what in found)
    for mend in sorted(found.values()):
        assert cloud.gcloud(mend).returncode == 0
    found = {w: mend for w, mend in missing(cloud.tw(*DOCTOR).stdout).items() if w.startswith("quota")}
    assert {what.split()[2] for what in found} == {"v6e-32", "v6e-64"}
    assert all(what.endswith("in us-east1-d, where Google grants 16") for what in found)
    for mend in sorted(found.values()):
        assert cloud.gcloud(mend).returncode == 0
    assert not [what for what in missing(cloud.tw(*DOCTOR).stdout) if what.startswith("quota")]


def test_v5e_slices_of_one_host_have_quotas_of_their_own(cloud: Cloud) -> None:
    """Google calls them serving; nothing granted is told without a number."""
    zone = "us-central1-a"
    names = ("TPUV5sPreemptibleLitepod", "TPUV5sPreemptibleLitepodServing")
    quotas = {f"{name}PerProjectPerZoneForTPUAPI": {zone: n} for name, n in zip(names, (64, 0), strict=True)}
    cloud.world(quotas=quotas)

    said = quota_lines(cloud.tw("doctor", "tpu_v5e", "--generation", "v5e").stdout)

    granted = {line.split()[3]: line.partition("grants ")[2].partition(";")[0] for line in said}
    assert granted == {"v5litepod-4": "0", "v5litepod-8": "0", "v5litepod-16": "64", "v5litepod-64": "64"}
    (ask,) = {line.partition("--quota-id=")[2].split()[0] for line in said if line.startswith("missing")}
    assert ask == "TPUV5sPreemptibleLitepodServingPerProjectPerZoneForTPUAPI"


def test_a_quota_that_nothing_tells_is_unknown(cloud: Cloud) -> None:
    """Neither what Google does not tell, nor the quota of v4 on demand, whose id is not documented, is guessed."""
    cloud.world(quotas={"TPUV4sPodPerProjectPerZoneForTPUAPI": {"us-central2-b": 0}})

    for arguments in (DOCTOR, ("doctor", "tpu_v4", "--generation", "v4")):
        said = quota_lines(cloud.tw(*arguments).stdout)
        assert said
        for line in said:
            assert line.startswith("unknown  quota for v")
            assert cloud.gcloud(line.partition("; see: ")[2]).returncode == 0


def test_gated_models_need_a_token_and_several_hosts_an_agent(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    (cloud.folder / "no_key_in_agent").touch()

    found = missing(cloud.tw(*DOCTOR).stdout)

    assert found["token for meta-llama/Llama-3.1-70B, meta-llama/Llama-3.1-8B"] == "hf auth login"
    agent = found["the key is in the SSH agent, for several hosts"]
    assert agent == 'eval "$(ssh-agent -s)" && ssh-add ~/.ssh/google_compute_engine'
    (cloud.home / ".cache/huggingface").mkdir(parents=True)
    (cloud.home / ".cache/huggingface/token").write_text("hf_x\n")
    assert not [what for what in missing(cloud.tw(*DOCTOR).stdout) if what.startswith("token")]


def test_without_gcloud_it_says_where_it_is_from(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    done = cloud.tw(*DOCTOR)

    assert done.returncode == 1
    assert missing(done.stdout) == {"gcloud": "curl https://sdk.cloud.google.com | bash"}


def test_runs_that_do_not_fit_their_chips_are_refused_before_anything_is_asked(cloud: Cloud) -> None:
    done = cloud.tw("doctor", "tpu_v6e", "--generation", "v5e")

    assert done.returncode == 1
    assert "and a TPU v5e chip has 16 GB" in done.stderr
    assert cloud.calls() == []
