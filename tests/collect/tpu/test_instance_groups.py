"""Slices that Compute Engine provides as groups of instances, through the same commands and a strict gcloud."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.collect.tpu.fake_cloud import Cloud
from tests.running_processes import wait_until
from tracewarehouse.collect.errors import TpuError
from tracewarehouse.collect.experiment import Experiment, run_spec
from tracewarehouse.collect.tpu.instance_groups import joint_code
from tracewarehouse.collect.tpu.plan import plan_slices
from tracewarehouse.collect.tpu.quota import load_quota
from tracewarehouse.ingest.capture.manifest import load_manifest

ONE = [f"microbenchmarks-{mesh}-tpu" for mesh in ("dp2ep2tp2", "dp4tp2")]
TWO = "microbenchmarks-pp2dp2ep2tp2-tpu"


@pytest.fixture
def google(cloud: Cloud, tmp_path: Path) -> Cloud:
    """A project that may use TPU7x, and an experiment for one host and for two."""
    table = tmp_path / "quota.yaml"
    text = Path(str(load_quota.__defaults__[0])).read_text(encoding="utf-8")  # type: ignore[index]
    table.write_text(text + "  - {generation: tpu7x, zone: us-central1-c, spot: true, chips: 8}\n", encoding="utf-8")
    cloud.quota = table
    meshes = '["dp=2,ep=2,tp=2", "dp=4,tp=2", "pp=2,dp=2,ep=2,tp=2"]'
    cloud.experiment.write_text(
        f"defaults: {{device: tpu, model: microbenchmarks, backend: jax}}\nmatrix: {{mesh: {meshes}}}\n"
    )
    return cloud


@pytest.fixture
def one(google: Cloud) -> Cloud:
    """A group of one instance."""
    made = google.tw("create", "one", "--type", "tpu7x-8")
    assert made.returncode == 0, made.stderr
    return google


@pytest.fixture
def two(google: Cloud) -> Cloud:
    """A group of two instances."""
    made = google.tw("create", "two", "--type", "tpu7x-16")
    assert made.returncode == 0, made.stderr
    return google


def names(cloud: Cloud) -> list[str]:
    """The captures, without what the name says of the backend."""
    return sorted(name.removesuffix("-jax") for name in cloud.captures())


def nothing_is_left(cloud: Cloud) -> bool:
    """Whether no group, template and policy is there."""
    kept = [
        json.loads(f.read_text())
        for f in (cloud.folder / "templates.json", cloud.folder / "policies.json")
        if f.exists()
    ]
    return not any(kept) and not list(cloud.folder.glob("groups/*.json"))


def test_from_create_to_delete(one: Cloud) -> None:
    done = one.tw("run", "one", one.experiment)
    fetched = one.tw("fetch", "one", one.experiment)
    gone = one.tw("delete", "one")

    assert (done.returncode, fetched.returncode, gone.returncode) == (0, 0, 0), done.stderr
    assert names(one) == ONE
    assert "left out, for slices of another size: " + TWO in done.stderr
    assert nothing_is_left(one)
    assert one.state.slices() == {}
    assert all("tpus" not in call.split()[2:3] for call in one.calls())
    (template,) = one.calls("instance-templates", "create")
    assert "--machine-type=tpu7x-standard-4t" in template
    assert "--provisioning-model=SPOT --instance-termination-action=DELETE" in template
    (group,) = one.calls("instance-groups", "create")
    assert "--size=1" in group
    assert "--target-size-policy-mode=bulk" in group
    assert "workload-policy" not in group
    assert (one.folder / "installed").read_text() == f"./{one.wheel.name} 0\n"


def test_several_instances_are_one_slice(two: Cloud) -> None:
    done = two.tw("run", "two", two.experiment, "--delete")

    assert done.returncode == 0, done.stderr
    assert names(two) == [TWO]
    (capture,) = two.captures()
    assert load_manifest(two.output / capture / "manifest.json").hosts == ["host-0", "host-1"]
    assert two.recorded() == [f"{capture} 0", f"{capture} 1"]
    (policy,) = two.calls("workload-policy")
    assert "--accelerator-topology=2x2x2 --accelerator-topology-mode=AUTO_CONNECT --region=us-central1" in policy
    assert nothing_is_left(two)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("Quota 'TPUS_PER_TPU_FAMILY' exceeded. Limit: 0.0 in region us-central1.", "gcloud quotas info list"),
        ("ZONE_RESOURCE_POOL_EXHAUSTED: does not have enough resources", "--attempts"),
        ("PERMISSION_DENIED: Required 'compute.instanceGroupManagers.create' permission", "PERMISSION_DENIED"),
    ],
)
def test_what_google_refuses_leaves_nothing(google: Cloud, said: str, error: str) -> None:
    google.fault("create", said, contains="instance-groups")

    done = google.tw("create", "two", "--type", "tpu7x-16")

    assert done.returncode == 1
    assert error in done.stderr.splitlines()[-1]
    assert google.state.slices() == {}
    assert nothing_is_left(google)


def test_a_group_without_chips_is_deleted_and_asked_for_again(google: Cloud) -> None:
    (google.folder / "no_chips").touch()

    done = google.tw("create", "two", "--type", "tpu7x-16", "--attempts", "2")

    assert done.returncode == 1
    assert "two (tpu7x-16 in us-central1-c) is CREATING after 900 s: no free chips" in done.stderr.splitlines()[-1]
    assert len(google.calls("instance-groups", "create")) == 2
    assert nothing_is_left(google)
    assert google.state.slices() == {}


def test_a_creation_without_an_answer_goes_on_with_what_is_there(google: Cloud) -> None:
    google.fault("create", "INTERNAL: an internal error has occurred", contains="instance-groups")

    done = google.tw("create", "two", "--type", "tpu7x-16")

    assert done.returncode == 0, done.stderr
    assert len(google.calls("instance-templates", "create")) == 2  # the second finds the first one's


def test_a_creation_whose_answer_was_lost_is_not_forgotten(google: Cloud) -> None:
    google.fault("create", "UNAVAILABLE: 503", contains="instance-groups", late=True)
    google.fault("describe", "", "The resource 'two' was not found")

    done = google.tw("create", "two", "--type", "tpu7x-16")

    assert done.returncode == 0, done.stderr
    assert (google.state.get("two").status, len(google.state.get("two").instances)) == ("ready", 2)


def test_a_killed_creation_is_taken_up(google: Cloud) -> None:
    google.fault("wait-until", "slow", sleep_s=60)
    with google.start("create", "two", "--type", "tpu7x-16", stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: bool(google.calls("wait-until")))
        process.kill()

    done = google.tw("create", "two", "--type", "tpu7x-16")

    assert done.returncode == 0, done.stderr
    assert len(google.calls("instance-groups", "create")) == 1
    assert google.state.get("two").status == "ready"
    assert len(google.state.get("two").instances) == 2


def test_a_group_of_somebody_else_is_left_alone(one: Cloud) -> None:
    file = one.folder / "groups" / "one.json"
    file.write_text(file.read_text().replace("instanceTemplates/one-", "instanceTemplates/two-"))

    for verb in (["delete", "one"], ["run", "one", one.experiment]):
        done = one.tw(*verb)
        assert done.returncode == 1
        assert "the group one in us-central1-c was not created here" in done.stderr
    assert not one.calls("instance-groups", "delete")


def test_every_choice_of_the_user_reaches_google(google: Cloud) -> None:
    email = "bench@study.iam.gserviceaccount.com"
    disk = {"zone": "us-central1-c", "type": "hyperdisk-ml", "sizeGb": 800}
    google.world(networks={"lab": {"us-central1": ["tpus"]}}, service_accounts=[email], disks={"w": disk})

    made = google.tw(
        *("create", "two", "--type", "tpu7x-16", "--network", "lab", "--subnetwork", "tpus"),
        *("--service-account", email, "--data-disk", "w", "--project", "study"),
    )
    done = google.tw("run", "two", google.experiment)

    assert (made.returncode, done.returncode) == (0, 0), made.stderr + done.stderr
    assert all("--project=study" in call for call in google.calls() if "config" not in call)
    assert (google.folder / "tpus/two/1/tracewarehouse-weights/.mounted").read_text() == "disk w"


def test_what_only_the_other_provider_has_is_refused_before_it_costs(google: Cloud) -> None:
    queued = google.tw("create", "one", "--type", "tpu7x-8", "--queue", "6h")
    google.experiment.write_text(
        "runs: [{device: tpu, model: qwen3, mesh: 'dp=2,tp=4', batch: 8, backend: torch_xla}]\n"
    )
    torch = google.tw("plan", google.experiment, "--generation", "tpu7x")

    assert "--queue is for the Cloud TPU API" in queued.stderr
    assert "torch_xla has no driver for TPU7x; use backend jax" in torch.stderr
    assert google.calls("create") == []


def test_two_devices_a_chip() -> None:
    quota = load_quota().model_copy(update={"quota": [*load_quota().quota, _pool()]})
    specs = [
        run_spec(model="microbenchmarks", backend="jax", device="tpu", mesh=mesh) for mesh in ("tp=8", "dp=2,tp=8")
    ]

    planned = plan_slices(Experiment.from_runs(*specs), "tpu7x", quota)

    assert [(p.accelerator_type, p.chips, p.hosts) for p in planned] == [("tpu7x-8", 4, 1), ("tpu7x-16", 8, 2)]
    with pytest.raises(TpuError, match="has 2 devices, so no slice has 1"):
        quota.generation("tpu7x").chips(1)


def _pool() -> object:
    pool = load_quota().quota[0]
    return pool.model_copy(update={"generation": "tpu7x", "zone": "us-central1-c", "chips": 8})


def test_doctor_looks_for_what_a_group_needs(google: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracewarehouse.collect.tpu.doctor.build_wheel", lambda folder: None)
    google.world(services=["compute.googleapis.com"], identities=[])

    done = google.tw("doctor", google.experiment, "--generation", "tpu7x")

    assert done.returncode == 0, done.stdout
    assert "ok       tpu7x-standard-4t is offered in us-central1-c" in done.stdout
    assert "ok       image of the family ubuntu-accel-2404-amd64-tpu-tpu7x" in done.stdout
    assert "unknown  quota for tpu7x-16 in us-central1-c; see: gcloud quotas info list" in done.stdout
    assert "tpu.googleapis.com" not in done.stdout


@pytest.mark.parametrize(
    ("codes", "joint"),
    [([0, 0], 0), ([0, None], None), ([255, None], None), ([0, 255], 255), ([255, 3], 3), ([3, 0], 3), ([], 0)],
)
def test_one_exit_code_for_several_hosts(codes: list[int | None], joint: int | None) -> None:
    assert joint_code(codes) == joint
