"""Sweeps on slices, through the strict gcloud of tests/collect/tpu/cloud, whatever fails meanwhile."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.collect.tpu.fake_cloud import DP2TP2, DP4TP4, REPO, TP4, Cloud, tw
from tests.running_processes import wait_until
from tracewarehouse.collect.capture import is_recorded
from tracewarehouse.collect.checks.reference import SUFFIX
from tracewarehouse.collect.errors import CollectError
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.tpu import commands
from tracewarehouse.collect.tpu.captures import merge_hosts
from tracewarehouse.collect.tpu.state import Round
from tracewarehouse.ingest.capture.manifest import load_manifest


@pytest.fixture
def one(cloud: Cloud) -> Cloud:
    """A cloud with a slice of one host."""
    assert cloud.tw("create", "one", "--type", "v6e-4").returncode == 0
    return cloud


@pytest.fixture
def big(cloud: Cloud) -> Cloud:
    """A cloud with a slice of four hosts."""
    assert cloud.tw("create", "big", "--type", "v6e-16").returncode == 0
    return cloud


def test_from_create_to_delete(cloud: Cloud, tmp_path: Path) -> None:
    made = cloud.tw("create", "one", "--type", "v6e-4", "--project", "mine")
    assert made.returncode == 0, made.stderr
    assert made.stdout == "one\tv6e-4\tus-east1-d\t4 chips\t1 host\n"

    left = cloud.output / ".fetch-abc.999999999.partial"  # by a fetch that was killed
    left.mkdir(parents=True)
    done = cloud.tw("run", "one", cloud.experiment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(cloud.output / n) for n in (TP4, DP2TP2)]
    assert not left.exists()
    assert f"left out, for slices of another size: {DP4TP4}" in done.stderr
    assert "one still runs and costs" in done.stderr
    assert "Traceback" not in (cloud.output / "one.log").read_text()

    cloud.output = tmp_path / "elsewhere"
    fetched, again = (cloud.tw("fetch", "one", cloud.experiment) for _ in range(2))
    assert (fetched.stdout.splitlines(), again.stdout) == ([str(cloud.output / n) for n in (TP4, DP2TP2)], "")

    gone = cloud.tw("delete", "one")
    assert gone.returncode == 0, gone.stderr
    assert cloud.state.slices() == {}
    assert not cloud.exists("one")
    done.stderr += fetched.stderr + again.stderr
    shown = [line for line in (made.stderr + done.stderr + gone.stderr).splitlines() if line.startswith("gcloud ")]
    # What is shown is what was run, and the stand-in took it; the recording begins beside the looks for captures.
    assert sorted(shown) == sorted(cloud.calls())
    assert all("--zone=us-east1-d --project=mine" in call for call in cloud.calls())
    assert "--version=v2-alpha-tpuv6e --accelerator-type=v6e-4 --labels=tracewarehouse=" in cloud.calls("create")[0]
    assert cloud.calls("create")[0].endswith(" --spot")


def test_all_hosts_of_a_slice_give_one_capture(big: Cloud) -> None:
    done = big.tw("run", "big", big.experiment, "--delete")

    assert done.returncode == 0, done.stderr
    assert load_manifest(big.output / DP4TP4 / "manifest.json").hosts == [f"host-{i}" for i in range(4)]
    assert len(list((big.output / DP4TP4).glob("*.xplane.pb"))) == 4
    assert big.recorded() == [f"{DP4TP4} {i}" for i in range(4)]
    assert big.state.slices() == {}


def test_hosts_that_wait_for_one_that_failed_are_stopped(big: Cloud) -> None:
    big.fault("record", "the host has no chips", worker="1")
    for worker in "023":
        big.fault("record", "hangs", worker=worker, sleep_s=300)

    done = big.tw("run", "big", big.experiment)

    assert done.returncode == 0, done.stderr
    assert "a host failed and others go on: all are stopped" in done.stderr
    assert len(big.rounds(DP4TP4)) == 2
    assert big.captures() == [DP4TP4]


def test_all_hosts_record_the_same_run_at_a_time(big: Cloud) -> None:
    """Host 3 fails in the second run after the others recorded; each round is one run, and no capture mixes two."""
    big.experiment.write_text(
        "defaults: {device: tpu, backend: torch_xla, batch: 16, mesh: 'dp=4,tp=4'}\n"
        "matrix: {input_length: [32, 64]}\nretries: 2\n"
    )
    big.fault("record", "", "No space left on device", worker="3")

    done = big.tw("run", "big", big.experiment)

    assert done.returncode == 0, done.stderr
    assert "was not recorded: No space left on device; all hosts record it again" in done.stderr
    rounds = {name: big.rounds(name) for name in big.captures()}
    assert sorted(map(len, rounds.values())) == [1, 2]
    assert {frozenset(workers) for r in rounds.values() for workers in r.values()} == {frozenset("0123")}
    for name, tokens in rounds.items():
        recorded = json.loads((big.output / name / "manifest.json").read_text())["round"]
        assert recorded.rpartition("/")[2] == list(tokens)[-1]


def test_a_run_that_never_succeeds_is_reported_and_the_others_go_on(one: Cloud) -> None:
    one.fault("record", *["the logits differ"] * 2, contains=TP4)

    first = one.tw("run", "one", one.experiment)

    assert first.returncode == 1
    assert f"error: not recorded: {TP4}: the logits differ; see {one.output / 'one.log'}" in first.stderr
    assert one.captures() == [DP2TP2]
    second = one.tw("run", "one", one.experiment)
    third = one.tw("run", "one", one.experiment)
    assert (second.returncode, third.returncode) == (0, 0)
    assert one.recorded() == [f"{DP2TP2} 0", *[f"{TP4} 0"] * 3]


def test_captures_by_model_and_parallelism(one: Cloud) -> None:
    """A second call finds them in their folders; fetch with the same option puts them there too."""
    done = one.tw("run", "one", one.experiment, "--by-model")
    again = one.tw("run", "one", one.experiment, "--by-model")
    where = [one.output / "llama" / mesh / name for mesh, name in (("tp4", TP4), ("dp2tp2", DP2TP2))]
    recorded = one.recorded()
    shutil.rmtree(one.output / "llama")
    fetched = one.tw("fetch", "one", one.experiment, "--by-model")

    assert (done.returncode, again.returncode, fetched.returncode) == (0, 0, 0), done.stderr
    for run in (done, again, fetched):
        assert run.stdout.splitlines() == list(map(str, where))
    assert len(recorded) == 2
    assert all((capture / "manifest.json").is_file() for capture in where)


def test_every_kind_of_call_may_fail_now_and_then(one: Cloud) -> None:
    """Of each verb every fifth call fails, as on a bad line; the deletion at its first two attempts."""
    for verb in ("describe", "scp", "ssh"):
        one.fault(verb, *["broken pipe", "", "", "", ""] * 20)
    one.fault("delete", "internal error", "internal error")

    done = one.tw("run", "one", one.experiment, "--delete")

    assert done.returncode == 0, done.stderr
    assert one.captures() == [DP2TP2, TP4]
    assert one.recorded() == [f"{DP2TP2} 0", f"{TP4} 0"]
    assert len(one.calls("create")) == 1
    assert len(one.calls("delete")) == 3
    assert one.state.slices() == {}
    assert not one.exists("one")


def test_a_capture_that_ingest_cannot_read_is_kept_and_counts_as_failed(one: Cloud) -> None:
    (one.folder / "profile").write_bytes(b"no profile")

    done = one.tw("run", "one", one.experiment)

    assert (done.returncode, done.stdout) == (1, "")
    assert f"error: {TP4}: the capture cannot be ingested" in done.stderr
    assert one.captures() == [DP2TP2, TP4]


def test_a_lost_connection_does_not_lose_the_run_that_goes_on(one: Cloud) -> None:
    """The shell gets a hangup in the middle of a run; the second connection waits for what was detached from it."""
    one.fault("ssh", "0.7", contains="slice_worker", lose=True)
    one.fault("record", "slow", sleep_s=2)

    done = one.tw("run", "one", one.experiment)

    assert done.returncode == 0, done.stderr
    assert one.captures() == [DP2TP2, TP4]
    assert one.recorded() == [f"{DP2TP2} 0", f"{TP4} 0"]


def test_what_a_connection_tells_late_of_an_earlier_round_is_not_of_this_one() -> None:
    said = "".join(f"{commands.ENDED} {told}\n" for told in ("ab12 host-0 1", "cd34 host-0 0", "ab12 host-1 stopped"))

    assert commands.ended(said, Round(token="cd34", run="r")) == {"host-0": "0"}
    assert commands.ended(said, Round(token="ab12", run="r")) == {"host-0": "1", "host-1": "stopped"}


def test_a_closed_pipe_does_not_end_a_sweep(one: Cloud) -> None:
    read, write = os.pipe()
    os.close(read)
    with one.start("run", "one", one.experiment, "--delete", stdout=write, stderr=write) as process:
        os.close(write)
        assert process.wait(120) == 0

    assert one.captures() == [DP2TP2, TP4]
    assert one.state.slices() == {}


def test_a_terminal_that_is_closed_does_not_leave_a_slice(one: Cloud) -> None:
    """It says so twice, by its own and by the shell, and nothing can be written to it any more."""
    one.fault("record", "slow", sleep_s=300)
    one.fault("delete", "slow", sleep_s=1)
    terminal, end = pty.openpty()
    with one.start("run", "one", one.experiment, "--delete", stdin=end, stdout=end, stderr=end) as process:
        os.close(end)
        wait_until(lambda: bool(one.recorded()))
        os.close(terminal)
        os.killpg(process.pid, signal.SIGHUP)
        wait_until(lambda: bool(one.calls("delete")))
        os.killpg(process.pid, signal.SIGHUP)
        assert process.wait(60) == 128 + signal.SIGHUP

    assert one.state.slices() == {}
    assert not one.exists("one")


def test_under_nohup_it_goes_on(one: Cloud) -> None:
    one.fault("record", "slow", sleep_s=1)
    nohup = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    with one.start("run", "one", one.experiment, "--delete", stderr=subprocess.DEVNULL, **nohup) as process:
        wait_until(lambda: bool(one.recorded()))
        os.killpg(process.pid, signal.SIGHUP)
        assert process.wait(60) == 0

    assert one.captures() == [DP2TP2, TP4]


def test_other_calls_beside_a_run(one: Cloud) -> None:
    """A second run is refused, a fetch may be faster, and what another call deletes is not created again."""
    one.fault("scp", "slow", contains="--recurse", sleep_s=3)
    one.fault("record", "slow", contains=DP2TP2, sleep_s=300)
    with one.start("run", "one", one.experiment, stderr=subprocess.PIPE) as process:
        wait_until(lambda: bool(one.calls("--recurse")))
        second = one.tw("run", "one", one.experiment, "--delete")
        fetched = one.tw("fetch", "one", one.experiment)
        wait_until(lambda: len(one.recorded()) == 2)
        deleted = one.tw("delete", "one")
        _, said = process.communicate(timeout=60)

    assert "error: another tw tpu run is at work on one; wait for its end, or end it" in second.stderr
    assert fetched.stdout == f"{one.output / TP4}\n"
    assert deleted.returncode == 0
    assert process.returncode == 1
    assert said.splitlines()[-1] == "error: one was deleted by another call of tw tpu"
    assert one.state.slices() == {}
    assert not one.exists("one")


def test_a_slice_that_cannot_be_deleted_is_named_as_one_that_costs(one: Cloud) -> None:
    one.fault("delete", *["internal error"] * 9)

    done = one.tw("run", "one", one.experiment, "--delete")

    assert done.returncode == 1
    assert "error: one could not be deleted and may still cost: ERROR" in done.stderr
    assert "one still runs and costs; tw tpu delete one ends it" in done.stderr
    assert list(one.state.slices()) == ["one"]
    assert one.captures() == [DP2TP2, TP4]


def test_a_slice_that_is_refused_when_it_is_created_again(one: Cloud) -> None:
    one.fault("record", "x", contains=DP2TP2, preempt=True)
    one.fault("create", "Quota limit reached")

    done = one.tw("run", "one", one.experiment)

    assert done.returncode == 1
    assert "Quota limit reached" in done.stderr.splitlines()[-1]
    assert "one may be there and cost; tw tpu delete one ends it" in done.stderr
    assert one.captures() == [TP4]
    assert one.tw("delete", "one").returncode == 0


def test_it_gives_up_after_the_attempts(one: Cloud) -> None:
    one.fault("ssh", *["broken pipe"] * 9)

    done = one.tw("run", "one", one.experiment, "--attempts", "2", "--delete")

    assert done.returncode == 1
    assert "error: one (READY): the collector could not be installed: ERROR" in done.stderr
    assert "Traceback" not in done.stderr
    assert one.state.slices() == {}


def test_an_installation_that_fails_is_not_tried_again(one: Cloud) -> None:
    done = one.tw("run", "one", one.experiment, "--setup", "echo no such package >&2; exit 3")

    assert done.returncode == 1
    assert "could not be installed (exit code 3): no such package" in done.stderr
    assert len(one.calls("ssh")) == 1


@pytest.mark.parametrize(
    ("mark", "said", "copies"),
    [
        ("no_libtpu", "(exit code 4): libtpu is missing; uv pip install 'torch_xla[tpu,pallas]==2.9.0' brings it", 1),
        ("no_key_in_agent", 'run eval "$(ssh-agent -s)" && ssh-add ~/.ssh/google_compute_engine', 1),
    ],
)
def test_what_is_missing_is_said_with_what_brings_it(big: Cloud, mark: str, said: str, copies: int) -> None:
    (big.folder / mark).touch()

    done = big.tw("run", "big", big.experiment)

    assert done.returncode == 1
    assert said in done.stderr
    assert len(big.calls("scp")) == copies
    assert not big.recorded()


@pytest.mark.parametrize(("code", "ends_with"), [(1, 1), (255, 0)])
def test_one_of_several_hosts_cannot_be_installed(big: Cloud, code: int, ends_with: int) -> None:
    """What fails on the host fails again; a host that was not reached is."""
    big.fault("ssh", "No space left on device", worker="2", contains="uv", code=code)

    done = big.tw("run", "big", big.experiment)

    assert done.returncode == ends_with, done.stderr
    assert "the collector could not be installed" in done.stderr
    assert "No space left on device" in done.stderr


def test_kept_references_of_the_models_come_along(one: Cloud) -> None:
    folder = one.home / "references"
    folder.mkdir()
    for name in ("llama-0123", "qwen3-4567", "llama-tiny-89"):
        (folder / f"{name}{SUFFIX}").write_text(name)

    done = one.tw("run", "one", one.experiment)

    assert done.returncode == 0, done.stderr
    copied = sorted(f.name for f in one.folder.rglob(".cache/tracewarehouse/references/*"))
    assert copied == [f"llama-0123{SUFFIX}"]


def test_the_wheel_is_built_from_these_sources_by_default(one: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[list[str]] = []

    def pip(command: list[str], **how: object) -> subprocess.CompletedProcess[str]:
        if command[1:4] != ["-m", "pip", "wheel"]:
            return real(command, **how)  # type: ignore[call-overload, no-any-return]
        built.append(command)
        with zipfile.ZipFile(Path(command[command.index("--wheel-dir") + 1]) / "tw-2-py3-none-any.whl", "w"):
            pass
        return subprocess.CompletedProcess(command, 0, "", "")

    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", pip)
    arguments = [a for a in one.arguments("run", "one", one.experiment) if a not in ("--wheel", str(one.wheel))]
    done = tw(*arguments)

    assert done.returncode == 0, done.stderr
    assert [command[-1] for command in built] == [str(REPO)]
    assert (one.folder / "installed").read_text() == "./tw-2-py3-none-any.whl 0\n"


TOKEN = "hf_secret0123456789"


def test_a_token_is_never_seen(big: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reaches all hosts as a file of theirs alone, in no command line, output, log or record, and is removed."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    done = big.tw("run", "big", big.experiment, "--token")

    assert done.returncode == 0, done.stderr
    copied = [call for call in big.calls("scp") if call.endswith("--quiet") and "tracewarehouse-token" in call]
    assert len(copied) == 1
    assert sorted((big.folder / "tokens").read_text().splitlines()) == [f"{i} 600 {len(TOKEN)}" for i in range(4)]
    texts = [done.stdout, done.stderr, *big.calls(), big.state.path.read_text()]
    texts += [f.read_text(errors="replace") for f in big.output.rglob("*") if f.is_file()]
    assert not [text for text in texts if TOKEN in text]
    assert not list(big.folder.glob("tpus/big/*/tracewarehouse-token"))


def test_a_token_that_could_not_be_protected_is_removed(one: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    one.fault("ssh", *["broken pipe"] * 9, contains="chmod 600")

    done = one.tw("run", "one", one.experiment, "--token", "--attempts", "1")

    assert "the token could not be protected" in done.stderr
    assert not list(one.folder.glob("tpus/one/*/tracewarehouse-token"))


@pytest.mark.parametrize(("number", "is_deleted"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_who_ends_it_can_have_the_slice_deleted(one: Cloud, number: signal.Signals, is_deleted: bool) -> None:
    one.fault("record", "slow", contains=DP2TP2, sleep_s=300)
    arguments = ["run", "one", one.experiment, *(["--delete"] if is_deleted else [])]
    with one.start(*arguments, stderr=subprocess.PIPE) as process:
        wait_until(lambda: len(one.recorded()) == 2)  # one is here, the other begins
        os.killpg(process.pid, number)
        _, said = process.communicate(timeout=120)

    assert process.returncode == 128 + number
    assert one.captures() == [TP4]
    assert (one.state.slices() == {}) is is_deleted
    assert one.exists("one") is not is_deleted
    assert ("one still runs and costs" in said) is not is_deleted


def test_a_copy_without_its_profile_is_copied_again(one: Cloud) -> None:
    one.fault("empty_profile", "x")

    done = one.tw("run", "one", one.experiment)

    assert done.returncode == 0, done.stderr
    assert "a host's copy has no profile in it" in done.stderr
    assert one.captures() == [DP2TP2, TP4]
    assert all(p.stat().st_size for p in one.output.glob("[!.]*/*.xplane.pb"))


def test_a_full_disk_here_ends_it_with_one_sentence(one: Cloud) -> None:
    one.fault("scp", "scp: No space left on device", contains="--recurse")

    done = one.tw("run", "one", one.experiment)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: {one.output}: {TP4} cannot be copied there: No space left")


def test_an_output_that_cannot_be_written_is_one_error_before_anything_costs(one: Cloud) -> None:
    one.output = one.wheel / "captures"  # below a file
    before = len(one.calls())

    done = one.tw("run", "one", one.experiment)

    assert done.returncode == 1
    assert "captures cannot be written there" in done.stderr
    assert len(one.calls()) == before


def test_a_disk_of_weights_is_mounted_on_all_hosts_and_formatted_once(cloud: Cloud) -> None:
    cloud.world(disks={"w": {"zone": "us-east1-d", "type": "hyperdisk-balanced", "sizeGb": 800}})
    cloud.tw("create", "one", "--type", "v6e-4", "--data-disk", "w")
    cloud.fault("record", "x", contains=DP2TP2, preempt=True)
    cloud.fault("create", "INTERNAL: an internal error has occurred")

    done = cloud.tw("run", "one", cloud.experiment)

    assert done.returncode == 0, done.stderr
    # What was copied before the slice was preempted is not recorded again.
    assert cloud.recorded() == [f"{DP2TP2} 0", f"{DP2TP2} 0", f"{TP4} 0"]
    assert (cloud.folder / "tpus/one/0/tracewarehouse-weights/.mounted").read_text() == "disk w"
    assert all(
        'HF_HUB_CACHE="$HOME/tracewarehouse-weights/hub"' in c for c in cloud.calls("ssh") if "slice_worker" in c
    )


def test_models_that_the_hosts_own_disks_cannot_hold_are_left_out_before_they_cost(one: Cloud) -> None:
    """32.8 billion weights of 16 bits and 5 % are 69 GB; 107 less 40 GB are 67."""
    one.experiment.write_text(
        "defaults: {device: tpu, backend: torch_xla, batch: 16, mesh: tp=4, dtype: bfloat16}\n"
        "runs: [{model: llama}, {model: Qwen/Qwen3-32B}]"
    )

    done = one.tw("run", "one", one.experiment)

    assert done.returncode == 1
    (name,) = one.captures()
    assert name.startswith("llama-tp4")
    assert "the files of Qwen/Qwen3-32B take 69 GB, and the hosts' own disks have 67 GB to give" in done.stderr
    assert not [r for r in one.recorded() if "Qwen" in r]


def test_a_bucket_of_weights_is_mounted_on_all_hosts(cloud: Cloud) -> None:
    cloud.world(buckets=["weights"])
    cloud.tw("create", "big", "--type", "v6e-16", "--bucket", "gs://weights")

    done = cloud.tw("run", "big", cloud.experiment)

    assert done.returncode == 0, done.stderr
    mounts = [f.read_text() for f in cloud.folder.glob("tpus/big/*/tracewarehouse-weights/.mounted")]
    assert mounts == ["bucket weights"] * 4


def test_a_bucket_that_is_gone_is_said_and_not_tried_again(cloud: Cloud) -> None:
    cloud.tw("create", "one", "--type", "v6e-4", "--bucket", "weights")

    done = cloud.tw("run", "one", cloud.experiment)

    assert done.returncode == 1
    assert "error: one: the hosts cannot record: gcsfuse: bucket doesn't exist" in done.stderr
    assert not cloud.recorded()


def test_the_real_collector_records_on_the_hosts(cloud: Cloud) -> None:
    """Everything but gcloud and the model is what runs on a slice: the worker, the runner, a process per run."""
    (cloud.folder / "real_worker").write_text(f"{REPO}:{REPO / 'tests'}")
    cloud.experiment.write_text("runs: [{device: tpu, mesh: tp=4, backend: 'fake_backend:FakeBackend'}]")
    cloud.tw("create", "one", "--type", "v6e-4")

    done = cloud.tw("run", "one", cloud.experiment)

    assert done.returncode == 0, done.stderr
    (name,) = cloud.captures()
    assert (cloud.output / name / "card.yaml").is_file()
    assert load_manifest(cloud.output / name / "manifest.json").hosts == ["fakehost"]
    assert f"note: {name}: its backend names no reference, so its tokens are not compared" in done.stderr


def test_hosts_that_recorded_another_run_are_not_merged(tmp_path: Path) -> None:
    spec = run_spec(device="tpu")
    part = tmp_path / "0" / spec.name
    part.mkdir(parents=True)
    (part / "manifest.json").write_text(
        '{"name": "x", "model": {"name": "m"}, "dtype": "float32", "batch_size": 1, "input_length": 1, '
        '"output_length": 1, "mesh": {"axes": {"tp": 4}}, "spec_digest": "other"}'
    )

    with pytest.raises(CollectError, match="another configuration"):
        merge_hosts([part], tmp_path / "out", spec)
    assert not is_recorded(tmp_path / "out", spec)
