"""Creating and deleting slices, through the strict gcloud of tests/collect/tpu/cloud."""

from __future__ import annotations

import errno
import os
import signal
import subprocess

import pytest

from tests.collect.tpu.fake_cloud import TP4, Cloud, tw
from tests.running_processes import wait_until


def test_every_choice_of_the_user_reaches_google(cloud: Cloud) -> None:
    email = "bench@study.iam.gserviceaccount.com"
    disk = {"zone": "us-east1-d", "type": "hyperdisk-balanced", "sizeGb": 800}
    cloud.world(networks={"lab": {"us-east1": ["tpus"]}}, service_accounts=[email], disks={"weights": disk})

    made = cloud.tw(
        *("create", "one", "--type", "v6e-8", "--network", "lab", "--subnetwork", "tpus"),
        *("--service-account", email, "--data-disk", "weights", "--project", "study"),
    )

    assert made.returncode == 0, made.stderr
    (call,) = cloud.calls("create")
    assert "--zone=us-east1-d --project=study" in call
    assert "--network=lab --subnetwork=tpus --service-account=bench@study.iam.gserviceaccount.com" in call
    assert "--scopes=https://www.googleapis.com/auth/cloud-platform" in call
    assert "--data-disk=source=projects/study/zones/us-east1-d/disks/weights,mode=read-write --spot" in call
    assert cloud.node("one")["disk"] == {"name": "weights", "mode": "read-write"}


def test_several_hosts_share_a_disk_that_they_only_read(cloud: Cloud) -> None:
    cloud.world(disks={"w": {"zone": "us-east1-d", "type": "hyperdisk-ml", "sizeGb": 800}})

    made = cloud.tw("create", "big", "--type", "v6e-16", "--data-disk", "w")

    assert made.returncode == 0, made.stderr
    assert cloud.node("big")["disk"] == {"name": "w", "mode": "read-only"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--network", "none"), 'The value "none" provided for field "Network" does not exist'),
        (("--subnetwork", "none"), 'field "Subnetwork" does not exist'),
        (("--data-disk", "none"), "disk none was not found"),
        (("--service-account", "a@b"), "service account a@b does not exist"),
    ],
)
def test_what_google_does_not_have_is_said_and_nothing_is_kept(
    cloud: Cloud, options: tuple[str, str], said: str
) -> None:
    done = cloud.tw("create", "one", "--type", "v6e-4", *options)

    assert (done.returncode, cloud.state.slices()) == (1, {})
    assert said in done.stderr.splitlines()[-1]


def test_wrong_places_are_wrong_usage(cloud: Cloud) -> None:
    both = cloud.tw("create", "one", "--type", "v6e-4", "--data-disk", "d", "--bucket", "b")
    forever = cloud.tw("create", "one", "--type", "v6e-4", "--queue", "forever")
    bucket = cloud.tw("create", "one", "--type", "v6e-4", "--bucket", "my bucket; rm")

    assert [d.returncode for d in (both, forever, bucket)] == [2, 2, 2]
    assert cloud.calls() == []


def test_a_place_in_the_queue_is_waited_for(cloud: Cloud) -> None:
    (cloud.folder / "queue_looks.json").write_text("4")

    made = cloud.tw("create", "one", "--type", "v6e-4", "--queue", "6h")

    assert made.returncode == 0, made.stderr
    (call,) = cloud.calls("create")
    assert call.startswith("gcloud compute tpus queued-resources create one --zone=us-east1-d --accelerator-type=v6e-4")
    assert "--runtime-version=v2-alpha-tpuv6e --node-id=one --valid-until-duration=6h" in call
    assert made.stderr.count("# one is WAITING_FOR_RESOURCES; the next look in") == 5
    assert cloud.exists("one")

    assert cloud.tw("delete", "one").returncode == 0
    assert "queued-resources delete one --zone=us-east1-d --force --quiet" in cloud.calls("delete")[0]
    assert not cloud.exists("one")


def test_a_queue_that_ends_without_chips_leaves_nothing(cloud: Cloud) -> None:
    (cloud.folder / "queue_fails").touch()

    made = cloud.tw("create", "one", "--type", "v6e-4", "--queue", "1h")

    assert made.returncode == 1
    assert made.stderr.splitlines()[-1] == "error: one was not granted within 1h: no free chips in us-east1-d"
    assert cloud.state.slices() == {}
    assert not cloud.exists("one")


def test_a_preempted_queued_slice_is_asked_for_again(cloud: Cloud) -> None:
    cloud.tw("create", "one", "--type", "v6e-4", "--queue", "6h")
    cloud.fault("scp", "x", contains="--recurse", preempt=True)

    done = cloud.tw("run", "one", cloud.experiment)

    assert done.returncode == 0, done.stderr
    assert "one is SUSPENDED: it is deleted and created again" in done.stderr
    assert len(cloud.calls("queued-resources", "create")) == 2
    assert TP4 in cloud.captures()


@pytest.mark.parametrize(
    ("said", "error"), [("Quota limit reached", "Quota limit"), ("PERMISSION_DENIED", "not created.*PERMISSION_DENIED")]
)
def test_a_refused_slice_is_not_tried_again_and_not_kept(cloud: Cloud, said: str, error: str) -> None:
    cloud.fault("create", said)

    done = cloud.tw("create", "one", "--type", "v6e-4", "--attempts", "5")

    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("error: one (v6e-4 in us-east1-d) was not created")
    assert len(cloud.calls("create")) == 1
    assert cloud.state.slices() == {}


def test_what_mends_a_refusal_is_a_command_of_gcloud(cloud: Cloud) -> None:
    cloud.fault("create", "Quota limit reached")
    quota = cloud.tw("create", "one", "--type", "v6e-4", "--project", "study").stderr.splitlines()[-1]
    cloud.world(services=[])
    disabled = cloud.tw("create", "one", "--type", "v6e-4").stderr.splitlines()[-1]

    for said in (quota, disabled):
        assert cloud.gcloud(said.split("`")[1]).returncode == 0, said
    assert cloud.tw("create", "one", "--type", "v6e-4").returncode == 0


@pytest.mark.parametrize(
    ("verb", "texts", "creations"),
    [
        ("describe", ("broken pipe", "UNAVAILABLE"), 1),
        # It may be there all the same.
        ("create", ("INTERNAL: an internal error has occurred", "UNAVAILABLE: 503"), 3),
    ],
)
def test_what_got_no_answer_is_asked_again(cloud: Cloud, verb: str, texts: tuple[str, str], creations: int) -> None:
    cloud.fault(verb, *texts)

    done = cloud.tw("create", "one", "--type", "v6e-4")

    assert done.returncode == 0, done.stderr
    assert "attempt 2 of 3" in done.stderr
    assert (len(cloud.calls("describe")), len(cloud.calls("create"))) == (3, creations)


def test_who_may_not_ask_is_told_at_once(cloud: Cloud) -> None:
    cloud.fault("describe", *["PERMISSION_DENIED: no access"] * 9)

    done = cloud.tw("create", "one", "--type", "v6e-4")

    assert "PERMISSION_DENIED" in done.stderr.splitlines()[-1]
    assert "`gcloud auth login` logs in" in done.stderr.splitlines()[-1]
    assert len(cloud.calls("describe")) == 1 + 1
    assert cloud.calls("create") == []


EXPIRED = """There was a problem refreshing your current auth tokens: ('invalid_grant: Bad Request', {})
Please run:

  $ gcloud auth login

to obtain new credentials.

If you have already logged in with a different account, run:

  $ gcloud config set account ACCOUNT

to select an already authenticated account to use."""


def test_a_login_that_expired_is_told_by_the_line_that_says_so(cloud: Cloud) -> None:
    cloud.fault("describe", *[EXPIRED] * 9)

    done = cloud.tw("create", "one", "--type", "v6e-4")

    assert "There was a problem refreshing your current auth tokens" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].endswith("`gcloud auth login` logs in")
    assert "one may be there and cost; tw tpu delete one ends it" in done.stderr


@pytest.mark.parametrize("queue", [(), ("--queue", "6h")])
def test_ctrl_c_in_a_creation_names_what_may_cost(cloud: Cloud, queue: tuple[str, ...]) -> None:
    (cloud.folder / "queue_looks.json").write_text("1000000")
    cloud.fault("create", "slow", sleep_s=0 if queue else 60)
    with cloud.start("create", "one", "--type", "v6e-4", *queue, stderr=subprocess.PIPE) as process:
        wait_until(lambda: bool(cloud.calls("create")))
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)

    assert process.returncode == 130
    assert said.splitlines()[-2:] == ["one may be there and cost; tw tpu delete one ends it", "interrupted"]
    assert list(cloud.state.slices()) == ["one"]


def test_a_deletion_that_is_refused_is_not_repeated(cloud: Cloud) -> None:
    cloud.tw("create", "one", "--type", "v6e-4")
    cloud.fault("describe", *["UNAUTHENTICATED"] * 9)
    before = len(cloud.calls())

    gone = cloud.tw("delete", "one")

    assert (gone.returncode, len(cloud.calls()) - before) == (1, 1)
    assert list(cloud.state.slices()) == ["one"]


def test_nothing_outside_of_the_quota_is_asked_for(cloud: Cloud) -> None:
    for number, arguments in enumerate(
        [("--type", "v6e-128"), ("--type", "v4-64", "--zone", "us-east1-d"), ("--type", "v5litepod-4", "--on-demand")]
    ):
        done = cloud.tw("create", f"no{number}", *arguments)
        assert done.returncode == 1
        assert "outside of the quota" in done.stderr
    assert cloud.calls() == []


def test_only_what_was_created_here_is_deleted(cloud: Cloud) -> None:
    done = cloud.tw("delete", "theirs")

    assert done.returncode == 1
    assert "no slice 'theirs' was created here" in done.stderr
    assert cloud.calls() == []


@pytest.mark.parametrize("labels", [{}, {"tracewarehouse": "another"}])
def test_a_slice_of_somebody_else_is_neither_used_nor_kept_nor_deleted(cloud: Cloud, labels: dict[str, str]) -> None:
    cloud.occupy("theirs", **labels)

    done = cloud.tw("create", "theirs", "--type", "v6e-4")

    assert done.returncode == 1
    assert "theirs in us-east1-d was not created here: its label tracewarehouse is " in done.stderr
    assert cloud.state.slices() == {}
    assert [call.split()[4] for call in cloud.calls()] == ["describe"]
    assert cloud.tw("delete", "theirs").returncode == 1
    assert cloud.exists("theirs")


def test_a_slice_that_another_replaced_meanwhile_is_left_alone(cloud: Cloud) -> None:
    cloud.tw("create", "one", "--type", "v6e-4")
    cloud.change_node("one", labels={"tracewarehouse": "another"})

    for verb in (["delete", "one"], ["run", "one", cloud.experiment]):
        done = cloud.tw(*verb)
        assert done.returncode == 1
        assert "was not created here" in done.stderr
    assert cloud.exists("one")
    assert cloud.calls("delete") == []


def test_a_name_that_is_taken_between_question_and_creation(cloud: Cloud) -> None:
    cloud.fault("create", "ALREADY_EXISTS: Resource one already exists")

    done = cloud.tw("create", "one", "--type", "v6e-4")

    assert (done.returncode, cloud.state.slices()) == (1, {})
    assert "was not created here and is left alone" in done.stderr


@pytest.mark.parametrize("queue", [(), ("--queue", "6h")])
def test_a_creation_whose_answer_was_lost_is_not_forgotten(cloud: Cloud, queue: tuple[str, ...]) -> None:
    """Google made it and does not show it yet; taken for somebody else's, it would cost without anybody's knowledge."""
    cloud.fault("create", "UNAVAILABLE: 503", late=True)
    cloud.fault("describe", "", "NOT_FOUND: Resource one was not found")

    done = cloud.tw("create", "one", "--type", "v6e-4", *queue)

    assert done.returncode == 0, done.stderr
    assert "one is there already, as it was asked for; attempt 2 of 3" in done.stderr
    assert (cloud.state.get("one").status, cloud.exists("one")) == ("ready", True)


def test_a_name_that_google_would_refuse_is_never_passed_on(cloud: Cloud) -> None:
    for name in ("One", "a_b", "-x", "a b", "a;b", "a/b", "ü", "x" * 64, "a-", "7a"):
        done = tw(*cloud.arguments("create", "--type", "v6e-4"), "--", name)
        assert done.returncode in (1, 2), name

    assert cloud.calls() == []
    assert not cloud.state.slices()


def test_sweeps_at_the_same_time_share_the_quota(cloud: Cloud) -> None:
    """Six ask for 32 chips each of the 64 + 64 of v6e, at once: four get them, and nothing is left to plan with."""
    started = [cloud.start("create", f"s{n}", "--type", "v6e-32", stderr=subprocess.PIPE) for n in range(6)]
    said = [p.communicate(timeout=120)[1] for p in started]

    zones = [s.zone for s in cloud.state.slices().values()]
    assert sorted(zones) == ["europe-west4-a"] * 2 + ["us-east1-d"] * 2
    assert sorted(p.returncode for p in started) == [0, 0, 0, 0, 1, 1]
    assert sum("outside of the quota" in text for text in said) == 2
    plan_now = cloud.tw("plan", cloud.experiment, "--generation", "v6e")
    assert plan_now.returncode == 1
    assert "64 of them in use" in plan_now.stderr


def test_a_record_on_a_full_disk_is_one_error_and_stays_whole(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.tw("create", "one", "--type", "v6e-4")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    done = cloud.tw("create", "two", "--type", "v6e-4")

    assert done.returncode == 1
    assert "slices cannot be recorded there: No space left on device" in done.stderr.splitlines()[-1]
    assert list(cloud.state.slices()) == ["one"]
    assert len(cloud.calls("create")) == 1


def test_the_stand_in_refuses_what_gcloud_refuses(cloud: Cloud) -> None:
    node, queued = "gcloud compute tpus tpu-vm", "gcloud compute tpus queued-resources"
    for line, said in (
        (f"{node} create a --zone=us-east1-d --version=v --wings", "unrecognized arguments: --wings"),
        (f"{node} create a --zone=us-east1-d", "argument --version: Must be specified"),
        (f"{node} ssh a --tunnel-through-iap --command=ls", "unrecognized arguments: --tunnel-through-iap"),
        (f"{node} create a --zone=z --version=v --spot=yes", "ignored explicit argument 'yes'"),
        (f"{node} attach-disk a --disk=d", "Invalid choice"),
        (f"{queued} create q --zone=z --runtime-version=r", "Exactly one of (--node-id"),
        (f"{queued} create q --zone=z --version=v --node-id=n", "unrecognized arguments: --version"),
    ):
        done = cloud.gcloud(line)
        assert (done.returncode, said in done.stderr) == (2, True), line
